/** What this process has in use of its account, and how it can leave; client.cpp guards it. */
#pragma once

#include <algorithm>
#include <cstdint>

#include "interposer/client.hpp"
#include "protocol/account.hpp"

namespace gdev {

struct memory_in_use {
  std::uint64_t bytes = 0;
  std::uint64_t elsewhere = 0;      // of that: on GPUs on which this process takes no turns, or
  std::uint64_t on_host = 0;        // in the host's memory
  host_part* host_parts = nullptr;  // the parts of that, in a list
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

  /** Adds a part to what is in the host's memory. */
  void enter(host_part& part, std::uint64_t size) noexcept {
    part = {.bytes = size, .next = host_parts, .link = &host_parts};
    if (part.next != nullptr) {
      part.next->link = &part.next;
    }
    host_parts = &part;
    elsewhere += size;
    on_host += size;
  }
  /** Takes it out: it counts as on the GPU. */
  void leave(host_part& part) noexcept {
    *part.link = part.next;
    if (part.next != nullptr) {
      part.next->link = part.link;
    }
    elsewhere -= part.bytes;
    on_host -= part.bytes;
    part = {};
  }

  /** Notes a change of what lies on GPUs. */
  void note_change() noexcept {
    window.is_quiet = false;
    window.most = std::max(window.most, on_gpus());
  }
};

}  // namespace gdev
