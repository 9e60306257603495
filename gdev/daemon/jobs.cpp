/**
 * Jobs: processes that use several GPUs together.
 *
 * A kernel of one process may wait for a kernel of another one (a collective). So if one of them is
 * off its GPU, the others' work does not end, and they cannot leave. So all leave, and all enter,
 * together; with order_hold a process is on its GPU and submits nothing.
 *
 * Entering: whoever is on its GPU is held, until all are. A job has one place in the queues of all
 * GPUs, so two jobs cannot wait for each other.
 *
 * Leaving: all are held. One may have submitted more of their common work than another one, and its
 * GPU waits for that. So there are rounds. In a round without calls, those whose GPU has finished
 * say so: if all do, all leave. If not, those that have finished are behind. In the next round they
 * submit some calls, and the others none. They may overtake the others; then there are fewer calls
 * the next time, and at last more time for the GPU. With one call at a time, and time enough for
 * the GPU, who is behind does not go past the next common call.
 *
 * If that takes too long, all go on for a while: what a program's thread waits for may be behind
 * another one's gate.
 *
 * A thread may also wait for memory that another job has, whose GPUs wait for a thread of its own,
 * which waits for memory of the first. So a request that keeps a job from leaving is served in the
 * host's memory.
 */
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <vector>

#include "base/crash_point.hpp"
#include "base/saturating.hpp"
#include "daemon/turns.hpp"

