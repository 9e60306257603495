// Mappings for reading: gmmap, gmmap_each and gmunmap are made of these.
#pragma once

#include "gpufs/file/open_files.cuh"

namespace gpufs {

// A part of a file in GPU memory. `bytes` may be less than the caller asked for, because a mapping
// ends at the end of its page or of the file. 0: the offset is at or past the end of the file. < 0:
// -errno. With 0 or less there is nothing to unmap.
struct mapping {
  const char* data;
  std::int64_t bytes;
};

}  // namespace gpufs

namespace gpufs::detail {

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
GPUFS_HD std::int32_t unmap(const mount_ref& fs, const mapping& m, const Reads&) {
  if (m.bytes <= 0) return 0;
  std::uint32_t frame_number = 0;
  if (!find_frame(fs, m.data, frame_number)) return -EINVAL;
  return Reads::unpin(frame_table(fs).header(frame_number).state) ? 0 : -EINVAL;
}
template <class Group, class Reads>
GPUFS_HD std::int32_t unmap_together(const Group& g, const mount_ref& fs, const mapping& m,
                                     const Reads& reads) {
  std::int32_t result = 0;
  g.sync();  // All members' reads come before the frame can be evicted.
  if (g.is_leader()) result = unmap(fs, m, reads);
  return g.broadcast(result);
}
template <class Group, class Reads>
GPUFS_HD std::int32_t unmap_each(const Group& g, const mount_ref& fs, const mapping& m,
                                 const Reads& reads) {
  static_assert(!Group::has_warps, "by the warps of a block");
  g.sync();
  return unmap(fs, m, reads);
}

// As gmmap.
template <class Group>
GPUFS_HD mapping map(const Group& g, const mount_ref& fs, std::int32_t fd, std::int64_t offset,
                     std::uint64_t bytes) {
  if (offset < 0 || bytes == 0) return {nullptr, -EINVAL};
  const found_file found = find_file(fs, g, fd, access_read);
  if (found.error != 0) return {nullptr, found.error};
  const auto at = static_cast<std::uint64_t>(offset);
  if (at >= found.view.size) return {nullptr, 0};
  const std::uint64_t page = at >> fs.layout.page_shift;
  const std::uint64_t within = at - (page << fs.layout.page_shift);
  if (found.view.size - at < bytes) bytes = found.view.size - at;
  page_cache<Group> cache(fs, g, found.view.record);
  const page_pin pin = cache.find_resident({found.view.version, page});
  if (pin.valid == cache.not_there) return map_any(fs, g, found.view, at, bytes);
  cache.count_hits();
  const mapping m = mapping_of(fs, pin, within, bytes);
  if (m.bytes == 0) cache.release(pin.frame);
  return m;
}

template <class Group>
struct loader_of_pages {
  const mount_ref& fs;
  const Group g;
  const file_view file;
  GPUFS_HD page_loader<Group> operator()(std::uint64_t page) const { return {fs, g, file, page}; }
};

// As gmmap_each.
template <class Group>
GPUFS_HD mapping map_each(const Group& g, const mount_ref& fs, std::int32_t fd, std::int64_t offset,
                          std::uint64_t bytes) {
  static_assert(!Group::has_warps, "by the warps of a block");
  const found_file found = find_file(fs, g, fd, access_read);
  if (found.error != 0) return {nullptr, found.error};
  const auto at = static_cast<std::uint64_t>(offset);
  const bool wanted = bytes != 0 && offset >= 0 && at < found.view.size;
  const std::uint64_t page = at >> fs.layout.page_shift;
  page_cache<Group> cache(fs, g, found.view.record);
  const page_pin pin = cache.acquire_each(found.view.version, page, wanted,
                                          loader_of_pages<Group>{fs, g, found.view});
  if (!wanted) return {nullptr, bytes != 0 && offset < 0 ? -EINVAL : 0};
  const std::uint64_t left = found.view.size - at;
  const mapping m =
      mapping_of(fs, pin, at - (page << fs.layout.page_shift), left < bytes ? left : bytes);
  if (m.bytes == 0) frame_table(fs).unpin(pin.frame);
  return m;
}

}  // namespace gpufs::detail
