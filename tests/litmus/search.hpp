// Computes the outcomes that a litmus shape can have on a model machine. The machine may reorder
// each thread's accesses as far as their named orders permit. It makes one access at a time,
// visible to all threads. This permits less than PTX, but it is enough to show that a shape's
// outcome is forbidden by its orders and by nothing else.
#pragma once

#include <set>
#include <vector>

#include "litmus/shapes.cuh"

namespace gpufs::testing::litmus {

class outcome_search {
 public:
  outcome_search(std::vector<step> steps, std::uint32_t final_variable)
      : steps_(std::move(steps)), final_variable_(final_variable) {
    explore(0, {}, {});
  }
  // Codes of all outcomes.
  std::set<std::uint32_t> outcomes() const { return outcomes_; }

 private:
  struct memory {
    std::uint32_t variables[variables_max];
    // What a first-level cache may return: the thread's earlier value of a variable.
    std::uint32_t cached[variables_max];
  };
  struct thread_state {
    std::uint32_t registers[registers_max];
    std::uint32_t last[4];  // result of the thread's last load
  };

  // Whether step j, which precedes step i in the same thread, must be made before it.
  bool stays_before(std::size_t j, std::size_t i) const {
    const step &a = steps_[j], &b = steps_[i];
    if (a.variable == b.variable) return true;
    if (a.what == access::load_acquire || a.what == access::add_acquire ||
        a.what == access::add_acq_rel)
      return true;
    if (b.what == access::store_release || b.what == access::add_release ||
        b.what == access::add_acq_rel)
      return true;
    if (a.what == access::load_that_arrives) return true;
    if (b.what == access::store_if && is_load(a.what)) return true;
    return a.what == access::store_before_load && b.what == access::load_after_store;
  }

  void explore(std::uint32_t done, memory m, thread_state t) {
    if (done == (1u << steps_.size()) - 1) {
      outcome o{};
      for (std::uint32_t r = 0; r < registers_max; ++r) o.registers[r] = t.registers[r];
      if (final_variable_ != no_register)
        o.registers[registers_max - 1] = m.variables[final_variable_];
      outcomes_.insert(o.code());
      return;
    }
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if ((done >> i & 1) != 0 || !may_go(done, i)) continue;
      make(done | 1u << i, i, m, t);
    }
  }
  bool may_go(std::uint32_t done, std::size_t i) const {
    for (std::size_t j = 0; j < i; ++j) {
      if (steps_[j].thread == steps_[i].thread && (done >> j & 1) == 0 && stays_before(j, i))
        return false;
    }
    return true;
  }
  void make(std::uint32_t done, std::size_t i, memory m, thread_state t) {
    const step& s = steps_[i];
    std::uint32_t& place = m.variables[s.variable];
    if (is_store(s.what)) {
      if (s.what != access::store_if || t.last[s.thread] != 0) place = s.value;
    } else if (is_add(s.what)) {
      if (s.into != no_register) t.registers[s.into] = place;
      place += s.value;
    } else {
      t.last[s.thread] = place;
      t.registers[s.value] = place;
      if (s.what == access::load_from_cache) {
        // The cache may have no value and is filled now, or it has its earlier value.
        thread_state old = t;
        old.registers[s.value] = m.cached[s.variable];
        old.last[s.thread] = m.cached[s.variable];
        explore(done, m, old);
        m.cached[s.variable] = place;
      }
    }
    explore(done, m, t);
  }

  std::vector<step> steps_;
  std::uint32_t final_variable_;
  std::set<std::uint32_t> outcomes_;
};

template <class Program>
std::vector<step> steps_of() {
  std::vector<step> all;
  for (std::uint32_t i = 0; i < Program::count(); ++i) all.push_back(Program::at(i));
  return all;
}

template <class Shape>
bool is_forbidden_among(const std::set<std::uint32_t>& outcomes) {
  for (const std::uint32_t code : outcomes) {
    if (Shape::forbidden(outcome::of(code))) return true;
  }
  return false;
}

}  // namespace gpufs::testing::litmus
