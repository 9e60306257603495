// What the daemon answers about counts: observations.hpp.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "daemon/connection.hpp"
#include "daemon/server.hpp"

namespace gdev {

namespace {

static_assert(observations::name_bytes <= sizeof(std::uint64_t) * 15, "the first is its index");

std::uint64_t& at(counter_values& counts, counter which) noexcept {
  return counts[static_cast<std::size_t>(which)];
}

}  // namespace

/** Returns what the daemon counts of a client; the client's own counts are zero. */
counter_values server::daemon_counts(client_id id) const {
  const turn_report turn = turns_.report(id, now());
  counter_values counts{};
  at(counts, counter::turns) = turn.turns;
  at(counts, counter::bytes_out) = turn.bytes_out;
  at(counts, counter::bytes_in) = turn.bytes_in;
  at(counts, counter::moving_ns) = turn.moving_ns;
  at(counts, counter::waiting_ns) = turn.waiting_ns;
  at(counts, counter::refusals) = accounts_.refusals(id);
  return counts;
}

/** Stores what the daemon counts of a client in its page: the client tells the next daemon. */
void server::keep_counts(const connection& of) const {
  const counter_values counts = daemon_counts(of.id);
  for (std::size_t i = own_counters; i < counters; ++i) {
    of.page->words().counts[i].store(counts[i], std::memory_order_relaxed);
  }
}

int server::add_unknown(const connection& from, const message& asked) {
  const auto* const text = reinterpret_cast<const char*>(&asked.numbers[1]);
  return observations_.add_name(from.id, asked.numbers[0],
                                {text, strnlen(text, observations::name_bytes)});
}

/** What everybody may ask about counts. */
message server::answer_observation(const message& asked) {
  message said;
  said.kind = asked.kind;
  const auto& numbers = asked.numbers;
  const auto counts_of = [this](client_id id) {
    counter_values all = observations_.counts(id);
    add(all, daemon_counts(id));
    return all;
  };
  if (asked.kind == message_kind::observe) {
    if (numbers[0] != 0) {
      for (const client_id id : observations_.ask(now())) {
        connections_.at(id)->page->signal();
      }
    }
    said.numbers[0] = observations_.unanswered();
    return said;
  }
  if (asked.kind == message_kind::totals) {
    counter_values all = observations_.ended(name_of(asked));
    for (const client_report& one : accounts_.clients()) {
      if (one.vgpu == name_of(asked)) {
        add(all, counts_of(one.id));
      }
    }
    said.name = asked.name;
    std::copy(all.begin(), all.end(), said.numbers.begin());
    const auto vgpus = accounts_.vgpus();
    said.error = std::any_of(vgpus.begin(), vgpus.end(),
                             [&](const auto& one) { return one.name == name_of(asked); })
                     ? 0
                     : ENOENT;
    return said;
  }
  const auto clients = accounts_.clients();
  const auto found = std::find_if(clients.begin(), clients.end(), [&](const auto& one) {
    return asked.kind == message_kind::counts ? one.id > numbers[0] : one.id == numbers[0];
  });
  if (found == clients.end()) {
    said.error = ENOENT;
    return said;
  }
  static_cast<void>(set_name(said, found->vgpu));
  const auto& names = observations_.names(found->id);
  if (asked.kind == message_kind::counts) {
    said.numbers = {found->id, found->process, turns_.report(found->id, now()).gpu, names.size()};
    const counter_values all = counts_of(found->id);
    std::copy(all.begin(), all.end(), said.numbers.begin() + 4);
  } else if (numbers[1] < names.size()) {
    std::memcpy(said.numbers.data(), names[numbers[1]].data(), names[numbers[1]].size());
  } else {
    said.error = ENOENT;
  }
  return said;
}

}  // namespace gdev
