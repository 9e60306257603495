/**
 * Who is on which GPU: clients take turns where their memory does not fit together.
 *
 * Pure bookkeeping, like accounts: no I/O, no threads; the time is an argument, in nanoseconds of
 * any steady clock. Amounts are in units of account_unit.
 *
 * A client's room is what it may have in the GPU's memory:
 *
 *     phase     room
 *     in        what it was granted, and what is reserved for its next request
 *     leaving   falls as the client reports what it has released
 *     out       what cannot be swapped, and what it has kept
 *     entering  rises to what the client has in use, as others release
 *
 * Invariants:
 * 1. The rooms of a GPU's clients are at most its capacity, but for what they had when the capacity
 *    became less, or when they came back to a daemon that was started anew: what such clients have
 *    in the host's memory counts as here.
 * 2. A client's work runs in the phases `in` and `leaving` only: its gate is closed otherwise.
 * 3. At most one client of a GPU is entering with less room than it needs.
 * 4. The processes of a job that uses several GPUs leave together; until all are on their GPUs,
 *    none has its gate open (jobs.cpp has what is so where that fails).
 *
 * A client leaves for another one when its turn is over, when it is idle, or when it waits for
 * memory itself. A turn is at least so long that moving the client's memory takes a tenth of it.
 *
 * A client that leaves keeps what nobody needs, so that the host needs less memory, and it enters
 * sooner. If others need more later, it leaves once more: from `out` to `leaving`. Who is to enter
 * last gives first. A client that grows during its turn, and needs no more than what others have
 * kept, is served before those that wait for their turns: it would be off and on again else.
 */
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "daemon/accounts.hpp"
#include "protocol/account.hpp"
#include "protocol/messages.hpp"

namespace gdev {

enum class phase : std::uint8_t { in, leaving, out, entering };

struct turn_settings {
  std::uint64_t shortest_ns = 100'000'000;
  std::uint64_t longest_ns = 30'000'000'000;
  std::uint64_t capacity = account_units_max;  // most of each GPU that clients may have together
  std::uint64_t spare = 0;                     // of that: only for clients that enter
  std::uint64_t host = account_units_max;      // of the host's memory, for what is off the GPUs
  std::uint64_t files = 0;                     // beside that, in files
};

struct turn_report {
  phase now = phase::in;
  std::uint64_t since_ns = 0;  // when the phase began
  std::uint64_t gpu = 0;       // 0: none yet
  std::uint64_t swappable = 0;
  std::uint64_t resident = 0;
  std::uint64_t turns = 0;  // how often it entered
  std::uint64_t bytes_out = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t moving_ns = 0;
  std::uint64_t waiting_ns = 0;  // for room, also until now
  int stays = 0;                 // errno of the last turn that it could not end, or 0
  bool is_paused = false;
  bool is_waiting = false;  // for room
  bool is_unfit = false;    // it is off, and there is not so much for it
  bool is_held = false;     // it is on its GPU, and waits for the rest of its job
};

struct gpu_report {
  std::uint64_t number = 0;
  std::uint64_t total = 0;
  std::uint64_t capacity = 0;
  std::uint64_t rooms = 0;
  std::uint64_t overhead = 0;  // of its clients
  std::uint64_t nobodys = 0;   // in use, and neither an allocation of its clients nor overhead
};

class turns {
 public:
  static constexpr std::uint64_t second_ns = 1'000'000'000;
  /** How often waiting clients, and jobs that assemble, are looked at, where no message comes. */
  static constexpr std::uint64_t look_again_ns = second_ns / 10;
  /** How long clients that could not leave are not asked again. */
  static constexpr std::uint64_t stuck_ns = second_ns;
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();
  /**
   * Who asks for memory asks again soon: it gets such a part of the GPU at least of what others
   * have kept there.
   */
  static constexpr std::uint64_t growth_part = 32;

  explicit turns(accounts& all) noexcept : accounts_(all) {}

  /** Clients of an earlier daemon may come back until then: no memory is given before. */
  void wait_for_clients(std::uint64_t until_ns) noexcept { settled_ns_ = until_ns; }
  void change(const turn_settings& chosen, std::uint64_t now);
  [[nodiscard]] const turn_settings& settings() const noexcept { return settings_; }

