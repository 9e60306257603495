// What clients and commands say, and what is due: turns.hpp.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/saturating.hpp"
#include "daemon/turns.hpp"

namespace gdev {

namespace {

/** How long memory stays reserved for a client that was refused it and does not ask again. */
constexpr std::uint64_t reserved_ns_max = 2 * turns::second_ns;
/** How long a client that is off may release nothing of what it should, until others are asked. */
constexpr std::uint64_t released_ns_max = 5 * turns::second_ns;
/** How long a paused client keeps what the host has no room for, until it is asked again. */
constexpr std::uint64_t paused_again_ns = 10 * turns::second_ns;
/** How long a client may enter without any progress while others wait. */
constexpr std::uint64_t progress_ns_max = 10 * turns::second_ns;

}  // namespace

void turns::change(const turn_settings& chosen, std::uint64_t now) {
  settings_ = chosen;
  for (auto& [id, one] : clients_) {
    if (one.is_paused && one.now == phase::out && releasable(one) != 0) {
      one.stuck_until_ns = 0;
      release_more(one, releasable(one), now);  // the host may have had no room for it
    }
  }
  for (const auto& [number, of] : gpus_) {
    if (rooms_of(number) > capacity_of(number)) {
      reclaim(number, 0);
    }
    schedule(number, now);
  }
}

void turns::join(client_id id, client_page& page, const counter_values& before, std::uint32_t job,
                 std::uint64_t now) {
  const auto had = [&before](counter which) { return before[static_cast<std::size_t>(which)]; };
  client& made = clients_[id];
  made.id = id;
  made.page = &page;
  made.since_ns = now;
  made.turns = had(counter::turns);
  made.bytes_out = had(counter::bytes_out);
  made.bytes_in = had(counter::bytes_in);
  made.moving_ns = had(counter::moving_ns);
  made.waiting_ns = had(counter::waiting_ns);
  join_job(made, job_word::unpacked(job), now);
}

void turns::leave(client_id id, std::uint64_t now) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return;
  }
  const std::uint64_t which = found->second.gpu;
  dequeue(found->second, now);
  leave_job(found->second, now);
  clients_.erase(found);
  signals_.erase(id);
  drop_gpu(which);
  schedule(which, now);
}

/** Forgets a GPU that no client uses. */
void turns::drop_gpu(std::uint64_t number) {
  const bool is_used = std::any_of(clients_.begin(), clients_.end(),
                                   [&](const auto& one) { return one.second.gpu == number; });
  if (!is_used) {
    gpus_.erase(number);
  }
}

/** Tells whether a client may use one more GPU: it may say any number. */
bool turns::may_name(const client& one, std::uint64_t number) const {
  constexpr std::size_t gpus_max = 64;  // of each user
  std::set<std::uint64_t> named;
  for (const auto& [id, other] : clients_) {
    if (other.gpu != 0 && accounts_.user_of(id) == accounts_.user_of(one.id)) {
      named.insert(other.gpu);
    }
  }
  return named.contains(number) || named.size() < gpus_max;
}

void turns::use_gpu(client_id id, std::uint64_t number, std::uint64_t total,
                    std::optional<std::uint64_t> free, std::uint64_t now) {
  const auto found = clients_.find(id);
  if (found == clients_.end() || number == 0 || total > account_units_max) {
    return;
  }
  client& one = found->second;
  if (one.gpu != number && (one.gpu != 0 || !may_name(one, number))) {
    return;  // it takes turns on the first one only
  }
  one.gpu = number;
  const bool is_known = gpus_.contains(number);
  gpu& of = gpus_[number];
  of.total = total;  // the last one to say it: a wrong one holds until the next report
  // What others have in the GPU beside the accounts. Clients take from the account first and
  // allocate then, so this errs to too little; the next report of a full GPU corrects it.
  std::uint64_t present = 0;
  for (const auto& [other_id, other] : clients_) {
    if (other.gpu == number) {
      present += wired(other) + resident(other);
    }
  }
  if (free.has_value()) {
    of.unaccounted = std::min(less(less(total, *free), present), of.total);
  } else if (is_known) {
    return;  // the next report says what is free
  }
  if (rooms_of(number) > capacity_of(number)) {
    reclaim(number, 0);
  }
  const std::uint64_t rooms = rooms_of(number);
  if (rooms > capacity_of(number) && one.now == phase::entering) {
    // It was given room that is not there: it waits again.
    const std::uint64_t left = less(one.room, rooms - capacity_of(number));
    give_room(one, std::min(one.room, std::max(left, wired(one) + resident(one))));
    enqueue(one, now);
    if (of.partial == 0) {
      of.partial = id;
    } else if (of.partial != id) {
      send_back(one, now);  // two with a part each could wait for each other
    }
  }
  schedule(number, now);
}

