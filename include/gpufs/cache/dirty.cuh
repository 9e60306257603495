// Dirty pages: which bytes of a resident page were written here and are not in the file yet. Exactly those are written back, so
// that others may write other bytes of the same page (the diff-and-merge of GPUfs, ACM TOCS 32(1), section 3.1, for which a
// mask of what was written does, where bytes are written by calls; mappings are compared with a copy, file/write.cuh).
//
// A frame has flags (frame_dirt) and a mask with a bit for each byte. The flags:
//
//   dirty     bytes were written that the file does not have. While it is set the page has one pin more, the dirty pin: so a
//             dirty page is never evicted, and eviction knows nothing of dirt.
//   whole     ... all of them (the mask is not looked at); or
//   partial   ... those in the mask; or both
//   alone     a hint: it could not be written with its neighbours (cache/dirty_run.cuh)
//   cleaning  one group is writing them back; only that group clears it. No two at once: two writes of one byte could reach
//             the file in the wrong order.
//
// Above them are two counts: of cleanings, and of truncations that zeroed bytes of the page. A group that finds the flags as they
// were knows that there was neither meanwhile. (The cleanings' count carries into the other one: a cut too many is seen then.)
//
// A dirty page is written through whichever open file of its node the host likes, and one is open: who gives back the last of the
// descriptors that may write the file leaves no dirty page behind (leave_writers(), file/open_files.cuh).
//
//              writer                                     cleaner
//   pin the page                             pin the page; set `cleaning`, clear the others, in one step; the dirty pin is mine
//   store the bytes                          take the mask: exchange each word with 0
//   set their bits in the mask               read the bytes, have them written
//   set dirty, partial (take a dirty pin     clear `cleaning`, give back the dirty pin and my own
//     when dirty was clear); unpin             (failed: put bits and flags back first)
//
// Nothing is lost: a writer sets bits behind its stores, and the flags behind the bits; a cleaner clears the flags before it takes
// the bits, and takes them before it reads the bytes. All of these are read-modify-writes with both orders, but for two of a writer,
// which have to order only what comes before them: of its bits, and of its flags where the page was dirty before (set_again). So either the
// cleaner gets the bit, and then sees the byte; or the writer's bit comes after the exchange, and then its flag comes after
// the clearing, and the page is dirty again. It may be so for nothing: then the next cleaner finds an empty mask. A byte that is
// stored while it is being read may go to the file half new; its bit follows, and the whole of it goes once more.
//
// models/dirty.pml is a model of this, with its writers, write-backs, closes and truncations: all orders of the steps are tried.
#pragma once

#include "gpufs/base/copy.cuh"
#include "gpufs/cache/frame_table.cuh"

namespace gpufs::detail {

// In the version of a page's key. Pages of O_GWRONCE, which are never fetched and so are not whole, and copies of pages that are
// mapped for writing, are not what others look for.
inline constexpr std::uint64_t once_bit = std::uint64_t{1} << 62;
inline constexpr std::uint64_t copy_bit = std::uint64_t{1} << 61;
static_assert(versions_end <= copy_bit, "no version has these bits");

// Of the page in a frame that the caller has pinned. The frame's generation keeps the copies of a page that was evicted since from
// being taken for it.
GPUFS_HD inline slot_key key_of_copy(const slot_header& header) {
  const slot_key key = header.key();
  return {key.high | copy_bit, key.low | std::uint64_t{header.generation.load_relaxed()} << 40};
}

// Calls `change(copy)`, collectively, with the copy of a page that is mapped for writing, if it is; the
// caller has pinned the page. Waits only for another group that is making the copy, which ends.
template <class Group, class Change>
GPUFS_HD void change_copy(const mount_ref& fs, const Group& g, std::uint32_t frame_number, const Change& change) {
  const frame_table frames(fs);
  std::int32_t copy = -1;
  if (g.is_leader()) {
    const lookup_result r = frames.index().lookup(key_of_copy(frames.header(frame_number)));
    if (r.what == lookup_result::kind::resident) copy = static_cast<std::int32_t>(r.slot);
  }
  copy = g.broadcast(copy);
  if (copy < 0) return;
  change(fs.page(static_cast<std::uint32_t>(copy)));
  g.sync();
  if (g.is_leader()) frames.unpin(static_cast<std::uint32_t>(copy));
}

// Whether any page is mapped for writing. Both orders: a group that maps a page raises the count before
// it copies the page. So the caller either finds the count raised; or it came first, and then the copy
// has what the caller read of the page, or stored there, before. By one thread.
GPUFS_HD inline bool are_pages_mapped(const mount_ref& fs) {
  return fs.at<name_state>(fs.layout.names)->mapped.fetch_add_acq_rel(0) != 0;
}

// By one thread each; none waits.
class page_dirt {
 public:
  static constexpr std::uint32_t dirty = 1, cleaning = 2, whole = 4, partial = 8, alone = 16;
  static constexpr std::uint32_t stale =
      32;  // a group is about to evict it: it has bytes that nobody will write (abandon)
  static constexpr std::uint32_t all_flags = 63, one_cleaning = 1u << 6, one_cut = 1u << 18;

