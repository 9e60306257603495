// The files that are measured: creates and recognises them, and changes or reports their state in
// the host's page cache.
#pragma once

#include <cstdint>
#include <string>

namespace gpufs::bench {

// Writes words of content (content.cuh) from `offset` on, with several threads. Creates the file if
// it does not exist. Offset and size are multiples of 8.
void write_content(const std::string& path, std::uint64_t offset, std::uint64_t bytes);
// Returns whether the file holds that content, judged by a few words spread over it. A partly
// damaged file still counts.
bool holds_content(const std::string& path);

// Returns the share of the file that is in the page cache, 0 to 1.
double cached_share(const std::string& path);
// Writes dirty pages back, then requests the kernel to drop the file's pages. Pages that a process
// has mapped stay: cached_share() reports the result.
void drop_from_cache(const std::string& path);

// Small files, numbered from 0. All paths have the same length; a folder has at most a thousand
// files.
std::string small_file_path(const std::string& folder, std::uint64_t number);
std::uint64_t small_files_bytes(std::uint64_t first, std::uint64_t count);
// Uses several threads.
void write_small_files(const std::string& folder, std::uint64_t first, std::uint64_t count);

}  // namespace gpufs::bench
