/**
 * Simulated clients drive the daemon's accounts and turns with random events, in virtual time:
 * turns_model FIRST COUNT, a run for each seed. Every second run has hostile clients too.
 *
 * Checked after each event: the invariants of accounts.hpp and turns.hpp, and that the memory on a
 * GPU never rises above its capacity. Checked at the end of a run: with honest clients and without
 * further changes, each client gets its turn and an answer. Ends with 1 and prints the seed of the
 * first run that fails.
 */
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "clients/turns_model_world.hpp"

namespace turns_model {

namespace {

class simulation : private world {
 public:
  using world::world;

  void run() {
    for (std::size_t i = 0; has_jobs_ && i < vgpus * 2; ++i) {
      sim_client& made = clients_.emplace_back();
      made.vgpu = i / 2;
      made.gpu = 1 + i % 2;
      made.job = 1;
      connect(made);
    }
    for (int i = 0; i < 400; ++i) {
      run_until(now_ + (percent(70) ? below(20 * ms) : below(700 * ms)));
      do_something();
      check();
    }
    check_liveness();
  }

  /** Prints the state, for a run that has failed. */
  void print() {
    std::printf("now %.3f s; capacity %llu of %llu, spare %llu\n", static_cast<double>(now_) / 1e9,
                number(settings_.capacity), number(total_), number(settings_.spare));
    for (const gdev::gpu_report& one : turns().gpus()) {
      std::printf("gpu %llu: capacity %llu, rooms %llu\n", number(one.number), number(one.capacity),
                  number(one.rooms));
    }
    for (std::size_t i = 0; i < vgpus; ++i) {
      std::printf("vgpu %s: limit %llu, reserve %llu, priority %d, when full %d\n", name(i).c_str(),
                  number(limits_[i]), number(policies_[i].reserve), policies_[i].priority,
                  static_cast<int>(policies_[i].when_full));
    }
    for (const sim_client& one : clients_) {
      std::printf(
          "client %llu%s in %s on %llu, job %u (%llu sent, %llu run): used %llu, swappable %llu, "
          "resident %llu, wants "
          "%llu%s%s%s%s%s",
          number(one.id), one.is_hostile ? " (hostile)" : "", name(one.vgpu).c_str(),
          number(one.gpu), one.job, number(one.sent), number(finished(one)), number(one.used),
          number(one.size), number(one.resident), number(one.wanted), one.has_work ? ", work" : "",
          one.is_off    ? ", off"
          : one.is_held ? ", held"
                        : "",
          one.is_leaving ? ", leaving" : "", one.is_entering ? ", entering" : "",
          one.has_asked ? ", asked" : "");
      if (one.id != 0) {
        const gdev::turn_report said = turns().report(one.id, now_);
        std::printf("; phase %d, granted %llu, used %llu, room %u, order %u%s",
                    static_cast<int>(said.now), number(accounts().granted(one.id)),
                    number(accounts().used(one.id)), one.page->room.load(), order(one),
                    said.is_paused ? ", paused" : "");
      }
      std::printf("\n");
    }
  }

 private:
  static unsigned long long number(std::uint64_t value) { return value; }

  // --- Events ---

