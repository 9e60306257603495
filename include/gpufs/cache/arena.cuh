// The arena: the one device allocation that holds a mount's cache, and the handle through which
// kernels use it. The arena refers to itself by offsets and indices only, so it can be mapped at
// another address, or in another process.
#pragma once

#include "gpufs/base/statistics.cuh"
#include "gpufs/cache/hash_index.cuh"
#include "gpufs/cache/ring.cuh"
#include "gpufs/channel/client.cuh"

namespace gpufs {

struct frame {
  // Key: high = file version, low = page number.
  slot_header header;
};

// The dirty state of a resident page (cache/dirty.cuh). Next to it is a mask with one bit per byte.
struct frame_dirt {
  atomic_word<std::uint32_t> flags;
  // Inode state of its file. Of a frame that holds the twin of a mapped page: the mappings that use
  // the twin.
  atomic_word<std::uint32_t> node;
};

// Inode state: what all open files of one version share, from the first open for writing until the
// last close. The host assigns it to the version. A version that has one is never opened without
// it.
struct alignas(128) inode_state {
  // 0: never used.
  atomic_word<std::uint64_t> version;
  // The file's size, including what was written so far.
  atomic_word<std::uint64_t> size;
  // The host's file has no bytes past this.
  atomic_word<std::uint64_t> stored;
  // Pages that are dirty or being written back.
  atomic_word<std::uint32_t> dirty;
  // Error of a write-back that no call has reported; 0: none.
  atomic_word<std::int32_t> error;
  // `timed_out` counts writes and truncations that timed out after the host had begun them. They
  // may still take effect, over later writes. So nothing is written, truncated or synced until all
  // of them are answered. `settled`: the value of `timed_out` when no unanswered request was left.
  // Invariant: settled <= timed_out, except after a wrap.
  atomic_word<std::uint32_t> timed_out;
  atomic_word<std::uint32_t> settled;
  // An error after which written bytes may be missing from the file or its disk; 0: none. Every
  // gfsync and gclose returns it, up to the last gclose.
  atomic_word<std::int32_t> failed;
  // Counts begins and ends of truncations; odd while one is under way. Then no page is written
  // back, and calls that write wait (file/write_bytes.cuh). `shrunk` is set once a truncation has
  // cut the file: registered extents may then contain pages that the file no longer has.
  atomic_word<std::uint32_t> cuts;
  static constexpr std::uint32_t shrunk = 1u << 31;
  // The launch that last emptied the file for O_TRUNC; 0: none. Only the thread that stored
  // `being_emptied` changes it from that value.
  atomic_word<std::uint64_t> emptied_by;
  static constexpr std::uint64_t being_emptied = ~std::uint64_t{0};
  // Descriptors that may write the file. `closing` is set while the last one is being closed
  // (file/close_file.cuh).
  atomic_word<std::uint32_t> writers;
  static constexpr std::uint32_t closing = 1u << 31;
  // Calls under way that rely on the file's size: appends, and the marking of stores in mappings.
  // `resizing` is set while a truncation waits for them or is under way; then no other such call
  // begins (file/size_use.cuh). Never reset, because a call may outlive its descriptor.
  atomic_word<std::uint32_t> size_users;
  static constexpr std::uint32_t resizing = 1u << 31;

  // 1 once a group may have written at other places than the end of the file (file/size_use.cuh).
  atomic_word<std::uint32_t> other_writes;
  // 1: a descriptor that may fetch pages of the file has been opened, that is, one without
  // O_GWRONCE; 0: none. Then the cache holds only pages of O_GWRONCE of this version.
  atomic_word<std::uint32_t> may_fetch;

  // The -errno of bytes that a last gclose discarded; 0: none. Kept until the host gets it: with
  // the close of a file that writes the version, or at the end of the mount. If the close must wait
  // for a channel slot, or is not answered in time, open_file::unclosed_discarded keeps it.
  atomic_word<std::int32_t> discarded;

