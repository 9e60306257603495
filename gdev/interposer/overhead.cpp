#include "interposer/overhead.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "base/endless.hpp"
#include "base/own_thread.hpp"
#include "base/saturating.hpp"
#include "base/uncancelled.hpp"
#include "interposer/driver.hpp"
#include "interposer/gate.hpp"
#include "interposer/ipc.hpp"
#include "interposer/notices.hpp"
#include "interposer/nvml.hpp"
#include "interposer/shared_memory.hpp"

namespace gdev {

namespace {

using std::chrono::milliseconds;

/** The time between two looks while something happens; twice as long each time. */
constexpr milliseconds first_pause{250};
constexpr milliseconds longest_pause{8000};

std::atomic<bool> is_asleep = false;  // the thread, until watch_overhead()

/** Tells whether the numbers of processes here are those of the machine, as NVML's are. */
bool is_in_first_namespace() noexcept {
  constexpr ino_t first = 0xEFFFFFFC;  // a constant of the kernel
  struct stat status{};
  return stat("/proc/self/ns/pid", &status) == 0 && status.st_ino == first;
}

struct look {
  nvml::sample seen;
  memory_window window;
};

class overhead_watch {
 public:
  /** Adds a GPU, and starts the thread. Returns false if there is none. */
  bool begin(CUdevice device) {
    CUuuid id{};
    if (call_driver<CUresult>(id_cuDeviceGetUuid_v2, &id, device) != CUDA_SUCCESS &&
        call_driver<CUresult>(id_cuDeviceGetUuid, &id, device) != CUDA_SUCCESS) {
      return false;
    }
    nvml::gpu_id gpu{};
    std::copy(std::begin(id.bytes), std::end(id.bytes), gpu.begin());
    const std::lock_guard lock(mutex_);
    if (std::find(gpus_.begin(), gpus_.end(), gpu) == gpus_.end()) {
      gpus_.push_back(gpu);
    }
    if (!is_started_) {
      is_own_number_ = is_judged_ = is_in_first_namespace();
      is_started_ = start();
    }
    making_ += is_started_ ? 1 : 0;
    return is_started_;
  }

  void end_making() {
    const std::lock_guard lock(mutex_);
    --making_;
  }

  /** Asks for a look. */
  void ask() {
    const std::lock_guard lock(mutex_);
    if (is_started_) {
      ++asked_;
      changed_.notify_all();
    }
  }

  /** Returns a look that begins now, or none: it takes too long. */
  std::optional<look> look_now() {
    std::unique_lock lock(mutex_);
    if (!is_started_ || is_late_) {
      return std::nullopt;
    }
    const std::uint64_t own = ++asked_;
    changed_.notify_all();
    if (!changed_.wait_for(lock, look_patience, [&] { return answered_ >= own; })) {
      is_late_ = true;
      return std::nullopt;
    }
    return last_;
  }

  /**
   * Decides whether this process is the one that NVML lists with its number, in another name space:
   * not if it is listed before it has a context.
   */
  void judge_listing(const look& before) {
    const std::lock_guard lock(mutex_);
    is_own_number_ = is_judged_ ? is_own_number_ : !before.seen.is_listed;
    is_judged_ = true;
  }

  void set_difference(CUcontext context, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    differences_[context] = bytes;
  }
  void end_difference(CUcontext context) {
    const std::lock_guard lock(mutex_);
    differences_.erase(context);
  }

  /** Tells whether a sample says what this process uses. */
  bool knows_process(const nvml::sample& seen) {
    const std::lock_guard lock(mutex_);
    return is_own_number_ && (seen.own || was_listed_);
  }

  /** Returns the overhead that a look shows, or none: it shows nothing new. */
  std::optional<measured_overhead> measure(const look& shown) {
    const measured_overhead told = told_overhead();
    const std::lock_guard lock(mutex_);
    const bool has_left = was_listed_ && shown.seen.all && !shown.seen.is_listed;
    if (is_own_number_ && (shown.seen.own || has_left)) {
      was_listed_ = true;
      if (!shown.window.is_on_gpu) {
        return std::nullopt;  // its memory was moved meanwhile
      }
      const std::uint64_t foreign = sum(imported_bytes(), attached_bytes());
      std::uint64_t bytes = less(shown.seen.own.value_or(0), sum(shown.window.most, foreign));
      if (!shown.window.is_quiet && told.source == overhead_source::nvml) {
        bytes = std::max(bytes, told.bytes);  // there may have been less at the moment of the look
      }
      return measured_overhead{bytes, overhead_source::nvml};
    }
    if (was_listed_ || !shown.seen.all) {
      return std::nullopt;
    }
    std::uint64_t bytes = 0;
    for (const auto& [context, taken] : differences_) {
      bytes = sum(bytes, taken);
    }
    return measured_overhead{bytes, overhead_source::difference};
  }

