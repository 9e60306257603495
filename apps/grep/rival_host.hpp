// What the CUDA program leaves to the CPU.
#pragma once

#include "rival_findings.hpp"
#include "rival_keys.hpp"

namespace gpufs::grep {

// Throws gpufs::error (EINVAL) where chunks would not be at places of files that parts can begin
// at, or would be tiny.
void check_chunk(std::uint64_t bytes);

// Both programs' end: searches what counts of files with a late NUL, and puts all together.
result complete(const dictionary& d, const key_table& keys, const std::vector<file_item>& files,
                file_states& states, std::vector<findings>&& first, unsigned threads,
                std::uint64_t chunk_bytes);

}  // namespace gpufs::grep
