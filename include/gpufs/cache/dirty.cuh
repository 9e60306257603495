// Dirty pages: which bytes of a resident page were written here and are not in the file yet. Only
// those bytes are written back, so other processes may write other bytes of the same page. (This is
// the diff-and-merge of GPUfs, ACM TOCS 32(1), section 3.1. Where calls write the bytes, a mask of
// written bytes replaces the diff; mapped pages are compared with a twin, file/mapped_writes.cuh.)
//
// A frame has flags (frame_dirt) and a mask with one bit per byte. The flags:
//
//  * dirty: bytes were written that the file does not have. While it is set, the page has one pin
//    more, the dirty pin. So a dirty page is never evicted, and eviction needs no check for dirty
//    pages.
//  * whole: all bytes are dirty; the mask is not read.
//  * partial: the bytes in the mask are dirty. Both `whole` and `partial` may be set.
//  * alone: a hint: a write of this page with its neighbours failed (cache/dirty_run.cuh).
//  * cleaning: one group writes the page back; only that group clears it. Two groups must not clean
//    one page together: two writes of one byte could reach the file in the wrong order.
//  * stale: a group is about to evict the page; its bytes will not be written
//    (write_back::evict_unwritten).
//
// Above the flags are two counts: of cleanings, and of truncations that zeroed bytes of the page. A
// thread that finds the word unchanged knows that there was neither in between. The count of
// cleanings carries into the count of truncations. So a check (is_uncut) may report a truncation
// that did not happen; the write is then repeated.
//
// A dirty page may be written through any open file of its inode state, and at least one is open:
// the last writer flushes or drops all dirty pages before it closes (leave_writers(),
// file/close_file.cuh).
//
//              writer                                     cleaner
//   pin the page                           pin the page; in one step, set `cleaning` and clear the
//                                            other flags; this takes over the dirty pin
//   store the bytes                        take the mask: exchange each word with 0
//   set their bits in the mask             read the bytes, send them to the host, wait
//   take a dirty pin if dirty is clear     drop the dirty pin, clear `cleaning`, drop the own pin
//   set dirty, partial; unpin                (failed: first put bits and flags back)
//
// Invariant: no written byte is lost. A writer sets bits after its stores, and flags after the
// bits. A cleaner clears the flags before it takes the bits, and takes the bits before it reads the
// bytes. These steps are read-modify-writes with both orders, except two of the writer's that only
// release: setting bits (set_bits), and setting flags of a page that was dirty before (set_again).
// There are two cases:
//
//  1. The cleaner gets the bit, and then sees the byte.
//  2. The writer's bit comes after the cleaner's exchange. Then the writer's flag comes after the
//     cleaner's clearing, and the page is dirty again.
//
// A page may be dirty without bits; the next cleaner then finds an empty mask. A byte that is
// stored while a cleaner reads it may reach the file half new; its bit is set afterwards, and the
// whole byte is written once more.
//
// models/dirty.pml models this, with writers, write-backs, closes and truncations, in all orders of
// steps.
#pragma once

#include "gpufs/base/copy.cuh"
#include "gpufs/cache/frame_table.cuh"

