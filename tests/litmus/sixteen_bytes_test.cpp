// Litmus tests of 16 bytes as one access: on GPUs only, and only if the build needs it.
#include <gtest/gtest.h>

#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "litmus/counted_reads.hpp"
#include "support/device.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing::litmus {

#if defined(GPUFS_TESTS_ON_GPU) && !GPUFS_STRICT_MEMORY

struct alignas(16) sixteen_bytes {
  atomic_word<std::uint32_t> counter[4];
};

enum class sixteen_by {
  adds,          // a writer adds to four words, one after another
  stores,        // a writer stores two words, one after another
  whole_stores,  // stores of 16 bytes
  four_loads     // weakened: additions, and the first word is read first
};

template <sixteen_by how>
struct sixteen_bytes_kernel {
  sixteen_bytes* all;
  read_counts* counts;
  std::uint32_t places, rounds;
  std::uint64_t seed;

  GPUFS_HD void operator()(const mount_ref&) const {
    const std::uint64_t me = thread_group::grid_rank();
    const auto lane = static_cast<std::uint32_t>(me % 32);
    if (me / 32 < places) {
      for (std::uint32_t n = 1; n <= rounds && lane == 0; ++n) write(all[me / 32], n);
      return;
    }
    std::uint64_t wrong = 0;
    for (std::uint32_t n = 0; n < rounds; ++n)
      wrong += is_right(all[mix(seed + (me << 32) + n) % places]) ? 0 : 1;
    counts->reads.add_relaxed(rounds);
    if (wrong != 0) counts->wrong.add_relaxed(wrong);
  }

 private:
  GPUFS_HD static void write(sixteen_bytes& place, [[maybe_unused]] std::uint32_t n) {
    if constexpr (how == sixteen_by::stores) {
      auto* const words = reinterpret_cast<atomic_word<std::uint64_t>*>(&place);
      words[0].store_release(twice(n));
      words[1].store_release(twice(n));
    } else if constexpr (how == sixteen_by::whole_stores) {
#if defined(__CUDA_ARCH__)
      store_16_relaxed(&place, {twice(n), twice(n)});
#endif
    } else {
      for (auto& counter : place.counter) (void)counter.fetch_add_release(1);
    }
  }
  GPUFS_HD static bool is_right(const sixteen_bytes& place) {
    four_counters c{};
    if constexpr (how == sixteen_by::four_loads) {
      for (int i = 0; i < 4; ++i) c.value[i] = place.counter[i].load_relaxed();
    } else {
#if defined(__CUDA_ARCH__)
      const word_pair p = load_16_relaxed(&place);
      c = {{static_cast<std::uint32_t>(p.first), static_cast<std::uint32_t>(p.first >> 32),
            static_cast<std::uint32_t>(p.second), static_cast<std::uint32_t>(p.second >> 32)}};
#endif
    }
    if (how == sixteen_by::whole_stores)
      return c.value[0] == c.value[1] && c.value[1] == c.value[2] && c.value[2] == c.value[3];
    return are_in_turn(c);
  }
};

// Launches `kernel(memory, counts, seed)` with new memory for each step. Returns the sums.
template <class Kernel>
static read_counts sum_of_launches(work_budget* budget, std::uint64_t steps, std::uint32_t places,
                                   std::uint32_t blocks, const Kernel& kernel) {
  read_counts all{};
  mount m(base_options());
  for (std::uint64_t n = 0; budget == nullptr ? n < steps : budget->next(); ++n) {
    const device_array<sixteen_bytes> memory(m, places);
    const device_array<read_counts> counts(m, 1);
    launch(m, {blocks, 128, 0, nullptr},
           kernel(memory.data(), counts.data(), budget == nullptr ? n : budget->seed()));
    const read_counts got = counts.download()[0];
    all.reads.value += got.reads.value;
    all.wrong.value += got.wrong.value;
  }
  if (budget != nullptr) budget->covers("reads", all.reads.value);
  return all;
}

template <sixteen_by how>
static read_counts read_sixteen_bytes(work_budget* budget, std::uint64_t steps) {
  constexpr std::uint32_t places = 64;
  return sum_of_launches(budget, steps, places, 128,
                         [](sixteen_bytes* memory, read_counts* counts, std::uint64_t seed) {
                           return sixteen_bytes_kernel<how>{memory, counts, places, 4000, seed};
                         });
}

template <sixteen_by how>
static void test_sixteen_bytes(const char* name) {
  work_budget budget(steps());
  const read_counts used = read_sixteen_bytes<how>(&budget, 0);
  print_counts(name, used, read_sixteen_bytes<sixteen_by::four_loads>(nullptr, steps()));
  EXPECT_EQ(used.wrong.value, 0u) << budget.replay();
  EXPECT_GT(used.reads.value, 0u);
}

TEST(LitmusCache, sixteen_bytes_are_of_one_moment_beside_additions_of_four) {
  test_sixteen_bytes<sixteen_by::adds>("16 bytes beside additions of 4");
}
TEST(LitmusCache, sixteen_bytes_are_of_one_moment_beside_stores_of_eight) {
  test_sixteen_bytes<sixteen_by::stores>("16 bytes beside stores of 8");
}
TEST(LitmusCache, sixteen_bytes_are_of_one_moment_beside_stores_of_sixteen) {
  test_sixteen_bytes<sixteen_by::whole_stores>("16 bytes beside stores of 16");
}

// A pin, then a load of the half of the header that contains it: by many threads, of few words.
// Weakened: the load does not follow the addition.
template <bool weak>
struct add_and_look_kernel {
  sixteen_bytes* all;
  read_counts* counts;
  std::uint32_t places, rounds;
  std::uint64_t seed;

  GPUFS_HD void operator()(const mount_ref&) const {
    const std::uint64_t me = thread_group::grid_rank();
    std::uint64_t wrong = 0;
    for (std::uint32_t n = 0; n < rounds; ++n) {
      [[maybe_unused]] sixteen_bytes& place = all[mix(seed + (me << 32) + n) % places];
      std::uint32_t before = 0, after = 0;
#if defined(__CUDA_ARCH__)
      if (weak) after = static_cast<std::uint32_t>(load_16_relaxed(&place).first);
      asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(__cvta_generic_to_global(&place))
                   : "memory");
      if (!weak) after = static_cast<std::uint32_t>(load_16_relaxed(&place).first);
#endif
      wrong += after > before ? 0 : 1;
    }
    counts->reads.add_relaxed(rounds);
    if (wrong != 0) counts->wrong.add_relaxed(wrong);
  }
};

template <bool weak>
static read_counts add_and_look(work_budget* budget, std::uint64_t steps) {
  constexpr std::uint32_t places = 512;
  return sum_of_launches(budget, steps, places, 256,
                         [](sixteen_bytes* memory, read_counts* counts, std::uint64_t seed) {
                           return add_and_look_kernel<weak>{memory, counts, places, 1000, seed};
                         });
}

TEST(LitmusCache, a_thread_finds_its_own_pin_in_the_sixteen_bytes_around_it) {
  work_budget budget(steps());
  const read_counts used = add_and_look<false>(&budget, 0);
  print_counts("own addition, then 16 bytes", used, add_and_look<true>(nullptr, steps()));
  EXPECT_EQ(used.wrong.value, 0u) << budget.replay();
  EXPECT_GT(used.reads.value, 0u);
}

#endif

}  // namespace gpufs::testing::litmus
