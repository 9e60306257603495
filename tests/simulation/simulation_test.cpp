// A mount, its service, groups that use files, and the disk below, all in one simulation: each
// schedule is a seed. What is asked of each is what users were promised: a read finds what was
// written, no call waits for ever, what a sync has said is on the disk is there, and what is lost
// is told.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "gpufs/write.cuh"
#include "simulation/disk.hpp"
#include "simulation/history.hpp"
#include "simulation/scheduler.hpp"
#include "support/device.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing {
namespace {

constexpr std::uint64_t page_bytes = 512, word_bytes = 8, file_pages = 8;
constexpr std::uint64_t file_words = file_pages * page_bytes / word_bytes;
constexpr std::uint64_t second_ns = 1'000'000'000;
constexpr std::uint64_t short_timeout_ns = second_ns / 10;
// A call makes many requests, each of which may wait for its timeout, and for frames.
constexpr std::uint64_t requests_of_call_max = 100;

struct adversity {
  const char* name;
  disk_options disk{};
  unsigned stops = 0;  // schedule_options
  std::uint64_t stop_ns_max = 0;
  bool stops_process = false;
  bool nothing_fails = false;  // what is promised then: no call gives an error
  std::uint64_t request_timeout_ns = short_timeout_ns;
  std::uint64_t schedules = 150;  // in `make test`
};

schedule_options schedule_of(const adversity& a, std::uint64_t seed) {
  return {.seed = seed,
          .switches = std::array{16u, 128u, 512u, 900u}[seed % 4],
          .stops = a.stops,
          .stop_ns_max = a.stop_ns_max};
}

// A small mount, so that pages leave and groups meet.
mount_options options_by_chance(std::shared_ptr<backend> on, std::uint64_t request_timeout_ns) {
  using simulated::below;
  mount_options o = base_options();
  o.device = device_kind::cpu;
  o.backend = std::move(on);
  o.page_bytes = page_bytes;
  o.cache_bytes = (8 + below(20)) * page_bytes;
  o.rings = static_cast<unsigned>(1 + below(2));
  o.workers = static_cast<unsigned>(1 + below(5));
  o.channel_slots = static_cast<unsigned>(4 + below(8));
  o.staging_bytes = 8192;
  o.bulk_bytes = below(2) == 0 ? 0 : 4 * page_bytes;
  o.open_files = 16;
  o.cpu_threads = static_cast<unsigned>(1 + below(4));
  o.request_timeout = o.reclaim_timeout = std::chrono::nanoseconds(request_timeout_ns);
  o.unmount_timeout = std::chrono::nanoseconds(20 * second_ns);
  return o;
}

// One program in one simulation.
class program {
 public:
  program(const adversity& a, std::uint64_t seed) : adversity_(a), seed_(seed) {}

  void run() {
    simulation s(schedule_of(adversity_, seed_));
    s.run([this] { body(); });
    hash_ = s.hash();
    steps_ = s.steps();
    check();
  }
  std::uint64_t hash() const { return hash_; }
  std::uint64_t steps() const { return steps_; }
  std::uint64_t calls() const { return calls_; }
  std::uint64_t failed() const { return failed_; }

 private:
  static constexpr unsigned file_count = 2;
  struct file {
    std::string path;
    history known;
    unsigned holders = 0;  // groups that have it open, open it, or close it
  };

  void body();
  void group(const mount_ref& fs);
  void check();

  // Makes a call, which has to end in time. `call`: gives its result.
  template <class Call>
  std::int64_t made(file& f, const char* what, const Call& call) {
    const std::uint64_t start = platform::now_ns();
    simulated::trace("begin", what, 0);
    const std::int64_t result = call();
    simulated::trace(what, f.path, result);
    const std::uint64_t ns = platform::now_ns() - start;
    ++calls_;
    if (ns > requests_of_call_max * adversity_.request_timeout_ns + stopped_ns_)
      problem(std::string(what) + " took " + std::to_string(ns) + " ns");
    if (result < 0) {
      ++failed_;
      f.known.add_error();
      if (adversity_.nothing_fails) {
        problem(f.path + ": " + what + " gave " + std::to_string(result) + " at " +
                std::to_string(platform::now_ns()) + " ns, after " + std::to_string(ns) + " ns");
      }
    }
    return result;
  }
  void problem(const std::string& text) {
    if (problems_.size() < 5) problems_.push_back(text);
  }