  GPUFS_HD page_dirt(const mount_ref& fs, std::uint32_t frame_number)
      : fs_(fs), frame_(frame_number), dirt_(fs.dirt(frame_number)) {}

  GPUFS_HD std::uint32_t flags() const { return dirt_.flags.load_acquire(); }
  GPUFS_HD std::uint32_t node() const { return dirt_.node.load_relaxed(); }

  // A truncation has zeroed bytes of the page. Release: a writer that sees it stores after the zeros.
  GPUFS_HD void note_cut() { (void)dirt_.flags.fetch_add_release(one_cut); }
  // Whether the page was not cut from one look at the flags to another; and whether besides no cleaner can have taken bits of its
  // mask in between.
  GPUFS_HD static bool is_uncut(std::uint32_t seen, std::uint32_t now) { return (seen ^ now) < one_cut; }
  GPUFS_HD static bool is_untaken(std::uint32_t seen, std::uint32_t now) {
    return ((seen ^ now) & ~all_flags) == 0 && (seen & cleaning) == 0;
  }

  // As set(), of a page that was dirty when its flags were `seen`, before the bytes were stored, and that nobody has taken for
  // cleaning since; false otherwise. A release only: the caller reads none of the page behind it.
  [[nodiscard]] GPUFS_HD bool set_again(std::uint32_t seen, std::uint32_t what) {
    return (seen & dirty) != 0 && dirt_.flags.compare_exchange_in_order(seen, seen | what);
  }

  // The caller, who has pinned the page, has stored bytes, and set their bits unless `what` is `whole`. True when the
  // page was clean.
  GPUFS_HD bool set(std::uint32_t node, std::uint32_t what) {
    dirt_.node.store_relaxed(node);  // the same for all who write the page's version
    const std::uint32_t wanted = dirty | what;
    bool has_pin = false;
    // A read-modify-write with both orders: a cleaner that clears the flags later finds the bits, which were set before. A load may
    // come before the bits.
    std::uint32_t seen = dirt_.flags.fetch_or_acq_rel(0);
    for (;;) {
      // Of a partial write the bits are what a cleaner takes, so flags that are set are enough. Of a whole write only the flags say it.
      if (what == partial && (seen & wanted) == wanted) break;
      // First the pin: the page must not be without one of the two.
      if ((seen & dirty) == 0 && !has_pin) {
        (void)header().state.pin();
        has_pin = true;
        count(node, 1);
      }
      const bool was_clean = (seen & dirty) == 0;
      if (!dirt_.flags.compare_exchange_acq_rel(seen, seen | wanted)) continue;
      if (was_clean) return true;
      break;
    }
    if (has_pin) drop_pin(node);
    return false;
  }

  // Whether it was not.
  [[nodiscard]] GPUFS_HD bool mark_stale() { return (dirt_.flags.fetch_or_acq_rel(stale) & stale) == 0; }
  GPUFS_HD void unmark_stale() { (void)dirt_.flags.fetch_and_acq_rel(~stale); }

