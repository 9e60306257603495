// Several users at once: many groups on one page, several launches on one mount, several mounts on
// the same files; and that the counters add up afterwards.
#include <errno.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "api/matrix.hpp"
#include "support/schedule.hpp"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#endif

namespace gpufs::testing {
namespace {

// A stream of the mount's device, so that launches run at the same time. The CPU device needs none.
class launch_stream {
 public:
  explicit launch_stream([[maybe_unused]] mount& m) {
#if defined(__CUDACC__)
    const device_guard guard(m);
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    stream_ = stream;
#endif
  }
  ~launch_stream() {
#if defined(__CUDACC__)
    EXPECT_EQ(cudaStreamDestroy(static_cast<cudaStream_t>(stream_)), cudaSuccess);
#endif
  }
  launch_stream(const launch_stream&) = delete;
  launch_stream& operator=(const launch_stream&) = delete;
  void* get() const { return stream_; }

 private:
  void* stream_ = nullptr;
};

// Each group opens the files in an order of its own, reads parts of them, and closes them.
struct planned_reads {
  std::vector<script> scripts;
  std::string input;
  std::uint64_t output_bytes = 0;
};

struct known_file {
  std::string path;
  std::string content;
};

constexpr std::uint64_t part_bytes = 3000;

planned_reads make_reading(const std::vector<known_file>& files, std::uint32_t groups,
                           std::uint64_t seed) {
  planned_reads r;
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> paths;
  for (const known_file& f : files) paths.push_back(add_string(r.input, f.path));
  for (std::uint32_t g = 0; g < groups; ++g) {
    script s;
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::size_t file = (g + i) % files.size();
      device_call open{action::open};
      open.memory = paths[file];
      s.push_back(open);
      for (int k = 0; k < 4; ++k) {
        device_call read{action::read};
        read.offset = static_cast<std::int64_t>(random() % files[file].content.size());
        read.bytes = part_bytes;
        read.memory = r.output_bytes;
        r.output_bytes += part_bytes;
        s.push_back(read);
      }
      s.push_back({action::close});
    }
    r.scripts.push_back(std::move(s));
  }
  return r;
}

// Bytes that the calls have read in all, and pages that they have touched.
struct totals {
  std::uint64_t bytes = 0;
  std::uint64_t pages = 0;
};

totals check_reading(const std::vector<known_file>& files, const planned_reads& r,
                     const performance& p, std::uint64_t page_bytes) {
  totals t;
  for (std::size_t g = 0; g < r.scripts.size(); ++g) {
    const std::string* content = nullptr;
    std::size_t opened = 0;
    for (std::size_t i = 0; i < r.scripts[g].size(); ++i) {
      const device_call& c = r.scripts[g][i];
      const std::int64_t result = p.outcomes[g][i].result;
      if (c.what == action::open) {
        EXPECT_GE(result, 0);
        content = &files[(g + opened++) % files.size()].content;
      } else if (c.what == action::close) {
        EXPECT_EQ(result, 0);
      } else {
        const std::string expected = content->substr(static_cast<std::uint64_t>(c.offset), c.bytes);
        EXPECT_EQ(result, static_cast<std::int64_t>(expected.size()));
        expect_same_bytes(p.output.substr(c.memory, expected.size()), expected,
                          "group " + std::to_string(g));
        t.bytes += expected.size();
        t.pages += (static_cast<std::uint64_t>(c.offset) + expected.size() - 1) / page_bytes -
                   static_cast<std::uint64_t>(c.offset) / page_bytes + 1;
      }
    }
  }
  return t;
}

// On the CPU device: everybody who misses a page or a file waits a little before taking a place for
// it, so that all have missed.
class slow_misses {
 private:
  const schedule_hook hook_{[](const char* name) {
    if (std::string_view(name) == "index.insert")
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }};
};

class concurrency_test : public ::testing::TestWithParam<group_kind> {
 protected:
  concurrency_test()
      : world(file_world::make(source::posix)), io(std::make_shared<fault_backend>(world->io())) {
    options = base_options();
    options.page_bytes = 1024;
    options.cache_bytes = 24 * 1024;
    options.backend = io;
    for (unsigned i = 0; i < 6; ++i) {
      const std::string name = std::to_string(i);
      files.push_back({world->path(name), self_checking(i + 1, 0, 0, 5000 + i * 7001)});
      world->write(name, files.back().content);
    }
  }