  void write(const mount_ref& fs, file& f, std::int32_t fd);
  void read(const mount_ref& fs, file& f, std::int32_t fd);
  void sync(const mount_ref& fs, file& f, std::int32_t fd);
  void truncate(const mount_ref& fs, file& f, std::int32_t fd);
  static std::vector<std::uint64_t> words_of(const std::string& bytes) {
    std::vector<std::uint64_t> words(bytes.size() / word_bytes);
    std::memcpy(words.data(), bytes.data(), words.size() * word_bytes);
    return words;
  }

  const adversity& adversity_;
  const std::uint64_t seed_;
  std::shared_ptr<memory_backend> files_on_disk_;
  std::shared_ptr<disk> disk_;
  std::array<file, file_count> files_;
  std::uint64_t next_value_ = 1, stopped_ns_ = 0;
  std::uint64_t hash_ = 0, steps_ = 0, calls_ = 0, failed_ = 0;
  std::vector<std::string> problems_;
};

void program::body() {
  using simulated::below;
  files_on_disk_ = std::make_shared<memory_backend>();
  disk_options how = adversity_.disk;
  if (how.hangs_at != 0) how.hangs_at = 1 + below(how.hangs_at);
  disk_ = std::make_shared<disk>(files_on_disk_, how);
  for (unsigned i = 0; i < file_count; ++i) {
    files_[i].path = "file" + std::to_string(i);
    // One that is there before, with a first write that was over before anything.
    if (i == 0) continue;
    const std::vector<std::uint64_t> first(file_words / 2, next_value_);
    files_on_disk_->write(files_[i].path,
                          {reinterpret_cast<const char*>(first.data()), first.size() * word_bytes});
    files_[i].known.add_write({0, first.size(), 0, 0}, next_value_++);
  }

  const mount_options o = options_by_chance(disk_, adversity_.request_timeout_ns);
  bool unmount_told = false;
  {
    mount fs(o);
    launch(fs, {.blocks = o.cpu_threads, .threads = 1}, [this](const mount_ref& m) { group(m); });
    const std::uint64_t start = platform::now_ns();
    if (below(2) == 0) disk_->mend();
    try {
      fs.unmount();
    } catch (const error& e) {
      unmount_told = true;
      if (adversity_.nothing_fails) problem(std::string("unmount: ") + e.what());
    }
    if (platform::now_ns() - start >
        static_cast<std::uint64_t>(o.unmount_timeout.count()) + second_ns + stopped_ns_)
      problem("unmount took " + std::to_string(platform::now_ns() - start) + " ns");
    disk_->mend();
    const file_error_list told = fs.file_errors();
    for (const file_error& e : told.errors) {
      for (file& f : files_) {
        if (e.at_unmount && e.path == f.path) f.known.add_error();
      }
    }
    if (told.dropped != 0 || unmount_told) {
      for (file& f : files_) f.known.add_error();
    }
  }
  const std::uint64_t now = simulated::step();
  for (file& f : files_) {
    if (!files_on_disk_->exists(f.path)) continue;
    f.known.add_read({0, file_words, now, now}, words_of(files_on_disk_->content(f.path)),
                     "the end");
  }
}

void program::write(const mount_ref& fs, file& f, std::int32_t fd) {
  using simulated::below;
  const std::uint64_t first = below(file_words),
                      count = 1 + below(std::min<std::uint64_t>(file_words - first, 100));
  const std::uint64_t value = next_value_++;
  const std::vector<std::uint64_t> words(count, value);
  const std::uint64_t begin = simulated::step();
  const std::int64_t result = made(f, "gwrite", [&] {
    return gwrite(this_thread(), fs, fd, words.data(), count * word_bytes,
                  static_cast<std::int64_t>(first * word_bytes));
  });
  const std::uint64_t end = simulated::step();
  const auto done = result < 0 ? 0 : static_cast<std::uint64_t>(result) / word_bytes;
  if (done != 0) f.known.add_write({first, done, begin, end}, value);
  if (done != count)
    f.known.add_write({first + done, count - done, begin, history::for_ever}, value);
}

void program::read(const mount_ref& fs, file& f, std::int32_t fd) {
  using simulated::below;
  const std::uint64_t first = below(file_words),
                      count = 1 + below(std::min<std::uint64_t>(file_words - first, 200));
  std::string bytes(count * word_bytes, '?');
  const std::uint64_t begin = simulated::step();
  const std::int64_t result = made(f, "gread", [&] {
    return gread(this_thread(), fs, fd, bytes.data(), bytes.size(),
                 static_cast<std::int64_t>(first * word_bytes));
  });
  if (result < 0) return;
  const std::uint64_t end = simulated::step();
  if (static_cast<std::uint64_t>(result) > bytes.size())
    return problem("gread gave more than was asked for");
  bytes.resize(static_cast<std::size_t>(result));
  // A read that failed on its way comes short, so only what it gave is known; less than a word is
  // of a size in between.
  const std::uint64_t found = bytes.size() / word_bytes;
  const bool may_be_cut = !adversity_.nothing_fails;
  f.known.add_read({first, may_be_cut ? found : count, begin, end}, words_of(bytes), "a gread");
}

void program::sync(const mount_ref& fs, file& f, std::int32_t fd) {
  const std::uint64_t begin = simulated::step();
  const std::int64_t result = made(f, "gfsync", [&] { return gfsync(this_thread(), fs, fd); });
  if (result < 0 || f.known.has_error()) return;
  const std::string content =
      files_on_disk_->content(f.path);  // a point: others may write meanwhile
  f.known.add_read({0, file_words, begin, simulated::step()}, words_of(content),
                   "the disk after a gfsync", true);
}

void program::truncate(const mount_ref& fs, file& f, std::int32_t fd) {
  const std::uint64_t words = simulated::below(file_words);
  const std::uint64_t begin = simulated::step();
  const std::int64_t result = made(f, "gftruncate", [&] {
    return gftruncate(this_thread(), fs, fd, static_cast<std::int64_t>(words * word_bytes));
  });
  f.known.add_write(
      {words, history::for_ever, begin, result < 0 ? history::for_ever : simulated::step()}, 0);
}

void program::group(const mount_ref& fs) {
  using simulated::below;
  std::array<std::int32_t, file_count> fds;
  fds.fill(-1);
  const auto close = [&](unsigned i) {
    if (fds[i] < 0) return;
    const std::uint64_t begin = simulated::step();
    if (made(files_[i], "gclose", [&] { return gclose(this_thread(), fs, fds[i]); }) < 0)
      files_[i].known.add_failed_close(begin, simulated::step());
    fds[i] = -1;
    --files_[i].holders;
  };
  for (std::uint64_t left = 5 + below(15); left != 0; --left) {
    if (adversity_.stops_process && below(8) == 0) {
      const std::uint64_t ns = below(100 * second_ns);
      stopped_ns_ += ns;
      simulated::stop_process(ns);
    }
    const auto i = static_cast<unsigned>(below(file_count));
    file& f = files_[i];
    if (fds[i] < 0) {
      if (f.holders++ == 0 && f.known.has_error()) f.known.settle();
      fds[i] = static_cast<std::int32_t>(made(f, "gopen", [&] {
        return gopen(this_thread(), fs, f.path.c_str(), O_RDWR | O_CREAT, 0666);
      }));
      if (fds[i] < 0) {
        --f.holders;
        continue;
      }
    }
    const std::uint64_t what = below(100);
    if (what < 35) write(fs, f, fds[i]);
    else if (what < 70) read(fs, f, fds[i]);
    else if (what < 80) sync(fs, f, fds[i]);
    else if (what < 87) truncate(fs, f, fds[i]);
    else if (what < 92)
      (void)made(f, "gfadvise", [&] {
        return gfadvise(this_thread(), fs, fds[i], 0, file_words * word_bytes,
                        below(2) == 0 ? POSIX_FADV_DONTNEED : POSIX_FADV_WILLNEED);
      });
    else close(i);
  }
  for (unsigned i = 0; i < file_count; ++i) {
    if (below(4) != 0) close(i);  // else it is left to the unmount
  }
}

void program::check() {
  for (const file& f : files_) {
    const std::string found = f.known.contradiction();
    if (!found.empty()) problem(f.path + ": " + found);
  }
  for (const std::string& p : problems_) ADD_FAILURE() << p;
}

constexpr adversity harmless[] = {
    {.name = "calm", .nothing_fails = true},
    {.name = "slow_disk", .disk = {.delay_ns_max = short_timeout_ns / 50}, .nothing_fails = true},
    {.name = "threads_that_stand_still_for_a_moment",
     .stops = 256,
     .stop_ns_max = short_timeout_ns / 50,
     .nothing_fails = true},
};
constexpr adversity harmful[] = {
    // A stop counts as a tenth of a second of life at most.
    {.name = "stopped_process",
     .stops_process = true,
     .nothing_fails = true,
     .request_timeout_ns = 100 * second_ns},
    {.name = "threads_that_stand_still_for_long",
     .stops = 256,
     .stop_ns_max = 3 * short_timeout_ns},
    {.name = "late_answers", .disk = {.delay_ns_max = 2 * short_timeout_ns}, .schedules = 30},
    {.name = "failing_changes", .disk = {.failing_changes = 100}},
    {.name = "failing_disk", .disk = {.failing_changes = 100, .failing_reads = 50}},
    {.name = "dying_workers", .disk = {.deaths = 100, .deaths_max = 8}, .schedules = 75},
    {.name = "hanging_call", .disk = {.hangs_at = 60}, .schedules = 50},
    {.name = "everything",
     .disk = {.delay_ns_max = short_timeout_ns,
              .failing_changes = 30,
              .failing_reads = 20,
              .deaths = 40,
              .deaths_max = 3,
              .hangs_at = 200},
     .stops = 64,
     .stop_ns_max = 2 * short_timeout_ns,
     .schedules = 30},
};

class simulated_program : public ::testing::TestWithParam<adversity> {
 protected:
  void SetUp() override {
    if (simulation::obstacle() != nullptr) GTEST_SKIP() << simulation::obstacle();
  }
};
std::string name_of(const ::testing::TestParamInfo<adversity>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(harmless, simulated_program, ::testing::ValuesIn(harmless), name_of);
INSTANTIATE_TEST_SUITE_P(harmful, simulated_program, ::testing::ValuesIn(harmful), name_of);
void PrintTo(const adversity& a, std::ostream* out) { *out << a.name; }

TEST_P(simulated_program, finds_what_was_written_and_ends_in_time) {
  std::uint64_t calls = 0, failed = 0;
  work_budget budget(GetParam().schedules);
  while (budget.next()) {
    SCOPED_TRACE(budget.replay());
    program p(GetParam(), budget.seed());
    p.run();
    budget.covers("calls", p.calls());
    calls += p.calls();
    failed += p.failed();
  }
  EXPECT_GT(calls, 0u);
  // A few programs may meet nothing of it.
  if (GetParam().nothing_fails || budget.begun() >= 30) {
    EXPECT_EQ(failed == 0, GetParam().nothing_fails) << "the adversity does nothing";
  }
}

TEST_P(simulated_program, is_the_same_with_the_same_seed) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    program one(GetParam(), seed), other(GetParam(), seed);
    one.run();
    other.run();
    EXPECT_EQ(one.hash(), other.hash()) << "seed " << seed;
    EXPECT_EQ(one.steps(), other.steps()) << "seed " << seed;
  }
}

