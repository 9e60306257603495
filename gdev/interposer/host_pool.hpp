/**
 * The host's memory for what is off the GPU: pinned segments, and places in them.
 *
 * A segment is made of huge pages where the kernel has them, because pinning small ones is slow. It
 * is kept, and used again, until the process ends: to unpin one may wait for kernels, and these for
 * the program. Only after a move that failed those are given back that nothing needs: others may
 * need them. The daemon says how many there may be.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "interposer/free_places.hpp"
#include "protocol/account.hpp"

namespace gdev {

class host_pool {
 public:
  static constexpr std::size_t segment_bytes = host_segment_bytes;

  /**
   * Makes segments until `bytes` are free, but at most `most` bytes, by several threads: the kernel
   * clears new pages at a few GB/s in each. The calling thread has a context.
   *
   * Returns whether more could be made. False too if there is no more memory.
   */
  bool prepare(std::size_t bytes, std::size_t most);
  /**
   * Takes a place of `bytes`, a multiple of 4096 and at most segment_bytes.
   *
   * The calling thread has a context. Returns null if the daemon, or the system, gives no more.
   */
  [[nodiscard]] std::byte* take(std::size_t bytes);
  void give(std::byte* place, std::size_t bytes);
  /**
   * Returns a new pinned segment, which is not of the pool, or null. Its pages are there, and no
   * forked child has them. The calling thread has a context.
   */
  [[nodiscard]] static std::byte* make_segment() noexcept;
  /** Gives back segments of which nothing is taken. Nothing of the process runs on a GPU. */
  void give_back_segments();
  /** Pins the segments anew where they are used next: the context that pinned them ends. */
  void forget_context();

 private:
  /** Makes segments. Returns how many there are now of those. */
  std::size_t add_segments(std::size_t count);

  std::mutex mutex_;  // guards all below; not held across calls of the driver
  std::vector<std::byte*> segments_;
  std::vector<std::byte*> unpinned_;  // of segments_
  free_places free_;                  // by their addresses
};

}  // namespace gdev
