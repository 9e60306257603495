#include "service/service.hpp"

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace gpufs {

namespace {

constexpr service_duty all_duties[] = {service_duty::work, service_duty::open, service_duty::copy};
constexpr std::uint64_t nap_ns = 20'000;
constexpr std::uint64_t passed_over_nap_ns = 200'000;
constexpr std::uint64_t expecting_ns = 5'000'000;
// After this time of slow answers a thread scans all slots, because another thread may hang.
constexpr std::uint64_t everywhere_after_ns = 20'000'000;

}  // namespace

service::service(device& d, const channel_view& channel, const channel_view& device_view,
                 const bulk_frames& frames, file_table& files, extent_registrar& extents,
                 sink_table& sinks, timeline& events, const service_options& options)
    : channel_(channel), files_(files), sinks_(sinks), timeline_(events), options_(options),
      served_(channel.layout.slot_count), counts_(std::size_t{service_duties} * most_threads()),
      requests_(d, channel, device_view, frames, files, extents, std::max(options.copiers, 1u),
                stopping_),
      pools_{thread_pool(threads_of(service_duty::work)),
             thread_pool(threads_of(service_duty::open)),
             thread_pool(threads_of(service_duty::copy))} {
  for (const service_duty duty : all_duties)
    channel_.header().sleep[place_of(duty)].answered_by = answered_by(duty);
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
    // No request exists yet, so no thread can hang.
    (void)threads_.wait_until(deadline::after(deadline::never));
    throw;
  }
}

// Waits until every opener has taken its descriptor table. Taking a table closes copies of some
// descriptors of the program, which may consume write errors (descriptor_table::move_from_copied).
// That must be over before a program that has created its mount writes files.
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
  files_.end_rounds();
  supervisor_wake_.notify_all();
  wake_all();
}

bool service::stop(const deadline& end) {
  is_stopped_ = true;
  ask_to_end();
  // Threads answer the requests that they have claimed. A group that waits for a hanging thread
  // gets an error after `answer_time_ns`. Its slot is then abandoned, so a late answer does no
  // harm.
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
    // A pool's sentinel may be busy with a long request while the other threads of its pool sleep.
    const pending_requests waiting = pending();
    for (const service_duty duty : all_duties) {
      if (waiting[place_of(duty)] != 0 && sleepers(duty) != 0) wake_sleepers(duty, 1);
    }
    supervisor_wake_.wait_for(lock, std::chrono::milliseconds(50));
  }
}

