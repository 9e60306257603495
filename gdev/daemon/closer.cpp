#include "daemon/closer.hpp"

#include <exception>
#include <thread>
#include <utility>

namespace gdev {

namespace {

constexpr std::size_t closing_max = 64;

}  // namespace

void closer::close(file_descriptor file) noexcept {
  if (!file) {
    return;
  }
  // Relaxed: the count orders nothing.
  closing_->fetch_add(1, std::memory_order_relaxed);
  try {
    std::thread([count = closing_, taken = std::move(file)]() mutable {
      taken = file_descriptor();
      count->fetch_sub(1, std::memory_order_relaxed);
    }).detach();
  } catch (const std::exception&) {
    // There is no thread or no memory. It is closed by now, with what the thread would have run.
    closing_->fetch_sub(1, std::memory_order_relaxed);
  }
}

bool closer::is_full() const noexcept {
  return closing_->load(std::memory_order_relaxed) >= closing_max;
}

}  // namespace gdev
