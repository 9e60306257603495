#include "service/service.hpp"

#include <errno.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace gpufs {

namespace {

constexpr service_duty all_duties[] = {service_duty::work, service_duty::open, service_duty::copy};
constexpr std::uint64_t nap_ns = 20'000;
constexpr std::uint64_t passed_over_nap_ns = 200'000;
constexpr std::uint64_t expecting_ns = 5'000'000;
// How often a file is opened for one request. Each time after the first, some of its files were
// closed.
constexpr unsigned opens_max = 64;
constexpr std::uint64_t everywhere_after_ns =
    20'000'000;  // of slow answers: another worker may hang

}  // namespace

service::service(device& d, const channel_view& channel, const channel_view& seen,
                 const bulk_frames& frames, file_table& files, extent_registrar& extents,
                 sink_table& sinks, timeline& record, const service_options& options)
    : channel_(channel), files_(files), sinks_(sinks), timeline_(record), options_(options),
      served_(channel.layout.slot_count), counts_(std::size_t{service_duties} * most_threads()),
      requests_(d, channel, seen, frames, files, extents, std::max(options.copiers, 1u), stopping_),
      pools_{thread_pool(threads_of(service_duty::work)),
             thread_pool(threads_of(service_duty::open)),
             thread_pool(threads_of(service_duty::copy))} {
  for (const service_duty duty : all_duties)
    channel_.header().beds[place_of(duty)].answered_by = answered_by(duty);
  channel_.announce(service_phase::running);
  try {
    threads_.start("the service's supervisor", [this] { supervise(); });
    for (const service_duty duty : all_duties) {
      const char* const what = duty == service_duty::work   ? "a worker"
                               : duty == service_duty::open ? "an opener"
                                                            : "a copier";
      for (unsigned w = 0; w < threads_of(duty); ++w)
        threads_.start(what, [this, duty, w] { work(duty, w); });
    }
    wait_for_openers();
  } catch (...) {
    ask_to_end();
    (void)threads_.wait_until(
        deadline::after(deadline::never));  // nobody has asked them for anything yet
    throw;
  }
}

// An opener that takes its table closes copies of some of the program's descriptors, and so may
// hear of errors that nobody gets (descriptor_table::move_from_copied). That is to be over before a
// program writes files after it has made its mount.
void service::wait_for_openers() {
  std::unique_lock lock(supervisor_mutex_);
  (void)supervisor_wake_.wait_for(lock, std::chrono::nanoseconds(answer_time_ns),
                                  [this] { return entered_ == threads_of(service_duty::open); });
}

service::~service() {
  if (!is_stopped_) (void)stop(deadline::never);
}

void service::ask_to_end() {
  {
    const std::lock_guard lock(supervisor_mutex_);
    stopping_ = true;
  }
  supervisor_wake_.notify_all();
  wake_all();
}

bool service::stop(const deadline& end) {
  is_stopped_ = true;
  ask_to_end();
  // Requests under way are answered; but a group that waits for a worker that hangs gets an error
  // after a moment. Its slot is then abandoned, so that a late answer hurts nobody.
  (void)threads_.wait_until(end.or_after(answer_time_ns));
  channel_.announce(service_phase::dead);
  const bool ended = threads_.wait_until(end);
  if (!ended) threads_.leave();
  return ended;
}

void service::supervise() {
  std::unique_lock lock(supervisor_mutex_);
  for (std::uint32_t beat = 1; !stopping_; ++beat) {
    channel_.beat(beat);
    if (requests_.report_stalled()) report_waiting_for_copiers();
    // Sentinels may have gone into requests that take long, while the others sleep.
    const pending_requests waiting = pending();
    for (const service_duty duty : all_duties) {
      if (waiting[place_of(duty)] != 0 && sleepers(duty) != 0) wake_sleepers(duty, 1);
    }
    supervisor_wake_.wait_for(lock, std::chrono::milliseconds(50));
  }
}