  // In `version` while the inode state is being initialized.
  static constexpr std::uint64_t being_made = ~std::uint64_t{0};
};
static_assert(sizeof(inode_state) == 128, "one line: writers of different files share none");

// State of a mount that writes.
struct alignas(128) name_state {
  // Raised when this mount may have made a path refer to another file.
  atomic_word<std::uint64_t> epoch;
  // Opens with a key of their own so far: with O_EXCL, or open_unshared.
  atomic_word<std::uint64_t> exclusive;
  // Mappings for writing, of all files: how many there are (low half), and how many were made (high
  // half).
  atomic_word<std::uint64_t> mapped;
  static constexpr std::uint64_t one_mapping = (std::uint64_t{1} << 32) + 1;
  // Number of handles in open_file::unclosed of which no close is posted.
  atomic_word<std::uint32_t> unclosed;
  // How many errors were stored in open_file::unclosed_discarded so far.
  atomic_word<std::uint32_t> unclosed_losses;
};

// An open file on the device consists of this record, which opens and closes change, and of copies
// of file_facts and file_counts. The generation is odd while the record is open. It rises at open
// and at close, so a stale descriptor matches nothing.
struct alignas(128) open_file {
  // Key: keyed 128-bit hash of path and flags.
  slot_header header;
  // Generation (times 2^32) plus opens that are not closed yet. Separate from the pins, because
  // lookups pin for a moment too. While a surplus close undoes its step, the count is below the
  // number of holders, or below 0.
  atomic_word<std::uint64_t> tag_holders;
  atomic_word<std::uint64_t> handle;  // The host's name for the file.
  atomic_word<std::int64_t> modified_ns;
  atomic_word<std::int64_t> changed_ns;
  atomic_word<std::uint64_t> inode;
  atomic_word<std::uint64_t> device;
  // A file that the host has open for no group, because there was no channel slot for the close, or
  // no answer to it; 0: none. It does not belong to this record: any record with a free place keeps
  // it. name_state::unclosed counts those of which no close is posted.
  atomic_word<std::uint64_t> unclosed;
  // In `unclosed` while a thread stores what belongs to the handle. No handle has this value: the
  // low bits of a handle, its place, are never all 0.
  static constexpr std::uint64_t being_kept = std::uint64_t{1} << 63;
  // What its close reports to the host (inode_state::discarded). 0: nothing was discarded. Below 0:
  // -errno, and the close is not posted yet. Above 0: errno, and the close is posted, but was not
  // answered in time; the handle stays here for the end of the mount, which reports the loss.
  atomic_word<std::int32_t> unclosed_discarded;

  struct held {
    std::uint32_t generation;
    std::int32_t holders;
  };
  GPUFS_HD static held holders_in(std::uint64_t word) {
    const auto holders = static_cast<std::int32_t>(static_cast<std::uint32_t>(word));
    return {static_cast<std::uint32_t>((word - static_cast<std::uint64_t>(std::int64_t{holders})) >>
                                       32),
            holders};
  }

  GPUFS_HD std::uint32_t generation() const {
    return holders_in(tag_holders.load_relaxed()).generation;
  }
};
static_assert(sizeof(open_file) == 128, "one line a file");

// Every call with a descriptor reads file_facts and adds to file_counts. All multiprocessors may
// use one file, and one line of memory is in one slice of the second-level cache, which a billion
// requests a second saturate. So there are several copies of both, and each multiprocessor uses its
// own. Facts and counts are in different lines (docs/decisions/cache.md).
inline constexpr std::uint32_t file_copies = 8;

// What an open file allows; stored together with its st_mode.
enum access_bits : std::uint32_t {
  access_read = 1u << 16,
  access_write = 1u << 17,
  access_append = 1u << 18,
  access_once = 1u << 19  // O_GWRONCE: the file's pages are never fetched.
};

// The same in all copies; written while the record is closed. Two words have a tag next to them:
// the generation's low bits (load_tagged()). The host's name for the file is in the bits that the
// tags leave free. So a lookup reads one sector, as it would without the name.
//
//   tag_handle   63 ... 44 | 43 ....................... 0
//                tag       | handle, low bits
//   tag_mode     63 ... 44 | 43 ............. 24 | 23 .. 0
//                tag       | handle, high bits   | st_mode and access_bits
struct alignas(32) file_facts {
  atomic_word<std::uint64_t> version;
  atomic_word<std::uint64_t> tag_handle;
  // The file's size; with size_in_node, the number of its inode state.
  atomic_word<std::uint64_t> size;
  atomic_word<std::uint64_t> tag_mode;