  void do_something() {
    const std::uint64_t kind = below(100);
    if (kind < 12 && clients_.size() < clients_max) {
      sim_client& made = clients_.emplace_back();
      made.is_hostile = has_hostile_ && percent(40);
      made.vgpu = below(vgpus);
      made.gpu = 1 + below(gpus_);
      if (percent(10)) {
        made.gpu = 0;
      }
      if (may_have_jobs_ && !has_jobs_ && percent(60)) {
        join_job(made);
      }
      connect(made);
      return;
    }
    if (kind < 16) {
      change_settings();
      return;
    }
    if (kind < 20) {
      if (!are_all_here()) {
        return;  // a limit that falls now hides what a client has that has not come back
      }
      const std::size_t which = below(vgpus);
      limits_[which] = 1 + below(2 * total_);
      policies_[which] = random_policy();
      require(accounts().set(name(which), limits_[which], gdev::all_users, policies_[which]) == 0,
              "set");
      return;
    }
    if (kind < 22) {
      restart_daemon();
      return;
    }
    if (clients_.empty()) {
      return;
    }
    const std::size_t index = below(clients_.size());
    sim_client& one = clients_[index];
    if (has_jobs_ && one.job != 0 && (kind < 25 || (kind >= 55 && kind < 65))) {
      return;
    }
    if (kind < 25) {
      disconnect(one);
      clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(index));
    } else if (kind < 30) {
      if (one.id != 0) {
        turns().pause(one.id, percent(40), now_);
      }
    } else if (kind < 55) {
      if (one.wanted == 0) {
        one.wanted = 1 + below(percent(80) ? total_ / 2 : 2 * total_);
        if (has_jobs_ && one.job != 0) {
          one.wanted = one.used <= total_ / 2 ? total_ / 2 + 1 - one.used : 1 + below(total_ / 8);
        }
        one.wanted_ns = now_;
        one.asks_ns = now_;
        one.has_work = true;
      }
    } else if (kind < 65) {
      free_some(one);
    } else if (kind < 90) {
      one.has_work = percent(70);
      one.acts_ns = std::min(one.acts_ns, one.is_off && one.has_work ? now_ : never);
    } else if (kind < 95) {
      one.stays = static_cast<int>(below(3));
    } else if (one.id != 0 && one.gpu != 0 && !one.is_hostile) {
      report_gpu(one);
    }
  }

  /** The processes of a job are on different GPUs. */
  void join_job(sim_client& made) {
    const std::uint32_t job = 1 + static_cast<std::uint32_t>(below(2));
    std::uint64_t most = 0;
    for (const sim_client& one : clients_) {
      if (one.job == job && one.vgpu == made.vgpu) {
        if (one.gpu == made.gpu || one.gpu == 0) {
          return;
        }
        most = std::max(most, one.sent);
      }
    }
    if (made.gpu != 0) {
      made.job = job;
      made.sent = most / common_ * common_;  // it waits for nothing that was before it
    }
  }

  void report_gpu(const sim_client& one) {
    const std::uint64_t outside = percent(50) ? 0 : below(total_ / 3);  // other programs' memory
    const std::uint64_t busy = std::min(total_, physical(one.gpu) + outside);
    rooms_.clear();
    turns().use_gpu(one.id, one.gpu, total_, total_ - busy, now_);
  }

  void change_settings() {
    settings_.capacity = percent(50) ? total_ : 1 + below(total_);
    settings_.spare = percent(50) ? 0 : below(settings_.capacity / 4);
    settings_.host = percent(80) ? gdev::account_units_max : below(clients_max * total_);
    rooms_.clear();
    turns().change(settings_, now_);
  }

  void restart_daemon() {
    for (sim_client& one : clients_) {
      one.id = 0;
      act_without_daemon(one);
      // Some of a job come late.
      one.acts_ns =
          now_ + below(has_jobs_ && one.job != 0 && percent(20) ? late_ns : settle_ns / 2);
      one.asks_ns = one.wanted != 0 ? std::max(one.acts_ns, now_ + settle_ns / 2) : never;
    }
    start_daemon();
    turns().wait_for_clients(now_ + settle_ns);
  }

  /** What a client may do before it has come back to a new daemon. */
  void act_without_daemon(sim_client& one) {
    if (one.is_leaving && one.resident == one.size && percent(30)) {
      one.is_leaving = false;  // it could not
    } else if (one.is_leaving && (one.resident != one.size || has_run(one)) && percent(50)) {
      go_off(one);
    } else if (one.is_entering && percent(50)) {
      if (physical(one.gpu) + one.size - one.resident <= total_) {
        one.resident = one.size;
        one.is_entering = false;
        one.is_off = false;
        one.is_held = (order(one) & gdev::order_hold) != 0;
      } else {
        one.resident = std::min(one.resident, one.kept);
        go_off(one);
      }
    }
  }

