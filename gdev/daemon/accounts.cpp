#include "daemon/accounts.hpp"

#include <algorithm>
#include <cerrno>

#include "base/crash_point.hpp"
#include "base/saturating.hpp"
#include "protocol/messages.hpp"

namespace gdev {

namespace {

/** A grant is raised by at least so much, if there is so much: requests become rare. */
constexpr std::uint64_t step = units_of(std::uint64_t{256} << 20);

}  // namespace

accounts::vgpu* accounts::find(std::string_view name) noexcept {
  const auto found = std::find_if(vgpus_.begin(), vgpus_.end(),
                                  [&](const auto& one) { return one->name == name; });
  return found == vgpus_.end() ? nullptr : found->get();
}

std::uint64_t accounts::used_by(const client& one) noexcept {
  return std::min(one.word->load().used, one.granted);
}

std::uint64_t accounts::granted_of(const vgpu& which) const noexcept {
  std::uint64_t sum = which.held;
  for (const auto& [id, one] : clients_) {
    sum += one.of == &which ? one.granted + one.overhead.units : 0;
  }
  return sum;
}

std::uint64_t accounts::grantable(const vgpu& which) const noexcept {
  std::uint64_t others = which.held;
  for (const auto& [id, one] : clients_) {
    others += one.of == &which ? one.overhead.units : 0;
  }
  return less(which.limit, others);
}

int accounts::add(std::string_view name, std::uint64_t limit, std::uint64_t owner,
                  const vgpu_policy& policy) {
  if (name.empty() || limit == 0 || limit > account_units_max) {
    return EINVAL;
  }
  if (find(name) != nullptr) {
    return EEXIST;
  }
  vgpus_.push_back(
      std::make_unique<vgpu>(vgpu{std::string(name), limit, owner, policy, 0, 0, ++last_number_}));
  return 0;
}

int accounts::set(std::string_view name, std::uint64_t limit, std::uint64_t owner,
                  const vgpu_policy& policy) {
  vgpu* const which = find(name);
  if (which == nullptr) {
    return ENOENT;
  }
  if (limit == 0 || limit > account_units_max) {
    return EINVAL;
  }
  which->limit = limit;
  which->owner = owner;
  which->policy = policy;
  take_back_all(*which);
  return 0;
}

/** Lowers all grants to what is in use, and makes them strict if that is above the limit. */
void accounts::take_back_all(const vgpu& which) {
  for (const bool is_strict : {true, false}) {
    // First strict: else a client could free between the sum and the decision, and use it again.
    for (auto& [id, one] : clients_) {
      if (one.of == &which) {
        one.granted = one.word->take_back(account_units_max, one.granted, is_strict);
      }
    }
    if (granted_of(which) > which.limit) {
      return;
    }
  }
}

int accounts::remove(std::string_view name) {
  vgpu* const which = find(name);
  if (which == nullptr) {
    return ENOENT;
  }
  const bool has_clients = std::any_of(clients_.begin(), clients_.end(),
                                       [&](const auto& one) { return one.second.of == which; });
  if (has_clients || which->held != 0) {
    return EBUSY;
  }
  std::erase_if(vgpus_, [&](const auto& one) { return one.get() == which; });
  return 0;
}

int accounts::join(client_id id, std::string_view name, std::uint64_t process, std::uint64_t user,
                   account_word& word, std::uint64_t used, std::uint64_t refusals) {
  vgpu* const which = find(name);
  if (which == nullptr) {
    return ENOENT;
  }
  if (which->owner != all_users && which->owner != user && user != 0) {
    return EACCES;
  }
  // A client that comes back is believed as far as it could have got so much here.
  const std::uint64_t granted = granted_of(*which);
  const std::uint64_t left = which->limit - std::min(which->limit, granted);
  const auto had = static_cast<std::uint32_t>(std::min(used, left));
  word.start({had, had, false});
  clients_[id] = {which, process, user, &word, had, refusals, {}};
  which->refusals = sum(which->refusals, refusals);
  return 0;
}

void accounts::stop() {
  for (auto& [id, one] : clients_) {
    one.granted = one.word->take_back(account_units_max, one.granted, true);
  }
}

void accounts::leave(client_id id) { clients_.erase(id); }

std::uint64_t accounts::used(client_id id) const { return used_by(clients_.at(id)); }

std::uint64_t accounts::granted(client_id id) const { return clients_.at(id).granted; }

std::uint64_t accounts::given_back(client_id id) const {
  const client& one = clients_.at(id);
  return one.granted - std::min(one.granted, one.word->load().granted);
}

std::uint64_t accounts::refusals(client_id id) const { return clients_.at(id).refusals; }

const vgpu_policy& accounts::policy_of(client_id id) const { return clients_.at(id).of->policy; }

std::uint64_t accounts::user_of(client_id id) const { return clients_.at(id).user; }

bool accounts::are_together(client_id one, client_id other) const {
  return clients_.at(one).of == clients_.at(other).of;
}

void accounts::take_back(client_id id) {
  client& one = clients_.at(id);
  one.granted = one.word->take_back(account_units_max, one.granted, one.word->load().is_strict);
}

void accounts::refuse(client_id id) {
  client& one = clients_.at(id);
  one.refusals = sum(one.refusals, 1);
  one.of->refusals = sum(one.of->refusals, 1);
}

int accounts::want(client_id id, std::uint64_t units, std::uint64_t spare) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return ENOENT;
  }
  client& asking = found->second;
  const std::uint64_t limit = grantable(*asking.of);
  // No sum of these can overflow: each is below 2^33.
  const std::uint64_t needed = used_by(asking) + std::min(units, account_units_max + 1);
  std::vector<client*> others;
  for (auto& [other_id, other] : clients_) {
    if (other.of == asking.of && other_id != id) {
      others.push_back(&other);
    }
  }
  // Strict meanwhile: what another frees now must not be used by it and given to this one.
  std::uint64_t granted = 0;
  for (client* const other : others) {
    other->granted = other->word->take_back(0, other->granted, true);
    granted += other->granted;
  }
  crash_point("others_strict");
  for (client* const other : others) {
    if (granted + needed <= limit) {
      break;
    }
    const std::uint64_t lacking = granted + needed - limit;
    granted -= other->granted;
    other->granted = other->word->take_back(lacking, other->granted, true);
    granted += other->granted;
  }
  if (granted + needed > limit || needed > account_units_max) {
    refuse(id);
    take_back_all(*asking.of);
    return ENOMEM;
  }
  const std::uint64_t most = asking.granted + std::min(spare, account_units_max);
  if (needed <= most) {
    const std::uint64_t generous =
        std::min({needed + step, limit - granted, account_units_max, most});
    asking.granted = static_cast<std::uint32_t>(std::max(needed, generous));
    asking.word->grant(asking.granted, static_cast<std::uint32_t>(units));
    crash_point("account_raised");
  }
  for (client* const other : others) {
    other->granted = other->word->take_back(0, other->granted, false);
  }
  return needed <= most ? 0 : EAGAIN;
}

