// The calls that change files.
#pragma once

#include "gpufs/gpufs.cuh"

namespace gpufs {

// Writes `bytes` of memory that all members can read, at any offset; neither needs an alignment (16-byte aligned on both sides is
// fastest). A file opened with O_APPEND is written at its end instead: at an offset that no other call of the mount gets.
// When the call returns, all threads of the mount see the bytes; others see them after gclose, gmsync or gfsync, or when
// the page was written back for want of frames. Only these bytes ever reach the file, whatever else is in their pages.
// Returns the bytes written: fewer than asked only before an error that the next call returns.
// Errors: -EBADF, also for a descriptor that does not write; -EINVAL for a negative offset; -EFBIG behind 2^48 bytes; -EFAULT for a
// null buffer; what a read of the page gave, if only a part of it is written and the file has it; -ENOBUFS. Errors of the disk
// come later, from gfsync, gmsync or gclose.
// Waits: for I/O where a page has to be fetched or others written back first, bounded by the mount's timeouts. (GPUfs, ACM
// TOCS 32(1), section 3.2.)
template <class Group>
[[nodiscard]] GPUFS_HD std::int64_t gwrite(const Group& g, const mount_ref& fs, std::int32_t fd, const void* buffer,
                                           std::uint64_t bytes, std::int64_t offset) {
  const detail::found_file found = detail::find_file(fs, g, fd, access_write);
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
    if (g.is_leader()) begin.at = fs.node(found.view.node).size.fetch_add_relaxed(bytes);
    begin = g.broadcast(begin);
  }
  if (begin.at > limits::file_bytes_max - bytes) return -EFBIG;
  return detail::write_any(fs, g, found.view, static_cast<const char*>(buffer), begin.at, begin.at + bytes);
}

// Has all that was written to the file through this mount reach its disk, as fdatasync(2). Returns 0, or -errno: also of an
// earlier write-back of the file that failed and that nobody was told of; it is told once. What could not be written stays
// dirty, so that a later call may succeed. -EBADF for a descriptor that does not write. Waits for I/O.
template <class Group>
[[nodiscard]] GPUFS_HD std::int32_t gfsync(const Group& g, const mount_ref& fs, std::int32_t fd) {
  const detail::found_file found = detail::find_file(fs, g, fd, access_write);
  if (found.error != 0) return found.error;
  g.sync();
  return detail::sync_file(fs, g, found.view);
}

// Makes the file `size` bytes long: cuts it, or lengthens it with zeros. Calls that write behind `size` at the same time may take
// place before it or after, byte by byte. Returns 0, or -errno: -EBADF, -EINVAL for a negative size, -EFBIG, what the host said.
// Waits for the host.
template <class Group>
[[nodiscard]] GPUFS_HD std::int32_t gftruncate(const Group& g, const mount_ref& fs, std::int32_t fd,
                                               std::int64_t size) {
  const detail::found_file found = detail::find_file(fs, g, fd, access_write);
  if (found.error != 0) return found.error;
  if (size < 0) return -EINVAL;
  if (static_cast<std::uint64_t>(size) >= limits::file_bytes_max) return -EFBIG;
  g.sync();
  return by_one_warp(g, [&](const auto& part) {
    return detail::truncate_file(fs, part, found.view, static_cast<std::uint64_t>(size));
  });
}

// Removes a path, and gives one another name, as unlink(2) and rename(2). Descriptors of the files stay what they are. Returns 0,
// or -errno: what the host said, -EROFS, -EFAULT, -ENAMETOOLONG. Waits for the host.
template <class Group>
[[nodiscard]] GPUFS_HD std::int32_t gunlink(const Group& g, const mount_ref& fs, const char* path) {
  if (!fs.writes()) return -EROFS;
  return detail::ask_about_paths(fs, g, request_code::unlink, path, nullptr);
}
template <class Group>
[[nodiscard]] GPUFS_HD std::int32_t grename(const Group& g, const mount_ref& fs, const char* path,
                                            const char* new_path) {
  if (!fs.writes()) return -EROFS;
  return detail::ask_about_paths(fs, g, request_code::rename, path, new_path);
}

}  // namespace gpufs
