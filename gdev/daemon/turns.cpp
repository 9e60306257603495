#include "daemon/turns.hpp"

#include <algorithm>
#include <atomic>
#include <tuple>
#include <utility>

#include "base/crash_point.hpp"
#include "base/saturating.hpp"

namespace gdev {

namespace {

/** Clients prepare to leave with so large a part of the GPU, before it is known to be needed. */
constexpr std::uint64_t likely_growth = 8;
/** What others have for a moment only is not what keeps a request from fitting. */
constexpr std::uint64_t unfit_ns_max = 3 * turns::second_ns / 10;

}  // namespace

// --- The queue of clients that wait for room ---

void turns::enqueue(client& one, std::uint64_t now) {
  if (one.queued == 0) {
    const std::uint64_t place = one.now == phase::out ? place_of_mates(one) : 0;
    one.queued = one.place = place != 0 ? place : next_place_++;
    one.queued_ns = now;
    if (one.now == phase::out) {
      enqueue_mates(one, now);
    }
  }
}

void turns::dequeue(client& one, std::uint64_t now) {
  if (one.queued != 0) {
    one.waiting_ns = sum(one.waiting_ns, less(now, one.queued_ns));
  }
  one.queued = 0;
  if (const auto found = gpus_.find(one.gpu);
      found != gpus_.end() && found->second.partial == one.id) {
    found->second.partial = 0;
  }
}

/** Tells whether a client waits for room on a GPU. */
bool turns::is_waited_for(std::uint64_t which) const {
  return std::any_of(clients_.begin(), clients_.end(), [which](const auto& one) {
    return one.second.gpu == which && one.second.queued != 0;
  });
}

/** Returns when a client is ended that should have left, or `never`. */
std::uint64_t turns::end_ns(const client& one) const {
  const std::uint64_t patience_s = accounts_.policy_of(one.id).end_after_s;
  return one.blocking_ns == 0 || patience_s == 0 || one.is_paused
             ? never
             : sum(one.blocking_ns, patience_s * second_ns);
}

/** Tells whether a client's request waits until others free memory, and makes none leave. */
bool turns::is_patient(const client& one) const {
  return one.now == phase::in && accounts_.policy_of(one.id).when_full != full_policy::swap;
}

/**
 * Tells whether a request does not fit: alone, or for a while beside what others have wired.
 *
 * What others allocate or free at this moment counts as wired, until they have said what it is. And
 * a report of what is free may be older than the end of another client.
 */
bool turns::cannot_fit(client& one, std::uint64_t units, std::uint64_t now) {
  const std::uint64_t all = sum(used(one) + one.on_host, units);
  if (all <= available(one, false)) {
    one.unfit_ns = 0;
    return false;
  }
  one.unfit_ns = one.unfit_ns == 0 ? std::max<std::uint64_t>(now, 1) : one.unfit_ns;
  const auto found = gpus_.find(one.gpu);
  const std::uint64_t total = found == gpus_.end() ? account_units_max : found->second.total;
  return all > less(std::min(total, settings_.capacity), settings_.spare) ||
         now >= sum(one.unfit_ns, unfit_ns_max);
}

/** What can never fit waits for nothing. Returns false if the client must stay off the GPU. */
bool turns::give_up_what_cannot_fit(client& one, std::uint64_t now) {
  const std::uint64_t most = available(one, false);
  if (one.pending != 0 && (cannot_fit(one, one.pending, now) || is_host_full(one))) {
    one.pending = 0;  // it asks again, and is refused
    if (one.now == phase::in) {
      dequeue(one, now);
      signals_.insert(one.id);
      return false;
    }
  }
  if (used(one) > most) {
    if (one.now == phase::entering) {
      send_back(one, now);
    }
    return false;
  }
  return true;
}

turns::client* turns::first_waiting(std::uint64_t which, std::uint64_t now) {
  send_back_for_clinging(which, now);
  if (const auto found = gpus_.find(which); found != gpus_.end() && found->second.partial != 0) {
    client& one = clients_.at(found->second.partial);
    if (give_up_what_cannot_fit(one, now)) {
      return &one;
    }
  }
  client* first = nullptr;
  for (auto& [id, one] : clients_) {
    if (one.gpu != which || one.queued == 0 || one.now == phase::leaving || one.is_paused ||
        one.is_unfit || !knows_mates(one, now) || is_kept_off(one) ||
        !give_up_what_cannot_fit(one, now)) {
      continue;
    }
    const auto rank = [this, now](const client& of) {
      return std::tuple(!of.is_clinging, !is_growing(of, now), is_patient(of),
                        -accounts_.policy_of(of.id).priority, of.queued);
    };
    if (first == nullptr || rank(one) < rank(*first)) {
      first = &one;
    }
  }
  return first;
}

/** Notes whether a client that is off could be on its GPU again, and tells it if not. */
void turns::note_fit(client& one, std::uint64_t now) {
  if (one.now != phase::out || used(one) <= available(one, true)) {
    one.misfit_ns = 0;
  } else if (one.misfit_ns == 0) {
    one.misfit_ns = std::max<std::uint64_t>(now, 1);
  }
  one.is_unfit = one.misfit_ns != 0 && now >= sum(one.misfit_ns, unfit_ns_max);
  if (one.now == phase::out) {
    order(one, one.is_unfit ? order_out | order_unfit : order_out);
  }
}

// --- What clients are told ---

void turns::order(client& one, std::uint32_t bits) {
  bits |= one.is_held ? order_hold : 0;
  if (one.page->order.exchange(bits, std::memory_order_relaxed) != bits) {
    signals_.insert(one.id);
  }
}

/** Tells the clients that could leave for another one, or for none, whether one waits. */
void turns::set_contended(std::uint64_t which, const client* by) {
  const std::uint32_t else_order = is_filling(which) ? order_prepare : 0;
  std::uint64_t all = 0;
  for (const auto& [id, one] : clients_) {
    all += one.gpu == which ? used(one) + one.pending : 0;
  }
  // What others would need of a client; and what they are likely to need soon.
  const std::uint64_t capacity = capacity_of(which);
  const std::uint64_t likely = less(all, capacity) + capacity / likely_growth;
  for (auto& [id, one] : clients_) {
    if (one.gpu == which && one.now == phase::in) {
      one.page->room.store(static_cast<std::uint32_t>(wired(one) + less(swappable(one), likely)),
                           std::memory_order_relaxed);
      order(one, by != nullptr && may_leave_for(one, *by) ? order_contended : else_order);
    }
  }
}

/** Tells whether clients may have to leave soon. To make memory of the host takes seconds. */
bool turns::is_filling(std::uint64_t which) const {
  const auto count = std::count_if(clients_.begin(), clients_.end(), [&](const auto& one) {
    return one.second.gpu == which && swappable(one.second) != 0;
  });
  const std::uint64_t capacity = capacity_of(which);
  return count > 1 && rooms_of(which) >= capacity - capacity / 4;
}

std::set<client_id> turns::take_ended() noexcept { return std::exchange(ended_, {}); }

std::set<client_id> turns::take_signals() noexcept { return std::exchange(signals_, {}); }

// --- Decisions ---

/** Takes back what a client was granted and does not use, and learns what it has elsewhere. */
void turns::take_back(client& one) {
  const std::uint64_t before = granted(one);
  accounts_.take_back(one.id);
  const std::uint64_t all = accounts_.granted(one.id);
  const std::uint64_t said = one.page->elsewhere.load(std::memory_order_relaxed);
  // Whatever it says, it has no more room here than before.
  one.elsewhere = std::max(std::min(said, all), less(all, before));
  one.on_host = std::min(one.on_host, one.elsewhere);
}

/** Takes back what the clients of a GPU were granted and do not use. */
void turns::reclaim(std::uint64_t which, client_id but) {
  for (auto& [id, one] : clients_) {
    if (one.gpu == which && id != but && one.now == phase::in) {
      take_back(one);
    }
  }
}

/** Returns when the next turn is over, of those that keep others waiting. */
std::uint64_t turns::next_end(std::uint64_t which, std::uint64_t now) const {
  // Clients also free memory, and do not say so.
  std::uint64_t next = now + look_again_ns;
  for (const auto& [id, one] : clients_) {
    if (one.gpu == which && one.now == phase::in) {
      const std::uint64_t over = std::max(sum(one.since_ns, turn_ns(one)), one.stuck_until_ns);
      next = over > now ? std::min(next, over) : next;
    }
  }
  return next;
}

void turns::schedule(std::uint64_t which, std::uint64_t now) {
  if (which == 0) {
    admit_without_gpu(now);
    return;
  }
  const auto found = gpus_.find(which);
  if (found == gpus_.end()) {
    return;
  }
  gpu& of = found->second;
  for (auto& [id, one] : clients_) {
    if (one.gpu == which && one.now == phase::out) {
      // It may have freed; it cannot have more.
      one.room = std::min(one.room, wired(one) + resident(one));
    }
  }
  if (now < settled_ns_) {
    of.deadline_ns = settled_ns_;  // what is free may be a client's that has not come back yet
    return;
  }
  for (auto& [id, one] : clients_) {
    if (one.gpu == which) {
      note_fit(one, now);
    }
  }
  while (client* const first = first_waiting(which, now)) {
    if (!admit(of, *first, now)) {
      of.deadline_ns = next_end(which, now);
      return;
    }
  }
  const bool has_waiting = std::any_of(clients_.begin(), clients_.end(), [&](const auto& one) {
    return one.second.gpu == which && (one.second.queued != 0 || one.second.misfit_ns != 0);
  });
  of.deadline_ns = has_waiting ? now + look_again_ns : never;
  for (auto& [id, one] : clients_) {
    if (one.gpu == which && one.now == phase::in) {
      one.blocking_ns = 0;  // nobody waits for it any more
    }
  }
  set_contended(which, nullptr);
}

/** Tells a client that enters its room. */
void turns::give_room(client& one, std::uint64_t units) {
  one.room = units;
  one.page->room.store(static_cast<std::uint32_t>(units), std::memory_order_relaxed);
  crash_point("room_given");
  order(one, 0);
  signals_.insert(one.id);
}

/** Clients that have used no GPU yet wait for nothing, but for the end of a pause. */
void turns::admit_without_gpu(std::uint64_t now) {
  for (auto& [id, one] : clients_) {
    if (one.gpu == 0 && one.now == phase::out && one.queued != 0 && !one.is_paused) {
      one.now = phase::entering;
      one.since_ns = now;
      give_room(one, granted(one) + one.pending);
      dequeue(one, now);
    }
  }
}

/** Gives the first waiting client of a GPU what is there. Returns false if it must wait on. */
bool turns::admit(gpu& of, client& first, std::uint64_t now) {
  if (first.now != phase::in) {
    take_back(first);  // else it could use again what it frees, without room for it
  }
  const std::uint64_t needed = lacking(first);
  if (less(free_of(first.gpu), settings_.spare) < needed) {
    reclaim(first.gpu, first.id);
  }
  const std::uint64_t free = free_of(first.gpu);
  std::uint64_t all_coming = less(free, settings_.spare);
  for (const auto& [id, one] : clients_) {
    all_coming += one.gpu == first.gpu ? coming(one) : 0;
  }
  // Where the rooms are above the capacity, that must come too: else nothing is free, and memory
  // that a client has taken into use before it left is not there when it enters.
  const std::uint64_t over =
      used(first) + first.pending == 0 ? 0 : less(rooms_of(first.gpu), capacity_of(first.gpu));
  const std::uint64_t to_come = less(needed + over, all_coming);
  if (to_come != 0 && !make_room(first, to_come, now)) {
    set_contended(first.gpu, &first);
    return false;
  }
  if (over != 0) {
    return false;
  }
  if (first.now == phase::in) {
    if (less(free, settings_.spare) < needed) {
      return false;
    }
    first.reserved += needed;
    first.reserved_ns = now;
    crash_point("room_reserved");
    if (!is_growing(first, now)) {
      first.since_ns = now;  // others may have left for it: its turn begins
    }
    dequeue(first, now);
    signals_.insert(first.id);
    return true;
  }
  // It may begin with a part, and with what is spare: the rest comes.
  if (first.now == phase::out) {
    first.room = room(first);
    if (!mates_of(first).empty()) {
      hold(first);
    }
    first.now = phase::entering;
    first.since_ns = now;
    note_progress(first, now);
  }
  of.partial = first.id;
  const std::uint64_t given = std::min(free, needed);
  give_room(first, first.room + given);
  if (given < needed) {
    return false;
  }
  dequeue(first, now);
  return true;
}

}  // namespace gdev
