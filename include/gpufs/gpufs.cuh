// gpufs, the device API: files for GPU code. The same calls run on the CPU device.
//
// Every call is collective over a group (base/group.cuh): all members call it with the same
// arguments, at the same place, and all get the same result. Results are >= 0, or -errno; no call
// aborts, and every wait ends (see "Waits"). Semantics are POSIX's where they can be; docs/api.md
// has the table of differences. The calls and the consistency follow GPUfs (Silberstein et al., ACM
// TOCS 32(1), 2014, sections 3 and 4), the warp-level calls the SYSTOR 2016 paper.
#pragma once

#include "gpufs/base/group.cuh"
#include "gpufs/file/write.cuh"

namespace gpufs {

// What gfstat tells: the file as it was when it was opened.
struct file_status {
  std::uint64_t size;        // bytes
  std::int64_t modified_ns;  // since the epoch
  std::int64_t changed_ns;
  std::uint64_t inode;
  std::uint64_t device;
  std::uint32_t mode;  // st_mode
  std::uint32_t reserved;
};

// A part of a file in GPU memory. `bytes` may be less than was asked for: a mapping ends with its
// page, or with the file. 0 bytes: the offset is at or behind the end. < 0: -errno; then there is
// nothing to unmap.
struct mapping {
  const char* data;
  std::int64_t bytes;
};

// Opens a file.
//   path   zero-terminated, shorter than PATH_MAX (4096); relative ones start at the process's
//          working directory
//   flags  O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_NOFOLLOW,
//          O_CLOEXEC (ignored); O_GWRONCE
//   mode   of a file that O_CREAT creates, less the process's umask
// Returns a descriptor, valid in all kernels of the mount until it was closed as often as it was
// opened. Opening a file that is open (by the same path, access and O_APPEND) makes no round trip
// to the host: it gives the file that is open, though another program has renamed it, or put
// another in its place, since (gunlink and grename of this mount are seen). Of many that open with
// O_CREAT | O_EXCL one gets the file. Otherwise the host opens it, and a file that changed since
// its pages were cached (device, inode, size, mtime, ctime) is read anew: close-to-open
// consistency. As long as a file is open for writing, whoever opens it in this mount shares what
// was written so far, and what others change meanwhile is seen at the first open after that. A
// descriptor that was opened before the file was opened for writing (under other flags) keeps the
// state that it opened. O_TRUNC empties the file once per launch: the first open with it does, and
// later ones of the same launch do not, also when the file was closed in between. So all groups of
// a launch may open an output with O_TRUNC, write their parts of it and close it, in any order, and
// each launch begins with an empty file. Replays of a CUDA graph may count as one launch, because
// the driver may give them one number (%gridid); then only the first empties the file, so a graph
// uses gftruncate. A kernel that a kernel launches is a launch of its own. A mount remembers, for a
// million files, which launch emptied a file last: two launches that run at the same time must not
// both empty one file. Errors: -ENOENT -EACCES -EISDIR -ENAMETOOLONG -ELOOP -ENOTDIR as open(2);
// -EINVAL for an unknown flag or a file that is not regular; -EEXIST; -EROFS for writing where the
// mount or the file system does not; -EFAULT for a null path; -EMFILE when the mount's table
// (131,072 files) or the host is out of descriptors; -EOVERFLOW for a file of 2^48 bytes or more;
// -EIO when the host failed, or does not answer (then a file may still be created or emptied), or
// other groups were first, and failed, for as long as a request may take; -EBUSY while an earlier
// write or truncation of the file, or a removal or rename of the path, which was given up with
// -EIO, may still take place: nothing was done, and it ends when the host's call returns
// (docs/api.md, "Calls that were given up"). Waits: for the host's open, bounded by the mount's
// request timeout; to write, also while the last who wrote the file gives up what could not be
// written (gclose).
template <class Group>
[[nodiscard]] GPUFS_HD std::int32_t gopen(const Group& g, const mount_ref& fs, const char* path,
                                          std::int32_t flags = O_RDONLY,
                                          std::uint32_t mode = 0666) {
  return detail::opener<Group>(fs, g).open(path, flags, mode, [&](const detail::file_view& file) {
    return detail::empty_file(fs, g, file);
  });
}

// Closes a descriptor once. Of a descriptor that writes the result says whether bytes are lost; of
// one that only reads it says nothing that a correct program needs. The last close gives the record
// back and tells the host, without waiting for it; cached pages stay, and serve a later open if the
// file did not change. Returns 0, or -EBADF. Does not wait for I/O, but for a close too many: that
// may wait for the last one. Of a descriptor that writes: the last close, and the last of all
// through which the file may be written, waits until all that was written to the file has reached
// it (not its disk), so that whoever opens it then sees it. Returns -errno if that failed, or an
// earlier write-back had and nobody was told, or if the file system reports an error at close(2)
// (NFS, FUSE); what could not be written is lost then, unless a second try has written it, or
// others may write the file still. The descriptor is closed in any case.
template <class Group>
[[nodiscard]] GPUFS_HD std::int32_t gclose(const Group& g, const mount_ref& fs, std::int32_t fd) {
  g.sync();  // other members may still be using the descriptor
  return detail::close_descriptor(fs, g, fd);
}

// Describes an open file: as it was when it was opened, but for the size of a file that this mount
// writes, which is that as written so far. Returns 0, or -EBADF. Does not wait.
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

// How far a read came: to its end, or to the first byte that could not be read, because of `error`,
// or (0) because the file was truncated since it was opened.
struct read_end {
  std::uint64_t at;
  std::int32_t error;
};

// What a page, pinned or failed, has of a read of [begin, end).
struct page_part {
  std::uint64_t at;    // where in the file it begins
  std::uint64_t stop;  // where it ends, or what can be read of it
  bool whole;          // whether that is all that was wanted of the page
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

// Copies [at, stop) of the file, which lies in one frame; to be followed by finish_copies().
template <class Group>
GPUFS_HD void start_copy_of_part(const mount_ref& fs, const Group& g, std::uint32_t frame_number,
                                 char* to, std::uint64_t at, std::uint64_t stop) {
  start_copy_from_frame(g, to, fs.page(frame_number) + (at & (fs.layout.page_bytes() - 1)),
                        stop - at);
}

// By a block whose warps each read a page at the same time. `buffer` is for the byte at `begin`.
// Nothing behind the first byte that cannot be read is written, so they wait for each other before
// they copy, each with a pin: only where there are frames for all warps of the device, and more
// (reads_by_warps).
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
      // What is sure to follow is for one of them: the others' pages are among it.
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
    // One warp stopped there, and knows why.
    const bool stopped_here = !part.whole && part.stop == stop && pin.valid < 0;
    const std::uint64_t why =
        g.least(stopped_here ? static_cast<std::uint64_t>(-pin.valid) : ~std::uint64_t{0});
    return {stop, why == ~std::uint64_t{0} ? 0 : -static_cast<std::int32_t>(why)};
  }
  return {end, 0};
}

