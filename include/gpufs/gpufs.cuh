// gpufs, the device API: files for GPU code. The same calls run on the CPU device.
//
// Every call is collective over a group (base/group.cuh), unless its comment says otherwise: all
// members make the call at the same place with the same arguments, and all get the same result. A
// result is >= 0, or -errno. No call aborts. Every wait ends; each comment says under "Waits" for
// what the call waits.
//
// The semantics are those of POSIX where that is possible; docs/api.md lists the differences.
// The calls and the consistency follow GPUfs (Silberstein et al., ACM TOCS 32(1), 2014, sections 3
// and 4). The warp-level calls follow the SYSTOR 2016 paper.
#pragma once

#include "gpufs/base/group.cuh"
#include "gpufs/file/write.cuh"

namespace gpufs {

// The result of gfstat: the file as it was when it was opened.
struct file_status {
  std::uint64_t size;        // bytes
  std::int64_t modified_ns;  // since the epoch
  std::int64_t changed_ns;
  std::uint64_t inode;
  std::uint64_t device;
  std::uint32_t mode;  // st_mode
  std::uint32_t reserved;
};

// A part of a file in GPU memory. `bytes` may be less than the caller asked for, because a mapping
// ends at the end of its page or of the file. 0: the offset is at or past the end of the file. < 0:
// -errno. With 0 or less there is nothing to unmap.
struct mapping {
  const char* data;
  std::int64_t bytes;
};

// Opens a file.
//   path   zero-terminated, shorter than PATH_MAX (4096 bytes); a relative path starts at the
//     working directory of the process
//   flags  O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_NOFOLLOW,
//     O_CLOEXEC (ignored); O_GWRONCE
//   mode   permission bits of a file that O_CREAT creates, less the umask of the process
//
// Returns a descriptor. It is valid in all kernels of the mount until it is closed as often as it
// was opened.
//
// Repeated opens: an open with the path, access mode and O_APPEND of a file that is already open
// makes no round trip to the host. It returns the file that is open, even if another program has
// renamed or replaced it since. The open does notice gunlink and grename of this mount. If several
// groups open with O_CREAT | O_EXCL, one of them gets the file.
//
// Consistency: close-to-open. When the host opens a file that has changed since its pages were
// cached (device, inode, size, mtime or ctime), the mount reads the file anew. While a file is open
// for writing, each later open in this mount shares what was written so far; changes by other
// programs become visible at the first open after that. A descriptor that was opened under other
// flags before the file was opened for writing keeps the state that it opened.
//
// O_TRUNC empties the file once per launch: the first open with O_TRUNC empties it, and later opens
// of the same launch do not, even if the file was closed in between. So all groups of a launch may
// open an output with O_TRUNC, write their parts and close it, in any order. Each launch begins
// with an empty file. Exceptions:
// * The driver may give replays of a CUDA graph the same number (%gridid), so they may count as one
//   launch, of which only the first replay empties the file. A graph uses gftruncate instead.
// * A kernel that a kernel launches is a launch of its own.
// * A mount remembers for a million files which launch emptied the file last. Two launches that run
//   at the same time must not both empty one file.
//
// Errors:
// * -ENOENT, -EACCES, -EISDIR, -ENAMETOOLONG, -ELOOP, -ENOTDIR, -EEXIST: as open(2).
// * -EINVAL: an unknown flag, or a file that is not regular.
// * -EROFS: an open for writing in a read-only mount or file system.
// * -EFAULT: `path` is null.
// * -EXDEV: the path leaves the root of the mount (mount_options::root).
// * -EMFILE: the mount's table (131,072 files) is full, or the host has no free descriptors.
// * -EOVERFLOW: the file has 2^48 bytes or more.
// * -EIO: the host failed or does not answer; then it may still create or empty the file. Also if,
//   for as long as a request may take, other groups were first each time and failed.
// * -EBUSY: an earlier call was given up with -EIO and may still take place: a write or a
//   truncation of the file, or a removal or rename of the path. The open has done nothing. The
//   state ends when the host's call returns (docs/api.md, "Calls that were given up").
//
// Waits: for the host's open, at most the mount's request timeout. An open for writing also waits
// while the last writer of the file gives up bytes that it could not write (gclose).
template <class Group>
[[nodiscard]] GPUFS_HD std::int32_t gopen(const Group& g, const mount_ref& fs, const char* path,
                                          std::int32_t flags = O_RDONLY,
                                          std::uint32_t mode = 0666) {
  return detail::opener<Group>(fs, g).open(path, flags, mode, [&](const detail::file_view& file) {
    return detail::empty_file(fs, g, file);
  });
}

// Closes a descriptor once.
//
// The last close releases the record and notifies the host. Cached pages stay, and serve a later
// open if the file did not change. The last close of a descriptor that writes, and the last close
// of all descriptors through which the file may be written, flush the file: all that was written
// reaches the file (not its disk), so that a later open sees it.
//
// Returns 0, or -errno. For a descriptor that only reads, a correct program does not need the
// result. Errors:
// * -EBADF: the descriptor is not open.
// * Only of a descriptor that writes, another -errno: this flush failed; or an earlier write-back
//   failed and no call has returned its error; or the file system reported an error at close(2)
//   (NFS, FUSE). Bytes that could not be written are then lost, unless a second try has written
//   them, or other descriptors may still write the file.
//
// The descriptor is closed in any case. Waits: for the host, if the descriptor writes. A close of a
// descriptor that only reads does not wait for I/O. A surplus close may wait for the last valid
// close.
template <class Group>
[[nodiscard]] GPUFS_HD std::int32_t gclose(const Group& g, const mount_ref& fs, std::int32_t fd) {
  g.sync();  // Other members may still use the descriptor.
  return detail::close_descriptor(fs, g, fd);
}

// Stores in `status` what the file was when it was opened. For a file that this mount writes, the
// size includes what was written so far. Returns 0, or -EBADF. Does not wait.
template <class Group>
GPUFS_HD std::int32_t gfstat(const Group& g, const mount_ref& fs, std::int32_t fd,
                             file_status& status) {
  const detail::found_file found = detail::find_file(fs, g, fd, access_read | access_write);
  if (found.error != 0) return found.error;
  const open_file& f = fs.at<open_file>(fs.layout.files)[found.view.record];
  status = {found.view.size,
            f.modified_ns.load_relaxed(),
            f.changed_ns.load_relaxed(),
            f.inode.load_relaxed(),
            f.device.load_relaxed(),
            found.view.access & 0xffffu,
            0};
  return 0;
}

namespace detail {

// Where a read stopped: at its end, or at the first byte that could not be read. `error`: -errno of
// that byte, or 0 if the file was truncated after it was opened.
struct read_end {
  std::uint64_t at;
  std::int32_t error;
};

// The part of a read of [begin, end) that lies in a page; the page is pinned, or its load failed.
struct page_part {
  std::uint64_t at;    // file offset of the first byte
  std::uint64_t stop;  // file offset after the last byte that can be read
  bool whole;          // whether the page has all bytes that the read wants of it
};
GPUFS_HD inline page_part part_of_page(const mount_ref& fs, const page_pin& pin, std::uint64_t page,
                                       std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t page_begin = page << fs.layout.page_shift;
  const std::uint64_t page_end = page_begin + fs.layout.page_bytes();
  const std::uint64_t at = page_begin < begin ? begin : page_begin;
  const std::uint64_t wanted = page_end < end ? page_end : end;
  const std::uint64_t there =
      page_begin + (pin.valid < 0 ? 0 : static_cast<std::uint64_t>(pin.valid));
  const std::uint64_t stop = wanted < there ? wanted : there < at ? at : there;
  return {at, stop, stop == wanted};
}

// Copies [at, stop) of the file, which lies in one frame. The caller must call finish_copies()
// afterwards.
template <class Group>
GPUFS_HD void start_copy_of_part(const mount_ref& fs, const Group& g, std::uint32_t frame_number,
                                 char* to, std::uint64_t at, std::uint64_t stop) {
  start_copy_from_frame(g, to, fs.page(frame_number) + (at & (fs.layout.page_bytes() - 1)),
                        stop - at);
}

// Called by a block; each of its warps reads a page at the same time. `buffer` receives the byte at
// `begin` first. The warps write nothing past the first byte that cannot be read. So each warp
// waits for the others before it copies, and holds a pin meanwhile. Use it only if there are frames
// for all warps of the device, and more (reads_by_warps).
template <class Block>
GPUFS_HD read_end read_pages_by_warps(const mount_ref& fs, const Block& g, const file_view& file,
                                      char* buffer, std::uint64_t begin, std::uint64_t end) {
  const auto warp = g.warp();
  page_cache cache(fs, warp, file.record);
  for (std::uint64_t first = begin >> fs.layout.page_shift; first << fs.layout.page_shift < end;
       first += g.warp_count()) {
    const std::uint64_t page = first + g.warp_rank();
    const bool mine = page << fs.layout.page_shift < end;
    page_pin pin{0, 0};
    page_part part{end, end, true};
    if (mine) {
      // Only warp 0 requests the pages that are sure to follow; the other warps' pages are among
      // them.
      const std::uint64_t behind =
          g.warp_rank() == 0 ? ((end - 1) >> fs.layout.page_shift) - page : 0;
      pin = cache.acquire({file.version, page}, page_loader(fs, warp, file, page, behind));
      part = part_of_page(fs, pin, page, begin, end);
    }
    const std::uint64_t stop = g.least(part.whole ? end : part.stop);
    if (mine && pin.valid >= 0) {
      const std::uint64_t copied = part.stop < stop ? part.stop : stop;
      if (part.at < copied)
        start_copy_of_part(fs, warp, pin.frame, buffer + (part.at - begin), part.at, copied);
      finish_copies();
      cache.release_copied(pin.frame);
    }
    if (stop == end) continue;
    // The warp that stopped there knows the error.
    const bool stopped_here = !part.whole && part.stop == stop && pin.valid < 0;
    const std::uint64_t why =
        g.least(stopped_here ? static_cast<std::uint64_t>(-pin.valid) : ~std::uint64_t{0});
    return {stop, why == ~std::uint64_t{0} ? 0 : -static_cast<std::int32_t>(why)};
  }
  return {end, 0};
}

// Loads [begin, end) into the cache in runs. Two runs are under way at a time: the group claims one
// while the other is being loaded. If no run can be had for a while, because many are under way,
// the function leaves the rest.
template <class Group>
GPUFS_HD void load_runs(const mount_ref& fs, const Group& g, const file_view& file,
                        std::uint64_t begin, std::uint64_t end) {
  using bulk = bulk_loader<Group>;
  const std::uint64_t stop = ((end - 1) >> fs.layout.page_shift) + 1;
  const std::uint64_t most = fs.layout.bulk.most;
  if (most == 0) return;
  bulk_run under_way{};
  std::uint32_t failures = 0;
  for (std::uint64_t page = begin >> fs.layout.page_shift; page < stop && failures < 64;) {
    page = bulk::first_absent(fs, g, file, page, stop);
    if (page == stop) break;
    // A multiple of `most`, so that all groups that begin within one such piece end at the same
    // page.
    const std::uint64_t run_end = (page & ~(most - 1)) + most;
    const std::uint32_t wanted =
        bulk::fitting(fs, file, page, (run_end < stop ? run_end : stop) - page);
    if (wanted == 0) {  // too few for a run: their readers load them
      ++page;
      continue;
    }
    const bulk_run run = bulk::begin(fs, g, file, page, wanted);
    if (under_way.count != 0) bulk::end(fs, g, file, under_way);
    under_way = run;
    page += run.count;
    if (run.count != 0) {
      failures = 0;
      continue;
    }
    platform::pause(++failures, 65536);
    // Skips a page now and then: it may be resident, because a guess does not find every page.
    if (failures % 8 == 0) ++page;
  }
  if (under_way.count != 0) bulk::end(fs, g, file, under_way);
}

// Whether the cache has a frame for each warp, and as many more: a multiprocessor holds at most 64
// warps. A group of the CPU device has one member, and waits for no other.
GPUFS_HD inline bool reads_by_warps(const mount_ref& fs) {
  return fs.layout.frame_count / 128 >= fs.layout.processor_count;
}

// Optimistic read of resident pages, from `at` on and without a gap; `buffer` receives the byte at
// `at`. Returns where the read stopped: at `end`, at a page that is not resident or bears a mark,
// or at the end of the file. Calls no function that is out of line: the compiler would have to
// store and reload all values that live across the call. Collective. Does not wait.
template <class Group>
GPUFS_HD std::uint64_t read_resident(const mount_ref& fs, const Group& g, const file_view& file,
                                     char* buffer, std::uint64_t at, std::uint64_t end) {
  page_cache<Group> cache(fs, g, file.record);
  const std::uint32_t most = g.size() < pins_of_copy ? g.size() : pins_of_copy;
  for (;;) {
    const std::uint64_t page = at >> fs.layout.page_shift;
    const std::uint64_t left = ((end - 1) >> fs.layout.page_shift) + 1 - page;
    const std::uint32_t wanted = left < most ? static_cast<std::uint32_t>(left) : most;
    page_pin mine{};
    const std::uint32_t run = cache.pin_run(file.version, page, wanted, mine);
    page_part part{at, at, run == wanted};
    GPUFS_NO_UNROLL
    for (std::uint32_t i = 0; i < run; ++i) {
      const page_pin pin{g.from(mine.frame, i), static_cast<std::int32_t>(g.from(
                                                    static_cast<std::uint32_t>(mine.valid), i))};
      part = part_of_page(fs, pin, page + i, at, end);
      start_copy_of_part(fs, g, pin.frame, buffer + (part.at - at), part.at, part.stop);
      if (!part.whole) break;
    }
    finish_copies();
    cache.release_run(run, mine);
    buffer += part.stop - at;
    at = part.stop;
    if (at == end || run != wanted || !part.whole) return at;
  }
}

// The overload for blocks. The whole block reads one page; for several pages, each warp reads one
// page at a time, and the warps copy only if all of them can.
template <class Block>
  requires Block::has_warps
GPUFS_HD std::uint64_t read_resident(const mount_ref& fs, const Block& g, const file_view& file,
                                     char* buffer, std::uint64_t at, std::uint64_t end) {
  const std::uint64_t page = at >> fs.layout.page_shift;
  const std::uint64_t last = (end - 1) >> fs.layout.page_shift;
  if (page == last || !reads_by_warps(fs)) {
    page_cache<Block> cache(fs, g, file.record);
    const page_pin pin = cache.find_resident({file.version, page});
    if (pin.valid == cache.not_there) return at;
    cache.count_hits();
    const page_part part = part_of_page(fs, pin, page, at, end);
    start_copy_of_part(fs, g, pin.frame, buffer, part.at, part.stop);
    finish_copies();
    cache.release_copied(pin.frame);
    return part.stop;
  }
  const auto warp = g.warp();
  page_cache cache(fs, warp, file.record);
  while (at < end) {
    const std::uint64_t own = (at >> fs.layout.page_shift) + g.warp_rank();
    const bool mine = own <= last;
    page_pin pin{0, cache.not_there};
    page_part part{end, end, true};
    if (mine) {
      pin = cache.find_resident({file.version, own});
      part = part_of_page(fs, pin, own, at, end);
    }
    const bool all = g.all(part.whole);
    if (mine && pin.valid != cache.not_there) {
      if (all) {
        cache.count_hits();
        start_copy_of_part(fs, warp, pin.frame, buffer + (part.at - at), part.at, part.stop);
      }
      finish_copies();
      cache.release_copied(pin.frame);
    }
    if (!all) return at;
    const std::uint64_t next = ((at >> fs.layout.page_shift) + g.warp_count())
                               << fs.layout.page_shift;
    const std::uint64_t stop = next < end ? next : end;
    buffer += stop - at;
    at = stop;
  }
  return at;
}

// Counts `bytes` as read, and returns them as the result of a read. Collective.
template <class Group>
GPUFS_HD std::int64_t count_read(const mount_ref& fs, const Group& g, std::uint64_t bytes) {
  g.sync();
  if (g.is_leader()) fs.counters().add(counter::read_bytes, bytes);
  return static_cast<std::int64_t>(bytes);
}

// Completes a read of [begin, end), of which [begin, at) is done. Looks the descriptor up again, so
// that the hit path of the caller keeps nothing in registers that only this function needs.
// Collective. Waits for I/O.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE std::int64_t read_any(const mount_ref& fs, const Group g,
                                                 std::int32_t fd, char* buffer, std::uint64_t begin,
                                                 std::uint64_t at, std::uint64_t end) {
  const detail::found_file found = find_file(fs, g, fd, access_read);
  const file_view& file = found.view;
  read_end stop{at, found.error};
  if (stop.error != 0) end = at;
  while (stop.at < end) {
    const std::uint64_t page = stop.at >> fs.layout.page_shift;
    const std::uint64_t behind = ((end - 1) >> fs.layout.page_shift) - page;
    if constexpr (Group::has_warps) {
      if (behind != 0 && reads_by_warps(fs)) {
        stop = read_pages_by_warps(fs, g, file, buffer + (stop.at - begin), stop.at, end);
        break;
      }
    }
    page_cache<Group> cache(fs, g, file.record);
    const page_pin pin =
        cache.acquire({file.version, page}, page_loader<Group>(fs, g, file, page, behind));
    stop.error = pin.valid < 0 ? pin.valid : 0;
    if (stop.error != 0) break;
    const page_part part = part_of_page(fs, pin, page, stop.at, end);
    start_copy_of_part(fs, g, pin.frame, buffer + (part.at - begin), part.at, part.stop);
    finish_copies();
    cache.release_copied(pin.frame);
    stop.at = part.stop;
    if (!part.whole) break;
    if (stop.at < end)
      stop.at = read_resident(fs, g, file, buffer + (stop.at - begin), stop.at, end);
  }
  if (stop.at != begin || stop.error == 0) return count_read(fs, g, stop.at - begin);
  g.sync();
  return stop.error;
}

// Reads [at, end) directly from registered host memory, as far as the extent table knows it. Does
// nothing for a file that this mount writes. Returns where the read stopped. Collective. Does not
// wait for the host.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE std::uint64_t read_in_place(const mount_ref& fs, const Group g,
                                                       const file_view file, char* buffer,
                                                       std::uint64_t at, std::uint64_t end) {
  if (file.node != no_node) return at;
  const std::uint64_t extent_bytes = std::uint64_t{1} << fs.layout.extent_shift;
  while (at < end) {
    const std::uint64_t left = extent_bytes - (at & (extent_bytes - 1));
    const std::uint64_t wanted = left < end - at ? left : end - at;
    struct {
      std::uint64_t address;
    } from{0};
    if (g.is_leader()) from.address = extent_table(fs).find(file.version, at, wanted);
    from = g.broadcast(from);
    if (from.address == 0) return at;
    const std::uint64_t came = copy_from_extent(g, buffer, from.address, wanted);
    if (g.is_leader()) fs.counters().add(counter::direct_bytes, came);
    buffer += came;
    at += came;
    if (came != wanted) return at;
  }
  return at;
}