void service::work(service_duty duty, unsigned worker) {
  const auto now = [] { return platform::now_ns(); };
  // Timed sleeps of this thread end on time, instead of up to 50 us late (Linux's default).
  (void)prctl(PR_SET_TIMERSLACK, 1000ul);
  try {
    // Declared first, destroyed last: `known` may close files until then.
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
    known.asks = stay == nullptr;
    std::uint64_t last = now();
    unsigned empty_rounds = 0;
    std::uint64_t everywhere_ns = last;
    std::uint64_t woken = last;
    bool seen_somewhere = false;
    bool by_device = false;  // the device answers the requests of the last scan
    for (unsigned round = 0; !stopping_; ++round) {
      // A full scan only now and then: bells that many threads poll become visible late. It is
      // needed so that no slot depends on a single thread.
      const bool everywhere = seen_somewhere || round % 256 == 0 || empty_rounds % 16 == 15 ||
                              last - everywhere_ns > everywhere_after_ns;
      seen_somewhere = false;
      if (everywhere) everywhere_ns = last;
      const std::uint64_t before = count_of(duty, worker).by_device;
      const tally done = scan(duty, worker, everywhere, known);
      files_.close_handed();
      if (duty == service_duty::work) files_.ask_closed();
      else if (files_.awaits_asking()) call_anyone(service_duty::work);
      empty_rounds = done.answered != 0 ? 0 : empty_rounds + 1;
      if (done.answered != 0) {
        last = now();
        by_device = count_of(duty, worker).by_device - before == done.answered;
        // A thread that writes a file takes most of the file's writes: other threads skip them.
        seen_somewhere = done.written != 0;
        continue;
      }
      if (done.passed_over != 0) {
        last = now();
        // First scan all slots: another request may be there.
        if (!everywhere) {
          seen_somewhere = true;
          continue;
        }
        std::this_thread::sleep_for(std::chrono::nanoseconds(passed_over_nap_ns));
        continue;
      }
      const std::uint64_t quiet = now() - last;
      if (quiet < options_.spin_ns) {
        // While the copy engine works, the next request takes a while to come. The groups that will
        // post it wait for other copies.
        if (by_device) std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
        else platform::pause(0);
        continue;
      }
      known.clear();  // a sleeping thread keeps no descriptor open
      // After a wake-up, as by a kernel launch, requests are likely. For `expecting_ns` the idle
      // time counts from the wake-up.
      const std::uint64_t since_woken = now() - woken;
      const idle_end end =
          idle(duty, since_woken < expecting_ns ? std::min(quiet, since_woken) : quiet);
      seen_somewhere = end.pending;
      if (end.woken) woken = now();
    }
  } catch (...) {
    // A worker_death, or an exception of a backend between requests. answer() has already answered
    // the claimed request with -EIO. The last thread of any pool ends the service.
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

// All copiers may be in the driver, where no thread claims these requests. Their callers then go on
// without an answer.
void service::report_waiting_for_copiers() {
  pending_request bell{};
  request r{};
  for (std::uint32_t slot = 0; slot < channel_.layout.slot_count; ++slot) {
    if (rung(slot, bell) && channel_.request(slot).load(bell.sequence, r) &&
        r.code == request_code::bulk)
      requests_.report_stalled(slot, bell.sequence);
  }
}

// Whether the slot has an unclaimed request. Fills `bell` for the claim.
bool service::rung(std::uint32_t slot, pending_request& bell) const {
  bell.slot = slot;
  // Acquire: pairs with the claim. Loaded before the bell, because the claim compares with this
  // value: with a later one, two threads could answer the same request.
  bell.seen = served_[slot].load(std::memory_order_acquire);
  GPUFS_SCHEDULE_POINT("service.claim");
  // Acquire, system scope: pairs with the client's release of the bell. Without it the request and
  // its staging memory could be read too early.
  bell.sequence = channel_.bell(slot).load_acquire();
  return bell.sequence != bell.seen;
}

// Scans the bells and answers the requests that it can claim. Each thread scans its own part of the
// slots, so threads seldom contend. With `everywhere` it then scans the other slots, because their
// thread may be busy or dead.
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

// Works in batches: first it collects up to eight bells, then it answers their requests one after
// another. While it answers a request, the words and bytes of the next are prefetched. It claims a
// request only just before it answers, so a thread that hangs or dies blocks a single request.
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
      // A thread that hung while the service ended must not serve beside the unmount's flush.
      if (stopping_) return;
      const request r = next;
      const bool there = next_there;
      next_there = i + 1 < count && look(duty, bells[i + 1], next, known);
      // Exactly one thread claims the request. `served_` still has the value that was loaded before
      // the bell, so the copied request is still the slot's current one. Acquire and release: each
      // pairs with the claim of another thread, because the slot's staging memory passes between
      // threads.
      std::uint32_t seen = bells[i].seen;
      write_permit permit;
      if (there && r.code == request_code::write && options_.workers > 1 &&
          ((done.passed_over != 0 && r.handle == done.busy) ||
           !take_permit(r, worker, known, permit))) {
        ++done.passed_over;
        done.busy = r.handle;
        continue;
      }
      std::shared_ptr<void> place;
      if (there && r.code == request_code::sync && options_.workers > 1) {
        place = take_sync_place();
        if (place == nullptr) {
          ++done.passed_over;
          continue;
        }
      }
      if (!there || !served_[bells[i].slot].compare_exchange_strong(seen, bells[i].sequence,
                                                                    std::memory_order_acq_rel))
        continue;
      // There is a backlog: wake one more thread, before this one starts its request.
      if (alone && next_there && sleepers(duty) != 0) {
        alone = false;
        wake_sleepers(duty, 1);
      }
      if (permit.is_behind_another()) requests_.prefetch(r, bells[i].slot);
      answer(duty, bells[i].slot, bells[i].sequence, r, worker, known, std::move(place));
      ++done.answered;
      if (r.code == request_code::write) ++done.written;
    }
  }
}

// A place among the threads that sync, until the result is destroyed. Null: there is none, or no
// memory. One thread is left for other requests, because a sync may take as long as its disk takes.
// Only the thread that makes a file's rounds needs one, however many requests wait for them.
// Relaxed: the count orders no other memory.
std::shared_ptr<void> service::take_sync_place() {
  if (syncing_.fetch_add(1, std::memory_order_relaxed) < options_.workers - 1) {
    try {
      return {this, [this](void*) { syncing_.fetch_sub(1, std::memory_order_relaxed); }};
    } catch (const std::bad_alloc&) {
      return nullptr;  // the deleter was called
    }
  }
  syncing_.fetch_sub(1, std::memory_order_relaxed);
  return nullptr;
}

// Takes a permit to write the request's file. False when other threads hold all permits. When no
// file is found, returns true: the caller then answers the request with the error.
bool service::take_permit(const request& write, unsigned worker, const file_table::lookups& known,
                          write_permit& permit) const {
  if (const host_file* file = files_.remembered_writer(write.handle, known))
    return permit.take(file->permits(), worker, options_.workers);
  const std::shared_ptr<host_file> file = files_.find_writer(write.handle);
  return file == nullptr || permit.take(file->permits(), worker, options_.workers);
}

