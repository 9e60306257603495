// The litmus shapes that device code relies on, between the blocks of a launch. With the orders of
// the code, the forbidden outcome must never occur. Without order it may occur, and is counted, to
// show that the threads of a run meet.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "litmus/shape_kernels.cuh"
#include "support/device.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing::litmus {

struct size_of_runs {
  std::uint32_t instances, blocks, threads, stride_max;
  std::uint64_t rounds;
};
// About half a second on an H100. Blocks: 0 means as many as the shape has roles.
static size_of_runs size_for(device_kind kind) {
  if (kind == device_kind::cuda) return {1u << 18, 512, 256, 8, 400};
#if defined(__SANITIZE_THREAD__)
  return {1u << 12, 0, 1, 8, 3};
#else
  return {1u << 16, 0, 1, 8, 3};
#endif
}

template <class Shape, bool weak>
static histogram play_rounds(mount& m, const size_of_runs& size, work_budget* budget,
                             std::uint64_t rounds) {
  // Allocated without a copy of zeros, which would take longer than the runs.
  const std::size_t words = arena_of_runs::words(size.instances, size.stride_max);
  auto* const variables =
      static_cast<atomic_word<std::uint32_t>*>(m.allocate(words * sizeof(std::uint32_t)));
  auto* const registers = static_cast<atomic_word<std::uint32_t>*>(
      m.allocate(std::size_t{registers_max} * size.instances * sizeof(std::uint32_t)));
  const device_array<histogram> counts(m, 1);
  const device_array<atomic_word<std::uint32_t>> met(m, 1);
  const launch_shape shape{size.blocks != 0 ? size.blocks : Shape::threads, size.threads, 0,
                           nullptr};
  for (std::uint64_t round = 0; budget == nullptr ? round < rounds : budget->next(); ++round) {
    const std::uint64_t seed = budget == nullptr ? round : budget->seed();
    // Neighbours share a sector of memory, or do not.
    const arena_of_runs runs{variables, registers, size.instances,
                             std::min(1u << mix(seed) % 4, size.stride_max), met.data()};
    launch(m, shape, play_kernel<Shape, weak>{runs, seed});
    launch(m, shape,
           count_kernel<Shape>{runs, reinterpret_cast<atomic_word<std::uint64_t>*>(counts.data())});
  }
  const histogram h = counts.download()[0];
  m.free(variables);
  m.free(registers);
  return h;
}

template <class Shape>
class LitmusShapes : public ::testing::Test {};
using shapes = ::testing::Types<message_passing, message_through_counts, store_buffering,
                                store_buffering_by_counts, load_buffering, store_after_look,
                                read_twice, write_to_read_causality, handed_on, independent_reads>;
struct name_of_shape {
  template <class Shape>
  static std::string GetName(int) {
    std::string name = Shape::name;
    for (char& c : name) c = c == ' ' || c == '-' ? '_' : c;
    return name;
  }
};
TYPED_TEST_SUITE(LitmusShapes, shapes, name_of_shape);

// Whether device code relies on the absence of the outcome.
template <class Shape>
constexpr bool is_relied_on = !std::is_same_v<Shape, independent_reads>;

TYPED_TEST(LitmusShapes, shows_no_forbidden_outcome) {
  mount m(base_options());
  const size_of_runs size = size_for(device());
  work_budget budget(size.rounds);
  const histogram used = play_rounds<TypeParam, false>(m, size, &budget, 0);
  const histogram weak = play_rounds<TypeParam, true>(m, size, nullptr, size.rounds);
  std::printf("litmus: %s: %llu of %llu runs%s; with no order %llu of %llu\n", TypeParam::name,
              static_cast<unsigned long long>(used.template forbidden<TypeParam>()),
              static_cast<unsigned long long>(used.all()),
              is_relied_on<TypeParam> ? "" : " (not relied on)",
              static_cast<unsigned long long>(weak.template forbidden<TypeParam>()),
              static_cast<unsigned long long>(weak.all()));
  budget.covers("runs", used.all());
  EXPECT_EQ(used.all(), budget.begun() * size.instances) << "each run is counted once";
  EXPECT_EQ(weak.all(), size.rounds * size.instances);
  if (is_relied_on<TypeParam>) {
    EXPECT_EQ(used.template forbidden<TypeParam>(), 0u) << budget.replay();
  }
}

}  // namespace gpufs::testing::litmus
