/** How a wrapper allocates with what it takes of the account. */
#pragma once

#include <cuda.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "interposer/client.hpp"
#include "interposer/gate.hpp"
#include "interposer/ledger.hpp"
#include "interposer/overhead.hpp"
#include "interposer/pools.hpp"
#include "interposer/swappable_memory.hpp"
#include "interposer/turn_service.hpp"
#include "protocol/account.hpp"
#include "protocol/messages.hpp"

namespace gdev {

/**
 * Calls attempt() until it returns false: until the GPU does not refuse what the daemon granted.
 *
 * If the GPU is full although the daemon has thought that there is room, the daemon learns what
 * look() finds there, and is asked again: it may make others leave. So a few times at most.
 */
template <typename Attempt, typename Look>
void while_refused(Attempt&& attempt, Look&& look) {
  constexpr int tries_max = 6;
  for (int tries = 1; attempt() && tries < tries_max; ++tries) {
    if (const gpu_facts seen = look(); seen.number == 0 || !use_gpu(seen)) {
      return;
    }
    usleep(5'000);  // others may be about to allocate what they were granted
  }
}

/**
 * Calls the driver with `bytes` of the account; record() gets them when it has succeeded. look():
 * while_refused().
 */
template <typename Call, typename Record, typename Look>
CUresult with_account(std::uint64_t bytes, memory_place where, Call&& call, Record&& record,
                      Look&& look) {
  if (!has_joined()) {
    return call(nullptr);
  }
  watch_overhead();
  if (where != memory_place::elsewhere) {
    pools().make_room(bytes);
  }
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  const auto attempt = [&] {
    for (;;) {
      auto held = std::make_shared<holding>();
      if (result = held->take(bytes, where); result != CUDA_SUCCESS) {
        return false;
      }
      const submission in_turn(work::other);
      result = call(held);
      if (result == CUDA_SUCCESS) {
        record(std::move(held));
        return false;
      }
      if (!held->is_on_host()) {
        return result == CUDA_ERROR_OUT_OF_MEMORY && where != memory_place::elsewhere;
      }
      where = memory_place::here;  // the host has none: it waits
    }
  };
  while_refused(attempt, std::forward<Look>(look));
  return result;
}

/** The same. What the driver refuses may be more than it says, so it is asked what is free. */
template <typename Call, typename Record>
CUresult with_account(std::uint64_t bytes, memory_place where, Call&& call, Record&& record) {
  return with_account(bytes, where, std::forward<Call>(call), std::forward<Record>(record),
                      look_at_gpu);
}

/**
 * The same for memory that turns can take off the GPU: call() keeps what it gets, in chunks, and
 * makes it in the host's memory if that says so.
 */
template <typename Call>
CUresult with_swappable_account(std::uint64_t bytes, Call&& call) {
  const auto make = [&](const std::shared_ptr<holding>& held) {
    const CUresult result = call(held);
    if ((read_turn().order & order_prepare) != 0) {
      wake_turn_service();  // there is more to prepare for
    }
    return result;
  };
  const memory_place where = can_be_on_host() ? memory_place::any : memory_place::here;
  refused_chunks refusals;
  return with_account(
      bytes, where, make, [](const std::shared_ptr<holding>& /*held*/) {},
      [&] { return refusals.look(bytes); });
}

}  // namespace gdev
