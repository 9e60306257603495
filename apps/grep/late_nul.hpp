// Files with a late NUL, on the host: where GNU grep stops counting in them (grep_buffer.hpp).
#pragma once

#include <cstdint>
#include <string>

namespace gpufs::grep {

// GNU grep checks for holes before it finds a NUL: a hole reads as NULs and makes the whole file
// binary at once. Returns false for what cannot be opened or is not a regular file.
bool has_hole(const std::string& path);

// For a file whose first NUL is at `nul`: returns the bytes before the line in which grep stops
// counting; 0 if nothing counts. Throws gpufs::error with the path.
std::uint64_t counted_bytes(const std::string& path, std::uint64_t nul);

}  // namespace gpufs::grep
