// Large copies between a GPU and host memory that is not pinned. Several threads copy pieces
// through pinned buffers. The driver would use a single thread, which is far slower than the bus.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>

#include "base/host_threads.hpp"
#include "gpufs/error.hpp"

namespace gpufs {

// Thread-safe; runs one copy at a time. Create it while its GPU is current.
class staged_copies {
 public:
  // The driver has done much of a smaller copy before threads run.
  static constexpr std::size_t bytes_min = std::size_t{4} << 20;
  static constexpr std::size_t piece_bytes_max = std::size_t{1} << 20;
  // Constant for the process, even if the number of available processors changes.
  static unsigned thread_count() {
    static const unsigned count =
        std::clamp(std::thread::hardware_concurrency() / 2, 1u, threads_max);
    return count;
  }
  static std::size_t buffers_bytes() { return 2 * thread_count() * piece_bytes_max; }

  // `buffers`: pinned memory of buffers_bytes().
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
  // False if not all of its streams could be created.
  bool is_usable() const { return made_ == cudaSuccess; }

  // Returns when the copy is complete. Does not wait for kernels.
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
      host_threads others;
      try {
        for (unsigned t = 1; t < threads_; ++t)
          others.start("a staged copy", [&part, t] { part(t); });
      } catch (const error&) {  // the threads that exist take all the pieces
      } catch (const std::bad_alloc&) {
      }
      part(0);
    }
    return work.failed;
  }

 private:
  static constexpr unsigned threads_max = 8;
  // Several pieces per thread, so that no thread waits long for the last ones. Not so small that
  // the cost of driver calls matters.
  static constexpr std::size_t pieces_of_thread = 4, piece_step = std::size_t{128} << 10;

  struct piece {
    std::size_t at = 0, bytes = 0;
  };
  struct task {
    char* to;
    const char* from;
    std::size_t bytes, piece_bytes;
    std::atomic<std::size_t> next{0};
    // The first error. After it no thread begins a piece.
    std::atomic<cudaError_t> failed{cudaSuccess};

    // Returns the next piece; zero bytes if there is none left.
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

  unsigned half_of(unsigned thread, unsigned number) const { return 2 * thread + number % 2; }
  char* buffer(unsigned half) const { return buffers_ + half * piece_bytes_max; }

  // A thread alternates between its two buffers: one is on the bus while the thread works on the
  // other.
  void send(task& work, unsigned thread) {
    (void)work.check(cudaSetDevice(ordinal_));
    unsigned number = 0;
    for (piece p; (p = work.take()).bytes != 0; ++number) {
      const unsigned h = half_of(thread, number);
      // Waits until the buffer's last piece has left.
      if (!work.check(cudaStreamSynchronize(streams_[h]))) break;
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
    for (unsigned number = 0;; ++number) {
      const unsigned h = half_of(thread, number), before = half_of(thread, number + 1);
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
  std::mutex mutex_;  // held during a copy, which uses all the buffers
};

}  // namespace gpufs
