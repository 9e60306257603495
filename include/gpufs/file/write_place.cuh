// Where a write goes: to the caller's offset, or to the end of the file.
#pragma once

#include "gpufs/file/write_bytes.cuh"

namespace gpufs::detail {

// As gwrite.
template <class Group>
GPUFS_HD std::int64_t write_at(const Group& g, const mount_ref& fs, std::int32_t fd,
                               const void* buffer, std::uint64_t bytes, std::int64_t offset) {
  const found_file found = find_to_write(fs, g, fd);
  if (found.error != 0) return found.error;
  const bool appends = (found.view.access & access_append) != 0;
  if (offset < 0 && !appends) return -EINVAL;
  if (bytes == 0) return 0;
  if (buffer == nullptr) return -EFAULT;
  if (bytes > limits::file_bytes_max) return -EFBIG;
  struct {
    std::uint64_t at;
  } begin{static_cast<std::uint64_t>(offset)};
  if (appends) {
    if (g.is_leader()) {
      begin_size_use(fs, found.view.node);
      begin.at = take_place(fs.node(found.view.node), bytes);
    }
    begin = g.broadcast(begin);
  }
  if (begin.at >= limits::file_bytes_max - bytes) {
    if (appends && g.is_leader()) end_size_use(fs, found.view.node);
    return -EFBIG;
  }
  const auto* const from = static_cast<const char*>(buffer);
  const std::uint64_t end = begin.at + bytes;
  const std::int64_t written = write_bytes(fs, g, fd, found.view, from, begin.at, end, appends);
  // write_bytes() has ended with a barrier, so this comes after the marks of all members.
  if (appends && g.is_leader()) end_size_use(fs, found.view.node);
  return written;
}

}  // namespace gpufs::detail
