// Mappings for writing: gmmap_write, gmsync and gmunmap are made of these.
#pragma once

#include "gpufs/file/map.cuh"
#include "gpufs/file/write_bytes.cuh"

namespace gpufs {

// A part of a file in GPU memory that kernels may write. `bytes`: as in mapping.
struct writable_mapping {
  char* data;
  std::int64_t bytes;
  std::int32_t fd;
  std::uint32_t reserved;
};

}  // namespace gpufs

namespace gpufs::detail {

// Mappings for writing.
//
// Stores through a pointer are not announced, so each mapped page has a twin: a copy of the
// page, in a frame of its own. Bytes that differ from the twin were stored. (The word and the idea
// are those of TreadMarks: Keleher et al., USENIX 1994.)
//
// The twin holds what the file has: the page as it was mapped, plus what was written back of it
// since (run_writer::update_twins), and cut. Bytes of the page that are not in the file yet are
// dirty already. Only groups that write the page back, or cut it, change the twin. So all groups
// that look for a change find it, until one of them sends it to the host.
//
// That is so while the page is mapped. The last mapping evicts the twin, but cannot if another
// group has pinned it for a moment. Such a twin is out of date when the page is mapped again. So
// the frame of a twin counts the mappings that use it (frame_dirt::node), and a twin without any is
// evicted before it is used.

// Makes the twin of a page, for a first mapping. Sets `made`.
template <class Group>
class twin_of_page {
 public:
  GPUFS_HD twin_of_page(const mount_ref& fs, const Group& g, const char* from, bool* made)
      : fs_(fs), g_(g), from_(from), made_(made) {}
  GPUFS_HD std::int32_t operator()(char* to) const {
    *made_ = true;
    std::uint32_t frame_number = 0;
    if (g_.is_leader() && find_frame(fs_, to, frame_number))
      fs_.dirt(frame_number).node.store_relaxed(1);  // The publish of the page orders it.
    copy_out_of_page(g_, to, from_, fs_.layout.page_bytes());
    return static_cast<std::int32_t>(fs_.layout.page_bytes());
  }

 private:
  const mount_ref& fs_;
  const Group g_;
  const char* from_;
  bool* made_;
};

// Counts one more mapping of a twin that the caller has pinned. Returns false if no mapping uses
// the twin: then it is out of date. Called by one thread.
GPUFS_HD inline bool join_twin(const mount_ref& fs, std::uint32_t twin_frame) {
  atomic_word<std::uint32_t>& users = fs.dirt(twin_frame).node;
  std::uint32_t seen = users.load_acquire();
  while (seen != 0) {
    if (users.compare_exchange_acq_rel(seen, seen + 1)) return true;
  }
  return false;
}
// Evicts a twin that no mapping uses, unless another group has pinned it. The caller's pin is
// released. Called by one thread.
GPUFS_HD inline void drop_twin(const mount_ref& fs, std::uint32_t twin_frame) {
  const frame_table frames(fs);
  frames.unpin(twin_frame);
  if (frames.claim_resident(twin_frame)) frames.header(twin_frame).state.release();
}

// Pins the page and its twin. On success returns the pin of the page. Collective. Waits as any
// load, and for groups that have pinned a twin that is out of date: for at most
// `reclaim_timeout_ns`, then the error is -ENOBUFS.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE page_pin pin_to_write(const mount_ref& fs, const Group g,
                                                 const file_view file, std::uint64_t page) {
  page_cache<Group> cache(fs, g, file.record);
  const page_pin pin = cache.acquire({file.version, page}, page_loader<Group>(fs, g, file, page));
  if (pin.valid < 0) return pin;
  // Acquire and release: see are_pages_mapped().
  atomic_word<std::uint64_t>& mapped = fs.at<name_state>(fs.layout.names)->mapped;
  if (g.is_leader()) (void)mapped.fetch_add_acq_rel(name_state::one_mapping);
  const slot_key twin = g.broadcast(key_of_twin(frame_table(fs).header(pin.frame)));
  const std::uint64_t start = platform::now_ns();
  page_pin twin_pin{};
  for (std::uint32_t attempt = 0;; ++attempt) {
    bool made = false;
    twin_pin =
        cache.acquire({twin.high, twin.low}, twin_of_page<Group>(fs, g, fs.page(pin.frame), &made));
    if (twin_pin.valid < 0) break;
    enum class outcome : std::uint32_t { joined, stale, gives_up } found = outcome::joined;
    if (!made && g.is_leader() && !join_twin(fs, twin_pin.frame)) {
      drop_twin(fs, twin_pin.frame);
      found =
          platform::elapsed_ns(start) > fs.reclaim_timeout_ns ? outcome::gives_up : outcome::stale;
      platform::pause(attempt);
    }
    found = g.broadcast(found);
    if (found == outcome::joined) return pin;
    twin_pin.valid = -ENOBUFS;
    if (found == outcome::gives_up) break;
  }
  if (g.is_leader()) mapped.add_relaxed(~std::uint64_t{0});
  cache.release(pin.frame);
  return twin_pin;
}

