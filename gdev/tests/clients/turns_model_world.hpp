/** The world of turns_model: a daemon's objects, and clients that act on them in virtual time. */
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "daemon/accounts.hpp"
#include "daemon/turns.hpp"

namespace turns_model {

using gdev::phase;
using gdev::turn_event;

constexpr std::uint64_t ms = 1'000'000;
constexpr std::uint64_t never = gdev::turns::never;
constexpr std::uint64_t settle_ns = 1500 * ms;    // as in answers.cpp
constexpr std::uint64_t late_ns = 8000 * ms;      // less than a new daemon waits for a job's rest
constexpr std::uint64_t patience_ns = 1000 * ms;  // of a client whose GPU has not finished
constexpr std::size_t vgpus = 2;
constexpr std::size_t clients_max = 6;
constexpr std::uint64_t gpus_max = 3;
constexpr std::uint64_t calls_ahead = 1000;  // most that a program submits before they have run

void require(bool is_right, const std::string& what) {
  if (!is_right) {
    throw std::runtime_error(what);
  }
}

/** A daemon, whose objects are made anew when it is started anew. */
struct daemon_objects {
  gdev::accounts all;
  gdev::turns turns{all};
};

struct sim_client {
  gdev::client_id id = 0;  // 0: it has not come back to a new daemon yet
  std::unique_ptr<gdev::client_page> page;
  bool is_hostile = false;
  std::size_t vgpu = 0;
  std::uint64_t gpu = 0;
  // The program: units.
  std::uint64_t used = 0;
  std::uint64_t size = 0;  // of that, what leaves the GPU with a turn
  std::uint64_t resident = 0;
  std::uint64_t kept = 0;     // of that: what was there when it began to enter
  std::uint64_t on_host = 0;  // of what is in use: in the host's memory until it leaves
  std::uint64_t told = 0;     // of that: what this daemon knows; a new one counts all as here
  std::uint64_t wanted = 0;   // a request that waits
  std::uint64_t wanted_ns = 0;
  bool has_work = false;
  // Calls of a program of a job: some are common, and end when all of the job have submitted them.
  std::uint32_t job = 0;
  std::uint64_t sent = 0;
  std::uint64_t sent_before = 0;
  std::uint64_t busy_until_ns = 0;
  // The thread of its turns.
  bool is_held = false;
  bool has_told = false;    // that its round is done
  bool is_asked = false;    // the daemon is, for what it wants
  std::uint32_t round = 0;  // that it saw last
  std::uint64_t calls = 0;  // of it, that are left
  bool is_leaving = false;
  bool is_off = false;  // off, or entering
  bool is_entering = false;
  bool has_asked = false;
  std::uint64_t leaving_since_ns = 0;
  int stays = 0;  // so often it will not be able to leave
  std::uint64_t acts_ns = never;
  std::uint64_t asks_ns = never;
  std::uint64_t waits_since_ns = never;
};

/**
 * The daemon's objects and its clients.
 *
 * A client behaves as turn_service.cpp and client.cpp do. The thread of its turns acts when it is
 * signalled, when its own program wakes it, or when its own time is up.
 */
class world {
 public:
  explicit world(std::uint64_t seed) : chance_(seed), has_hostile_(seed % 2 == 1) {
    constexpr std::array<std::uint64_t, 3> totals{1000, 100'000, 2'000'000};
    total_ = totals[below(totals.size())];
    has_jobs_ = percent(30);
    may_have_jobs_ = has_jobs_ || percent(30);
    gpus_ = has_jobs_ ? 2 : 1 + below(gpus_max);
    common_ = 1 + below(20);
    settings_.longest_ns = (200 + below(2000)) * ms;
    settings_.capacity = percent(50) ? total_ : total_ - below(total_ / 2);
    settings_.spare = percent(50) ? 0 : below(settings_.capacity / 4);
    for (std::size_t i = 0; i < vgpus; ++i) {
      limits_[i] = has_jobs_ ? gpus_max * total_ : 1 + below(2 * total_);
      policies_[i] = random_policy();
    }
    start_daemon();
  }

 protected:
  std::uint64_t below(std::uint64_t most) { return most == 0 ? 0 : chance_() % most; }
  bool percent(std::uint64_t how_often) { return below(100) < how_often; }

  gdev::vgpu_policy random_policy() {
    return {percent(70) ? 0 : below(total_), static_cast<int>(below(3)),
            static_cast<gdev::full_policy>(percent(60) ? 0 : below(3))};
  }

  static std::string name(std::size_t vgpu) {
    return std::string(1, static_cast<char>('a' + vgpu));
  }

  gdev::turns& turns() { return daemon_->turns; }
  gdev::accounts& accounts() { return daemon_->all; }

  void start_daemon() {
    daemon_ = std::make_unique<daemon_objects>();
    turns().change(settings_, now_);
    for (std::size_t i = 0; i < vgpus; ++i) {
      require(accounts().add(name(i), limits_[i], gdev::all_users, policies_[i]) == 0, "add");
    }
    rooms_.clear();
    granted_.clear();
    due_ns_ = now_;
  }

  static std::uint64_t wired_of(const sim_client& one) { return one.used - one.size - one.on_host; }

  static std::uint64_t present_of(const sim_client& one) {
    return one.is_hostile ? 0 : wired_of(one) + one.resident;
  }

  std::uint64_t physical(std::uint64_t gpu) const {
    std::uint64_t present = 0;
    for (const sim_client& one : clients_) {
      present += one.gpu == gpu ? present_of(one) : 0;
    }
    return present;
  }

  void use_gpu(const sim_client& one) {
    rooms_.clear();
    turns().use_gpu(one.id, one.gpu, total_, total_ - std::min(total_, physical(one.gpu)), now_);
  }

  // --- What clients do ---

  void publish(sim_client& one) {
    one.page->swappable.store(static_cast<std::uint32_t>(one.size));
    one.page->resident.store(static_cast<std::uint32_t>(one.resident));
    one.page->elsewhere.store(static_cast<std::uint32_t>(one.told));
  }

  int tell(sim_client& one, turn_event what, std::uint64_t a = 0, std::uint64_t b = 0) {
    return one.id == 0 ? ENOTCONN : turns().happen(one.id, what, a, b, now_);
  }

  /** Joins, or comes back to a daemon that was started anew. */
  void connect(sim_client& one) {
    one.page = std::make_unique<gdev::client_page>();
    one.is_asked = false;
    one.told = 0;
    publish(one);
    raise_limit(one.vgpu);
    const std::uint64_t id = next_id_++;
    require(accounts().join(id, name(one.vgpu), id, 0, one.page->account, one.used, 0) == 0,
            "join");
    one.id = id;
    turns().join(id, *one.page, {}, gdev::job_word{one.job, has_jobs_ ? 2U : 0U}.packed(), now_);
    turns().use_gpu(id, one.gpu, total_, std::nullopt, now_);
    if (one.is_leaving || one.is_off) {
      turns().come_back_out(id, now_);
    } else if (one.is_held) {
      turns().come_back_held(id);
      one.round = ~std::uint32_t{0};
    }
    one.acts_ns = now_;
    rooms_.clear();  // what it had counts, whatever is there
    granted_.clear();
  }

  /**
   * A new daemon believes what clients have as far as the limit goes. Beyond it, it knows less than
   * there is.
   */
  void raise_limit(std::size_t vgpu) {
    std::uint64_t needed = 0;
    for (const sim_client& one : clients_) {
      const std::uint64_t granted = one.id == 0 ? 0 : accounts().granted(one.id);
      needed += one.vgpu == vgpu ? std::max(one.used, granted) : 0;
    }
    if (needed > limits_[vgpu]) {
      limits_[vgpu] = needed;
      require(accounts().set(name(vgpu), needed, gdev::all_users, policies_[vgpu]) == 0, "set");
    }
  }

  void disconnect(sim_client& one) {
    if (one.id != 0) {
      turns().leave(one.id, now_);
      accounts().leave(one.id);
      one.id = 0;
    }
  }

  [[nodiscard]] std::uint32_t order(const sim_client& one) const { return one.page->order.load(); }

  /** The thread of a client's turns acts. Sets when it acts next, if it is not signalled. */
  void act(sim_client& one) {
    one.acts_ns = never;
    if (one.id == 0) {
      connect(one);
    } else if (one.is_hostile) {
      be_hostile(one);
    } else if (one.is_leaving) {
      leave(one);
    } else if (one.is_entering) {
      enter(one);
    } else if (one.is_off) {
      if ((order(one) & gdev::order_report) != 0 && !give_up_more(one)) {
        return;
      }
      if ((order(one) & gdev::order_out) == 0) {
        one.is_entering = true;
        one.kept = one.resident;
        enter(one);
      } else if (one.has_work && !one.has_asked) {
        one.has_asked = tell(one, turn_event::waits) == 0;
        one.acts_ns = (order(one) & gdev::order_out) == 0 ? now_ : never;
      }
    } else if ((order(one) & (gdev::order_out | gdev::order_hold)) == gdev::order_hold) {
      be_held(one);
    } else if ((order(one) & gdev::order_out) != 0 ||
               ((order(one) & gdev::order_contended) != 0 && !one.has_work &&
                finished(one) == one.sent && tell(one, turn_event::leaves) == 0)) {
      one.is_leaving = true;
      one.leaving_since_ns = now_;
      one.acts_ns = now_ + below(30 * ms);
    } else if ((order(one) & gdev::order_contended) != 0) {
      one.is_held = false;
      one.acts_ns = now_ + 40 * ms;
    } else {
      one.is_held = false;
    }
  }

  // --- Common work of a job ---

  /** Returns how many of its calls have run, or will without a further call of anybody. */
  std::uint64_t finished(const sim_client& one) const {
    std::uint64_t all = one.sent;
    for (const sim_client& other : clients_) {
      if (other.job == one.job && one.job != 0 && other.vgpu == one.vgpu && !other.is_hostile) {
        // Until the common call that it has not submitted yet.
        all = std::min(all, other.sent / common_ * common_ + common_ - 1);
      }
    }
    return all;
  }

  void send(sim_client& one, std::uint64_t calls) {
    one.sent += calls;
    one.busy_until_ns = std::max(now_, one.busy_until_ns) + below(calls * ms / 20 + 1);
  }

  [[nodiscard]] bool has_run(const sim_client& one) const {
    return finished(one) == one.sent && now_ >= one.busy_until_ns;
  }

  /** Programs go on with their work. */
  void work() {
    for (sim_client& one : clients_) {
      const bool is_free = !one.is_off && !one.is_leaving && !one.is_held;
      const bool goes_on = one.has_work && one.wanted == 0;  // else it waits for memory
      if (one.job != 0 && goes_on && is_free && one.busy_until_ns < now_ + 200 * ms) {
        const std::uint64_t most = finished(one) + calls_ahead;
        send(one, std::min(below(200), most - std::min(one.sent, most)));
      }
    }
  }

  void be_held(sim_client& one) {
    one.is_held = true;
    const std::uint32_t round = one.page->hold.load();
    const gdev::hold_round now = gdev::hold_round::unpacked(round);
    if (one.round != round) {
      one.round = round;
      one.calls = now.calls;
      one.has_told = false;
    }
    if (one.has_told) {
      return;
    }
    one.acts_ns = now_ + 1 + below(2 * ms);
    if (now.calls != 0 && one.has_work && one.wanted == 0 && one.calls != 0) {
      send(one, one.calls);
      one.calls = 0;
    } else if (now.calls != 0 ? one.calls == 0 : has_run(one)) {
      one.has_told = tell(one, turn_event::held, now.number) != ENOTCONN;
      one.acts_ns = never;
    }
  }

  std::uint64_t part_of(std::uint64_t units) {
    return std::min(units, total_ / 16 + below(total_));
  }

  void leave(sim_client& one) {
    const bool is_blocked = one.resident == one.size && !has_run(one);
    if (is_blocked && now_ < one.leaving_since_ns + patience_ns) {
      one.acts_ns = now_ + 1 + below(20 * ms);
      return;
    }
    if (is_blocked || (one.stays > 0 && one.resident == one.size)) {
      one.stays -= is_blocked ? 0 : 1;
      one.is_leaving = false;
      tell(one, turn_event::stays, percent(50) ? EBUSY : ENOMEM);
      one.acts_ns = now_ + 20 * ms;
      return;
    }
    one.resident -= part_of(too_much(one));
    publish(one);
    if (too_much(one) != 0) {
      tell(one, turn_event::released, one.resident * gdev::account_unit);
      one.acts_ns = now_ + below(20 * ms);
      return;
    }
    go_off(one);
    publish(one);
    tell(one, turn_event::left, one.size * gdev::account_unit, 1 + below(100 * ms));
    one.acts_ns = now_;
  }

  /** Returns what it has on the GPU and need not keep there. */
  static std::uint64_t too_much(const sim_client& one) {
    const std::uint64_t room = one.page->room.load();
    return one.resident - std::min(one.resident, room - std::min(room, wired_of(one)));
  }

  /** A client that is off releases more. Returns false if it is not done yet. */
  bool give_up_more(sim_client& one) {
    one.has_asked = false;
    if (too_much(one) != 0 && one.stays > 0) {
      --one.stays;
      tell(one, turn_event::stays, ENOMEM, 1);
      one.acts_ns = now_ + 1 + below(1000 * ms);
      return false;
    }
    one.resident -= part_of(too_much(one));
    publish(one);
    if (too_much(one) != 0) {
      tell(one, turn_event::released, one.resident * gdev::account_unit);
      one.acts_ns = now_ + 1 + below(20 * ms);
      return false;
    }
    tell(one, turn_event::left);
    return true;
  }

  static void go_off(sim_client& one) {
    one.size += std::exchange(one.on_host, 0);
    one.told = 0;
    one.is_leaving = false;
    one.is_entering = false;
    one.is_held = false;
    one.is_off = true;
    one.has_asked = false;
  }

  void enter(sim_client& one) {
    if ((order(one) & gdev::order_out) != 0) {
      one.resident = std::min(one.resident, one.kept);
      publish(one);
      one.is_entering = false;
      one.has_asked = false;
      tell(one, turn_event::left);
      one.acts_ns = now_;
      return;
    }
    const std::uint64_t wired = wired_of(one);
    const std::uint64_t room =
        one.page->room.load() - std::min<std::uint64_t>(one.page->room.load(), wired);
    if (room > one.resident) {
      one.resident += part_of(std::min(room, one.size) - std::min(one.resident, one.size));
      publish(one);
    }
    one.acts_ns = now_ + (room > one.resident ? below(20 * ms) : 200 * ms);
    if (one.resident != one.size) {
      return;
    }
    const int error =
        tell(one, turn_event::entered, one.size * gdev::account_unit, 1 + below(100 * ms));
    if (error == EAGAIN) {
      return;
    }
    require(error == 0, "a client could not enter");
    one.is_entering = false;
    one.is_off = false;
    one.has_asked = false;
    one.is_held = (order(one) & (gdev::order_hold | gdev::order_out)) != 0;
    one.round = ~std::uint32_t{0};
    one.waits_since_ns = never;
    one.acts_ns = now_;
  }

  /** A client's program asks for what it wants, as try_to_use() does. */
  void ask(sim_client& one) {
    one.asks_ns = never;
    if (one.wanted == 0 || one.id == 0 || one.is_off || one.is_held || one.is_hostile) {
      return;  // it asks again when its turn begins
    }
    if (one.gpu == 0) {
      one.gpu = 1 + below(gpus_);
      use_gpu(one);
    }
    if (one.page->account.use(one.wanted)) {
      if (std::exchange(one.is_asked, false)) {
        turns().want(one.id, one.wanted, gdev::memory_place::not_any_more, now_);
      }
    } else {
      use_gpu(one);  // each request says what is free
      const int error = turns().want(one.id, one.wanted, gdev::memory_place::any, now_);
      one.is_asked = error == EAGAIN;
      if (one.is_asked) {
        one.asks_ns = now_ + 200 * ms;
        return;
      }
      require(error == 0 || error == ENOMEM || error == EXDEV, "want");
      if (error == ENOMEM) {
        one.wanted = 0;
        return;
      }
      if (error == EXDEV) {
        one.used += one.wanted;
        one.told += one.wanted;
        one.on_host += std::exchange(one.wanted, 0);
        publish(one);
        return;
      }
    }
    one.used += one.wanted;
    if (percent(80)) {
      one.size += one.wanted;
      one.resident += one.wanted;
    }
    one.wanted = 0;
    publish(one);
  }

  void free_some(sim_client& one) {
    if (one.is_off || one.is_hostile || one.is_leaving) {
      return;  // it waits at the gate
    }
    const bool is_swappable = percent(80);
    const std::uint64_t units = below((is_swappable ? one.size : wired_of(one)) + 1);
    one.used -= units;
    one.size -= is_swappable ? units : 0;
    one.resident -= is_swappable ? units : 0;
    publish(one);
    one.page->account.free(units);
  }

  std::uint64_t any_number() {
    const std::array<std::uint64_t, 7> some{
        0, 1, below(total_), total_, total_ * gdev::account_unit, ~std::uint64_t{0}, chance_()};
    return some[below(some.size())];
  }

  void be_hostile(sim_client& one) {
    const auto word = [&] { return static_cast<std::uint32_t>(any_number()); };
    if (percent(50)) {
      one.page->swappable.store(word());
    }
    if (percent(50)) {
      one.page->resident.store(word());
    }
    if (percent(30)) {
      one.page->order.store(word());
    }
    if (percent(30)) {
      one.page->room.store(word());
    }
    if (percent(50)) {
      one.page->account.start({word() & 0x7FFFFFFF, word(), percent(50)});
    }
    if (percent(20)) {
      turns().want(one.id, any_number(), static_cast<gdev::memory_place>(below(3)), now_);
    }
    tell(one, static_cast<turn_event>(percent(95) ? 1 + below(7) : any_number()), any_number(),
         any_number());
    one.acts_ns = now_ + below(100 * ms);
  }

  std::mt19937_64 chance_;
  bool has_hostile_;
  bool may_have_jobs_ = false;
  bool has_jobs_ = false;  // one in each virtual GPU, on two GPUs, which has half of each and more
  std::uint64_t total_ = 0;
  std::uint64_t gpus_ = 1;
  std::uint64_t common_ = 1;  // each so many-th call of a job's programs is common
  std::uint64_t now_ = 1;
  std::uint64_t due_ns_ = 1;
  std::uint64_t next_id_ = 1;
  gdev::turn_settings settings_;
  std::array<std::uint64_t, vgpus> limits_{};
  std::array<gdev::vgpu_policy, vgpus> policies_{};
  std::unique_ptr<daemon_objects> daemon_;
  std::vector<sim_client> clients_;
  // After the last event; none where any value is right next.
  std::map<std::uint64_t, std::uint64_t> rooms_;
  std::map<std::string, std::uint64_t> granted_;
};

}  // namespace turns_model