void service::work(service_duty duty, unsigned worker) {
  const auto now = [] { return platform::now_ns(); };
  // Naps and the sentinel's sleeps are to end when they should, not 50 us later. Of this thread
  // only.
  (void)prctl(PR_SET_TIMERSLACK, 1000ul);
  try {
    // First made, last gone: no file may be let go of behind it.
    const std::unique_ptr<descriptor_table_guard> stay =
        duty == service_duty::open ? files_.enter_opener() : nullptr;
    if (duty == service_duty::open) {
      {
        const std::lock_guard lock(supervisor_mutex_);
        ++entered_;
      }
      supervisor_wake_.notify_all();
    }
    file_table::lookups known;
    std::uint64_t last = now();
    unsigned empty_rounds = 0;
    std::uint64_t everywhere_ns = last;
    std::uint64_t woken = last;
    bool seen_somewhere = false;
    bool by_device = false;  // how the last ones were answered
    for (unsigned round = 0; !stopping_; ++round) {
      // Everywhere only from time to time, so that no slot depends on one worker: bells that many
      // look at ring slowly.
      const bool everywhere = seen_somewhere || round % 256 == 0 || empty_rounds % 16 == 15 ||
                              last - everywhere_ns > everywhere_after_ns;
      seen_somewhere = false;
      if (everywhere) everywhere_ns = last;
      const std::uint64_t before = count_of(duty, worker).by_device;
      const tally done = scan(duty, worker, everywhere, known);
      files_.close_handed();
      empty_rounds = done.answered != 0 ? 0 : empty_rounds + 1;
      if (done.answered != 0) {
        last = now();
        by_device = count_of(duty, worker).by_device - before == done.answered;
        // Who writes a file does so for most: others pass its writes over.
        seen_somewhere = done.written != 0;
        continue;
      }
      if (done.passed_over != 0) {
        last = now();
        // First a look everywhere: there may be something for me.
        if (!everywhere) {
          seen_somewhere = true;
          continue;
        }
        std::this_thread::sleep_for(std::chrono::nanoseconds(passed_over_nap_ns));
        continue;
      }
      const std::uint64_t quiet = now() - last;
      if (quiet < options_.spin_ns) {
        // While the copy engine is at it the next request is a while away, and those who wait for
        // it have others under way.
        if (by_device) std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
        else platform::pause(0);
        continue;
      }
      known.clear();  // no descriptor stays open because a sleeping worker remembers it
      // Who was woken, as by a launch, is to expect work: for a while as if it had been idle only
      // since then.
      const std::uint64_t since_woken = now() - woken;
      const idle_end end =
          idle(duty, since_woken < expecting_ns ? std::min(quiet, since_woken) : quiet);
      seen_somewhere = end.pending;
      if (end.woken) woken = now();
    }
  } catch (...) {
    // A worker_death, or what a backend threw between requests. answer() has given the request that
    // it held its -EIO. The last thread of a kind takes the service with it.
    if (pool_of(duty).alive.fetch_sub(1) == 1) channel_.announce(service_phase::dead);
  }
}

service::pending_requests service::pending() const {
  pending_request bell{};
  request r{};
  pending_requests count{};
  for (std::uint32_t slot = 0; slot < channel_.layout.slot_count; ++slot) {
    if (rung(slot, bell) && channel_.request(slot).load(bell.sequence, r))
      ++count[place_of(duty_for(r.code))];
  }
  return count;
}

// All copiers may be in the driver. Nobody then takes these requests.
void service::report_waiting_for_copiers() {
  pending_request bell{};
  request r{};
  for (std::uint32_t slot = 0; slot < channel_.layout.slot_count; ++slot) {
    if (rung(slot, bell) && channel_.request(slot).load(bell.sequence, r) &&
        r.code == request_code::bulk)
      requests_.report_stalled(slot, bell.sequence);
  }
}

// Whether the slot's bell tells of a request that nobody has taken (as of `bell.seen`).
bool service::rung(std::uint32_t slot, pending_request& bell) const {
  bell.slot = slot;
  // First what was served: the claim compares with it, so it must not be newer than the bell.
  bell.seen = served_[slot].load(std::memory_order_acquire);
  GPUFS_SCHEDULE_POINT("service.claim");
  // Acquire, system scope: pairs with the client's release of the bell; staging is read after it.
  bell.sequence = channel_.bell(slot).load_acquire();
  return bell.sequence != bell.seen;
}

// Looks at the bells and answers what it can claim. At the worker's own part of the slots, so that
// workers seldom meet; at the others' too when `everywhere` is asked for, because their worker may
// be busy or dead.
service::tally service::scan(service_duty duty, unsigned worker, bool everywhere,
                             file_table::lookups& known) {
  const std::uint64_t count = channel_.layout.slot_count;
  const auto first = static_cast<std::uint32_t>(count * worker / threads_of(duty));
  const auto last = static_cast<std::uint32_t>(count * (worker + 1) / threads_of(duty));
  tally done;
  scan_range(duty, first, last, worker, known, done);
  if (everywhere) {
    scan_range(duty, last, channel_.layout.slot_count, worker, known, done);
    scan_range(duty, 0, first, worker, known, done);
  }
  return done;
}

