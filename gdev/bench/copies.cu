/**
 * Figures 3 to 5 of Gdev (ATC 2012), the copies between host and device: copies [--most BYTES]
 *
 * Prints lines of JSON. "test" is
 * - "size": one copy of 4 KiB and more, from and to pageable and pinned memory (figure 5);
 * - "chunk": a large copy, and one of half its size, in chunks through two pinned buffers, so that
 *   the processor copies one chunk while the GPU copies the other (figure 3);
 * - "small": one copy of 16 B to 64 KiB (figure 4). The figure compares the processor's own loads
 *   and stores in the GPU's memory with DMA. A stock driver maps no memory of cudaMalloc() into
 *   programs. So what is compared with DMA are the loads and stores of a kernel in pinned host
 *   memory ("kernel"), and the driver's copy of pageable memory, for which it chooses by itself.
 *
 * "seconds" is the median of repeats. "right": the bytes that arrived were those that were sent.
 * --most limits the sizes.
 */
#include <cstring>

#include "bench/memory.hpp"

namespace gdev_bench {
namespace {

constexpr std::size_t kibibyte = 1024;
constexpr std::size_t mebibyte = 1024 * kibibyte;

enum class direction : bool { to_device, to_host };
enum class method { pageable, pinned, kernel };

const char* name_of(method by) {
  switch (by) {
    case method::pageable: return "pageable";
    case method::pinned: return "pinned";
    default: return "kernel";
  }
}

bool all_right = true;

/** Measures copies of one kind, between host memory that it owns and the device. */
class experiment {
 public:
  experiment(std::size_t bytes, method by)
      : by_(by), host_(bytes, by != method::pageable), device_(bytes),
        expected_(divide_up(bytes, sizeof(std::uint64_t))) {}

  /**
   * Prints the median time of `copy(host, device)`, which copies `bytes` bytes and waits for that.
   * `more` is printed as it is, within the line. Repeats it for about 0.2 s: 5 times at least.
   */
  template <typename Copy>
  void measure(const char* test, direction way, std::size_t bytes, const std::string& more,
               const Copy& copy) {
    std::vector<double> seconds;
    prepare(way, bytes);
    copy(host_.data(), device_.data());
    const bool is_right = arrived(way, bytes);
    const stopwatch all;
    while (seconds.size() < 5 || (seconds.size() < 1000 && all.seconds() < 0.2)) {
      const stopwatch watch;
      copy(host_.data(), device_.data());
      seconds.push_back(watch.seconds());
    }
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    all_right = all_right && is_right;
    std::printf(
        "{\"test\": \"%s\", \"direction\": \"%s\", \"memory\": \"%s\", \"bytes\": %zu, "
        "%s\"seconds\": %.9f, \"right\": %s}\n",
        test, way == direction::to_device ? "to_device" : "to_host", name_of(by_), bytes,
        more.c_str(), seconds[seconds.size() / 2], is_right ? "true" : "false");
    std::fflush(stdout);
  }

