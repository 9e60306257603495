// The calls that change files.
#pragma once

#include "gpufs/gpufs.cuh"

namespace gpufs {

// Writes `bytes` of memory that all members can read, at any offset; neither needs an alignment
// (16-byte aligned on both sides is fastest). A file opened with O_APPEND is written at its end
// instead: at an offset that no other call of the mount gets. Who reads the file meanwhile may find
// zeros there; and if the call fails, they stay unless nothing was written behind them. When the
// call returns, all threads of the mount see the bytes; others see them after gclose, gmsync or
// gfsync, or when the page was written back for want of frames. Only these bytes ever reach the
// file, whatever else is in their pages. Returns the bytes written: fewer than asked only before an
// error that the next call returns. Of several pages the warps of a block write a share each: then
// bytes behind those may have been written too. Errors: -EBADF, also for a descriptor that does not
// write; -EINVAL for a negative offset; -EFBIG behind 2^48 bytes; -EFAULT for a null buffer; what a
// read of the page gave, if only a part of it is written and the file has it; -ENOBUFS. Errors of
// the disk come later, from gfsync, gmsync or gclose. When the descriptor is closed meanwhile,
// -EBADF, and any part of the bytes is written. Waits: for I/O where a page has to be fetched or
// others written back first, bounded by the mount's timeouts; an append also while the file is
// being truncated. (GPUfs, ACM TOCS 32(1), section 3.2.)
template <class Group>
[[nodiscard]] GPUFS_HD std::int64_t gwrite(const Group& g, const mount_ref& fs, std::int32_t fd,
                                           const void* buffer, std::uint64_t bytes,
                                           std::int64_t offset) {
  const detail::found_file found = detail::find_to_write(fs, g, fd);
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
      detail::begin_size_use(fs, found.view.node);
      begin.at = fs.node(found.view.node).size.fetch_add_relaxed(bytes);
    }
    begin = g.broadcast(begin);
  }
  if (begin.at > limits::file_bytes_max - bytes) {
    if (appends && g.is_leader()) {
      fs.node(found.view.node).size.add_relaxed(~bytes + 1);
      detail::end_size_use(fs, found.view.node);
    }
    return -EFBIG;
  }
  const auto* const from = static_cast<const char*>(buffer);
  const std::uint64_t end = begin.at + bytes;
  const std::int64_t written =
      detail::write_bytes(fs, g, fd, found.view, from, begin.at, end, appends);
  // After a barrier of write_bytes(), behind all members' marks.
  if (appends && g.is_leader()) detail::end_size_use(fs, found.view.node);
  return written;
}

// Has all that was written to the file through this mount reach its disk, as fdatasync(2). Returns
// 0, or -errno: also of an earlier write-back of the file that failed and that no call has
// returned; then it is returned once, and what could not be written stays dirty, so that a later
// call may succeed. -EIO, too, while a write-back that was given up may still take place. But a
// sync that failed may have dropped bytes for good, and a truncation that the host has begun and
// not answered in time may still take place: after those every gfsync and gclose of the file fails,
// up to the last gclose. -EBADF for a descriptor that does not write. Waits for I/O.
template <class Group>
[[nodiscard]] GPUFS_HD std::int32_t gfsync(const Group& g, const mount_ref& fs, std::int32_t fd) {
  const detail::found_file found = detail::find_file(fs, g, fd, access_write);
  if (found.error != 0) return found.error;
  g.sync();
  return detail::sync_file(fs, g, found.view);
}

// Makes the file `size` bytes long: cuts it, or lengthens it with zeros. Calls that write behind
// `size` at the same time may take place before it or after, byte by byte. Returns 0, or -errno:
// -EBADF, -EINVAL for a negative size, -EFBIG, what the host said: then gfstat tells which size it
// has. -EIO, and nothing has changed, while a write-back that was given up may still take place;
// -EIO also when the host does not answer: then it may still cut the file, and every gfsync and
// gclose fails up to the last gclose. An append takes place as a whole before it, or after it, at
// the end that the file has then. Waits for the host, for such writes, and for appends under way.
template <class Group>
[[nodiscard]] GPUFS_HD std::int32_t gftruncate(const Group& g, const mount_ref& fs, std::int32_t fd,
                                               std::int64_t size) {
  const detail::found_file found = detail::find_file(fs, g, fd, access_write);
  if (found.error != 0) return found.error;
  if (size < 0) return -EINVAL;
  if (static_cast<std::uint64_t>(size) >= limits::file_bytes_max) return -EFBIG;
  g.sync();
  return by_one_warp(g, [&](const one_warp_of<Group>& part) {
    return detail::truncate_file(fs, part, found.view, static_cast<std::uint64_t>(size));
  });
}

// Removes a path, and gives one another name, as unlink(2) and rename(2). Descriptors of the files
// stay what they are. Returns 0, or -errno: what the host said, -EROFS, -EFAULT, -ENAMETOOLONG;
// -EIO when the host does not answer: then it may still happen; -EBUSY, and nothing was done, while
// that is so of an earlier call on one of the paths. Waits for the host.
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

// A part of a file in GPU memory that may be written. `bytes` as of a mapping.
struct writable_mapping {
  char* data;
  std::int64_t bytes;
  std::int32_t fd;
  std::uint32_t reserved;
};

