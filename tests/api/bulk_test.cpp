// The bulk path: runs of consecutive frames that one copy fills.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "api/matrix.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

// A single thread of a GPU begins no runs (file/load.cuh).
bool begins_runs(group_kind kind) {
  return kind != group_kind::thread || device() == device_kind::cpu;
}

class bulk_test : public conformance {
 protected:
  bulk_test() {
    options.cache_bytes = 32 * chunk * page_bytes();
    options.rings = 2;
    options.bulk_bytes = chunk * page_bytes();
    options.extent_bytes = std::max<std::uint64_t>(65536, 4 * chunk * page_bytes());
    options.extent_budget_bytes = std::uint64_t{512} << 20;
  }

  void write(const std::string& name, std::uint64_t bytes) { contents[name] = create(name, bytes); }
  // Opens a file and makes the device know its extents: the first load of each has it registered,
  // the second says so.
  std::int32_t open_registered(const std::string& name) {
    const std::string& content = contents.at(name);
    const std::int32_t fd = open(name);
    const std::uint64_t extents =
        (content.size() + options.extent_bytes - 1) / options.extent_bytes;
    for (const std::uint64_t within : {std::uint64_t{0}, page_bytes()}) {
      for (std::uint64_t e = 0; e < extents; ++e)
        calls().expect_read(fd, content,
                            static_cast<std::int64_t>(e * options.extent_bytes + within), 1);
      wait_until([&] { return fs().stats().extents_registered == extents; });
    }
    EXPECT_EQ(fs().stats().extents_registered, extents);
    return fd;
  }
  // Page by page, each by a call of its own, which does not say that it wants more.
  void read_pages(std::int32_t fd, const std::string& name, std::uint64_t first,
                  std::uint64_t count) {
    for (std::uint64_t page = first; page < first + count; ++page)
      calls().expect_read(fd, contents.at(name), static_cast<std::int64_t>(page * page_bytes()),
                          page_bytes());
  }
  // Reads from the front in a mount of its own; gives how many pages came in runs. On a busy
  // machine the copiers refuse runs, and pages come one by one: so as often as it takes to get what
  // is `wanted`, or the most of some times.
  std::uint64_t most_loaded_in_runs(const std::string& name, std::uint64_t pages,
                                    std::uint64_t wanted) {
    std::uint64_t most = 0;
    for (int more = begins_runs(GetParam().kind) ? 8 : 1;
         more != 0 && most < wanted && !HasFailure(); --more) {
      unmount();
      read_pages(open_registered(name), name, 0, pages);
      most = std::max(most, counted(counter::bulk_loads));
    }
    return most;
  }

  // Pages of a run; on a GPU as many as its copy engine is asked for at least, for groups that
  // begin any.
  const std::uint64_t chunk =
      device() == device_kind::cpu || !begins_runs(GetParam().kind)
          ? 8
          : std::max<std::uint64_t>(8, (std::uint64_t{1} << 20) / page_bytes());
  std::map<std::string, std::string> contents;
};
INSTANTIATE_TEST_SUITE_P(conformance, bulk_test,
                         ::testing::ValuesIn(settings({source::posix}, {4096, 65536})),
                         name_of_setting);

#define SKIP_WITHOUT_BULK() \
  if (fs().bulk_path() != "on") GTEST_SKIP() << "no bulk path: " << fs().bulk_path()

TEST_P(bulk_test, one_call_for_much_loads_runs) {
  SKIP_WITHOUT_BULK();
  write("a", 20 * chunk * page_bytes() + 123);
  const std::int32_t fd = open_registered("a");
  const std::uint64_t before = counted(counter::bulk_loads);
  calls().expect_read(fd, contents["a"], 0, contents["a"].size());
  calls().expect_read(fd, contents["a"], 0, contents["a"].size(), 3);
  if (begins_runs(GetParam().kind)) {
    EXPECT_GT(counted(counter::bulk_loads) - before, 10 * chunk);
    EXPECT_EQ(counted(counter::load_errors), 0u);
  } else {
    EXPECT_EQ(counted(counter::bulk_loads), 0u);
  }
  EXPECT_EQ(fs().file_stats().front().page_loads, 20 * chunk + 1);
  EXPECT_EQ(fs().file_stats().front().loaded_bytes, contents["a"].size());
  EXPECT_EQ(counted(counter::bulk_bytes) + counted(counter::direct_bytes) +
                counted(counter::staged_bytes) + counted(counter::open_bytes),
            contents["a"].size());
}