 private:
  /** Puts numbers that no earlier copy has sent where the copy begins, and zeros where it ends. */
  void prepare(direction way, std::size_t bytes) {
    for (std::size_t i = 0; i < divide_up(bytes, sizeof(std::uint64_t)); ++i) {
      expected_[i] = hash(++sent_);
    }
    if (way == direction::to_device) {
      std::memcpy(host_.data(), expected_.data(), bytes);
      check(cudaMemset(device_.data(), 0, bytes), "cudaMemset");
    } else {
      std::memset(host_.data(), 0, bytes);
      device_.copy_from(reinterpret_cast<const char*>(expected_.data()));
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  [[nodiscard]] bool arrived(direction way, std::size_t bytes) const {
    std::vector<char> copied(way == direction::to_device ? bytes : 0);
    if (way == direction::to_device) {
      device_.copy_to(copied.data(), bytes);
    }
    const void* const found = way == direction::to_device ? copied.data() : host_.data();
    return std::memcmp(found, expected_.data(), bytes) == 0;
  }

  method by_;
  host_memory host_;
  device_array<char> device_;
  std::vector<std::uint64_t> expected_;
  std::uint64_t sent_ = 0;
};

constexpr direction both_ways[] = {direction::to_device, direction::to_host};

void copy_at_once(direction way, void* host, void* device, std::size_t bytes) {
  if (way == direction::to_device) {
    // A copy from pageable memory may return before the bytes are on the device.
    check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  } else {
    check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
}

using word = uint4;

__global__ void copy_words(const word* from, word* to, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    to[i] = from[i];
  }
}

/** Copies by loads and stores of a kernel. bytes: a multiple of a word's. */
void copy_by_kernel(direction way, void* host, void* device, std::size_t bytes) {
  const void* const from = way == direction::to_device ? host : device;
  void* const to = way == direction::to_device ? device : host;
  const std::size_t count = bytes / sizeof(word);
  copy_words<<<divide_up(count, 256), 256>>>(static_cast<const word*>(from), static_cast<word*>(to),
                                             count);
  check_launch();
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/** Measures copies of `first` bytes, four times as many, and so on, up to `last`. */
void measure_sizes(const char* test, method by, std::size_t first, std::size_t last) {
  if (first > last) {
    return;
  }
  experiment made(last, by);
  for (const direction way : both_ways) {
    for (std::size_t bytes = first; bytes <= last; bytes *= 4) {
      made.measure(test, way, bytes, "", [&](void* host, void* device) {
        by == method::kernel ? copy_by_kernel(way, host, device, bytes)
                             : copy_at_once(way, host, device, bytes);
      });
    }
  }
}

/** Two pinned buffers, and when the GPU has finished with each. */
class bounce_buffers {
 public:
  explicit bounce_buffers(std::size_t chunk) : chunk_(chunk), memory_(2 * chunk, true) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    for (cudaEvent_t& one : done_) {
      check(cudaEventCreateWithFlags(&one, cudaEventDisableTiming), "cudaEventCreate");
    }
  }
  bounce_buffers(const bounce_buffers&) = delete;
  bounce_buffers& operator=(const bounce_buffers&) = delete;
  ~bounce_buffers() {
    for (const cudaEvent_t one : done_) check(cudaEventDestroy(one), "cudaEventDestroy");
    check(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }

  /** Copies, and waits. The processor fills chunk i + 1 while the GPU copies chunk i. */
  void to_device(const char* host, char* device, std::size_t bytes) {
    for (std::size_t i = 0; i * chunk_ < bytes; ++i) {
      wait(i);  // an event that nothing recorded is done
      const std::size_t size = size_of(i, bytes);
      std::memcpy(buffer(i), host + i * chunk_, size);
      start(i, device + i * chunk_, buffer(i), size, cudaMemcpyHostToDevice);
    }
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

  /** Copies, and waits. The processor empties chunk i while the GPU copies chunk i + 1. */
  void to_host(char* host, const char* device, std::size_t bytes) {
    const std::size_t chunks = divide_up(bytes, chunk_);
    for (std::size_t i = 0; i <= chunks; ++i) {
      if (i < chunks) {
        start(i, buffer(i), device + i * chunk_, size_of(i, bytes), cudaMemcpyDeviceToHost);
      }
      if (i > 0) {
        wait(i - 1);
        std::memcpy(host + (i - 1) * chunk_, buffer(i - 1), size_of(i - 1, bytes));
      }
    }
  }

 private:
  [[nodiscard]] char* buffer(std::size_t i) const {
    return static_cast<char*>(memory_.data()) + i % 2 * chunk_;
  }
  [[nodiscard]] std::size_t size_of(std::size_t i, std::size_t bytes) const {
    return std::min(chunk_, bytes - i * chunk_);
  }
  void start(std::size_t i, void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
    check(cudaMemcpyAsync(to, from, size, kind, stream_), "cudaMemcpyAsync");
    check(cudaEventRecord(done_[i % 2], stream_), "cudaEventRecord");
  }
  void wait(std::size_t i) { check(cudaEventSynchronize(done_[i % 2]), "cudaEventSynchronize"); }

  std::size_t chunk_;
  host_memory memory_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_[2] = {};
};

void measure_chunks(std::size_t bytes) {
  experiment made(bytes, method::pageable);
  for (std::size_t chunk = 16 * kibibyte; chunk <= std::min(bytes, 64 * mebibyte); chunk *= 4) {
    bounce_buffers buffers(chunk);
    for (const direction way : both_ways) {
      made.measure("chunk", way, bytes, "\"chunk\": " + std::to_string(chunk) + ", ",
                   [&](void* host, void* device) {
                     if (way == direction::to_device) {
                       buffers.to_device(static_cast<char*>(host), static_cast<char*>(device),
                                         bytes);
                     } else {
                       buffers.to_host(static_cast<char*>(host), static_cast<char*>(device), bytes);
                     }
                   });
    }
  }
}

}  // namespace
}  // namespace gdev_bench

int main(int argc, char** argv) {
  using namespace gdev_bench;
  arguments given(argc, argv);
  const std::size_t most = given.number("--most", 512 * mebibyte);
  given.finish();
  if (most < 64 * kibibyte) {
    fail("--most: 65536 at least is needed");
  }
  for (const std::size_t bytes : {most / 2, most}) measure_chunks(bytes / kibibyte * kibibyte);
  for (const method by : {method::pageable, method::pinned, method::kernel}) {
    measure_sizes("small", by, 16, 64 * kibibyte);
  }
  for (const method by : {method::pageable, method::pinned}) {
    measure_sizes("size", by, 4 * kibibyte, most);
  }
  return all_right ? 0 : wrong_result;
}
