// Gathers: gread_each and gread_uncached_each are made of these. Each member of a group reads a
// part of its own.
#pragma once

#include "gpufs/file/read.cuh"

namespace gpufs::detail {

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
  if constexpr (Keeps == keeps::uncached) {
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

}  // namespace gpufs::detail
