/**
 * What is counted of each client. The numbers only rise while it lives, also from one daemon to the
 * next.
 */
#pragma once

#include <array>
#include <cstdint>

namespace gdev {

/** In the order of the messages' numbers. gdev/_records.py has the same. */
enum class counter : std::uint8_t {
  // The client counts, and the daemon believes it:
  launches,           // kernels and graphs
  fills,              // memory that was set, and copies whose direction the call does not say
  to_device,          // copies from the host
  to_host,            // copies to the host
  unknown_functions,  // driver functions asked for that gdev does not know
  bypasses,           // drivers loaded past gdev
  // The daemon counts:
  turns,
  bytes_out,
  bytes_in,
  moving_ns,
  waiting_ns,
  refusals,
};
inline constexpr std::size_t counters = 12;
/** So many are the client's own; the others are the daemon's. */
inline constexpr std::size_t own_counters = 6;

using counter_values = std::array<std::uint64_t, counters>;

}  // namespace gdev
