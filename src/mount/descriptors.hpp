// The limit of the host descriptors that a mount uses.
#pragma once

#include <cstddef>

namespace gpufs {

// The number of host descriptors that a mount may keep open for files. With `raises_limit`, raises
// the process's soft limit to the hard limit, as language run-times do. Subtracts the descriptors
// that are open, and those that the mount's `threads` need for a moment. A quarter of the rest
// stays for the program.
std::size_t descriptors_max(std::size_t threads, bool raises_limit);

}  // namespace gpufs
