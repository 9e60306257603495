// Reads: gread and gread_uncached are made of these. A read copies resident pages optimistically
// (read_resident), and takes the slow path for the rest (read_any).
#pragma once

#include "gpufs/file/open_files.cuh"

namespace gpufs::detail {

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
    const std::uint32_t pinned = cache.pin_several(file.version, page, wanted, mine);
    page_part part{at, at, pinned == wanted};
    GPUFS_NO_UNROLL
    for (std::uint32_t i = 0; i < pinned; ++i) {
      const page_pin pin{g.from(mine.frame, i), static_cast<std::int32_t>(g.from(
                                                    static_cast<std::uint32_t>(mine.valid), i))};
      part = part_of_page(fs, pin, page + i, at, end);
      start_copy_of_part(fs, g, pin.frame, buffer + (part.at - at), part.at, part.stop);
      if (!part.whole) break;
    }
    finish_copies();
    cache.release_several(pinned, mine);
    buffer += part.stop - at;
    at = part.stop;
    if (at == end || pinned != wanted || !part.whole) return at;
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
enum class keeps { all_pages, uncached };

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
  if constexpr (Keeps == keeps::uncached) {
    if (at != end) at = read_in_place(fs, g, file, to + (at - begin), at, end);
  }
  if (at == end) return count_read(fs, g, end - begin);
  return read_any(fs, g, fd, to, begin, at, end);
}

}  // namespace gpufs::detail