TEST_P(bulk_test, advice_brings_a_range_into_the_cache) {
  SKIP_WITHOUT_BULK();
  write("a", 20 * chunk * page_bytes() + 123);
  const std::int32_t fd = open_registered("a");
  const std::uint64_t before = fs().file_stats().front().page_loads;
  EXPECT_EQ(calls().advise(fd, static_cast<std::int64_t>(3 * chunk * page_bytes() + 5),
                           4 * chunk * page_bytes(), POSIX_FADV_WILLNEED),
            0);
  const std::uint64_t loaded = fs().file_stats().front().page_loads - before;
  if (begins_runs(GetParam().kind)) {
    EXPECT_GE(loaded, 4 * chunk - 8);  // a few pages of each extent were there
    EXPECT_LE(loaded, 4 * chunk + 1);
  } else {
    EXPECT_EQ(loaded, 0u);
  }
  EXPECT_EQ(calls().advise(fd, 0, 0, POSIX_FADV_WILLNEED), 0);
  if (begins_runs(GetParam().kind)) {
    EXPECT_EQ(fs().file_stats().front().page_loads, 20 * chunk + 1);
  }
  calls().expect_read(fd, contents["a"], 0, contents["a"].size());
  EXPECT_EQ(fs().file_stats().front().page_loads, 20 * chunk + 1);
}

// One of them loads each run; the frames that the others took for it are not lost, or the cache
// would evict what it has room for.
TEST_P(bulk_test, groups_that_ask_for_the_same_evict_nothing) {
  SKIP_WITHOUT_BULK();
  constexpr std::uint32_t groups = 16;
  write("a", 20 * chunk * page_bytes());
  device_call set{action::set};
  set.offset = open_registered("a");
  device_call ask{action::advise};
  ask.bytes = chunk * page_bytes();
  ask.flags = POSIX_FADV_WILLNEED;
  script asks{set};
  for (std::uint64_t run = 0; run < 20; ++run) {
    ask.offset = static_cast<std::int64_t>(run * chunk * page_bytes());
    asks.push_back(ask);
  }
  const schedule_hook together{[](const char* name) {
    if (std::string_view(name) == "bulk.claim")
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }};
  (void)stage(fs(), GetParam().kind, groups).run(std::vector<script>(groups, asks), {}, 0);
  calls().expect_read(static_cast<std::int32_t>(set.offset), contents["a"], 0,
                      contents["a"].size());
  EXPECT_EQ(counted(counter::evictions), 0u);
  EXPECT_EQ(fs().file_stats().front().page_loads, 20 * chunk);
}

TEST_P(bulk_test, advice_is_checked_and_may_be_for_nothing) {
  write("a", 3 * page_bytes());
  const std::int32_t fd = open("a");
  EXPECT_EQ(calls().advise(fd, -1, 5, POSIX_FADV_WILLNEED), -EINVAL);
  EXPECT_EQ(calls().advise(fd, 0, 5, 77), -EINVAL);
  EXPECT_EQ(calls().advise(fd, 0, 5, -1), -EINVAL);
  EXPECT_EQ(calls().advise(fd + 1, 0, 5, POSIX_FADV_WILLNEED), -EBADF);
  for (const int advice : {POSIX_FADV_NORMAL, POSIX_FADV_RANDOM, POSIX_FADV_SEQUENTIAL,
                           POSIX_FADV_WILLNEED, POSIX_FADV_DONTNEED, POSIX_FADV_NOREUSE})
    EXPECT_EQ(calls().advise(fd, 0, 0, advice), 0);
  EXPECT_EQ(
      calls().advise(fd, static_cast<std::int64_t>(contents["a"].size()), 5, POSIX_FADV_WILLNEED),
      0);
  EXPECT_EQ(calls().advise(fd, std::int64_t{1} << 62, ~std::uint64_t{0}, POSIX_FADV_WILLNEED), 0);
  calls().expect_read(fd, contents["a"], 0, contents["a"].size());
}

