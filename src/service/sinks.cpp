#include "service/sinks.hpp"

#include <errno.h>

#include "gpufs/error.hpp"

namespace gpufs {

std::int32_t sink_table::open(taker take) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i] != nullptr) continue;
    entries_[i] = std::make_shared<entry>();
    entries_[i]->take = std::move(take);
    return static_cast<std::int32_t>(i);
  }
  throw error(EMFILE, "open_sink: " + std::to_string(limits::sinks_max) + " sinks are open");
}

void sink_table::close(std::int32_t sink) {
  std::shared_ptr<entry> closed;
  {
    const std::lock_guard lock(mutex_);
    if (sink < 0 || static_cast<std::size_t>(sink) >= entries_.size()) return;
    closed = std::move(entries_[static_cast<std::size_t>(sink)]);
    entries_[static_cast<std::size_t>(sink)] = nullptr;
  }
  if (closed == nullptr) return;
  const std::lock_guard lock(closed->mutex);  // a call under way ends first
  closed->take = nullptr;
}

int sink_table::send(std::uint32_t sink, const char* bytes, std::size_t count) {
  std::shared_ptr<entry> e;
  {
    const std::lock_guard lock(mutex_);
    if (sink >= entries_.size()) return -EBADF;
    e = entries_[sink];
  }
  if (e == nullptr) return -EBADF;
  const std::lock_guard lock(e->mutex);
  if (!e->take) return -EBADF;
  const int status = e->take(bytes, count);
  return status > 0 ? -status : status;  // an errno with the wrong sign is no success either
}

}  // namespace gpufs
