// One block's counts by word, in its scratch memory, and the messages that carry them to the host.
//
// The counts are a small hash table for the current item. It is emptied into a message at the end
// of the item, or when it is half full. The host adds up the counts, so the memory does not depend
// on the dictionary's size.
#pragma once

#include "gpufs/gpufs.cuh"
#include "report.hpp"

namespace gpufs::grep {

inline constexpr std::uint32_t tally_slots_bits = 12;
inline constexpr std::uint32_t tally_slots = 1u << tally_slots_bits;
inline constexpr std::uint32_t tally_probes = 64;
// A message that waits for more items is sent after this time, so that the host sees progress.
inline constexpr std::uint64_t message_delay_ns = 50'000'000;

struct tally_memory {
  atomic_word<std::uint32_t> keys[tally_slots];  // word + 1; 0: free
  atomic_word<std::uint32_t> counts[tally_slots];
  atomic_word<std::uint32_t> used;    // keys that are not 0
  atomic_word<std::uint32_t> packed;  // word_counts in the section that is being packed
  atomic_word<std::uint32_t> error;   // errno of a failed single send
};

// Members of the group have equal copies.
class tally {
 public:
  // `message` has room for `message_bytes`, the size of one message.
  GPUFS_HD tally(const block_group& g, const mount_ref& fs, tally_memory& memory, char* message,
                 std::uint32_t message_bytes, std::int32_t sink)
      : g_(g), fs_(fs), memory_(memory), message_(message), message_bytes_(message_bytes),
        sink_(sink) {
    for (std::uint32_t slot = g_.rank(); slot < tally_slots; slot += g_.size()) clear(slot);
    if (g_.is_leader()) {
      memory_.used.store_relaxed(0);
      memory_.error.store_relaxed(0);
    }
    last_sent_ns_ = platform::now_ns();
    g_.sync();
  }

  // Sets the item for the next counts. The counts of the previous item must be flushed.
  GPUFS_HD void begin(std::uint32_t item) { item_ = item; }

  // Called by one thread. Relaxed throughout: a barrier of the block is between all additions and
  // the flush.
  GPUFS_HD void add(std::uint32_t word, std::uint32_t count) {
    const std::uint32_t key = word + 1;
    std::uint32_t slot = (key * 0x9e37'79b1u) >> (32 - tally_slots_bits);
    for (std::uint32_t probe = 0; probe < tally_probes; ++probe, slot = (slot + 1) % tally_slots) {
      std::uint32_t seen = memory_.keys[slot].load_relaxed();
      if (seen == 0 && memory_.keys[slot].compare_exchange_relaxed(seen, key)) {
        memory_.used.fetch_add_relaxed(1);
        seen = key;
      }
      if (seen == key) {
        memory_.counts[slot].fetch_add_relaxed(count);
        return;
      }
    }
    // the window has too many different words for the table: slow, but correct
    send_one(word, count);
  }

  // Collective: all members call the functions below.

  // Empties the table if it is half full. `window_number` limits the value of a count.
  GPUFS_HD void make_room(std::uint32_t window_number) {
    g_.sync();
    // 2^18 windows of less than 2^14 bytes: 32 bits are enough for a count.
    if (memory_.used.load_relaxed() > tally_slots / 2 || window_number % (1u << 18) == 0)
      flush({item_, 0, section_kind::counts, 0, 0, 0});
  }

  // Ends the item. Its last section is sent when the message is full or overdue.
  GPUFS_HD void end_item(std::int32_t error, std::uint64_t bytes, std::uint64_t offset) {
    g_.sync();
    flush({item_, 0, section_kind::done, error, bytes, offset});
    const bool overdue = platform::now_ns() - last_sent_ns_ > message_delay_ns;
    if (g_.broadcast(overdue ? 1u : 0u) != 0) send();
  }

  GPUFS_HD void send() {
    if (filled_ == 0) return;
    const std::int64_t sent = gsend(g_, fs_, sink_, message_, filled_);
    if (sent < 0) error_ = static_cast<std::int32_t>(sent);
    filled_ = 0;
    last_sent_ns_ = platform::now_ns();
  }

  // Returns 0, or the -errno of a message that did not reach the host. In that case the block's
  // results are useless.
  GPUFS_HD std::int32_t error() const {
    if (error_ != 0) return error_;
    return -static_cast<std::int32_t>(g_.broadcast(memory_.error.load_relaxed()));
  }

 private:
  GPUFS_HD void clear(std::uint32_t slot) {
    memory_.keys[slot].store_relaxed(0);
    memory_.counts[slot].store_relaxed(0);
  }

  // Moves all counts into sections. The last one is `last`. A barrier came before, so `used` does
  // not change.
  GPUFS_HD void flush(section last) {
    const std::uint32_t used = memory_.used.load_relaxed();
    const auto room =
        static_cast<std::uint32_t>((message_bytes_ - sizeof(section)) / sizeof(word_count));
    // Flushes one part of the table at a time. A part is so small that its counts always fit into a
    // message.
    const std::uint32_t slots = used <= room ? tally_slots : room;
    for (std::uint32_t first = 0; first < tally_slots; first += slots) {
      const std::uint32_t end = first + slots < tally_slots ? first + slots : tally_slots;
      const std::uint64_t most =
          sizeof(section) + std::uint64_t{used < slots ? used : slots} * sizeof(word_count);
      if (filled_ + most > message_bytes_) send();
      auto* header = reinterpret_cast<section*>(message_ + filled_);
      const std::uint32_t count =
          used == 0 ? 0 : pack(first, end, reinterpret_cast<word_count*>(header + 1));
      if (g_.is_leader()) {
        *header = end == tally_slots ? last : section{last.item, 0, section_kind::counts, 0, 0, 0};
        header->count = count;
      }
      filled_ += static_cast<std::uint32_t>(sizeof(section) + count * sizeof(word_count));
    }
    g_.sync();  // all members have read `used`
    if (g_.is_leader()) memory_.used.store_relaxed(0);
    g_.sync();
  }

  // Moves the counts of some slots to `to`. Returns their number.
  GPUFS_HD std::uint32_t pack(std::uint32_t first, std::uint32_t end, word_count* to) {
    if (g_.is_leader()) memory_.packed.store_relaxed(0);
    g_.sync();
    for (std::uint32_t slot = first + g_.rank(); slot < end; slot += g_.size()) {
      const std::uint32_t key = memory_.keys[slot].load_relaxed();
      if (key == 0) continue;
      to[memory_.packed.fetch_add_relaxed(1)] = {key - 1, memory_.counts[slot].load_relaxed()};
      clear(slot);
    }
    g_.sync();
    const std::uint32_t count = memory_.packed.load_relaxed();
    g_.sync();  // all members have read it before it is reused
    return count;
  }

  GPUFS_HD void send_one(std::uint32_t word, std::uint32_t count) {
    struct {
      section header;
      word_count counted;
    } message{{item_, 1, section_kind::counts, 0, 0, 0}, {word, count}};
    const std::int64_t sent = gsend(this_thread(), fs_, sink_, &message, sizeof(message));
    if (sent < 0) memory_.error.store_relaxed(static_cast<std::uint32_t>(-sent));
  }

  const block_group& g_;
  const mount_ref& fs_;
  tally_memory& memory_;
  char* message_;
  std::uint32_t message_bytes_;
  std::int32_t sink_;
  std::uint32_t item_ = 0;
  std::uint32_t filled_ = 0;  // bytes of the message
  std::int32_t error_ = 0;
  std::uint64_t last_sent_ns_ = 0;
};

}  // namespace gpufs::grep