void turns::come_back_out(client_id id, std::uint64_t now) {
  if (const auto found = clients_.find(id); found != clients_.end()) {
    begin_leaving(found->second, now);
    found->second.was_off = true;
  }
}

void turns::come_back_held(client_id id) {
  if (const auto found = clients_.find(id);
      found != clients_.end() && found->second.of != nullptr) {
    set_held(found->second, true);
  }
}

int turns::want(client_id id, std::uint64_t units, memory_place where, std::uint64_t now) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return ENOENT;
  }
  client& one = found->second;
  if (where == memory_place::not_any_more) {
    if (one.now == phase::in) {
      end_request(one, units, now);
    } else if (units >= one.pending) {
      one.pending = 0;  // it comes back for what it has
    }
    return 0;
  }
  if (one.now != phase::in || now < settled_ns_ || !knows_mates(one, now)) {
    return EAGAIN;  // a call that began before its turn ended, or before all are back
  }
  if (waits_to_begin(one, now) || comes_too_soon(one, units, now)) {
    return EAGAIN;
  }
  if (where == memory_place::elsewhere) {
    return want_away(one, units);
  }
  const auto spare = [&] {
    if (one.gpu == 0) {
      return account_units_max;
    }
    const std::uint64_t free = less(free_of(one.gpu), settings_.spare);
    const std::uint64_t needed = less(accounts_.used(id) + units, accounts_.granted(id));
    // What is reserved is for a larger request of another thread: nothing of it is granted in
    // advance, because that could be taken back for others.
    const std::uint64_t here = units < one.pending
                                   ? std::max(free, std::min(needed, free + one.reserved))
                                   : free + one.reserved;
    // What is in the host's memory comes to the GPU with its next turn, and must fit.
    return one.on_host == 0
               ? here
               : std::min(here, less(available(one, false), granted(one) + one.on_host));
  };
  const auto take = [&] {
    const std::uint64_t free = less(free_of(one.gpu), settings_.spare);
    const std::uint64_t before = granted(one);
    const int error = accounts_.want(id, units, spare());
    // What is not free came out of what is reserved for a request of another thread.
    one.reserved = less(one.reserved, less(less(granted(one), before), free));
    return error;
  };
  int error = take();
  if (error == EAGAIN) {
    reclaim(one.gpu, id);
    error = take();
  }
  if (error != EAGAIN) {
    end_request(one, units, now);
    return error;
  }
  const full_policy when_full = accounts_.policy_of(id).when_full;
  if (when_full == full_policy::fail || cannot_fit(one, units, now) ||
      (when_full == full_policy::swap && !can_host(one, units)) || is_host_full(one)) {
    accounts_.refuse(id);
    end_request(one, units, now);
    return ENOMEM;
  }
  if (where == memory_place::any && is_stuck(one, now)) {
    return want_on_host(one, units, now);
  }
  one.pending = std::max(one.pending, units);
  enqueue(one, now);
  schedule(one.gpu, now);
  return EAGAIN;
}

/**
 * Takes units into use that are not on the client's GPU: as much as it needs, and nothing in
 * advance, which would be room there.
 */
int turns::want_away(client& one, std::uint64_t units) {
  take_back(one);  // what it has freed there must not count twice
  const std::uint64_t needed = accounts_.used(one.id) + units;
  const int error = accounts_.want(one.id, units, less(needed, accounts_.granted(one.id)));
  one.elsewhere += error == 0 ? units : 0;
  return error;
}

/** Takes units into use that will be in the host's memory until the client leaves. */
int turns::want_on_host(client& one, std::uint64_t units, std::uint64_t now) {
  if (const int error = want_away(one, units); error != 0) {
    return error;
  }
  one.on_host += units;
  end_request(one, units, now);
  return EXDEV;
}