  void run_until(std::uint64_t end) {
    for (;;) {
      for (const gdev::client_id id : turns().take_signals()) {
        for (sim_client& one : clients_) {
          if (one.id == id && !one.is_hostile) {
            one.acts_ns = std::min(one.acts_ns, now_ + below(5 * ms));
            one.asks_ns = one.wanted != 0 ? std::min(one.asks_ns, now_ + below(5 * ms)) : never;
          }
        }
      }
      std::uint64_t next = std::min(end, due_ns_);
      for (const sim_client& one : clients_) {
        next = std::min({next, one.acts_ns, one.asks_ns});
      }
      now_ = std::max(now_, next);
      work();
      due_ns_ = turns().tick(now_);
      require(due_ns_ > now_, "tick() is due at once");
      check();
      if (next >= end) {
        return;
      }
      for (sim_client& one : clients_) {
        if (one.acts_ns <= now_) {
          act(one);
          wake_program(one);
          check();
        }
        if (one.asks_ns <= now_) {
          ask(one);
          check();
        }
      }
    }
  }

  /** A program that waits at the gate goes on, or comes to wait there. */
  void wake_program(sim_client& one) {
    if (!one.is_off && !one.is_held && one.wanted != 0) {
      one.asks_ns = std::min(one.asks_ns, now_);
    }
    if (one.is_off && one.has_work && one.waits_since_ns == never) {
      one.waits_since_ns = now_;
    }
  }

  // --- What must hold ---

  [[nodiscard]] bool are_all_here() const {
    return std::all_of(clients_.begin(), clients_.end(),
                       [](const sim_client& one) { return one.id != 0; });
  }

  void check() {
    for (const gdev::vgpu_report& one : accounts().vgpus()) {
      const auto before = granted_.find(one.name);
      const std::uint64_t most =
          before == granted_.end() ? one.granted : std::max(one.limit, before->second);
      require(one.granted <= most, "grants rose above the limit");
      granted_[one.name] = one.granted;
      require(one.used <= one.granted, "more is in use than granted");
    }
    for (const sim_client& one : clients_) {
      if (one.id != 0 && !one.is_hostile) {
        check(one);
      }
    }
    for (const gdev::gpu_report& one : turns().gpus()) {
      require(one.number != 0 && one.total == total_, "a GPU that is none");
      const auto before = rooms_.find(one.number);
      require(before == rooms_.end() || one.rooms <= std::max(one.capacity, before->second),
              "rooms rose above the capacity");
      rooms_[one.number] = one.rooms;
      std::uint64_t partial = 0;
      for (const sim_client& of : clients_) {
        partial += of.gpu == one.number && of.id != 0 && !of.is_hostile &&
                           turns().report(of.id, now_).now == phase::entering &&
                           of.page->room.load() < accounts().used(of.id)
                       ? 1
                       : 0;
      }
      require(partial <= 1, "two clients enter with less than they need");
    }
    for (std::uint64_t gpu = 1; gpu <= gpus_; ++gpu) {
      std::uint64_t rooms = turns().rooms_of(gpu);
      for (const sim_client& one : clients_) {
        rooms += one.id == 0 && one.gpu == gpu ? present_of(one) : 0;
      }
      require(physical(gpu) <= std::max(std::min(settings_.capacity, total_), rooms),
              "memory on the GPU rose above the capacity");
    }
  }

