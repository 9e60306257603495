// The CPU device, with registrations that fail on command.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "device/device.hpp"

namespace gpufs::testing {

class fault_device final : public gpufs::device {
 public:
  // The next registrations that succeed without an address for the device.
  std::atomic<unsigned> without_address{0};
  // The ranges that are registered now.
  unsigned registered() const { return registered_; }

  bool register_range(char* host, std::uint64_t bytes, std::uint64_t& device_address) override {
    if (!cpu_->register_range(host, bytes, device_address)) return false;
    ++registered_;
    if (without_address != 0) {
      --without_address;
      device_address = 0;
    }
    return true;
  }
  void unregister_range(char* host) noexcept override {
    --registered_;
    cpu_->unregister_range(host);
  }

  std::string name() const override { return cpu_->name(); }
  unsigned multiprocessors() const override { return cpu_->multiprocessors(); }
  std::uint64_t free_bytes() const override { return cpu_->free_bytes(); }
  char* allocate_arena(std::uint64_t bytes) override { return cpu_->allocate_arena(bytes); }
  void free_arena() noexcept override { cpu_->free_arena(); }
  shared_memory allocate_shared(std::uint64_t bytes) override {
    return cpu_->allocate_shared(bytes);
  }
  void free_shared(const shared_memory& memory, std::uint64_t bytes) noexcept override {
    cpu_->free_shared(memory, bytes);
  }
  shared_memory allocate_buffers(std::uint64_t bytes) override {
    return cpu_->allocate_buffers(bytes);
  }
  void free_buffers(const shared_memory& memory, std::uint64_t bytes) noexcept override {
    cpu_->free_buffers(memory, bytes);
  }
  std::string direct_obstacle() const override { return cpu_->direct_obstacle(); }
  bool unregistering_waits() const override { return cpu_->unregistering_waits(); }
  std::string bulk_obstacle() const override { return cpu_->bulk_obstacle(); }
  std::uint64_t bulk_bytes_min() const override { return cpu_->bulk_bytes_min(); }
  std::int64_t bulk_copy(unsigned lane, char* to, std::uint64_t from, std::uint64_t bytes,
                         char* told, std::uint64_t word) override {
    return cpu_->bulk_copy(lane, to, from, bytes, told, word);
  }
  bulk_limits limits_of_bulk() const override { return cpu_->limits_of_bulk(); }
  bool bulk_copies_exclude() const override { return cpu_->bulk_copies_exclude(); }
  void* allocate(std::size_t bytes) override { return cpu_->allocate(bytes); }
  void free(void* memory) noexcept override { cpu_->free(memory); }
  void copy_to_device(void* to, const void* from, std::size_t bytes) override {
    cpu_->copy_to_device(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override {
    cpu_->copy_to_host(to, from, bytes);
  }
  void snapshot(std::uint64_t* to, const std::uint64_t* from, std::size_t words) override {
    cpu_->snapshot(to, from, words);
  }
  void synchronize() override { cpu_->synchronize(); }
  bool wait_idle(std::uint64_t timeout_ns) noexcept override { return cpu_->wait_idle(timeout_ns); }
  int make_current() const override { return cpu_->make_current(); }
  void restore(int previous) const noexcept override { cpu_->restore(previous); }

 private:
  const std::unique_ptr<gpufs::device> cpu_ = make_cpu_device(1);
  std::atomic<unsigned> registered_{0};
};

}  // namespace gpufs::testing