// In rounds: first a few bells, then their requests one after the other. While a worker is at one,
// the next one's words and bytes are on their way into its caches. It claims a request only when it
// turns to it, so one that hangs or dies holds no more than one.
void service::scan_range(service_duty duty, std::uint32_t first, std::uint32_t last,
                         unsigned worker, file_table::lookups& known, tally& done) {
  bool alone = true;
  std::array<pending_request, 8> bells;
  for (std::uint32_t slot = first; slot < last;) {
    std::size_t count = 0;
    for (; slot < last && count < bells.size(); ++slot) {
      if (!rung(slot, bells[count])) continue;
      __builtin_prefetch(&channel_.request(slot));
      __builtin_prefetch(&channel_.reply(slot), 1);
      ++count;
    }
    request next{};
    bool next_there = count != 0 && look(duty, bells[0], next, known);
    for (std::size_t i = 0; i < count; ++i) {
      const request r = next;
      const bool there = next_there;
      next_there = i + 1 < count && look(duty, bells[i + 1], next, known);
      // Only one worker serves it: `served_` has not moved since before the bell was read, so the
      // request that was copied is still the slot's. Acquire and release: the slot's staging passes
      // from worker to worker.
      std::uint32_t seen = bells[i].seen;
      write_turn turn;
      if (there && r.code == request_code::write && options_.workers > 1 &&
          ((done.passed_over != 0 && r.handle == done.busy) ||
           !take_turn(r, worker, known, turn))) {
        ++done.passed_over;
        done.busy = r.handle;
        continue;
      }
      if (!there || !served_[bells[i].slot].compare_exchange_strong(seen, bells[i].sequence,
                                                                    std::memory_order_acq_rel))
        continue;
      // More than one at a time: a backlog, for which another thread may get up. Before this one is
      // gone into its request.
      if (alone && next_there && sleepers(duty) != 0) {
        alone = false;
        wake_sleepers(duty, 1);
      }
      if (turn.is_behind_another()) requests_.bring_near(r, bells[i].slot);
      answer(duty, bells[i].slot, bells[i].sequence, r, worker, known);
      ++done.answered;
      if (r.code == request_code::write) ++done.written;
    }
  }
}

// The turn to write a file. False when others have it. (Without a file whoever answers the request
// says so.)
bool service::take_turn(const request& write, unsigned worker, const file_table::lookups& known,
                        write_turn& turn) const {
  if (const host_file* file = files_.remembered_writer(write.handle, known))
    return turn.take(file->permits(), worker, options_.workers);
  const std::shared_ptr<host_file> file = files_.find_writer(write.handle);
  return file == nullptr || turn.take(file->permits(), worker, options_.workers);
}

// Whether the request behind a bell is there, whole, and for this kind of thread. If it is a read,
// its bytes are expected.
bool service::look(service_duty duty, const pending_request& bell, request& r,
                   file_table::lookups& known) {
  // Copied once: a kernel that goes on writing cannot change what is checked.
  if (!channel_.request(bell.slot).load(bell.sequence, r)) return false;
  if (const service_duty other = duty_for(r.code); other != duty) {
    call(other);
    return false;
  }
  if (r.code == request_code::read) file_table::expect(r.handle, known, r.length, r.offset);
  return true;
}

// Wakes one thread of another kind if all of them sleep. Their sentinel might look only in some
// milliseconds, and who saw the request is awake now.
void service::call(service_duty duty) {
  thread_pool& others = pool_of(duty);
  if (sleepers(duty) < others.alive.load(std::memory_order_relaxed)) return;
  call_anyone(duty);
}
// The same also if one of them is awake, which may be busy.
void service::call_anyone(service_duty duty) {
  // Relaxed: only saves calls of the kernel. Whoever gets up, for whatever reason, takes the mark
  // away.
  if (sleepers(duty) != 0 && !pool_of(duty).called.exchange(true, std::memory_order_relaxed))
    wake_sleepers(duty, 1);
}