namespace gdev {

namespace {

constexpr std::uint64_t ms = turns::second_ns / 1000;
/** How long the members have for a round. */
constexpr std::uint64_t first_round_ns = 10 * ms;
constexpr std::uint64_t longest_round_ns = 640 * ms;
/** How many calls are submitted in one at first. */
constexpr std::uint32_t first_calls = hold_round::calls_max;
/** Most of the time for which they are held, before they go on for a while. */
constexpr std::uint64_t longest_patience_ns = 64 * turns::second_ns;
/** They are held no longer than this after the last one who waits for it. */
constexpr std::uint64_t wanted_ns_max = turns::second_ns / 2;
/** Most processes of a job. Others have turns of their own. */
constexpr std::size_t members_max = job_word::size_max;
/** How long others wait for the rest of a job that begins, and a job waits for others. */
constexpr std::uint64_t begin_ns_max = 10 * turns::second_ns;
/** How long a request keeps its job from leaving until it is served in the host's memory. */
constexpr std::uint64_t stuck_request_ns = 2 * turns::second_ns;
/** How long a daemon that was started anew waits for the rest of a job. */
constexpr std::uint64_t return_ns_max = 10 * turns::second_ns;
constexpr std::uint32_t round_numbers = 1U << 24;

}  // namespace

void turns::join_job(client& one, const job_word& word, std::uint64_t now) {
  if (word.number == 0) {
    return;
  }
  job& of = jobs_[{accounts_.user_of(one.id), accounts_.report(one.id).number, word.number}];
  if (of.members.size() < members_max) {
    one.of = &of;
    of.members.push_back(one.id);
    of.size = std::max(of.size, std::min(word.size, job_word::size_max));
    of.was_whole = of.was_whole || of.members.size() >= of.size;
    of.progress_ns = now;
  }
}

void turns::leave_job(const client& one, std::uint64_t now) {
  if (one.of == nullptr) {
    return;
  }
  std::erase(one.of->members, one.id);
  if (one.of->members.empty()) {
    std::erase_if(jobs_, [&one](const auto& entry) { return &entry.second == one.of; });
  } else {
    look_at_job(*one.of, now);
  }
}

/** Returns the members that must be on their GPUs together; none: each may be there alone. */
std::vector<turns::client*> turns::gang_of(const job& of) {
  std::vector<client*> gang;
  std::map<std::uint64_t, std::vector<const client*>> by_gpu;
  for (const client_id id : of.members) {
    client& one = clients_.at(id);
    // What has nothing that could leave need not be off its GPU.
    if (one.gpu != 0 && (swappable(one) != 0 || one.on_host != 0 || one.pending != 0 ||
                         one.reserved != 0 || one.now != phase::in)) {
      gang.push_back(&one);
      by_gpu[one.gpu].push_back(&one);
    }
  }
  const bool fits = std::all_of(by_gpu.begin(), by_gpu.end(), [this](const auto& entry) {
    return entry.second.size() == 1 || fit_together(entry.first, entry.second);
  });
  return by_gpu.size() > 1 && fits ? gang : std::vector<client*>{};
}

/** Tells whether several members could be on one GPU at once. Else they take turns there. */
bool turns::fit_together(std::uint64_t which, const std::vector<const client*>& members) const {
  std::uint64_t needed = settings_.spare;
  for (const auto& [id, one] : clients_) {
    if (one.gpu == which) {
      const bool is_member = std::find(members.begin(), members.end(), &one) != members.end();
      needed += is_member ? used(one) + one.pending : wired(one);
    }
  }
  return needed <= capacity_of(which);
}

/** Returns the other clients with which this one is on its GPU, or off it. */
std::vector<turns::client*> turns::mates_of(const client& one) {
  std::vector<client*> gang = one.of == nullptr ? std::vector<client*>{} : gang_of(*one.of);
  const auto self = std::find(gang.begin(), gang.end(), &one);
  if (self == gang.end()) {
    return {};
  }
  gang.erase(self);
  return gang;
}

/** Tells whether members may still come back to a daemon that was started anew. */
bool turns::is_returning(const job& of, std::uint64_t now) const {
  return now < settled_ns_ ||
         (settled_ns_ != 0 && !of.was_whole && now < sum(settled_ns_, return_ns_max));
}

/**
 * Tells whether all of its job are known. Until then it neither leaves nor enters: it would do so
 * without those that are not back yet, whose work may wait for it.
 */
bool turns::knows_mates(const client& one, std::uint64_t now) const {
  return one.of == nullptr || !is_returning(*one.of, now);  // look_at_job() does later what waits
}

/** Tells whether it is on its GPU, and waits for the rest of its job to be. */
bool turns::is_assembling(const client& one) {
  return one.is_held && one.of != nullptr && !one.of->is_holding;
}

/** Tells whether it is to be served before a client whose job assembles. */
bool turns::is_before(const client& one, const client& assembling) const {
  const auto priority = [this](const client& of) { return accounts_.policy_of(of.id).priority; };
  return priority(one) != priority(assembling) ? priority(one) > priority(assembling)
                                               : one.queued < assembling.place;
}

/** Tells whether one of its mates cannot be on its GPU: then it need not be, either. */
bool turns::is_kept_off(const client& one) {
  const std::vector<client*> mates = mates_of(one);
  return std::any_of(mates.begin(), mates.end(),
                     [](const client* mate) { return mate->is_paused || mate->is_unfit; });
}

/** Tells whether some of its job are off their GPUs, or about to be. */
bool turns::are_mates_away(const client& one) {
  const std::vector<client*> mates = mates_of(one);
  return std::any_of(mates.begin(), mates.end(),
                     [](const client* mate) { return mate->now != phase::in; });
}

/** Returns the place in the queues of mates that wait to be on their GPUs with it; 0: none does. */
std::uint64_t turns::place_of_mates(const client& one) {
  for (const client* const mate : mates_of(one)) {
    if (mate->now == phase::entering || (mate->now == phase::out && mate->queued != 0) ||
        is_assembling(*mate)) {
      return mate->place;
    }
  }
  return 0;
}

/** A client that is off waits for its GPU: so do its mates; or they wait there for it. */
void turns::enqueue_mates(const client& one, std::uint64_t now) {
  for (client* const mate : mates_of(one)) {
    if (mate->now == phase::out && mate->queued == 0) {
      mate->queued = mate->place = one.place;
      mate->queued_ns = now;
    } else if (is_assembling(*mate) && mate->place == 0) {
      mate->place = one.place;  // it came back to a daemon that was started anew
    }
    look_soon(mate->gpu, now);
  }
}

/**
 * A client has left, and waits already: for memory that it asked for when it was on its GPU. It and
 * its mates get the earliest of their places. With two, two jobs could each be the first on one
 * GPU, and hold it until the longest turn is over.
 */
void turns::share_place(client& one, std::uint64_t now) {
  const std::uint64_t other = place_of_mates(one);
  const std::uint64_t first = other == 0 ? one.queued : std::min(one.queued, other);
  one.queued = one.place = first;
  for (client* const mate : mates_of(one)) {
    if (mate->now != phase::in && mate->queued != 0) {
      mate->queued = mate->place = first;
    } else if (mate->now == phase::entering || is_assembling(*mate)) {
      mate->place = first;
    }
    look_soon(mate->gpu, now);
  }
}

void turns::look_soon(std::uint64_t which, std::uint64_t now) {
  if (const auto found = gpus_.find(which); found != gpus_.end()) {
    found->second.deadline_ns = now;
  }
}

bool turns::has_begun(const client& one) const {
  return used(one) != 0 || one.on_host != 0 || one.pending != 0 || one.reserved != 0;
}

/** Tells whether some of a job have memory, and others are to come. */
bool turns::is_beginning(const job& of, std::uint64_t now) const {
  const auto have_begun = static_cast<std::size_t>(
      std::count_if(of.members.begin(), of.members.end(),
                    [this](client_id id) { return has_begun(clients_.at(id)); }));
  return have_begun != 0 && have_begun < std::max<std::size_t>(of.size, of.members.size()) &&
         now < sum(of.progress_ns, begin_ns_max);
}

/**
 * Tells whether a client's job is to begin later: while another one begins. With a part of the GPUs
 * each, they could wait for each other for ever, because what runs on a GPU waits for the others
 * of its job.
 */
bool turns::waits_to_begin(const client& one, std::uint64_t now) {
  if (one.of == nullptr || has_begun(one)) {
    return false;
  }
  job& own = *one.of;
  const bool is_first = std::none_of(own.members.begin(), own.members.end(),
                                     [this](client_id id) { return has_begun(clients_.at(id)); });
  const bool has_several = std::max<std::size_t>(own.size, own.members.size()) > 1;
  if (is_first && has_several) {
    own.waits_ns = own.waits_ns == 0 ? std::max<std::uint64_t>(now, 1) : own.waits_ns;
    const bool must_wait = std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
      return &entry.second != &own && is_beginning(entry.second, now);
    });
    if (must_wait && now < sum(own.waits_ns, begin_ns_max)) {
      return true;
    }
  }
  own.progress_ns = now;
  own.waits_ns = 0;
  return false;
}

