// The files that are measured: made, recognised, and brought into or out of the host's page cache.
#pragma once

#include <cstdint>
#include <string>

namespace gpufs::bench {

// Writes words of content (content.cuh) from `offset` on, in parallel, into a file that is made
// where it is not there. Offset and size are multiples of 8.
void write_content(const std::string& path, std::uint64_t offset, std::uint64_t bytes);
// Whether the file holds that content, as far as a few words spread over it tell: a file with some
// damage is still ours.
bool holds_content(const std::string& path);

// Share of the file that is in the page cache, 0 to 1.
double cached_share(const std::string& path);
// Writes back what is dirty, then asks the kernel to drop the file's pages. Whether it did,
// cached_share() tells: pages that somebody has mapped stay.
void drop_from_cache(const std::string& path);

// Small files, numbered from 0: paths of one length for all numbers, at most a thousand in one
// folder.
std::string small_file_path(const std::string& folder, std::uint64_t number);
std::uint64_t small_files_bytes(std::uint64_t first, std::uint64_t count);
// In parallel.
void write_small_files(const std::string& folder, std::uint64_t first, std::uint64_t count);

}  // namespace gpufs::bench
