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

/** Counts for a user and for all while it is there. Relaxed: the counts order nothing. */
class closer::place {
 public:
  place(count own, count all) noexcept : own_(std::move(own)), all_(std::move(all)) {
    own_->fetch_add(1, std::memory_order_relaxed);
    all_->fetch_add(1, std::memory_order_relaxed);
  }
  place(place&&) noexcept = default;
  place& operator=(place&&) = delete;
  ~place() {
    if (own_ != nullptr) {
      own_->fetch_sub(1, std::memory_order_relaxed);
      all_->fetch_sub(1, std::memory_order_relaxed);
    }
  }

 private:
  count own_;
  count all_;
};

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
  try {
    std::thread([taken = std::move(file), counted = place(of(user), all_)]() mutable {
      taken = file_descriptor();  // before it does not count any more
    }).detach();
  } catch (const std::exception&) {
    // There is no thread or no memory. It is closed by now, or when this returns.
  }
}

bool closer::is_full(std::uint64_t user) const noexcept {
  const auto own = of_users_.find(user);
  return all_->load(std::memory_order_relaxed) >= closing_max ||
         (own != of_users_.end() &&
          own->second->load(std::memory_order_relaxed) >= closing_of_user_max);
}

}  // namespace gdev
