// The arena: the one device allocation that holds a mount's cache, and the handle through which
// kernels use it. It refers to itself by offsets and indices only, so that it can be mapped at
// another address, or in another process.
#pragma once

#include "gpufs/base/statistics.cuh"
#include "gpufs/cache/hash_index.cuh"
#include "gpufs/cache/ring.cuh"
#include "gpufs/channel/client.cuh"

namespace gpufs {

struct frame {
  slot_header header;  // key: high = file version, low = page number
};

// What of a resident page its file does not have yet (cache/dirty.cuh); beside it a mask with a bit
// for each byte.
struct frame_dirt {
  atomic_word<std::uint32_t> flags;
  atomic_word<std::uint32_t> node;  // of its file
};

// What all open files that stand for one version share, from when it is first opened for writing
// until its last close. The host gives versions their nodes, and a version that has one is never
// opened without.
struct alignas(128) inode_state {
  atomic_word<std::uint64_t> version;  // 0: never used
  atomic_word<std::uint64_t> size;     // of the file as written so far
  atomic_word<std::uint64_t> stored;   // the host's file has nothing behind this
  atomic_word<std::uint32_t> dirty;    // pages that are dirty, or being written back
  atomic_word<std::int32_t> error;     // of a write-back that nobody has been told of; 0: none
  // Writes and truncations that got no answer in time, though the host had begun them: they may
  // still take place, on top of what is written after them. So nothing is written, cut or synced
  // until all of them were answered: `settled` is how many were when no unanswered one was left.
  // Invariant: settled <= lost, but for wraps.
  atomic_word<std::uint32_t> lost;
  atomic_word<std::uint32_t> settled;
  // An error after which bytes that were written may not be in the file, or not on its disk: every
  // gfsync and gclose returns it, up to the last gclose. 0: none.
  atomic_word<std::int32_t> failed;
  // Truncations begun and ended; odd while one is under way. Then nothing is written back, and
  // calls that write wait (file/write.cuh). With `shrunk` when one has cut the file: what is
  // registered of it may be pages that it has no more.
  atomic_word<std::uint32_t> cuts;
  static constexpr std::uint32_t shrunk = 1u << 31;
  // The launch that emptied it last, as O_TRUNC asks; 0: none. Who changes it from `being_emptied`
  // had set that.
  atomic_word<std::uint64_t> emptied_by;
  static constexpr std::uint64_t being_emptied = ~std::uint64_t{0};
  // Descriptors that may write it; with `closing` while the last one is being given back
  // (file/open_files.cuh).
  atomic_word<std::uint32_t> writers;
  static constexpr std::uint32_t closing = 1u << 31;
  // How often the last one of these was given back: `failed`, and what the host remembers of syncs
  // that failed, is of those opened since.
  atomic_word<std::uint32_t> closings;
  // Calls under way that rely on the file's size: appends, and the marking of stores in mappings.
  // With `resizing` while a truncation waits for them or is under way: then no other such call
  // begins (file/write.cuh). Never reset, because a call may outlive its descriptor.
  atomic_word<std::uint32_t> size_users;
  static constexpr std::uint32_t resizing = 1u << 31;

  // The -errno of bytes that a last gclose gave up; 0: none. Until the host has heard of it, by the
  // close of a file that writes the version, or at the end of the mount.
  atomic_word<std::int32_t> given_up;