  /**
   * A client comes, after accounts::join(). Its page lives as long as the client. before: what an
   * earlier daemon counted of it; job: a job_word.
   */
  void join(client_id id, client_page& page, const counter_values& before, std::uint32_t job,
            std::uint64_t now);
  /** A client is gone, before accounts::leave(); so is its memory. */
  void leave(client_id id, std::uint64_t now);
  /** A client uses a GPU, and says what it has, and what of it is free if it knows. */
  void use_gpu(client_id id, std::uint64_t gpu, std::uint64_t total,
               std::optional<std::uint64_t> free, std::uint64_t now);
  /** A client that comes back to a daemon is off its GPU, or about to be: `left` follows. */
  void come_back_out(client_id id, std::uint64_t now);
  /** A client that comes back to a daemon is on its GPU, and held: it stays so if it has a job. */
  void come_back_held(client_id id);
  /**
   * Takes units into use, as accounts::want(). ENOMEM: the limit, or more than the GPU could have,
   * or others had to leave and the host has no room for all. EAGAIN: others must leave first; the
   * client is signalled when it should ask again. EXDEV: they are taken, but must be in the host's
   * memory until the client leaves its GPU.
   */
  int want(client_id id, std::uint64_t units, memory_place where, std::uint64_t now);
  /**
   * Something happened to a client's turn. EINVAL: not now; ECANCELED: it need not leave; EAGAIN:
   * it has not the room to have entered.
   */
  int happen(client_id id, turn_event what, std::uint64_t a, std::uint64_t b, std::uint64_t now);
  /** Takes a client off its GPU until it may go on. ENOENT. */
  int pause(client_id id, bool is_paused, std::uint64_t now);

  /**
   * A client wants to hold so much of the host's memory, and in files.
   *
   * ENOMEM: it is more than it holds, and more than there may be, or than it could need; or, of a
   * client that may make files, memory that others need who may not. ENOENT.
   */
  int hold(client_id id, std::uint64_t memory, std::uint64_t files);
  /** A client that comes back, after join(), holds so much: it is believed as far as it could. */
  void hold_again(client_id id, std::uint64_t memory, std::uint64_t files);

  /** Does what is due. Returns when something is due next, or `never`. */
  std::uint64_t tick(std::uint64_t now);
  /** Returns the clients whose page has changed: they must be signalled. */
  [[nodiscard]] std::set<client_id> take_signals() noexcept;
  /** Returns the clients that must be ended: they keep others waiting for longer than they may. */
  [[nodiscard]] std::set<client_id> take_ended() noexcept;

  /** What a client could have of its GPU. */
  struct prospect {
    std::uint64_t most = 0;  // if all others left
    std::uint64_t sure = 0;  // if those stay that need not leave: their virtual GPU has a reserve
  };
  /** gpu, total: of which one, where it uses none yet. */
  [[nodiscard]] prospect prospect_of(client_id id, std::uint64_t gpu = 0,
                                     std::uint64_t total = 0) const;
  [[nodiscard]] turn_report report(client_id id, std::uint64_t now) const;
  [[nodiscard]] std::vector<gpu_report> gpus() const;
  /** Returns the rooms of a GPU's clients together, and its capacity. */
  [[nodiscard]] std::uint64_t rooms_of(std::uint64_t gpu) const;
  [[nodiscard]] bool is_waited_for(std::uint64_t which) const;
  [[nodiscard]] std::uint64_t capacity_of(std::uint64_t gpu) const;

 private:
  /** What the processes of a user in a virtual GPU have in common that came as one (jobs.cpp). */
  struct job {
    static constexpr std::uint64_t first_patience_ns = 2 * second_ns;

    std::vector<client_id> members;
    std::uint32_t size = 0;         // so many are to come; 0: not known
    bool was_whole = false;         // all were here once
    std::uint64_t progress_ns = 0;  // when one came, or began to have memory, last
    std::uint64_t waits_ns = 0;     // since when it waits to begin; 0: it did not have to
    bool is_holding = false;        // members are held, to leave together
    // Of that:
    std::uint32_t round = 0;      // its number
    bool has_calls = false;       // in this round, members that are behind submit calls: at most
    std::uint32_t calls = 0;      // so many,
    std::uint64_t length_ns = 0;  // within this time,
    std::uint64_t due_ns = 0;     // until then
    std::uint64_t began_ns = 0;   // when it began to hold them
    std::uint64_t wanted_ns = 0;  // when somebody waited for it last
    std::uint64_t patience_ns = first_patience_ns;  // for so long
  };