  // Takes the page for writing back; the caller has pinned it. `what`: what is dirty of it. False when nothing is, or
  // another group is at it.
  [[nodiscard]] GPUFS_HD bool begin_cleaning(std::uint32_t& what) {
    std::uint32_t seen = flags();
    for (;;) {
      if ((seen & dirty) == 0 || (seen & cleaning) != 0) return false;
      GPUFS_SCHEDULE_POINT("dirt.begin");
      if (dirt_.flags.compare_exchange_acq_rel(seen, ((seen & ~all_flags) + one_cleaning) | cleaning)) break;
    }
    what = seen & all_flags;
    return true;
  }
  // It was written back.
  GPUFS_HD void end_cleaning(std::uint32_t node) {
    // First the count: who waits for the flag may then close the file, and its node may become another file's.
    drop_pin(node);
    GPUFS_SCHEDULE_POINT("dirt.end");
    (void)dirt_.flags.fetch_and_acq_rel(~cleaning);
  }
  // It was not; bits that were taken are set again.
  GPUFS_HD void fail_cleaning(std::uint32_t node, std::uint32_t what) {
    std::uint32_t seen = flags();
    for (;;) {
      // Who has written meanwhile has brought a pin.
      const std::uint32_t left = (seen & dirty) != 0 ? what & ~dirty : what;
      if (dirt_.flags.compare_exchange_acq_rel(seen, seen | left)) break;
    }
    if ((seen & dirty) != 0) drop_pin(node);
    (void)dirt_.flags.fetch_and_acq_rel(~cleaning);
  }

  // The bits of word `w` of [begin, end), bytes of the page.
  GPUFS_HD static std::uint64_t bits(std::uint64_t w, std::uint64_t begin, std::uint64_t end) {
    if (end <= w * 64) return 0;
    const std::uint64_t from = begin > w * 64 ? begin - w * 64 : 0;
    const std::uint64_t to = end < w * 64 + 64 ? end - w * 64 : 64;
    if (from >= to) return 0;
    return (~std::uint64_t{0} >> (64 - (to - from))) << from;
  }

 private:
  GPUFS_HD slot_header& header() const { return frame_table(fs_).header(frame_); }
  GPUFS_HD void drop_pin(std::uint32_t node) {
    (void)header().state.unpin();
    count(node, ~0u);
  }
  // Release: who finds no dirty pages left sees what their cleaners were told.
  GPUFS_HD void count(std::uint32_t node, std::uint32_t change) {
    (void)fs_.node(node).dirty.fetch_add_release(change);
    const std::uint32_t share = fs_.layout.frame_count / fs_.layout.ring_count;
    const std::uint32_t ring = frame_ / share;
    fs_.at<slot_ring>(fs_.layout.rings)[ring < fs_.layout.ring_count ? ring : fs_.layout.ring_count - 1]
        .dirty.add_relaxed(change);
  }

  const mount_ref& fs_;
  const std::uint32_t frame_;
  frame_dirt& dirt_;
};

// Sets the bits of bytes [begin, end) of a page, which the group has stored. Collective; the caller orders.
template <class Group>
GPUFS_HD void set_bits(const mount_ref& fs, const Group& g, std::uint32_t frame_number, std::uint64_t begin,
                       std::uint64_t end) {
  atomic_word<std::uint64_t>* const mask = fs.mask(frame_number);
  for (std::uint64_t w = begin / 64 + g.rank(); w <= (end - 1) / 64; w += g.size())
    mask[w].or_release(page_dirt::bits(w, begin, end));
}

// The group has stored bytes [begin, end) of a page that it has pinned: their bits, unless that is all of it. What is then to be
// said to page_dirt::set(), by the leader. Collective.
template <class Group>
GPUFS_HD std::uint32_t mark_bytes(const mount_ref& fs, const Group& g, std::uint32_t frame_number, std::uint64_t begin,
                                  std::uint64_t end) {
  g.sync();  // all members' stores come before each one's bits
  if (begin == 0 && end == fs.layout.page_bytes()) return page_dirt::whole;
  set_bits(fs, g, frame_number, begin, end);
  g.sync();
  return page_dirt::partial;
}

}  // namespace gpufs::detail