// ---- appends

// Groups append records of their own to one file, while others sync and read it.
struct appending {
  struct record {
    std::uint64_t value, words;
  };
  const adversity& how;
  std::vector<record> records{};
  std::vector<std::string> problems{};
  std::string content{};

  void expect(bool good, const char* what) {
    if (!good) problems.emplace_back(what);
  }
  void group(const mount_ref& fs) {
    using simulated::below;
    const std::int32_t fd = gopen(this_thread(), fs, "log", O_RDWR | O_CREAT | O_APPEND, 0666);
    expect(fd >= 0, "gopen");
    for (std::uint64_t left = 3 + below(8); left != 0; --left) {
      const std::uint64_t what = below(10);
      if (what == 0) {
        expect(gfsync(this_thread(), fs, fd) == 0, "gfsync");
      } else if (what == 1) {
        std::array<std::uint64_t, 100> words;
        expect(gread(this_thread(), fs, fd, words.data(), sizeof words, 0) >= 0, "gread");
      } else {
        const record r{records.size() + 1, 1 + below(90)};
        records.push_back(r);
        const std::vector<std::uint64_t> words(r.words, r.value);
        const auto bytes = static_cast<std::int64_t>(r.words * word_bytes);
        expect(gwrite(this_thread(), fs, fd, words.data(), r.words * word_bytes, 0) == bytes,
               "gwrite");
      }
    }
    expect(gclose(this_thread(), fs, fd) == 0, "gclose");
  }
  void run(std::uint64_t seed) {
    simulation s(schedule_of(how, seed));
    s.run([this] {
      const auto files = std::make_shared<memory_backend>();
      const mount_options o =
          options_by_chance(std::make_shared<disk>(files, how.disk), how.request_timeout_ns);
      {
        mount fs(o);
        launch(fs, {.blocks = o.cpu_threads, .threads = 1},
               [this](const mount_ref& m) { group(m); });
        fs.unmount();
      }
      if (files->exists("log")) content = files->content("log");
    });
  }
};