  struct client {
    client_id id = 0;
    client_page* page = nullptr;
    std::uint64_t gpu = 0;
    std::uint64_t elsewhere = 0;  // of its grant: for other GPUs, or in the host's memory
    std::uint64_t on_host = 0;    // of that: in the host's memory until it leaves
    phase now = phase::in;
    std::uint64_t since_ns = 0;
    std::uint64_t room = 0;         // leaving, out (at most) and entering
    std::uint64_t kept = 0;         // leaving: what it need not release
    std::uint64_t reserved = 0;     // in, for `pending`
    std::uint64_t reserved_ns = 0;  // when it was
    std::uint64_t memory_held = 0;  // of the host's
    std::uint64_t files_held = 0;
    std::uint64_t pending = 0;  // what it wants and could not get yet
    std::uint64_t queued = 0;   // place in the order of arrival; 0: it does not wait
    std::uint64_t queued_ns = 0;
    std::uint64_t stuck_until_ns = 0;  // it could not leave
    std::uint64_t blocking_ns = 0;     // since when it should have left; 0: it need not
    std::uint64_t unfit_ns = 0;        // since when its request would not fit; 0: it would
    std::uint64_t progress_ns = 0;     // when it was seen to enter, or to release, and
    std::uint64_t progress = 0;        // what it had on the GPU then
    bool has_work = false;             // it waits as soon as it is out
    bool is_paused = false;
    bool was_off = false;      // leaving: it is off already, or may be
    bool is_clinging = false;  // it is off, and could not release more of what it has kept
    job* of = nullptr;
    std::uint64_t place = 0;      // the last value of `queued`
    bool is_held = false;         // it has order_hold
    bool is_done = false;         // with the round of its job
    bool is_stepping = false;     // it had calls in the last round that has some
    std::uint64_t idle_ns = 0;    // when it said so
    bool is_unfit = false;        // it is off, does not fit for a while, and is not served
    std::uint64_t misfit_ns = 0;  // since when; 0: it would fit, or is not off
    int stays = 0;
    std::uint64_t turns = 0;
    std::uint64_t bytes_out = 0;
    std::uint64_t bytes_in = 0;
    std::uint64_t moving_ns = 0;
    std::uint64_t waiting_ns = 0;
  };

  struct gpu {
    std::uint64_t total = 0;
    std::uint64_t unaccounted = 0;  // in use, but allocated by no client: also overhead
    std::uint64_t bytes_per_s = 0;  // of the last move
    std::uint64_t partial = 0;      // the client that enters with less than it needs, or 0
    std::uint64_t deadline_ns = never;
  };

  [[nodiscard]] std::uint64_t used(const client& one) const;  // on its GPU
  [[nodiscard]] std::uint64_t granted(const client& one) const;
  [[nodiscard]] std::uint64_t swappable(const client& one) const;
  [[nodiscard]] std::uint64_t resident(const client& one) const;
  [[nodiscard]] std::uint64_t wired(const client& one) const;
  [[nodiscard]] std::uint64_t room(const client& one) const;
  [[nodiscard]] std::uint64_t releasable(const client& one) const;
  [[nodiscard]] std::uint64_t coming(const client& one) const;
  [[nodiscard]] std::uint64_t keeps(const client& one) const;
  [[nodiscard]] std::uint64_t lacking(const client& one) const;
  [[nodiscard]] std::uint64_t free_of(std::uint64_t which) const;
  [[nodiscard]] std::uint64_t overhead_of(std::uint64_t which) const;
  [[nodiscard]] std::uint64_t turn_ns(const client& one) const;
  [[nodiscard]] std::uint64_t end_ns(const client& one) const;
  [[nodiscard]] std::uint64_t most_held(const client& one, std::uint64_t client::* held) const;
  [[nodiscard]] std::uint64_t most_off(const client& one, const client& growing,
                                       std::uint64_t units) const;
  [[nodiscard]] std::uint64_t memory_due(const client& one, const client& growing,
                                         std::uint64_t units) const;
  [[nodiscard]] bool can_host(const client& growing, std::uint64_t units) const;
  [[nodiscard]] bool is_host_full(const client& one) const;
  [[nodiscard]] bool may_leave_for(const client& one, const client& by) const;
  [[nodiscard]] bool is_reserved(const client& one) const;
  [[nodiscard]] std::uint64_t available(const client& one, bool do_others_stay) const;
  int want_away(client& one, std::uint64_t units);
  void end_request(client& one, std::uint64_t units, std::uint64_t now);
  void note_fit(client& one, std::uint64_t now);
  [[nodiscard]] bool is_over(const client& one, const client& by, std::uint64_t now);
  [[nodiscard]] bool is_growing(const client& one, std::uint64_t now);
  [[nodiscard]] std::vector<client*> keepers_for(const client& by, std::uint64_t now);
  [[nodiscard]] bool cannot_fit(client& one, std::uint64_t units, std::uint64_t now);
  [[nodiscard]] bool may_name(const client& one, std::uint64_t number) const;
  void drop_gpu(std::uint64_t number);
  [[nodiscard]] bool is_patient(const client& one) const;
  bool give_up_what_cannot_fit(client& one, std::uint64_t now);
  [[nodiscard]] client* first_waiting(std::uint64_t which, std::uint64_t now);
  void take_back(client& one);
  void reclaim(std::uint64_t which, client_id but);
  bool make_leave(client& by, std::uint64_t needed, std::uint64_t now);
  bool make_room(client& by, std::uint64_t needed, std::uint64_t now);
  void release_more(client& one, std::uint64_t units, std::uint64_t now);
  void note_progress(client& one, std::uint64_t now) const;
  void start_leaving(client& one, bool was_off, std::uint64_t now);
  static void begin_blocking(client& one, std::uint64_t now);
  void tell_kept(client& one);
  void let_keep(client& one, std::uint64_t now);
  void go_out(client& one, std::uint64_t now);
  void send_back_for_clinging(std::uint64_t which, std::uint64_t now);
  void begin_leaving(client& one, std::uint64_t now);
  void ask_to_leave(client& one, std::uint64_t now);
  void send_back(client& one, std::uint64_t now);
  void enqueue(client& one, std::uint64_t now);
  void dequeue(client& one, std::uint64_t now);
  void order(client& one, std::uint32_t bits);
  void set_contended(std::uint64_t which, const client* by);
  [[nodiscard]] bool is_filling(std::uint64_t which) const;
  [[nodiscard]] std::uint64_t next_end(std::uint64_t which, std::uint64_t now) const;
  void schedule(std::uint64_t which, std::uint64_t now);
  void give_room(client& one, std::uint64_t units);
  void admit_without_gpu(std::uint64_t now);
  bool admit(gpu& of, client& first, std::uint64_t now);