/**
 * Tells whether a request of a client waits for others, and they for its job: it can leave only if
 * its work ends, and that may wait for what the program submits after the request.
 */
bool turns::is_stuck(const client& one, std::uint64_t now) {
  const auto is_long_ago = [now](std::uint64_t since) {
    return since != 0 && now >= sum(since, stuck_request_ns);
  };
  const std::vector<client*> mates = mates_of(one);
  return !mates.empty() && one.queued != 0 && is_long_ago(one.queued_ns) &&
         (is_long_ago(one.blocking_ns) ||
          std::any_of(mates.begin(), mates.end(), [&](const client* mate) {
            return mate->now == phase::in && is_long_ago(mate->blocking_ns);
          }));
}

/**
 * Tells whether a client begins to have memory while others of its job are off, or about to be: it
 * must not work without them. If they are off, it leaves and enters with them. If it cannot leave,
 * or they have not left yet, whose GPUs may wait for it, it waits for them.
 */
bool turns::comes_too_soon(client& one, std::uint64_t units, std::uint64_t now) {
  if (one.of == nullptr || one.gpu == 0 || swappable(one) != 0 || one.on_host != 0 ||
      one.reserved != 0) {
    return false;
  }
  bool is_too_soon = one.of->is_holding;
  bool may_leave = !one.of->is_holding && now >= one.stuck_until_ns;
  for (const client_id id : one.of->members) {
    client& other = clients_.at(id);
    if (other.gpu != 0 && other.gpu != one.gpu && other.now != phase::in) {
      is_too_soon = true;
      may_leave = may_leave && other.now != phase::leaving;
      if (other.now == phase::out) {
        enqueue(other, now);
        look_soon(other.gpu, now);
      }
    }
  }
  if (is_too_soon && may_leave) {
    one.pending = std::max(one.pending, units);
    begin_leaving(one, now);
  }
  return is_too_soon;
}

