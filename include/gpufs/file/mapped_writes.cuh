// Mappings for writing: gmmap_write, gmsync and gmunmap are made of these.
#pragma once

#include "gpufs/file/write_bytes.cuh"

namespace gpufs::detail {

// Mappings for writing.
//
// Stores through a pointer are not announced, so each mapped page has a copy: a page of its own in
// the cache. Bytes that differ from the copy were stored.
//
// The copy holds what the file has: the page as it was mapped, plus what was written back of it
// since (run_writer::update_copies), and cut. Bytes of the page that are not in the file yet are
// dirty already. Only groups that write the page back, or cut it, change the copy. So all groups
// that look for a change find it, until one of them sends it to the host.

template <class Group>
class copy_of_page {
 public:
  GPUFS_HD copy_of_page(const mount_ref& fs, const Group& g, const char* from)
      : fs_(fs), g_(g), from_(from) {}
  GPUFS_HD std::int32_t operator()(char* to) const {
    copy_out_of_page(g_, to, from_, fs_.layout.page_bytes());
    return static_cast<std::int32_t>(fs_.layout.page_bytes());
  }

 private:
  const mount_ref& fs_;
  const Group g_;
  const char* from_;
};

// Pins the page and its copy. On success returns the pin of the page. Collective. Waits as any
// load.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE page_pin pin_to_write(const mount_ref& fs, const Group g,
                                                 const file_view file, std::uint64_t page) {
  page_cache<Group> cache(fs, g, file.record);
  const page_pin pin = cache.acquire({file.version, page}, page_loader<Group>(fs, g, file, page));
  if (pin.valid < 0) return pin;
  // Acquire and release: see are_pages_mapped().
  atomic_word<std::uint64_t>& mapped = fs.at<name_state>(fs.layout.names)->mapped;
  if (g.is_leader()) (void)mapped.fetch_add_acq_rel(name_state::one_mapping);
  const slot_key copy = g.broadcast(key_of_copy(frame_table(fs).header(pin.frame)));
  const page_pin copied =
      cache.acquire({copy.high, copy.low}, copy_of_page<Group>(fs, g, fs.page(pin.frame)));
  if (copied.valid >= 0) return pin;
  if (g.is_leader()) mapped.add_relaxed(~std::uint64_t{0});
  cache.release(pin.frame);
  return copied;
}

// The frame with the copy of a page that is mapped for writing; -EINVAL if there is none. The
// mapping keeps it pinned. Called by one thread.
GPUFS_HD inline std::int32_t frame_of_copy(const mount_ref& fs, std::uint32_t frame_number) {
  const frame_table frames(fs);
  const pinned_slot copy = frames.index().find_and_pin(key_of_copy(frames.header(frame_number)));
  if (!copy.found) return -EINVAL;
  frames.unpin(copy.slot);
  return static_cast<std::int32_t>(copy.slot);
}

// Finds what was stored in bytes [begin, end) of a mapped page, and marks it as written.
// Collective.
template <class Group>
GPUFS_HD void mark_changes(const mount_ref& fs, const Group& g, const file_view& file,
                           std::uint32_t frame_number, std::uint32_t copy_frame,
                           std::uint64_t begin, std::uint64_t end) {
  const char* const page = fs.page(frame_number);
  const char* const copy = fs.page(copy_frame);
  order_mapped_stores(fs, g);
  bool any = false;
  for (std::uint64_t w = begin / 64 + g.rank(); begin < end && w <= (end - 1) / 64; w += g.size()) {
    const std::uint64_t bits =
        differing_bytes(page + w * 64, copy + w * 64) & page_dirt::bits(w, begin, end);
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

}  // namespace gpufs::detail
