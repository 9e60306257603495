/** What the simulated driver's streams know of captures. */
#pragma once

#include "simulated/device.hpp"

namespace gdev::simulated {

/** Adds a memory node to the graph that is captured in a stream. Returns false if there is none. */
bool capture_allocation(CUstream where, std::size_t bytes, CUdeviceptr* address);

}  // namespace gdev::simulated
