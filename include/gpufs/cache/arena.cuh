// The arena: the one device allocation that holds a mount's cache, and the handle through which kernels use it.
// It refers to itself by offsets and indices only, so that it can be mapped at another address, or in another process.
#pragma once

#include "gpufs/base/statistics.cuh"
#include "gpufs/cache/hash_index.cuh"
#include "gpufs/cache/ring.cuh"
#include "gpufs/channel/client.cuh"

namespace gpufs {

struct frame {
  slot_header header;                // key: high = file version, low = page number
  atomic_word<std::uint32_t> valid;  // bytes of the page that the file has; the rest of the frame is zero
  std::uint32_t unused;
};
static_assert(sizeof(frame) == 32, "pin, key and length of a hit are one sector");

// What an open file is on the device. Its fields are written by the opener before the state becomes resident.
// Every call looks the descriptor up, often from all multiprocessors at once, so what it needs is two 16-byte pairs in
// one sector, each with the generation: two requests to the one L2 slice that holds the record.
// Generation: odd while the record is open; raised at open and at close, so that a stale descriptor matches nothing.
struct alignas(128) open_file {
  slot_header header;  // key: keyed 128-bit hash of path and flags
  // Generation (high half), opens not closed yet (low half). Beside the pins, because lookups pin for a moment too.
  atomic_word<std::uint64_t> tag_holders;
  atomic_word<std::uint64_t> version;
  atomic_word<std::uint64_t> tag_handle;  // generation (high half), the host's name for the file (low half)
  atomic_word<std::uint64_t> size;
  atomic_word<std::uint64_t> tag_mode;  // generation, st_mode
  atomic_word<std::int64_t> modified_ns;
  atomic_word<std::int64_t> changed_ns;
  atomic_word<std::uint64_t> inode;
  atomic_word<std::uint64_t> device;

  GPUFS_HD std::uint32_t generation() const { return static_cast<std::uint32_t>(tag_handle.load_relaxed() >> 32); }
  GPUFS_HD std::uint32_t handle() const { return static_cast<std::uint32_t>(tag_handle.load_relaxed()); }
};
static_assert(sizeof(open_file) == 128, "one line a file");

// A range of a file that the host has mapped and registered, so that groups pull from it by themselves.
// Filled once, under the latch of the table: phase 0 empty, 1 valid until no kernel runs.
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

struct arena_layout {
  // Sizes. Invariants: page_bytes == 1 << page_shift; bucket counts are powers of two.
  std::uint32_t page_shift;
  std::uint32_t frame_count;
  std::uint32_t ring_count;
  std::uint32_t processor_count;
  std::uint32_t file_count;
  std::uint32_t extent_slots;  // power of two; 0: no direct path
  std::uint32_t extent_shift;  // bytes of an extent == 1 << extent_shift
  std::uint32_t reserved;
  std::uint64_t bucket_count;
  std::uint64_t file_bucket_count;
  // Offsets from the arena's base.
  std::uint64_t buckets, frames, rings, file_buckets, files, file_ring, file_counters, extent_head, extents, slots,
      counters, pages;
  std::uint64_t total_bytes;

  GPUFS_HD std::uint64_t page_bytes() const { return std::uint64_t{1} << page_shift; }
};

// What a kernel gets, by value: everything that device calls need. Trivially copyable; valid while the mount lives.
struct mount_ref {
  char* arena;
  arena_layout layout;
  channel_view channel;
  channel_timeouts timeouts;
  std::uint64_t reclaim_timeout_ns;
  std::uint64_t path_key[2];
  template <class T>
  GPUFS_HD T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(arena + offset);
  }
  GPUFS_HD counter_set& counters() const {
    return at<counter_set>(layout.counters)[platform::processor() % layout.processor_count];
  }
  GPUFS_HD file_counter_set& file_counters(std::uint32_t record, std::uint32_t shard) const {
    return at<file_counter_set>(layout.file_counters)[std::uint64_t{shard} * layout.file_count + record];
  }
  GPUFS_HD file_counter_set& file_counters(std::uint32_t record) const {
    return file_counters(record, platform::processor() % file_counter_set::shards);
  }
  GPUFS_HD char* page(std::uint32_t frame_number) const {
    return arena + layout.pages + (std::uint64_t{frame_number} << layout.page_shift);
  }
  GPUFS_HD channel_client client() const { return {channel, at<slot_record>(layout.slots), timeouts, &counters()}; }
};

}  // namespace gpufs