void service::answer(service_duty duty, std::uint32_t slot, std::uint32_t sequence,
                     const request& r, unsigned worker, file_table::lookups& known) {
  std::optional<timeline_event> event;
  if (timeline_.on()) {
    try {
      event = describe(duty, r, slot, worker);
    } catch (const std::bad_alloc&) {
      // Then the timeline lacks it.
    }
  }
  request_server::opened_file opened;
  const auto reply = [&](std::int32_t result) {
    // Before the kernel hears of it, so that whoever asks then finds it.
    if (result < 0 && result != run_stager::device_answers) requests_.keep_error(r, result);
    if (event) {
      event->end_ns = platform::now_ns();  // of a copy that the device makes: when it was begun
      event->result = result == run_stager::device_answers ? static_cast<std::int32_t>(r.length)
                      : result > 0                         ? result & bulk_bytes_mask
                                                           : result;
      timeline_.add(std::move(*event));
    }
    if (result == run_stager::device_answers) {
      ++count_of(duty, worker).by_device;
      return;
    }
    // Release, system scope: pairs with the client's acquire; staging and reply fields come before.
    // Of an open also before the look of close_withdrawn().
    channel_word<std::uint64_t>& word = channel_.reply(slot).word;
    if (opened.handle != 0) word.store_before_load(make_reply_word(sequence, result));
    else word.store_release(make_reply_word(sequence, result));
  };
  try {
    if (r.code == request_code::send) {
      if (const int refused = hand_to_sink(slot, sequence, r, event); refused < 0) reply(refused);
    } else {
      reply(begin(slot, sequence, r) ? serve(duty, slot, sequence, r, worker, known, opened)
                                     : -ECANCELED);
    }
  } catch (const worker_death&) {
    reply(-EIO);
    throw;
  } catch (const std::bad_alloc&) {
    reply(-ENOMEM);
  } catch (...) {
    reply(-EIO);
  }
  if (opened.handle != 0) close_withdrawn(slot, sequence, opened.handle);
  // Its only writer: no exchange, which would wait until the reply has left for the bus.
  std::atomic<std::uint64_t>& served = count_of(duty, worker).served;
  served.store(served.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// What answers a request that is not for a sink. An open that joins those who write the file may
// have come after a close of the last of them that nobody has taken yet. Then that is made first,
// and the file opened again.
std::int32_t service::serve(service_duty duty, std::uint32_t slot, std::uint32_t sequence,
                            const request& r, unsigned worker, file_table::lookups& known,
                            request_server::opened_file& opened) {
  for (unsigned attempt = 0; attempt < opens_max; ++attempt) {
    const std::int32_t result = requests_.serve(r, slot, sequence, worker, known, opened);
    if (opened.handle == 0 || !opened.joined || !make_closes(duty, opened.node, worker, known))
      return result;
    (void)files_.close(opened.handle);  // just opened
    opened = {};
  }
  return -EIO;
}

// Answers the requests to close files of a node that no thread has taken. Whether there were any.
bool service::make_closes(service_duty duty, std::uint32_t node, unsigned worker,
                          file_table::lookups& known) {
  bool any = false;
  pending_request bell{};
  request r{};
  for (std::uint32_t slot = 0; slot < channel_.layout.slot_count; ++slot) {
    if (!rung(slot, bell) || !channel_.request(slot).load(bell.sequence, r) ||
        r.code != request_code::close_written)
      continue;
    const std::shared_ptr<host_file> file = files_.find(r.handle);
    if (file == nullptr || file->node() != node) continue;
    // As in scan_range().
    if (!served_[slot].compare_exchange_strong(bell.seen, bell.sequence, std::memory_order_acq_rel))
      continue;
    answer(duty, slot, bell.sequence, r, worker, known);
    any = true;
  }
  return any;
}

// Closes what an open has opened for a caller that has given up.
void service::close_withdrawn(std::uint32_t slot, std::uint32_t sequence, std::uint64_t handle) {
  GPUFS_SCHEDULE_POINT("service.opened");
  // Pairs with channel_client::withdraw(). The caller may close it as well.
  if (channel_.withdrawn(slot).load_after_store() == sequence) (void)files_.close(handle);
}

// Whether a request is to be served: not if it changes files and its caller has withdrawn it.
bool service::begin(std::uint32_t slot, std::uint32_t sequence, const request& r) const {
  if (!r.changes_files()) return true;
  GPUFS_SCHEDULE_POINT("service.begin");
  // Pairs with channel_client::withdraw().
  channel_.reply(slot).claimed.store_before_load(sequence);
  return channel_.withdrawn(slot).load_after_store() != sequence;
}

// 0: the sink's thread will answer. Or -errno. The bytes stay in the slot's staging memory until
// the answer.
int service::hand_to_sink(std::uint32_t slot, std::uint32_t sequence, const request& r,
                          const std::optional<timeline_event>& event) {
  if (r.length > channel_.layout.staging_bytes) return -EINVAL;
  // Nothing of this object: it may be gone when a sink answers.
  const auto answer = [channel = channel_, &record = timeline_, slot, sequence, sink = r.handle,
                       event](std::int32_t result, std::uint64_t begin_ns) {
    if (event) {
      try {
        timeline_event e = *event;
        e.thread = timeline::first_sink + static_cast<std::uint32_t>(sink % limits::sinks_max);
        e.begin_ns = begin_ns;
        e.end_ns = platform::now_ns();
        e.result = result;
        record.add(std::move(e));
      } catch (const std::bad_alloc&) {
        // Then the timeline lacks it.
      }
    }
    // Release, system scope: pairs with the client's acquire.
    channel.reply(slot).word.store_release(make_reply_word(sequence, result));
  };
  return sinks_.send(r.handle, channel_.staging(slot), r.length, answer);
}

// Before it is served: the path of an open lies where the file's first bytes will be.
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

// ---- sleeping and waking

void service::wake_sleepers(service_duty duty, int count) {
  channel_header::cpu_bed& bed = this->bed(duty);
  __atomic_fetch_add(&bed.wake, 1u, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &bed.wake, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

std::uint32_t service::sleepers(service_duty duty) const {
  return __atomic_load_n(&bed(duty).sleepers, __ATOMIC_SEQ_CST);
}

std::uint64_t service::served_count() const {
  std::uint64_t n = 0;
  for (const worker_count& count : counts_) n += count.served.load(std::memory_order_relaxed);
  return n;
}

// One of each kind: a backlog wakes others. Not if one is about to look anyway: kernels may be
// launched every few microseconds. Nor a copier, whom the woken worker calls when there is a bulk
// request.
void service::wake() {
  for (const service_duty duty : {service_duty::work, service_duty::open}) {
    if (!pool_of(duty).looks_soon.load(std::memory_order_relaxed)) call_anyone(duty);
  }
}
void service::wake_all() {
  for (const service_duty duty : all_duties) wake_sleepers(duty, static_cast<int>(most_threads()));
}

service::idle_end service::idle(service_duty duty, std::uint64_t idle_ns) {
  channel_header::cpu_bed& bed = this->bed(duty);
  thread_pool& own = pool_of(duty);
  // Only the sentinel looks at the bells by itself; the others sleep until someone has work for
  // them.
  const bool sentinel = !own.sentinel.exchange(true);
  // After a while one is enough for all kinds.
  const bool long_idle = idle_ns >= 100'000'000;
  const bool only_sentinel = sentinel && long_idle && !long_idle_sentinel_.exchange(true);
  // All get up now and then, for descriptors that others left them to close.
  std::uint64_t sleep_ns = idle_ns < 1'000'000'000 ? 100'000'000 : 1'000'000'000;
  if (sentinel && !long_idle) sleep_ns = idle_ns < 1'000'000 ? nap_ns : 100'000;
  if (only_sentinel) sleep_ns = idle_ns < 1'000'000'000 ? 1'000'000 : 10'000'000;

  if (sentinel) own.looks_soon.store(sleep_ns == nap_ns, std::memory_order_relaxed);
  own.called.store(false,
                   std::memory_order_relaxed);  // of a call that came when nobody slept any more
  const std::uint32_t before = __atomic_load_n(&bed.wake, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&bed.sleepers, 1u, __ATOMIC_SEQ_CST);
  // Once more, after saying that I sleep: pairs with channel_client::wake_service.
  unsigned count = pending()[place_of(duty)];
  if (!stopping_ && count == 0) {
    const timespec t{static_cast<time_t>(sleep_ns / 1'000'000'000),
                     static_cast<long>(sleep_ns % 1'000'000'000)};
    syscall(SYS_futex, &bed.wake, FUTEX_WAIT_PRIVATE, before, &t, nullptr, 0);
  }
  __atomic_fetch_sub(&bed.sleepers, 1u, __ATOMIC_SEQ_CST);
  const bool woken = __atomic_load_n(&bed.wake, __ATOMIC_RELAXED) != before;
  own.called.store(false, std::memory_order_relaxed);
  if (only_sentinel) long_idle_sentinel_ = false;
  if (sentinel) {
    own.looks_soon.store(false, std::memory_order_relaxed);
    own.sentinel = false;
    const pending_requests now = pending();
    for (const service_duty other : all_duties) {
      if (other != duty && now[place_of(other)] != 0) call_anyone(other);
    }
    count = now[place_of(duty)];
    // Work for more than one: whoever wakes finds it, or goes back to sleep. Of those that have
    // been idle for long one gets up in any case, and looks instead of me.
    const unsigned others = count == 0 ? 0 : std::max(count - 1, only_sentinel ? 1u : 0u);
    if (others != 0 && sleepers(duty) != 0)
      wake_sleepers(duty, static_cast<int>(std::min(others, most_threads())));
  }
  return {count != 0, woken};
}

}  // namespace gpufs