// As gmmap, for reading and writing: what is stored there by any thread of the GPU goes to the file
// after gmsync or gmunmap of the mapping, and only bytes whose value has changed. (Write with
// gwrite what must go there though it was there before.) The descriptor has to stay open until
// then, and be one that reads and writes: -EACCES. A mapping holds two frames. It does not lengthen
// the file: gftruncate does. Errors and waits as gmmap.
template <class Group>
[[nodiscard]] GPUFS_HD writable_mapping gmmap_write(const Group& g, const mount_ref& fs,
                                                    std::int32_t fd, std::int64_t offset,
                                                    std::uint64_t bytes) {
  if (offset < 0 || bytes == 0) return {nullptr, -EINVAL, fd, 0};
  const detail::found_file found = detail::find_file(fs, g, fd, access_read | access_write);
  if (found.error != 0) return {nullptr, found.error, fd, 0};
  constexpr std::uint32_t both = access_read | access_write;
  if ((found.view.access & both) != both) return {nullptr, -EACCES, fd, 0};
  const auto at = static_cast<std::uint64_t>(offset);
  if (at >= found.view.size) return {nullptr, 0, fd, 0};
  const std::uint64_t page = at >> fs.layout.page_shift;
  const page_pin pin = detail::pin_to_write(fs, g, found.view, page);
  if (pin.valid < 0) return {nullptr, pin.valid, fd, 0};
  const std::uint64_t within = at - (page << fs.layout.page_shift);
  const std::uint64_t left = found.view.size - at;
  const mapping m = detail::mapping_of(fs, pin, within, left < bytes ? left : bytes);
  return {fs.page(pin.frame) + within, m.bytes, fd, 0};
}

namespace detail {

// What was stored in a mapping is marked. 0, or -errno: -EINVAL when it is none, -EBADF. `frame`
// and `copy`: where it is. Collective.
template <class Group>
GPUFS_HD std::int32_t take_changes(const mount_ref& fs, const Group& g, const writable_mapping& m,
                                   std::uint32_t& frame_number, std::int32_t& copy) {
  if (!find_frame(fs, m.data, frame_number) || m.bytes <= 0) return -EINVAL;
  const auto within = static_cast<std::uint64_t>(m.data - fs.page(frame_number));
  if (static_cast<std::uint64_t>(m.bytes) > fs.layout.page_bytes() - within) return -EINVAL;
  g.sync();
  copy = 0;
  if (g.is_leader()) copy = frame_of_copy(fs, frame_number);
  copy = g.broadcast(copy);
  if (copy < 0) return copy;
  const found_file found = find_to_write(fs, g, m.fd);
  if (found.error != 0) return found.error;
  if (g.is_leader()) begin_size_use(fs, found.view.node);
  // Not behind the file's end, where it was cut since.
  const std::uint64_t size = file_size(fs, g, found.view.node);
  const std::uint64_t page_begin = g.broadcast(frame_table(fs).header(frame_number).key()).low
                                   << fs.layout.page_shift;
  const std::uint64_t stop = within + static_cast<std::uint64_t>(m.bytes);
  const std::uint64_t there = size > page_begin ? size - page_begin : 0;
  mark_changes(fs, g, found.view, frame_number, static_cast<std::uint32_t>(copy), within,
               stop < there ? stop : there);
  if (g.is_leader()) end_size_use(fs, found.view.node);
  return 0;
}

}  // namespace detail

// What was stored in the mapping so far is in the file when it returns (not on its disk: gfsync).
// Returns 0, or -errno as gfsync; -EINVAL for what is no such mapping. Waits for I/O.
template <class Group>
[[nodiscard]] GPUFS_HD std::int32_t gmsync(const Group& g, const mount_ref& fs,
                                           const writable_mapping& m) {
  std::uint32_t frame_number = 0;
  std::int32_t copy = 0;
  const std::int32_t result = detail::take_changes(fs, g, m, frame_number, copy);
  if (result != 0) return result;
  return by_one_warp(g, [&](const one_warp_of<Group>& part) {
    return detail::write_back(fs, part).flush_page(frame_number);
  });
}

// Ends the mapping. What was stored in it is dirty then, and goes to the file as what gwrite wrote.
// Returns 0; -EINVAL for what is no such mapping; -EBADF when its descriptor was closed before:
// then what was stored is lost. Does not wait for I/O, but while the file is being truncated.
template <class Group>
GPUFS_HD std::int32_t gmunmap(const Group& g, const mount_ref& fs, const writable_mapping& m) {
  std::uint32_t frame_number = 0;
  std::int32_t copy = 0;
  const std::int32_t result = detail::take_changes(fs, g, m, frame_number, copy);
  if (result != 0 && result != -EBADF) return result;
  g.sync();
  if (g.is_leader()) {
    const detail::frame_table frames(fs);
    const auto copy_frame = static_cast<std::uint32_t>(copy);
    frames.unpin(copy_frame);
    // Nobody needs it any more, unless others have mapped the page too.
    if (frames.claim_resident(copy_frame)) frames.header(copy_frame).state.release();
    frames.unpin(frame_number);
    // Release: what came before was found, or is lost.
    (void)fs.at<name_state>(fs.layout.names)->mapped.fetch_add_release(~0u);
  }
  g.sync();
  return result;
}

}  // namespace gpufs
