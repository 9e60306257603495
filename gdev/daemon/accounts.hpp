/**
 * Who may use how much memory: virtual GPUs and their clients.
 *
 * Pure bookkeeping, without I/O, clock or threads: the server calls it for each message. Amounts
 * are in units of account_unit.
 *
 * Invariants:
 * 1. The grants of a virtual GPU's clients, their overhead, and what it holds itself are at most
 *    its limit, but for what was in use when the limit was lowered or the overhead grew. Then all
 *    its grants are strict (account.hpp), until they are within the limit again.
 * 2. A grant is never below what its client has in use, as far as the client's word says so.
 */
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/account.hpp"

namespace gdev {

using client_id = std::uint64_t;

/** What happens to a request that fits the limit, and not the GPU beside the other clients. */
enum class full_policy : std::uint8_t {
  swap,  // others leave the GPU when their turn is over
  wait,  // it waits until others free memory
  fail,  // out of memory
};

/** How the clients of a virtual GPU are treated where memory is short (turns.hpp). */
struct vgpu_policy {
  std::uint64_t reserve = 0;  // as much of the GPU is never taken away from its clients
  int priority = 0;           // the higher one is served first, and leaves last
  full_policy when_full = full_policy::swap;
  std::uint64_t end_after_s = 0;  // a client that cannot leave for so long is ended; 0: never
};

struct vgpu_report {
  std::string name;
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  std::uint64_t granted = 0;
  std::uint64_t clients = 0;
  std::uint64_t refusals = 0;  // requests beyond the limit
  std::uint64_t owner = 0;
  vgpu_policy policy;
  std::uint64_t number = 0;    // of all virtual GPUs that this daemon has had
  std::uint64_t held = 0;      // of what is used: by none of its clients
  std::uint64_t overhead = 0;  // of what is used: beside allocations
};

struct client_report {
  client_id id = 0;
  std::string vgpu;
  std::uint64_t process = 0;
  std::uint64_t user = 0;
  std::uint64_t used = 0;
  std::uint64_t granted = 0;
  std::uint64_t refusals = 0;
};

/** Memory that a client has on GPUs beside its allocations. */
struct overhead_report {
  std::uint64_t units = 0;
  overhead_source source = overhead_source::unknown;
};

/** Calls return 0 or an errno. */
class accounts {
 public:
  /** EEXIST; EINVAL: a limit of zero, or of more than account_units_max. */
  int add(std::string_view name, std::uint64_t limit, std::uint64_t owner,
          const vgpu_policy& policy);
  /**
   * ENOENT; EINVAL. What is in use stays in use; new requests see the new limit. Clients that have
   * joined stay, whoever owns it now.
   */
  int set(std::string_view name, std::uint64_t limit, std::uint64_t owner,
          const vgpu_policy& policy);
  /** ENOENT; EBUSY: it has clients, or holds memory itself. */
  int remove(std::string_view name);

  /**
   * A client comes. `word` lives as long as the client; used: what it has in use already, because
   * it comes back to a daemon that was started anew. It counts as far as the limit has room for it.
   * refusals: what the earlier daemon counted.
   *
   * ENOENT: no such virtual GPU; EACCES: the user may not join it.
   */
  int join(client_id id, std::string_view name, std::uint64_t process, std::uint64_t user,
           account_word& word, std::uint64_t used, std::uint64_t refusals);
  /** The daemon ends: clients keep what is in use, and no more. */
  void stop();
  /** A client is gone; so is its memory. */
  void leave(client_id id);
  /**
   * Takes `units` more into use for a client, and raises its grant for that, by `spare` at most.
   *
   * ENOMEM: the limit; EAGAIN: within the limit, but the grant would have to rise by more.
   */
  int want(client_id id, std::uint64_t units, std::uint64_t spare);
  /**
   * A client says what it has beside its allocations: it counts as used. ENOENT; ENOMEM: it may be
   * refused, and the limit has no room for it; it counts no more than before then.
   */
  int set_overhead(client_id id, const overhead_report& now, bool may_be_refused);
  /** Counts a request that was refused. */
  void refuse(client_id id);

  // Of clients that have joined:
  [[nodiscard]] std::uint64_t used(client_id id) const;
  [[nodiscard]] std::uint64_t granted(client_id id) const;
  /** Returns what a client has given back of its grant since the daemon has looked. */
  [[nodiscard]] std::uint64_t given_back(client_id id) const;
  [[nodiscard]] std::uint64_t refusals(client_id id) const;
  [[nodiscard]] overhead_report overhead(client_id id) const;
  /** Returns the overhead of clients, as far as their limits have room: none can claim more. */
  [[nodiscard]] std::uint64_t fitting_overhead(const std::vector<client_id>& of) const;
  [[nodiscard]] const vgpu_policy& policy_of(client_id id) const;
  [[nodiscard]] std::uint64_t user_of(client_id id) const;
  /** Tells whether two clients have one virtual GPU. */
  [[nodiscard]] bool are_together(client_id one, client_id other) const;
  /** Returns the limit of the client's virtual GPU. */
  [[nodiscard]] std::uint64_t limit_of(client_id id) const;
  /** Takes back what a client was granted and does not use. */
  void take_back(client_id id);

  /**
   * A client's units that are in use become those of its virtual GPU, which holds them until
   * give_back(). ENOENT; ENOMEM: the client does not use so much.
   */
  int hand_over(client_id id, std::uint64_t units);
  /** A virtual GPU no longer holds units. */
  void give_back(std::string_view name, std::uint64_t units);

  [[nodiscard]] vgpu_report report(client_id id) const;
  [[nodiscard]] std::vector<vgpu_report> vgpus() const;
  [[nodiscard]] std::vector<client_report> clients() const;

 private:
  struct vgpu {
    std::string name;
    std::uint64_t limit = 0;
    std::uint64_t owner = 0;
    vgpu_policy policy;
    std::uint64_t refusals = 0;
    std::uint64_t held = 0;  // beside what its clients were granted
    std::uint64_t number = 0;
  };

  struct client {
    vgpu* of = nullptr;
    std::uint64_t process = 0;
    std::uint64_t user = 0;
    account_word* word = nullptr;
    std::uint32_t granted = 0;  // what the word says is not believed
    std::uint64_t refusals = 0;
    overhead_report overhead;  // beside the grant
  };

  [[nodiscard]] vgpu* find(std::string_view name) noexcept;
  [[nodiscard]] static std::uint64_t used_by(const client& one) noexcept;
  /** Returns the grants of its clients, their overhead, and what it holds itself. */
  [[nodiscard]] std::uint64_t granted_of(const vgpu& which) const noexcept;
  /** Returns its limit without what is no client's grant. */
  [[nodiscard]] std::uint64_t grantable(const vgpu& which) const noexcept;
  void take_back_all(const vgpu& which);
  [[nodiscard]] vgpu_report describe(const vgpu& which) const;

  std::vector<std::unique_ptr<vgpu>> vgpus_;  // in the order in which they were added
  std::uint64_t last_number_ = 0;
  std::map<client_id, client> clients_;
};

}  // namespace gdev
