/** What this process has in use of its account, and how it can leave; client.cpp guards it. */
#pragma once

#include <algorithm>
#include <cstdint>

#include "interposer/client.hpp"
#include "protocol/account.hpp"

namespace gdev {

struct memory_in_use {
  std::uint64_t bytes = 0;
  std::uint64_t elsewhere = 0;  // of that: on GPUs on which this process takes no turns, or
  std::uint64_t on_host = 0;    // in the host's memory until it leaves the GPU
  std::uint32_t swappable_units = 0;
  std::uint32_t resident_units = 0;
  bool has_files = false;      // it may make swap files
  measured_overhead overhead;  // beside `bytes`
  memory_window window;

  /** Returns what is charged for this process. */
  [[nodiscard]] std::uint64_t charged() const noexcept { return bytes + overhead.bytes; }

  /** Returns what lies on GPUs. */
  [[nodiscard]] std::uint64_t on_gpus() const noexcept {
    const std::uint64_t away =
        std::uint64_t{swappable_units - std::min(swappable_units, resident_units)} * account_unit;
    return bytes - std::min(bytes, away + on_host);
  }

  /** Notes a change of what lies on GPUs. */
  void note_change() noexcept {
    window.is_quiet = false;
    window.most = std::max(window.most, on_gpus());
  }
};

}  // namespace gdev
