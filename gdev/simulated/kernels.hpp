/** Kernels of the simulated GPU: C++ that stands in for the entries of PTX, by name. */
#pragma once

#include <string_view>

namespace gdev::simulated {

/** Runs all of a grid. parameters: as in cuLaunchKernel, a pointer to the value of each one. */
using kernel = void (*)(void** parameters);

/** Returns the kernel of this name, or null. */
[[nodiscard]] kernel find_kernel(std::string_view name) noexcept;

/** Returns the bytes of each parameter of a kernel, ended by 0: they are copied when launched. */
[[nodiscard]] const unsigned char* parameter_sizes(kernel which) noexcept;

}  // namespace gdev::simulated
