#include "service/sinks.hpp"

#include <errno.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
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
  fresh.push_back(
      {0, std::make_shared<entry>(std::move(take)), std::make_unique<host_threads>(), false});
  const std::lock_guard lock(mutex_);
  for (std::size_t tried = 0; tried < sinks_.size(); ++tried) {
    const std::uint64_t number = (next_number_ + tried) % numbers;
    sink_list& place = sinks_[number % sinks_.size()];
    if (!place.empty()) continue;
    // The function's own objects are destroyed before the thread counts as ended.
    fresh.front().thread->start("a sink", [e = fresh.front().shared]() mutable {
      serve(*e);
      e.reset();
    });
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

void sink_table::ask_to_end(entry& e) {
  {
    const std::lock_guard lock(e.mutex);
    e.is_closed = true;
  }
  e.wake.notify_one();
}

bool sink_table::close(std::int32_t sink, const deadline& end) {
  if (sink < 0) return true;
  const auto number = static_cast<std::uint64_t>(sink);
  std::shared_ptr<entry> closed;
  {
    const std::lock_guard lock(mutex_);
    if (sink_list* const found = find(number); found != nullptr) {
      closed = std::move(found->front().shared);
      ending_.splice(ending_.end(), *found);
    }
  }
  if (closed != nullptr) ask_to_end(*closed);
  closed.reset();
  return wait_for(end, [number](const open_sink& s) { return s.number == number; });
}

bool sink_table::stop(const deadline& end) {
  {
    const std::lock_guard lock(mutex_);
    for (sink_list& place : sinks_) ending_.splice(ending_.end(), place);
  }
  for (;;) {
    std::shared_ptr<entry> closed;
    {
      const std::lock_guard lock(mutex_);
      const auto open = std::find_if(ending_.begin(), ending_.end(),
                                     [](const open_sink& s) { return s.shared != nullptr; });
      if (open == ending_.end()) break;
      closed = std::move(open->shared);
    }
    ask_to_end(*closed);
  }
  if (wait_for(end, [](const open_sink& s) { return !s.is_abandoned; })) return true;
  const std::lock_guard lock(mutex_);
  for (open_sink& sink : ending_) {
    sink.thread->leave();
    sink.is_abandoned = true;
  }
  return false;
}

template <class Wanted>
bool sink_table::wait_for(const deadline& end, const Wanted& is_wanted) {
  // Several threads may wait for one sink, and a host_threads object is for one thread at a time.
  // So they look in turn.
  constexpr std::uint64_t pause_ns_max = 2'000'000;
  for (std::uint64_t pause_ns = 20'000;; pause_ns = std::min(2 * pause_ns, pause_ns_max)) {
    {
      const std::lock_guard lock(mutex_);
      ending_.remove_if([](const open_sink& s) {
        return !s.is_abandoned && s.thread->wait_until(deadline::after(0));
      });
      if (std::none_of(ending_.begin(), ending_.end(), is_wanted)) return true;
    }
    const std::uint64_t left_ns = end.left_ns();
    if (left_ns == 0) return false;
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause_ns, left_ns)));
  }
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
