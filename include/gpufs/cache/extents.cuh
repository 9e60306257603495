// The extent table: where in registered host memory a part of a file lies. Device code fills it
// from the service's answers. The host clears it, while no kernel runs (mount::drop_extents()).
// Each major fault reads it without locks.
#pragma once

#include "gpufs/cache/arena.cuh"

namespace gpufs {

// Each call is made by one thread. find() does not wait.
class extent_table {
 public:
  GPUFS_HD explicit extent_table(const mount_ref& fs) : fs_(fs) {}

  // Returns the host address of the byte at `offset` of the file; 0 when [offset, offset + bytes)
  // is not directly readable.
  GPUFS_HD std::uint64_t find(std::uint64_t version, std::uint64_t offset,
                              std::uint64_t bytes) const {
    if (fs_.layout.extent_slots == 0) return 0;
    const std::uint64_t number = offset >> fs_.layout.extent_shift;
    const std::uint64_t within = offset - (number << fs_.layout.extent_shift);
    std::uint64_t i = hash(slot_key{version, number});
    for (std::uint32_t probes = 0; probes < fs_.layout.extent_slots; ++probes, ++i) {
      const extent_entry& e = entry(i);
      // Acquire: pairs with the release in insert(). Without it the other words could be from
      // before the entry was filled.
      if (e.phase.load_acquire() == 0) return 0;
      if (e.version.load_relaxed() != version || e.number.load_relaxed() != number) continue;
      return within + bytes <= e.bytes.load_relaxed() ? e.address.load_relaxed() + within : 0;
    }
    return 0;
  }

  // Adds the extent of a reply. Does nothing if the table has it already or is full. Waits only for
  // the latch, which guards the filling of entries and whose holder never waits.
  GPUFS_HD void insert(std::uint64_t version, std::uint64_t number, std::uint64_t address,
                       std::uint32_t bytes) {
    if (fs_.layout.extent_slots == 0) return;
    extent_table_head& head = *fs_.at<extent_table_head>(fs_.layout.extent_head);
    for (std::uint32_t attempt = 0;; ++attempt) {
      // Usually many groups get the same extent at once; all but one find it here.
      if (find(version, number << fs_.layout.extent_shift, 1) != 0) return;
      std::uint32_t open = 0;
      if (head.latch.load_relaxed() == 0 && head.latch.compare_exchange_acquire(open, 1)) break;
      platform::pause(attempt);
    }
    // Filled to half at most, so that a probe for an absent extent ends soon.
    bool placed = head.used.load_relaxed() >= fs_.layout.extent_slots / 2;
    std::uint64_t i = hash(slot_key{version, number});
    for (std::uint32_t probes = 0; probes < fs_.layout.extent_slots && !placed; ++probes, ++i) {
      extent_entry& e = entry(i);
      if (e.phase.load_relaxed() != 0) {
        placed = e.version.load_relaxed() == version && e.number.load_relaxed() == number;
        continue;
      }
      e.version.store_relaxed(version);
      e.number.store_relaxed(number);
      e.address.store_relaxed(address);
      e.bytes.store_relaxed(bytes);
      // Release: pairs with the acquire in find().
      e.phase.store_release(1);
      head.used.store_relaxed(head.used.load_relaxed() + 1);
      placed = true;
    }
    head.latch.store_release(0);
  }

 private:
  GPUFS_HD extent_entry& entry(std::uint64_t i) const {
    return fs_.at<extent_entry>(fs_.layout.extents)[i & (fs_.layout.extent_slots - 1)];
  }
  const mount_ref& fs_;
};

}  // namespace gpufs
