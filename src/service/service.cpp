#include "service/service.hpp"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>

#include "gpufs/error.hpp"

namespace gpufs {

namespace {

constexpr service_duty all_duties[] = {service_duty::work, service_duty::open};
constexpr std::uint64_t nap_ns = 20'000;
constexpr std::uint64_t passed_over_nap_ns = 200'000;
constexpr std::uint64_t expecting_ns = 5'000'000;
constexpr std::uint64_t answer_time_ns = 1'000'000'000;
constexpr unsigned stage_first_workers = 6;                // together they read faster than the registrar registers
constexpr std::uint64_t everywhere_after_ns = 20'000'000;  // of slow answers: another worker may hang
// No result, but for serve(): the device itself will answer.
constexpr std::int32_t device_answers = -0x7fffffff;

// What a call of the backend gives when it is not cut short.
template <class Call>
int uninterrupted(const Call& call) {
  int status = 0;
  do {
    status = call();
  } while (status == -EINTR);
  return status;
}

// All but those that a thread brings upon itself.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  for (const int own : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&all, own);
  (void)pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

service::service(device& d, const channel_view& channel, const channel_view& seen, const bulk_frames& frames,
                 file_table& files, extent_registrar& extents, sink_table& sinks, timeline& record,
                 const service_options& options)
    : device_(d), channel_(channel), seen_(seen), frames_(frames), files_(files), extents_(extents), sinks_(sinks),
      timeline_(record), options_(options), served_(channel.layout.slot_count),
      counts_(std::size_t{service_duties} * options.workers), bounces_(options.workers),
      crews_{crew(options.workers), crew(options.openers ? options.workers : 0)} {
  channel_.header().beds[0].is_for_all = options_.openers ? 0 : 1;
  channel_.announce(service_phase::running);
  const auto start = [this](auto&& body) {
    running_.fetch_add(1, std::memory_order_relaxed);
    threads_.emplace_back([this, body] {
      body();
      // Release: pairs with stop(), after which what the thread used may go.
      running_.fetch_sub(1, std::memory_order_release);
    });
  };
  start([this] { supervise(); });
  for (const service_duty duty : all_duties) {
    if (duty == service_duty::open && !options_.openers) continue;
    for (unsigned w = 0; w < options_.workers; ++w) start([this, duty, w] { work(duty, w); });
  }
}

service::~service() {
  if (!threads_.empty()) (void)stop(~std::uint64_t{0});
  for (const bounce_buffers& b : bounces_) {
    if (b.memory.host != nullptr) device_.free_buffers(b.memory, bounce_bytes);
  }
}

bool service::stop(std::uint64_t timeout_ns) {
  {
    const std::lock_guard lock(supervisor_mutex_);
    stopping_ = true;
  }
  supervisor_wake_.notify_all();
  wake();
  const std::uint64_t start = platform::now_ns();
  const auto ended_within = [&](std::uint64_t ns) {
    while (running_.load(std::memory_order_acquire) != 0 && platform::now_ns() - start < ns) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return running_.load(std::memory_order_acquire) == 0;
  };
  // Requests under way are answered; but who waits for a worker that hangs is told after a moment. Its slot is then
  // abandoned, so that a late answer hurts nobody.
  (void)ended_within(std::min(timeout_ns, answer_time_ns));
  channel_.announce(service_phase::dead);
  const bool ended = ended_within(timeout_ns);
  for (std::thread& t : threads_) {
    if (ended) t.join();
    else t.detach();
  }
  threads_.clear();
  if (ended) files_.close_handed();  // what the last threads left to each other
  return ended;
}

void service::supervise() {
  std::unique_lock lock(supervisor_mutex_);
  for (std::uint32_t beat = 1; !stopping_; ++beat) {
    channel_.beat(beat);
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
  // Naps and the sentinel's sleeps are to end when they should, not 50 us later. Of this thread only.
  (void)prctl(PR_SET_TIMERSLACK, 1000ul);
  try {
    // A file that may not grow any more (RLIMIT_FSIZE) is an error of the call, and not the program's end.
    sigset_t growth;
    sigemptyset(&growth);
    sigaddset(&growth, SIGXFSZ);
    (void)pthread_sigmask(SIG_BLOCK, &growth, nullptr);
    // A handler of the program's must not run where its descriptors are not.
    if (duty == service_duty::open) block_signals();
    // First made, last gone: no file may be let go of behind it.
    const std::unique_ptr<opener_stay> stay = duty == service_duty::open ? files_.enter_opener() : nullptr;
    file_table::lookups known;
    std::uint64_t last = now();
    unsigned empty_rounds = 0;
    std::uint64_t everywhere_ns = last;
    std::uint64_t woken = last;
    bool seen_somewhere = false;
    bool by_device = false;  // how the last ones were answered
    for (unsigned round = 0; !stopping_; ++round) {
      // Everywhere only from time to time, so that no slot depends on one worker: bells that many look at ring slowly.
      const bool everywhere =
          seen_somewhere || round % 256 == 0 || empty_rounds % 16 == 15 || last - everywhere_ns > everywhere_after_ns;
      seen_somewhere = false;
      if (everywhere) everywhere_ns = last;
      const std::uint64_t before = count_of(duty, worker).by_device;
      const tally done = scan(duty, worker, everywhere, known);
      files_.close_handed();
      empty_rounds = done.answered != 0 ? 0 : empty_rounds + 1;
      if (done.answered != 0) {
        last = now();
        by_device = count_of(duty, worker).by_device - before == done.answered;
        // Who writes a file does so for all: others pass its writes over.
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
        // While the copy engine is at it the next request is a while away, and those who wait for it have others under way.
        if (by_device) std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
        else platform::pause(0);
        continue;
      }
      known.clear();  // no descriptor stays open because a sleeping worker remembers it
      // Who was woken, as by a launch, is to expect work: for a while as if it had been idle only since then.
      const std::uint64_t since_woken = now() - woken;
      const idle_end end = idle(duty, since_woken < expecting_ns ? std::min(quiet, since_woken) : quiet);
      seen_somewhere = end.pending;
      if (end.woken) woken = now();
    }
  } catch (const worker_death&) {
    // answer() has given the request that it held its -EIO. The last thread of a kind takes the service with it.
    if (crew_of(duty).alive.fetch_sub(1) == 1) channel_.announce(service_phase::dead);
  }
}

service::pending_requests service::pending() const {
  sighting bell{};
  request r{};
  pending_requests count{};
  for (std::uint32_t slot = 0; slot < channel_.layout.slot_count; ++slot) {
    if (rung(slot, bell) && channel_.request(slot).load(bell.sequence, r)) ++count[place_of(duty_for(r.code))];
  }
  return count;
}

// Whether the slot's bell tells of a request that nobody has taken (as of `bell.seen`).
bool service::rung(std::uint32_t slot, sighting& bell) const {
  bell.slot = slot;
  // First what was served: the claim compares with it, so it must not be newer than the bell.
  bell.seen = served_[slot].load(std::memory_order_acquire);
  GPUFS_SCHEDULE_POINT("service.claim");
  // Acquire, system scope: pairs with the client's release of the bell; staging is read after it.
  bell.sequence = channel_.bell(slot).load_acquire();
  return bell.sequence != bell.seen;
}

// Looks at the bells and answers what it can claim. At the worker's own part of the slots, so that workers seldom meet; at the
// others' too when `everywhere` is asked for, because their worker may be busy or dead.
service::tally service::scan(service_duty duty, unsigned worker, bool everywhere, file_table::lookups& known) {
  const std::uint64_t count = channel_.layout.slot_count;
  const auto first = static_cast<std::uint32_t>(count * worker / options_.workers);
  const auto last = static_cast<std::uint32_t>(count * (worker + 1) / options_.workers);
  tally done;
  scan_range(duty, first, last, worker, known, done);
  if (everywhere) {
    scan_range(duty, last, channel_.layout.slot_count, worker, known, done);
    scan_range(duty, 0, first, worker, known, done);
  }
  return done;
}

// In rounds: first a few bells, then their requests one after the other. While a worker is at one, the next one's words
// and bytes are on their way into its caches. It claims a request only when it turns to it, so one that hangs or dies
// holds no more than one.
void service::scan_range(service_duty duty, std::uint32_t first, std::uint32_t last, unsigned worker,
                         file_table::lookups& known, tally& done) {
  bool alone = true;
  std::array<sighting, 8> bells;
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
      // Only one worker serves it: `served_` has not moved since before the bell was read, so the request that was copied
      // is still the slot's. Acquire and release: the slot's staging passes from worker to worker.
      std::uint32_t seen = bells[i].seen;
      write_turn turn;
      if (there && r.code == request_code::write && options_.workers > 1 &&
          ((done.passed_over != 0 && r.handle == done.busy) || !take_turn(r, worker, known, turn))) {
        ++done.passed_over;
        done.busy = r.handle;
        continue;
      }
      if (!there || !served_[bells[i].slot].compare_exchange_strong(seen, bells[i].sequence, std::memory_order_acq_rel))
        continue;
      // More than one at a time: a backlog, for which another thread may get up. Before this one is gone into its request.
      if (alone && next_there && sleepers(duty) != 0) {
        alone = false;
        wake_sleepers(duty, 1);
      }
      answer(bells[i].slot, bells[i].sequence, r, worker, known);
      ++done.answered;
      if (r.code == request_code::write) ++done.written;
    }
  }
}

// The turn to write a file. False when another thread has it. (Without a file whoever answers the request says so.)
bool service::take_turn(const request& write, unsigned worker, const file_table::lookups& known,
                        write_turn& turn) const {
  if (const host_file* file = files_.remembered(file_table::of_node(write.handle), known))
    return turn.take(file->shared_version(), worker);
  const std::shared_ptr<host_file> file = files_.find_writer(write.handle);
  return file == nullptr || turn.take(file->shared_version(), worker);
}

// Whether the request behind a bell is there, whole, and for this kind of thread. If it is a read, its bytes are expected.
bool service::look(service_duty duty, const sighting& bell, request& r, file_table::lookups& known) {
  // Copied once: a kernel that goes on writing cannot change what is checked.
  if (!channel_.request(bell.slot).load(bell.sequence, r)) return false;
  if (const service_duty other = duty_for(r.code); other != duty) {
    call(other);
    return false;
  }
  if (r.code == request_code::read) file_table::expect(r.handle, known, r.length, r.offset);
  return true;
}

// Somebody of the other kind is to get up if all of them sleep. Their sentinel might look only in some milliseconds, and
// who saw the request is awake now.
void service::call(service_duty duty) {
  crew& others = crew_of(duty);
  if (sleepers(duty) < others.alive.load(std::memory_order_relaxed)) return;
  call_anyone(duty);
}
// The same also if one of them is awake, which may be busy.
void service::call_anyone(service_duty duty) {
  // Relaxed: only saves calls of the kernel. Whoever gets up, for whatever reason, takes the mark away.
  if (sleepers(duty) != 0 && !crew_of(duty).called.exchange(true, std::memory_order_relaxed)) wake_sleepers(duty, 1);
}

void service::answer(std::uint32_t slot, std::uint32_t sequence, const request& r, unsigned worker,
                     file_table::lookups& known) {
  std::optional<timeline_event> event;
  if (timeline_.on()) {
    try {
      event = describe(r, slot, worker);
    } catch (const std::bad_alloc&) {
      // Then the timeline lacks it.
    }
  }
  const auto reply = [&](std::int32_t result) {
    if (event) {
      event->end_ns = platform::now_ns();  // of a copy that the device makes: when it was begun
      event->result = result == device_answers ? static_cast<std::int32_t>(r.length)
                      : result > 0             ? result & bulk_bytes_mask
                                               : result;
      timeline_.add(std::move(*event));
    }
    if (result == device_answers) {
      ++count_of(duty_for(r.code), worker).by_device;
      return;
    }
    // Release, system scope: pairs with the client's acquire; staging and reply fields come before.
    channel_.reply(slot).word.store_release(make_reply_word(sequence, result));
  };
  try {
    reply(serve(r, slot, sequence, worker, known));
  } catch (const worker_death&) {
    reply(-EIO);
    throw;
  } catch (const std::bad_alloc&) {
    reply(-ENOMEM);
  } catch (const std::exception&) {
    reply(-EIO);
  }
  // Its only writer: no exchange, which would wait until the reply has left for the bus.
  std::atomic<std::uint64_t>& served = count_of(duty_for(r.code), worker).served;
  served.store(served.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// Before it is served: the path of an open lies where the file's first bytes will be.
timeline_event service::describe(const request& r, std::uint32_t slot, unsigned worker) const {
  const std::uint32_t first = duty_for(r.code) == service_duty::open ? timeline::first_opener : timeline::first_worker;
  timeline_event e{"unknown", first + worker, platform::now_ns(), 0, 0, r.length, 0, {}};
  switch (r.code) {
    case request_code::open:
    case request_code::open_write:
      e.name = r.code == request_code::open ? "open" : "open to write";
      e.bytes = 0;
      e.path.assign(channel_.staging(slot), std::min<std::size_t>(r.length, limits::path_bytes_max));
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
    case request_code::close: e.name = "close"; break;
    case request_code::write:
      e.name = "write";
      e.bytes = r.length & ~masked_flag;
      e.offset = r.offset;
      break;
    case request_code::truncate:
      e.name = "truncate";
      e.offset = r.offset;
      break;
    case request_code::sync: e.name = "sync"; break;
    case request_code::unlink:
    case request_code::rename:
      e.name = r.code == request_code::unlink ? "unlink" : "rename";
      e.bytes = 0;
      e.path.assign(channel_.staging(slot), std::min<std::size_t>(r.length, limits::path_bytes_max));
      e.path.resize(std::min(e.path.size(), e.path.find('\0')));
      return e;
  }
  const bool names_node = r.code == request_code::write;
  if (const auto file = names_node ? files_.find_writer(r.handle) : files_.find(r.handle)) e.path = file->path();
  return e;
}

std::int32_t service::serve(const request& r, std::uint32_t slot, std::uint32_t sequence, unsigned worker,
                            file_table::lookups& known) {
  switch (r.code) {
    case request_code::open:
    case request_code::open_write: return serve_open(r, slot, worker);
    case request_code::read: return serve_read(r, slot, known);
    case request_code::bulk: return serve_bulk(r, slot, sequence, worker, known);
    case request_code::close: return files_.close(r.handle);
    case request_code::send:
      if (r.length > channel_.layout.staging_bytes) return -EINVAL;
      return sinks_.send(r.handle, channel_.staging(slot), r.length);
    case request_code::write: return serve_write(r, slot, known);
    case request_code::truncate: return serve_truncate(r, known);
    case request_code::sync: return serve_sync(r, known);
    case request_code::unlink:
    case request_code::rename: return serve_paths(r, slot);
  }
  return -ENOSYS;
}

std::int32_t service::serve_open(const request& r, std::uint32_t slot, unsigned opener) {
  if (r.length == 0 || r.length >= limits::path_bytes_max) return -ENAMETOOLONG;
  std::string path(channel_.staging(slot), r.length);
  if (path.find('\0') != std::string::npos) return -EINVAL;
  std::uint32_t handle = 0;
  std::shared_ptr<host_file> file;
  const bool changes = r.code == request_code::open_write;
  const open_how how{(r.handle & open_no_follow) != 0, (r.handle & open_reads) != 0,
                     (r.handle & open_writes) != 0,    (r.handle & open_creates) != 0,
                     (r.handle & open_exclusive) != 0, static_cast<std::uint32_t>(r.offset) & 07777u};
  const int status = changes ? files_.open_to_change(std::move(path), how, handle, file)
                             : files_.open(std::move(path), how.no_follow, handle, file, opener);
  if (status < 0) return status;
  const file_identity& identity = file->version().identity;
  std::int32_t delivered = 0;
  bool unreadable = false;
  try {
    if (!changes && file->node() == no_node) delivered = deliver(*file, r.offset, slot);
    unreadable = changes && how.write && !files_.is_readable(*file);
  } catch (...) {
    (void)files_.close(handle);  // opened above; nobody will hear of it
    throw;
  }
  reply_record& reply = channel_.reply(slot);
  reply.version.store_relaxed(file->version().number);
  reply.size.store_relaxed(identity.size);
  reply.modified_ns.store_relaxed(identity.modified_ns);
  reply.changed_ns.store_relaxed(identity.changed_ns);
  reply.inode.store_relaxed(identity.inode);
  reply.device.store_relaxed(identity.device);
  reply.mode.store_relaxed(identity.mode | (unreadable ? unreadable_flag : 0));
  reply.node.store_relaxed(file->node());
  reply.handle.store_relaxed(handle);
  return delivered;
}

// A small file comes with the answer to its open, once per version: later its pages are cached, or come one by one.
// Returns its bytes, now in the slot's staging memory, or 0.
std::int32_t service::deliver(host_file& file, std::uint64_t wanted, std::uint32_t slot) {
  file_version& version = file.version();
  const std::uint64_t size = version.identity.size;
  if (size == 0 || size > wanted || size > channel_.layout.staging_bytes || version.delivered.load()) return 0;
  std::shared_ptr<backend_file> reached;
  if (files_.reach(file, reached) < 0) return 0;
  // An error, or another length than the open saw, is for the read that meets it.
  if (file_table::read(*reached, channel_.staging(slot), size, 0) != static_cast<std::int64_t>(size)) return 0;
  version.delivered = true;
  return static_cast<std::int32_t>(size);
}

std::int32_t service::serve_read(const request& r, std::uint32_t slot, file_table::lookups& known) {
  if (r.length > channel_.layout.staging_bytes || r.offset >= limits::file_bytes_max) return -EINVAL;
  file_table::lookups::entry* file = nullptr;
  if (const int status = files_.look_up(r.handle, known, file); status < 0) return status;
  const std::int64_t n = file_table::read(*file->reached, channel_.staging(slot), r.length, r.offset);
  if (n <= 0) return static_cast<std::int32_t>(n);
  return static_cast<std::int32_t>(n) | tell_extent(slot, extents_.touch(file->file, r.offset));
}

int service::reach_to_write(std::uint32_t handle, file_table::lookups& known, file_table::lookups::entry*& file) {
  const int status = files_.look_up(handle, known, file);
  return status < 0 ? status : file->file->writes() ? 0 : -EBADF;
}

std::int32_t service::serve_write(const request& r, std::uint32_t slot, file_table::lookups& known) {
  const bool masked = (r.length & masked_flag) != 0;
  const std::uint64_t bytes = r.length & ~masked_flag;
  const std::uint64_t room = channel_.layout.write_bytes(slot);
  if (r.offset > limits::file_bytes_max || bytes > limits::file_bytes_max - r.offset || bytes > room) return -EINVAL;
  if (masked && mask_offset(bytes) + mask_words(bytes) * sizeof(std::uint64_t) > room) return -EINVAL;
  file_table::lookups::entry* file = nullptr;
  if (const int status = files_.look_up(file_table::of_node(r.handle), known, file); status < 0) return status;
  const char* const data = channel_.write_staging(slot);
  // Copied once: what a kernel that goes on writing does to it must not lead anywhere else.
  std::vector<std::uint64_t> mask;
  if (masked && bytes != 0) {
    mask.resize(mask_words(bytes));
    std::memcpy(mask.data(), data + mask_offset(bytes), mask.size() * sizeof(std::uint64_t));
  }
  return static_cast<std::int32_t>(
      file_table::write(*file->reached, data, bytes, r.offset, masked ? mask.data() : nullptr));
}

std::int32_t service::serve_truncate(const request& r, file_table::lookups& known) {
  if (r.offset >= limits::file_bytes_max) return -EINVAL;
  file_table::lookups::entry* file = nullptr;
  if (const int status = reach_to_write(r.handle, known, file); status < 0) return status;
  return uninterrupted([&] { return file->reached->truncate(r.offset); });
}

std::int32_t service::serve_sync(const request& r, file_table::lookups& known) {
  file_table::lookups::entry* file = nullptr;
  if (const int status = reach_to_write(r.handle, known, file); status < 0) return status;
  return uninterrupted([&] { return file->reached->sync(); });
}

std::int32_t service::serve_paths(const request& r, std::uint32_t slot) {
  if (r.length == 0 || r.length > limits::staging_bytes_min) return -ENAMETOOLONG;
  const std::string both(channel_.staging(slot), r.length);
  const std::size_t end = both.find('\0');
  const bool renames = r.code == request_code::rename;
  // Exactly one path, or two, without zeros in them.
  if (renames != (end != std::string::npos)) return -EINVAL;
  if (!renames) return files_.unlink(both);
  const std::string path = both.substr(0, end), new_path = both.substr(end + 1);
  if (path.empty() || new_path.empty()) return -ENOENT;
  return new_path.find('\0') != std::string::npos ? -EINVAL : files_.rename(path, new_path);
}

// Says in the reply where an extent lies, if it is registered; what to add to the result.
std::int32_t service::tell_extent(std::uint32_t slot, const extent_notice& notice) {
  if (notice.bytes == 0) return 0;
  reply_record& reply = channel_.reply(slot);
  reply.extent_number.store_relaxed(notice.number);
  reply.extent_address.store_relaxed(notice.address);
  reply.extent_bytes.store_relaxed(notice.bytes);
  return notice_flag;
}

// From the file's own pages where they are registered. Otherwise they are read; meanwhile few workers ask for registration,
// so that both bring in a file that is new here, and many for a registration afterwards. An error is for the loads of single
// pages, which follow it.
std::int32_t service::serve_bulk(const request& r, std::uint32_t slot, std::uint32_t sequence, unsigned worker,
                                 file_table::lookups& known) {
  bulk_target to{};
  std::memcpy(&to, channel_.staging(slot), sizeof to);
  const std::uint64_t page_bytes = std::uint64_t{1} << frames_.page_shift;
  const std::uint64_t pages = (r.length + page_bytes - 1) >> frames_.page_shift;
  if (r.length == 0 || r.length > frames_.run_bytes_max || r.offset >= limits::file_bytes_max) return -EINVAL;
  if (to.frame >= frames_.count || pages > frames_.count - to.frame) return -EINVAL;
  file_table::lookups::entry* file = nullptr;
  if (const int status = files_.look_up(r.handle, known, file); status < 0) return status;
  const auto when =
      options_.workers < stage_first_workers ? extent_registrar::urgency::now : extent_registrar::urgency::when_quiet;
  const extent_notice notice = extents_.touch(file->file, r.offset, when);
  const std::uint64_t extent_begin = notice.number * extents_.extent_bytes();
  if (r.offset + r.length > extent_begin + notice.bytes || r.length < device_.bulk_bytes_min())
    return read_run(r, slot, sequence, to.frame, worker, *file->reached, staged_flag | tell_extent(slot, notice));
  const std::int32_t result = static_cast<std::int32_t>(r.length) | tell_extent(slot, notice);
  const std::int64_t copied =
      device_.bulk_copy(worker, frames_.pages + (std::uint64_t{to.frame} << frames_.page_shift),
                        notice.address + (r.offset - extent_begin), r.length,
                        reinterpret_cast<char*>(&seen_.reply(slot).word), make_reply_word(sequence, result));
  if (copied == -EINPROGRESS) return device_answers;
  return copied < 0 ? static_cast<std::int32_t>(copied) : static_cast<std::int32_t>(copied) | (result & notice_flag);
}

// Reads a run piece by piece, each of which the device copies while the next is read. `flags`: what to add to the answer.
// An answer says that nothing is on its way into the frames any more. Where that is not known there is none, and the frames
// are lost with the request.
std::int32_t service::read_run(const request& r, std::uint32_t slot, std::uint32_t sequence, std::uint32_t frame,
                               unsigned worker, backend_file& file, std::int32_t flags) {
  char* const to = frames_.pages + (std::uint64_t{frame} << frames_.page_shift);
  std::uint64_t done = 0;
  const auto give_up = [&](std::int32_t error) { return done == 0 || drain(worker) ? error : device_answers; };
  try {
    for (;;) {
      bounce_buffer* buffer = free_buffer(worker);
      if (buffer == nullptr) return give_up(-EAGAIN);
      const std::uint64_t wanted = std::min<std::uint64_t>(r.length - done, piece_bytes);
      const std::int64_t n = file_table::read(file, buffer->memory.host, wanted, r.offset + done);
      if (n <= 0 && done == 0) return static_cast<std::int32_t>(n);
      // What came before an error, or the end, is not lost.
      const std::uint64_t bytes = n < 0 ? 0 : static_cast<std::uint64_t>(n);
      const bool last = bytes < wanted || done + bytes == r.length;
      const auto result = static_cast<std::int32_t>(done + bytes) | flags;
      const std::int64_t copied = last ? copy_piece(worker, *buffer, to + done, bytes, &channel_.reply(slot).word,
                                                    &seen_.reply(slot).word, make_reply_word(sequence, result))
                                       : copy_piece(worker, *buffer, to + done, bytes, buffer->emptied,
                                                    buffer->emptied_seen, ++bounces_[worker].count);
      if (copied < 0 && copied != -EINPROGRESS) return give_up(static_cast<std::int32_t>(copied));
      if (last) return copied < 0 ? device_answers : result;
      done += bytes;
    }
  } catch (...) {
    if (done != 0 && !drain(worker)) return device_answers;
    throw;
  }
}

std::int64_t service::copy_piece(unsigned worker, bounce_buffer& buffer, char* to, std::uint64_t bytes,
                                 const channel_word<std::uint64_t>* told, channel_word<std::uint64_t>* told_seen,
                                 std::uint64_t word) {
  const std::int64_t copied = device_.bulk_copy(worker, to, reinterpret_cast<std::uint64_t>(buffer.memory.device),
                                                bytes, reinterpret_cast<char*>(told_seen), word);
  buffer.told = copied == -EINPROGRESS ? told : nullptr;
  if (copied >= 0 && copied != static_cast<std::int64_t>(bytes)) return -EIO;
  buffer.word = word;
  buffer.is_reply = told != buffer.emptied;
  return copied;
}

// Waits until the device has emptied all buffers of a worker. False when it does not.
bool service::drain(unsigned worker) {
  bool empty = true;
  for (bounce_buffer& buffer : bounces_[worker].buffers) empty = wait_until_empty(buffer) && empty;
  return empty;
}

// One of the worker's buffers that the device has emptied. Null when there is no memory for one, or the device does not
// answer.
service::bounce_buffer* service::free_buffer(unsigned worker) {
  bounce_buffers& own = bounces_[worker];
  bounce_buffer& buffer = own.buffers[own.next];
  own.next = (own.next + 1) % own.buffers.size();
  if (own.memory.host == nullptr) {
    try {
      allocate(own);
    } catch (const error&) {
      return nullptr;
    }
  }
  return wait_until_empty(buffer) ? &buffer : nullptr;
}

void service::allocate(bounce_buffers& b) {
  b.memory = device_.allocate_buffers(bounce_bytes);
  const auto word = [&b](char* memory, std::size_t i) {
    return reinterpret_cast<channel_word<std::uint64_t>*>(memory + b.buffers.size() * piece_bytes) + i;
  };
  for (std::size_t i = 0; i < b.buffers.size(); ++i) {
    b.buffers[i].memory = {b.memory.host + i * piece_bytes, b.memory.device + i * piece_bytes};
    b.buffers[i].emptied = word(b.memory.host, i);
    b.buffers[i].emptied_seen = word(b.memory.device, i);
  }
}

bool service::wait_until_empty(bounce_buffer& buffer) {
  const std::uint64_t start = platform::now_ns();
  for (std::uint32_t attempt = 0; buffer.told != nullptr && !buffer.is_empty(); ++attempt) {
    if (stopping_ || platform::now_ns() - start > answer_time_ns) return false;
    platform::pause(attempt);
  }
  buffer.told = nullptr;
  return true;
}

// ---- sleeping and waking

void service::wake_sleepers(service_duty duty, int count) {
  channel_header::twin_bed& bed = channel_.header().bed(duty);
  __atomic_fetch_add(&bed.wake, 1u, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &bed.wake, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

std::uint32_t service::sleepers(service_duty duty) const {
  return __atomic_load_n(&channel_.header().bed(duty).sleepers, __ATOMIC_SEQ_CST);
}

std::uint64_t service::served_count() const {
  std::uint64_t n = 0;
  for (const worker_count& count : counts_) n += count.served.load(std::memory_order_relaxed);
  return n;
}

void service::wake() {
  for (const service_duty duty : all_duties) wake_sleepers(duty, static_cast<int>(options_.workers));
}

service::idle_end service::idle(service_duty duty, std::uint64_t idle_ns) {
  channel_header::twin_bed& bed = channel_.header().bed(duty);
  crew& own = crew_of(duty);
  // Only the sentinel looks at the bells by itself; the others sleep until someone has work for them.
  const bool sentinel = !own.sentinel.exchange(true);
  // After a while one is enough for both kinds.
  const bool long_idle = idle_ns >= 100'000'000;
  const bool only_sentinel = sentinel && long_idle && !long_idle_sentinel_.exchange(true);
  // All get up now and then, for descriptors that others left them to close.
  std::uint64_t sleep_ns = idle_ns < 1'000'000'000 ? 100'000'000 : 1'000'000'000;
  if (sentinel && !long_idle) sleep_ns = idle_ns < 1'000'000 ? 20'000 : 100'000;
  if (only_sentinel) sleep_ns = idle_ns < 1'000'000'000 ? 1'000'000 : 10'000'000;

  own.called.store(false, std::memory_order_relaxed);  // of a call that came when nobody slept any more
  const std::uint32_t before = __atomic_load_n(&bed.wake, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&bed.sleepers, 1u, __ATOMIC_SEQ_CST);
  // Once more, after saying that I sleep: pairs with channel_client::wake_service.
  unsigned count = pending()[place_of(duty)];
  if (!stopping_ && count == 0) {
    const timespec t{static_cast<time_t>(sleep_ns / 1'000'000'000), static_cast<long>(sleep_ns % 1'000'000'000)};
    syscall(SYS_futex, &bed.wake, FUTEX_WAIT_PRIVATE, before, &t, nullptr, 0);
  }
  __atomic_fetch_sub(&bed.sleepers, 1u, __ATOMIC_SEQ_CST);
  const bool woken = __atomic_load_n(&bed.wake, __ATOMIC_RELAXED) != before;
  own.called.store(false, std::memory_order_relaxed);
  if (only_sentinel) long_idle_sentinel_ = false;
  if (sentinel) {
    own.sentinel = false;
    const pending_requests now = pending();
    for (const service_duty other : all_duties) {
      if (other != duty && now[place_of(other)] != 0) call_anyone(other);
    }
    count = now[place_of(duty)];
    // Work for more than one: whoever wakes finds it, or goes back to sleep. Of those that have been idle for long one gets
    // up in any case, and looks instead of me.
    const unsigned others = count == 0 ? 0 : std::max(count - 1, only_sentinel ? 1u : 0u);
    if (others != 0 && sleepers(duty) != 0) wake_sleepers(duty, static_cast<int>(std::min(others, options_.workers)));
  }
  return {count != 0, woken};
}

}  // namespace gpufs
