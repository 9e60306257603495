// Litmus shapes: a few threads with a few accesses each, and an outcome that must not be seen. One
// table for each shape says what its threads do, and serves the kernel that runs it
// (shape_kernels.cuh) as well as the search for what it allows (search.hpp).
#pragma once

#include "gpufs/base/platform.cuh"

namespace gpufs::testing::litmus {

// The accesses that device code makes, with the calls of atomic_word that make them.
enum class access : std::uint32_t {
  store_relaxed,
  store_release,
  store_before_load,  // with load_after_store, by the same thread
  load_relaxed,
  load_acquire,
  load_after_store,
  // relaxed; what the thread does next, it does when the value is there
  // (platform::wait_for_arrival)
  load_that_arrives,
  load_from_cache,  // an ordinary load, which a first-level cache may answer
  store_if,         // relaxed, if the thread's load before was not 0
  add_relaxed,      // read-modify-writes give what was there
  add_release,
  add_acquire,
  add_acq_rel,
  none
};

struct step {
  std::uint32_t thread;
  access what;
  std::uint32_t variable;
  std::uint32_t value;  // stored or added; of a load, the register that gets what was there
  std::uint32_t into;   // of a read-modify-write, that register; else no_register
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

// The same without the order that it gives.
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

// What a run gave: the registers, up to 3 each. A variable that a shape wants to be looked at in
// the end comes in a register too.
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

// ---- the shapes. x, y, z: variables 0, 1, 2.

// Message passing: a page's bytes and its state, a reply and its word.
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

// The same where others count in the state word meanwhile: publish() and pin(), with an
// unpin_copied() or a pin of another group between them.
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

// The same by read-modify-writes of both orders: a write that has marked its page and asks for
// truncations, and a truncation that has begun and looks for pages (no_cut_since()).
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

// Load buffering: what was read is in use when the pin is given back by a relaxed store
// (store_after_reads(), unpin_copied()), so who then overwrites it overwrites nothing that is still
// to be read.
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

// A page is published, and then written by a thread that has looked at its state without acquire
// (pin_and_look<use::stores>): the last store is the second.
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

// One place read twice: a wait that ends with an acquire of its own (load_for_wait(), end_wait()).
struct read_twice {
  static constexpr const char* name = "one word read twice";
  static constexpr std::uint32_t threads = 2, final_variable = no_register;
  static constexpr step steps[] = {store(0, access::store_relaxed, 0, 1),
                                   load(1, access::load_relaxed, 0, 0),
                                   load(1, access::load_acquire, 0, 1)};
  static constexpr bool forbidden(const outcome& o) {
    return o.registers[0] == 1 && o.registers[1] == 0;
  }
  // What it would be with a cache that nobody empties.
  static constexpr step weak_steps[] = {
      store(0, access::store_relaxed, 0, 1), load(1, access::load_from_cache, 0, 2),
      load(1, access::load_relaxed, 0, 0), load(1, access::load_from_cache, 0, 1)};
};

// Three in a row: members' stores, the leader that has seen them publishes, another group reads.
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

// Handed on twice: a page that another group loaded is given away by one that only had it.
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

// Two readers that see two stores in different orders. Nothing relies on its absence; it is
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

// What a shape's threads do: as the code that relies on it does it, or with no order.
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

// How often each outcome was seen.
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
