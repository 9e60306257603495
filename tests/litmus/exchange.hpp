// A kernel and a host thread exchange messages through the slots of a channel, as groups and
// workers do. In each slot, rounds follow one another. A test defines what each side does in a
// round:
//
//   struct some_test {
//     // Called by a warp. Returns false after waiting for too long.
//     GPUFS_HD bool device_round(const exchange_side&, const warp_group&, std::uint32_t slot,
//                                std::uint32_t round) const;
//     // Called by the host thread, repeatedly until it returns true: then the slot's next round
//     // begins.
//     bool host_round(exchange_host&, std::uint32_t slot, std::uint32_t round) const;
//   };
#pragma once

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/device.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "litmus/checks.cuh"
#include "support/device.hpp"

namespace gpufs::testing::litmus {

struct exchange_shape {
  std::uint32_t slots;
  std::uint32_t rounds;
  std::uint32_t bytes;  // of a message
};

// What the kernel uses.
struct exchange_side {
  exchange_shape shape;
  channel_view channel;
  char* memory;           // device memory: a message for each slot
  std::uint64_t mapping;  // memory that the host has registered: a message for each slot; or 0
  read_counts* counts;    // rounds, and wrong rounds

  GPUFS_HD char* message(std::uint32_t slot) const {
    return memory + std::uint64_t{slot} * shape.bytes;
  }
  GPUFS_HD std::uint64_t mapped_message(std::uint32_t slot) const {
    return mapping + std::uint64_t{slot} * shape.bytes;
  }

  static constexpr std::uint32_t looks_max = 1u << 20;
  // Waits until the host has answered the round, as channel_client::wait() does. Returns false
  // after waiting for too long.
  GPUFS_HD bool wait(const warp_group& g, std::uint32_t slot, std::uint32_t round) const {
    std::uint32_t there = 0;
    if (g.is_leader()) {
      auto& word = channel.reply(slot).word;
      for (std::uint32_t attempt = 0; attempt < looks_max && there == 0; ++attempt) {
        if (reply_sequence(word.load_for_wait()) == round) there = 1;
        else platform::pause(attempt);
      }
      word.end_wait();
    }
    return g.broadcast(there) != 0;
  }
  // Collective. Whether the message in device memory is that of the round.
  GPUFS_HD bool is_right(const warp_group& g, std::uint32_t slot, std::uint32_t round) const {
    const auto* const words = reinterpret_cast<const std::uint64_t*>(message(slot));
    bool right = true;
    for (std::uint32_t i = g.rank(); i < shape.bytes / 8; i += g.size())
      right = right && words[i] == known_word(slot, round, i);
    return g.all(right);
  }
};

// What the host thread uses.
struct exchange_host {
  exchange_shape shape;
  channel_view channel;
  gpufs::device& device;
  char* memory;                         // device memory
  gpufs::device::shared_memory buffer;  // for bulk copies: a message for each slot
  gpufs::device::shared_memory channel_memory;
  int file = -1;            // a message for each slot
  char* mapping = nullptr;  // of the file
  std::uint64_t wrong = 0;

  std::vector<std::uint64_t> message_of(std::uint32_t slot, std::uint32_t round) const {
    std::vector<std::uint64_t> words(shape.bytes / 8);
    for (std::uint32_t i = 0; i < words.size(); ++i) words[i] = known_word(slot, round, i);
    return words;
  }
  void answer(std::uint32_t slot, std::uint32_t round, std::int32_t result = 0) const {
    channel.reply(slot).word.store_release(make_reply_word(round, result));
  }
};

// One warp for each slot: the first warp of a block.
template <class Test>
struct exchange_kernel {
  Test test;
  exchange_side side;

