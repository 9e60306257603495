// Launches of walks, for the files that are compiled as CUDA.
#pragma once

#include <bit>

#include "engine/bench.hpp"
#include "engine/raw_kernels.cuh"
#include "engine/runtime.hpp"
#include "engine/stopwatch.hpp"
#include "gpufs/device_array.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"

namespace gpufs::bench {

// Twice as many blocks as run at the same time: with whole waves no multiprocessor is idle at the
// end.
inline launch_shape shape_of(mount& m, const walk& w,
                             std::uint32_t at_once = tuned_shape::blocks_per_multiprocessor) {
  return {w.blocks != 0 ? w.blocks : m.multiprocessors() * at_once * 2, w.threads, 0, nullptr};
}

// With the groups' scratch memory, for walks that read into shared memory.
inline launch_shape shape_with_scratch(
    mount& m, const walk& w, std::uint32_t at_once = tuned_shape::blocks_per_multiprocessor) {
  launch_shape shape = shape_of(m, w, at_once);
  const std::uint64_t groups = w.how == access::read_by_warp ? w.threads / 32 : 1;
  shape.scratch_bytes = groups * w.chunk_bytes;
  return shape;
}

// Returns a walk of warps that write, with scratch memory for one chunk each.
inline walk walk_of(const writing& w, std::uint64_t operations, bool random) {
  walk all;
  all.how = access::read_by_warp;
  all.random = random;
  all.span_bytes = w.bytes;
  all.chunk_bytes = w.chunk_bytes;
  all.operations = operations;
  all.blocks = w.blocks;
  return all;
}

inline std::uint32_t record_shift(const walk& w) {
  return static_cast<std::uint32_t>(std::countr_zero(w.chunk_bytes / sizeof(std::uint64_t)));
}

// Throws EINVAL for walks that the kernels cannot make.
inline void check_walk(const walk& w) {
  if (!std::has_single_bit(w.span_bytes) || !std::has_single_bit(w.chunk_bytes) ||
      w.chunk_bytes < 8 || w.chunk_bytes > w.span_bytes) {
    throw error(EINVAL,
                "bench: span and chunk must be powers of two, the chunk at least 8 bytes and at "
                "most the span");
  }
  if (w.operations == 0) throw error(EINVAL, "bench: a walk of no operations");
  if (w.threads == 0 || w.threads > 256 || w.threads % 32 != 0) {
    throw error(EINVAL, "bench: blocks have 32 to 256 threads, whole warps");
  }
}

// The arguments and the results of the kernels of one measurement.
class told {
 public:
  explicit told(mount& m) : mount_(m), tally_(m, 1) {}
  tally* data() const { return tally_.data(); }
  task make_task(std::int32_t fd, const walk& w, std::uint64_t operations) const {
    const std::uint64_t chunks = w.span_bytes / w.chunk_bytes;
    return {fd, w.random ? order::random(chunks) : order::forward(chunks), w.chunk_bytes,
            operations, tally_.data()};
  }
  std::uint64_t wrong_bytes() const {
    tally seen{};
    mount_.copy_to_host(&seen, tally_.data(), sizeof seen);
    return seen.wrong_bytes.load_relaxed();
  }

 private:
  mount& mount_;
  device_array<tally> tally_;
};

// Times a launch. First calls `launch_it(0)`, because CUDA loads a kernel at its first launch.
template <class Launch>
sample timed(mount& m, const walk& w, const told& t, const Launch& launch_it) {
  const std::unique_ptr<runtime> device = make_runtime(m);
  launch_it(0);
  m.synchronize();
  sample s;
  const stopwatch watch;
  s.seconds = device->seconds([&] { launch_it(w.operations); });
  s.cpu_seconds = watch.cpu_seconds();
  s.operations = w.operations;
  s.bytes = w.operations * w.chunk_bytes;
  s.wrong_bytes = t.wrong_bytes();
  return s;
}

}  // namespace gpufs::bench
