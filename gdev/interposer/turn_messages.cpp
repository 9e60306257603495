#include <algorithm>
#include <atomic>
#include <cstdint>

#include "interposer/client.hpp"
#include "interposer/held_page.hpp"
#include "interposer/memory_in_use.hpp"
#include "protocol/account.hpp"
#include "protocol/messages.hpp"

namespace gdev {

void publish_memory(std::uint64_t swappable, std::uint64_t resident) noexcept {
  const held_page page(true);
  memory_in_use& mine = held_page::memory();
  mine.swappable_units = static_cast<std::uint32_t>(units_of(swappable));
  mine.resident_units = static_cast<std::uint32_t>(units_of(resident));
  mine.note_change();
  if (page) {
    page->swappable.store(mine.swappable_units, std::memory_order_relaxed);
    page->resident.store(mine.resident_units, std::memory_order_relaxed);
  }
}

void publish_files() noexcept {
  const held_page page(true);
  held_page::memory().has_files = true;
  if (page) {
    page->has_files.store(1, std::memory_order_relaxed);
  }
}

turn_words read_turn() noexcept {
  const held_page page(true);
  if (!page) {
    return {};
  }
  const memory_in_use& mine = held_page::memory();
  const std::uint64_t units = page->room.load(std::memory_order_relaxed);
  const std::uint64_t all = units_of(mine.bytes);  // as the daemon counts
  const std::uint64_t at_home = all - std::min(all, units_of(mine.elsewhere));
  const std::uint64_t wired = at_home - std::min<std::uint64_t>(at_home, mine.swappable_units);
  return {page->order.load(std::memory_order_relaxed), page->hold.load(std::memory_order_relaxed),
          (units - std::min(units, wired)) * account_unit};
}

int tell_turn(turn_event what, std::uint64_t a, std::uint64_t b) noexcept {
  message said{.kind = message_kind::turn, .numbers = {static_cast<std::uint64_t>(what), a, b}};
  return ask_daemon(said, what == turn_event::left);
}

namespace {

std::atomic<std::uint64_t> host_bytes = 0;  // as the daemon knows
std::atomic<std::uint64_t> file_bytes = 0;

int ask_for_host(std::uint64_t in_memory, std::uint64_t in_files) noexcept {
  message said{.kind = message_kind::host, .numbers = {in_memory, in_files}};
  const int error = ask_daemon(said);
  if (error == 0) {
    host_bytes = in_memory;
    file_bytes = in_files;
  }
  return error;
}

}  // namespace

int ask_for_host_memory(std::uint64_t bytes) noexcept { return ask_for_host(bytes, file_bytes); }

held_on_host host_requests() noexcept { return {host_bytes, file_bytes}; }

void forget_host_requests() noexcept {
  host_bytes = 0;
  file_bytes = 0;
}

int ask_for_swap_files(std::uint64_t bytes) noexcept { return ask_for_host(host_bytes, bytes); }

}  // namespace gdev