/** A client says that it is idle. Tells whether all of its job are. */
bool turns::is_idle_together(client& one, std::uint64_t now) {
  one.idle_ns = now;
  const std::vector<client*> mates = mates_of(one);
  return std::all_of(mates.begin(), mates.end(), [now](const client* mate) {
    return mate->idle_ns != 0 && now <= sum(mate->idle_ns, look_again_ns);
  });
}

/** A job that does not assemble lets others go first. */
void turns::move_back(const job& of) {
  const std::uint64_t place = next_place_++;
  for (client* const one : gang_of(of)) {
    one->place = place;
    one->queued = one->queued != 0 && one->now != phase::in ? place : one->queued;
  }
}

/** Makes a client leave, with its mates if it has some. */
void turns::ask_to_leave(client& one, std::uint64_t now) {
  // While some are off, the GPUs of all have finished. All can be there, and held, where an earlier
  // daemon held them.
  if (mates_of(one).empty() || (is_assembling(one) && are_mates_away(one))) {
    begin_leaving(one, now);
    return;
  }
  job& of = *one.of;
  of.wanted_ns = now;
  if (of.is_holding) {
    return;
  }
  of.is_holding = true;
  of.began_ns = now;
  of.calls = first_calls;
  of.length_ns = first_round_ns;
  for (client* const member : gang_of(of)) {
    if (member->now == phase::in) {
      set_held(*member, true);
      member->is_stepping = false;
      member->blocking_ns =
          member->blocking_ns == 0 ? std::max<std::uint64_t>(now, 1) : member->blocking_ns;
    }
  }
  crash_point("job_held");
  begin_round(of, false, now);
}

void turns::set_held(client& one, bool is_held) {
  if (is_held) {
    hold(one);
  }
  one.is_held = is_held;
  const std::uint32_t bits = one.page->order.load(std::memory_order_relaxed) & ~order_hold;
  order(one, bits & (order_out | order_report | order_contended | order_prepare | order_unfit));
}

/** With its next order a client, which has a job, is held, and may submit nothing. */
void turns::hold(client& one) {
  one.is_held = true;
  one.page->hold.store(hold_round{one.of->round, 0}.packed(), std::memory_order_relaxed);
}

/** Returns the members that are on their GPUs and held. */
std::vector<turns::client*> turns::held_of(const job& of) {
  std::vector<client*> held;
  for (const client_id id : of.members) {
    client& one = clients_.at(id);
    if (one.is_held && one.now == phase::in) {
      held.push_back(&one);
    }
  }
  return held;
}

void turns::begin_round(job& of, bool has_calls, std::uint64_t now) {
  of.round = of.round % (round_numbers - 1) + 1;
  of.has_calls = has_calls;
  of.due_ns = now + of.length_ns;
  for (client* const one : held_of(of)) {
    one->is_stepping = has_calls ? one->is_done : one->is_stepping;
    one->is_done = false;
    const std::uint32_t calls = has_calls && one->is_stepping ? of.calls : 0;
    one->page->hold.store(hold_round{of.round, calls}.packed(), std::memory_order_relaxed);
    signals_.insert(one->id);
  }
}