  static constexpr std::uint64_t size_in_node = std::uint64_t{1} << 63;

  static constexpr std::uint32_t tag_bits = 20, mode_bits = 24;
  // Bits of the handle next to the first tag.
  static constexpr std::uint32_t low_bits = 64 - tag_bits;
  GPUFS_HD static constexpr std::uint32_t tag_of(std::uint32_t generation) {
    return generation & ((1u << tag_bits) - 1);
  }
  GPUFS_HD void set_tags(std::uint32_t generation, std::uint64_t handle, std::uint32_t mode) {
    const std::uint64_t tag = std::uint64_t{tag_of(generation)} << low_bits;
    store_tagged(tag_handle, tag | (handle & low_mask));
    store_tagged(tag_mode, tag | handle >> low_bits << mode_bits | mode);
  }
  GPUFS_HD static std::uint32_t tag_in(std::uint64_t tagged) {
    return static_cast<std::uint32_t>(tagged >> low_bits);
  }
  GPUFS_HD static std::uint64_t handle_in(std::uint64_t tag_handle, std::uint64_t tag_mode) {
    return (tag_handle & low_mask) | tag_mode >> mode_bits << low_bits;
  }
  GPUFS_HD static std::uint32_t mode_in(std::uint64_t tag_mode) {
    return static_cast<std::uint32_t>(tag_mode) & ((1u << mode_bits) - 1);
  }

 private:
  static constexpr std::uint64_t low_mask = (std::uint64_t{1} << low_bits) - 1;
};
static_assert(sizeof(file_facts) == 32, "one sector");
static_assert(file_facts::tag_bits >= limits::generation_bits,
              "a tag tells apart what a descriptor does");
static_assert(file_facts::low_bits + file_facts::tag_bits == 64 &&
                  2 * file_facts::tag_bits + file_facts::mode_bits == 64,
              "both pairs hold a tag, and together the handle");
static_assert(2 * access_once <= 1u << file_facts::mode_bits, "st_mode and access_bits fit");

// Counts since the open. A reader sums them over the copies.
struct alignas(32) file_counts {
  // Pages found in the cache, whether waited for or not.
  atomic_word<std::uint64_t> hits;
  // Pages loaded, by any path.
  atomic_word<std::uint64_t> page_loads;
  // Pages of these that were pulled, or copied by the engine, from a registered extent.
  atomic_word<std::uint64_t> direct_loads;
  atomic_word<std::uint64_t> loaded_bytes;
};

// A range of a file that the host has mapped and registered, so that groups pull from it without
// the host. Filled once, under the table's latch. Phase 0: empty; 1: valid until no kernel runs.
struct extent_entry {
  atomic_word<std::uint64_t> version;
  atomic_word<std::uint64_t> number;
  atomic_word<std::uint64_t> address;
  atomic_word<std::uint32_t> phase;
  atomic_word<std::uint32_t> bytes;
};
static_assert(sizeof(extent_entry) == 32, "one sector a probe");

struct extent_table_head {
  atomic_word<std::uint32_t> latch;
  atomic_word<std::uint32_t> used;
};

// Parameters of the bulk path (file/bulk.cuh), in pages. Fixed at mount.
struct bulk_layout {
  // Longest run; 0: no bulk path. A power of two.
  std::uint32_t most;
  // Longest run that is only a guess. A power of two.
  std::uint32_t chunk;
  // Shorter runs are loaded page by page.
  std::uint32_t least;
  // How many chunks runs may be ahead of their reader.
  std::uint32_t ahead;
  // One page in `step` may begin a run that is only a guess. A power of two.
  std::uint32_t step;
  // Limit for the frames of all runs under way.
  std::uint32_t frames_max;
  // Limit for the runs under way.
  std::uint32_t runs_max;
};
// A run whose group stopped waiting for the answer. The copy engine may still fill its frames, so
// no group may use them until the answer has come. The next group that begins a run then frees
// them.
struct unanswered_run {
  enum class use : std::uint32_t { empty = 0, changing = 1, kept = 2 };
  atomic_word<std::uint32_t> used;  // A value of `use`.
  // Slot and number of the request. Accessed only by the thread that set `used` to changing.
  atomic_word<std::uint32_t> channel_slot, sequence;
  atomic_word<std::uint32_t> frame, count;  // The frames.

