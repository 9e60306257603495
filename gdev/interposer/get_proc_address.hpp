/** How programs get the driver's functions since CUDA 11.3: by name, version and kind of stream. */
#pragma once

#include <cuda.h>

#include <cstdint>

namespace gdev {

/**
 * Stands in for cuGetProcAddress of CUDA 11.3 to 11.8.
 *
 * The driver chooses the function; if gdev has a wrapper of the one that it chose, the program gets
 * the wrapper. So versions and per-thread default streams are as the driver has them.
 */
CUresult get_proc_address(const char* symbol, void** function, int version,
                          cuuint64_t flags) noexcept;

/** The same, of CUDA 12 and later. */
CUresult get_proc_address_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) noexcept;

/** Returns how often these found a function. */
[[nodiscard]] std::uint64_t lookups() noexcept;

}  // namespace gdev