// Brings [begin, end) into the cache in runs, two at a time: one is claimed while the other comes.
// Where no run is to be had for a while, because many are under way, the rest is left.
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
    const std::uint64_t run_end =
        (page & ~(most - 1)) + most;  // the same for all who begin in the middle
    const std::uint32_t wanted =
        bulk::fitting(fs, file, page, (run_end < stop ? run_end : stop) - page);
    if (wanted == 0) {  // too few for a run: whoever reads them loads them
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
    if (failures % 8 == 0) ++page;  // it may be there after all, where a guess does not look
  }
  if (under_way.count != 0) bulk::end(fs, g, file, under_way);
}

// 64: warps that a multiprocessor holds at most. The CPU device's groups have one member, and wait for
// nobody.
GPUFS_HD inline bool reads_by_warps(const mount_ref& fs) {
  return fs.layout.frame_count / 128 >= fs.layout.processor_count;
}

// Reads what is there at a glance, from `at` on and without a gap; `buffer` is for the byte at
// `at`. Returns how far it came: to `end`, to a page that is not there or bears a mark, or to a
// byte that the file does not have. Calls nothing that is out of line, so that the registers are
// its own: whatever lives across a call costs loads and stores. Collective. Does not wait.
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

// The same by a block: of one page together; of several, each warp one, all or none of them.
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

// What a read of `bytes` returns.
template <class Group>
GPUFS_HD std::int64_t count_read(const mount_ref& fs, const Group& g, std::uint64_t bytes) {
  g.sync();
  if (g.is_leader()) fs.counters().add(counter::read_bytes, bytes);
  return static_cast<std::int64_t>(bytes);
}

// Any read of [begin, end), of which [begin, at) has been read. Waits for I/O. Looks the file up
// once more, so that the way of a hit keeps nothing in registers that only this needs.
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