  // Returns false when another thread was first. Called by one thread.
  [[nodiscard]] GPUFS_HD bool take(use from) {
    std::uint32_t expected = static_cast<std::uint32_t>(from);
    // Acquire: pairs with the release in give(). The fields read next belong to this state.
    return used.load_relaxed() == expected &&
           used.compare_exchange_acquire(expected, static_cast<std::uint32_t>(use::changing));
  }
  // Release: pairs with the acquire in take().
  GPUFS_HD void give(use to) { used.store_release(static_cast<std::uint32_t>(to)); }
};
// More than the default number of copiers; each copier can be in the driver with one request. When
// the table is full, the frames of further runs are lost until the mount ends.
inline constexpr std::uint32_t unanswered_runs_max = 32;

struct alignas(128) bulk_state {
  atomic_word<std::uint32_t> frames;     // Frames of all runs under way.
  atomic_word<std::uint32_t> runs;       // Runs under way.
  atomic_word<std::uint32_t> next_ring;  // Free-running.
  // Load of the bus by pulls, from a few sampled pulls. Hints: concurrent updates may get lost.
  // Recent average time to pull a page. Sampled while no run is under way, because a run slows
  // pulls.
  atomic_word<std::uint32_t> pull_ns;
  // Bytes per microsecond.
  atomic_word<std::uint32_t> pull_rate;
  // Sampled pulls; free-running.
  atomic_word<std::uint32_t> noted;
  // When the rate was last computed.
  atomic_word<std::uint64_t> window_ns;
  // When the host last refused a run; 0: never.
  atomic_word<std::uint64_t> refused_ns;
  // A hint: how many of the entries are kept.
  atomic_word<std::uint32_t> unanswered_count;
  unanswered_run unanswered[unanswered_runs_max];

