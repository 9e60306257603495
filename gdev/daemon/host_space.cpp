// Whether the host can hold what is off the GPUs: turns.hpp.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <vector>

#include "base/crash_point.hpp"
#include "base/saturating.hpp"
#include "daemon/turns.hpp"

namespace gdev {

namespace {

/** Clients take whole ones of the host's memory. */
constexpr std::uint64_t segment = units_of(host_segment_bytes);

constexpr std::uint64_t in_segments(std::uint64_t units) noexcept {
  return (units + segment - 1) / segment * segment;
}

/** Returns what fragments make of so many units that can be swapped. */
constexpr std::uint64_t most_for_units(std::uint64_t units) noexcept { return 2 * units + segment; }

bool has_files(const client_page& page) noexcept {
  return page.has_files.load(std::memory_order_relaxed) != 0;
}

}  // namespace

/**
 * Returns what of a client may have to be off its GPU at once, when one has grown: of all clients,
 * not more than what does not fit there. A client that leaves keeps the rest; a pause may find no
 * room for it.
 */
std::uint64_t turns::most_off(const client& one, const client& growing, std::uint64_t units) const {
  std::uint64_t all = 0;  // of its GPU
  for (const auto& [id, other] : clients_) {
    if (one.gpu == other.gpu) {
      all += used(other) + other.on_host + (id == growing.id ? units : other.pending);
    }
  }
  const std::uint64_t more = one.id == growing.id ? units : one.pending;
  const std::uint64_t capacity = capacity_of(one.gpu);
  const std::uint64_t misfit =
      less(all + settings_.spare, capacity) + capacity / growth_part + units_of(chunk_bytes_max);
  return std::min(swappable(one) + more, misfit) + one.on_host;
}

/** Returns what a client that may make no files needs of the host's memory when one has grown. */
std::uint64_t turns::memory_due(const client& one, const client& growing,
                                std::uint64_t units) const {
  return has_files(*one.page) ? 0 : in_segments(most_off(one, growing, units));
}

/**
 * Returns how much of the host's memory, or of files, a client may hold beside the others of its
 * virtual GPU: together they cannot need more than for its limit. A client can say that it uses
 * memory, hold what that needs, and say that it uses none.
 */
std::uint64_t turns::most_held(const client& one, std::uint64_t client::* held) const {
  std::uint64_t most = most_for_units(accounts_.limit_of(one.id));
  for (const auto& [id, other] : clients_) {
    if (id != one.id && accounts_.are_together(id, one.id)) {
      most = less(most + segment, other.*held);
    }
  }
  return most;
}

int turns::hold(client_id id, std::uint64_t memory, std::uint64_t files) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return ENOENT;
  }
  client& asking = found->second;
  const std::uint64_t most = most_for_units(swappable(asking) + asking.on_host);
  const bool is_due = memory <= memory_due(asking, asking, 0);
  std::uint64_t all_memory = memory;
  std::uint64_t all_files = files;
  for (const auto& [other_id, other] : clients_) {
    if (other_id != id) {
      const std::uint64_t due = is_due ? 0 : memory_due(other, asking, asking.pending);
      all_memory += std::max(other.memory_held, due);
      all_files += other.files_held;
    }
  }
  // Where a limit was lowered below what is held, only those that want more are refused.
  const bool is_memory_over = memory > std::min(most, most_held(asking, &client::memory_held)) ||
                              all_memory > settings_.host;
  const bool is_files_over =
      files > std::min(most, most_held(asking, &client::files_held)) || all_files > settings_.files;
  if ((memory > asking.memory_held && is_memory_over) ||
      (files > asking.files_held && is_files_over)) {
    return ENOMEM;
  }
  asking.memory_held = memory;
  asking.files_held = files;
  crash_point("host_counted");
  return 0;
}

void turns::hold_again(client_id id, std::uint64_t memory, std::uint64_t files) {
  if (const auto found = clients_.find(id); found != clients_.end()) {
    client& one = found->second;
    const std::uint64_t most = most_for_units(used(one));
    one.memory_held = std::min({memory, most, most_held(one, &client::memory_held)});
    one.files_held = std::min({files, most, most_held(one, &client::files_held)});
  }
}

/** Tells whether a client on its GPU cannot leave it, nor another one, who is off, release more. */
bool turns::is_host_full(const client& one) const {
  return one.now == phase::in && (one.stays == ENOMEM || one.stays == EIO) &&
         std::any_of(clients_.begin(), clients_.end(), [&](const auto& entry) {
           const client& other = entry.second;
           return other.gpu == one.gpu && other.now != phase::leaving && other.is_clinging &&
                  other.queued != 0 && !other.is_paused && !other.is_unfit;
         });
}

/**
 * Tells whether the host could hold what does not fit the GPUs, when a client has grown.
 *
 * Clients without files need segments of memory, and nobody gives back what it holds. The segments
 * that are left go to the others, where they hold most; the rest goes into files.
 */
bool turns::can_host(const client& growing, std::uint64_t units) const {
  std::uint64_t taken = 0;   // of the memory
  std::uint64_t others = 0;  // that clients with files need beside the memory that they hold
  std::uint64_t whole = 0;   // segments that these would fill
  std::vector<std::uint64_t> rests;
  for (const auto& [id, one] : clients_) {
    taken += std::max(one.memory_held, memory_due(one, growing, units));
    if (has_files(*one.page)) {
      const std::uint64_t needed = less(most_off(one, growing, units), one.memory_held);
      others += needed;
      whole += needed / segment;
      rests.push_back(needed % segment);
    }
  }
  if (taken > settings_.host) {
    return false;
  }
  std::uint64_t left = (settings_.host - taken) / segment;
  std::uint64_t in_memory = std::min(left, whole) * segment;
  left -= std::min(left, whole);
  std::sort(rests.begin(), rests.end(), std::greater<>());
  for (std::size_t i = 0; i < rests.size() && i < left; ++i) {
    in_memory += rests[i];
  }
  return others - in_memory <= settings_.files;
}

}  // namespace gdev
