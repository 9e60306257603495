// Who leaves a GPU for another one, when, and what it keeps there: turns.hpp.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <tuple>
#include <vector>

#include "base/crash_point.hpp"
#include "base/saturating.hpp"
#include "daemon/turns.hpp"

namespace gdev {

namespace {

/** Assumed until a move was measured. */
constexpr std::uint64_t bytes_per_s_guess = 10'000'000'000;
/** A turn takes so many times what moving the client's memory takes. */
constexpr double turn_factor = 12;

}  // namespace

std::uint64_t turns::turn_ns(const client& one) const {
  const auto found = gpus_.find(one.gpu);
  const std::uint64_t speed = found == gpus_.end() || found->second.bytes_per_s == 0
                                  ? bytes_per_s_guess
                                  : found->second.bytes_per_s;
  const auto bytes = static_cast<double>(swappable(one) * account_unit);
  const double turn_s = turn_factor * bytes / static_cast<double>(speed);
  const double most_s = static_cast<double>(settings_.longest_ns) / second_ns;
  return std::max(static_cast<std::uint64_t>(std::min(turn_s, most_s) * second_ns),
                  settings_.shortest_ns);
}

/** Tells whether a client need not leave: its virtual GPU was promised what it has. */
bool turns::is_reserved(const client& one) const {
  const std::uint64_t reserve = accounts_.policy_of(one.id).reserve;
  if (reserve == 0) {
    return false;
  }
  std::uint64_t in_sum = 0;  // of its virtual GPU
  for (const auto& [id, other] : clients_) {
    if (in_sum > reserve) {
      break;
    }
    if (other.gpu == one.gpu && accounts_.are_together(id, one.id)) {
      in_sum += other.now == phase::out ? wired(other) : room(other);
    }
  }
  return in_sum <= reserve;
}

/** Tells whether a client could leave for another one, when its turn is over. */
bool turns::may_leave_for(const client& one, const client& by) const {
  return one.id != by.id && one.gpu == by.gpu && one.now == phase::in && releasable(one) != 0 &&
         !is_patient(by) && !is_reserved(one);
}

/** Tells whether a client may be made to leave for another one. */
bool turns::is_over(const client& one, const client& by, std::uint64_t now) {
  if (one.stuck_until_ns > now || !knows_mates(one, now)) {
    return false;
  }
  if (is_assembling(one)) {
    return is_before(by, one) || now >= sum(one.since_ns, settings_.longest_ns);
  }
  return one.is_held || (one.queued != 0 && !is_growing(one, now)) ||
         now >= sum(one.since_ns, turn_ns(one));
}

/** Tells whether a client whose turn is not over gets what it waits for, and nobody must leave. */
bool turns::is_growing(const client& one, std::uint64_t now) {
  if (one.now != phase::in || one.queued == 0 || now >= sum(one.since_ns, turn_ns(one))) {
    return false;
  }
  if (const gpu& of = gpus_.at(one.gpu); of.partial != 0 && of.partial != one.id) {
    return false;  // that one is served first, and may need its memory
  }
  std::uint64_t there = less(free_of(one.gpu), settings_.spare);
  for (const client* const other : keepers_for(one, now)) {
    there += releasable(*other);
  }
  return lacking(one) <= there;
}

/** Returns the clients that are off a client's GPU, or leave it, and can release more there. */
std::vector<turns::client*> turns::keepers_for(const client& by, std::uint64_t now) {
  const std::vector<client*> mates = mates_of(by);
  std::vector<client*> found;
  for (auto& [id, one] : clients_) {
    const bool is_off = one.now == phase::leaving || one.now == phase::out;
    if (id != by.id && one.gpu == by.gpu && is_off && one.stuck_until_ns <= now &&
        releasable(one) != 0 && std::find(mates.begin(), mates.end(), &one) == mates.end()) {
      found.push_back(&one);
    }
  }
  return found;
}

/** Makes clients leave until `needed` units come. Returns false, and does nothing, if it cannot. */
bool turns::make_leave(client& by, std::uint64_t needed, std::uint64_t now) {
  const std::vector<client*> mates = mates_of(by);
  std::vector<client*> victims;
  for (auto& [id, one] : clients_) {
    if (may_leave_for(one, by) && is_over(one, by, now) &&
        std::find(mates.begin(), mates.end(), &one) == mates.end()) {
      victims.push_back(&one);
    }
  }
  // Who is about to leave already, then the lowest priority, then the longest turn.
  std::sort(victims.begin(), victims.end(), [this](const client* a, const client* b) {
    const auto rank = [this](const client& of) {
      return std::tuple(!of.is_held, accounts_.policy_of(of.id).priority, of.since_ns, of.id);
    };
    return rank(*a) < rank(*b);
  });
  std::uint64_t coming = 0;
  std::size_t count = 0;
  while (count < victims.size() && coming < needed) {
    coming += releasable(*victims[count++]);
  }
  if (coming < needed) {
    return false;
  }
  victims.resize(count);
  for (client* const one : victims) {  // the later ones may suffice
    const std::uint64_t without = coming - releasable(*one);
    if (without >= needed) {
      coming = without;
    } else {
      if (is_assembling(*one) && !is_before(by, *one)) {
        move_back(*one->of);
      }
      ask_to_leave(*one, now);
    }
  }
  return true;
}

/**
 * Makes `needed` units come from clients of a GPU that are off it or leave it, and from others if
 * that is not enough. Returns false if it cannot.
 */
bool turns::make_room(client& by, std::uint64_t needed, std::uint64_t now) {
  if (is_patient(by) && !can_host(by, by.pending)) {
    return false;
  }
  const auto kept_by = [this](const std::vector<client*>& all) {
    return std::accumulate(
        all.begin(), all.end(), std::uint64_t{0},
        [this](std::uint64_t before, const client* one) { return before + keeps(*one); });
  };
  std::vector<client*> off = keepers_for(by, now);
  std::uint64_t kept = kept_by(off);
  if (kept < needed) {
    if (!make_leave(by, needed - kept, now)) {
      return false;
    }
    off = keepers_for(by, now);
    kept = kept_by(off);
    if (kept < needed) {
      return true;  // those of jobs begin to leave later
    }
  }
  // Who waits, and will enter first, gives last.
  std::sort(off.begin(), off.end(), [this](const client* a, const client* b) {
    const auto rank = [this](const client& of) {
      return std::tuple(of.queued == 0, -accounts_.policy_of(of.id).priority, of.queued, of.id);
    };
    return rank(*a) > rank(*b);
  });
  const std::uint64_t most =
      by.now == phase::in ? std::max(needed, capacity_of(by.gpu) / growth_part) : needed;
  std::uint64_t left = std::min(most, kept);
  for (client* const one : off) {
    const std::uint64_t units = std::min(left, keeps(*one));
    if (units != 0) {
      release_more(*one, units, now);
    }
    left -= units;
  }
  return true;
}

/** Makes a client that is off its GPU, or leaves it, release so many units more. */
void turns::release_more(client& one, std::uint64_t units, std::uint64_t now) {
  one.kept = less(keeps(one), units);
  if (one.now == phase::leaving) {
    note_progress(one, now);
    begin_blocking(one, now);
  } else {
    start_leaving(one, true, now);
    one.is_clinging = false;
    one.blocking_ns = std::max<std::uint64_t>(now, 1);
    crash_point("releases_more");
  }
  tell_kept(one);
}

void turns::start_leaving(client& one, bool was_off, std::uint64_t now) {
  one.now = phase::leaving;
  one.was_off = was_off;
  one.since_ns = now;
  note_progress(one, now);
  begin_blocking(one, now);
}

/** From now on others wait for a client, unless they do already: `end_after` counts. */
void turns::begin_blocking(client& one, std::uint64_t now) {
  one.blocking_ns = one.blocking_ns == 0 ? std::max<std::uint64_t>(now, 1) : one.blocking_ns;
}

/** A client that leaves cannot release more for now: others are asked. */
void turns::let_keep(client& one, std::uint64_t now) {
  one.kept = granted(one);
  one.stuck_until_ns = now + stuck_ns;
  tell_kept(one);
}

/** Tells a client that leaves what it need not release. */
void turns::tell_kept(client& one) {
  one.page->room.store(static_cast<std::uint32_t>(wired(one) + one.kept),
                       std::memory_order_relaxed);
  order(one, order_out | order_report);
}

void turns::begin_leaving(client& one, std::uint64_t now) {
  take_back(one);
  one.room = granted(one);
  one.reserved = 0;
  one.is_held = false;
  start_leaving(one, false, now);
  crash_point("leaving");
  one.kept = one.is_paused ? 0 : granted(one);  // all, until others need it
  tell_kept(one);
  look_soon(one.gpu, now);
}

/** Ends the entering of a client before it has its room: it leaves again, and keeps its place. */
void turns::send_back(client& one, std::uint64_t now) {
  if (gpu& of = gpus_.at(one.gpu); of.partial == one.id) {
    of.partial = 0;
  }
  one.is_held = false;
  start_leaving(one, true, now);
  one.kept = one.is_paused ? 0 : granted(one);  // what it had, until others need it
  tell_kept(one);
}

/**
 * A client that is off could not release what others need, because the host has no room for it. It
 * must be on its GPU before them: then all can go on, as where a client cannot leave.
 */
void turns::send_back_for_clinging(std::uint64_t which, std::uint64_t now) {
  const auto found = gpus_.find(which);
  if (found == gpus_.end() || found->second.partial == 0 ||
      clients_.at(found->second.partial).is_clinging) {
    return;
  }
  const bool has_clinging = std::any_of(clients_.begin(), clients_.end(), [&](const auto& entry) {
    const client& one = entry.second;
    return one.gpu == which && one.now == phase::out && one.is_clinging && one.queued != 0 &&
           !one.is_paused && !one.is_unfit && knows_mates(one, now) && !is_kept_off(one);
  });
  if (has_clinging) {
    send_back(clients_.at(found->second.partial), now);
  }
}

}  // namespace gdev
