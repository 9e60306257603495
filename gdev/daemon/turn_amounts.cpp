// What clients have of their GPUs, and could have: turns.hpp.
#include <algorithm>
#include <atomic>
#include <vector>

#include "base/saturating.hpp"
#include "daemon/turns.hpp"

namespace gdev {

std::uint64_t turns::used(const client& one) const {
  // What it has freed elsewhere has left its grant, of which `elsewhere` is a part.
  const std::uint64_t said = one.page->elsewhere.load(std::memory_order_relaxed);
  const std::uint64_t elsewhere = std::max(less(one.elsewhere, accounts_.given_back(one.id)),
                                           std::min<std::uint64_t>(one.elsewhere, said));
  return less(accounts_.used(one.id), elsewhere);
}

std::uint64_t turns::granted(const client& one) const {
  return less(accounts_.granted(one.id), one.elsewhere);
}

std::uint64_t turns::swappable(const client& one) const {
  return std::min<std::uint64_t>(one.page->swappable.load(std::memory_order_relaxed), used(one));
}

std::uint64_t turns::resident(const client& one) const {
  return std::min<std::uint64_t>(one.page->resident.load(std::memory_order_relaxed),
                                 swappable(one));
}

std::uint64_t turns::wired(const client& one) const { return less(used(one), swappable(one)); }

std::uint64_t turns::room(const client& one) const {
  switch (one.now) {
    case phase::in: return granted(one) + one.reserved;
    case phase::out:
    case phase::leaving:
    case phase::entering: break;
  }
  return one.room;
}

std::uint64_t turns::releasable(const client& one) const { return less(room(one), wired(one)); }

/** What will come from a client that leaves. */
std::uint64_t turns::coming(const client& one) const {
  return one.now == phase::leaving ? less(releasable(one), one.kept) : 0;
}

/** Notes what a client that enters or leaves has on its GPU now. */
void turns::note_progress(client& one, std::uint64_t now) const {
  one.progress = resident(one);
  one.progress_ns = now;
}

/** What could come from a client that is off or leaves, beside what will. */
std::uint64_t turns::keeps(const client& one) const { return less(releasable(one), coming(one)); }

/** What a waiting client needs beside its room. */
std::uint64_t turns::lacking(const client& one) const {
  if (one.now == phase::in) {
    return less(used(one) + one.pending, granted(one) + one.reserved);
  }
  return less(granted(one) + one.pending, one.room);
}

std::uint64_t turns::rooms_of(std::uint64_t which) const {
  std::uint64_t rooms = 0;
  for (const auto& [id, one] : clients_) {
    rooms += one.gpu == which ? room(one) : 0;
  }
  return rooms;
}

std::uint64_t turns::capacity_of(std::uint64_t which) const {
  const auto found = gpus_.find(which);
  if (found == gpus_.end()) {
    return account_units_max;
  }
  // Overhead is not in rooms. What is unaccounted contains it; what was set for clients does not.
  const std::uint64_t there = less(found->second.total, found->second.unaccounted);
  return settings_.capacity == account_units_max
             ? there
             : std::min(there, less(settings_.capacity, overhead_of(which)));
}

/** Returns what the clients of a GPU have on it beside their allocations. */
std::uint64_t turns::overhead_of(std::uint64_t which) const {
  std::vector<client_id> there;
  for (const auto& [id, one] : clients_) {
    if (one.gpu == which) {
      there.push_back(id);
    }
  }
  return accounts_.fitting_overhead(there);
}

std::uint64_t turns::free_of(std::uint64_t which) const {
  return less(capacity_of(which), rooms_of(which));
}

/** Returns what a client could have of its GPU, beside what others keep of it. */
std::uint64_t turns::available(const client& one, bool do_others_stay) const {
  std::uint64_t kept = settings_.spare;
  for (const auto& [id, other] : clients_) {
    if (id != one.id && other.gpu == one.gpu) {
      const bool stays = do_others_stay && other.now == phase::in && is_reserved(other);
      kept += stays ? used(other) : wired(other);
    }
  }
  return less(capacity_of(one.gpu), kept);
}

turns::prospect turns::prospect_of(client_id id, std::uint64_t gpu, std::uint64_t total) const {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return {};
  }
  client one = found->second;
  one.gpu = one.gpu == 0 ? gpu : one.gpu;
  if (one.gpu != 0 && !gpus_.contains(one.gpu)) {  // nobody uses it yet
    const std::uint64_t most = less(std::min(total, settings_.capacity), settings_.spare);
    return {most, most};
  }
  return {available(one, false), available(one, true)};
}

std::vector<gpu_report> turns::gpus() const {
  std::vector<gpu_report> all;
  for (const auto& [number, of] : gpus_) {
    const std::uint64_t overhead = overhead_of(number);
    all.push_back({number, of.total, capacity_of(number), rooms_of(number), overhead,
                   less(of.unaccounted, overhead)});
  }
  return all;
}

turn_report turns::report(client_id id, std::uint64_t now) const {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return {};
  }
  const client& one = found->second;
  return {one.now,
          one.since_ns,
          one.gpu,
          swappable(one),
          one.page->resident.load(std::memory_order_relaxed),
          one.turns,
          one.bytes_out,
          one.bytes_in,
          one.moving_ns,
          sum(one.waiting_ns, one.queued != 0 ? less(now, one.queued_ns) : 0),
          one.stays,
          one.is_paused,
          one.queued != 0,
          one.is_unfit,
          one.is_held};
}

}  // namespace gdev