  // Notes a pull that lasted from `began_ns` to `now_ns`, and that stands for `bytes` bytes. Called
  // by one thread.
  GPUFS_HD void note_pull(std::uint64_t began_ns, std::uint64_t now_ns, std::uint64_t bytes) {
    if (runs.load_relaxed() == 0) {
      const std::uint64_t ns = platform::duration_ns(began_ns, now_ns);
      const std::uint32_t before = pull_ns.load_relaxed();
      pull_ns.store_relaxed(before - before / 8 +
                            static_cast<std::uint32_t>(ns < 100'000'000 ? ns : 100'000'000) / 8);
    }
    constexpr std::uint32_t window = 32;
    if ((noted.fetch_add_relaxed(1) + 1) % window != 0) return;
    const std::uint64_t before = window_ns.load_relaxed();
    if (now_ns <= before) return;
    pull_rate.store_relaxed(
        static_cast<std::uint32_t>(window * bytes / ((now_ns - before) / 1000 + 1)));
    window_ns.store_relaxed(now_ns);
  }
  // Whether the host refused a run lately, because it cannot copy at present. A run would then only
  // take frames from other groups, and cost a round trip to the host. A clock that steps back ends
  // the pause.
  GPUFS_HD bool pauses(std::uint64_t now_ns) const {
    return now_ns - refused_ns.load_relaxed() < pause_ns;
  }
  static constexpr std::uint64_t pause_ns = 20'000'000;
  // A rate older than one second is not used.
  GPUFS_HD std::uint32_t rate_at(std::uint64_t now_ns) const {
    return now_ns > window_ns.load_relaxed() + 1'000'000'000 ? 0 : pull_rate.load_relaxed();
  }
};

struct arena_layout {
  // Sizes. Invariants: page_bytes == 1 << page_shift; bucket counts are powers of two.
  std::uint32_t page_shift;
  std::uint32_t frame_count;
  std::uint32_t ring_count;
  std::uint32_t processor_count;
  std::uint32_t file_count;
  std::uint32_t extent_slots;  // A power of two; 0: no direct path.
  std::uint32_t extent_shift;  // Bytes of an extent == 1 << extent_shift.
  std::uint32_t node_count;    // 0: the mount does not write.
  bulk_layout bulk;
  std::uint64_t bucket_count;
  std::uint64_t file_bucket_count;
  // Offsets from the arena's base.
  std::uint64_t buckets, frames, rings, file_buckets, files, file_ring, file_facts, file_counts,
      extent_head, extents, slots, counters, bulk_shared, nodes, names, dirt, masks, pages;
  std::uint64_t total_bytes;

  GPUFS_HD std::uint64_t page_bytes() const { return std::uint64_t{1} << page_shift; }
};

// The handle that kernels get by value, or by pointer (mount::device_ref): all that device calls
// need. Trivially copyable; valid while the mount lives.
struct mount_ref {
  char* arena;
  arena_layout layout;
  channel_view channel;
  channel_timeouts timeouts;
  std::uint64_t reclaim_timeout_ns;
  std::uint64_t path_key[2];
  std::uint64_t launch;  // Different in each handle from mount::ref().
  template <class T>
  GPUFS_HD T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(platform::assume_global(arena + offset));
  }
  GPUFS_HD counter_set& counters() const {
    return at<counter_set>(layout.counters)[platform::part_of_processor(layout.processor_count)];
  }
  GPUFS_HD file_facts& facts_of(std::uint32_t record, std::uint32_t copy) const {
    return at<file_facts>(layout.file_facts)[std::uint64_t{copy} * layout.file_count + record];
  }
  GPUFS_HD file_counts& counts_of(std::uint32_t record, std::uint32_t copy) const {
    return at<file_counts>(layout.file_counts)[std::uint64_t{copy} * layout.file_count + record];
  }
  GPUFS_HD file_facts& facts_of(std::uint32_t record) const {
    return facts_of(record, platform::processor() % file_copies);
  }
  GPUFS_HD file_counts& counts_of(std::uint32_t record) const {
    return counts_of(record, platform::processor() % file_copies);
  }
  GPUFS_HD char* page(std::uint32_t frame_number) const {
    return platform::assume_global(arena + layout.pages +
                                   (std::uint64_t{frame_number} << layout.page_shift));
  }
  GPUFS_HD bool writes() const { return layout.node_count != 0; }
  GPUFS_HD inode_state& node(std::uint32_t number) const {
    return at<inode_state>(layout.nodes)[number];
  }
  GPUFS_HD frame_dirt& dirt(std::uint32_t frame_number) const {
    return at<frame_dirt>(layout.dirt)[frame_number];
  }
  // One bit per byte of a page, as in a write request.
  GPUFS_HD atomic_word<std::uint64_t>* mask(std::uint32_t frame_number) const {
    return at<atomic_word<std::uint64_t>>(layout.masks) +
           std::uint64_t{frame_number} * mask_words(layout.page_bytes());
  }
  GPUFS_HD channel_client client() const {
    return {channel, at<slot_record>(layout.slots), timeouts, &counters()};
  }
};

}  // namespace gpufs
