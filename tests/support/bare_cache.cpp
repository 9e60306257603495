#include "support/bare_cache.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <map>

namespace gpufs::testing {
namespace {

std::uint64_t unmix(std::uint64_t x) {
  // Inverts the steps of mix() in reverse order. A shift by more than half of the bits is its own
  // inverse; a factor has its inverse modulo 2^64.
  x ^= x >> 33;
  x *= 0x9cb4b2f8129337dbull;
  x ^= x >> 33;
  x *= 0x4f74430c22a54005ull;
  return x ^ (x >> 33);
}

}  // namespace

slot_key key_with_hash(std::uint64_t wanted, std::uint64_t number) {
  const slot_key key{number, unmix(wanted) - (number + 1) * 0x9e3779b97f4a7c15ull};
  GPUFS_ASSERT(gpufs::hash(key) == wanted);
  return key;
}

bare_cache::bare_cache(const bare_cache_options& o) {
  arena_layout& l = ref_.layout;
  l.page_shift = o.page_shift;
  l.frame_count = o.frames;
  l.ring_count = o.rings;
  l.processor_count = o.processors;
  l.extent_slots = o.extent_slots;
  l.extent_shift = o.extent_shift;
  l.bucket_count = o.buckets;
  std::uint64_t at = 0;
  const auto place = [&at](std::uint64_t bytes) {
    const std::uint64_t here = at;
    at += (bytes + 127) / 128 * 128;
    return here;
  };
  l.buckets = place(sizeof(index_bucket) * o.buckets);
  l.frames = place(sizeof(frame) * std::uint64_t{o.frames});
  l.rings = place(sizeof(slot_ring) * std::uint64_t{o.rings});
  l.file_facts = place(sizeof(file_facts) * file_copies);
  l.file_counts = place(sizeof(file_counts) * file_copies);
  l.file_count = 1;
  l.extent_head = place(sizeof(extent_table_head));
  l.extents = place(sizeof(extent_entry) * std::uint64_t{o.extent_slots});
  l.counters = place(sizeof(counter_set) * std::uint64_t{o.processors});
  l.slots = place(sizeof(slot_record));
  l.pages = place(std::uint64_t{o.frames} << o.page_shift);
  l.total_bytes = at;
  memory_.resize(at / sizeof(index_bucket));
  ref_.channel.layout = channel_layout::make(1, 4096);
  channel_.resize(ref_.channel.layout.total_bytes / sizeof(index_bucket) + 1);
  ref_.channel.base = reinterpret_cast<char*>(channel_.data());
  ref_.channel.announce(service_phase::running);
  ref_.arena = reinterpret_cast<char*>(memory_.data());
  ref_.reclaim_timeout_ns = o.reclaim_timeout_ns;
  ref_.timeouts.request_ns = o.request_timeout_ns;
  auto* const all = ref_.at<slot_ring>(l.rings);
  for (std::uint32_t r = 0; r < o.rings; ++r) {
    all[r].first = o.frames / o.rings * r;
    all[r].count = r + 1 == o.rings ? o.frames - all[r].first : o.frames / o.rings;
  }
  heart_ = std::jthread([channel = ref_.channel](const std::stop_token& stop) {
    for (std::uint32_t count = 1; !stop.stop_requested(); ++count) {
      channel.beat(count);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
}

std::uint64_t bare_cache::count(counter c) const {
  std::uint64_t n = 0;
  for (std::uint32_t p = 0; p < ref_.layout.processor_count; ++p) {
    n += ref_.at<counter_set>(ref_.layout.counters)[p]
             .values[static_cast<std::uint32_t>(c)]
             .load_relaxed();
  }
  return n;
}

void bare_cache::expect_at_rest() const {
  const std::uint64_t bucket_count = ref_.layout.bucket_count;
  std::map<std::uint32_t, std::uint32_t> entries_of_slot;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> resident_of_key;
  std::vector<std::uint32_t> passed(bucket_count, 0);
  for (std::uint64_t b = 0; b < bucket_count; ++b) {
    EXPECT_EQ(bucket(b).latch.load_relaxed(), 0u) << "bucket " << b << " is latched";
    for (const auto& cell : bucket(b).entries) {
      const std::uint64_t entry = cell.load_relaxed();
      if (entry == 0) continue;
      const std::uint32_t slot = static_cast<std::uint32_t>(entry) - 1;
      ASSERT_LT(slot, ref_.layout.frame_count) << "entry of bucket " << b << " leads nowhere";
      ++entries_of_slot[slot];
      const slot_key key = frames().header(slot).key();
      const std::uint64_t h = hash(key);
      EXPECT_EQ(entry >> 32, h >> 32) << "tag of slot " << slot;
      for (std::uint64_t p = h & (bucket_count - 1); p != b; p = (p + 1) & (bucket_count - 1))
        ++passed[p];
    }
  }
  for (std::uint64_t b = 0; b < bucket_count; ++b) {
    EXPECT_EQ(bucket(b).passed.load_relaxed(), passed[b]) << "passed counter of bucket " << b;
  }
  for (std::uint32_t slot = 0; slot < ref_.layout.frame_count; ++slot) {
    const slot_header& header = frames().header(slot);
    const std::uint32_t word = header.state.peek();
    EXPECT_EQ(slot_state::pins(word), 0u) << "slot " << slot << " is pinned";
    const slot_phase phase = slot_state::phase(word);
    EXPECT_TRUE(phase == slot_phase::free || phase == slot_phase::resident)
        << "slot " << slot << " has an owner";
    EXPECT_EQ(entries_of_slot[slot], phase == slot_phase::resident ? 1u : 0u)
        << "entries of slot " << slot;
    if (phase != slot_phase::resident) continue;
    const slot_key key = header.key();
    const std::uint32_t of_key = ++resident_of_key[std::pair{key.high, key.low}];
    EXPECT_EQ(of_key, 1u) << "slots of the key of slot " << slot;
    const pinned_slot found = index().find_and_pin(key);
    EXPECT_TRUE(found.found && found.slot == slot) << "slot " << slot << " cannot be found";
    if (found.found) frames().unpin(found.slot);
  }
}

}  // namespace gpufs::testing
