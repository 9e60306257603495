#include <atomic>
#include <cstdint>

#include "interposer/client.hpp"
#include "protocol/messages.hpp"

namespace gdev {

int tell_turn(turn_event what, std::uint64_t a, std::uint64_t b) noexcept {
  message said{.kind = message_kind::turn, .numbers = {static_cast<std::uint64_t>(what), a, b}};
  return ask_daemon(said);
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