// The frame with the twin of a page that is mapped for writing; -EINVAL if there is none. The
// mapping keeps it pinned. Called by one thread.
GPUFS_HD inline std::int32_t frame_of_twin(const mount_ref& fs, std::uint32_t frame_number) {
  const frame_table frames(fs);
  const pinned_slot twin = frames.index().find_and_pin(key_of_twin(frames.header(frame_number)));
  if (!twin.found) return -EINVAL;
  frames.unpin(twin.slot);
  return static_cast<std::int32_t>(twin.slot);
}

// Finds what was stored in bytes [begin, end) of a mapped page, and marks it as written.
// Collective.
template <class Group>
GPUFS_HD void mark_changes(const mount_ref& fs, const Group& g, const file_view& file,
                           std::uint32_t frame_number, std::uint32_t twin_frame,
                           std::uint64_t begin, std::uint64_t end) {
  const char* const page = fs.page(frame_number);
  const char* const twin = fs.page(twin_frame);
  order_mapped_stores(fs, g);
  bool any = false;
  for (std::uint64_t w = begin / 64 + g.rank(); begin < end && w <= (end - 1) / 64; w += g.size()) {
    const std::uint64_t bits =
        differing_bytes(page + w * 64, twin + w * 64) & page_dirt::bits(w, begin, end);
    if (bits == 0) continue;
    any = true;
    GPUFS_SCHEDULE_POINT("map.mark");
    (void)fs.mask(frame_number)[w].fetch_or_acq_rel(bits);
  }
  if (g.all(!any)) return;
  g.sync();
  if (g.is_leader()) (void)page_dirt(fs, frame_number).set(file.node, page_dirt::partial);
  g.sync();
}

// As gmmap_write.
template <class Group>
GPUFS_HD writable_mapping map_to_write(const Group& g, const mount_ref& fs, std::int32_t fd,
                                       std::int64_t offset, std::uint64_t bytes) {
  if (offset < 0 || bytes == 0) return {nullptr, -EINVAL, fd, 0};
  const found_file found = find_file(fs, g, fd, access_read | access_write);
  if (found.error != 0) return {nullptr, found.error, fd, 0};
  constexpr std::uint32_t both = access_read | access_write;
  if ((found.view.access & both) != both) return {nullptr, -EACCES, fd, 0};
  const auto at = static_cast<std::uint64_t>(offset);
  if (at >= found.view.size) return {nullptr, 0, fd, 0};
  // A descriptor with O_APPEND may write elsewhere through a mapping only.
  if (g.is_leader()) note_other_writes(fs, found.view.node);
  const std::uint64_t page = at >> fs.layout.page_shift;
  const page_pin pin = pin_to_write(fs, g, found.view, page);
  if (pin.valid < 0) return {nullptr, pin.valid, fd, 0};
  const std::uint64_t within = at - (page << fs.layout.page_shift);
  const std::uint64_t left = found.view.size - at;
  const mapping m = mapping_of(fs, pin, within, left < bytes ? left : bytes);
  return {fs.page(pin.frame) + within, m.bytes, fd, 0};
}

