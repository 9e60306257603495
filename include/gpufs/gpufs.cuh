// gpufs, the device API: files for GPU code. The same calls run on the CPU device.
//
// Every call is collective over a group (`concept group` of base/group.cuh), unless its comment
// says otherwise: all members make the call at the same place with the same arguments, and all get
// the same result. A result is >= 0, or -errno. No call aborts. Every wait ends; each comment says
// under "Waits" for what the call waits.
//
// The semantics are those of POSIX where that is possible; docs/api.md lists the differences. The
// calls and the consistency follow GPUfs (Silberstein et al., ACM TOCS 32(1), 2014, sections 3 and
// 4), the warp-level calls the SYSTOR 2016 paper.
#pragma once

#include "gpufs/base/group.cuh"
#include "gpufs/file/advise.cuh"
#include "gpufs/file/close_file.cuh"
#include "gpufs/file/describe.cuh"
#include "gpufs/file/gather.cuh"
#include "gpufs/file/map.cuh"
#include "gpufs/file/opener.cuh"
#include "gpufs/file/send.cuh"
#include "gpufs/file/truncate.cuh"
#include "gpufs/view.cuh"
#include "gpufs/write.cuh"

namespace gpufs {

// Opens a file.
//   path   zero-terminated, shorter than PATH_MAX (4096 bytes); a relative path starts at the
//     mount's root, or at the working directory of the process
//   flags  O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_NOFOLLOW,
//     O_CLOEXEC (ignored); O_GWRONCE
//   mode   permission bits of a file that O_CREAT creates, less the umask of the process
//
// Returns a descriptor. It is valid in all kernels of the mount until it is closed as often as it
// was opened.
//
// Repeated opens: an open with the path, access mode, O_APPEND, O_NOFOLLOW and O_GWRONCE of a file
// that is already open, and without O_EXCL, makes no round trip to the host, except that the first
// one with O_TRUNC of a launch has the host empty the file. It returns the file that is open, even
// if another program has renamed or replaced it since. The open does notice gunlink and grename of
// this mount. If several groups open with O_CREAT | O_EXCL, one of them gets the file.
//
// Consistency: close-to-open. When the host opens a file that has changed since its pages were
// cached (device, inode, size, mode, or a time; or less than two seconds before), the mount reads
// the file anew. While a file is open for writing, each later open in this mount shares what was
// written so far; changes by other programs become visible at the first open after that. A
// descriptor that was opened under other flags before the file was opened for writing keeps the
// state that it opened.
//
// O_TRUNC empties the file once per launch: the first open with O_TRUNC empties it, and later opens
// of the same launch do not, even if the file was closed in between. So all groups of a launch may
// open an output with O_TRUNC, write their parts and close it, in any order. Each launch begins
// with an empty file. docs/api.md has the exceptions: CUDA graphs (use gftruncate there), launches
// by kernels, and two launches at the same time.
//
// Errors of the open itself; docs/api.md lists all errors, also those of O_TRUNC:
// * -ENOENT, -EACCES, -EISDIR, -ENAMETOOLONG, -ELOOP, -ENOTDIR, -EEXIST: as open(2).
// * -EINVAL: an unknown flag, or a file that is not regular. -EFAULT: `path` is null.
// * -EROFS: an open for writing in a read-only mount or file system.
// * -EXDEV: the path leaves the root of the mount (mount_options::root).
// * -EMFILE: the mount's table (131,072 files) is full, or the host has no free descriptors.
// * -EOVERFLOW: the file has 2^48 bytes or more.
// * -EIO: the host failed or does not answer; then it may still create or empty the file. Or, for
//   the whole request timeout, each attempt lost to another group's open, which failed.
// * -EBUSY: an earlier call timed out and may still take effect on the file or path. This open has
//   done nothing (docs/api.md, "Timed-out calls").
//
// Waits: for the host's open, at most the mount's request timeout. An open for writing also waits
// for appends under way, and while the last writer discards bytes that it could not write (gclose).
template <group Group>
[[nodiscard]] GPUFS_HD std::int32_t gopen(const Group& g, const mount_ref& fs, const char* path,
                                          std::int32_t flags = O_RDONLY,
                                          std::uint32_t mode = 0666) {
  const auto& own = as_group(g);
  return detail::opener(fs, own).open(path, flags, mode, [&](const detail::file_view& file) {
    return detail::empty_file(fs, own, file);
  });
}

// Closes a descriptor once.
//
// Cached pages stay, and serve a later open if the file did not change. The last close of a
// descriptor that writes, and the last close of all descriptors through which the file may be
// written, flush the file: all that was written reaches the file (not its disk).
//
// Returns 0, or -errno. For a descriptor that only reads, a correct program does not need the
// result. Errors:
// * -EBADF: the descriptor is not open.
// * Only of a descriptor that writes, another -errno: this flush failed; or an earlier write-back
//   failed and no call has returned its error; or the file system reported an error at close(2)
//   (NFS, FUSE). Bytes that could not be written are then lost, unless a second try has written
//   them, or other descriptors may still write the file.
//
// The descriptor is closed in any case. Waits: for the host, if the descriptor writes, or at the
// last close of one that was opened while the mount wrote the file; otherwise not for I/O. A
// surplus close may wait for the last valid close.
template <group Group>
[[nodiscard]] GPUFS_HD std::int32_t gclose(const Group& g, const mount_ref& fs, std::int32_t fd) {
  const auto& own = as_group(g);
  own.sync();  // Other members may still use the descriptor.
  return detail::close_descriptor(fs, own, fd);
}

// Stores in `status` what the file was when it was opened. For a file that this mount writes, the
// size includes what was written so far. Returns 0, or -EBADF. Does not wait.
template <group Group>
GPUFS_HD std::int32_t gfstat(const Group& g, const mount_ref& fs, std::int32_t fd,
                             file_status& status) {
  return detail::describe_file(as_group(g), fs, fd, status);
}

// Reads bytes of a file into memory.
//   buffer  global or shared memory that all members can write; for a single thread also its local
//     memory
//   bytes   any number
//   offset  in bytes, >= 0. Neither needs an alignment; 16-byte alignment of buffer and offset is
//     fastest.
//
// Returns the bytes read. They are fewer than asked only at the end of the file, or before an error
// that the next call returns. 0: `offset` is at or past the end. When the call returns, all members
// see the bytes. Errors: -EBADF; -EINVAL, a negative offset; -EOVERFLOW, offset + bytes does not
// fit in 63 bits; -EFAULT, a null buffer; -ESTALE, the host had to open the file again, and its
// path leads to another file now; -EIO and other errors of the host's read; -ENOBUFS, all frames of
// the cache stayed pinned.
//
// Waits: for I/O and for frames, at most the mount's timeouts. Holds at most one pin while it waits
// (a block: one per warp), and at most eight while it copies.
template <group Group>
[[nodiscard]] GPUFS_HD std::int64_t gread(const Group& g, const mount_ref& fs, std::int32_t fd,
                                          void* buffer, std::uint64_t bytes, std::int64_t offset) {
  return detail::read_bytes<detail::keeps::all_pages>(as_group(g), fs, fd, buffer, bytes, offset);
}

// As gread, but avoids putting missing pages into the cache, as a read after POSIX_FADV_NOREUSE:
// for parts that are not worth a frame. Bytes that are not in the cache come directly from
// registered host memory, if the GPU can read it (the direct path) and no descriptor of this mount
// writes the file. Otherwise their page is loaded into the cache.
template <group Group>
[[nodiscard]] GPUFS_HD std::int64_t gread_uncached(const Group& g, const mount_ref& fs,
                                                   std::int32_t fd, void* buffer,
                                                   std::uint64_t bytes, std::int64_t offset) {
  return detail::read_bytes<detail::keeps::uncached>(as_group(g), fs, fd, buffer, bytes, offset);
}

// Maps a part of a file for reading: pins the page that holds `offset`, and returns a pointer to
// that byte.
//   offset  in bytes, >= 0
//   bytes   how many the caller wants, > 0; the mapping may have fewer (see mapping)
//
// The pointer is valid in every thread of the GPU until gmunmap. Past the end of the file the rest
// of the page reads as zeros. Errors: as gread; -EINVAL also for no bytes. Waits: as gread. Each
// mapping holds a frame; if a group holds many, other groups may get -ENOBUFS.
template <group Group>
[[nodiscard]] GPUFS_HD mapping gmmap(const Group& g, const mount_ref& fs, std::int32_t fd,
                                     std::int64_t offset, std::uint64_t bytes) {
  return detail::map(as_group(g), fs, fd, offset, bytes);
}

// Ends a mapping. Returns 0, also for a mapping of no bytes, which needs no end; -EINVAL if nothing
// is mapped there. Does not wait.
template <group Group>
GPUFS_HD std::int32_t gmunmap(const Group& g, const mount_ref& fs, const mapping& m) {
  return detail::unmap_together(as_group(g), fs, m, detail::reads_may_be_under_way{});
}
// As gmunmap, without its fence. Each member passes `made`: a value of up to 8 bytes that depends
// on every byte that the member read from the mapping, such as a sum. The call waits until that
// value is computed, so all reads have completed. A member that read nothing passes any value. A
// byte that `made` does not depend on may be read after the frame has been reused.
template <group Group, class Value>
GPUFS_HD std::int32_t gmunmap_unfenced(const Group& g, const mount_ref& fs, const mapping& m,
                                       const Value& made) {
  return detail::unmap_together(as_group(g), fs, m, detail::reads_have_arrived(made));
}

// As gmmap and gmunmap, but each member maps its own part: `offset`, `bytes` and the result are the
// member's own. The members look up the pages at the same time, and one fence ends all mappings, so
// this is much faster for small pages than one call per part. All members together load missing
// pages, one after the other.
//
// A member that asks for 0 bytes gets a mapping of 0 bytes. Any member may use a mapping, and any
// member may end it. Called by a warp or a single thread, not by a block. Holds up to one pin per
// member while it waits. The cache should have frames for all warps that do so at the same time;
// otherwise some get -ENOBUFS.
template <group Group>
[[nodiscard]] GPUFS_HD mapping gmmap_each(const Group& g, const mount_ref& fs, std::int32_t fd,
                                          std::int64_t offset, std::uint64_t bytes) {
  return detail::map_each(as_group(g), fs, fd, offset, bytes);
}
template <group Group>
GPUFS_HD std::int32_t gmunmap_each(const Group& g, const mount_ref& fs, const mapping& m) {
  return detail::unmap_each(as_group(g), fs, m, detail::reads_may_be_under_way{});
}
// As gmunmap_each, without its fence (see gmunmap_unfenced). `made` depends on all bytes that the
// member read from all mappings that the group ends by this call.
template <group Group, class Value>
GPUFS_HD std::int32_t gmunmap_each_unfenced(const Group& g, const mount_ref& fs, const mapping& m,
                                            const Value& made) {
  return detail::unmap_each(as_group(g), fs, m, detail::reads_have_arrived(made));
}

// As gread, but each member reads its own part, for gathers: `buffer`, `bytes`, `offset` and the
// result are the member's own. The members copy all parts together. The latencies of parts that lie
// in one cached page each overlap, several at a time. A member with 0 bytes gets 0. Called by a
// warp or a single thread, not by a block. Holds up to eight pins while it copies, and one while it
// waits.
template <group Group>
[[nodiscard]] GPUFS_HD std::int64_t gread_each(const Group& g, const mount_ref& fs, std::int32_t fd,
                                               void* buffer, std::uint64_t bytes,
                                               std::int64_t offset) {
  return detail::read_each<detail::keeps::all_pages>(as_group(g), fs, fd,
                                                     static_cast<char*>(buffer), bytes, offset);
}
// As gread_each, but avoids putting missing pages into the cache (see gread_uncached).
template <group Group>
[[nodiscard]] GPUFS_HD std::int64_t gread_uncached_each(const Group& g, const mount_ref& fs,
                                                        std::int32_t fd, void* buffer,
                                                        std::uint64_t bytes, std::int64_t offset) {
  return detail::read_each<detail::keeps::uncached>(as_group(g), fs, fd, static_cast<char*>(buffer),
                                                    bytes, offset);
}

// Announces the use of a part of a file, as posix_fadvise(2): `bytes` from `offset` on, 0 for all
// up to the end of the file. `advice` is one of POSIX_FADV_*:
// * POSIX_FADV_WILLNEED loads the part into the cache, in runs that the copy engine fills. That is
//   faster than any number of reading threads.
// * POSIX_FADV_DONTNEED writes the part's dirty bytes to the file now, while other groups continue,
//   instead of at a close or sync. The pages stay in the cache. The next gfsync or gclose returns
//   the errors.
// * Other advice of POSIX changes nothing.
//
// Returns 0, even if a part could not be loaded: a later read loads it, or returns the error.
// Errors: -EBADF, also for a descriptor without the access that the advice needs; -EINVAL, a
// negative offset or an unknown advice. Waits: for I/O, at most as long as gread. A single thread
// of a GPU loads nothing.
template <group Group>
GPUFS_HD std::int32_t gfadvise(const Group& g, const mount_ref& fs, std::int32_t fd,
                               std::int64_t offset, std::uint64_t bytes, std::int32_t advice) {
  return detail::advise(as_group(g), fs, fd, offset, bytes, advice);
}

// Sends bytes to a sink: a host function that the mount registered (mount::open_sink). The output
// has no fixed bound. Calls of one group arrive in order. A call of at most the channel's staging
// bytes arrives as one piece. Returns `bytes`, or -errno: -EBADF, the sink is not open; -EFAULT,
// `data` is null; the error that the sink returned; -EIO. Waits for the host.
template <group Group>
[[nodiscard]] GPUFS_HD std::int64_t gsend(const Group& g, const mount_ref& fs, std::int32_t sink,
                                          const void* data, std::uint64_t bytes) {
  return detail::send_bytes(as_group(g), fs, sink, data, bytes);
}

}  // namespace gpufs