TEST_P(bulk_test, reading_from_front_to_back_loads_runs) {
  SKIP_WITHOUT_BULK();
  write("a", 15 * chunk * page_bytes() + 7);
  const std::uint64_t loaded = most_loaded_in_runs("a", 15 * chunk + 1, 3 * chunk + 1);
  EXPECT_EQ(loaded > 3 * chunk, begins_runs(GetParam().kind)) << loaded;
}

// A reader of pages that were loaded ahead misses none of them, and must still have more loaded:
// not every other chunk.
TEST_P(bulk_test, reading_from_front_to_back_stays_ahead) {
  // With pages of 4 KiB so large that only one page of several is looked at when it is missing.
  options.bulk_bytes = std::max<std::uint64_t>(4 * chunk * page_bytes(), std::uint64_t{1} << 20);
  options.extent_bytes = 8 * options.bulk_bytes;
  options.cache_bytes = 16 * options.bulk_bytes;
  SKIP_WITHOUT_BULK();
  const std::uint64_t pages = options.extent_bytes / page_bytes();
  write("a", pages * page_bytes());
  // The first page of each run is loaded by itself, and what comes before the first run.
  const std::uint64_t wanted = pages - pages / 8 - 8;
  const std::uint64_t loaded = most_loaded_in_runs("a", pages, wanted);
  EXPECT_EQ(loaded >= wanted, begins_runs(GetParam().kind)) << loaded << " of " << pages;
}

TEST_P(bulk_test, reading_here_and_there_loads_no_runs) {
  SKIP_WITHOUT_BULK();
  const std::uint64_t pages = 20 * chunk;
  write("a", pages * page_bytes());
  const std::int32_t fd = open_registered("a");
  // The first pages of an extent, which were read to have it registered, look like a sequential
  // reader, and what follows was loaded ahead: in runs of a quarter of `chunk`.
  const std::uint64_t used = chunk / 2;
  const std::uint64_t before = counted(counter::bulk_loads);
  for (std::uint64_t page = 5; page < pages / 2; page += 4) {
    if (page % (4 * chunk) >= used) read_pages(fd, "a", page, 1);
  }
  for (std::uint64_t page = pages - 1; page > pages / 2; --page) {
    if (page % (4 * chunk) >= used) read_pages(fd, "a", page, 1);
  }
  EXPECT_EQ(counted(counter::bulk_loads), before);
}

TEST_P(bulk_test, a_run_ends_where_a_page_is_there_already) {
  SKIP_WITHOUT_BULK();
  const std::uint64_t pages = 8 * chunk;
  write("a", pages * page_bytes());
  const std::int32_t fd = open_registered("a");
  read_pages(fd, "a", chunk + chunk / 2 + 1, 1);
  read_pages(fd, "a", 4 * chunk - 2, 2);
  calls().expect_read(fd, contents["a"], 0, contents["a"].size());
  EXPECT_EQ(fs().file_stats().front().page_loads, pages) << "none twice";
}

TEST_P(bulk_test, runs_evict_and_are_evicted) {
  SKIP_WITHOUT_BULK();
  const std::uint64_t piece = 5 * chunk * page_bytes();
  write("a", 18 * piece + 1);
  const std::int32_t fd = open_registered("a");
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t at = 0; at < contents["a"].size(); at += piece)
      calls().expect_read(fd, contents["a"], static_cast<std::int64_t>(at), piece);
  }
  EXPECT_GT(counted(counter::evictions), 150 * chunk);
  EXPECT_EQ(counted(counter::load_errors), 0u);
  EXPECT_EQ(counted(counter::no_frames), 0u);
}

