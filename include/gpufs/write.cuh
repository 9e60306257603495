// The calls that change files.
#pragma once

#include "gpufs/file/map.cuh"
#include "gpufs/file/mapped_writes.cuh"
#include "gpufs/file/truncate.cuh"

namespace gpufs {

// Writes bytes to a file.
//   buffer  memory that all members can read
//   bytes   any number
//   offset  in bytes, >= 0; ignored with O_APPEND. Neither needs an alignment; 16-byte alignment of
//     buffer and offset is fastest.
//
// With O_APPEND the bytes go to the end of the file, to an offset that no other call of the mount
// gets. A concurrent reader may find zeros there. If the call fails, the zeros stay, unless no
// other call has appended after them.
//
// When the call returns, all threads of the mount see the bytes. Other programs see them after
// gclose, gmsync or gfsync, or when the mount has written the page back because it needed frames.
// Only the written bytes reach the file, whatever else their pages contain. (GPUfs, ACM TOCS 32(1),
// section 3.2.)
//
// Returns the bytes written. They are fewer than asked only before an error that the next call
// returns. If a write spans several pages, each warp of a block writes a share; then bytes after
// the returned count may be written too.
//
// Errors:
// * -EBADF: the descriptor is not open for writing. If another group closes it during the call, any
//   part of the bytes may be written.
// * -EINVAL: a negative offset.
// * -EFBIG: the file would get 2^48 bytes or more.
// * -EFAULT: a null buffer.
// * -ENOBUFS: all frames of the cache stayed pinned.
// * Errors of a read of the page, if the call writes only a part of a page that the file has.
// Errors of the disk come later, from gfsync, gmsync or gclose.
//
// Waits: for I/O if a page must be loaded, or other pages written back first; at most the mount's
// timeouts. An append also waits while the file is being truncated.
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
  if (begin.at >= limits::file_bytes_max - bytes) {
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
  // write_bytes() has ended with a barrier, so this comes after the marks of all members.
  if (appends && g.is_leader()) detail::end_size_use(fs, found.view.node);
  return written;
}

// Makes all that was written to the file through this mount durable, as fdatasync(2).
//
// Returns 0, or -errno. Errors:
// * -EBADF: the descriptor is not open for writing.
// * The error of a write-back: of this call, or of an earlier one that no call has returned yet. It
//   is returned once. The bytes stay dirty, so a later call may succeed.
// * -EIO also while a write-back that was given up may still take place.
// * After a failed sync, which may have lost bytes for good, or after a truncation that the host
//   has begun and did not answer in time, every gfsync and gclose of the file fails, up to the last
//   gclose.
//
// Waits: for I/O.
template <class Group>
[[nodiscard]] GPUFS_HD std::int32_t gfsync(const Group& g, const mount_ref& fs, std::int32_t fd) {
  const detail::found_file found = detail::find_file(fs, g, fd, access_write);
  if (found.error != 0) return found.error;
  g.sync();
  return detail::sync_file(fs, g, found.view);
}

// Sets the size of the file to `size` bytes: cuts it, or extends it with zeros.
//
// A concurrent write past `size` may take place before or after the truncation, byte by byte. A
// concurrent append takes place as a whole: before it, or after it at the new end of the file.
//
// Returns 0, or -errno. Errors:
// * -EBADF: the descriptor is not open for writing.
// * -EINVAL: a negative size.
// * -EFBIG: a size of 2^48 bytes or more.
// * Errors of the host; gfstat then returns the current size.
// * -EIO with no change, while a write-back that was given up may still take place.
// * -EIO if the host does not answer. The host may still cut the file, so every gfsync and gclose
//   fails, up to the last gclose.
//
// Waits: for the host, for writes that were given up, and for appends under way.
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

// gunlink removes a path, as unlink(2). grename renames `path` to `new_path`, as rename(2).
// Descriptors keep their files.
//
// Returns 0, or -errno. Errors:
// * -EROFS: the mount is read-only.
// * -EFAULT, -ENOENT, -ENAMETOOLONG: a null, empty or too long path.
// * Errors of the host.
// * -EIO also if the host does not answer: then the operation may still take place.
// * -EBUSY: such an earlier call on one of the paths may still take place; this call has done
//   nothing.
//
// Waits: for the host.
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

// A part of a file in GPU memory that kernels may write. `bytes`: as in mapping.
struct writable_mapping {
  char* data;
  std::int64_t bytes;
  std::int32_t fd;
  std::uint32_t reserved;
};

// Maps a part of a file for reading and writing, as gmmap. `fd` must be open for both, and must
// stay open until the mapping ends.
//
// Any thread of the GPU may store through the pointer. Stored bytes reach the file after gmsync or
// gmunmap of the mapping, but only bytes whose value has changed. Use gwrite for bytes that must be
// written even if the file has the same value. A mapping holds two frames. It does not extend the
// file; gftruncate does.
//
// Errors: as gmmap; -EACCES if the descriptor does not both read and write. Waits: as gmmap.
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

// Marks the bytes that were stored in a mapping as dirty. Stores the frame of the page in
// `frame_number`, and the frame of its copy in `copy`. Returns 0; -EINVAL if `m` is no mapping for
// writing; or -EBADF. Collective. Waits while the file is being truncated.
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
  // Marks nothing past the end of the file: it may have been cut since the page was mapped.
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

// Writes to the file what was stored in the mapping so far. The file has the bytes when the call
// returns; its disk may not (gfsync). Returns 0, or -errno as gfsync; -EINVAL if `m` is not a
// mapping for writing. Waits: for I/O.
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

// Ends a mapping for writing. What was stored in it becomes dirty, and reaches the file as if
// gwrite had written it. Returns 0; -EINVAL if `m` is not a mapping for writing; -EBADF if its
// descriptor was closed before, and then the stored bytes are lost. Does not wait for I/O, but
// waits while the file is being truncated.
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
    // Release: a group that maps the page again, and finds no mapping of the copy, evicts the copy.
    (void)fs.dirt(copy_frame).node.fetch_add_release(~0u);
    // The copy is no longer needed, unless another group has mapped the page too.
    detail::drop_copy(fs, copy_frame);
    frames.unpin(frame_number);
    // Release: pairs with are_pages_mapped(). A group that sees the lower count also sees the marks
    // of what was stored (with -EBADF: it is lost).
    (void)fs.at<name_state>(fs.layout.names)->mapped.fetch_add_release(~std::uint64_t{0});
  }
  g.sync();
  return result;
}

}  // namespace gpufs
