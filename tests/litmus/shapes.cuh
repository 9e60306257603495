// Litmus shapes: a few threads with a few accesses each, and an outcome that must not occur. One
// table for each shape says what its threads do. The kernel that runs the shape (shape_kernels.cuh)
// and the search for its possible outcomes (search.hpp) both use it.
#pragma once

#include "gpufs/base/platform.cuh"

namespace gpufs::testing::litmus {

// The accesses of device code, and the calls of atomic_word that make them.
enum class access : std::uint32_t {
  store_relaxed,
  store_release,
  store_before_load,  // with load_after_store, by the same thread
  load_relaxed,
  load_acquire,
  load_after_store,
  // Relaxed. The thread continues only when the value has arrived (platform::wait_for_arrival).
  load_that_arrives,
  load_from_cache,  // an ordinary load, which a first-level cache may answer
  store_if,         // relaxed, if the thread's previous load was not 0
  add_relaxed,      // read-modify-writes return the old value
  add_release,
  add_acquire,
  add_acq_rel,
  none
};

struct step {
  std::uint32_t thread;
  access what;
  std::uint32_t variable;
  std::uint32_t value;  // value to store or add; for a load, the register for its result
  // for a read-modify-write, the register for the old value; otherwise no_register
  std::uint32_t into;
};
constexpr std::uint32_t no_register = ~0u;
constexpr std::uint32_t registers_max = 4;
constexpr std::uint32_t variables_max = 3;
constexpr std::uint32_t steps_max = 6;

GPUFS_HD constexpr step store(std::uint32_t thread, access what, std::uint32_t variable,
                              std::uint32_t value) {
  return {thread, what, variable, value, no_register};
}
GPUFS_HD constexpr step load(std::uint32_t thread, access what, std::uint32_t variable,
                             std::uint32_t into) {
  return {thread, what, variable, into, no_register};
}
GPUFS_HD constexpr step add(std::uint32_t thread, access what, std::uint32_t variable,
                            std::uint32_t value, std::uint32_t into) {
  return {thread, what, variable, value, into};
}

GPUFS_HD constexpr bool is_store(access a) {
  return a == access::store_relaxed || a == access::store_release ||
         a == access::store_before_load || a == access::store_if;
}
GPUFS_HD constexpr bool is_add(access a) {
  return a == access::add_relaxed || a == access::add_release || a == access::add_acquire ||
         a == access::add_acq_rel;
}
GPUFS_HD constexpr bool is_load(access a) {
  return !is_store(a) && !is_add(a) && a != access::none;
}

// Returns the same access without its order.
GPUFS_HD constexpr access weakened(access a) {
  switch (a) {
    case access::store_release:
    case access::store_before_load: return access::store_relaxed;
    case access::load_acquire:
    case access::load_after_store:
    case access::load_that_arrives: return access::load_relaxed;
    case access::add_release:
    case access::add_acquire:
    case access::add_acq_rel: return access::add_relaxed;
    default: return a;
  }
}

// The outcome of a run: the registers, up to 3 each. If a shape names a final variable, its value
// at the end is in the last register.
struct outcome {
  std::uint32_t registers[registers_max];
  GPUFS_HD constexpr std::uint32_t code() const {
    std::uint32_t c = 0;
    for (std::uint32_t i = 0; i < registers_max; ++i) c |= (registers[i] & 3) << (2 * i);
    return c;
  }
  GPUFS_HD constexpr static outcome of(std::uint32_t code) {
    outcome o{};
    for (std::uint32_t i = 0; i < registers_max; ++i) o.registers[i] = code >> (2 * i) & 3;
    return o;
  }
};
constexpr std::uint32_t outcome_codes = 1u << (2 * registers_max);

// ---- The shapes. x, y, z: variables 0, 1, 2.

// Message passing: a page's bytes and its state, or a reply's fields and its word.
struct message_passing {
  static constexpr const char* name = "message passing";
  static constexpr std::uint32_t threads = 2, final_variable = no_register;
  static constexpr step steps[] = {
      store(0, access::store_relaxed, 0, 1), store(0, access::store_release, 1, 1),
      load(1, access::load_acquire, 1, 0), load(1, access::load_relaxed, 0, 1)};
  static constexpr bool forbidden(const outcome& o) {
    return o.registers[0] == 1 && o.registers[1] == 0;
  }
};

// The same while other threads count in the state word: publish() and pin(), with an unpin_copied()
// or a pin of another group between them.
struct message_through_counts {
  static constexpr const char* name = "message through counts";
  static constexpr std::uint32_t threads = 3, final_variable = no_register;
  static constexpr step steps[] = {
      store(0, access::store_relaxed, 0, 1), add(0, access::add_release, 1, 2, no_register),
      add(1, access::add_relaxed, 1, 1, no_register), add(2, access::add_acquire, 1, 0, 0),
      load(2, access::load_relaxed, 0, 1)};
  static constexpr bool forbidden(const outcome& o) {
    return (o.registers[0] & 2) != 0 && o.registers[1] == 0;
  }
};

// Store buffering: withdraw() and the worker's begin().
struct store_buffering {
  static constexpr const char* name = "store buffering";
  static constexpr std::uint32_t threads = 2, final_variable = no_register;
  static constexpr step steps[] = {
      store(0, access::store_before_load, 0, 1), load(0, access::load_after_store, 1, 0),
      store(1, access::store_before_load, 1, 1), load(1, access::load_after_store, 0, 1)};
  static constexpr bool forbidden(const outcome& o) {
    return o.registers[0] == 0 && o.registers[1] == 0;
  }
};

// The same with read-modify-writes of both orders: a write that has marked its page and then checks
// for truncations, and a truncation that has begun and then checks for pages (no_cut_since()).
struct store_buffering_by_counts {
  static constexpr const char* name = "store buffering by counts";
  static constexpr std::uint32_t threads = 2, final_variable = no_register;
  static constexpr step steps[] = {
      add(0, access::add_acq_rel, 0, 1, no_register), add(0, access::add_acq_rel, 1, 0, 0),
      add(1, access::add_acq_rel, 1, 1, no_register), load(1, access::load_acquire, 0, 1)};
  static constexpr bool forbidden(const outcome& o) {
    return o.registers[0] == 0 && o.registers[1] == 0;
  }
};

// Load buffering: loaded values have arrived when a relaxed store returns the pin
// (store_after_reads(), unpin_copied()). So the next owner overwrites no byte that is still to be
// loaded.
struct load_buffering {
  static constexpr const char* name = "load buffering";
  static constexpr std::uint32_t threads = 2, final_variable = no_register;
  static constexpr step steps[] = {
      load(0, access::load_that_arrives, 0, 0), store(0, access::store_relaxed, 1, 1),
      load(1, access::load_acquire, 1, 1), store(1, access::store_relaxed, 0, 1)};
  static constexpr bool forbidden(const outcome& o) {
    return o.registers[0] == 1 && o.registers[1] == 1;
  }
};

// A thread publishes a page. Another thread stores into it after it has read its state without
// acquire (pin_and_look<use::stores>). The second thread's store must be the last.
struct store_after_look {
  static constexpr const char* name = "store after a look";
  static constexpr std::uint32_t threads = 2, final_variable = 0;
  static constexpr step steps[] = {
      store(0, access::store_relaxed, 0, 1), store(0, access::store_release, 1, 1),
      load(1, access::load_relaxed, 1, 0), store(1, access::store_if, 0, 2)};
  static constexpr bool forbidden(const outcome& o) {
    return o.registers[0] == 1 && o.registers[registers_max - 1] == 1;
  }
};

// One word read twice: a wait that ends with a separate acquire (load_for_wait(), end_wait()).
struct read_twice {
  static constexpr const char* name = "one word read twice";
  static constexpr std::uint32_t threads = 2, final_variable = no_register;
  static constexpr step steps[] = {store(0, access::store_relaxed, 0, 1),
                                   load(1, access::load_relaxed, 0, 0),
                                   load(1, access::load_acquire, 0, 1)};
  static constexpr bool forbidden(const outcome& o) {
    return o.registers[0] == 1 && o.registers[1] == 0;
  }
  // The same with a cache that is never invalidated.
  static constexpr step weak_steps[] = {
      store(0, access::store_relaxed, 0, 1), load(1, access::load_from_cache, 0, 2),
      load(1, access::load_relaxed, 0, 0), load(1, access::load_from_cache, 0, 1)};
};

// Three threads in a row: members store, the leader has seen the stores and publishes, another
// group reads.
struct write_to_read_causality {
  static constexpr const char* name = "write-to-read causality";
  static constexpr std::uint32_t threads = 3, final_variable = no_register;
  static constexpr step steps[] = {
      store(0, access::store_relaxed, 0, 1), load(1, access::load_relaxed, 0, 0),
      store(1, access::store_release, 1, 1), load(2, access::load_acquire, 1, 1),
      load(2, access::load_relaxed, 0, 2)};
  static constexpr bool forbidden(const outcome& o) {
    return o.registers[0] == 1 && o.registers[1] == 1 && o.registers[2] == 0;
  }
};

// Passed on twice: a group passes on a page that another group loaded.
struct handed_on {
  static constexpr const char* name = "handed on";
  static constexpr std::uint32_t threads = 3, final_variable = no_register;
  static constexpr step steps[] = {
      store(0, access::store_relaxed, 0, 1), store(0, access::store_release, 1, 1),
      load(1, access::load_acquire, 1, 0),   store(1, access::store_release, 2, 1),
      load(2, access::load_acquire, 2, 1),   load(2, access::load_relaxed, 0, 2)};
  static constexpr bool forbidden(const outcome& o) {
    return o.registers[0] == 1 && o.registers[1] == 1 && o.registers[2] == 0;
  }
};

// Two readers see two stores in different orders. No code relies on its absence; it is only
// counted.
struct independent_reads {
  static constexpr const char* name = "independent reads";
  static constexpr std::uint32_t threads = 4, final_variable = no_register;
  static constexpr step steps[] = {
      store(0, access::store_relaxed, 0, 1), store(1, access::store_relaxed, 1, 1),
      load(2, access::load_acquire, 0, 0),   load(2, access::load_relaxed, 1, 1),
      load(3, access::load_acquire, 1, 2),   load(3, access::load_relaxed, 0, 3)};
  static constexpr bool forbidden(const outcome& o) {
    return o.registers[0] == 1 && o.registers[1] == 0 && o.registers[2] == 1 && o.registers[3] == 0;
  }
};

// The steps of a shape's threads: as the code that relies on them makes them, or without order.
template <class Shape, bool weak>
struct program {
  static constexpr bool has_own_weak_steps = requires { Shape::weak_steps; };
  GPUFS_HD static constexpr std::uint32_t count() {
    if constexpr (weak && has_own_weak_steps) return sizeof(Shape::weak_steps) / sizeof(step);
    else return sizeof(Shape::steps) / sizeof(step);
  }
  GPUFS_HD static constexpr step at(std::uint32_t i) {
    if constexpr (weak && has_own_weak_steps) {
      return Shape::weak_steps[i];
    } else {
      step s = Shape::steps[i];
      if (weak) s.what = weakened(s.what);
      return s;
    }
  }
};

// How often each outcome occurred.
struct histogram {
  std::uint64_t counts[outcome_codes];

  template <class Shape>
  constexpr std::uint64_t forbidden() const {
    std::uint64_t n = 0;
    for (std::uint32_t c = 0; c < outcome_codes; ++c)
      n += Shape::forbidden(outcome::of(c)) ? counts[c] : 0;
    return n;
  }
  constexpr std::uint64_t all() const {
    std::uint64_t n = 0;
    for (const std::uint64_t count : counts) n += count;
    return n;
  }
};

}  // namespace gpufs::testing::litmus
