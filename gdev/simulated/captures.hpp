/** What the simulated driver's streams, events and contexts know of captures. */
#pragma once

#include "simulated/device.hpp"

namespace gdev::simulated {

/** Adds a memory node to the graph that is captured in a stream. Returns false if there is none. */
bool capture_allocation(CUstream where, std::size_t bytes, CUdeviceptr* address);
/** Records an event in a stream that is captured. Returns false if it is not. */
bool capture_record(event& which, CUstream where);
/** Lets a stream join the capture in which an event was recorded. Returns false: in none. */
bool join_capture(CUstream where, event& which);
/** The stream is destroyed: its capture ends if it began there, and is invalid otherwise. */
void end_capture_of(CUstream ended);
/** The context is destroyed: captures that began in it end. */
void end_captures_of(CUcontext ended);

}  // namespace gdev::simulated