int accounts::set_overhead(client_id id, const overhead_report& now, bool may_be_refused) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return ENOENT;
  }
  client& one = found->second;
  const auto count = [&](const overhead_report& what) {
    const bool was_above = granted_of(*one.of) > one.of->limit;
    one.overhead = what;
    one.overhead.units = std::min(what.units, account_units_max);
    if (was_above || granted_of(*one.of) > one.of->limit) {
      take_back_all(*one.of);
    }
  };
  const overhead_report before = one.overhead;
  count(now);
  if (may_be_refused && granted_of(*one.of) > one.of->limit) {
    refuse(id);
    count({std::min(before.units, now.units), now.source});
    return ENOMEM;
  }
  return 0;
}

overhead_report accounts::overhead(client_id id) const {
  const auto found = clients_.find(id);
  return found == clients_.end() ? overhead_report{} : found->second.overhead;
}

std::uint64_t accounts::fitting_overhead(const std::vector<client_id>& of) const {
  std::map<const vgpu*, std::uint64_t> granted;  // once for each: a user may have many clients
  std::uint64_t all = 0;
  for (const client_id id : of) {
    const client& one = clients_.at(id);
    const auto [found, is_new] = granted.try_emplace(one.of, 0);
    if (is_new) {
      found->second = granted_of(*one.of);
    }
    const std::uint64_t others = found->second - one.overhead.units;
    all += std::min(one.overhead.units, less(one.of->limit, others));
  }
  return all;
}

std::uint64_t accounts::limit_of(client_id id) const { return clients_.at(id).of->limit; }

int accounts::hand_over(client_id id, std::uint64_t units) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return ENOENT;
  }
  client& from = found->second;
  if (!from.word->hand_over(units, from.granted)) {
    return ENOMEM;
  }
  from.granted -= static_cast<std::uint32_t>(units);
  from.of->held += units;
  return 0;
}

void accounts::give_back(std::string_view name, std::uint64_t units) {
  vgpu* const which = find(name);
  if (which == nullptr) {
    return;
  }
  const bool was_above = granted_of(*which) > which->limit;
  which->held -= std::min(units, which->held);
  if (was_above) {
    take_back_all(*which);  // its grants may be strict no longer
  }
}

vgpu_report accounts::describe(const vgpu& which) const {
  vgpu_report said{which.name,  which.limit,  which.held,   which.held, 0, which.refusals,
                   which.owner, which.policy, which.number, which.held, 0};
  for (const auto& [id, one] : clients_) {
    if (one.of == &which) {
      said.used += used_by(one) + one.overhead.units;
      said.granted += one.granted + one.overhead.units;
      said.overhead += one.overhead.units;
      ++said.clients;
    }
  }
  return said;
}

vgpu_report accounts::report(client_id id) const {
  const auto found = clients_.find(id);
  return found == clients_.end() ? vgpu_report{} : describe(*found->second.of);
}

std::vector<vgpu_report> accounts::vgpus() const {
  std::vector<vgpu_report> all;
  for (const auto& one : vgpus_) {
    all.push_back(describe(*one));
  }
  return all;
}

std::vector<client_report> accounts::clients() const {
  std::vector<client_report> all;
  for (const auto& [id, one] : clients_) {
    all.push_back({id, one.of->name, one.process, one.user, used_by(one) + one.overhead.units,
                   one.granted + one.overhead.units, one.refusals});
  }
  return all;
}

}  // namespace gdev