TEST_P(bulk_test, many_groups_read_one_file_at_once) {
  SKIP_WITHOUT_BULK();
  write("a", 40 * chunk * page_bytes() + 99);
  const std::int32_t fd = open_registered("a");
  const random_delays delays(7);
  constexpr std::uint32_t groups = 16;
  std::vector<script> scripts;
  std::uint64_t output_bytes = 0;
  const std::uint64_t piece = 5 * page_bytes() / 2;
  for (std::uint32_t g = 0; g < groups; ++g) {
    script s;
    device_call set{action::set};
    set.offset = fd;
    s.push_back(set);
    for (std::uint64_t k = g; k * piece < contents["a"].size(); k += groups / 2) {
      device_call read{action::read};
      read.offset = static_cast<std::int64_t>(k * piece);
      read.bytes = piece;
      read.memory = output_bytes;
      output_bytes += (piece + 15) / 16 * 16;
      s.push_back(read);
    }
    scripts.push_back(std::move(s));
  }
  const performance p = stage(fs(), GetParam().kind, groups).run(scripts, {}, output_bytes);
  for (std::uint32_t g = 0; g < groups; ++g) {
    for (std::size_t i = 1; i < scripts[g].size(); ++i) {
      const device_call& c = scripts[g][i];
      const std::string expected =
          contents["a"].substr(static_cast<std::size_t>(c.offset), c.bytes);
      ASSERT_EQ(p.outcomes[g][i].result, static_cast<std::int64_t>(expected.size()));
      expect_same_bytes(p.output.substr(c.memory, expected.size()), expected,
                        "group " + std::to_string(g));
    }
  }
  EXPECT_EQ(
      counted(counter::load_errors) + counted(counter::rpc_failures) + counted(counter::no_frames),
      0u);
  EXPECT_EQ(counted(counter::bulk_loads) != 0, begins_runs(GetParam().kind));
}

// On the CPU device the copy itself comes up short; a GPU has the pages pinned, and copies what was
// there.
TEST_P(bulk_test, a_file_truncated_below_a_run_gives_a_short_read) {
  SKIP_WITHOUT_BULK();
  write("a", 7 * chunk * page_bytes());
  const std::int32_t fd = open_registered("a");
  const std::uint64_t left = (2 * chunk + 3) * page_bytes();
  files->truncate("a", left);
  const read_answer answer = calls().read(fd, 0, contents["a"].size());
  if (device() == device_kind::cuda) {
    EXPECT_GE(answer.result, static_cast<std::int64_t>(left));
    return;
  }
  EXPECT_EQ(answer.result, static_cast<std::int64_t>(left));
  expect_same_bytes(answer.bytes, contents["a"].substr(0, answer.bytes.size()), "what is left");
  EXPECT_EQ(counted(counter::load_errors), 0u);
}

TEST_P(bulk_test, runs_are_read_where_nothing_is_registered) {
  options.extent_budget_bytes = 0;
  write("a", 20 * chunk * page_bytes() + 77);
  const std::int32_t fd = open("a");
  calls().expect_read(fd, contents["a"], 0, contents["a"].size());
  EXPECT_EQ(counted(counter::bulk_loads) > 10 * chunk, begins_runs(GetParam().kind));
  EXPECT_EQ(fs().file_stats().front().direct_loads, 0u);
}

TEST_P(bulk_test, faults_of_the_host_are_for_the_pages_that_they_hit) {
  options.extent_budget_bytes = 0;
  write("a", 12 * chunk * page_bytes());
  const std::int32_t fd = open("a");
  fault rule;
  rule.on = operation::read;
  rule.error_number = EIO;
  rule.probability = 0.3;
  io->add(rule);
  for (std::uint64_t at = 0; at < contents["a"].size(); at += page_bytes()) {
    const read_answer answer = calls().read(fd, static_cast<std::int64_t>(at), page_bytes());
    if (answer.result == -EIO) continue;
    expect_same_bytes(answer.bytes, contents["a"].substr(at, page_bytes()),
                      "page at " + std::to_string(at));
  }
  io->clear();
  calls().expect_read(fd, contents["a"], 0, contents["a"].size());
}

TEST_P(bulk_test, can_be_turned_off) {
  options.bulk_bytes = 0;
  EXPECT_NE(fs().bulk_path(), "on");
  write("a", 5 * chunk * page_bytes());
  const std::int32_t fd = open("a");
  calls().expect_read(fd, contents["a"], 0, contents["a"].size());
  EXPECT_EQ(counted(counter::bulk_loads), 0u);
}

TEST(bulk_options, that_cannot_be_are_refused) {
  mount_options options = base_options();
  options.bulk_bytes = (16u << 20) + 1;
  EXPECT_THROW(mount{options}, error);
  options.bulk_bytes = std::uint64_t{1} << 20;
  options.cache_bytes = 32 * 4096;
  EXPECT_NE(mount(options).bulk_path(), "on");
}

}  // namespace
}  // namespace gpufs::testing
