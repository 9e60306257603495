// Runs litmus shapes millions of times. On a GPU every thread of a launch plays each role of a
// shape, but for different instances. So the threads of one instance are in different warps, blocks
// and multiprocessors, and no thread waits for another. On the CPU device each role is a block, and
// so a thread.
#pragma once

#include "gpufs/base/atomic.cuh"
#include "gpufs/base/group.cuh"
#include "gpufs/cache/arena.cuh"
#include "litmus/shapes.cuh"

namespace gpufs::testing::litmus {

// The memory of `instances` runs of a shape.
struct arena_of_runs {
  atomic_word<std::uint32_t>*
      variables;  // variable after variable, `instances` of each, `stride` words apart
  atomic_word<std::uint32_t>* registers;  // [register][instance]
  std::uint32_t instances;                // a power of two
  std::uint32_t stride;
  atomic_word<std::uint32_t>* met;  // how often threads of the CPU device have met

  GPUFS_HD atomic_word<std::uint32_t>& variable(std::uint32_t v, std::uint32_t instance) const {
    return variables[(std::uint64_t{v} * instances + instance) * stride];
  }
  static std::size_t words(std::uint32_t instances, std::uint32_t stride_max) {
    return std::size_t{variables_max} * instances * stride_max;
  }
};

// An ordinary load, as the compiler makes it from a pointer: a first-level cache may answer it. The
// CPU device has no such cache.
GPUFS_HD inline std::uint32_t load_from_cache(const atomic_word<std::uint32_t>& word) {
#if defined(__CUDA_ARCH__)
  std::uint32_t value;
  asm volatile("ld.global.ca.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(&word))
               : "memory");
  return value;
#else
  return word.load_relaxed();
#endif
}

// What one thread of the shape has read. Compilers keep it in registers.
struct seen_by_thread {
  std::uint32_t registers[registers_max];
  std::uint32_t last;
};

template <class Program, std::uint32_t i>
GPUFS_HD void make_step(atomic_word<std::uint32_t>& word, seen_by_thread& seen) {
  constexpr step s = Program::at(i);
  if constexpr (is_load(s.what)) {
    std::uint32_t got = 0;
    if constexpr (s.what == access::load_acquire) got = word.load_acquire();
    else if constexpr (s.what == access::load_after_store) got = word.load_after_store();
    else if constexpr (s.what == access::load_from_cache) got = load_from_cache(word);
    else got = word.load_relaxed();
    if constexpr (s.what == access::load_that_arrives) platform::wait_for_arrival(got);
    seen.registers[s.value] = got;
    seen.last = got;
  } else if constexpr (is_add(s.what)) {
    std::uint32_t got = 0;
    if constexpr (s.what == access::add_release) got = word.fetch_add_release(s.value);
    else if constexpr (s.what == access::add_acquire) got = word.fetch_add_acquire(s.value);
    else if constexpr (s.what == access::add_acq_rel) got = word.fetch_add_acq_rel(s.value);
    else got = word.fetch_add_relaxed(s.value);
    if constexpr (s.into != no_register) seen.registers[s.into] = got;
  } else if constexpr (s.what == access::store_release) {
    word.store_release(s.value);
  } else if constexpr (s.what == access::store_before_load) {
    word.store_before_load(s.value);
  } else if constexpr (s.what == access::store_if) {
    if (seen.last != 0) word.store_relaxed(s.value);
  } else if constexpr (s.what == access::store_relaxed) {
    word.store_relaxed(s.value);
  }
}

template <class Program, std::uint32_t role, std::uint32_t i = 0>
GPUFS_HD void make_steps(const arena_of_runs& runs, std::uint32_t instance, seen_by_thread& seen) {
  if constexpr (i < Program::count()) {
    constexpr step s = Program::at(i);
    if constexpr (s.thread == role)
      make_step<Program, i>(runs.variable(s.variable, instance), seen);
    make_steps<Program, role, i + 1>(runs, instance, seen);
  }
}
template <class Program, std::uint32_t role, std::uint32_t i = 0>
GPUFS_HD void keep_registers(const arena_of_runs& runs, std::uint32_t instance,
                             const seen_by_thread& seen) {
  if constexpr (i < Program::count()) {
    constexpr step s = Program::at(i);
    constexpr std::uint32_t kept = is_load(s.what)  ? s.value
                                   : is_add(s.what) ? s.into
                                                    : no_register;
    if constexpr (s.thread == role && kept != no_register)
      runs.registers[std::uint64_t{kept} * runs.instances + instance].store_relaxed(
          seen.registers[kept]);
    keep_registers<Program, role, i + 1>(runs, instance, seen);
  }
}

template <class Program, std::uint32_t role>
GPUFS_HD void play(const arena_of_runs& runs, std::uint32_t instance) {
  seen_by_thread seen{};
  make_steps<Program, role>(runs, instance, seen);
  keep_registers<Program, role>(runs, instance, seen);
}

template <class Shape, bool weak>
struct play_kernel {
  using steps = program<Shape, weak>;
  arena_of_runs runs;
  std::uint64_t seed;

