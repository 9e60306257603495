/** Graphs that take memory, for the program `memory`. */
#pragma once

#include <cuda.h>

#include <cstddef>
#include <istream>

/** Makes an executable graph with memory nodes of so many bytes each; or captures allocations. */
inline CUresult make_graph(bool is_captured, std::istream& sizes, CUgraphExec& made) {
  CUgraph graph = nullptr;
  CUresult result = is_captured ? cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED)
                                : cuGraphCreate(&graph, 0);
  for (std::size_t bytes = 0; result == CUDA_SUCCESS && sizes >> bytes;) {
    CUgraphNode node = nullptr;
    CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
    wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    wanted.bytesize = bytes;
    result = is_captured ? cuMemAllocAsync(&wanted.dptr, bytes, nullptr)
                         : cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &wanted);
  }
  if (result == CUDA_SUCCESS && is_captured) {
    result = cuStreamEndCapture(nullptr, &graph);
  }
  return result == CUDA_SUCCESS ? cuGraphInstantiate(&made, graph, 0) : result;
}

/** Frees memory between the beginning and the end of a capture, which captures nothing. */
inline CUresult free_in_capture(CUdeviceptr address) {
  CUgraph graph = nullptr;
  CUresult result = cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED);
  if (result == CUDA_SUCCESS) {
    const CUresult freed = cuMemFree(address);
    result = cuStreamEndCapture(nullptr, &graph);
    result = freed == CUDA_SUCCESS ? result : freed;
  }
  return result;
}
