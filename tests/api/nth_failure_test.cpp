// The nth call of the system, allocation or start of a thread fails, once or for ever, whichever it
// is: nothing crashes or hangs, nothing is lost without an error, nothing is left behind, and after
// a single failure the mount still works.
#include <dirent.h>
#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "api/file_world.hpp"
#include "api/session.hpp"
#include "gpufs/machine.hpp"
#include "support/eventually.hpp"
#include "support/failing_calls.hpp"
#include "support/seeds.hpp"
#include "support/temporary.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing {
namespace {

// ---- one mount and its files

struct setup {
  const char* name;
  unsigned workers;
  std::uint64_t budget;
  std::uint64_t bulk_bytes;
  bool has_root;
};
constexpr setup setups[] = {
    {"one worker, page by page", 1, 0, 0, false},  // so many reads that the backend maps the file
    {"openers and extents", 4, 16 * extent_bytes, extent_bytes, false},
    {"a root and extents", 2, ~std::uint64_t{0}, extent_bytes, true},
};

mount_options options_of(const setup& s, const std::string& root) {
  mount_options o = base_options();
  o.workers = s.workers;
  o.cache_bytes = 64 * o.page_bytes;
  o.extent_budget_bytes = s.budget;
  o.extent_bytes = extent_bytes;
  o.bulk_bytes = s.bulk_bytes;
  o.cpu_threads = 2;
  o.open_files = 64;
  o.request_timeout = std::chrono::seconds(20);
  if (s.has_root) o.root = root;
  return o;
}

std::size_t entries_of(const char* folder) {
  DIR* const open = opendir(folder);
  std::size_t count = 0;
  while (open != nullptr && readdir(open) != nullptr) ++count;
  if (open != nullptr) (void)closedir(open);
  return count;
}

// What a process has that a mount must give back.
struct belongings {
  std::size_t descriptors = entries_of("/proc/self/fd");
  std::size_t threads = entries_of("/proc/self/task");
};

bool is_mapped(const std::string& folder) {
  std::ifstream maps("/proc/self/maps");
  std::stringstream all;
  all << maps.rdbuf();
  return all.str().find(folder) != std::string::npos;
}

// A program that uses a mount, and checks all that it was promised. Calls of it are the test's own;
// only what it asks of the library may fail.
class program {
 public:
  explicit program(const setup& s) : setup_(s) {
    folder_.write("large", large_);
    folder_.write("small", small_);
  }

  // The whole of it, under failures. `then`: called at the end, before the mount is unmounted.
  template <class Then>
  void run(const Then& then) {
    try {
      fs_ = std::make_unique<mount>(options_of(setup_, folder_ / ""));
      calls_ = std::make_unique<session>(*fs_, group_kind::thread);
    } catch (const error& e) {
      report("mount", -e.code().value());
    } catch (const std::bad_alloc&) {
      report("mount", -ENOMEM);
    }
    if (calls_ != nullptr) {
      read_files();
      write_files();
      leave_open();
      use_host_calls();
    }
    {
      const own_calls own;
      then();
    }
    end();
  }

  // What a program does after the failure is over, and all of which must work.
  void run_again() {
    ASSERT_NE(fs_, nullptr);
    session calls(*fs_, group_kind::thread);
    const std::int32_t read = calls.open(path("large"));
    ASSERT_GE(read, 0);
    for (const std::uint64_t at : {std::uint64_t{0}, extent_bytes + 5, 3 * extent_bytes})
      calls.expect_read(read, large_, static_cast<std::int64_t>(at), 10000);
    EXPECT_EQ(calls.close(read), 0);
    const std::string bytes = self_checking(9, 1, 0, 30000);
    const std::int32_t written = calls.open(path("again"), O_RDWR | O_CREAT);
    ASSERT_GE(written, 0);
    EXPECT_EQ(calls.write(written, bytes, 0), 30000);
    EXPECT_EQ(calls.sync(written), 0);
    expect_same_bytes(content("again"), bytes, "what was written afterwards");
    EXPECT_EQ(calls.truncate(written, 100), 0);
    EXPECT_EQ(calls.close(written), 0);
    expect_same_bytes(content("again"), bytes.substr(0, 100),
                      "what was written and cut afterwards");
    EXPECT_EQ(calls.unlink(path("again")), 0);
  }

  bool has_mounted() const { return fs_ != nullptr; }
  // Whether the program was told of an error.
  bool is_told() const { return !reported_.empty(); }
  const std::string& told() const { return reported_; }
  const temporary_folder& folder() const { return folder_; }