// Whether a read puts missing pages into the cache where it can avoid that.
enum class keeps { all_pages, none_that_it_can_do_without };

template <keeps Keeps, class Group>
GPUFS_HD std::int64_t read_bytes(const Group& g, const mount_ref& fs, std::int32_t fd, void* buffer,
                                 std::uint64_t bytes, std::int64_t offset) {
  constexpr std::uint64_t largest = ~std::uint64_t{0} >> 1;
  if (offset < 0) return -EINVAL;
  if (bytes > largest - static_cast<std::uint64_t>(offset)) return -EOVERFLOW;
  const found_file found = find_file(fs, g, fd, access_read);
  if (found.error != 0) return found.error;
  const file_view& file = found.view;
  const auto begin = static_cast<std::uint64_t>(offset);
  if (bytes == 0 || begin >= file.size) return 0;
  if (buffer == nullptr) return -EFAULT;
  const std::uint64_t end = file.size - begin < bytes ? file.size : begin + bytes;
  auto* const to = static_cast<char*>(buffer);
  std::uint64_t at = read_resident(fs, g, file, to, begin, end);
  if constexpr (Keeps == keeps::none_that_it_can_do_without) {
    if (at != end) at = read_in_place(fs, g, file, to + (at - begin), at, end);
  }
  if (at == end) return count_read(fs, g, end - begin);
  return read_any(fs, g, fd, to, begin, at, end);
}

}  // namespace detail

