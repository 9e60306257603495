// The calls that change files.
#pragma once

#include "gpufs/file/ask_host.cuh"
#include "gpufs/file/map.cuh"
#include "gpufs/file/mapped_writes.cuh"
#include "gpufs/file/truncate.cuh"
#include "gpufs/file/write_place.cuh"

namespace gpufs {

// Writes bytes to a file.
//   buffer  memory that all members can read
//   bytes   any number
//   offset  in bytes, >= 0; ignored with O_APPEND. Neither needs an alignment; 16-byte alignment of
//     buffer and offset is fastest.
//
// With O_APPEND the bytes go to the end of the file, to an offset that no other call of the mount
// gets. A concurrent reader may find zeros there. If the call writes fewer bytes, the rest of its
// place becomes free again if all writers of the file have only appended to it, and none after this
// call; otherwise it stays, with zeros.
//
// When the call returns, all threads of the mount see the bytes, but for O_GWRONCE and for
// descriptors that were opened before the file was opened for writing. Other programs see them
// after gclose, gmsync or gfsync, or when the mount has written the page back because it needed
// frames. Only the written bytes reach the file, whatever else their pages contain. (GPUfs, ACM
// TOCS 32(1), section 3.2.)
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
template <group Group>
[[nodiscard]] GPUFS_HD std::int64_t gwrite(const Group& g, const mount_ref& fs, std::int32_t fd,
                                           const void* buffer, std::uint64_t bytes,
                                           std::int64_t offset) {
  return detail::write_at(as_group(g), fs, fd, buffer, bytes, offset);
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
template <group Group>
[[nodiscard]] GPUFS_HD std::int32_t gfsync(const Group& g, const mount_ref& fs, std::int32_t fd) {
  const auto& own = as_group(g);
  const detail::found_file found = detail::find_file(fs, own, fd, access_write);
  if (found.error != 0) return found.error;
  own.sync();
  return detail::sync_file(fs, own, found.view);
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
template <group Group>
[[nodiscard]] GPUFS_HD std::int32_t gftruncate(const Group& g, const mount_ref& fs, std::int32_t fd,
                                               std::int64_t size) {
  return detail::resize(as_group(g), fs, fd, size);
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
template <group Group>
[[nodiscard]] GPUFS_HD std::int32_t gunlink(const Group& g, const mount_ref& fs, const char* path) {
  if (!fs.writes()) return -EROFS;
  return detail::ask_about_paths(fs, as_group(g), request_code::unlink, path, nullptr);
}
template <group Group>
[[nodiscard]] GPUFS_HD std::int32_t grename(const Group& g, const mount_ref& fs, const char* path,
                                            const char* new_path) {
  if (!fs.writes()) return -EROFS;
  return detail::ask_about_paths(fs, as_group(g), request_code::rename, path, new_path);
}

// Maps a part of a file for reading and writing, as gmmap. `fd` must be open for both, and must
// stay open until the mapping ends.
//
// Any thread of the GPU may store through the pointer. gmsync writes the stored bytes to the file;
// gmunmap makes them dirty, as gwrite does. Only bytes whose value has changed are written. Use
// gwrite for bytes that must be written even if the file has the same value. A mapping holds two
// frames. It does not extend the file; gftruncate does.
//
// Errors: as gmmap; -EACCES if the descriptor does not both read and write. Waits: as gmmap.
template <group Group>
[[nodiscard]] GPUFS_HD writable_mapping gmmap_write(const Group& g, const mount_ref& fs,
                                                    std::int32_t fd, std::int64_t offset,
                                                    std::uint64_t bytes) {
  return detail::map_to_write(as_group(g), fs, fd, offset, bytes);
}

// Writes to the file what was stored in the mapping so far. The file has the bytes when the call
// returns; its disk may not (gfsync). Returns 0, or -errno as gfsync; -EINVAL if `m` is not a
// mapping for writing. Waits: for I/O.
template <group Group>
[[nodiscard]] GPUFS_HD std::int32_t gmsync(const Group& g, const mount_ref& fs,
                                           const writable_mapping& m) {
  return detail::write_mapping(as_group(g), fs, m);
}

// Ends a mapping for writing. What was stored in it becomes dirty, and reaches the file as if
// gwrite had written it. Returns 0, also for a mapping of no bytes; -EINVAL if `m` is not a mapping
// for writing; -EBADF if its descriptor was closed before, and then the stored bytes are lost. Does
// not wait for I/O, but waits while the file is being truncated.
template <group Group>
[[nodiscard]] GPUFS_HD std::int32_t gmunmap(const Group& g, const mount_ref& fs,
                                            const writable_mapping& m) {
  return detail::unmap_written(as_group(g), fs, m);
}

}  // namespace gpufs
