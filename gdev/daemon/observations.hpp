/**
 * What clients count of themselves, and what was counted of a virtual GPU's clients together.
 *
 * Pure bookkeeping, like accounts. A client counts without cost, in memory of its own, and stores
 * the counts in its page when it is asked. So the answer to a question is known a moment later; a
 * client that is stopped, or moves its memory, answers later.
 *
 * The client may store anything. Its counts are shown and added up, and nothing depends on them.
 * None of them falls: of a number that is less than before, the earlier one counts.
 */
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/accounts.hpp"
#include "protocol/account.hpp"
#include "protocol/counters.hpp"

namespace gdev {

class observations {
 public:
  static constexpr std::size_t names_max = 64;
  static constexpr std::size_t name_bytes = 96;  // with the zero at its end

  /** A client comes. Its page lives as long as the client. before: counts of an earlier daemon. */
  void join(client_id id, std::string_view vgpu, client_page& page, const counter_values& before);
  /** A client is gone. of_daemon: what the daemon counted of it. */
  void leave(client_id id, const counter_values& of_daemon);
  /** A virtual GPU is removed. */
  void forget(std::string_view vgpu) { ended_.erase(std::string(vgpu)); }

  /** Asks the clients for their counts, unless they were just now. Returns those to signal. */
  [[nodiscard]] std::vector<client_id> ask(std::uint64_t now_ns);
  /** Returns how many have not answered since they were asked last. */
  [[nodiscard]] std::uint64_t unanswered() const;

  /** Returns the client's own counts; the daemon's are zero. Zeros of an unknown client. */
  [[nodiscard]] counter_values counts(client_id id);
  /** Returns the counts of a virtual GPU's clients that have ended. */
  [[nodiscard]] counter_values ended(std::string_view vgpu) const;

  /**
   * A client says the name of a driver function that gdev does not know. EINVAL: not the next
   * index, or no name; ENOSPC; ENOENT: no such client.
   */
  int add_name(client_id id, std::uint64_t index, std::string_view name);
  [[nodiscard]] const std::vector<std::string>& names(client_id id) const;

 private:
  struct client {
    std::string vgpu;
    client_page* page = nullptr;
    counter_values seen{};
    std::vector<std::string> names;
  };

  std::map<client_id, client> clients_;
  std::map<std::string, counter_values> ended_;
  std::uint32_t question_ = 0;
  std::uint64_t asked_ns_ = 0;
};

/** Adds counts to others. */
void add(counter_values& to, const counter_values& more) noexcept;

}  // namespace gdev
