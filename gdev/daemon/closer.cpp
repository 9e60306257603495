#include "daemon/closer.hpp"

#include <thread>
#include <utility>

namespace gdev {

namespace {

constexpr std::size_t waiting_max = 64;

}  // namespace

closer::closer() : state_(std::make_shared<shared_state>()) {
  // Room for all that keys hold: close() then allocates nothing.
  state_->waiting.reserve(2048);
  std::thread([state = state_] { work(*state); }).detach();
}

closer::~closer() {
  const std::lock_guard lock(state_->mutex);
  state_->is_ended = true;
  state_->changed.notify_one();
}

void closer::work(shared_state& state) {
  std::vector<file_descriptor> taken;
  taken.reserve(state.waiting.capacity());
  std::unique_lock lock(state.mutex);
  while (!state.is_ended) {
    state.changed.wait(lock, [&] { return state.is_ended || !state.waiting.empty(); });
    std::swap(taken, state.waiting);
    state.closing = taken.size();
    lock.unlock();
    taken.clear();  // may wait
    lock.lock();
    state.closing = 0;
  }
}

void closer::close(file_descriptor file) noexcept {
  if (!file) {
    return;
  }
  const std::lock_guard lock(state_->mutex);
  if (state_->waiting.size() < state_->waiting.capacity()) {
    state_->waiting.push_back(std::move(file));
    state_->changed.notify_one();
  }
}

bool closer::is_full() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->waiting.size() + state_->closing >= waiting_max;
}

}  // namespace gdev
