// The service's answer to one request that a thread has claimed: withdrawal, the reply, and the
// timeline's event. service.cpp has the threads, the claims and the sleep.
#include <errno.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "service/service.hpp"

namespace gpufs {
namespace {

// How often one request may open its file again. Before each retry, requests to close the file are
// answered (make_closes()).
constexpr unsigned opens_max = 64;

}  // namespace

void service::answer(service_duty duty, std::uint32_t slot, std::uint32_t sequence,
                     const request& r, unsigned worker, file_table::lookups& known,
                     std::shared_ptr<void> place) {
  std::optional<timeline_event> event;
  if (timeline_.on()) {
    try {
      event = describe(duty, r, slot, worker);
    } catch (const std::bad_alloc&) {
      // No memory: the timeline lacks this event.
    }
  }
  request_server::opened_file opened;
  bool is_handed_on = false;  // the thread that makes the round answers, or has answered
  const auto reply = [&](std::int32_t result) {
    if (!is_handed_on) store_reply(slot, sequence, r, event, result, opened.handle != 0);
    if (result == run_stager::device_answers) ++count_of(duty, worker).by_device;
  };
  try {
    if (r.code == request_code::send) {
      if (const int refused = hand_to_sink(slot, sequence, r, event); refused < 0) reply(refused);
    } else if (!begin(slot, sequence, r)) {
      reply(-ECANCELED);
    } else if (is_for_rounds(r.code)) {
      const auto told = [this, slot, sequence, r, event](int result) {
        store_reply(slot, sequence, r, event, result, false);
      };
      if (const int refused = requests_.ask(r, slot, known, told, std::move(place), is_handed_on);
          refused < 0)
        reply(refused);
    } else {
      reply(serve(duty, slot, sequence, r, worker, known, opened));
    }
  } catch (const worker_death&) {
    if (opened.handle != 0) (void)files_.close(opened.handle);
    opened = {};
    requests_.done_with_open(worker);
    reply(-EIO);
    throw;
  } catch (const std::bad_alloc&) {
    reply(-ENOMEM);
  } catch (...) {
    reply(-EIO);
  }
  if (opened.handle != 0) close_withdrawn(slot, sequence, opened.handle);
  if (r.code == request_code::open_write) requests_.done_with_open(worker);
  // Only this thread writes the counter. A read-modify-write would wait until the reply has left
  // for the bus.
  std::atomic<std::uint64_t>& served = count_of(duty, worker).served;
  served.store(served.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// `event`: none, or what the timeline gets. `of_open`: the reply has a handle.
void service::store_reply(std::uint32_t slot, std::uint32_t sequence, const request& r,
                          std::optional<timeline_event> event, std::int32_t result, bool of_open) {
  // Before the reply is stored, so a kernel that sees the reply also finds the error.
  if (result < 0 && result != run_stager::device_answers) requests_.log_error(r, result);
  if (event) {
    event->end_ns = platform::now_ns();  // for a copy that the device makes: its start
    event->result = result == run_stager::device_answers ? static_cast<std::int32_t>(r.length)
                    : result > 0                         ? result & bulk_bytes_mask
                                                         : result;
    timeline_.add(std::move(*event));
  }
  if (result == run_stager::device_answers) return;
  // Release, system scope: pairs with the client's acquire. The staging memory and the reply's
  // fields are written before it. The reply to an open is also ordered before the load in
  // close_withdrawn(), where a release would not be enough.
  channel_word<std::uint64_t>& word = channel_.reply(slot).word;
  if (of_open) word.store_before_load(make_reply_word(sequence, result));
  else word.store_release(make_reply_word(sequence, result));
}

// Answers a claimed request that is not for a sink. An open may have joined the writers of a file
// although a close request of the last writer is pending. So such closes are answered first. If no
// writer is left then, this thread opens the file again.
std::int32_t service::serve(service_duty duty, std::uint32_t slot, std::uint32_t sequence,
                            const request& r, unsigned worker, file_table::lookups& known,
                            request_server::opened_file& opened) {
  for (unsigned attempt = 0; attempt < opens_max; ++attempt) {
    const std::int32_t result = requests_.serve(r, slot, sequence, worker, known, opened);
    if (opened.handle == 0 || opened.file == nullptr) return result;
    GPUFS_SCHEDULE_POINT("service.joined");
    const std::uint32_t node = opened.file->node();
    if (!make_closes(duty, node, worker, known) || !wait_for_withdrawn(slot, sequence, node)) break;
    if (files_.confirm(opened.handle)) return result;
  }
  if (opened.handle != 0) (void)files_.close(opened.handle);  // opened above
  opened = {};
  return -EIO;
}

// Answers the pending requests to close files of a node, and waits for those that other threads
// have claimed: they do no I/O before the file is closed. Returns false when one has not closed its
// file after `answer_time_ns`, or when the service ends.
bool service::make_closes(service_duty duty, std::uint32_t node, unsigned worker,
                          file_table::lookups& known) {
  pending_request bell{};
  request r{};
  for (std::uint32_t slot = 0; slot < channel_.layout.slot_count; ++slot) {
    const bool is_pending = rung(slot, bell);
    const auto is_answered = [&] {
      return reply_sequence(channel_.reply(slot).word.load_relaxed()) == bell.sequence;
    };
    if (!is_pending && is_answered()) continue;
    if (!channel_.request(slot).load(bell.sequence, r) || r.code != request_code::close_written)
      continue;
    const std::shared_ptr<host_file> file = files_.find(r.handle);
    if (file == nullptr || file->node() != node) continue;
    // A thread that hung while the service ended must not close beside the unmount's flush.
    if (stopping_) return false;
    // Acquire and release: as in scan_range().
    if (is_pending && served_[slot].compare_exchange_strong(bell.seen, bell.sequence,
                                                            std::memory_order_acq_rel)) {
      answer(duty, slot, bell.sequence, r, worker, known, nullptr);
      continue;
    }
    const std::uint64_t start = platform::now_ns();
    while (files_.find(r.handle) != nullptr && !is_answered()) {
      if (stopping_ || platform::elapsed_ns(start) > answer_time_ns) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  return true;
}

// Waits until the files are closed that withdrawn opens have opened on a node, because they count
// as writers: the threads that answer these opens are about to close them. Returns false when one
// has not after `answer_time_ns`. `slot`: that of the caller's request.
bool service::wait_for_withdrawn(std::uint32_t slot, std::uint32_t sequence, std::uint32_t node) {
  if (channel_.withdrawn(slot).load_relaxed() == sequence) return true;
  const std::uint64_t own = request_server::open_in_hand::name_of(slot, sequence);
  for (const request_server::open_in_hand& other : requests_.opens()) {
    const std::uint64_t start = platform::now_ns();
    const auto is_withdrawn = [&] {
      const std::uint64_t name = other.request.load();
      return name != own &&
             channel_.withdrawn(static_cast<std::uint32_t>(name >> 32)).load_relaxed() ==
                 static_cast<std::uint32_t>(name);
    };
    while (other.joined.load() == std::uint64_t{node} + 1 && is_withdrawn()) {
      if (stopping_ || platform::elapsed_ns(start) > answer_time_ns) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  return true;
}

// Closes the file that an open has opened, if the caller has withdrawn the request.
void service::close_withdrawn(std::uint32_t slot, std::uint32_t sequence, std::uint64_t handle) {
  GPUFS_SCHEDULE_POINT("service.opened");
  // Pairs with channel_client::withdraw(): this load sees the withdrawal, or the caller sees the
  // reply and closes the file. If both happen, the second close returns -EBADF.
  if (channel_.withdrawn(slot).load_after_store() == sequence) (void)files_.close(handle);
}

// Whether the request is to be served. False if it changes files and its caller has withdrawn it.
bool service::begin(std::uint32_t slot, std::uint32_t sequence, const request& r) const {
  if (!r.changes_files()) return true;
  GPUFS_SCHEDULE_POINT("service.begin");
  // Pairs with channel_client::withdraw(): this load sees the withdrawal, or the caller sees that
  // the request was claimed.
  channel_.reply(slot).claimed.store_before_load(sequence);
  return channel_.withdrawn(slot).load_after_store() != sequence;
}

// Queues a message for a sink. Returns 0 when the sink's thread will answer, or -errno. The bytes
// stay in the slot's staging memory until the answer.
int service::hand_to_sink(std::uint32_t slot, std::uint32_t sequence, const request& r,
                          const std::optional<timeline_event>& event) {
  if (r.length > channel_.layout.staging_bytes) return -EINVAL;
  // Captures nothing of this object: the service may be destroyed before the sink answers.
  const auto answer = [channel = channel_, &events = timeline_, slot, sequence, sink = r.handle,
                       event](std::int32_t result, std::uint64_t begin_ns) {
    if (event) {
      try {
        timeline_event e = *event;
        e.thread = timeline::first_sink + static_cast<std::uint32_t>(sink % limits::sinks_max);
        e.begin_ns = begin_ns;
        e.end_ns = platform::now_ns();
        e.result = result;
        events.add(std::move(e));
      } catch (const std::bad_alloc&) {
        // No memory: the timeline lacks this event.
      }
    }
    // Release, system scope: pairs with the client's acquire.
    channel.reply(slot).word.store_release(make_reply_word(sequence, result));
  };
  return sinks_.send(r.handle, channel_.staging(slot), r.length, answer);
}

// Called before the request is served: the answer to an open may put the file's first bytes where
// the path is now.
timeline_event service::describe(service_duty duty, const request& r, std::uint32_t slot,
                                 unsigned worker) const {
  const std::uint32_t first = duty == service_duty::work   ? timeline::first_worker
                              : duty == service_duty::open ? timeline::first_opener
                                                           : timeline::first_copier;
  timeline_event e{"unknown", first + worker, platform::now_ns(), 0, 0, r.length, 0, {}};
  switch (r.code) {
    case request_code::open:
    case request_code::open_write:
      e.name = r.code == request_code::open ? "open" : "open to write";
      e.bytes = 0;
      e.path.assign(channel_.staging(slot),
                    std::min<std::size_t>(r.length, limits::path_bytes_max));
      return e;
    case request_code::send:
      e.name = "send";
      e.path = "sink " + std::to_string(r.handle);
      return e;
    case request_code::read:
      e.name = "read";
      e.offset = r.offset;
      break;
    case request_code::bulk:
      e.name = "bulk";
      e.offset = r.offset;
      break;
    case request_code::close:
    case request_code::close_written: e.name = "close"; break;
    case request_code::write:
      e.name = "write";
      e.bytes = r.length & ~masked_flag;
      e.offset = r.offset;
      break;
    case request_code::truncate:
      e.name = "truncate";
      e.bytes = 0;
      e.offset = r.offset;
      break;
    case request_code::sync: e.name = "sync"; break;
    case request_code::emptied: e.name = "emptied"; break;
    case request_code::report_close: e.name = "report close"; break;
    case request_code::unlink:
    case request_code::rename:
      e.name = r.code == request_code::unlink ? "unlink" : "rename";
      e.bytes = 0;
      e.path.assign(channel_.staging(slot),
                    std::min<std::size_t>(r.length, limits::path_bytes_max));
      e.path.resize(std::min(e.path.size(), e.path.find('\0')));
      return e;
  }
  const bool names_node = r.code == request_code::write;
  if (const auto file = names_node ? files_.find_writer(r.handle) : files_.find(r.handle))
    e.path = file->path();
  return e;
}

}  // namespace gpufs
