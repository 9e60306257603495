#include "service/sinks.hpp"

#include <errno.h>

#include <new>
#include <utility>

#include "gpufs/base/platform.cuh"
#include "gpufs/error.hpp"

namespace gpufs {

sink_table::~sink_table() { (void)stop(deadline::after(deadline::never)); }

std::int32_t sink_table::open(taker take) {
  open_sink fresh{std::make_shared<entry>(std::move(take)), std::make_unique<host_threads>()};
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < sinks_.size(); ++i) {
    if (sinks_[i].shared != nullptr) continue;
    fresh.thread->start("a sink", [e = fresh.shared] { serve(*e); });
    sinks_[i] = std::move(fresh);
    return static_cast<std::int32_t>(i);
  }
  throw error(EMFILE, "open_sink: " + std::to_string(limits::sinks_max) + " sinks are open");
}

void sink_table::ask_to_end(const open_sink& sink) {
  {
    const std::lock_guard lock(sink.shared->mutex);
    sink.shared->is_closed = true;
  }
  sink.shared->wake.notify_one();
}

bool sink_table::end_thread(const open_sink& sink, const deadline& end) {
  const bool ended = sink.thread->wait_until(end);
  if (!ended) sink.thread->leave();
  return ended;
}

bool sink_table::close(std::int32_t sink, const deadline& end) {
  open_sink closed;
  {
    const std::lock_guard lock(mutex_);
    if (sink < 0 || static_cast<std::size_t>(sink) >= sinks_.size()) return true;
    std::swap(closed, sinks_[static_cast<std::size_t>(sink)]);
  }
  if (closed.shared == nullptr) return true;
  ask_to_end(closed);
  return end_thread(closed, end);
}

bool sink_table::stop(const deadline& end) {
  std::array<open_sink, limits::sinks_max> all;
  {
    const std::lock_guard lock(mutex_);
    std::swap(all, sinks_);
  }
  for (const open_sink& sink : all) {
    if (sink.shared != nullptr) ask_to_end(sink);
  }
  bool ended = true;
  for (const open_sink& sink : all) {
    if (sink.shared != nullptr) ended = end_thread(sink, end) && ended;
  }
  return ended;
}

int sink_table::send(std::uint32_t sink, const char* bytes, std::size_t count, answer to) {
  std::shared_ptr<entry> e;
  {
    const std::lock_guard lock(mutex_);
    if (sink >= sinks_.size()) return -EBADF;
    e = sinks_[sink].shared;
  }
  if (e == nullptr) return -EBADF;
  {
    const std::lock_guard lock(e->mutex);
    if (e->is_closed) return -EBADF;
    if (e->queue.size() >= limits::channel_slots_max) return -ENOBUFS;
    e->queue.push_back({bytes, count, std::move(to)});
  }
  e->wake.notify_one();
  return 0;
}

// The sink's thread.
void sink_table::serve(entry& e) {
  std::unique_lock lock(e.mutex);
  for (;;) {
    e.wake.wait(lock, [&] { return e.is_closed || !e.queue.empty(); });
    if (e.queue.empty()) return;
    const message m = std::move(e.queue.front());
    e.queue.pop_front();
    const bool is_closed = e.is_closed;
    lock.unlock();
    const std::uint64_t begin_ns = platform::now_ns();
    std::int32_t status = -EBADF;
    try {
      if (!is_closed) status = e.take(m.bytes, m.count);
    } catch (const std::bad_alloc&) {
      status = -ENOMEM;
    } catch (...) {
      status = -EIO;
    }
    m.to(status > 0 ? -status : status, begin_ns);  // an errno with the wrong sign is no success either
    lock.lock();
  }
}

}  // namespace gpufs