  // Of what is left when all is over, `is_failing` or not.
  void check_files() const {
    expect_same_bytes(content("large"), large_, "what nothing wrote");
    expect_same_bytes(content("small"), small_, "what nothing wrote");
    for (const char* name : {"written", "renamed", "open"}) check_bytes(name);
    if (is_told()) return;
    // Nobody was told of an error: so all that was asked for has happened.
    EXPECT_FALSE(exists("written"));
    EXPECT_FALSE(exists("removed"));
    expect_same_bytes(content("renamed"), written_, "what was written and closed");
    expect_same_bytes(content("open"), open_, "what was written and not closed");
  }

 private:
  std::string path(const char* name) const {
    return setup_.has_root ? std::string(name) : folder_ / name;
  }
  std::string content(const std::string& name) const {
    const own_calls own;
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool exists(const std::string& name) const { return std::ifstream(folder_ / name).good(); }

  void report(const char* call, std::int64_t result) {
    const own_calls own;
    reported_ += std::string(call) + " " + std::to_string(result) + "; ";
  }
  // What a call says, or -errno of what it throws: of the launch, or of memory for the call.
  template <class Call>
  std::int64_t result_of(const char* name, const Call& call) {
    std::int64_t result = 0;
    try {
      result = call();
    } catch (const error& e) {
      result = -e.code().value();
    } catch (const std::bad_alloc&) {
      result = -ENOMEM;
    }
    if (result < 0) report(name, result);
    return result;
  }
  // As a program reads: what comes short is asked for again, and says then why.
  void read(std::int32_t fd, const std::string& all, std::uint64_t at, std::uint64_t bytes) {
    const std::uint64_t end = std::min<std::uint64_t>(at + bytes, all.size());
    while (at < end) {
      read_answer answer;
      const std::int64_t result = result_of("read", [&] {
        answer = calls_->read(fd, static_cast<std::int64_t>(at), end - at);
        return answer.result;
      });
      if (result < 0) return;
      const own_calls own;
      expect_same_bytes(answer.bytes, all.substr(at, answer.bytes.size()), "a read");
      ASSERT_NE(result, 0) << "as if the file ended at " << at;
      at += static_cast<std::uint64_t>(result);
    }
  }

  void read_files() {
    const auto small =
        static_cast<std::int32_t>(result_of("open", [&] { return calls_->open(path("small")); }));
    if (small >= 0) read(small, small_, 0, 100);
    const auto fd =
        static_cast<std::int32_t>(result_of("open", [&] { return calls_->open(path("large")); }));
    if (fd >= 0) {
      (void)result_of("advise",
                      [&] { return calls_->advise(fd, 0, large_.size(), POSIX_FADV_WILLNEED); });
      // More than the cache holds.
      for (std::uint64_t at = 0; at + 20'000 < large_.size(); at += 20'000)
        read(fd, large_, at, 20'000);
      for (std::uint64_t at = 0; at + 20'000 < large_.size(); at += 40'000)
        read(fd, large_, at, 3000);
      read(fd, large_, large_.size() - 10, 100);
      std::int64_t pointer = 0;
      const std::int64_t mapped = result_of("map", [&] {
        const map_answer answer = calls_->map(fd, extent_bytes, 1000);
        pointer = answer.pointer;
        return answer.result;
      });
      if (mapped > 0) {
        (void)result_of("peek", [&] {
          const auto bytes = static_cast<std::uint64_t>(mapped);
          const std::string seen = calls_->peek(pointer, bytes);
          const own_calls own;
          expect_same_bytes(seen, large_.substr(extent_bytes, bytes), "a mapping");
          return 0;
        });
        (void)result_of("unmap", [&] { return calls_->unmap(pointer); });
      }
      (void)result_of("close", [&] { return calls_->close(fd); });
    }
    if (small >= 0) (void)result_of("close", [&] { return calls_->close(small); });
  }

  // A file that is created, written, synced, cut, written again, closed and renamed; and one that
  // goes.
  void write_files() {
    const auto fd = static_cast<std::int32_t>(result_of(
        "open to write", [&] { return calls_->open(path("written"), O_RDWR | O_CREAT); }));
    if (fd < 0) return;
    bool good = result_of("write", [&] { return calls_->write(fd, written_, 0); }) >= 0;
    const auto sync = [&](const std::string& expected) {
      if (result_of("sync", [&] { return calls_->sync(fd); }) < 0 || !good) return;
      const own_calls own;
      expect_same_bytes(content("written"), expected, "what gfsync said 0 of");
      EXPECT_EQ(failed_syncs(), 0u) << "gfsync said 0, now or after a sync that failed";
    };
    sync(written_);
    good = result_of("truncate", [&] { return calls_->truncate(fd, 50'000); }) >= 0 && good;
    sync(cut_);
    good = result_of("write", [&] { return calls_->write(fd, rest_, 40'000); }) >= 0 && good;
    if (good) read(fd, written_, 39'000, 3000);
    sync(written_);
    (void)result_of("close", [&] { return calls_->close(fd); });
    (void)result_of("rename", [&] { return calls_->rename(path("written"), path("renamed")); });
    const auto other = static_cast<std::int32_t>(result_of(
        "open to write", [&] { return calls_->open(path("removed"), O_WRONLY | O_CREAT); }));
    if (other < 0) return;
    (void)result_of("write", [&] { return calls_->write(other, "some", 0); });
    (void)result_of("close", [&] { return calls_->close(other); });
    (void)result_of("unlink", [&] { return calls_->unlink(path("removed")); });
  }

  // What unmounting has to write, and to close.
  void leave_open() {
    const auto fd = static_cast<std::int32_t>(
        result_of("open to write", [&] { return calls_->open(path("open"), O_RDWR | O_CREAT); }));
    is_left_open_ = fd >= 0 && result_of("write", [&] { return calls_->write(fd, open_, 0); }) >= 0;
  }

  void use_host_calls() {
    (void)result_of("register_file",
                    [&] { return static_cast<std::int64_t>(fs_->register_file(path("large"))); });
    (void)result_of("sync_folder", [&] {
      fs_->sync_folder(path("."));
      return 0;
    });
    (void)result_of("send", [&] {
      const auto got = std::make_shared<std::string>();
      const std::int32_t sink = fs_->open_sink([got](const char* bytes, std::size_t count) {
        got->assign(bytes, count);
        return 0;
      });
      const std::int64_t sent = calls_->send(sink, "sent");
      EXPECT_TRUE(fs_->close_sink(sink));
      if (sent >= 0) {
        EXPECT_EQ(*got, "sent");
      }
      return sent;
    });
    (void)result_of("stats", [&] {
      (void)fs_->stats();
      (void)fs_->file_stats();
      return 0;
    });
  }

  void end() {
    calls_.reset();
    if (fs_ == nullptr) return;
    const std::uint64_t failed_before = failed_syncs();
    const std::int64_t unmounted = result_of("unmount", [&] {
      fs_->unmount();
      return 0;
    });
    (void)result_of("file_errors", [&] {
      const file_error_list all = fs_->file_errors();
      return all.errors.empty() && all.dropped == 0 ? 0 : -EIO;
    });
    fs_.reset();
    const own_calls own;
    if (unmounted == 0 && is_left_open_) {
      expect_same_bytes(content("open"), open_, "what unmount said nothing of");
      EXPECT_EQ(failed_syncs(), failed_before) << "unmount said nothing of a sync that failed";
    }
  }

  static std::uint64_t failed_syncs() { return failing_calls::strikes_on("fdatasync"); }

  // Every byte is one that was written there, or 0 of a hole.
  void check_bytes(const char* name) const {
    const std::string& all = std::string(name) == "open" ? open_ : written_;
    const std::string found = content(name);
    EXPECT_LE(found.size(), all.size()) << name;
    for (std::size_t i = 0; i < std::min(found.size(), all.size()); ++i) {
      if (found[i] == all[i] || found[i] == 0) continue;
      ADD_FAILURE() << name << ": a byte at " << i << " that nobody wrote";
      return;
    }
  }

  const setup& setup_;
  const temporary_folder folder_;
  const std::string large_ = self_checking(1, 0, 0, 4 * extent_bytes + 40'000),
                    small_ = self_checking(2, 0, 0, 100),
                    written_ = self_checking(3, 0, 0, 100'000), cut_ = written_.substr(0, 50'000),
                    rest_ = written_.substr(40'000), open_ = self_checking(4, 0, 0, 20'000);
  std::unique_ptr<mount> fs_;
  std::unique_ptr<session> calls_;
  std::string reported_;
  bool is_left_open_ = false;  // there is a file that unmounting has to write
};

// ---- which call fails

constexpr std::uint64_t timed = ~std::uint64_t{0};

// Calls of a kind that the program makes, at most, for each of the setups; some more than were
// seen. 0 for none, and `timed` where the number depends on time.
struct known_calls {
  std::string_view kind;
  std::array<std::uint64_t, std::size(setups)> most;
  std::array<std::uint64_t, std::size(setups)> more_without_cachestat{};  // before Linux 6.5

  constexpr std::uint64_t most_of(std::size_t setup, bool has_cachestat) const {
    return most[setup] == timed || has_cachestat ? most[setup]
                                                 : most[setup] + more_without_cachestat[setup];
  }
};
constexpr known_calls all_known_calls[] = {
    {operator_new, {1000, 1000, 1000}},
    {thread_start, {13, 25, 14}},
    {"calloc", {8, 8, 8}},
    {"open", {2, 2, 3}},
    {"openat", {25, 33, 13}},
    {"openat2", {0, 0, 18}},
    {"close", {24, 29, 26}, {0, 2, 2}},
    {"close_range", {2, 12, 2}},
    {"fcntl", {13, 13, 13}, {0, 2, 2}},
    {"dup", {6, 6, 6}},
    {"statx", {12, 26, 24}},
    {"fstat", {2, 6, 0}},
    {"fstatfs", {12, 12, 12}},
    {"pread", {82, 12, 12}, {0, 28, 28}},
    {"pwrite", {15, 15, 15}},
    {"ftruncate", {1, 1, 1}},
    {"fdatasync", {4, 4, 4}},
    {"fsync", {1, 1, 1}},
    {"unlinkat", {1, 1, 1}},
    {"renameat", {1, 1, 1}},
    {"mmap", {4, 18, 18}},
    {"munmap", {4, 18, 18}},
    {"madvise", {4, 14, 14}},
    {"mincore", {3, 0, 0}, {0, 14, 14}},
    {"cachestat", {0, 12, 12}},
    {"process_vm_readv", {timed, timed, timed}},
    {"memfd_create", {0, 1, 0}},
    {"sysinfo", {0, 0, 1}},
    {"getrlimit", {1, 1, 1}},
    {"poll", {1, 1, 1}},
    {"sigaction", {timed, timed, timed}},
    {"prctl", {4, 16, 6}},
    {"futex", {timed, timed, timed}},
};

std::uint64_t calls_to_fail(const known_calls& known, std::size_t setup) {
  constexpr std::uint64_t of_timed = 24;
  static const bool has_cachestat = examine_host().cachestat == 0;
  return known.most[setup] == timed ? of_timed : known.most_of(setup, has_cachestat);
}
std::uint64_t cases_of(const known_calls& known) {
  std::uint64_t calls = 0;
  for (std::size_t s = 0; s < std::size(setups); ++s) calls += calls_to_fail(known, s);
  return 2 * calls;
}

struct failing_case {
  const setup* where;
  failing_kind kind;
  std::uint64_t nth;
  bool for_ever;
  int error;
  bool recovers;  // what fails for ever is over before the mount ends
};

std::string text_of(const failing_case& f) {
  return std::string(f.where->name) + ": " + std::string(f.kind.name) + " number " +
         std::to_string(f.nth) + (f.for_ever ? " and all after it" : "") +
         (f.recovers ? " until it is over" : "") +
         (f.error == done_in_part ? " done in part" : ", error " + std::to_string(f.error));
}

// `number`: less than cases_of(known).
failing_case case_of_kind(const known_calls& known, std::uint64_t number, std::uint64_t seed) {
  const failing_kind& kind = *std::ranges::find(failing_kinds(), known.kind, &failing_kind::name);
  failing_case c{&setups[0], kind, 1, number % 2 != 0, kind.errors[seed % kind.errors.size()],
                 false};
  c.recovers = c.for_ever && seed % 4 < 2;
  number /= 2;
  for (std::size_t s = 0; s < std::size(setups); number -= calls_to_fail(known, s), ++s) {
    if (number >= calls_to_fail(known, s)) continue;
    c.where = &setups[s];
    c.nth = number + 1;
    break;
  }
  return c;
}

// Odd seeds take the kinds in turn, so that few of them meet all kinds; even ones take all cases,
// each once in twice as many seeds as there are cases.
failing_case case_of(std::uint64_t seed) {
  constexpr std::uint64_t stride = 7919;  // a prime that divides no number of cases
  const std::uint64_t step = (seed - 1) / 2;
  if (seed % 2 != 0) {
    const known_calls& known = all_known_calls[step % std::size(all_known_calls)];
    return case_of_kind(known, step / std::size(all_known_calls) * stride % cases_of(known),
                        seed / 2);
  }
  std::uint64_t all = 0;
  for (const known_calls& known : all_known_calls) all += cases_of(known);
  std::uint64_t number = step * stride % all;
  const known_calls* known = all_known_calls;
  for (; number >= cases_of(*known); ++known) number -= cases_of(*known);
  return case_of_kind(*known, number, seed / 2);
}

class nth_failure : public ::testing::Test {
 protected:
  // Nothing that a mount had is there any more.
  static void expect_nothing_left(const belongings& before, const temporary_folder& folder) {
    EXPECT_TRUE(eventually([&] { return belongings().threads <= before.threads; }))
        << "threads are left";
    EXPECT_LE(belongings().descriptors, before.descriptors) << "descriptors are left";
    EXPECT_FALSE(is_mapped(folder / "")) << "a file's mapping is left";
  }

  static bool run(const failing_case& c) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, text_of(c));
    program p(*c.where);
    const belongings before;
    bool has_struck = false;
    {
      failing_calls failing(c.kind.name, c.nth, c.for_ever, c.error);
      p.run([&] {
        if (c.recovers) failing.stop();
        if (p.has_mounted() && failing.has_struck() && (c.recovers || !c.for_ever)) p.run_again();
      });
      has_struck = failing.has_struck();
    }
    p.check_files();
    expect_nothing_left(before, p.folder());
    if (!has_struck) {
      EXPECT_FALSE(p.is_told()) << "without a failure: " << p.told();
    }
    if (HasFailure()) ADD_FAILURE() << "what was reported: " << p.told();
    return has_struck;
  }
};

// Calls of each kind, in the order of the table, that the program makes when nothing fails but,
// perhaps, cachestat: then they are those of an older system.
using call_counts = std::array<std::uint64_t, std::size(all_known_calls)>;
call_counts calls_without_failure(const setup& where, bool has_cachestat) {
  program p(where);
  const failing_calls counting(has_cachestat ? std::string_view(operator_new) : "cachestat",
                               has_cachestat ? 0 : 1, !has_cachestat,
                               has_cachestat ? ENOMEM : ENOSYS);
  p.run([] {});
  EXPECT_EQ(p.told(), "") << where.name;
  p.check_files();
  call_counts counts;
  for (std::size_t k = 0; k < counts.size(); ++k)
    counts[k] = failing_calls::count_of(all_known_calls[k].kind);
  return counts;
}

// On a busy machine the program asks more often, as extents come later: page by page for what they
// would have had. So the fewest of some runs count.
void expect_table_knows_all_calls(std::size_t i, bool has_cachestat) {
  const auto is_in_table = [&](const call_counts& counts) {
    for (std::size_t k = 0; k < counts.size(); ++k) {
      if (counts[k] > all_known_calls[k].most_of(i, has_cachestat)) return false;
    }
    return true;
  };
  call_counts fewest = calls_without_failure(setups[i], has_cachestat);
  for (int more = 0; more < 10 && !is_in_table(fewest) && !::testing::Test::HasFailure(); ++more) {
    const call_counts again = calls_without_failure(setups[i], has_cachestat);
    for (std::size_t k = 0; k < fewest.size(); ++k) fewest[k] = std::min(fewest[k], again[k]);
  }
  for (std::size_t k = 0; k < fewest.size(); ++k) {
    const known_calls& known = all_known_calls[k];
    const std::uint64_t most = known.most_of(i, has_cachestat);
    const ::testing::ScopedTrace trace(
        __FILE__, __LINE__, std::string(setups[i].name) + ": " + std::string(known.kind));
    EXPECT_LE(fewest[k], most) << "more than the table has: not each of them fails in some seed";
    if (most != timed) {
      EXPECT_EQ(fewest[k] != 0, most != 0) << "none of them can fail";
    }
  }
}

TEST_F(nth_failure, is_of_each_call_that_the_program_makes) {
  ASSERT_EQ(failing_kinds().size(), std::size(all_known_calls));
  const bool has_cachestat = examine_host().cachestat == 0;
  for (std::size_t i = 0; i < std::size(setups); ++i) {
    if (has_cachestat) expect_table_knows_all_calls(i, true);
    expect_table_knows_all_calls(i, false);
  }
}

TEST_F(nth_failure, is_reported_and_leaves_nothing_behind) {
  std::uint64_t struck = 0;
  work_budget budget(is_sanitized ? 25 : 75);
  while (budget.next()) {
    SCOPED_TRACE(budget.replay());
    const bool has_struck = run(case_of(budget.seed()));
    budget.covers("failures", has_struck ? 1 : 0);
    struck += has_struck ? 1 : 0;
  }
  EXPECT_TRUE(struck != 0 || budget.begun() < 10);
}

}  // namespace
}  // namespace gpufs::testing
