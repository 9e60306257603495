// Files with a late NUL, seen from the host: where GNU grep stops counting in them
// (grep_buffer.hpp).
#pragma once

#include <cstdint>
#include <string>

namespace gpufs::grep {

// GNU grep asks for holes before it has met a NUL: a hole reads as NULs, and makes the whole file
// binary at once. False for what cannot be opened, and for what is no regular file.
bool has_hole(const std::string& path);

// Of a file whose first NUL is at `nul`, the bytes in front of the line in which grep stops
// counting; 0 if all of it counts nothing. Throws gpufs::error with the path.
std::uint64_t counted_bytes(const std::string& path, std::uint64_t nul);

}  // namespace gpufs::grep