  // A version's name while its node is being made.
  static constexpr std::uint64_t being_made = ~std::uint64_t{0};
};
static_assert(sizeof(inode_state) == 128, "one line: writers of different files share none");

// Of a mount that writes.
struct alignas(128) name_state {
  atomic_word<std::uint64_t>
      epoch;  // raised when a path may have come to stand for another file, by this mount
  atomic_word<std::uint64_t> exclusive;  // opens that are to create their file so far
  atomic_word<std::uint32_t> mapped;     // mappings for writing, of all files
  atomic_word<std::uint32_t> unclosed;   // kept in open_file::unclosed
};

// What an open file is on the device: the record, which opens and closes change, and its shards.
// Generation: odd while the record is open; raised at open and at close, so that a stale descriptor
// matches nothing.
struct alignas(128) open_file {
  slot_header header;  // key: keyed 128-bit hash of path and flags
  // Generation (times 2^32) plus opens not closed yet. Beside the pins, because lookups pin for a
  // moment too. Less than the holders, also below 0, while a close too many takes its step back.
  atomic_word<std::uint64_t> tag_holders;
  atomic_word<std::uint64_t> handle;  // the host's name for the file
  atomic_word<std::int64_t> modified_ns;
  atomic_word<std::int64_t> changed_ns;
  atomic_word<std::uint64_t> inode;
  atomic_word<std::uint64_t> device;
  // A file that the host has open for no group, because there was no slot of the channel to say so;
  // 0: none. Not of this record: any one that has none keeps it. Each is counted in
  // name_state::unclosed.
  atomic_word<std::uint64_t> unclosed;

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

// What every call with a descriptor reads, and what it counts. All multiprocessors may use one
// file, and one line of memory lies in one slice of the second-level cache, which a billion
// requests a second keep busy; so there are several copies of both, and a multiprocessor uses its
// own. They lie in lines of their own: with the counts beside it a quarter of the time of all hits
// was a wait for that line (benchmarks/results/c93bcbd/profile.txt), presumably because each half
// of an H100's second-level cache keeps a copy of what it reads of the other until somebody writes
// there.
inline constexpr std::uint32_t file_copies = 8;

// What an open file allows; beside its st_mode.
enum access_bits : std::uint32_t {
  access_read = 1u << 16,
  access_write = 1u << 17,
  access_append = 1u << 18,
  access_once = 1u << 19  // O_GWRONCE: its pages are never fetched
};

// The same in all copies; written while the record is closed. Two words, each beside a tag that has
// the generation's low bits (load_tagged()). The host's name for the file lies in what the tags
// leave: so a lookup reads one sector, as it would without the name.
//
//   tag_handle   63 ... 44 | 43 ....................... 0
//                tag       | handle, low bits
//   tag_mode     63 ... 44 | 43 ............. 24 | 23 .. 0
//                tag       | handle, high bits   | st_mode and access_bits
struct alignas(32) file_facts {
  atomic_word<std::uint64_t> version;
  atomic_word<std::uint64_t> tag_handle;
  atomic_word<std::uint64_t> size;  // or, with size_in_node, the file's node
  atomic_word<std::uint64_t> tag_mode;

  static constexpr std::uint64_t size_in_node = std::uint64_t{1} << 63;

  static constexpr std::uint32_t tag_bits = 20, mode_bits = 24;
  static constexpr std::uint32_t low_bits = 64 - tag_bits;  // of the handle, beside the first tag
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

// Since the open; to be summed over the copies.
struct alignas(32) file_counts {
  atomic_word<std::uint64_t> hits;        // pages found in the cache, waited for or not
  atomic_word<std::uint64_t> page_loads;  // pages brought in, by whatever path
  atomic_word<std::uint64_t>
      direct_loads;  // of these: pulled, or copied by the engine, from a registered extent
  atomic_word<std::uint64_t> loaded_bytes;
};

// A range of a file that the host has mapped and registered, so that groups pull from it by
// themselves. Filled once, under the latch of the table: phase 0 empty, 1 valid until no kernel
// runs.
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

// How the bulk path (file/bulk.cuh) cuts its runs, in pages. Fixed at mount.
struct bulk_layout {
  std::uint32_t most;   // power of two: what a run loads at most; 0: no bulk path
  std::uint32_t chunk;  // power of two: ... when it is only guessed that it is wanted
  std::uint32_t least;  // shorter runs are loaded page by page
  std::uint32_t ahead;  // chunks that runs may be ahead of their reader
  std::uint32_t step;   // power of two: one page in so many may begin a run that is only guessed
  std::uint32_t frames_max;  // of all runs under way
  std::uint32_t runs_max;    // under way at once
};
// A run whose group stopped waiting for the answer. The copy engine may still fill its frames, so
// they belong to nobody until the answer is there; then the next group that begins a run frees
// them.
struct unanswered_run {
  enum class use : std::uint32_t { empty = 0, changing = 1, kept = 2 };
  atomic_word<std::uint32_t> used;  // use
  // Of the request. Written and read by the thread that made `used` changing.
  atomic_word<std::uint32_t> slot, sequence;
  atomic_word<std::uint32_t> frame, count;  // the frames