// Reads bytes of a file into memory.
//   buffer  global or shared memory that all members can write; for a single thread also its local
//     memory
//   bytes   any number
//   offset  in bytes, >= 0. Neither needs an alignment; 16-byte alignment of buffer and offset is
//     fastest.
//
// Returns the bytes read. They are fewer than asked only at the end of the file, or before an error
// that the next call returns. 0: `offset` is at or past the end. When the call returns, all members
// see the bytes.
//
// Errors: -EBADF; -EINVAL, a negative offset; -EOVERFLOW, offset + bytes does not fit in 63 bits;
// -EFAULT, a null buffer; -ESTALE, the host had to open the file again, and its path leads to
// another file now; -EIO and other errors of the host's read; -ENOBUFS, all frames of the cache
// stayed pinned.
//
// Waits: for I/O and for frames, at most the mount's timeouts. Holds at most one pin while it waits
// (a block: one per warp), and at most eight while it copies.
template <class Group>
[[nodiscard]] GPUFS_HD std::int64_t gread(const Group& g, const mount_ref& fs, std::int32_t fd,
                                          void* buffer, std::uint64_t bytes, std::int64_t offset) {
  return detail::read_bytes<detail::keeps::all_pages>(g, fs, fd, buffer, bytes, offset);
}

// As gread, but avoids putting missing pages into the cache: for parts that are not worth a frame,
// such as a small record at a random offset. Bytes that are not in the cache come directly from
// registered host memory, if the GPU can read it (the direct path) and no descriptor of this mount
// writes the file. Otherwise their page is loaded into the cache. In POSIX terms: a read after
// POSIX_FADV_NOREUSE.
template <class Group>
[[nodiscard]] GPUFS_HD std::int64_t gread_uncached(const Group& g, const mount_ref& fs,
                                                   std::int32_t fd, void* buffer,
                                                   std::uint64_t bytes, std::int64_t offset) {
  return detail::read_bytes<detail::keeps::none_that_it_can_do_without>(g, fs, fd, buffer, bytes,
                                                                        offset);
}

