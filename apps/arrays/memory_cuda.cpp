#include <cuda_runtime.h>
#include <unistd.h>

#include <atomic>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include "arrays/memory.hpp"

namespace gpufs::arrays {
namespace {

void check(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  // Clears the error, so that no other caller gets it.
  (void)cudaGetLastError();
  if (status == cudaErrorMemoryAllocation) throw error(ENOMEM, what);
  throw error(EIO, what + ": " + cudaGetErrorString(status));
}

// Makes a GPU the thread's current device.
class on_device {
 public:
  explicit on_device(int ordinal) {
    (void)cudaGetDevice(&previous_);
    if (previous_ != ordinal) check(cudaSetDevice(ordinal), "cudaSetDevice");
    changed_ = previous_ != ordinal;
  }
  ~on_device() {
    if (changed_) (void)cudaSetDevice(previous_);
  }
  on_device(const on_device&) = delete;
  on_device& operator=(const on_device&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

class cuda_event final : public device_memory::event {
 public:
  explicit cuda_event(int ordinal) : ordinal_(ordinal) {
    const on_device here(ordinal_);
    // Waits by sleeping: a thread that waits for a kernel that reads a disk should not use a core.
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
          "cudaEventCreate");
  }
  ~cuda_event() override { (void)cudaEventDestroy(event_); }
  cuda_event(const cuda_event&) = delete;
  cuda_event& operator=(const cuda_event&) = delete;
  void record(void* stream) override {
    const on_device here(ordinal_);
    check(cudaEventRecord(event_, static_cast<cudaStream_t>(stream)), "cudaEventRecord");
  }
  void wait() override {
    // Work that is nearly done is not worth a sleep.
    const std::uint64_t start = platform::now_ns();
    do {
      const cudaError_t now = cudaEventQuery(event_);
      if (now != cudaErrorNotReady) return check(now, "waiting for the GPU");
      (void)cudaGetLastError();  // not an error; the next launch must not find it
    } while (platform::now_ns() - start < polled_ns);
    check(cudaEventSynchronize(event_), "waiting for the GPU");
  }
  bool is_done() noexcept override {
    const cudaError_t now = cudaEventQuery(event_);
    if (now != cudaSuccess) (void)cudaGetLastError();
    return now == cudaSuccess;
  }
  void hold_back(void* stream) override {
    const on_device here(ordinal_);
    check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event_, 0), "cudaStreamWaitEvent");
  }

 private:
  static constexpr std::uint64_t polled_ns = 30'000;
  const int ordinal_;
  cudaEvent_t event_ = nullptr;
};

// While a kernel runs that waits for the host, threads of the process may wait for it inside the
// driver only at an event. Other calls that wait, such as a copy to pageable memory after it or the
// freeing of pinned memory, keep the service out of the driver, and the kernel may be waiting for
// the service's copies. So before a copy to the host this class waits at an event; copies have a
// stream without kernels; and pinned memory is kept until the end.
//
// Memory comes from a separate pool, which keeps some of what was freed: new memory from the driver
// costs more than small reads.
class cuda_memory final : public device_memory {
 public:
  explicit cuda_memory(int ordinal) : ordinal_(ordinal) {
    const on_device here(ordinal_);
    cudaMemPoolProps wanted{};
    wanted.allocType = cudaMemAllocationTypePinned;
    wanted.location = {cudaMemLocationTypeDevice, ordinal_};
    check(cudaStreamCreateWithFlags(&copy_stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    for (cudaStream_t& stream : ask_streams_)
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    for (cudaStream_t& stream : background_streams_)
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaMemPoolCreate(&pool_, &wanted), "cudaMemPoolCreate");
    std::uint64_t kept = kept_bytes;
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &kept),
          "cudaMemPoolSetAttribute");
  }
  ~cuda_memory() override {
    if (getpid() != owner_) return;  // in a forked process, which has no GPU
    for (void* const slab : slabs_) (void)cudaFreeHost(slab);
    (void)cudaMemPoolDestroy(pool_);
    for (cudaStream_t const stream : background_streams_) (void)cudaStreamDestroy(stream);
    for (cudaStream_t const stream : ask_streams_) (void)cudaStreamDestroy(stream);
    (void)cudaStreamDestroy(copy_stream_);
  }
  cuda_memory(const cuda_memory&) = delete;
  cuda_memory& operator=(const cuda_memory&) = delete;

