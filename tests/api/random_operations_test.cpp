// Random operations against a naive model, in random mounts: far smaller than the files, with
// delays that widen races, and with faults of the host. A failure prints the seed;
// GPUFS_TEST_SEED=<seed> runs that one again.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "api/matrix.hpp"
#include "api/random_script.hpp"
#include "support/schedule.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

constexpr std::size_t calls_of_a_script = is_sanitized ? 40 : 150;
constexpr int launches = is_sanitized ? 2 : 5;

class random_operations : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  random_operations() : random(GetParam()) {}

  std::uint64_t below(std::uint64_t n) { return random() % n; }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }

  void choose();
  void create_files();
  void change_files();
  std::uint64_t some_size();
  void launch_once(stage& s, std::vector<random_group>& groups);
  void check_descriptors(const std::vector<random_group>& groups);

  std::mt19937_64 random;
  group_kind kind = group_kind::thread;
  std::uint32_t group_count = 0;
  mount_options options;
  script_limits limits;
  tolerated also;
  std::unique_ptr<file_world> world;
  std::shared_ptr<fault_backend> io;
  std::vector<model_file> files;
  std::map<std::size_t, std::uint32_t> held;  // files open at the end of the last launch
};

void random_operations::choose() {
  kind = static_cast<group_kind>(below(3));
  options = base_options();
  options.page_bytes = std::uint64_t{512} << (chance(4) ? below(8) : below(4));
  options.workers = 1 + static_cast<unsigned>(below(4));
  options.cpu_threads = 2 + static_cast<unsigned>(below(8));
  options.staging_bytes = 8192u << below(4);
  options.channel_slots = chance(3) ? 1 + static_cast<unsigned>(below(3)) : 16;
  options.extent_budget_bytes = chance(2) ? std::uint64_t{4} << 20 : 0;
  options.bulk_bytes = options.page_bytes * (std::uint64_t{2} << below(4));
  options.request_timeout = std::chrono::seconds(120);
  options.read_only = limits.read_only = chance(2);
  group_count = 8 + static_cast<std::uint32_t>(below(40));
  limits.page_bytes = options.page_bytes;
  limits.bytes_max = std::min<std::uint64_t>(4 * options.page_bytes, 30000);
  limits.calls = calls_of_a_script;

  // Either frames are plenty for all pins that there can be at once, or calls may find none. A pin
  // for each mapping, and one for the call that a group is making.
  const bool tight = chance(2);
  limits.mappings = static_cast<std::uint32_t>(below(4));
  limits.keep_mappings = tight;
  const std::uint64_t at_once = device() == device_kind::cpu
                                    ? std::min<std::uint64_t>(options.cpu_threads, group_count)
                                    : group_count;
  const std::uint64_t pins = at_once * (limits.mappings + 1);
  // Runs under way hold a quarter of the frames.
  const std::uint64_t frames =
      tight ? 8 + below(9) : std::max<std::uint64_t>(8, (pins + below(50)) * 4 / 3 + 1);
  also.no_frames = frames < pins || limits.keep_mappings;
  options.reclaim_timeout = std::chrono::nanoseconds(also.no_frames ? 1'000'000 : 60'000'000'000);
  options.cache_bytes = frames * options.page_bytes;
  options.rings = 1 + static_cast<unsigned>(below(std::min<std::uint64_t>(frames, 5)));
  also.no_records = chance(4);
  options.open_files = also.no_records ? 1 + static_cast<unsigned>(below(8)) : 256;
}

std::uint64_t random_operations::some_size() {
  switch (below(6)) {
    case 0: return below(100);
    case 1: return below(4) * options.page_bytes;
    case 2: return below(options.staging_bytes + 1);
    case 3: return options.staging_bytes + below(2);
    default: return below(std::min<std::uint64_t>(40 * options.page_bytes, 400000));
  }
}

void random_operations::create_files() {
  const bool on_host = chance(2);
  world = file_world::make(on_host ? source::posix : source::memory);
  io = std::make_shared<fault_backend>(world->io(), GetParam());
  options.backend = io;
  if (chance(3)) {
    also.host_errors = true;
    for (const operation on :
         {operation::read, operation::open, operation::identify, operation::map}) {
      fault f;
      f.on = on;
      f.error_number = EIO;
      f.probability = 0.03;
      io->add(f);
    }
  }
  if (chance(3)) {
    fault interrupted;
    interrupted.error_number = EINTR;
    interrupted.probability = 0.2;
    io->add(interrupted);
    fault shortened;
    shortened.bytes_max = 700;
    shortened.probability = 0.3;
    io->add(shortened);
  }
  for (unsigned i = 0; i < 12; ++i) {
    model_file f;
    const std::string name = std::to_string(i);
    f.path = world->path(name);
    if (i == 0) {
      f.what = model_file::kind::folder;
      world->make_directory(name);
    } else if (!chance(8)) {
      f.what = model_file::kind::regular;
      f.content = self_checking(i, 0, 0, some_size());
      world->write(name, f.content);
    }
    files.push_back(std::move(f));
  }
}

// Only files that no group has open: what they then read would depend on time.
void random_operations::change_files() {
  for (unsigned i = 1; i < files.size(); ++i) {
    model_file& f = files[i];
    const std::string name = std::to_string(i);
    if (held.count(i) != 0 || chance(2)) continue;
    if (f.what == model_file::kind::absent || chance(3)) {
      f.content = self_checking(i, ++f.generation, 0, chance(2) ? f.content.size() : some_size());
      if (f.what == model_file::kind::regular && chance(2)) world->replace(name, f.content);
      else world->write(name, f.content);
      f.what = model_file::kind::regular;
    } else if (chance(3)) {
      f.content.resize(some_size(), '\0');
      world->truncate(name, f.content.size());
    } else if (chance(2) && !f.content.empty()) {
      const std::uint64_t at = below(f.content.size());
      f.content[at] = static_cast<char>(f.content[at] + 1);
      world->write_at(name, at, f.content.substr(at, 1));
    } else if (chance(3)) {
      f.what = model_file::kind::absent;
      f.content.clear();
      world->remove(name);
    }
  }
}

void random_operations::launch_once(stage& s, std::vector<random_group>& groups) {
  std::string input;
  std::uint64_t output_bytes = 0;
  std::vector<script> scripts;
  for (random_group& g : groups) scripts.push_back(g.next(files, limits, input, output_bytes));
  const performance p = s.run(scripts, input, output_bytes + 64);
  for (std::size_t g = 0; g < groups.size(); ++g)
    groups[g].check(files, limits, also, p.outcomes[g], p.output);
  check_descriptors(groups);
}

// One descriptor is one file, for all groups.
void random_operations::check_descriptors(const std::vector<random_group>& groups) {
  held.clear();
  std::map<std::int64_t, std::size_t> file_of;
  std::map<std::size_t, std::int64_t> descriptor_of;
  for (const random_group& g : groups) {
    for (const auto& [fd, file] : g.held()) {
      EXPECT_EQ(file_of.emplace(fd, file).first->second, file);
      EXPECT_EQ(descriptor_of.emplace(file, fd).first->second, fd);
      ++held[file];
    }
  }
}

TEST_P(random_operations, agree_with_a_naive_model) {
  const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                     "GPUFS_TEST_SEED=" + std::to_string(GetParam()));
  choose();
  create_files();
  std::unique_ptr<random_delays> delays;
  if (chance(2)) delays = std::make_unique<random_delays>(GetParam());
  std::vector<random_group> groups;
  for (std::uint32_t g = 0; g < group_count; ++g)
    groups.emplace_back(random(), "group " + std::to_string(g));

  mount fs(options);
  std::mutex received_mutex;
  std::string received;
  limits.sink = fs.open_sink([&](const char* bytes, std::size_t count) {
    const std::lock_guard lock(received_mutex);
    received.append(bytes, count);
    return 0;
  });
  stage s(fs, kind, group_count);
  for (int round = 0; round < launches && !HasFailure(); ++round) {
    if (round != 0) change_files();
    if (chance(4)) fs.drop_extents();
    launch_once(s, groups);
    // What the groups hold is what the mount counts.
    std::map<std::string, std::uint32_t> holders;
    for (const file_statistics& f : fs.file_stats()) holders[f.path] = f.holders;
    for (std::size_t i = 0; i < files.size(); ++i) {
      const auto found = holders.find(files[i].path);
      EXPECT_EQ(found == holders.end() ? 0 : found->second, held.count(i) != 0 ? held[i] : 0)
          << files[i].path;
    }
  }

  // Each group's messages came whole, and in its order.
  std::map<std::string, std::string> of_group;
  for (std::size_t at = 0; at < received.size();) {
    const std::size_t end = received.find(';', at);
    ASSERT_NE(end, std::string::npos);
    of_group[received.substr(at, received.find(':', at) - at)] += received.substr(at, end + 1 - at);
    at = end + 1;
  }
  for (std::size_t g = 0; g < groups.size(); ++g)
    EXPECT_EQ(of_group["group " + std::to_string(g)], groups[g].sent());
  const statistics counted = fs.stats();
  EXPECT_EQ(counted[counter::rpc_failures], 0u);
  EXPECT_TRUE(also.host_errors || counted[counter::load_errors] == 0);
  EXPECT_TRUE(also.no_frames || counted[counter::no_frames] == 0);
}

INSTANTIATE_TEST_SUITE_P(seed, random_operations, ::testing::ValuesIn(seeds()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace gpufs::testing