namespace detail {

// The mapping of at most `bytes` of a pinned page, from byte `within` of the page on. 0 bytes if
// the file ends before it.
GPUFS_HD inline mapping mapping_of(const mount_ref& fs, const page_pin& pin, std::uint64_t within,
                                   std::uint64_t bytes) {
  if (pin.valid < 0) return {nullptr, pin.valid};
  const auto valid = static_cast<std::uint64_t>(pin.valid);
  if (valid <= within) return {nullptr, 0};
  const std::uint64_t room = valid - within;
  return {fs.page(pin.frame) + within, static_cast<std::int64_t>(room < bytes ? room : bytes)};
}

// The miss path of gmmap: maps `bytes` at `at`, which lie in the file. Out of line for the same
// reason as read_any(). Collective. Waits for I/O.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE mapping map_any(const mount_ref& fs, const Group g, const file_view file,
                                           std::uint64_t at, std::uint64_t bytes) {
  const std::uint64_t page = at >> fs.layout.page_shift;
  page_cache<Group> cache(fs, g, file.record);
  const page_pin pin = cache.acquire({file.version, page}, page_loader<Group>(fs, g, file, page));
  const mapping m = mapping_of(fs, pin, at - (page << fs.layout.page_shift), bytes);
  if (m.bytes == 0) cache.release(pin.frame);
  return m;
}