// Reads [at, end) of a file that nobody writes here where the host has it, as far as kernels know
// where that is. Returns how far it came. Collective. Does not wait for the host.
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

// Whether pages that were missing are kept in the cache, if there is a choice.
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

// Reads into memory of the group: global or shared memory that all members can write; for a thread,
// its own too.
//   bytes   any number; offset >= 0; neither needs an alignment (16-byte aligned on both sides is
//           fastest)
// Returns the bytes read: fewer than asked only at the end of the file, or before an error that the
// next call returns; 0 at or behind the end. When the call returns, the bytes are visible to all
// members. Errors: -EBADF; -EINVAL for a negative offset; -EOVERFLOW when offset + bytes does not
// fit 63 bits; -EFAULT for a null buffer; -EIO and what else the host's read gave; -ENOBUFS when
// all frames of the cache stayed pinned. Waits: for I/O, and for frames; both bounded by the
// mount's timeouts. Holds at most one pin while it waits (a block one per warp), and eight while it
// copies.
template <class Group>
[[nodiscard]] GPUFS_HD std::int64_t gread(const Group& g, const mount_ref& fs, std::int32_t fd,
                                          void* buffer, std::uint64_t bytes, std::int64_t offset) {
  return detail::read_bytes<detail::keeps::all_pages>(g, fs, fd, buffer, bytes, offset);
}

// As gread, for a part of a page that is not worth a frame, such as a small record at a random
// place: what is not in the cache is read where the host has it, and only that, if the GPU can (the
// direct path) and nobody writes the file in this mount; else its page is brought into the cache.
// To POSIX this is a read after POSIX_FADV_NOREUSE.
template <class Group>
[[nodiscard]] GPUFS_HD std::int64_t gread_uncached(const Group& g, const mount_ref& fs,
                                                   std::int32_t fd, void* buffer,
                                                   std::uint64_t bytes, std::int64_t offset) {
  return detail::read_bytes<detail::keeps::none_that_it_can_do_without>(g, fs, fd, buffer, bytes,
                                                                        offset);
}