/** A member has done what its round allows. */
void turns::note_held(client& one, std::uint64_t round, std::uint64_t now) {
  if (one.of != nullptr && one.is_held && one.of->is_holding && round == one.of->round) {
    one.is_done = true;
    look_at_job(*one.of, now);
  }
}

/** Goes on to the next round, or lets all leave, or go on. */
void turns::look_at_holding(job& of, std::uint64_t now) {
  const std::vector<client*> held = held_of(of);
  const auto is_done = [](const client* one) { return one->is_done; };
  if (!of.has_calls && std::all_of(held.begin(), held.end(), is_done)) {
    of.is_holding = false;
    of.patience_ns = job::first_patience_ns;
    for (client* const one : held) {
      begin_leaving(*one, now);
    }
    crash_point("job_leaves");
    return;
  }
  if (now >= sum(of.wanted_ns, wanted_ns_max) || now >= sum(of.began_ns, of.patience_ns)) {
    const bool is_wanted = now < sum(of.wanted_ns, wanted_ns_max);
    of.is_holding = false;
    of.patience_ns =
        is_wanted ? std::min(2 * of.patience_ns, longest_patience_ns) : job::first_patience_ns;
    for (client* const one : held) {
      one->stays = is_wanted ? EBUSY : 0;
      one->stuck_until_ns = is_wanted ? now + stuck_ns : 0;
      one->blocking_ns = is_wanted ? one->blocking_ns : 0;
      set_held(*one, false);
    }
    return;
  }
  if (of.has_calls) {
    const bool have_passed = std::all_of(held.begin(), held.end(), [](const client* one) {
      return one->is_done || !one->is_stepping;
    });
    if (have_passed || now >= of.due_ns) {
      begin_round(of, false, now);
    }
    return;
  }
  if (now < of.due_ns) {
    return;
  }
  if (std::none_of(held.begin(), held.end(), is_done)) {
    of.due_ns = now + of.length_ns;  // all have work
    return;
  }
  const bool is_overtaken = std::any_of(held.begin(), held.end(), [](const client* one) {
    return !one->is_done && one->is_stepping;
  });
  if (is_overtaken) {
    if (of.calls == 1) {
      of.length_ns = std::min(2 * of.length_ns, longest_round_ns);
    }
    of.calls = std::max(of.calls / 4, 1U);
  }
  begin_round(of, true, now);
}

/** Does what is due for a job. Returns when something is due next, or `never`. */
std::uint64_t turns::look_at_job(job& of, std::uint64_t now) {
  if (is_returning(of, now)) {
    return now < settled_ns_ ? settled_ns_ : now + look_again_ns;
  }
  for (const client_id id : of.members) {
    client& one = clients_.at(id);
    if (one.is_paused && one.now == phase::in && now >= one.stuck_until_ns) {
      ask_to_leave(one, now);
    }
  }
  if (of.is_holding) {
    look_at_holding(of, now);
  }
  if (of.is_holding) {
    return std::min(
        {of.due_ns, sum(of.wanted_ns, wanted_ns_max), sum(of.began_ns, of.patience_ns)});
  }
  const std::vector<client*> held = held_of(of);
  if (held.empty()) {
    return never;
  }
  const std::vector<client*> gang = gang_of(of);
  const bool is_complete = std::all_of(gang.begin(), gang.end(),
                                       [](const client* one) { return one->now == phase::in; });
  if (is_complete) {
    for (client* const one : held) {
      one->since_ns = now;  // the turn of all begins
      set_held(*one, false);
    }
    return never;
  }
  for (client* const one : gang) {
    if (one->now == phase::out) {
      enqueue(*one, now);
    }
  }
  return now + look_again_ns;
}

}  // namespace gdev