// Whether the caller's reads from a mapping have completed when it unmaps. reads_may_be_under_way:
// unknown, so that a fence is needed. reads_have_arrived: the caller has a value that depends on
// all bytes that it read; waiting for that value replaces the fence.
struct reads_may_be_under_way {
  GPUFS_HD static bool unpin(slot_state& state) { return state.try_unpin(); }
};
struct reads_have_arrived {
  template <class Value>
  GPUFS_HD explicit reads_have_arrived(const Value& made) {
    static_assert(sizeof(Value) <= sizeof(std::uint64_t), "a word");
    std::uint64_t bits = 0;
    std::memcpy(&bits, &made, sizeof made);
    platform::wait_for_arrival(bits);
  }
  GPUFS_HD static bool unpin(slot_state& state) { return state.try_unpin_copied(); }
};

// Stores the number of the frame that `data` points into. False if it points into none.
GPUFS_HD inline bool find_frame(const mount_ref& fs, const void* data,
                                std::uint32_t& frame_number) {
  const char* first = fs.page(0);
  const char* p = static_cast<const char*>(data);
  const std::uint64_t number = static_cast<std::uint64_t>(p - first) >> fs.layout.page_shift;
  frame_number = static_cast<std::uint32_t>(number);
  return p >= first && number < fs.layout.frame_count;
}