namespace detail {

// What of a pinned page, from the byte `within` on, is a mapping of at most `bytes`; 0 bytes where
// the file has none there.
GPUFS_HD inline mapping mapping_of(const mount_ref& fs, const page_pin& pin, std::uint64_t within,
                                   std::uint64_t bytes) {
  if (pin.valid < 0) return {nullptr, pin.valid};
  const auto valid = static_cast<std::uint64_t>(pin.valid);
  if (valid <= within) return {nullptr, 0};
  const std::uint64_t room = valid - within;
  return {fs.page(pin.frame) + within, static_cast<std::int64_t>(room < bytes ? room : bytes)};
}

// Any mapping, of `bytes` at `at`, which the file has. Out of line for the reason of read_any().
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

// How a caller knows that what was read of a mapping has arrived: it does not, and a fence has to
// see to that; or it has made something of all of it, which is there.
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

// The frame that a pointer leads into; false when it is none.
GPUFS_HD inline bool find_frame(const mount_ref& fs, const void* data,
                                std::uint32_t& frame_number) {
  const char* first = fs.page(0);
  const char* p = static_cast<const char*>(data);
  const std::uint64_t number = static_cast<std::uint64_t>(p - first) >> fs.layout.page_shift;
  frame_number = static_cast<std::uint32_t>(number);
  return p >= first && number < fs.layout.frame_count;
}

// By one thread. 0, or -EINVAL.
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
  g.sync();  // all members' reads come before the frame can be taken
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

// Maps a part of a file: pins the page that holds `offset` and gives a pointer into it, for
// reading, valid for every thread of the GPU until gmunmap. Behind the end of the file the rest of
// a page reads as zeros. Errors: -EBADF; -EINVAL for a negative offset or no bytes; then as gread.
// Waits as gread. A group that holds many mappings holds as many frames: others may then get
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

// Ends a mapping; `data` is any pointer into it. Returns 0, or -EINVAL when nothing is mapped
// there. Does not wait.
template <class Group>
GPUFS_HD std::int32_t gmunmap(const Group& g, const mount_ref& fs, const void* data) {
  return detail::unmap_together(g, fs, data, detail::reads_may_be_under_way{});
}
// The same, when each member hands over what it `made` of all that it read from the mapping: a
// value of up to 8 bytes that depends on every byte of that, such as a sum. The call waits until
// the value is there and saves a fence, a third of the time that reading a cached page of 4 KiB
// takes. A member that read nothing hands over anything.
template <class Group, class Value>
GPUFS_HD std::int32_t gmunmap(const Group& g, const mount_ref& fs, const void* data,
                              const Value& made) {
  return detail::unmap_together(g, fs, data, detail::reads_have_arrived(made));
}

// As gmmap and gmunmap, of a part for each member: `offset`, `bytes` and what is returned are the
// member's own. The pages are looked up at the same time, and one fence ends all mappings, so that
// for small pages it is much faster than one by one; what is not in the cache is loaded page by
// page, by all members together. A member with no bytes gets no mapping (0 bytes), and gives back a
// null pointer (0). A mapping may be used by all members, and ended by any. By a warp or a single
// thread. Holds up to one pin for each member while it waits: a cache should have frames for all
// warps that do so at a time, or some get -ENOBUFS.
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
// Here a member hands over what it made of all that it read from all the mappings that the group
// ends by this call.
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

// Of parts that are not in the cache, or in several pages of it: those of members that have some
// `left`. What gread gives the member.
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
    // Not where the file ends: that is for who looks at it more closely.
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

// As gread, of a part for each member, for gathers: `buffer`, `bytes` and `offset` are the member's
// own, and so is what is returned. The members copy all parts together; those that are in the
// cache, in one page each, several at a time, so that their latencies are one. A member with no
// bytes gets 0. By a warp or a single thread. Holds up to eight pins, and one while it waits.
template <class Group>
[[nodiscard]] GPUFS_HD std::int64_t gread_each(const Group& g, const mount_ref& fs, std::int32_t fd,
                                               void* buffer, std::uint64_t bytes,
                                               std::int64_t offset) {
  return detail::read_each<detail::keeps::all_pages>(g, fs, fd, static_cast<char*>(buffer), bytes,
                                                     offset);
}
// The same as gread_uncached.
template <class Group>
[[nodiscard]] GPUFS_HD std::int64_t gread_uncached_each(const Group& g, const mount_ref& fs,
                                                        std::int32_t fd, void* buffer,
                                                        std::uint64_t bytes, std::int64_t offset) {
  return detail::read_each<detail::keeps::none_that_it_can_do_without>(
      g, fs, fd, static_cast<char*>(buffer), bytes, offset);
}

// Says what the caller will do with a part of a file, as posix_fadvise(2). POSIX_FADV_WILLNEED:
// brings it into the cache, in runs that the copy engine fills (file/bulk.cuh), which is faster
// than any number of threads that read; what the host has not in its memory comes at the speed of
// its disk. POSIX_FADV_DONTNEED: what was written to it reaches the file now, while others go on,
// and not only when somebody closes or syncs; its pages stay in the cache, and errors are for the
// next gfsync or gclose. `bytes` 0: up to the end of the file. Other advice is taken, and changes
// nothing. Returns 0 also when some of it could not be had, as advice is never needed: reading it
// loads it, or says why not. Errors: -EBADF, also for a descriptor that may not read or write what
// is asked for; -EINVAL for a negative offset, or for what is no advice. Waits for I/O, bounded as
// gread. A single thread of a GPU loads nothing.
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
    g.sync();  // what members wrote comes first
    if (file.node != no_node)
      detail::flush_pages(fs, g, file.version, file.node, begin >> fs.layout.page_shift,
                          ((end - 1) >> fs.layout.page_shift) + 1);
    return 0;
  }
  if (file.node != no_node) return 0;
  if constexpr (detail::page_loader<Group>::looks_ahead) detail::load_runs(fs, g, file, begin, end);
  return 0;
}

// Sends bytes to a sink, a host function that the mount registered (mount::open_sink): output
// without a fixed bound. Calls of one group arrive in order; each call of at most the channel's
// staging bytes arrives whole. Returns `bytes`, or -errno: -EBADF for a sink that is not open, what
// the sink returned, -EIO. Waits for the host.
template <class Group>
[[nodiscard]] GPUFS_HD std::int64_t gsend(const Group& g, const mount_ref& fs, std::int32_t sink,
                                          const void* data, std::uint64_t bytes);

}  // namespace gpufs

#include "gpufs/file/send.cuh"
#include "gpufs/view.cuh"
#include "gpufs/write.cuh"
