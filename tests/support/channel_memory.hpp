// A channel without a mount, in host memory: the memory that a mount allocates for it.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <vector>

#include "gpufs/channel/client.cuh"
#include "gpufs/error.hpp"

namespace gpufs::testing {

class channel_memory {
 public:
  channel_memory(std::uint32_t slots, std::uint32_t staging_bytes, std::uint32_t write_bytes = 0)
      : layout_(channel_layout::make(slots, staging_bytes, write_bytes)), records_(slots) {
    void* p = mmap(nullptr, layout_.total_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw error(errno, "channel_memory");
    base_ = static_cast<char*>(p);
  }
  ~channel_memory() { munmap(base_, layout_.total_bytes); }
  channel_memory(const channel_memory&) = delete;
  channel_memory& operator=(const channel_memory&) = delete;

  channel_view view() const { return {base_, layout_}; }
  slot_record& record(std::uint32_t slot) { return records_[slot]; }
  counter_set& counters() { return counters_; }
  // For use by one thread.
  channel_client client(const channel_timeouts& timeouts) {
    return {view(), records_.data(), timeouts, &counters_};
  }

 private:
  channel_layout layout_;
  char* base_ = nullptr;
  std::vector<slot_record> records_;
  counter_set counters_{};
};

}  // namespace gpufs::testing