// Called by one thread. Returns 0, or -EINVAL if nothing is mapped there.
template <class Reads>
GPUFS_HD std::int32_t unmap(const mount_ref& fs, const void* data, const Reads&) {
  std::uint32_t frame_number = 0;
  if (!find_frame(fs, data, frame_number)) return -EINVAL;
  return Reads::unpin(frame_table(fs).header(frame_number).state) ? 0 : -EINVAL;
}
template <class Group, class Reads>
GPUFS_HD std::int32_t unmap_together(const Group& g, const mount_ref& fs, const void* data,
                                     const Reads& reads) {
  std::int32_t result = 0;
  g.sync();  // All members' reads come before the frame can be evicted.
  if (g.is_leader()) result = unmap(fs, data, reads);
  return g.broadcast(result);
}
template <class Group, class Reads>
GPUFS_HD std::int32_t unmap_each(const Group& g, const mount_ref& fs, const void* data,
                                 const Reads& reads) {
  static_assert(!Group::has_warps, "by the warps of a block");
  g.sync();
  return data == nullptr ? 0 : unmap(fs, data, reads);
}

}  // namespace detail

// Maps a part of a file for reading: pins the page that holds `offset`, and returns a pointer to
// that byte.
//   offset  in bytes, >= 0
//   bytes   how many the caller wants, > 0; the mapping may have fewer (see mapping)
//
// The pointer is valid in every thread of the GPU until gmunmap. Past the end of the file the rest
// of the page reads as zeros. Errors: -EBADF; -EINVAL, a negative offset or no bytes; others as
// gread. Waits: as gread. Each mapping holds a frame; if a group holds many, other groups may get
// -ENOBUFS.
template <class Group>
[[nodiscard]] GPUFS_HD mapping gmmap(const Group& g, const mount_ref& fs, std::int32_t fd,
                                     std::int64_t offset, std::uint64_t bytes) {
  if (offset < 0 || bytes == 0) return {nullptr, -EINVAL};
  const detail::found_file found = detail::find_file(fs, g, fd, access_read);
  if (found.error != 0) return {nullptr, found.error};
  const auto at = static_cast<std::uint64_t>(offset);
  if (at >= found.view.size) return {nullptr, 0};
  const std::uint64_t page = at >> fs.layout.page_shift;
  const std::uint64_t within = at - (page << fs.layout.page_shift);
  if (found.view.size - at < bytes) bytes = found.view.size - at;
  page_cache<Group> cache(fs, g, found.view.record);
  const page_pin pin = cache.find_resident({found.view.version, page});
  if (pin.valid == cache.not_there) return detail::map_any(fs, g, found.view, at, bytes);
  cache.count_hits();
  const mapping m = detail::mapping_of(fs, pin, within, bytes);
  if (m.bytes == 0) cache.release(pin.frame);
  return m;
}

// Ends a mapping; `data` points anywhere into it. Returns 0, or -EINVAL if nothing is mapped there.
// Does not wait.
template <class Group>
GPUFS_HD std::int32_t gmunmap(const Group& g, const mount_ref& fs, const void* data) {
  return detail::unmap_together(g, fs, data, detail::reads_may_be_under_way{});
}
// The same, without a fence. Each member passes `made`: a value of up to 8 bytes that depends on
// every byte that the member read from the mapping, such as a sum. The call waits until that value
// is computed, so all reads have completed. A member that read nothing passes any value.
template <class Group, class Value>
GPUFS_HD std::int32_t gmunmap(const Group& g, const mount_ref& fs, const void* data,
                              const Value& made) {
  return detail::unmap_together(g, fs, data, detail::reads_have_arrived(made));
}

