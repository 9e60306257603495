#include "simulation/scheduler.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

#include "simulation/real_calls.hpp"
#include "simulation/scheduler_calls.hpp"
#include "support/schedule.hpp"
#include "support/split_mix.hpp"

namespace gpufs::testing {
namespace {

using scheduling::never;

constexpr std::uint64_t begin_ns = 1'000'000'000'000;
constexpr std::uint64_t steps_max = 200'000'000;

// A thread waits here until it is told to go on. Calls of the system as they are: what is
// interposed comes back here.
class turnstile {
 public:
  void pass() {
    while (open_.load(std::memory_order_acquire) == 0)
      real_calls().syscall(SYS_futex, &open_, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
    open_.store(0, std::memory_order_relaxed);
  }
  void open() {
    open_.store(1, std::memory_order_release);
    real_calls().syscall(SYS_futex, &open_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

 private:
  std::atomic<std::uint32_t> open_{0};
};

struct task {
  unsigned number = 0;
  pthread_t thread{};
  void* (*body)(void*) = nullptr;
  void* argument = nullptr;
  turnstile turn;
  bool is_ready = true;
  bool is_woken = false;  // by wake(), and not by the clock
  bool has_ended = false;
  const void* waits_for = nullptr;
  std::uint64_t until_ns = never;
  const char* last_point = "start";
};

constinit thread_local task* this_task = nullptr;

}  // namespace

// Used by the thread that runs, and by no other at the same time: a turn passes all that it wrote
// on to the next one.
class simulation::implementation {
 public:
  explicit implementation(const schedule_options& options)
      : options_(options), random_(options.seed) {}

  void run(const std::function<void()>& body);

  std::uint64_t random() { return split_mix(random_); }
  std::uint64_t below(std::uint64_t end) { return random() % end; }

  // A point of the running thread.
  void point(const char* name) {
    task& me = *this_task;
    me.last_point = name;
    const std::uint64_t chance = pass_time();
    if (options_.stops != 0 && chance / 1024 % 65'536 < options_.stops) {
      const std::uint64_t most = below(2) == 0 ? options_.stop_ns_max / 1000 : options_.stop_ns_max;
      (void)wait(nullptr, now_ns_ + below(most + 1));
      return;
    }
    if (chance % 1024 < options_.switches) switch_to(any_ready());
  }
  // The running thread lets others go on, if there are any.
  void give_way() {
    this_task->last_point = "yield";
    (void)pass_time();
    task& next = any_ready();
    switch_to(&next != this_task ? next : any_ready());
  }
  bool wait(const void* object, std::uint64_t until_ns) {
    task& me = *this_task;
    me.is_ready = me.is_woken = false;
    me.waits_for = object;
    me.until_ns = until_ns;
    switch_to(next_ready());
    return me.is_woken;
  }
  void wake(const void* object, unsigned most) {
    std::vector<task*>& waiting = scratch_;
    waiting.clear();
    for (const auto& t : tasks_) {
      if (!t->is_ready && !t->has_ended && t->waits_for == object) waiting.push_back(t.get());
    }
    for (; most != 0 && !waiting.empty(); --most) {
      const std::size_t chosen = below(waiting.size());
      make_ready(*waiting[chosen]);
      waiting[chosen]->is_woken = true;
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
  }

  int start(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
            void* argument);
  int join(pthread_t thread, void** result);

  void trace(const char* what, const std::string& of, std::int64_t result) const {
    if (!is_traced_) return;
    std::fprintf(stderr, "%llu ns: thread %u: %s of %s: %lld\n",
                 static_cast<unsigned long long>(now_ns_), this_task->number, what, of.c_str(),
                 static_cast<long long>(result));
  }
  std::uint64_t now_ns() const { return now_ns_; }
  void move_clock(std::uint64_t ns) { now_ns_ += ns; }
  std::uint64_t steps() const { return steps_; }
  std::uint64_t hash() const { return hash_; }

 private:
  static void* run_task(void* argument);
  void end_task();

  // One step: a number by chance.
  std::uint64_t pass_time() {
    const std::uint64_t chance = random();
    now_ns_ += 20 + chance % 128;
    if (++steps_ > steps_max) give_up("the threads do not end");
    return chance >> 8;
  }
  static void make_ready(task& t) {
    t.is_ready = true;
    t.waits_for = nullptr;
    t.until_ns = never;
  }
  void end_waits() {
    for (const auto& t : tasks_) {
      if (!t->is_ready && !t->has_ended && t->until_ns <= now_ns_) make_ready(*t);
    }
  }
  // One of those that can go on; there is one.
  task& any_ready() {
    end_waits();
    unsigned count = 0;
    for (const auto& t : tasks_) count += t->is_ready ? 1 : 0;
    std::uint64_t chosen = below(count);
    for (const auto& t : tasks_) {
      if (t->is_ready && chosen-- == 0) return *t;
    }
    std::abort();
  }
  // The same where there may be none yet: the clock goes on.
  task& next_ready() {
    std::uint64_t first = never;
    for (const auto& t : tasks_) {
      if (t->is_ready) return any_ready();
      if (!t->has_ended) first = std::min(first, t->until_ns);
    }
    if (first == never) give_up("no thread can go on");
    now_ns_ = std::max(now_ns_, first);
    return any_ready();
  }
  void switch_to(task& next) {
    hash_ = (hash_ ^ next.number) * 0x100000001b3ull ^ now_ns_;
    task& me = *this_task;
    if (is_traced_) {
      std::fprintf(stderr, "%llu ns: thread %u at %s, thread %u goes on\n",
                   static_cast<unsigned long long>(now_ns_), me.number, me.last_point, next.number);
    }
    if (&next == &me) return;
    next.turn.open();
    if (!me.has_ended) me.turn.pass();
  }
  [[noreturn]] void give_up(const char* why) const {
    std::fprintf(stderr, "simulation with seed %llu: %s, after %llu steps\n",
                 static_cast<unsigned long long>(options_.seed), why,
                 static_cast<unsigned long long>(steps_));
    for (const auto& t : tasks_) {
      if (t->has_ended) continue;
      std::fprintf(stderr, "  thread %u %s, last point: %s\n", t->number,
                   t->is_ready            ? "can go on"
                   : t->until_ns != never ? "waits, but not for ever"
                                          : "waits",
                   t->last_point);
    }
    std::abort();
  }

  const schedule_options options_;
  const bool is_traced_ = std::getenv("GPUFS_SIMULATION_TRACE") != nullptr;
  std::uint64_t random_, now_ns_ = begin_ns, steps_ = 0, hash_ = 0xcbf29ce484222325ull;
  std::vector<std::unique_ptr<task>> tasks_;
  std::vector<task*> scratch_;
  unsigned alive_ = 0;
  turnstile all_ended_;
  std::atomic<unsigned> inside_{0};  // threads that may still use this object
};

namespace {

// The simulation under way: one at a time.
simulation::implementation* current = nullptr;

// Its threads change places faster on one processor.
class one_processor {
 public:
  one_processor() {
    if (sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(sched_getcpu()), &one);
    is_bound_ = sched_setaffinity(0, sizeof one, &one) == 0;
  }
  ~one_processor() {
    if (is_bound_) (void)sched_setaffinity(0, sizeof before_, &before_);
  }
  one_processor(const one_processor&) = delete;
  one_processor& operator=(const one_processor&) = delete;

 private:
  cpu_set_t before_{};
  bool is_bound_ = false;
};

}  // namespace

void* simulation::implementation::run_task(void* argument) {
  this_task = static_cast<task*>(argument);
  this_task->turn.pass();
  void* const result = this_task->body(this_task->argument);
  implementation& self = *current;
  self.end_task();
  // Last: nobody joins a detached thread before run() returns.
  self.inside_.fetch_sub(1, std::memory_order_release);
  return result;
}

void simulation::implementation::end_task() {
  task& me = *this_task;
  me.has_ended = true;
  me.is_ready = false;
  wake(&me, ~0u);
  if (--alive_ == 0) all_ended_.open();
  else switch_to(next_ready());
  this_task = nullptr;
}

int simulation::implementation::start(pthread_t* thread, const pthread_attr_t* attributes,
                                      void* (*body)(void*), void* argument) {
  tasks_.push_back(std::make_unique<task>());
  task& t = *tasks_.back();
  t.number = static_cast<unsigned>(tasks_.size());
  t.body = body;
  t.argument = argument;
  if (const int e = real_calls().pthread_create(&t.thread, attributes, run_task, &t); e != 0) {
    tasks_.pop_back();
    return e;
  }
  ++alive_;
  inside_.fetch_add(1, std::memory_order_relaxed);
  *thread = t.thread;
  return 0;
}

int simulation::implementation::join(pthread_t thread, void** result) {
  // The last one of this name: names of threads are used again.
  const auto found = std::find_if(tasks_.rbegin(), tasks_.rend(), [&](const auto& t) {
    return pthread_equal(t->thread, thread) != 0;
  });
  while (found != tasks_.rend() && !(*found)->has_ended) (void)wait(found->get(), never);
  return real_calls().pthread_join(thread, result);
}

void simulation::implementation::run(const std::function<void()>& body) {
  struct first_thread {
    const std::function<void()>& body;
    std::exception_ptr failure;
  } first{body, nullptr};
  const one_processor bound;
  const schedule_hook points([](const char* name) {
    if (this_task != nullptr) current->point(name);
  });
  current = this;
  pthread_t thread;
  const int e = start(
      &thread, nullptr,
      [](void* argument) -> void* {
        auto& f = *static_cast<first_thread*>(argument);
        try {
          f.body();
        } catch (...) {
          f.failure = std::current_exception();
        }
        return nullptr;
      },
      &first);
  if (e != 0) {
    std::perror("simulation: no thread");
    std::abort();
  }
  tasks_.front()->turn.open();
  all_ended_.pass();
  while (inside_.load(std::memory_order_acquire) != 0) sched_yield();
  (void)real_calls().pthread_join(thread, nullptr);
  current = nullptr;
  if (first.failure != nullptr) std::rethrow_exception(first.failure);
}

simulation::simulation(const schedule_options& options)
    : self_(std::make_unique<implementation>(options)) {}
simulation::~simulation() = default;
void simulation::run(const std::function<void()>& body) { self_->run(body); }
std::uint64_t simulation::hash() const { return self_->hash(); }
std::uint64_t simulation::steps() const { return self_->steps(); }

const char* simulation::obstacle() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return "sanitizers have functions of their own in the place of those of threads";
#else
  return nullptr;
#endif
}

namespace simulated {

std::uint64_t below(std::uint64_t end) { return current->below(end); }
std::uint64_t step() { return current->steps(); }
void sleep_ns(std::uint64_t ns) { (void)current->wait(nullptr, current->now_ns() + ns); }
void stop_process(std::uint64_t ns) { current->move_clock(ns); }
void point() { current->point("test"); }
void trace(const char* what, const std::string& of, std::int64_t result) {
  current->trace(what, of, result);
}

}  // namespace simulated

namespace scheduling {

bool is_simulated() { return this_task != nullptr; }
std::uint64_t now_ns() {
  current->point("clock");
  return current->now_ns();
}
unsigned random_number() { return static_cast<unsigned>(current->random()); }
void give_way() { current->give_way(); }
void sleep_until(std::uint64_t ns) { (void)current->wait(nullptr, ns); }
int start_thread(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                 void* argument) {
  const int e = current->start(thread, attributes, body, argument);
  current->point("new thread");
  return e;
}
int join_thread(pthread_t thread, void** result) { return current->join(thread, result); }
bool wait_for(const void* object, std::uint64_t until_ns) {
  return current->wait(object, until_ns);
}
void wake(const void* object, unsigned most) { current->wake(object, most); }

}  // namespace scheduling
}  // namespace gpufs::testing