  // jobs.cpp:
  void join_job(client& one, const job_word& word, std::uint64_t now);
  void leave_job(const client& one, std::uint64_t now);
  [[nodiscard]] std::vector<client*> gang_of(const job& of);
  [[nodiscard]] std::vector<client*> mates_of(const client& one);
  [[nodiscard]] std::vector<client*> held_of(const job& of);
  [[nodiscard]] bool fit_together(std::uint64_t which,
                                  const std::vector<const client*>& members) const;
  [[nodiscard]] bool is_returning(const job& of, std::uint64_t now) const;
  [[nodiscard]] bool knows_mates(const client& one, std::uint64_t now) const;
  [[nodiscard]] static bool is_assembling(const client& one);
  [[nodiscard]] bool is_before(const client& one, const client& assembling) const;
  [[nodiscard]] bool is_kept_off(const client& one);
  [[nodiscard]] std::uint64_t place_of_mates(const client& one);
  [[nodiscard]] bool are_mates_away(const client& one);
  [[nodiscard]] bool has_begun(const client& one) const;
  [[nodiscard]] bool is_beginning(const job& of, std::uint64_t now) const;
  [[nodiscard]] bool waits_to_begin(const client& one, std::uint64_t now);
  [[nodiscard]] bool is_stuck(const client& one, std::uint64_t now);
  int want_on_host(client& one, std::uint64_t units, std::uint64_t now);
  [[nodiscard]] bool comes_too_soon(client& one, std::uint64_t units, std::uint64_t now);
  [[nodiscard]] bool is_idle_together(client& one, std::uint64_t now);
  void share_place(client& one, std::uint64_t now);
  void enqueue_mates(const client& one, std::uint64_t now);
  void look_soon(std::uint64_t which, std::uint64_t now);
  void move_back(const job& of);
  void hold(client& one);
  void set_held(client& one, bool is_held);
  void note_held(client& one, std::uint64_t round, std::uint64_t now);
  void begin_round(job& of, bool has_calls, std::uint64_t now);
  void look_at_holding(job& of, std::uint64_t now);
  std::uint64_t look_at_job(job& of, std::uint64_t now);

  accounts& accounts_;
  turn_settings settings_;
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>, job> jobs_;
  std::map<client_id, client> clients_;
  std::map<std::uint64_t, gpu> gpus_;
  std::set<client_id> signals_;
  std::set<client_id> ended_;
  std::uint64_t next_place_ = 1;
  std::uint64_t settled_ns_ = 0;
};

}  // namespace gdev