// As gmmap and gmunmap, but each member maps its own part: `offset`, `bytes` and the result are the
// member's own. The members look up the pages at the same time, and one fence ends all mappings, so
// this is much faster for small pages than one call per part. All members together load missing
// pages, one after the other.
//
// A member with 0 bytes gets no mapping (0 bytes); it passes a null pointer to gmunmap_each, which
// returns 0. Any member may use a mapping, and any member may end it. Called by a warp or a single
// thread, not by a block. Holds up to one pin per member while it waits. The cache should have
// frames for all warps that do so at the same time; otherwise some get -ENOBUFS.
template <class Group>
[[nodiscard]] GPUFS_HD mapping gmmap_each(const Group& g, const mount_ref& fs, std::int32_t fd,
                                          std::int64_t offset, std::uint64_t bytes) {
  static_assert(!Group::has_warps, "by the warps of a block");
  const detail::found_file found = detail::find_file(fs, g, fd, access_read);
  if (found.error != 0) return {nullptr, found.error};
  const auto at = static_cast<std::uint64_t>(offset);
  const bool wanted = bytes != 0 && offset >= 0 && at < found.view.size;
  const std::uint64_t page = at >> fs.layout.page_shift;
  page_cache<Group> cache(fs, g, found.view.record);
  const page_pin pin =
      cache.acquire_each(found.view.version, page, wanted, [&](std::uint64_t missing) {
        return detail::page_loader<Group>(fs, g, found.view, missing);
      });
  if (!wanted) return {nullptr, bytes != 0 && offset < 0 ? -EINVAL : 0};
  const std::uint64_t left = found.view.size - at;
  const mapping m =
      detail::mapping_of(fs, pin, at - (page << fs.layout.page_shift), left < bytes ? left : bytes);
  if (m.bytes == 0) detail::frame_table(fs).unpin(pin.frame);
  return m;
}
template <class Group>
GPUFS_HD std::int32_t gmunmap_each(const Group& g, const mount_ref& fs, const void* data) {
  return detail::unmap_each(g, fs, data, detail::reads_may_be_under_way{});
}
// The same, without a fence (see gmunmap). `made` depends on all bytes that the member read from
// all mappings that the group ends by this call.
template <class Group, class Value>
GPUFS_HD std::int32_t gmunmap_each(const Group& g, const mount_ref& fs, const void* data,
                                   const Value& made) {
  return detail::unmap_each(g, fs, data, detail::reads_have_arrived(made));
}

namespace detail {

template <class Group>
GPUFS_HD char* pointer_from(const Group& g, char* pointer, std::uint32_t member) {
  return reinterpret_cast<char*>(g.from(reinterpret_cast<std::uint64_t>(pointer), member));
}

// The slow path of read_each(), for members that have some bytes `left`: their parts are not in the
// cache, or span several pages. Returns for each member what gread would return.
template <keeps Keeps, class Group>
GPUFS_HD GPUFS_OUT_OF_LINE std::int64_t read_each_left(const Group g, const mount_ref& fs,
                                                       std::int32_t fd, char* buffer,
                                                       std::uint64_t bytes, std::int64_t offset,
                                                       bool left) {
  std::int64_t result = 0;
  if constexpr (Keeps == keeps::none_that_it_can_do_without) {
    const found_file found = find_file(fs, g, fd, access_read);
    const auto at = static_cast<std::uint64_t>(offset);
    const bool in_file = found.error == 0 && found.view.node == no_node && offset >= 0 &&
                         bytes <= found.view.size && at <= found.view.size - bytes;
    const std::uint64_t address = left && in_file && buffer != nullptr
                                      ? extent_table(fs).find(found.view.version, at, bytes)
                                      : 0;
    for (std::uint32_t next = g.leading(address == 0); next < g.size(); ++next) {
      const std::uint64_t from = g.from(address, next);
      if (from == 0) continue;
      const std::uint64_t wanted = g.from(bytes, next);
      const std::uint64_t came = copy_from_extent(g, pointer_from(g, buffer, next), from, wanted);
      if (g.rank() == next && came == wanted) {
        result = static_cast<std::int64_t>(bytes);
        left = false;
      }
    }
    const std::uint64_t all = g.sum(result != 0 ? bytes : 0);
    if (g.is_leader() && all != 0) fs.counters().add(counter::direct_bytes, all);
    (void)count_read(fs, g, all);
  }
  for (;;) {
    const std::uint32_t next = g.leading(!left);
    if (next == g.size()) return result;
    const std::int64_t got = read_bytes<keeps::all_pages>(
        g, fs, fd, pointer_from(g, buffer, next), g.from(bytes, next),
        static_cast<std::int64_t>(g.from(static_cast<std::uint64_t>(offset), next)));
    if (g.rank() != next) continue;
    result = got;
    left = false;
  }
}

template <keeps Keeps, class Group>
GPUFS_HD std::int64_t read_each(const Group& g, const mount_ref& fs, std::int32_t fd, char* buffer,
                                std::uint64_t bytes, std::int64_t offset) {
  static_assert(!Group::has_warps, "by the warps of a block");
  const found_file found = find_file(fs, g, fd, access_read);
  if (found.error != 0) return found.error;
  const auto at = static_cast<std::uint64_t>(offset);
  const std::uint64_t page = at >> fs.layout.page_shift, within = at & (fs.layout.page_bytes() - 1);
  const bool in_a_page = bytes != 0 && buffer != nullptr && offset >= 0 && at < found.view.size &&
                         bytes <= fs.layout.page_bytes() - within;
  bool done = false;
  page_cache<Group> cache(fs, g, found.view.record);
  for (std::uint32_t first = 0; first < g.size(); first += pins_of_copy) {
    page_pin pin{};
    const bool pinned =
        cache.pin_each(found.view.version, page,
                       in_a_page && g.rank() / pins_of_copy == first / pins_of_copy, pin);
    if (g.all(!pinned)) continue;
    // A part at the end of the file takes the slow path.
    const bool whole = pinned && within + bytes <= static_cast<std::uint64_t>(pin.valid) &&
                       bytes <= found.view.size - at;
    GPUFS_NO_UNROLL
    for (std::uint32_t i = first; i < first + pins_of_copy && i < g.size(); ++i) {
      const std::uint64_t n = g.from(whole ? bytes : 0, i);
      if (n == 0) continue;
      start_copy_from_frame(g, pointer_from(g, buffer, i),
                            fs.page(g.from(pin.frame, i)) + g.from(within, i), n);
    }
    finish_copies();
    cache.release_each(pinned, pin);
    done = done || whole;
  }
  const std::uint64_t all = g.sum(done ? bytes : 0);
  (void)count_read(fs, g, all);
  const bool left = !done && bytes != 0;
  if (g.all(!left)) return done ? static_cast<std::int64_t>(bytes) : 0;
  const std::int64_t result = read_each_left<Keeps>(g, fs, fd, buffer, bytes, offset, left);
  return done ? static_cast<std::int64_t>(bytes) : result;
}

}  // namespace detail