  std::unique_ptr<file_world> world;
  std::shared_ptr<fault_backend> io;
  mount_options options;
  std::vector<known_file> files;
};
INSTANTIATE_TEST_SUITE_P(each_kind, concurrency_test, ::testing::ValuesIn(all_kinds), name_of_kind);

TEST_P(concurrency_test, counters_add_up) {
  constexpr std::uint32_t groups = 24;
  std::uint64_t pages = 0;
  std::uint64_t bytes = 0;
  mount fs(options);
  for (std::uint64_t round = 0; round < 5; ++round) {
    const planned_reads r = make_reading(files, groups, round);
    const totals t = check_reading(
        files, r, stage(fs, GetParam(), groups).run(r.scripts, r.input, r.output_bytes),
        options.page_bytes);
    pages += t.pages;
    bytes += t.bytes;
  }
  // Closes are not waited for.
  wait_until([&] { return fs.stats().requests_served == fs.stats()[counter::rpcs]; });
  const statistics s = fs.stats();
  EXPECT_EQ(s.requests_served, s[counter::rpcs]);
  EXPECT_EQ(s[counter::read_bytes], bytes);
  EXPECT_EQ(s[counter::hits] + s[counter::minor_faults] + s[counter::staged_loads] +
                s[counter::direct_loads],
            pages);
  EXPECT_EQ(s[counter::load_errors] + s[counter::no_frames] + s[counter::rpc_failures], 0u);
  std::uint64_t measured = 0;
  for (const std::uint64_t n : s.fault_latency) measured += n;
  const std::uint64_t loads =
      s[counter::staged_loads] + s[counter::direct_loads] + s[counter::open_loads];
  EXPECT_EQ(measured, loads);
  EXPECT_LE(s[counter::evictions], loads);
  EXPECT_GE(s[counter::evictions] + fs.options().cache_bytes / options.page_bytes, loads);
  EXPECT_LE(s[counter::reclaims], s[counter::evictions]);
  EXPECT_EQ(s[counter::opens] + s[counter::reopens], 5u * groups * files.size());
  EXPECT_EQ(s[counter::closes], s[counter::opens]);
  EXPECT_EQ(s[counter::rpcs], s[counter::opens] + s[counter::closes] + s[counter::staged_loads])
      << "a page is one piece here";
  EXPECT_EQ(s.host_open_files, 0u);
}

TEST_P(concurrency_test, groups_that_meet_at_a_page_load_it_once) {
  options.cache_bytes = 64 * 1024;
  constexpr std::uint32_t groups = 16;
  mount fs(options);
  fault slow;
  slow.delay =
      std::chrono::milliseconds(20);  // else groups that start late on few cores do not meet
  io->add(slow);
  session s(fs, GetParam());
  const std::int32_t fd = s.open(files.back().path);
  ASSERT_GE(fd, 0);
  device_call set{action::set};
  set.offset = fd;
  device_call read{action::read};
  read.bytes = 20 * 1024;
  std::vector<script> scripts;
  for (std::uint64_t g = 0; g < groups; ++g) {
    read.memory = g * read.bytes;
    scripts.push_back({set, read});
  }
  const slow_misses together;
  const performance p = stage(fs, GetParam(), groups).run(scripts, {}, groups * read.bytes);
  for (std::uint64_t g = 0; g < groups; ++g) {
    expect_same_bytes(p.output.substr(g * read.bytes, read.bytes),
                      files.back().content.substr(0, read.bytes), "group " + std::to_string(g));
  }
  EXPECT_EQ(fs.stats()[counter::staged_loads], 20u);
  EXPECT_GT(fs.stats()[counter::minor_faults], 0u);
}

TEST_P(concurrency_test, groups_that_open_one_file_open_it_once) {
  constexpr std::uint32_t groups = 16;
  mount fs(options);
  fault slow;
  slow.on = operation::open;
  slow.delay = std::chrono::milliseconds(20);
  io->add(slow);
  const slow_misses together;
  std::string input;
  device_call open{action::open};
  open.memory = add_string(input, files[0].path);
  const performance p =
      stage(fs, GetParam(), groups).run(std::vector<script>(groups, {open}), input, 0);
  for (const auto& outcomes : p.outcomes) EXPECT_EQ(outcomes[0].result, p.outcomes[0][0].result);
  EXPECT_GE(p.outcomes[0][0].result, 0);
  EXPECT_EQ(fs.stats()[counter::opens], 1u);
  EXPECT_EQ(fs.stats()[counter::reopens], groups - 1);
  EXPECT_EQ(io->calls(operation::open), 1u);
}

TEST_P(concurrency_test, as_many_closes_succeed_as_opens) {
  constexpr std::uint32_t groups = 16;
  constexpr int rounds = 25;
  mount fs(options);
  const random_delays delays(7);
  std::string input;
  const std::uint64_t paths[] = {add_string(input, files[0].path),
                                 add_string(input, files[1].path)};
  std::vector<script> scripts(groups);
  for (std::uint32_t g = 0; g < groups; ++g) {
    for (int i = 0; i < rounds; ++i) {
      device_call open{action::open};
      open.memory = paths[(g + static_cast<unsigned>(i)) % 2];
      // The second close may take the hold of another group, whose own close then finds nothing.
      scripts[g].insert(scripts[g].end(), {open, {action::close}, {action::close}});
    }
  }
  const performance p = stage(fs, GetParam(), groups).run(scripts, input, 0);
  std::uint64_t closes = 0;
  for (std::uint32_t g = 0; g < groups; ++g) {
    for (std::size_t i = 0; i < scripts[g].size(); ++i) {
      const std::int64_t result = p.outcomes[g][i].result;
      if (scripts[g][i].what == action::open) {
        EXPECT_GE(result, 0);
      } else if (result == 0) {
        ++closes;
      } else {
        EXPECT_EQ(result, -EBADF);
      }
    }
  }
  EXPECT_EQ(closes, groups * rounds);
  EXPECT_EQ(fs.file_stats().size(), 0u);
  wait_until([&] { return fs.stats().host_open_files == 0; });
  EXPECT_EQ(fs.stats().host_open_files, 0u);
  EXPECT_EQ(fs.stats()[counter::opens], fs.stats()[counter::closes]);
}

// Each group opens the output, writes its part and closes it, by and by: some have closed it before
// others open it.
TEST_P(concurrency_test, groups_that_empty_one_output_keep_each_others_parts) {
  constexpr std::uint32_t groups = 24;
  mount fs(options);
  const random_delays delays(11);
  world->write("out", std::string(100'000, '?'));
  for (std::uint64_t launch = 0; launch < 6; ++launch) {
    const std::uint64_t bytes = 900 - launch * 100;
    std::string input, expected;
    const std::uint64_t path = add_string(input, world->path("out"));
    std::vector<script> scripts(groups);
    for (std::uint32_t g = 0; g < groups; ++g) {
      device_call open{action::open};
      open.flags = (g % 3 == 0 ? O_WRONLY : O_RDWR) | O_CREAT | O_TRUNC;
      open.bytes = 0644;
      open.memory = path;
      device_call write{action::write};
      write.offset = static_cast<std::int64_t>(g * bytes);
      write.bytes = bytes;
      write.memory = input.size();
      const std::string part = self_checking(g + 1, static_cast<unsigned>(launch), 0, bytes);
      input += part;
      expected += part;
      scripts[g] = {open, write, {action::close}};
    }
    const performance p = stage(fs, GetParam(), groups).run(scripts, input, 0);
    for (const auto& outcomes : p.outcomes) {
      for (const outcome& o : outcomes) EXPECT_GE(o.result, 0);
    }
    expect_same_bytes(world->content("out"), expected, "launch " + std::to_string(launch));
  }
}

TEST_P(concurrency_test, several_launches_at_once_on_one_mount) {
  constexpr std::uint32_t groups = 8;
  mount fs(options);
  std::vector<std::thread> users;
  for (std::uint64_t u = 0; u < 4; ++u) {
    users.emplace_back([&, u] {
      const launch_stream stream(fs);
      for (std::uint64_t round = 0; round < 4; ++round) {
        const planned_reads r = make_reading(files, groups, u * 100 + round);
        stage s(fs, GetParam(), groups, stream.get());
        (void)check_reading(files, r, s.run(r.scripts, r.input, r.output_bytes),
                            options.page_bytes);
      }
    });
  }
  for (std::thread& user : users) user.join();
  wait_until([&] { return fs.stats().host_open_files == 0; });
  EXPECT_EQ(fs.stats().host_open_files, 0u);
}

TEST_P(concurrency_test, several_mounts_at_once_on_the_same_files) {
  constexpr std::uint32_t groups = 8;
  options.extent_budget_bytes = std::uint64_t{1} << 20;
  std::vector<std::thread> users;
  for (std::uint64_t u = 0; u < 3; ++u) {
    users.emplace_back([&, u] {
      mount_options own = options;
      own.page_bytes = std::uint64_t{512} << (2 * u);
      own.cache_bytes = 24 * own.page_bytes;
      for (std::uint64_t round = 0; round < 3; ++round) {
        mount fs(own);
        const launch_stream stream(fs);
        const planned_reads r = make_reading(files, groups, u * 100 + round);
        stage s(fs, GetParam(), groups, stream.get());
        (void)check_reading(files, r, s.run(r.scripts, r.input, r.output_bytes), own.page_bytes);
      }
    });
  }
  for (std::thread& user : users) user.join();
}

TEST_P(concurrency_test, a_descriptor_serves_kernels_that_did_not_open_it) {
  mount fs(options);
  session opener(fs, GetParam());
  const std::int32_t fd = opener.open(files[3].path);
  ASSERT_GE(fd, 0);
  std::vector<std::thread> users;
  for (int u = 0; u < 4; ++u) {
    users.emplace_back([&, u] {
      session s(fs, GetParam());
      s.expect_read(fd, files[3].content, u * 1000, files[3].content.size());
    });
  }
  for (std::thread& user : users) user.join();
  EXPECT_EQ(opener.close(fd), 0);
}

}  // namespace
}  // namespace gpufs::testing