  void check(const sim_client& one) {
    const gdev::account_state word = one.page->account.load();
    require(word.used <= word.granted, "a client has more than its grant");
    require(word.granted <= accounts().granted(one.id), "a word has more than the grant");
    const gdev::vgpu_report vgpu = accounts().report(one.id);
    require(vgpu.granted <= vgpu.limit || word.is_strict || word.granted == 0,
            "a grant above the limit is not strict");
    const phase now = turns().report(one.id, now_).now;
    require(one.is_off || now == phase::in || now == phase::leaving, "work runs out of turn");
  }

  /** A limit that was lowered makes grants strict; a client that joins later is not. */
  static bool is_limited(const sim_client& one) { return one.used != 0; }

  /** Two jobs do not fit together on any GPU from now on. */
  void let_jobs_grow() {
    settings_.capacity = total_;
    settings_.spare = 0;
    settings_.host = gdev::account_units_max;
    rooms_.clear();
    turns().change(settings_, now_);
    for (sim_client& one : clients_) {
      if (one.job != 0 && one.used <= total_ / 2) {
        one.wanted = total_ / 2 + 1 - one.used;
        one.asks_ns = now_;
      }
    }
  }

  /** Waits until each client had its turn. */
  void check_liveness() {
    for (std::size_t i = clients_.size(); i-- > 0;) {
      if (clients_[i].is_hostile) {
        disconnect(clients_[i]);
        clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    for (std::size_t i = 0; i < vgpus; ++i) {
      policies_[i].reserve = 0;  // what was promised is not taken away
      policies_[i].priority = 0;
      require(accounts().set(name(i), limits_[i], gdev::all_users, policies_[i]) == 0, "set");
    }
    for (sim_client& one : clients_) {
      if (one.id != 0) {
        turns().pause(one.id, false, now_);
      }
      one.has_work = true;
      one.stays = 0;
      one.acts_ns = std::min(one.acts_ns, now_);
    }
    if (has_jobs_) {
      let_jobs_grow();
    }
    // A round: each waits for the turns of all others, and for moves.
    const std::uint64_t round =
        2 * settle_ns + 2 * clients_max * (settings_.longest_ns + 3000 * ms);
    for (sim_client& one : clients_) {
      one.waits_since_ns = one.is_off ? now_ : never;
      one.wanted_ns = now_;
      one.sent_before = one.sent;
    }
    const std::uint64_t end = now_ + round;
    while (now_ < end) {
      run_until(std::min(end, now_ + 100 * ms));
    }
    for (const sim_client& one : clients_) {
      bool fits = true;    // it and its mates
      bool waits = false;  // one of them, until others free memory
      for (const sim_client& mate : clients_) {
        if (&mate == &one || (one.job != 0 && mate.job == one.job && mate.vgpu == one.vgpu)) {
          fits = fits &&
                 (mate.gpu == 0 || mate.used + mate.wanted <= turns().prospect_of(mate.id).most);
          waits = waits ||
                  (mate.wanted != 0 && policies_[mate.vgpu].when_full == gdev::full_policy::wait);
        }
      }
      require(one.id != 0, "a client is not back");
      const gdev::turn_report said = turns().report(one.id, now_);
      const bool is_misfit = one.gpu != 0 && said.now == phase::out &&
                             accounts().used(one.id) > turns().prospect_of(one.id).sure;
      require(said.is_unfit == is_misfit, "a client is said not to fit, and does; or not said");
      require(!fits || !one.is_off || one.waits_since_ns > end - round, "a client gets no turn");
      require(!fits || waits || one.wanted == 0, "a client gets no answer");
      require(!fits || waits || one.job == 0 || one.sent > one.sent_before, "a job does not go on");
    }
  }
};

}  // namespace

}  // namespace turns_model

int main(int count, char** arguments) {
  const std::uint64_t first = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1;
  const std::uint64_t runs = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    try {
      turns_model::simulation one(seed);
      try {
        one.run();
      } catch (const std::exception&) {
        one.print();
        throw;
      }
    } catch (const std::exception& error) {
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), error.what());
      return 1;
    }
  }
  return 0;
}