/** A client has got what it asked for, or is refused it. Another thread of it may wait for more. */
void turns::end_request(client& one, std::uint64_t units, std::uint64_t now) {
  if (units < one.pending) {
    schedule(one.gpu, now);
    return;
  }
  one.pending = 0;
  one.reserved = 0;
  one.unfit_ns = 0;
  dequeue(one, now);
  schedule(one.gpu, now);
}

int turns::happen(client_id id, turn_event what, std::uint64_t a, std::uint64_t b,
                  std::uint64_t now) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return ENOENT;
  }
  client& one = found->second;
  const auto moved = [&] {
    one.moving_ns = sum(one.moving_ns, b);
    const auto of = gpus_.find(one.gpu);
    if (of != gpus_.end() && a > std::uint64_t{64} << 20 && b > 0) {
      const double speed = static_cast<double>(a) * second_ns / static_cast<double>(b);
      of->second.bytes_per_s = static_cast<std::uint64_t>(std::clamp(speed, 1.0, 1e15));
    }
  };
  switch (what) {
    case turn_event::waits:
      one.has_work = true;
      if (one.now == phase::out) {
        enqueue(one, now);
      }
      break;
    case turn_event::leaves:
      if (one.now != phase::in ||
          (one.page->order.load(std::memory_order_relaxed) & order_contended) == 0) {
        return ECANCELED;
      }
      if (one.stuck_until_ns > now || !knows_mates(one, now) || !is_idle_together(one, now)) {
        return ECANCELED;
      }
      ask_to_leave(one, now);
      if (one.now == phase::in) {
        return ECANCELED;  // it is held first
      }
      break;
    case turn_event::released:
      if (one.now != phase::leaving) {
        return EINVAL;
      }
      one.room = std::min(one.room, wired(one) + std::min(a / account_unit + 1, swappable(one)));
      break;
    case turn_event::left:
      if (one.now == phase::in) {
        begin_leaving(one, now);  // it came back just before it left, as an earlier daemon ordered
      }
      if (one.now != phase::leaving) {
        return EINVAL;
      }
      // What was in the host's memory is as the rest now, and comes to the GPU with it.
      one.elsewhere = less(one.elsewhere, one.on_host);
      one.on_host = 0;
      take_back(one);  // it may have more elsewhere than a new daemon knows
      one.room = std::min(one.room, wired(one) + resident(one));
      if (!one.is_paused || resident(one) == 0) {
        one.stays = 0;  // else the host has no room for all of it
      }
      one.is_clinging = false;
      one.bytes_out = sum(one.bytes_out, a);
      moved();
      if (coming(one) != 0) {
        tell_kept(one);  // more is needed meanwhile, or less of it is wired
        signals_.insert(id);
        break;
      }
      go_out(one, now);
      break;
    case turn_event::stays:
      if (one.now != phase::leaving) {
        return EINVAL;
      }
      one.stays = static_cast<int>(std::min<std::uint64_t>(a, 4095));
      if (one.is_paused) {
        let_keep(one, now);  // it goes on trying, and then without work
        break;
      }
      if ((b != 0 && one.was_off) || one.room < granted(one)) {
        // What it has released may be another one's.
        const std::uint64_t blocking_ns = one.blocking_ns;
        one.room = std::min(one.room, wired(one) + resident(one));
        one.is_clinging = true;
        one.stuck_until_ns = now + stuck_ns;
        one.has_work = true;
        go_out(one, now);
        one.blocking_ns = blocking_ns;
        break;
      }
      one.now = phase::in;
      one.stuck_until_ns = now + stuck_ns;
      if (are_mates_away(one)) {
        hold(one);  // it must not work without them
      }
      order(one, 0);
      break;
    case turn_event::entered:
      if (one.now == phase::in) {
        return 0;  // it came back as one that has entered
      }
      if (one.now != phase::entering) {
        return EINVAL;
      }
      if (one.queued != 0) {
        return EAGAIN;  // some of its room was taken back (use_gpu)
      }
      take_back(one);
      one.now = phase::in;
      one.since_ns = now;
      one.reserved = one.pending;
      one.reserved_ns = now;
      one.pending = 0;
      one.has_work = false;
      if (std::exchange(one.is_clinging, false)) {
        one.stuck_until_ns = now + stuck_ns;
      }
      one.turns = sum(one.turns, 1);
      one.bytes_in = sum(one.bytes_in, a);
      moved();
      if (one.of != nullptr) {
        if (are_mates_away(one)) {
          set_held(one, true);  // also if they left while it entered
        }
        look_at_job(*one.of, now);
        if (one.of->is_holding && one.is_held) {
          begin_round(*one.of, false, now);
        }
      }
      if (one.is_paused && one.now == phase::in && knows_mates(one, now)) {
        ask_to_leave(one, now);
      }
      break;
    case turn_event::held: note_held(one, a, now); return 0;
    case turn_event::paused: return pause(id, true, now);
    default: return EINVAL;
  }
  schedule(one.gpu, now);
  return 0;
}

