#include "daemon/closer.hpp"

#include <exception>
#include <thread>
#include <utility>

namespace gdev {

namespace {

constexpr std::size_t closing_max = 256;
constexpr std::size_t closing_of_user_max = 32;  // others can always send theirs
constexpr std::size_t users_max = 64;            // whose counts are kept when they are 0

}  // namespace

closer::count closer::of(std::uint64_t user) {
  if (of_users_.size() >= users_max) {
    std::erase_if(of_users_,
                  [](const auto& one) { return one.second->load(std::memory_order_relaxed) == 0; });
  }
  count& found = of_users_[user];
  if (found == nullptr) {
    found = std::make_shared<std::atomic<std::size_t>>(0);
  }
  return found;
}

void closer::close(file_descriptor file, std::uint64_t user) noexcept {
  if (!file) {
    return;
  }
  // Relaxed: the counts order nothing.
  const auto add = [](const count& one, std::size_t number) {
    one->fetch_add(number, std::memory_order_relaxed);
  };
  constexpr std::size_t less_one = ~std::size_t{0};
  count own;
  try {
    own = of(user);
    add(own, 1);
    add(all_, 1);
    std::thread([add, own, all = all_, taken = std::move(file)]() mutable {
      taken = file_descriptor();
      add(own, less_one);
      add(all, less_one);
    }).detach();
  } catch (const std::exception&) {
    // There is no thread or no memory. It is closed by now, or when this returns.
    if (own != nullptr) {
      add(own, less_one);
      add(all_, less_one);
    }
  }
}

bool closer::is_full(std::uint64_t user) const noexcept {
  const auto own = of_users_.find(user);
  return all_->load(std::memory_order_relaxed) >= closing_max ||
         (own != of_users_.end() &&
          own->second->load(std::memory_order_relaxed) >= closing_of_user_max);
}

}  // namespace gdev