// As gread, but each member reads its own part, for gathers: `buffer`, `bytes`, `offset` and the
// result are the member's own. The members copy all parts together. The latencies of parts that lie
// in one cached page each overlap, several at a time. A member with 0 bytes gets 0.
//
// Called by a warp or a single thread, not by a block. Holds up to eight pins while it copies, and
// one while it waits.
template <class Group>
[[nodiscard]] GPUFS_HD std::int64_t gread_each(const Group& g, const mount_ref& fs, std::int32_t fd,
                                               void* buffer, std::uint64_t bytes,
                                               std::int64_t offset) {
  return detail::read_each<detail::keeps::all_pages>(g, fs, fd, static_cast<char*>(buffer), bytes,
                                                     offset);
}
// As gread_each, but avoids putting missing pages into the cache (see gread_uncached).
template <class Group>
[[nodiscard]] GPUFS_HD std::int64_t gread_uncached_each(const Group& g, const mount_ref& fs,
                                                        std::int32_t fd, void* buffer,
                                                        std::uint64_t bytes, std::int64_t offset) {
  return detail::read_each<detail::keeps::none_that_it_can_do_without>(
      g, fs, fd, static_cast<char*>(buffer), bytes, offset);
}

// Announces how the caller will use a part of a file, as posix_fadvise(2).
//   offset, bytes  the part, in bytes; bytes 0: up to the end of the file
//   advice         one of POSIX_FADV_*:
// * POSIX_FADV_WILLNEED loads the part into the cache, in runs that the copy engine fills
//   (file/bulk.cuh). That is faster than any number of reading threads. Bytes that are not in the
//   host's memory come at the speed of its disk.
// * POSIX_FADV_DONTNEED writes the part's dirty bytes to the file now, while other groups continue,
//   instead of at a close or sync. The pages stay in the cache. The next gfsync or gclose returns
//   the errors.
// * Other advice of POSIX changes nothing.
//
// Returns 0, even if a part could not be loaded: a later read loads it, or returns the error.
// Errors: -EBADF, also for a descriptor without the access that the advice needs; -EINVAL, a
// negative offset or an unknown advice. Waits: for I/O, at most as long as gread. A single thread
// of a GPU loads nothing.
template <class Group>
GPUFS_HD std::int32_t gfadvise(const Group& g, const mount_ref& fs, std::int32_t fd,
                               std::int64_t offset, std::uint64_t bytes, std::int32_t advice) {
  if (offset < 0 || advice < POSIX_FADV_NORMAL || advice > POSIX_FADV_NOREUSE) return -EINVAL;
  const bool is_written = advice == POSIX_FADV_DONTNEED;
  const detail::found_file found =
      detail::find_file(fs, g, fd, is_written ? access_read | access_write : access_read);
  if (found.error != 0) return found.error;
  const detail::file_view& file = found.view;
  const auto begin = static_cast<std::uint64_t>(offset);
  if ((advice != POSIX_FADV_WILLNEED && !is_written) || begin >= file.size) return 0;
  const std::uint64_t end = bytes == 0 || file.size - begin < bytes ? file.size : begin + bytes;
  if (is_written) {
    g.sync();  // Includes what all members wrote before the call.
    if (file.node != no_node)
      detail::flush_pages(fs, g, file.version, file.node, begin >> fs.layout.page_shift,
                          ((end - 1) >> fs.layout.page_shift) + 1);
    return 0;
  }
  if (file.node != no_node) return 0;
  if constexpr (detail::page_loader<Group>::looks_ahead) detail::load_runs(fs, g, file, begin, end);
  return 0;
}

// Sends bytes to a sink: a host function that the mount registered (mount::open_sink). The output
// has no fixed bound. Calls of one group arrive in order. A call of at most the channel's staging
// bytes arrives as one piece.
//
// Returns `bytes`, or -errno: -EBADF, the sink is not open; -EFAULT, `data` is null; the error that
// the sink returned; -EIO. Waits for the host.
template <class Group>
[[nodiscard]] GPUFS_HD std::int64_t gsend(const Group& g, const mount_ref& fs, std::int32_t sink,
                                          const void* data, std::uint64_t bytes);

}  // namespace gpufs

#include "gpufs/file/send.cuh"
#include "gpufs/view.cuh"
#include "gpufs/write.cuh"
