// NVIDIA GPUs, through the CUDA runtime and, for virtual memory, the driver's entry points.
#include "base/host_threads.hpp"
#include "device/device.hpp"
#include "gpufs/base/start_thread.hpp"
#include "gpufs/error.hpp"

#if defined(GPUFS_WITH_CUDA) && GPUFS_WITH_CUDA

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <thread>

#include "device/cuda_calls.hpp"
#include "device/kept_memory.hpp"
#include "device/staged_copies.hpp"

namespace gpufs {
namespace {

// What kept_memory needs of the runtime.
struct cuda_memory {
  static void* try_allocate(std::size_t bytes) noexcept {
    void* p = nullptr;
    if (cudaMalloc(&p, bytes) == cudaSuccess) return p;
    (void)cudaGetLastError();
    return nullptr;
  }
  static void* allocate(std::size_t bytes) {
    void* p = nullptr;
    check(cudaMalloc(&p, bytes), "cudaMalloc");
    return p;
  }
  static void free(void* p) noexcept { (void)cudaFree(p); }
  static void synchronize() noexcept { (void)cudaDeviceSynchronize(); }
};

class cuda_device final : public device {
 public:
  explicit cuda_device(int ordinal) : ordinal_(ordinal) {
    const current_scope scope(*this);
    check(cudaFree(nullptr), "CUDA context");
    check(cudaGetDeviceProperties(&properties_, ordinal_), "cudaGetDeviceProperties");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    int value = 0;
    if (cudaDeviceGetAttribute(&value, cudaDevAttrHostRegisterReadOnlySupported, ordinal_) ==
        cudaSuccess)
      read_only_registration_ = value != 0;
    prepare_bulk();
  }
  ~cuda_device() override {
    const current_scope scope(*this, std::nothrow);
    memory_.clear();
    if (staged_.has_value())
      free_buffers({staged_->buffers(), nullptr}, staged_copies::buffers_bytes());
    staged_.reset();
    for (const cudaStream_t stream : bulk_streams_) {
      if (stream != nullptr) (void)cudaStreamDestroy(stream);
    }
    (void)cudaStreamDestroy(stream_);
  }
  cuda_device(const cuda_device&) = delete;
  cuda_device& operator=(const cuda_device&) = delete;

  std::string name() const override { return properties_.name; }
  unsigned multiprocessors() const override {
    return static_cast<unsigned>(properties_.multiProcessorCount);
  }
  std::uint64_t free_bytes() const override {
    const current_scope scope(*this);
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  }

  // Uses virtual memory management, so that a later version can export, grow and shrink the arena.
  char* allocate_arena(std::uint64_t bytes) override {
    const current_scope scope(*this);
    const auto granularity_of = driver_function<decltype(&cuMemGetAllocationGranularity)>(
        "cuMemGetAllocationGranularity", 10020);
    const auto create = driver_function<decltype(&cuMemCreate)>("cuMemCreate", 10020);
    const auto reserve =
        driver_function<decltype(&cuMemAddressReserve)>("cuMemAddressReserve", 10020);
    const auto map = driver_function<decltype(&cuMemMap)>("cuMemMap", 10020);
    const auto set_access = driver_function<decltype(&cuMemSetAccess)>("cuMemSetAccess", 10020);
    const auto release = driver_function<decltype(&cuMemRelease)>("cuMemRelease", 10020);
    address_free_ = driver_function<decltype(&cuMemAddressFree)>("cuMemAddressFree", 10020);
    unmap_ = driver_function<decltype(&cuMemUnmap)>("cuMemUnmap", 10020);

    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {ordinal_}};
    std::size_t granularity = 0;
    check(granularity_of(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
          "cuMemGetAllocationGranularity");
    const std::uint64_t size = (bytes + granularity - 1) / granularity * granularity;
    CUmemGenericAllocationHandle handle = 0;
    check(create(&handle, size, &properties, 0), "page cache: cuMemCreate");
    CUdeviceptr address = 0;
    CUresult status = reserve(&address, size, 0, 0, 0);
    if (status == CUDA_SUCCESS) {
      status = map(address, size, 0, handle, 0);
      if (status != CUDA_SUCCESS) (void)address_free_(address, size);
    }
    // The mapping keeps the memory alive. Without a mapping, this frees the memory.
    (void)release(handle);
    check(status, "page cache: cuMemMap");
    arena_ = address;
    arena_bytes_ = size;
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(set_access(address, size, &access, 1), "page cache: cuMemSetAccess");
    check(cudaMemsetAsync(reinterpret_cast<void*>(address), 0, bytes, stream_),
          "page cache: cudaMemset");
    check(cudaStreamSynchronize(stream_), "page cache: cudaMemset");
    return reinterpret_cast<char*>(address);
  }
  void free_arena() noexcept override {
    if (arena_ == 0) return;
    (void)unmap_(arena_, arena_bytes_);
    (void)address_free_(arena_, arena_bytes_);
    arena_ = 0;
  }

