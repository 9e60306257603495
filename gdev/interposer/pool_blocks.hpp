/**
 * Which memory of a pool is in use, and which is free: for all streams, or for one.
 *
 * What was freed in a stream is free for this stream at once. It is free for all when the stream
 * has reached the point of the free.
 *
 * Pure bookkeeping, for one thread at a time.
 *
 * Invariants:
 * 1. The blocks of a range cover it, and do not overlap.
 * 2. Two free blocks of a range that are free for the same do not touch: they are one block.
 * 3. Each free block is in one queue: of all streams, or of its stream. Others are in none.
 * 4. `whole_` has the ranges that are one block that is free for all.
 */
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace gdev {

/** The events of a context. */
struct event_store {
  std::vector<CUevent> spare;
  unsigned users = 0;    // calls of the driver that use its events
  bool is_over = false;  // the context ends: all its work is done, and its events end with it
};

/** A place in the order of a stream: its event was recorded there. */
struct stream_point {
  stream_point() = default;
  stream_point(const stream_point&) = delete;
  stream_point& operator=(const stream_point&) = delete;
  ~stream_point() {
    if (event != nullptr && !store->is_over) {
      store->spare.push_back(event);
    }
  }

  std::uint64_t stream = 0;
  /** When a point is reached, all of its stream with lower numbers count as reached. */
  std::uint64_t number = 0;
  CUevent event = nullptr;
  CUcontext context = nullptr;         // of the event
  std::shared_ptr<event_store> store;  // where the event goes in the end
};

class pool_blocks {
 public:
  using point = std::shared_ptr<stream_point>;

  /** Sizes and addresses are multiples of this, as the driver's. */
  static constexpr std::size_t unit = 512;

  /** Adds a range, which is free for all. */
  void add_range(CUdeviceptr begin, std::size_t bytes);
  /** Takes a range out, whatever is in use of it. Returns the bytes that were in use. */
  std::size_t remove_range(CUdeviceptr begin);
  /** Takes out the largest range that is free for all and has at most so many bytes. */
  [[nodiscard]] std::optional<CUdeviceptr> take_largest_range(std::size_t most);
  /** Takes out the smallest range that is free for all and has at least so many bytes. */
  [[nodiscard]] std::optional<CUdeviceptr> take_smallest_range(std::size_t least);

  /** Takes the smallest block that is free for a stream and suffices, or a part of it. */
  [[nodiscard]] std::optional<CUdeviceptr> take(std::size_t bytes, std::uint64_t stream);
  /** The same of a block that is free for another stream only: after this point. */
  [[nodiscard]] std::optional<CUdeviceptr> take_after(std::size_t bytes, point& after);
  /** Tells whether take_after() would find a block. */
  [[nodiscard]] bool has_after(std::size_t bytes) const;

  /** A free begins: the block is in use still, but no other free of it can begin. Returns its
   * bytes; 0: no block in use begins here. */
  [[nodiscard]] std::size_t begin_free(CUdeviceptr address);
  /** The free has failed. */
  void cancel_free(CUdeviceptr address);
  /** The block is free: after a point in a stream, or for all (null). Returns false if its range
   * was removed meanwhile. */
  bool end_free(CUdeviceptr address, point after);

  /** Returns the streams for whose points blocks wait. */
  [[nodiscard]] std::vector<std::uint64_t> waiting_streams();
  /** Returns the point of a stream that has so many before it, or its last one; null: none waits.
   * Takes time for each point before it. */
  [[nodiscard]] point point_at(std::uint64_t stream, std::size_t index) const;
  [[nodiscard]] point last_point(std::uint64_t stream) const;
  /** A stream has reached its points up to this number. */
  void reach(std::uint64_t stream, std::uint64_t number);

  /** Finds the block in use that contains an address, and what was asked for it. */
  [[nodiscard]] bool find(CUdeviceptr address, CUdeviceptr* begin, std::size_t* bytes) const;
  /** Returns the bytes of a request. */
  [[nodiscard]] static constexpr std::size_t rounded(std::size_t bytes) noexcept {
    return (bytes + unit - 1) / unit * unit;
  }

 private:
  enum class state : std::uint8_t { used, ending, free };

  struct block {
    std::size_t bytes = 0;
    std::size_t asked = 0;  // of one in use
    CUdeviceptr range = 0;  // where that begins
    state is = state::free;
    point after;  // of a free one; null: for all
  };
  using blocks = std::map<CUdeviceptr, block>;

  struct queue {
    std::set<std::pair<std::size_t, CUdeviceptr>> by_size;
    std::set<std::pair<std::uint64_t, CUdeviceptr>> by_age;  // numbers of points
  };

  static constexpr std::uint64_t all_streams = ~std::uint64_t{0};

  [[nodiscard]] static std::uint64_t stream_of(const block& one) noexcept {
    return one.after == nullptr ? all_streams : one.after->stream;
  }
  [[nodiscard]] bool is_whole(blocks::iterator one) const;
  void enqueue(blocks::iterator one);
  void dequeue(blocks::iterator one);
  /** Merges a free block, which is in no queue, with its neighbours, and puts it into its queue. */
  void insert_free(blocks::iterator one);
  /** Takes a part of a free block. */
  CUdeviceptr cut(blocks::iterator one, std::size_t asked);

  blocks blocks_;
  std::map<CUdeviceptr, std::size_t> ranges_;
  std::map<std::uint64_t, queue> free_;
  std::set<std::pair<std::size_t, CUdeviceptr>> whole_;
};

}  // namespace gdev
