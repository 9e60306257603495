#include "daemon/observations.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/saturating.hpp"

namespace gdev {

namespace {

/** Commands may ask as often as they like; clients are woken no more often than this. */
constexpr std::uint64_t between_questions_ns = 10'000'000;

}  // namespace

void add(counter_values& to, const counter_values& more) noexcept {
  std::transform(to.begin(), to.end(), more.begin(), to.begin(), sum);
}

void observations::join(client_id id, std::string_view vgpu, client_page& page,
                        const counter_values& before) {
  client& made = clients_[id];
  made.vgpu = vgpu;
  made.page = &page;
  std::copy_n(before.begin(), own_counters, made.seen.begin());
  for (std::size_t i = 0; i < counters; ++i) {
    page.counts[i].store(before[i], std::memory_order_relaxed);
  }
}

void observations::leave(client_id id, const counter_values& of_daemon) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return;
  }
  counter_values& all = ended_[found->second.vgpu];
  add(all, counts(id));
  add(all, of_daemon);
  clients_.erase(found);
}

std::vector<client_id> observations::ask(std::uint64_t now_ns) {
  std::vector<client_id> asked;
  if (question_ != 0 && now_ns < sum(asked_ns_, between_questions_ns)) {
    return asked;
  }
  ++question_;
  asked_ns_ = now_ns;
  for (auto& [id, one] : clients_) {
    one.page->asked.store(question_, std::memory_order_relaxed);
    asked.push_back(id);
  }
  return asked;
}

std::uint64_t observations::unanswered() const {
  return static_cast<std::uint64_t>(
      std::count_if(clients_.begin(), clients_.end(), [](const auto& one) {
        const client_page& page = *one.second.page;
        // Acquire, with the client's release: its counts come before it.
        return page.answered.load(std::memory_order_acquire) !=
               page.asked.load(std::memory_order_relaxed);
      }));
}

counter_values observations::counts(client_id id) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return {};
  }
  client& one = found->second;
  for (std::size_t i = 0; i < own_counters; ++i) {
    one.seen[i] = std::max(one.seen[i], one.page->counts[i].load(std::memory_order_relaxed));
  }
  return one.seen;
}

counter_values observations::ended(std::string_view vgpu) const {
  const auto found = ended_.find(std::string(vgpu));
  return found == ended_.end() ? counter_values{} : found->second;
}

int observations::add_name(client_id id, std::uint64_t index, std::string_view name) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return ENOENT;
  }
  client& one = found->second;
  if (one.names.size() >= names_max) {
    return ENOSPC;
  }
  const bool is_name = !name.empty() && name.size() < name_bytes &&
                       name.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyz"
                           "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string_view::npos;
  if (index != one.names.size() || !is_name) {
    return EINVAL;
  }
  one.names.emplace_back(name);
  one.page->known_names.store(static_cast<std::uint32_t>(one.names.size()),
                              std::memory_order_relaxed);
  return 0;
}

const std::vector<std::string>& observations::names(client_id id) const {
  static const std::vector<std::string> none;
  const auto found = clients_.find(id);
  return found == clients_.end() ? none : found->second.names;
}

}  // namespace gdev