// Marks the bytes that were stored in a mapping as dirty. Stores the frame of the page in
// `frame_number`, and the frame of its twin in `twin`. Returns 0; -EINVAL if `m` is no mapping for
// writing; or -EBADF. Collective. Waits while the file is being truncated.
template <class Group>
GPUFS_HD std::int32_t take_changes(const mount_ref& fs, const Group& g, const writable_mapping& m,
                                   std::uint32_t& frame_number, std::int32_t& twin) {
  if (!find_frame(fs, m.data, frame_number) || m.bytes <= 0) return -EINVAL;
  const auto within = static_cast<std::uint64_t>(m.data - fs.page(frame_number));
  if (static_cast<std::uint64_t>(m.bytes) > fs.layout.page_bytes() - within) return -EINVAL;
  g.sync();
  twin = 0;
  if (g.is_leader()) twin = frame_of_twin(fs, frame_number);
  twin = g.broadcast(twin);
  if (twin < 0) return twin;
  const found_file found = find_to_write(fs, g, m.fd);
  if (found.error != 0) return found.error;
  if (g.is_leader()) begin_size_use(fs, found.view.node);
  // Marks nothing past the end of the file: it may have been cut since the page was mapped.
  const std::uint64_t size = file_size(fs, g, found.view.node);
  const std::uint64_t page_begin = g.broadcast(frame_table(fs).header(frame_number).key()).low
                                   << fs.layout.page_shift;
  const std::uint64_t stop = within + static_cast<std::uint64_t>(m.bytes);
  const std::uint64_t there = size > page_begin ? size - page_begin : 0;
  mark_changes(fs, g, found.view, frame_number, static_cast<std::uint32_t>(twin), within,
               stop < there ? stop : there);
  if (g.is_leader()) end_size_use(fs, found.view.node);
  return 0;
}

// As gmsync.
template <class Group>
GPUFS_HD std::int32_t write_mapping(const Group& g, const mount_ref& fs,
                                    const writable_mapping& m) {
  std::uint32_t frame_number = 0;
  std::int32_t twin = 0;
  const std::int32_t result = take_changes(fs, g, m, frame_number, twin);
  if (result != 0) return result;
  return by_one_warp(g, [&](const one_warp_of<Group>& part) {
    return write_back(fs, part).flush_page(frame_number);
  });
}

// As gmunmap of a mapping for writing.
template <class Group>
GPUFS_HD std::int32_t unmap_written(const Group& g, const mount_ref& fs,
                                    const writable_mapping& m) {
  if (m.bytes <= 0) return 0;
  std::uint32_t frame_number = 0;
  std::int32_t twin = 0;
  const std::int32_t result = take_changes(fs, g, m, frame_number, twin);
  if (result != 0 && result != -EBADF) return result;
  g.sync();
  if (g.is_leader()) {
    const frame_table frames(fs);
    const auto twin_frame = static_cast<std::uint32_t>(twin);
    // Release: a group that maps the page again, and finds no mapping of the twin, evicts the twin.
    (void)fs.dirt(twin_frame).node.fetch_add_release(~0u);
    // The twin is no longer needed, unless another group has mapped the page too.
    drop_twin(fs, twin_frame);
    frames.unpin(frame_number);
    // Release: pairs with are_pages_mapped(). A group that sees the lower count also sees the marks
    // of what was stored (with -EBADF: it is lost).
    (void)fs.at<name_state>(fs.layout.names)->mapped.fetch_add_release(~std::uint64_t{0});
  }
  g.sync();
  return result;
}

}  // namespace gpufs::detail