  GPUFS_HD void operator()(const mount_ref&) const {
    if constexpr (platform::is_gpu) play_all_roles();
    else play_one_role();
  }

 private:
  GPUFS_HD void play_role(std::uint32_t role, std::uint32_t instance) const {
    if (role == 0) play<steps, 0>(runs, instance);
    if (role == 1) play<steps, 1>(runs, instance);
    if constexpr (Shape::threads > 2) {
      if (role == 2) play<steps, 2>(runs, instance);
    }
    if constexpr (Shape::threads > 3) {
      if (role == 3) play<steps, 3>(runs, instance);
    }
  }

  GPUFS_HD void play_all_roles() const {
    const std::uint64_t all = thread_group::grid_size();
    for (std::uint64_t base = thread_group::grid_rank(); base < runs.instances; base += all) {
      // The lanes of a warp have the same role, because otherwise the roles would run one after
      // another.
      const auto first = static_cast<std::uint32_t>(mix(seed + base / 32) % Shape::threads);
      for (std::uint32_t k = 0; k < Shape::threads; ++k) {
        const std::uint32_t role = (first + k) % Shape::threads;
        play_role(role, instance_for(static_cast<std::uint32_t>(base), role, all));
      }
    }
  }
  // Returns another instance for each role, from a thread that has made about the same progress.
  GPUFS_HD std::uint32_t instance_for(std::uint32_t base, std::uint32_t role,
                                      std::uint64_t all) const {
    std::uint64_t near = 1;
    while (near * 2 <= all && near < runs.instances) near *= 2;
    return base ^ static_cast<std::uint32_t>(mix(seed * 8 + role) & (near - 1));
  }

  // The CPU device has few threads, which meet before each run. The wait is bounded, because a
  // thread may be prevented from running.
  GPUFS_HD void play_one_role() const {
    const auto role = static_cast<std::uint32_t>(thread_group::grid_rank());
    std::uint32_t patience = 3'000'000;
    for (std::uint32_t instance = 0; instance < runs.instances; ++instance) {
      (void)runs.met->fetch_add_acq_rel(1);
      while (runs.met->load_acquire() < (instance + 1) * Shape::threads && patience != 0)
        --patience;
      play_role(role, instance);
    }
  }
};

// Counts the outcomes, and resets everything for the next run.
template <class Shape>
struct count_kernel {
  arena_of_runs runs;
  atomic_word<std::uint64_t>* counts;  // [outcome_codes]

  GPUFS_HD void operator()(const mount_ref&) const {
    const std::uint64_t all = thread_group::grid_size();
    runs.met->store_relaxed(0);
    for (std::uint64_t at = thread_group::grid_rank(); at < runs.instances; at += all) {
      const auto instance = static_cast<std::uint32_t>(at);
      outcome o{};
      for (std::uint32_t r = 0; r < registers_max; ++r) {
        atomic_word<std::uint32_t>& kept =
            runs.registers[std::uint64_t{r} * runs.instances + instance];
        o.registers[r] = kept.load_relaxed();
        kept.store_relaxed(0);
      }
      if (Shape::final_variable != no_register)
        o.registers[registers_max - 1] =
            runs.variable(Shape::final_variable, instance).load_relaxed();
      for (std::uint32_t v = 0; v < variables_max; ++v) runs.variable(v, instance).store_relaxed(0);
      counts[o.code()].add_relaxed(1);
    }
  }
};

}  // namespace gpufs::testing::litmus
