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
 * Calls the driver with `bytes` of the account; record() gets them when it has succeeded.
 *
 * If the GPU is full although the daemon has thought that there is room, the daemon learns what is
 * free, and is asked again: it may make others leave. look(): what it learns after a refusal.
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
  constexpr unsigned tries_max = 6;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  bool was_on_host = false;  // the refused memory
  for (unsigned tries = 0; tries < tries_max && result == CUDA_ERROR_OUT_OF_MEMORY; ++tries) {
    if (tries != 0 && !std::exchange(was_on_host, false)) {
      if (where == memory_place::elsewhere) {
        break;
      }
      const gpu_facts seen = look();
      if (seen.number == 0 || !use_gpu(seen)) {
        break;
      }
      usleep(5'000);  // others may be about to allocate what they were granted
    }
    auto held = std::make_shared<holding>();
    if (result = held->take(bytes, where); result != CUDA_SUCCESS) {
      break;
    }
    const submission in_turn(work::other);
    result = call(held);
    if (result == CUDA_SUCCESS) {
      record(std::move(held));
    } else if (held->is_on_host()) {
      where = memory_place::here;  // the host has none: it waits
      was_on_host = true;
      result = CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
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
