#include "rivals/grep/files.hpp"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "grep/merge.hpp"

namespace gpufs::grep {

void add_parts(std::vector<file_part>& to, std::uint32_t file, std::uint64_t bytes,
               std::uint64_t part_bytes) {
  std::uint64_t at = 0;
  do {
    to.push_back({file, at, std::min(at + part_bytes, bytes)});
    at += part_bytes;
  } while (at < bytes);
}

std::vector<file_part> cut_files(const std::vector<file_item>& files, std::uint64_t part_bytes) {
  std::vector<file_part> parts;
  parts.reserve(files.size());
  for (const std::uint32_t file : order_large_first(files, part_bytes))
    add_parts(parts, file, files[file].size_hint, part_bytes);
  return parts;
}

file_states::file_states(std::size_t files) : errors_(files), first_nul_(files) {
  for (std::atomic<std::uint64_t>& nul : first_nul_) nul.store(no_nul, std::memory_order_relaxed);
}

void file_states::note_nul(std::uint32_t file, std::uint64_t at) {
  std::uint64_t seen = first_nul(file);
  while (at < seen &&
         !first_nul_[file].compare_exchange_weak(seen, at, std::memory_order_relaxed)) {
  }
}

part_file::part_file(const char* path) : fd_(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY)) {
  if (fd_ < 0) error_ = errno;
}

part_file::~part_file() {
  if (fd_ >= 0) close(fd_);
}

std::int64_t part_file::read(char* to, std::uint64_t at, std::uint64_t bytes) const {
  const std::uint64_t lead = at == 0 ? 0 : lead_bytes;
  if (lead == 0) std::memset(to, 0, lead_bytes);
  to += lead_bytes - lead;
  const std::uint64_t wanted = lead + bytes + behind_bytes;
  for (std::uint64_t done = 0;;) {
    const ssize_t n = pread(fd_, to + done, wanted - done, static_cast<off_t>(at - lead + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    done += static_cast<std::uint64_t>(n);
    // A read of a regular file returns fewer bytes only at the end of the file, and after 2 GiB.
    if (done == wanted || n < (1 << 30))
      return done < lead ? 0 : static_cast<std::int64_t>(done - lead);
  }
}

void take_own_descriptors() { (void)unshare(CLONE_FILES); }

}  // namespace gpufs::grep
