/** The importing side of IPC: asks the exporter of a handle for its chunks. */
#pragma once

#include <cuda.h>

#include <cstddef>
#include <vector>

#include "interposer/ipc_exporter.hpp"

namespace gdev {

struct imported_chunk {
  CUmemGenericAllocationHandle handle = 0;  // 0: released
  std::size_t bytes = 0;
};

/**
 * Imports all chunks of a handle, within `answer_timeout`.
 *
 * Returns CUDA_ERROR_MAP_FAILED: the exporter is gone, hangs, or is another user's;
 * CUDA_ERROR_INVALID_HANDLE: it has no such memory. Then the caller releases what is in `made`.
 */
[[nodiscard]] CUresult fetch(const ipc_handle& which, std::vector<imported_chunk>& made) noexcept;

/** Releases the handles. What is mapped stays. */
void release_all(std::vector<imported_chunk>& chunks) noexcept;

}  // namespace gdev