/** A client that leaves has done so: it waits if it has something to wait for. */
void turns::go_out(client& one, std::uint64_t now) {
  one.now = phase::out;
  one.page->order.store(order_out, std::memory_order_relaxed);
  one.since_ns = now;
  one.blocking_ns = 0;
  if (one.queued != 0) {
    share_place(one, now);
  } else if (one.has_work || one.pending != 0 || place_of_mates(one) != 0) {
    enqueue(one, now);
  }
}

int turns::pause(client_id id, bool is_paused, std::uint64_t now) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return ENOENT;
  }
  client& one = found->second;
  if (!is_paused && one.blocking_ns != 0) {
    one.blocking_ns = std::max<std::uint64_t>(now, 1);  // a pause is not what others wait for
  }
  one.is_paused = is_paused;
  one.page->is_paused.store(std::uint32_t{is_paused}, std::memory_order_relaxed);
  if (is_paused && one.now == phase::in && knows_mates(one, now)) {
    ask_to_leave(one, now);
  } else if (is_paused && (one.now == phase::leaving || one.now == phase::out) && keeps(one) != 0) {
    release_more(one, releasable(one), now);
  }
  for (const client* const mate : mates_of(one)) {
    look_soon(mate->gpu, now);
  }
  schedule(one.gpu, now);
  return 0;
}

std::uint64_t turns::tick(std::uint64_t now) {
  for (auto& [id, one] : clients_) {
    if (end_ns(one) <= now) {
      one.blocking_ns = 0;
      ended_.insert(id);
    }
    if (one.now == phase::entering && is_waited_for(one.gpu)) {
      if (resident(one) != one.progress) {
        note_progress(one, now);
      } else if (one.room > one.progress && sum(one.progress_ns, progress_ns_max) <= now) {
        // It has room, and does not enter: others are served first, with what it has not taken. If
        // it was about to take a chunk, the driver refuses that, or the others for a while.
        one.room = std::min(one.room, wired(one) + resident(one));
        send_back(one, now);
        schedule(one.gpu, now);
      }
    }
    if (one.now == phase::leaving && one.was_off && coming(one) != 0) {
      if (resident(one) != one.progress) {
        note_progress(one, now);
      } else if (sum(one.progress_ns, released_ns_max) <= now) {
        let_keep(one, now);  // a process that is stopped: others may have what is needed
        schedule(one.gpu, now);
      }
    }
    if (one.is_paused && one.now == phase::out && releasable(one) != 0 &&
        sum(one.since_ns, paused_again_ns) <= now) {
      release_more(one, releasable(one), now);
    }
    if (one.reserved != 0 && sum(one.reserved_ns, reserved_ns_max) <= now) {
      one.reserved = 0;
      schedule(one.gpu, now);
    }
  }
  std::uint64_t next = never;
  for (auto& [key, of] : jobs_) {
    next = std::min(next, look_at_job(of, now));
  }
  for (auto& [number, of] : gpus_) {
    if (of.deadline_ns <= now) {
      schedule(number, now);
    }
    next = std::min(next, of.deadline_ns);
  }
  for (const auto& [key, of] : jobs_) {
    next = of.is_holding ? std::min(next, std::max({of.due_ns, settled_ns_, now + 1})) : next;
  }
  for (const auto& [id, one] : clients_) {  // also of those that got it just now
    if (one.reserved != 0) {
      next = std::min(next, sum(one.reserved_ns, reserved_ns_max));
    }
    if (one.is_paused && one.now == phase::out && releasable(one) != 0) {
      next = std::min(next, sum(one.since_ns, paused_again_ns));
    }
    if (one.now == phase::leaving && one.was_off && coming(one) != 0) {
      next = std::min(next, sum(one.progress_ns, released_ns_max));
    }
    next = std::min(next, end_ns(one));
  }
  return next;
}

}  // namespace gdev