namespace gpufs::detail {

// Bits in the version of a page's key. They hide two kinds of pages from other lookups: pages of
// O_GWRONCE, which are never fetched and so are incomplete, and twins of pages mapped for writing.
inline constexpr std::uint64_t once_bit = std::uint64_t{1} << 62;
inline constexpr std::uint64_t twin_bit = std::uint64_t{1} << 61;
static_assert(versions_end <= twin_bit, "no version has these bits");

// Key of the twin of the page in a frame that the caller has pinned. It contains the frame's
// generation, so a twin of an earlier page of the frame does not match.
GPUFS_HD inline slot_key key_of_twin(const slot_header& header) {
  const slot_key key = header.key();
  return {key.high | twin_bit, key.low | std::uint64_t{header.generation.load_relaxed()} << 40};
}

// If the page is mapped for writing, all members call `change(twin)` with its twin. The caller has
// pinned the page. Collective. Waits only while another group makes the twin, which ends.
template <class Group, class Change>
GPUFS_HD void change_twin(const mount_ref& fs, const Group& g, std::uint32_t frame_number,
                          const Change& change) {
  const frame_table frames(fs);
  std::int32_t twin = -1;
  if (g.is_leader()) {
    const lookup_result r = frames.index().lookup(key_of_twin(frames.header(frame_number)));
    if (r.what == lookup_result::kind::resident) twin = static_cast<std::int32_t>(r.slot);
  }
  twin = g.broadcast(twin);
  if (twin < 0) return;
  GPUFS_SCHEDULE_POINT("twin.change");
  change(fs.page(static_cast<std::uint32_t>(twin)));
  g.sync();
  if (g.is_leader()) frames.unpin(static_cast<std::uint32_t>(twin));
}

// What name_state::mapped says. Acquire and release: a group that maps a page changes the word
// before it copies the page. So either the caller sees the change, or the caller came first, and
// the twin contains all that the caller read or stored before. Called by one thread.
GPUFS_HD inline std::uint64_t pages_mapped(const mount_ref& fs) {
  return fs.at<name_state>(fs.layout.names)->mapped.fetch_add_acq_rel(0);
}
GPUFS_HD inline bool are_pages_mapped(const mount_ref& fs) {
  return static_cast<std::uint32_t>(pages_mapped(fs)) != 0;
}
// Whether a page was mapped at some time between two values of pages_mapped().
GPUFS_HD inline bool were_pages_mapped(std::uint64_t before, std::uint64_t after) {
  return static_cast<std::uint32_t>(before) != 0 || before >> 32 != after >> 32;
}

// Orders the stores of a group against those of another group that does the same: both change one
// word. If the group's change comes later, it sees what the other group stored before; else the
// other group sees what this group stored. So of a group that has stored in a mapped page and then
// loads the page's twin, and a cleaner that has stored in the twin and then loads the page, at
// least one sees the store of the other. Collective.
template <class Group>
GPUFS_HD void order_mapped_stores(const mount_ref& fs, const Group& g) {
  g.sync();
  if (g.is_leader()) (void)pages_mapped(fs);
  g.sync();
}

// Returns which of 64 bytes differ, a bit for each. Called by one thread.
GPUFS_HD inline std::uint64_t differing_bytes(const char* a, const char* b) {
  std::uint64_t of_a[8], of_b[8];
  copy_out_of_page(this_thread(), reinterpret_cast<char*>(of_a), a, 64);
  copy_out_of_page(this_thread(), reinterpret_cast<char*>(of_b), b, 64);
  std::uint64_t bits = 0;
  for (std::uint32_t i = 0; i < 64; ++i) {
    if (((of_a[i / 8] ^ of_b[i / 8]) >> i % 8 * 8 & 0xff) != 0) bits |= std::uint64_t{1} << i;
  }
  return bits;
}

// The flags of one frame. Each call is made by one thread; none waits.
class page_dirt {
 public:
  static constexpr std::uint32_t dirty = 1, cleaning = 2, whole = 4, partial = 8, alone = 16;
  // A group is about to evict the page; its bytes will not be written
  // (write_back::evict_unwritten).
  static constexpr std::uint32_t stale = 32;
  static constexpr std::uint32_t all_flags = 63, one_cleaning = 1u << 6, one_cut = 1u << 18;

  GPUFS_HD page_dirt(const mount_ref& fs, std::uint32_t frame_number)
      : fs_(fs), frame_(frame_number), dirt_(fs.dirt(frame_number)) {}

  GPUFS_HD std::uint32_t flags() const { return dirt_.flags.load_acquire(); }
  GPUFS_HD std::uint32_t node() const { return dirt_.node.load_relaxed(); }

  // A truncation has zeroed bytes of the page. Release: a thread that sees the new count stores
  // after the zeros.
  GPUFS_HD void note_cut() { (void)dirt_.flags.fetch_add_release(one_cut); }
  // Whether no truncation has cut the page between two looks at its flags.
  GPUFS_HD static bool is_uncut(std::uint32_t seen, std::uint32_t now) {
    return (seen ^ now) < one_cut;
  }
  // Whether, besides, no cleaner can have taken bits of its mask in between.
  GPUFS_HD static bool is_untaken(std::uint32_t seen, std::uint32_t now) {
    return ((seen ^ now) & ~all_flags) == 0 && (seen & cleaning) == 0;
  }

  // As set(), for a page whose flags were `seen` before the caller stored the bytes. Returns false
  // if it was not dirty then, or if a group has begun to clean it since. Release only: the caller
  // reads no byte of the page afterwards.
  [[nodiscard]] GPUFS_HD bool set_again(std::uint32_t seen, std::uint32_t what) {
    return (seen & dirty) != 0 && dirt_.flags.compare_exchange_in_order(seen, seen | what);
  }