// Whether the bell's request is complete and belongs to this pool. Prefetches the bytes of a read.
// Wakes another pool if the request belongs there.
bool service::look(service_duty duty, const pending_request& bell, request& r,
                   file_table::lookups& known) {
  // Copied once, so that a kernel that keeps writing cannot change what was checked.
  if (!channel_.request(bell.slot).load(bell.sequence, r)) return false;
  if (const service_duty other = duty_for(r.code); other != duty) {
    call(other);
    return false;
  }
  if (r.code == request_code::read) file_table::expect(r.handle, known, r.length, r.offset);
  return true;
}

// Wakes one thread of another pool if all its threads sleep. Their sentinel might poll only in some
// milliseconds.
void service::call(service_duty duty) {
  thread_pool& others = pool_of(duty);
  if (sleepers(duty) < others.alive.load(std::memory_order_relaxed)) return;
  call_anyone(duty);
}
// Wakes one thread of a pool, also if others of its threads are awake: they may be busy.
void service::call_anyone(service_duty duty) {
  // Relaxed: the flag only saves system calls. Each thread that wakes clears it.
  if (sleepers(duty) != 0 && !pool_of(duty).called.exchange(true, std::memory_order_relaxed))
    wake_sleepers(duty, 1);
}

// ---- Sleep and wake-up

void service::wake_sleepers(service_duty duty, int count) {
  channel_header::sleep_words& words = sleep_of(duty);
  __atomic_fetch_add(&words.wake, 1u, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &words.wake, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

std::uint32_t service::sleepers(service_duty duty) const {
  return __atomic_load_n(&sleep_of(duty).sleepers, __ATOMIC_SEQ_CST);
}

std::uint64_t service::served_count() const {
  std::uint64_t n = 0;
  for (const worker_count& count : counts_) n += count.served.load(std::memory_order_relaxed);
  return n;
}

// Wakes one worker and one opener; a backlog wakes more. Skips a pool whose sentinel polls again
// within nap_ns, because kernels may be launched every few microseconds. Skips the copiers: the
// worker that was woken wakes one when there is a bulk request.
void service::wake() {
  for (const service_duty duty : {service_duty::work, service_duty::open}) {
    if (!pool_of(duty).looks_soon.load(std::memory_order_relaxed)) call_anyone(duty);
  }
}
void service::wake_all() {
  for (const service_duty duty : all_duties) wake_sleepers(duty, static_cast<int>(most_threads()));
}

service::idle_end service::idle(service_duty duty, std::uint64_t idle_ns) {
  channel_header::sleep_words& words = sleep_of(duty);
  thread_pool& own = pool_of(duty);
  // Only the sentinel polls the bells. The other threads of the pool sleep until they are woken.
  const bool sentinel = !own.sentinel.exchange(true);
  // After a long idle time one sentinel polls for all pools.
  const bool long_idle = idle_ns >= 100'000'000;
  const bool only_sentinel = sentinel && long_idle && !long_idle_sentinel_.exchange(true);
  // Every thread wakes now and then, to close descriptors that other threads left for it.
  std::uint64_t sleep_ns = idle_ns < 1'000'000'000 ? 100'000'000 : 1'000'000'000;
  if (sentinel && !long_idle) sleep_ns = idle_ns < 1'000'000 ? nap_ns : 100'000;
  if (only_sentinel) sleep_ns = idle_ns < 1'000'000'000 ? 1'000'000 : 10'000'000;

  if (sentinel) own.looks_soon.store(sleep_ns == nap_ns, std::memory_order_relaxed);
  // Clears a call that came when no thread slept any more.
  own.called.store(false, std::memory_order_relaxed);
  const std::uint32_t before = __atomic_load_n(&words.wake, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&words.sleepers, 1u, __ATOMIC_SEQ_CST);
  // Polls once more after raising `sleepers`. Sequentially consistent: pairs with
  // channel_client::wake_service. Either this thread sees the bell, or the client sees a sleeper.
  unsigned count = pending()[place_of(duty)];
  if (!stopping_ && count == 0) {
    const timespec t{static_cast<time_t>(sleep_ns / 1'000'000'000),
                     static_cast<long>(sleep_ns % 1'000'000'000)};
    syscall(SYS_futex, &words.wake, FUTEX_WAIT_PRIVATE, before, &t, nullptr, 0);
  }
  __atomic_fetch_sub(&words.sleepers, 1u, __ATOMIC_SEQ_CST);
  const bool woken = __atomic_load_n(&words.wake, __ATOMIC_RELAXED) != before;
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
    // Wake more threads if there are more requests. A thread that finds none sleeps again. After a
    // long idle time one thread is woken in any case: it becomes the sentinel while this thread
    // works.
    const unsigned others = count == 0 ? 0 : std::max(count - 1, only_sentinel ? 1u : 0u);
    if (others != 0 && sleepers(duty) != 0)
      wake_sleepers(duty, static_cast<int>(std::min(others, most_threads())));
  }
  return {count != 0, woken};
}

}  // namespace gpufs