  shared_memory allocate_shared(std::uint64_t bytes) override {
    const current_scope scope(*this);
    void* host = nullptr;
    void* seen = nullptr;
    check(cudaHostAlloc(&host, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
          "channel: cudaHostAlloc");
    std::memset(host, 0, bytes);
    check(cudaHostGetDevicePointer(&seen, host, 0), "channel: cudaHostGetDevicePointer");
    return {static_cast<char*>(host), static_cast<char*>(seen)};
  }
  void free_shared(const shared_memory& memory, std::uint64_t) noexcept override {
    const current_scope scope(*this, std::nothrow);
    (void)cudaFreeHost(memory.host);
  }

  // Maps huge pages and faults them in before registration. cudaHostAlloc would be slow, serialize
  // its callers, and block other threads that enqueue copies (docs/decisions/devices.md).
  shared_memory allocate_buffers(std::uint64_t bytes) override {
    const current_scope scope(*this);
    const std::uint64_t size = whole_pages(bytes);
    char* const reserved =
        static_cast<char*>(mmap(nullptr, size + huge_page_bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (reserved == MAP_FAILED) throw error(ENOMEM, "buffers: mmap");
    const std::uint64_t before = -reinterpret_cast<std::uintptr_t>(reserved) % huge_page_bytes;
    char* const host = reserved + before;
    if (before != 0) (void)munmap(reserved, before);
    (void)munmap(host + size, huge_page_bytes - before);
    // MADV_HUGEPAGE is only for speed. MADV_DONTFORK protects the pages: a forked child that wrote
    // here would take them away from the device.
    (void)madvise(host, size, MADV_HUGEPAGE);
    (void)madvise(host, size, MADV_DONTFORK);
    for (std::uint64_t at = 0; at < size; at += page_bytes()) host[at] = 0;
    void* seen = nullptr;
    const cudaError_t status =
        cudaHostRegister(host, size, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (status != cudaSuccess) (void)munmap(host, size);
    check(status, "buffers: cudaHostRegister");
    // On failure the memory stays registered and mapped, because unregistering would wait for
    // kernels.
    check(cudaHostGetDevicePointer(&seen, host, 0), "buffers: cudaHostGetDevicePointer");
    return {host, static_cast<char*>(seen)};
  }
  void free_buffers(const shared_memory& memory, std::uint64_t bytes) noexcept override {
    unregister_range(memory.host);
    (void)munmap(memory.host, whole_pages(bytes));
  }

  std::string direct_obstacle() const override {
    return read_only_registration_ ? ""
                                   : "this GPU cannot register read-only host memory "
                                     "(cudaDevAttrHostRegisterReadOnlySupported)";
  }
  bool register_range(char* host, std::uint64_t bytes, std::uint64_t& device_address) override {
    const current_scope scope(*this);
    if (cudaHostRegister(host, bytes, cudaHostRegisterMapped | cudaHostRegisterReadOnly) !=
        cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    void* seen = nullptr;
    // If this fails, the pages stay registered, because unregistering would wait for kernels.
    if (cudaHostGetDevicePointer(&seen, host, 0) != cudaSuccess) (void)cudaGetLastError();
    device_address = reinterpret_cast<std::uint64_t>(seen);
    return true;
  }
  void unregister_range(char* host) noexcept override {
    const current_scope scope(*this, std::nothrow);
    (void)cudaHostUnregister(host);
    (void)cudaGetLastError();
  }

  bool unregistering_waits() const override { return true; }

  std::string bulk_obstacle() const override { return bulk_obstacle_; }
  std::uint64_t bulk_bytes_min() const override { return 65536; }
  std::int64_t bulk_copy(unsigned lane, char* to, std::uint64_t from, std::uint64_t bytes,
                         char* told, std::uint64_t word) override {
    const current_scope scope(*this);
    const cudaStream_t stream = bulk_streams_[lane % bulk_stream_count];
    if (cudaMemcpyAsync(to, reinterpret_cast<const void*>(from), bytes, cudaMemcpyHostToDevice,
                        stream) != cudaSuccess) {
      (void)cudaGetLastError();
      return -EIO;
    }
    // The store follows the copy in the stream, with a memory barrier. So a thread that acquires
    // the word sees the bytes.
    const CUresult status = write_value_(stream, reinterpret_cast<CUdeviceptr>(told), word,
                                         CU_STREAM_WRITE_VALUE_DEFAULT);
    if (status == CUDA_SUCCESS) return -EINPROGRESS;
    // The frames must not be reported as free before the copy has ended.
    (void)cudaStreamSynchronize(stream);
    return -EIO;
  }

  // The driver serializes concurrent callers too, but they would spin.
  // The driver's calls take microseconds, except for a few that allocate buffers and take
  // milliseconds.
  bulk_limits limits_of_bulk() const override { return {50'000'000, 100'000'000}; }
  bool bulk_copies_exclude() const override { return true; }

  void* allocate(std::size_t bytes) override {
    const current_scope scope(*this);
    void* const p = memory_.take(bytes);
    if (cudaMemsetAsync(p, 0, bytes, stream_) == cudaSuccess &&
        cudaStreamSynchronize(stream_) == cudaSuccess)
      return p;
    memory_.give(p);
    check(cudaGetLastError(), "cudaMemset");
    throw error(EIO, "cudaMemset");
  }
  void free(void* memory) noexcept override {
    const current_scope scope(*this, std::nothrow);
    memory_.give(memory);
  }
  void copy_to_device(void* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes, cudaMemcpyHostToDevice);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes, cudaMemcpyDeviceToHost);
  }
  void snapshot(std::uint64_t* to, const std::uint64_t* from, std::size_t words) override {
    copy_by_driver(to, from, words * sizeof *to, cudaMemcpyDeviceToHost);
  }
  void synchronize() override {
    const current_scope scope(*this);
    check(cudaDeviceSynchronize(), "kernel");
  }
  bool wait_idle(std::uint64_t timeout_ns) noexcept override {
    const deadline end = deadline::after(timeout_ns);
    const auto is_over = [&] { return end.left_ns() == 0; };
    std::shared_ptr<std::atomic<bool>> done;
    while (done == nullptr) {
      try {
        done = start_waiting();
      } catch (const std::exception&) {
        // No thread or memory now. Retry: the kernels may end meanwhile.
        if (is_over()) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    while (!done->load() && !is_over()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    return done->load();
  }

  int make_current() const override {
    cudaError_t status = cudaSuccess;
    const int previous = switch_to_this(status);
    check(status, "cudaSetDevice");
    return previous;
  }
  void restore(int previous) const noexcept override {
    if (previous >= 0 && previous != ordinal_) (void)cudaSetDevice(previous);
  }

 private:
  // The driver has no bounded wait for a device, so a detached thread waits. If a kernel never
  // ends, that thread never ends.
  std::shared_ptr<std::atomic<bool>> start_waiting() const {
    auto done = std::make_shared<std::atomic<bool>>(false);
    start_thread([done, ordinal = ordinal_] {
      (void)cudaSetDevice(ordinal);
      (void)cudaDeviceSynchronize();
      done->store(true);
    }).detach();
    return done;
  }

  int switch_to_this(cudaError_t& status) const noexcept {
    int previous = -1;
    (void)cudaGetDevice(&previous);
    if (previous != ordinal_) status = cudaSetDevice(ordinal_);
    return previous;
  }
  int try_make_current() const noexcept {
    cudaError_t status = cudaSuccess;
    const int previous = switch_to_this(status);
    if (status != cudaSuccess) (void)cudaGetLastError();
    return previous;
  }

  void prepare_bulk() {
    const auto attribute =
        driver_function<decltype(&cuDeviceGetAttribute)>("cuDeviceGetAttribute", 2000);
    int supported = 0;
    if (attribute(&supported, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, ordinal_) !=
            CUDA_SUCCESS ||
        supported == 0) {
      bulk_obstacle_ =
          "this GPU's streams cannot store 64-bit words (CAN_USE_64_BIT_STREAM_MEM_OPS)";
      return;
    }
    write_value_ = driver_function<decltype(&cuStreamWriteValue64)>("cuStreamWriteValue64", 12000);
    for (cudaStream_t& stream : bulk_streams_)
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  }

  static constexpr std::uint64_t huge_page_bytes = std::uint64_t{2} << 20;
  static std::uint64_t page_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }
  static std::uint64_t whole_pages(std::uint64_t bytes) {
    return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  }

  struct current_scope {
    explicit current_scope(const cuda_device& d) : owner(d), previous(d.make_current()) {}
    // For functions that must not throw. If the device cannot be made current, the CUDA calls that
    // need it fail by themselves.
    current_scope(const cuda_device& d, std::nothrow_t) noexcept
        : owner(d), previous(d.try_make_current()) {}
    ~current_scope() { owner.restore(previous); }
    current_scope(const current_scope&) = delete;
    current_scope& operator=(const current_scope&) = delete;
    const cuda_device& owner;
    int previous;
  };

  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (bytes < staged_copies::bytes_min) return copy_by_driver(to, from, bytes, kind);
    const current_scope scope(*this);
    staged_copies* const copies = staged();
    if (copies == nullptr) return copy_by_driver(to, from, bytes, kind);
    check(copies->copy(to, from, bytes, kind), "cudaMemcpy");
  }
  // Returns null if its buffers or streams cannot be allocated; then the driver makes the copy,
  // more slowly. The next copy tries again.
  staged_copies* staged() {
    const std::lock_guard lock(staged_mutex_);
    if (staged_.has_value()) return &*staged_;
    shared_memory buffers{};
    try {
      buffers = allocate_buffers(staged_copies::buffers_bytes());
    } catch (const error&) {
      return nullptr;
    }
    staged_.emplace(ordinal_, buffers.host);
    if (staged_->is_usable()) return &*staged_;
    (void)cudaGetLastError();
    staged_.reset();
    free_buffers(buffers, staged_copies::buffers_bytes());
    return nullptr;
  }
  void copy_by_driver(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    const current_scope scope(*this);
    // A stream of our own. The legacy stream would wait for kernels, which may wait for this copy.
    check(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpy");
    check(cudaStreamSynchronize(stream_), "cudaMemcpy");
  }

  int ordinal_;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  kept_memory<cuda_memory> memory_;      // the memory that allocate() returns
  std::mutex staged_mutex_;              // guards the creation of `staged_`
  std::optional<staged_copies> staged_;  // created at the first large copy
  bool read_only_registration_ = false;
  // Two streams: one copies while the other stores the word for its last copy.
  static constexpr unsigned bulk_stream_count = 2;
  cudaStream_t bulk_streams_[bulk_stream_count] = {};
  decltype(&cuStreamWriteValue64) write_value_ = nullptr;
  std::string bulk_obstacle_;
  CUdeviceptr arena_ = 0;
  std::uint64_t arena_bytes_ = 0;
  decltype(&cuMemUnmap) unmap_ = nullptr;
  decltype(&cuMemAddressFree) address_free_ = nullptr;
};

}  // namespace

int cuda_device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

std::unique_ptr<device> make_cuda_device(int ordinal) {
  const int count = cuda_device_count();
  if (count == 0) throw error(ENODEV, "no CUDA device is usable here");
  if (ordinal < 0 || ordinal >= count)
    throw error(ENODEV, "CUDA device " + std::to_string(ordinal) + " of " + std::to_string(count));
  return std::make_unique<cuda_device>(ordinal);
}

}  // namespace gpufs

#else

namespace gpufs {

int cuda_device_count() noexcept { return 0; }

std::unique_ptr<device> make_cuda_device(int) {
  throw error(ENOTSUP, "CUDA: this library was built without it (GPUFS_CUDA=ON builds it with)");
}

}  // namespace gpufs

#endif