  // Marks a page dirty. The caller has pinned it, has stored the bytes, and has set their bits
  // unless `what` is `whole`. Returns true when the page was clean.
  GPUFS_HD bool set(std::uint32_t node, std::uint32_t what) {
    // The same for all writers of the page's version.
    dirt_.node.store_relaxed(node);
    const std::uint32_t wanted = dirty | what;
    bool has_pin = false;
    // Acquire and release, by a read-modify-write: a cleaner that clears the flags later finds the
    // bits, which the caller has set. A plain load could take place before the bits.
    std::uint32_t seen = dirt_.flags.fetch_or_acq_rel(0);
    for (;;) {
      // For a partial write the mask bits publish the bytes to the cleaner, so flags that are set
      // already are enough. For a whole write only this exchange publishes them.
      if (what == partial && (seen & wanted) == wanted) break;
      // The pin comes before the flag: a dirty page must always have its dirty pin.
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

  // Sets `stale`. Returns whether it was clear.
  [[nodiscard]] GPUFS_HD bool mark_stale() {
    return (dirt_.flags.fetch_or_acq_rel(stale) & stale) == 0;
  }
  GPUFS_HD void unmark_stale() { (void)dirt_.flags.fetch_and_acq_rel(~stale); }

  // Takes the page for cleaning; the caller has pinned it. `what`: its dirty flags. Returns false
  // when the page is clean or another group is cleaning it.
  [[nodiscard]] GPUFS_HD bool begin_cleaning(std::uint32_t& what) {
    std::uint32_t seen = flags();
    for (;;) {
      if ((seen & dirty) == 0 || (seen & cleaning) != 0) return false;
      GPUFS_SCHEDULE_POINT("dirt.begin");
      if (dirt_.flags.compare_exchange_acq_rel(seen,
                                               ((seen & ~all_flags) + one_cleaning) | cleaning))
        break;
    }
    what = seen & all_flags;
    return true;
  }
  // Ends a cleaning that succeeded.
  GPUFS_HD void end_cleaning(std::uint32_t node) {
    // The count changes first: a thread that waits for the flag may then close the file, and its
    // inode state may become another file's.
    drop_pin(node);
    GPUFS_SCHEDULE_POINT("dirt.end");
    (void)dirt_.flags.fetch_and_acq_rel(~cleaning);
  }
  // Ends a cleaning that failed. The caller has set the taken bits again.
  GPUFS_HD void fail_cleaning(std::uint32_t node, std::uint32_t what) {
    std::uint32_t seen = flags();
    for (;;) {
      // If a writer made the page dirty meanwhile, it has taken a dirty pin of its own.
      const std::uint32_t left = (seen & dirty) != 0 ? what & ~dirty : what;
      if (dirt_.flags.compare_exchange_acq_rel(seen, seen | left)) break;
    }
    if ((seen & dirty) != 0) drop_pin(node);
    (void)dirt_.flags.fetch_and_acq_rel(~cleaning);
  }

  // The bits of mask word `w` for bytes [begin, end) of the page.
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
  // Release: pairs with the acquire of a thread that finds no dirty page left. That thread sees the
  // results of all cleanings.
  GPUFS_HD void count(std::uint32_t node, std::uint32_t change) {
    (void)fs_.node(node).dirty.fetch_add_release(change);
    const std::uint32_t share = fs_.layout.frame_count / fs_.layout.ring_count;
    const std::uint32_t ring = frame_ / share;
    fs_.at<slot_ring>(
           fs_.layout.rings)[ring < fs_.layout.ring_count ? ring : fs_.layout.ring_count - 1]
        .dirty.add_relaxed(change);
  }

  const mount_ref& fs_;
  const std::uint32_t frame_;
  frame_dirt& dirt_;
};

// Sets the mask bits of bytes [begin, end) of a page. The group has stored the bytes, and orders
// its stores before this call. Collective.
template <class Group>
GPUFS_HD void set_bits(const mount_ref& fs, const Group& g, std::uint32_t frame_number,
                       std::uint64_t begin, std::uint64_t end) {
  atomic_word<std::uint64_t>* const mask = fs.mask(frame_number);
  for (std::uint64_t w = begin / 64 + g.rank(); w <= (end - 1) / 64; w += g.size())
    mask[w].or_release(page_dirt::bits(w, begin, end));
}

// Sets the mask bits of bytes [begin, end), which the group has stored into a page that it has
// pinned; sets none if that is the whole page. Returns the flag for the leader's call of
// page_dirt::set(). Collective.
template <class Group>
GPUFS_HD std::uint32_t mark_bytes(const mount_ref& fs, const Group& g, std::uint32_t frame_number,
                                  std::uint64_t begin, std::uint64_t end) {
  // All members' stores come before any member's bits.
  g.sync();
  if (begin == 0 && end == fs.layout.page_bytes()) return page_dirt::whole;
  set_bits(fs, g, frame_number, begin, end);
  g.sync();
  return page_dirt::partial;
}

}  // namespace gpufs::detail