// Each record is in the file once and whole, and there is nothing else in it.
class simulated_appends : public simulated_program {};
INSTANTIATE_TEST_SUITE_P(harmless, simulated_appends, ::testing::ValuesIn(harmless), name_of);

TEST_P(simulated_appends, are_each_in_the_file_once) {
  for (work_budget budget(GetParam().schedules); budget.next();) {
    SCOPED_TRACE(budget.replay());
    appending a{GetParam()};
    a.run(budget.seed());
    budget.covers("records", a.records.size());
    for (const std::string& p : a.problems) ADD_FAILURE() << p;
    std::vector<std::uint64_t> words(a.content.size() / word_bytes);
    std::memcpy(words.data(), a.content.data(), words.size() * word_bytes);
    std::vector<bool> seen(a.records.size());
    for (std::size_t at = 0; at < words.size();) {
      ASSERT_TRUE(words[at] != 0 && words[at] <= seen.size())
          << "word " << at << " is " << words[at];
      const appending::record& r = a.records[words[at] - 1];
      ASSERT_FALSE(seen[r.value - 1]) << r.value << " is there twice";
      seen[r.value - 1] = true;
      ASSERT_LE(at + r.words, words.size());
      for (std::uint64_t i = 0; i < r.words; ++i)
        ASSERT_EQ(words[at + i], r.value) << "word " << at + i;
      at += r.words;
    }
    EXPECT_EQ(std::ranges::count(seen, true), static_cast<std::ptrdiff_t>(a.records.size()));
  }
}

}  // namespace
}  // namespace gpufs::testing