  GPUFS_HD void operator()(const mount_ref&) const {
    const auto slot = static_cast<std::uint32_t>(block_group::grid_rank());
    const warp_group g = this_warp();
    for (std::uint32_t round = 1; round <= side.shape.rounds; ++round) {
      if (!test.device_round(side, g, slot, round)) return;
    }
  }
};

struct exchange_result {
  std::uint64_t rounds;
  std::uint64_t wrong;
};

class exchange {
 public:
  explicit exchange(const exchange_shape& shape)
      : shape_(shape), mount_(base_options()),
        device_(testing::device() == device_kind::cuda ? make_cuda_device(0) : make_cpu_device(1)),
        layout_(channel_layout::make(shape.slots + 1, shape.bytes)),  // one spare slot
        channel_(device_->allocate_shared(layout_.total_bytes)),
        memory_(mount_, std::size_t{shape.slots + 1} * shape.bytes) {}
  ~exchange() {
    forget_file();
    if (buffer_.host != nullptr) device_->free_buffers(buffer_, buffer_bytes());
    device_->free_shared(channel_, layout_.total_bytes);
  }
  exchange(const exchange&) = delete;
  exchange& operator=(const exchange&) = delete;

  gpufs::device& device() { return *device_; }
  void use_buffers() { buffer_ = device_->allocate_buffers(buffer_bytes()); }
  gpufs::device::shared_memory buffer() const { return buffer_; }
  char* memory() const { return memory_.data(); }
  char* spare_word() const {
    return reinterpret_cast<char*>(&view(channel_.device).reply(shape_.slots).word);
  }
  void synchronize() { mount_.synchronize(); }
  // Registers the mapping of a file. Returns false if the driver does not support it.
  bool use_file(int file, char* mapping) {
    if (!device_->register_range(mapping, std::uint64_t{shape_.slots} * shape_.bytes, mapped_at_))
      return false;
    mapping_ = mapping;
    if (mapped_at_ == 0) return false;
    file_ = file;
    return true;
  }
  // No kernel runs, so this does not wait.
  void forget_file() {
    if (mapping_ != nullptr) device_->unregister_range(mapping_);
    mapping_ = nullptr;
  }

  // Plays all rounds; fewer if a side waits for too long.
  template <class Test>
  exchange_result run(const Test& test) {
    const device_array<read_counts> counts(mount_, 1);
    exchange_host host{
        shape_, view(channel_.host), *device_, memory_.data(), buffer_, channel_, file_, mapping_};
    std::memset(channel_.host, 0, layout_.total_bytes);
    std::atomic<bool> over{false};
    std::thread server([&] {
      try {
        serve(test, host, over);
      } catch (const std::exception& e) {
        std::printf("litmus: the host's side: %s\n", e.what());
        ++host.wrong;
      }
    });
    try {
      launch(mount_, {shape_.slots, 32, 0, nullptr},
             exchange_kernel<Test>{
                 test, {shape_, view(channel_.device), memory_.data(), mapped_at_, counts.data()}});
      mount_.synchronize();
    } catch (...) {
      over = true;
      server.join();
      throw;
    }
    over = true;
    server.join();
    mount_.synchronize();  // waits for copies that the test did not wait for
    const read_counts got = counts.download()[0];
    return {got.reads.value, got.wrong.value + host.wrong};
  }

 private:
  channel_view view(char* base) const { return {base, layout_}; }
  std::uint64_t buffer_bytes() const { return std::uint64_t{shape_.slots + 1} * shape_.bytes; }

  template <class Test>
  static void serve(const Test& test, exchange_host& host, const std::atomic<bool>& over) {
    std::vector<std::uint32_t> round(host.shape.slots, 1);
    while (!over) {
      bool moved = false;
      for (std::uint32_t slot = 0; slot < host.shape.slots; ++slot) {
        if (round[slot] > host.shape.rounds || !test.host_round(host, slot, round[slot])) continue;
        ++round[slot];
        moved = true;
      }
      if (!moved) std::this_thread::yield();
    }
  }

  exchange_shape shape_;
  mount mount_;
  std::unique_ptr<gpufs::device> device_;
  channel_layout layout_;
  gpufs::device::shared_memory channel_;
  device_array<char> memory_;
  gpufs::device::shared_memory buffer_{nullptr, nullptr};
  int file_ = -1;
  char* mapping_ = nullptr;
  std::uint64_t mapped_at_ = 0;
};

inline void print_result(const char* name, const exchange_result& used,
                         const exchange_result& weak) {
  std::printf(
      "litmus: %s: %llu of %llu rounds wrong; weakened %llu of %llu\n", name,
      static_cast<unsigned long long>(used.wrong), static_cast<unsigned long long>(used.rounds),
      static_cast<unsigned long long>(weak.wrong), static_cast<unsigned long long>(weak.rounds));
}

}  // namespace gpufs::testing::litmus
