// Every call by every kind of group, with eviction and with groups that meet at pages and files,
// small enough for compute-sanitizer, under which each access costs a hundred times more.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/matrix.hpp"

namespace gpufs::testing {
namespace {

class SanitizerSmall : public ::testing::TestWithParam<group_kind> {};
INSTANTIATE_TEST_SUITE_P(each_kind, SanitizerSmall, ::testing::ValuesIn(all_kinds), name_of_kind);

constexpr std::uint32_t groups = 6;
constexpr std::uint64_t read_bytes = 700;

// The calls of one group on one file, and where their answers are.
struct visit {
  std::uint64_t read, peek, view, status;
};

visit add_visit(script& s, std::uint64_t path, std::int64_t offset, std::int32_t sink,
                std::uint64_t message, std::uint64_t& output_bytes) {
  const auto room = [&output_bytes](std::uint64_t bytes) {
    const std::uint64_t at = output_bytes;
    output_bytes += (bytes + 15) / 16 * 16;
    return at;
  };
  visit v{room(read_bytes + 3) + 3, room(512), room(64), room(sizeof(file_status))};
  const auto add = [&s](action what, int from, std::int64_t at, std::uint64_t bytes,
                        std::uint64_t memory) {
    device_call c{what};
    c.from = from;
    c.to = what == action::map ? 1 : 0;
    c.offset = at;
    c.bytes = bytes;
    c.memory = memory;
    s.push_back(c);
  };
  add(action::open, 0, 0, 0, path);
  add(action::read, 0, offset, read_bytes, v.read);
  add(action::map, 0, offset / 512 * 512, 512, no_memory);
  add(action::status, 0, 0, 0, v.status);
  add(action::view, 0, offset / 8 * 8, 8, v.view);
  add(action::peek, 1, 0, 512, v.peek);
  add(action::unmap, 1, 0, 0, no_memory);
  add(action::close, 0, 0, 0, no_memory);
  device_call set{action::set};
  set.to = 2;
  set.offset = sink;
  s.push_back(set);
  add(action::send, 2, 0, 5, message);
  return v;
}

TEST_P(SanitizerSmall, all_calls_with_eviction_and_meetings) {
  const auto files = std::make_shared<memory_backend>(memory_backend_options{true});
  std::vector<std::string> contents;
  std::string input;
  std::vector<std::uint64_t> paths;
  for (unsigned f = 0; f < 2; ++f) {
    contents.push_back(self_checking(f + 1, 0, 0, f == 0 ? 8000 : 20000));
    const std::string path = std::to_string(f);
    files->write(path, contents.back());
    paths.push_back(add_string(input, path));
  }
  const std::uint64_t message = add_string(input, "hello");
  const std::uint64_t missing = add_string(input, "missing");

  mount_options options = base_options();
  options.backend = files;
  options.page_bytes = 512;
  options.cache_bytes = 8 * 512;  // six mappings at a time leave two frames to go on with
  options.extent_budget_bytes = 20000;
  options.bulk_bytes = 2 * 512;
  options.channel_slots = 4;
  options.reclaim_timeout = std::chrono::seconds(60);
  mount fs(options);
  // Now, and not in the background: compute-sanitizer takes memory that was registered while a
  // kernel runs for foreign.
  EXPECT_EQ(fs.register_file("1"), 20000u);
  std::mutex received_mutex;
  std::string received;
  const std::int32_t sink = fs.open_sink([&](const char* bytes, std::size_t count) {
    const std::lock_guard lock(received_mutex);
    received.append(bytes, count);
    return 0;
  });

  stage s(fs, GetParam(), groups);
  constexpr int visits = 4;
  std::vector<script> scripts(groups);
  std::vector<visit> answers;
  std::uint64_t output_bytes = 0;
  // Groups go through the same places of the same files.
  const auto file_of = [](std::uint32_t g, int i) {
    return static_cast<std::size_t>(g + static_cast<unsigned>(i)) % 2;
  };
  const auto offset_of = [](std::size_t file, int i) {
    return file == 0 ? 100 + i * 1800 : 1000 + i * 4000;
  };
  for (std::uint32_t g = 0; g < groups; ++g) {
    for (int i = 0; i < visits; ++i) {
      const std::size_t file = file_of(g, i);
      answers.push_back(
          add_visit(scripts[g], paths[file], offset_of(file, i), sink, message, output_bytes));
    }
    device_call open{action::open};
    open.memory = missing;
    scripts[g].push_back(open);
  }
  const performance p = s.run(scripts, input, output_bytes);

  for (std::uint32_t g = 0; g < groups; ++g) {
    for (int i = 0; i < visits; ++i) {
      const std::size_t file = file_of(g, i);
      const auto at = static_cast<std::uint64_t>(offset_of(file, i));
      const visit& v = answers[g * visits + static_cast<unsigned>(i)];
      expect_same_bytes(p.output.substr(v.read, read_bytes), contents[file].substr(at, read_bytes),
                        "read");
      expect_same_bytes(p.output.substr(v.peek, 512), contents[file].substr(at / 512 * 512, 512),
                        "mapped");
      expect_same_bytes(p.output.substr(v.view, 64), contents[file].substr(at / 8 * 8, 64),
                        "viewed");
      file_status status;
      std::memcpy(&status, p.output.data() + v.status, sizeof status);
      EXPECT_EQ(status.size, contents[file].size());
    }
    EXPECT_EQ(p.outcomes[g].back().result, -ENOENT);
    for (std::size_t i = 0; i + 1 < p.outcomes[g].size(); ++i)
      EXPECT_GE(p.outcomes[g][i].result, 0) << "call " << i;
  }
  EXPECT_EQ(received.size(), groups * visits * 5u);
  const statistics counted = fs.stats();
  EXPECT_GT(counted[counter::open_loads], 0u);
  EXPECT_GT(counted[counter::staged_loads], 0u);
  EXPECT_GT(counted[counter::evictions], 0u);
  EXPECT_EQ(
      counted[counter::no_frames] + counted[counter::load_errors] + counted[counter::rpc_failures],
      0u);
}

TEST_P(SanitizerSmall, groups_that_wait_for_one_load) {
  const auto files = std::make_shared<memory_backend>();
  const std::string content = self_checking(1, 0, 0, 20000);
  files->write("a", content);
  const auto slow = std::make_shared<fault_backend>(files);
  fault delay;
  delay.delay = std::chrono::milliseconds(100);
  slow->add(delay);
  mount_options options = base_options();
  options.backend = slow;
  mount fs(options);
  session opener(fs, GetParam());
  device_call set{action::set};
  set.offset = opener.open("a");
  ASSERT_GE(set.offset, 0);
  std::vector<script> scripts;
  for (std::uint64_t g = 0; g < groups; ++g) {
    device_call read{action::read};
    read.bytes = 5000;
    read.memory = g * read.bytes;
    scripts.push_back({set, read});
  }
  const performance p = stage(fs, GetParam(), groups).run(scripts, {}, groups * 5000);
  for (std::uint64_t g = 0; g < groups; ++g) {
    expect_same_bytes(p.output.substr(g * 5000, 5000), content.substr(0, 5000),
                      "group " + std::to_string(g));
  }
  EXPECT_GT(fs.stats()[counter::minor_faults], 0u);
  EXPECT_EQ(fs.stats()[counter::staged_loads], 2u);
}

TEST_P(SanitizerSmall, groups_that_find_no_frame) {
  const auto files = std::make_shared<memory_backend>();
  files->write("a", self_checking(1, 0, 0, 20000));
  mount_options options = base_options();
  options.backend = files;
  options.page_bytes = 512;
  options.cache_bytes = 8 * 512;
  options.reclaim_timeout = std::chrono::milliseconds(2);
  mount fs(options);
  session s(fs, GetParam());
  const std::int32_t fd = s.open("a");
  std::vector<std::int64_t> pointers;
  for (std::int64_t page = 0; page < 8; ++page)
    pointers.push_back(s.map(fd, page * 512, 512).pointer);
  EXPECT_EQ(s.read(fd, 8 * 512, 10).result, -ENOBUFS);
  EXPECT_EQ(s.unmap(pointers[3]), 0);
  EXPECT_EQ(s.read(fd, 8 * 512, 10).result, 10);
}

// Every group writes stripes of one file, with eviction of dirty pages and truncation of a file of
// its own; and reads them back.
TEST_P(SanitizerSmall, writes_with_eviction_and_meetings) {
  const auto files = std::make_shared<memory_backend>();
  constexpr std::uint64_t stripe = 300, rounds = 8;
  const std::string before(groups * stripe * rounds, 'o');
  files->write("shared", before);
  mount_options options = base_options();
  options.backend = files;
  options.page_bytes = 512;
  options.cache_bytes = 16 * 512;
  options.channel_slots = 4;
  options.reclaim_timeout = std::chrono::seconds(60);
  mount fs(options);
  stage s(fs, GetParam(), groups);
  std::string input, expected = before;
  const std::uint64_t shared = add_string(input, "shared");
  std::uint64_t output_bytes = 0;
  std::vector<script> scripts(groups);
  struct answer {
    std::uint64_t memory;
    std::string bytes;
  };
  std::vector<answer> answers;
  for (std::uint32_t g = 0; g < groups; ++g) {
    const auto add = [&](action what, int from, std::int64_t at, std::uint64_t bytes,
                         std::uint64_t memory, int flags = 0) {
      device_call c{what};
      c.from = c.to = from;
      c.flags = flags;
      c.offset = at;
      c.bytes = bytes;
      c.memory = memory;
      scripts[g].push_back(c);
    };
    add(action::open, 0, 0, 0, shared, O_RDWR);
    const std::uint64_t own = add_string(input, "own" + std::to_string(g));
    add(action::open, 1, 0, 0644, own, O_RDWR | O_CREAT);
    for (std::uint64_t k = 0; k < rounds; ++k) {
      const std::string bytes(stripe, static_cast<char>('a' + g));
      const std::uint64_t at = (k * groups + g) * stripe, memory = add_string(input, bytes);
      add(action::write, 0, static_cast<std::int64_t>(at), stripe, memory);
      expected.replace(at, stripe, bytes);
      add(action::write, 1, static_cast<std::int64_t>(k * 700), stripe, memory);
      add(action::read, 0, static_cast<std::int64_t>(at), stripe, output_bytes);
      answers.push_back({output_bytes, bytes});
      output_bytes += stripe;
    }
    add(action::sync, 1, 0, 0, no_memory);
    add(action::truncate, 1, 1000, 0, no_memory);
    add(action::close, 1, 0, 0, no_memory);
    add(action::close, 0, 0, 0, no_memory);
  }
  const performance p = s.run(scripts, input, output_bytes);
  for (const std::vector<outcome>& of_group : p.outcomes) {
    for (const outcome& o : of_group) EXPECT_GE(o.result, 0);
  }
  for (const answer& a : answers)
    expect_same_bytes(p.output.substr(a.memory, a.bytes.size()), a.bytes, "read");
  EXPECT_EQ(files->content("shared"), expected);
  for (std::uint32_t g = 0; g < groups; ++g) {
    std::string own(1000, '\0');
    own.replace(0, stripe, stripe, static_cast<char>('a' + g));
    own.replace(700, stripe, stripe, static_cast<char>('a' + g));
    EXPECT_EQ(files->content("own" + std::to_string(g)), own);
  }
}

}  // namespace
}  // namespace gpufs::testing
