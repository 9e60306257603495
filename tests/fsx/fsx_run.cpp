#include "fsx/fsx_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "api/matrix.hpp"
#include "fsx/fsx_group.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

constexpr std::size_t calls_of_a_script = is_sanitized ? 60 : 200;
constexpr int launches = is_sanitized ? 2 : 4;

class run {
 public:
  run(std::uint64_t seed, const std::string& folder)
      : seed_(seed), random_(seed), world_(file_world::make(source::posix, folder)),
        io_(std::make_shared<fault_backend>(world_->io(), seed)) {
    if (chance(2)) delays_ = std::make_unique<random_delays>(seed);
    choose();
    make_shared_file();
  }
  std::uint64_t make();

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }
  void choose();
  void make_shared_file();
  void launch_once(stage& s, std::vector<fsx_group>& groups, const fsx_launch& how);

  const std::uint64_t seed_;
  std::mt19937_64 random_;
  const std::unique_ptr<file_world> world_;
  const std::shared_ptr<fault_backend> io_;
  std::unique_ptr<random_delays> delays_;
  mount_options options_;
  group_kind kind_ = group_kind::thread;
  std::uint32_t group_count_ = 1;
  fsx_shared_file shared_;
  std::size_t host_range_ = 0;  // of the shared file: an outside program's
  host_steps steps_;
  std::uint64_t calls_ = 0;
};

void run::choose() {
  kind_ = static_cast<group_kind>(below(3));
  group_count_ = 1 + static_cast<std::uint32_t>(below(chance(2) ? 4 : 12));
  options_ = base_options();
  options_.backend = io_;
  options_.page_bytes = std::uint64_t{512} << below(8);
  options_.workers = 1 + static_cast<unsigned>(below(5));
  options_.cpu_threads = 2 + static_cast<unsigned>(below(8));
  options_.staging_bytes = 8192u << below(4);
  options_.write_bytes = options_.staging_bytes << below(4);
  options_.channel_slots = chance(3) ? 1 + static_cast<unsigned>(below(3)) : 16;
  options_.extent_budget_bytes = chance(2) ? std::uint64_t{4} << 20 : 0;
  options_.bulk_bytes = options_.page_bytes * (std::uint64_t{2} << below(4));
  options_.request_timeout = std::chrono::seconds(120);
  options_.reclaim_timeout = std::chrono::seconds(60);
  // A group holds four frames at the most: a page mapped to read, one mapped to write with its
  // copy, and one of a call. Runs under way hold a quarter.
  const std::uint64_t at_once = device() == device_kind::cpu
                                    ? std::min<std::uint64_t>(options_.cpu_threads, group_count_)
                                    : group_count_;
  const std::uint64_t frames = (4 * at_once + 8 + below(chance(3) ? 500 : 10)) * 4 / 3 + 1;
  options_.cache_bytes = frames * options_.page_bytes;
  options_.rings = 1 + static_cast<unsigned>(below(4));
  // Not wrong, but seldom seen.
  if (chance(3)) {
    fault interrupted;
    interrupted.on = chance(2) ? operation::write : operation::read;
    interrupted.error_number = EINTR;
    interrupted.probability = 0.2;
    io_->add(interrupted);
    fault shortened;
    shortened.on = chance(2) ? operation::write : operation::read;
    shortened.bytes_max = 700;
    shortened.probability = 0.3;
    io_->add(shortened);
  }
}

void run::make_shared_file() {
  const std::size_t ranges = group_count_ + 1;
  const std::uint64_t most = chance(2) ? 400 : 3 * options_.page_bytes;  // of a range
  shared_.name = "shared";
  std::uint64_t end = 0;
  for (std::size_t r = 0; r < ranges; ++r) {
    shared_.begins.push_back(end);
    end += 1 + below(most);
  }
  host_range_ = below(ranges - 1);  // not the last one: whose size changes is the group's
  shared_.content = self_checking(1, 0, 0, end);
  world_->write(shared_.name, shared_.content);
}

void run::launch_once(stage& s, std::vector<fsx_group>& groups, const fsx_launch& how) {
  std::string input;
  std::uint64_t output_bytes = 0;
  std::vector<script> scripts;
  for (fsx_group& g : groups) {
    scripts.push_back(g.next(shared_, how, input, output_bytes));
    calls_ += scripts.back().size();
  }
  // An outside program writes its range meanwhile.
  const std::uint64_t begin = shared_.begins[host_range_], end = shared_.begins[host_range_ + 1];
  std::vector<std::pair<std::uint64_t, std::string>> writes;
  for (std::uint64_t i = below(20); i != 0; --i) {
    const std::uint64_t at = begin + below(end - begin);
    const std::string bytes(1 + below(end - at), static_cast<char>('A' + below(26)));
    writes.emplace_back(at, bytes);
    shared_.content.replace(at, bytes.size(), bytes);
  }
  std::thread outside([&] {
    for (const auto& [at, bytes] : writes) world_->write_at(shared_.name, at, bytes);
  });
  const performance done = s.run(scripts, input, output_bytes + 64);
  outside.join();
  for (std::size_t g = 0; g < groups.size(); ++g) groups[g].check(done.outcomes[g], done.output);
  for (const std::string& failure : steps_.take_failures()) ADD_FAILURE() << failure;
  expect_same_bytes(world_->content(shared_.name), shared_.content, "the shared file");
}

std::uint64_t run::make() {
  mount fs(options_);
  const fsx_world world{*world_,
                        steps_,
                        options_.page_bytes,
                        fs.open_sink([this](const char* number, std::size_t bytes) {
                          return steps_.run(number, bytes);
                        }),
                        calls_of_a_script,
                        group_count_ == 1};
  std::vector<std::vector<std::size_t>> ranges(group_count_);
  for (std::size_t r = 0, g = 0; r < shared_.begins.size(); ++r) {
    if (r != host_range_) ranges[g++].push_back(r);
  }
  std::vector<fsx_group> groups;
  for (std::uint32_t g = 0; g < group_count_; ++g)
    groups.emplace_back(world, random_(), g, ranges[g]);
  {
    stage s(fs, kind_, group_count_);
    for (int round = 1; round <= launches && !::testing::Test::HasFailure(); ++round) {
      if (chance(4)) fs.drop_extents();
      // Else each open finds a file that was changed just now, which is never taken for unchanged.
      const bool settles = seed_ % 16 == 3;
      const bool is_settled = settles && round == 2;
      if (is_settled) world_->settle();
      launch_once(s, groups,
                  {.begins_settled = is_settled,
                   .closes_all = settles || (round == launches && chance(2))});
    }
  }
  const statistics counted = fs.stats();
  EXPECT_EQ(counted[counter::rpc_failures], 0u);
  EXPECT_EQ(counted[counter::no_frames], 0u);
  EXPECT_EQ(counted[counter::load_errors], 0u);
  EXPECT_EQ(counted[counter::write_back_errors], 0u);
  // What is still open is written then.
  EXPECT_NO_THROW(fs.unmount());
  for (const fsx_group& g : groups) g.check_files();
  expect_same_bytes(world_->content(shared_.name), shared_.content, "the shared file");
  return calls_;
}

}  // namespace

std::uint64_t run_fsx(std::uint64_t seed, const std::string& folder) {
  return run(seed, folder).make();
}

}  // namespace gpufs::testing
