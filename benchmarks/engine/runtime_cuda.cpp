// The implementation for GPUs, with the CUDA runtime.
#include <cuda_runtime.h>

#include <string>

#include "engine/runtime.hpp"

namespace gpufs::bench {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaErrorMemoryAllocation) throw error(ENOMEM, std::string("bench: ") + what);
  if (status == cudaErrorNotSupported) throw error(ENOTSUP, std::string("bench: ") + what);
  if (status != cudaSuccess)
    throw error(EIO, std::string("bench: ") + what + ": " + cudaGetErrorString(status));
}

class cuda_event {
 public:
  explicit cuda_event(unsigned flags) {
    check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate");
  }
  ~cuda_event() { (void)cudaEventDestroy(event_); }
  cuda_event(const cuda_event&) = delete;
  cuda_event& operator=(const cuda_event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void wait() { check(cudaEventSynchronize(event_), "waiting for the GPU"); }
  double seconds_since(const cuda_event& earlier) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "cudaEventElapsedTime");
    return milliseconds / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class cuda_queue final : public runtime::queue {
 public:
  explicit cuda_queue(mount& m) : guard_(m) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~cuda_queue() override { (void)cudaStreamDestroy(stream_); }
  cuda_queue(const cuda_queue&) = delete;
  cuda_queue& operator=(const cuda_queue&) = delete;

  void copy(char* to, const char* from, std::uint64_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
    ended_.record(stream_);
  }
  void wait() override { ended_.wait(); }

 private:
  const device_guard guard_;  // first, because the other members are made on that GPU
  cudaStream_t stream_ = nullptr;
  // Waits by spinning: sleeping between short copies would slow a peer down.
  cuda_event ended_{cudaEventDisableTiming};
};

class cuda_runtime final : public runtime {
 public:
  explicit cuda_runtime(mount& m) : mount_(m) {}

  double seconds(const std::function<void()>& work) override {
    const device_guard guard(mount_);
    cuda_event begin(cudaEventDefault), end(cudaEventBlockingSync);
    begin.record(nullptr);
    work();
    end.record(nullptr);
    end.wait();
    return end.seconds_since(begin);
  }
  std::unique_ptr<queue> make_queue() override { return std::make_unique<cuda_queue>(mount_); }
  char* pin(std::uint64_t bytes) override {
    const device_guard guard(mount_);
    void* memory = nullptr;
    check(cudaMallocHost(&memory, bytes), "cudaMallocHost");
    return static_cast<char*>(memory);
  }
  void unpin(char* memory) noexcept override {
    const device_guard guard(mount_);
    (void)cudaFreeHost(memory);
  }
  const char* register_pages(char* mapped, std::uint64_t bytes) override {
    const device_guard guard(mount_);
    check(cudaHostRegister(mapped, bytes, cudaHostRegisterMapped | cudaHostRegisterReadOnly),
          "cudaHostRegister");
    void* seen = nullptr;
    check(cudaHostGetDevicePointer(&seen, mapped, 0), "cudaHostGetDevicePointer");
    return static_cast<const char*>(seen);
  }
  void unregister_pages(char* mapped) noexcept override {
    const device_guard guard(mount_);
    (void)cudaHostUnregister(mapped);
  }

 private:
  mount& mount_;
};

}  // namespace

std::unique_ptr<runtime> make_cuda_runtime(mount& m) { return std::make_unique<cuda_runtime>(m); }

}  // namespace gpufs::bench
