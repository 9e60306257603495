// Large copies between a GPU and host memory that is not pinned: in pieces through pinned buffers,
// which several threads fill or empty at a time. The driver has a single thread do it, which is far
// from what the bus takes.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

namespace gpufs {

// Thread-safe: one copy at a time. Made while its GPU is the current one.
class staged_copies {
 public:
  static constexpr std::size_t bytes_min =
      std::size_t{4} << 20;  // of less the driver has done much before threads run
  static constexpr std::size_t piece_bytes_max = std::size_t{1} << 20;
  // The same whenever it is asked, whatever becomes of the processors.
  static unsigned thread_count() {
    static const unsigned count =
        std::clamp(std::thread::hardware_concurrency() / 2, 1u, threads_max);
    return count;
  }
  static std::size_t buffers_bytes() { return 2 * thread_count() * piece_bytes_max; }

  // `buffers`: pinned, buffers_bytes() of them.
  staged_copies(int ordinal, char* buffers) : ordinal_(ordinal), buffers_(buffers) {
    for (unsigned i = 0; i < 2 * threads_ && made_ == cudaSuccess; ++i)
      made_ = cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking);
  }
  ~staged_copies() {
    for (const cudaStream_t stream : streams_) {
      if (stream != nullptr) (void)cudaStreamDestroy(stream);
    }
  }
  staged_copies(const staged_copies&) = delete;
  staged_copies& operator=(const staged_copies&) = delete;
  char* buffers() const { return buffers_; }
  bool is_usable() const {
    return made_ == cudaSuccess;
  }  // false: there were not as many streams as it needs

  // Returns when all of it is where it should be. Does not wait for kernels.
  cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    const std::lock_guard lock(mutex_);
    const std::size_t share = bytes / (pieces_of_thread * threads_);
    task work{static_cast<char*>(to), static_cast<const char*>(from), bytes,
              std::clamp(share / piece_step * piece_step, piece_step, piece_bytes_max)};
    const auto part = [&](unsigned thread) {
      if (kind == cudaMemcpyHostToDevice) send(work, thread);
      else receive(work, thread);
    };
    {
      std::array<std::jthread, threads_max> others;
      try {
        for (unsigned t = 1; t < threads_; ++t) others[t] = std::jthread(part, t);
      } catch (const std::system_error&) {
        // Those that there are take all the pieces.
      }
      part(0);
    }
    return work.failed;
  }

 private:
  static constexpr unsigned threads_max = 8;
  // Several for each thread, so that none waits long for the last ones; and not so small that calls
  // of the driver count.
  static constexpr std::size_t pieces_of_thread = 4, piece_step = std::size_t{128} << 10;

  struct piece {
    std::size_t at = 0, bytes = 0;
  };
  struct task {
    char* to;
    const char* from;
    std::size_t bytes, piece_bytes;
    std::atomic<std::size_t> next{0};
    std::atomic<cudaError_t> failed{cudaSuccess};  // the first error, after which no piece is begun

    // No bytes: there is none left.
    piece take() {
      if (failed.load(std::memory_order_relaxed) != cudaSuccess) return {};
      const std::size_t at = next.fetch_add(piece_bytes, std::memory_order_relaxed);
      return at < bytes ? piece{at, std::min(piece_bytes, bytes - at)} : piece{};
    }
    bool check(cudaError_t status) {
      cudaError_t none = cudaSuccess;
      if (status != cudaSuccess)
        (void)failed.compare_exchange_strong(none, status, std::memory_order_relaxed);
      return status == cudaSuccess;
    }
  };

  unsigned half_of(unsigned thread, unsigned turn) const { return 2 * thread + turn % 2; }
  char* buffer(unsigned half) const { return buffers_ + half * piece_bytes_max; }

  // A thread uses its two buffers in turn: one is on the bus while it works on the other.
  void send(task& work, unsigned thread) {
    (void)work.check(cudaSetDevice(ordinal_));
    unsigned turn = 0;
    for (piece p; (p = work.take()).bytes != 0; ++turn) {
      const unsigned h = half_of(thread, turn);
      if (!work.check(cudaStreamSynchronize(streams_[h])))
        break;  // what was in the buffer has left
      std::memcpy(buffer(h), work.from + p.at, p.bytes);
      (void)work.check(
          cudaMemcpyAsync(work.to + p.at, buffer(h), p.bytes, cudaMemcpyHostToDevice, streams_[h]));
    }
    for (unsigned k = 0; k < 2; ++k)
      (void)work.check(cudaStreamSynchronize(streams_[half_of(thread, k)]));
  }
  void receive(task& work, unsigned thread) {
    (void)work.check(cudaSetDevice(ordinal_));
    piece last;
    for (unsigned turn = 0;; ++turn) {
      const unsigned h = half_of(thread, turn), before = half_of(thread, turn + 1);
      const piece p = work.take();
      if (p.bytes != 0)
        (void)work.check(cudaMemcpyAsync(buffer(h), work.from + p.at, p.bytes,
                                         cudaMemcpyDeviceToHost, streams_[h]));
      if (last.bytes != 0 && work.check(cudaStreamSynchronize(streams_[before])))
        std::memcpy(work.to + last.at, buffer(before), last.bytes);
      if (p.bytes == 0) break;
      last = p;
    }
  }

  const int ordinal_;
  char* const buffers_;
  const unsigned threads_ = thread_count();
  cudaError_t made_ = cudaSuccess;
  std::array<cudaStream_t, 2 * threads_max> streams_{};  // one for each buffer
  std::mutex mutex_;  // held over a copy, which uses all the buffers
};

}  // namespace gpufs