  /** Tells the daemon what a look shows, if it is new. Returns as tell_overhead(). */
  int tell(const look& shown, bool may_be_refused) {
    const std::lock_guard lock(telling_);
    const auto now = measure(shown);
    const measured_overhead told = told_overhead();
    if (!now || (now->bytes == told.bytes && now->source == told.source && !must_tell_)) {
      return 0;
    }
    const int error = tell_overhead(*now, may_be_refused);
    must_tell_ = error != 0;
    return error;
  }

 private:
  bool start() {
    const auto run = [](void* self) -> void* {
      static_cast<overhead_watch*>(self)->run();
      return nullptr;
    };
    return start_own_thread("gdev-overhead", run, this);
  }

  void run() {
    milliseconds pause = first_pause;
    for (;;) {
      std::unique_lock lock(mutex_);
      const auto is_asked = [this] { return asked_ != answered_; };
      if (pause > longest_pause) {
        is_asleep.store(true, std::memory_order_relaxed);
        changed_.wait(lock, is_asked);
        is_asleep.store(false, std::memory_order_relaxed);
      } else {
        changed_.wait_for(lock, pause, is_asked);
      }
      pause = is_asked() ? first_pause : 2 * pause;
      const std::uint64_t number = asked_;
      const std::vector<nvml::gpu_id> gpus = gpus_;
      lock.unlock();
      begin_window();
      look shown{library_.look(gpus), {}};
      shown.window = end_window();
      lock.lock();
      last_ = shown;
      answered_ = number;
      is_late_ = false;
      const bool is_mine = making_ == 0;  // else who makes a context tells, and may be refused
      changed_.notify_all();
      lock.unlock();
      if (is_mine) {
        static_cast<void>(tell(shown, false));
      }
      const std::uint64_t submitted = count_submissions(work::launch);
      if (pause > longest_pause && submitted != submitted_) {
        pause = longest_pause;  // kernels may load modules, and take local memory
      }
      submitted_ = submitted;
    }
  }

  nvml library_;  // of the thread
  std::uint64_t submitted_ = 0;

  std::mutex telling_;      // held while the daemon answers, before mutex_
  bool must_tell_ = false;  // guarded by it: the daemon may have counted what it refused

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<nvml::gpu_id> gpus_;  // on which contexts were made
  bool is_started_ = false;
  unsigned making_ = 0;
  std::uint64_t asked_ = 0;
  std::uint64_t answered_ = 0;
  bool is_late_ = false;
  look last_;
  bool is_judged_ = false;
  bool is_own_number_ = false;  // NVML's number of a process is one here
  bool was_listed_ = false;
  std::map<CUcontext, std::uint64_t> differences_;
};

endless<overhead_watch> only;

}  // namespace

context_making::context_making(CUdevice device) noexcept {
  const uncancelled whole;
  if (!has_joined() || !only.get().begin(device)) {
    return;
  }
  is_watched_ = true;
  told_ = told_overhead();
  if (told_.source == overhead_source::nvml) {
    return;
  }
  if (const std::optional<look> before = only.get().look_now()) {
    only.get().judge_listing(*before);
    in_use_ = before->seen.all;
  }
}

context_making::~context_making() {
  if (is_watched_) {
    only.get().end_making();
  }
}

bool context_making::fits(CUcontext made) noexcept {
  const uncancelled whole;
  const std::optional<look> after = is_watched_ ? only.get().look_now() : std::nullopt;
  if (!after) {
    return true;  // it counts when it is known
  }
  if (!only.get().knows_process(after->seen) && in_use_ && after->seen.all) {
    only.get().set_difference(made, std::min(less(*after->seen.all, *in_use_), difference_max));
  }
  const auto now = only.get().measure(*after);
  const bool is_more = now && now->bytes > told_.bytes;
  if (only.get().tell(*after, is_more) == 0) {
    return true;
  }
  memory_facts facts;
  static_cast<void>(ask_memory(facts));
  say("no memory for a context of %.1f MiB: the limit is reached (%s; in use %.1f MiB)",
      mebibytes(now->bytes - told_.bytes), text_of_limit(facts.limit).data(),
      mebibytes(facts.used));
  return false;
}

void note_context_end(CUcontext ended) noexcept {
  const uncancelled whole;
  only.get().end_difference(ended);
  if (const std::optional<look> after = only.get().look_now()) {
    static_cast<void>(only.get().tell(*after, false));
  }
}

void look_at_overhead() noexcept {
  const uncancelled whole;
  only.get().ask();
}

void watch_overhead() noexcept {
  if (is_asleep.load(std::memory_order_relaxed)) {
    look_at_overhead();
  }
}

void forget_overhead() noexcept {
  only.forget();
  is_asleep.store(false, std::memory_order_relaxed);
}

}  // namespace gdev