  std::uint64_t id_of(void* stream) override {
    const on_device here(ordinal_);
    unsigned long long id = 0;
    check(cudaStreamGetId(static_cast<cudaStream_t>(stream), &id), "cudaStreamGetId");
    return id;
  }
  void* own_stream() override { return ask_streams_[next_ask_++ % std::size(ask_streams_)]; }
  void* background_stream() override {
    return background_streams_[next_background_++ % background_streams];
  }
  void* allocate(std::uint64_t bytes, void* stream) override {
    const on_device here(ordinal_);
    void* memory = nullptr;
    check(cudaMallocFromPoolAsync(&memory, bytes == 0 ? 1 : bytes, pool_,
                                  static_cast<cudaStream_t>(stream)),
          std::to_string(bytes) + " bytes of GPU memory");
    return memory;
  }
  void free(void* memory, void* stream, bool elsewhere) noexcept override {
    try {
      const on_device here(ordinal_);
      if (elsewhere) (void)cudaDeviceSynchronize();
      if (cudaFreeAsync(memory, static_cast<cudaStream_t>(stream)) != cudaSuccess) {
        (void)cudaGetLastError();
        (void)cudaDeviceSynchronize();
        (void)cudaFree(memory);
      }
    } catch (const error&) {
      return;  // the driver is gone, and the memory with it
    }
  }
  void* pin() override {
    const on_device here(ordinal_);
    const std::lock_guard lock(latch_);
    if (pinned_.empty()) {
      void* slab = nullptr;
      check(
          cudaHostAlloc(&slab, pinned_bytes * of_slab, cudaHostAllocMapped | cudaHostAllocPortable),
          "pinned memory for open files");
      slabs_.push_back(slab);
      for (std::uint64_t i = 0; i < of_slab; ++i)
        pinned_.push_back(static_cast<char*>(slab) + i * pinned_bytes);
    }
    void* const memory = pinned_.back();
    pinned_.pop_back();
    return memory;
  }
  void unpin(void* memory) noexcept override {
    const std::lock_guard lock(latch_);
    pinned_.push_back(memory);  // has room, because the memory was in it before
  }
  std::unique_ptr<event> make_event() override { return std::make_unique<cuda_event>(ordinal_); }
  void* upload(const void* from, std::uint64_t bytes, void* stream) override {
    const bool is_small = bytes <= small_bytes && is_pageable(from);
    void* const to = allocate(bytes, is_small ? stream : copy_stream_);
    try {
      if (is_small) copy_in(to, from, bytes, stream);
      else copy(to, from, bytes);
    } catch (...) {
      free(to, stream, false);
      throw;
    }
    return to;
  }
  void check_address(const void* memory) override {
    const on_device here(ordinal_);
    cudaPointerAttributes is{};
    check(cudaPointerGetAttributes(&is, memory), "cudaPointerGetAttributes");
    const bool is_ours = is.type == cudaMemoryTypeDevice && is.device == ordinal_;
    if (!is_ours && is.type != cudaMemoryTypeManaged && is.type != cudaMemoryTypeHost)
      throw error(EINVAL, "an array that is not in the memory of GPU " + std::to_string(ordinal_));
  }
  void copy_to_host(void* to, const void* from, std::uint64_t bytes, void* stream) override {
    const on_device here(ordinal_);
    cuda_event before(ordinal_);
    before.record(stream);
    before.wait();
    copy(to, from, bytes);
  }

 private:
  static constexpr std::uint64_t kept_bytes = std::uint64_t{256} << 20;
  static constexpr std::uint64_t of_slab = 64;
  // The driver copies this much pageable memory together with the command, and waits for nothing.
  // Pinned memory it would read later.
  static constexpr std::uint64_t small_bytes = std::uint64_t{64} << 10;

  static bool is_pageable(const void* memory) {
    cudaPointerAttributes is{};
    check(cudaPointerGetAttributes(&is, memory), "cudaPointerGetAttributes");
    return is.type == cudaMemoryTypeUnregistered;
  }

  void copy_in(void* to, const void* from, std::uint64_t bytes, void* stream) {
    const on_device here(ordinal_);
    check(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream)),
        "cudaMemcpyAsync");
  }
  // Returns when the copy is complete.
  void copy(void* to, const void* from, std::uint64_t bytes) {
    if (bytes == 0) return;
    const on_device here(ordinal_);
    cuda_event behind(ordinal_);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, copy_stream_), "cudaMemcpyAsync");
    behind.record(copy_stream_);
    behind.wait();
  }

  const int ordinal_;
  const pid_t owner_ = getpid();
  cudaStream_t copy_stream_ = nullptr;
  cudaStream_t ask_streams_[4] = {};
  std::atomic<unsigned> next_ask_{0};
  cudaStream_t background_streams_[background_streams] = {};
  std::atomic<unsigned> next_background_{0};
  cudaMemPool_t pool_ = nullptr;
  std::mutex latch_;  // guards the members below
  std::vector<void*> slabs_, pinned_;
};

}  // namespace

std::shared_ptr<device_memory> make_cuda_memory(mount& m) {
  return std::make_shared<cuda_memory>(m.ordinal());
}

}  // namespace gpufs::arrays