  // By one thread. False: another thread was faster.
  [[nodiscard]] GPUFS_HD bool take(use from) {
    std::uint32_t expected = static_cast<std::uint32_t>(from);
    // Acquire: pairs with give(); the fields read afterwards are those of this state.
    return used.load_relaxed() == expected &&
           used.compare_exchange_acquire(expected, static_cast<std::uint32_t>(use::changing));
  }
  // Release: pairs with take().
  GPUFS_HD void give(use to) { used.store_release(static_cast<std::uint32_t>(to)); }
};
// More than there are copiers by default, each of which can be in the driver with one request.
// Frames of runs for which there is no room are lost until the mount ends.
inline constexpr std::uint32_t unanswered_runs_max = 32;

struct alignas(128) bulk_state {
  atomic_word<std::uint32_t> frames;     // of all runs under way
  atomic_word<std::uint32_t> runs;       // under way
  atomic_word<std::uint32_t> next_ring;  // free-running
  // What pulling does to the bus, as far as a few noted pulls tell. Hints: groups that note at the
  // same time lose some.
  atomic_word<std::uint32_t>
      pull_ns;  // that a page took lately on average, while no run was under way: a run slows it
  atomic_word<std::uint32_t> pull_rate;         // bytes in a microsecond
  atomic_word<std::uint32_t> noted;             // pulls, free-running
  atomic_word<std::uint64_t> window_ns;         // when the rate was last taken
  atomic_word<std::uint64_t> refused_ns;        // when the host last refused a run; 0: never
  atomic_word<std::uint32_t> unanswered_count;  // a hint: how many of these are kept
  unanswered_run unanswered[unanswered_runs_max];

  // A pull took from `began_ns` until `now_ns`, and stands for so many bytes. By one thread.
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
  // Whether the host refused a run lately, because it cannot copy at present: runs would only take
  // frames from others, and a trip to the host each. A clock that steps back ends the pause.
  GPUFS_HD bool pauses(std::uint64_t now_ns) const {
    return now_ns - refused_ns.load_relaxed() < pause_ns;
  }
  static constexpr std::uint64_t pause_ns = 20'000'000;
  // What was true a second ago says nothing.
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
  std::uint32_t extent_slots;  // power of two; 0: no direct path
  std::uint32_t extent_shift;  // bytes of an extent == 1 << extent_shift
  std::uint32_t node_count;    // 0: the mount does not write
  bulk_layout bulk;
  std::uint64_t bucket_count;
  std::uint64_t file_bucket_count;
  // Offsets from the arena's base.
  std::uint64_t buckets, frames, rings, file_buckets, files, file_ring, file_facts, file_counts,
      extent_head, extents, slots, counters, bulk_shared, nodes, names, dirt, masks, pages;
  std::uint64_t total_bytes;

  GPUFS_HD std::uint64_t page_bytes() const { return std::uint64_t{1} << page_shift; }
};

// What a kernel gets, by value (or a pointer to it: mount::device_ref): everything that device
// calls need. Trivially copyable; valid while the mount lives.
struct mount_ref {
  char* arena;
  arena_layout layout;
  channel_view channel;
  channel_timeouts timeouts;
  std::uint64_t reclaim_timeout_ns;
  std::uint64_t path_key[2];
  std::uint64_t launch;  // different in each handle that mount::ref() gave
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
  // A bit for each byte of a page, as in a request to write.
  GPUFS_HD atomic_word<std::uint64_t>* mask(std::uint32_t frame_number) const {
    return at<atomic_word<std::uint64_t>>(layout.masks) +
           std::uint64_t{frame_number} * mask_words(layout.page_bytes());
  }
  GPUFS_HD channel_client client() const {
    return {channel, at<slot_record>(layout.slots), timeouts, &counters()};
  }
};

}  // namespace gpufs
