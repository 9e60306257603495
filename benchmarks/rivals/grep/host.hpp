// What the CUDA program leaves to the CPU.
#pragma once

#include "rivals/grep/findings.hpp"
#include "rivals/grep/keys.hpp"

namespace gpufs::grep {

// Throws gpufs::error (EINVAL) for a chunk size that is tiny, or that would put chunks at places
// where parts cannot begin.
void check_chunk(std::uint64_t bytes);

// The last step of both programs: searches the counted parts of files with a late NUL, and makes
// the result.
result complete(const dictionary& d, const key_table& keys, const std::vector<file_item>& files,
                file_states& states, std::vector<findings>&& first, unsigned threads,
                std::uint64_t chunk_bytes);

}  // namespace gpufs::grep
