#include "service/sinks.hpp"

#include <errno.h>

#include <new>
#include <utility>

#include "gpufs/base/platform.cuh"
#include "gpufs/error.hpp"

namespace gpufs {

namespace {

constexpr std::uint64_t numbers = std::uint64_t{1} << 31;
static_assert(numbers % limits::sinks_max == 0, "the number after the last one has the next place");

}  // namespace

sink_table::~sink_table() { (void)stop(deadline::after(deadline::never)); }

std::int32_t sink_table::open(taker take) {
  sink_list fresh;
  fresh.push_back({0, std::make_shared<entry>(std::move(take)), std::make_unique<host_threads>()});
  const std::lock_guard lock(mutex_);
  for (std::size_t tried = 0; tried < sinks_.size(); ++tried) {
    const std::uint64_t number = (next_number_ + tried) % numbers;
    sink_list& place = sinks_[number % sinks_.size()];
    if (!place.empty()) continue;
    fresh.front().thread->start("a sink", [e = fresh.front().shared] { serve(*e); });
    fresh.front().number = number;
    place.swap(fresh);
    next_number_ = number + 1;
    return static_cast<std::int32_t>(number);
  }
  throw error(EMFILE, "open_sink: " + std::to_string(limits::sinks_max) + " sinks are open");
}

sink_table::sink_list* sink_table::find(std::uint64_t number) {
  sink_list& place = sinks_[number % sinks_.size()];
  return !place.empty() && place.front().number == number ? &place : nullptr;
}

void sink_table::ask_to_end(const open_sink& sink) {
  {
    const std::lock_guard lock(sink.shared->mutex);
    sink.shared->is_closed = true;
  }
  sink.shared->wake.notify_one();
}

bool sink_table::close(std::int32_t sink, const deadline& end) {
  sink_list closed;
  {
    const std::lock_guard lock(mutex_);
    sink_list* const found = sink < 0 ? nullptr : find(static_cast<std::uint64_t>(sink));
    if (found == nullptr) return true;
    closed.swap(*found);
  }
  ask_to_end(closed.front());
  closed.front().shared.reset();
  const bool ended = closed.front().thread->wait_until(end);
  const std::lock_guard lock(mutex_);
  // Drop the sinks whose functions have returned since. This does not wait.
  left_.remove_if([](const open_sink& s) { return s.thread->wait_until(deadline::after(0)); });
  if (!ended) left_.splice(left_.end(), closed);
  return ended;
}

bool sink_table::stop(const deadline& end) {
  sink_list all;
  {
    const std::lock_guard lock(mutex_);
    for (sink_list& place : sinks_) all.splice(all.end(), place);
    all.splice(all.end(), left_);
  }
  for (const open_sink& sink : all) {
    if (sink.shared != nullptr) ask_to_end(sink);
  }
  bool ended = true;
  for (const open_sink& sink : all) {
    if (sink.thread->wait_until(end)) continue;
    sink.thread->leave();
    ended = false;
  }
  return ended;
}

int sink_table::send(std::uint64_t sink, const char* bytes, std::size_t count, answer to) {
  std::shared_ptr<entry> e;
  {
    const std::lock_guard lock(mutex_);
    const sink_list* const found = find(sink);
    if (found == nullptr) return -EBADF;
    e = found->front().shared;
  }
  {
    const std::lock_guard lock(e->mutex);
    if (e->is_closed) return -EBADF;
    if (e->queue.size() >= limits::channel_slots_max) return -ENOBUFS;
    e->queue.push_back({bytes, count, std::move(to)});
  }
  e->wake.notify_one();
  return 0;
}

// The loop of a sink's thread.
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
    // A positive errno is an error too.
    m.to(status > 0 ? -status : status, begin_ns);
    lock.lock();
  }
}

}  // namespace gpufs
