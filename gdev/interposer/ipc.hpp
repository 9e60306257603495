/**
 * The driver's IPC of device memory (cuIpcGetMemHandle and others), for memory that can be swapped.
 *
 * The driver's own works on what its cuMemAlloc() has made. Memory that can be swapped is made of
 * chunks, so gdev sends their descriptors from process to process. A handle names the exporting
 * process and the allocation; a thread of that process serves the descriptors (ipc_exporter.hpp).
 * What is exported stays on the GPU until it is freed. Other handles and addresses go to the
 * driver.
 *
 * Here too are calls by which others reach memory past its address, such as dma-buf: they wire it.
 */
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "driver/function_table.hpp"

namespace gdev {

/** Returns the wrapper of such a call, or null if `id` is none. */
[[nodiscard]] void* ipc_wrapper(function_id id) noexcept;

/** Finds the opened memory that contains an address. Returns false if it is none. */
[[nodiscard]] bool find_imported(CUdeviceptr address, CUdeviceptr* base,
                                 std::size_t* bytes) noexcept;

/** Returns the bytes of all opened memory. */
[[nodiscard]] std::uint64_t imported_bytes() noexcept;

/** Closes all that was opened in a context, which is about to end. Holds a submission. */
void close_imports(CUcontext context) noexcept;

/** Lets another device use what was opened of a device's memory. Holds a submission. */
void give_access_to_imports(CUdevice owner, CUdevice user) noexcept;

/** In a forked child: nothing is exported or opened here. */
void forget_ipc() noexcept;

}  // namespace gdev
