// Random calls that change files while the host's calls fail at random. What a program may rely on
// (docs/api.md): reads give what was written; an error is returned by gfsync, gmsync or gclose, at
// most once for each write that failed, and at least once if any did; that of a sync that failed by
// every gfsync and gclose of the file, up to the last gclose; a gfsync or a last gclose that went
// well is of all bytes; no byte that was never written reaches the file. A failure prints the seed;
// GPUFS_TEST_SEED=<seed> runs that one again.
//
// Groups run at the same time, in a cache so small that they write each other's pages back. Each
// has files of its own, and all write their own stripes of one file. A kernel's calls are chosen
// without knowing which will fail; the model follows what they have returned, afterwards.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "api/matrix.hpp"
#include "api/uncertain_file.hpp"
#include "support/schedule.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

constexpr std::size_t calls_of_a_script = is_sanitized ? 40 : 100;
constexpr int launches = is_sanitized ? 2 : 4;
constexpr int own_files = 2, shared_file = own_files;  // numbers of files, and of registers

// A file of the host's that fails in its own way: by the number one can tell which call was meant.
struct failing_file {
  std::string name;
  int open_error = 0, write_error = 0, sync_error = 0, truncate_error = 0;
  std::atomic<unsigned> opens{0}, writes{0}, syncs{0}, truncations{0};  // that failed
};

// What calls on a file have told of errors.
struct told_errors {
  unsigned opens = 0, writes = 0, syncs = 0, truncations = 0;
};

// One call of a script, with the status that was asked for behind it, or the store between.
struct planned {
  action what;
  int file;
  std::size_t call;  // its place in the script
  std::uint64_t at = 0;
  std::string bytes{};  // to write
  std::uint64_t memory = 0, count = 0;
  int flags = 0;
};

class faulty_writer {
 public:
  faulty_writer(std::uint64_t seed, std::uint32_t number, std::uint64_t page_bytes)
      : random_(seed), number_(number), page_bytes_(page_bytes) {
    for (int i = 0; i < own_files; ++i)
      files_[i].name = "own-" + std::to_string(number) + "-" + std::to_string(i);
  }

  failing_file& file(int i) { return files_[i]; }
  const told_errors& told(int i) const { return told_[i]; }
  uncertain_file& shared() { return models_[shared_file]; }
  bool all_of_shared_closed_well() const { return shared_closed_well_; }

  // `stripe` bytes of each `round` are its own in the shared file.
  script next(const file_world& world, const std::string& shared, std::uint64_t round,
              std::uint64_t stripe, std::string& input, std::uint64_t& output_bytes);
  void follow(const performance& p, const failing_file& shared);
  void check_files(const file_world& world);

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  device_call& add(action what, int file) {
    device_call& c = calls_.emplace_back();
    c.what = what;
    c.from = c.to = file;
    return c;
  }
  planned& plan(action what, int file) {
    return planned_.emplace_back(planned{what, file, calls_.size()});
  }
  std::uint64_t output(std::uint64_t bytes, std::uint64_t& output_bytes) {
    const std::uint64_t at = (output_bytes + 7) / 8 * 8;
    output_bytes = at + bytes;
    return at;
  }
  void plan_status(planned& p, std::uint64_t& output_bytes) {
    p.memory = output(sizeof(file_status), output_bytes);
    add(action::status, p.file).memory = p.memory;
  }
  void plan_open(const std::string& path, int file, int flags, std::string& input,
                 std::uint64_t& output_bytes);
  void plan_write(int file, std::uint64_t at, std::uint64_t bytes, std::string& input,
                  int flags = 0);
  void plan_read(int file, std::uint64_t at, std::uint64_t bytes, std::uint64_t& output_bytes);
  void plan_store(int file, std::uint64_t at, std::string& input);
  void plan_end(action what, int file) {
    (void)plan(what, file);
    (void)add(what, file);
  }
  void use_own(const file_world& world, int i, std::string& input, std::uint64_t& output_bytes);
  void follow_one(const planned& p, const std::vector<outcome>& outcomes, const std::string& output,
                  const failing_file& f);
  void follow_store(const planned& p, const std::vector<outcome>& outcomes, const failing_file& f);
  // Of a call that writes back: whether it went well.
  bool went_well(std::int64_t result, const failing_file& f, told_errors& told,
                 bool tells_of_syncs);

  std::mt19937_64 random_;
  const std::uint32_t number_;
  const std::uint64_t page_bytes_;
  std::array<failing_file, own_files> files_;
  std::array<uncertain_file, own_files + 1> models_;
  std::array<told_errors, own_files + 1> told_;
  std::array<bool, own_files + 1> exists_{}, is_open_{};
  std::array<bool, own_files + 1> sync_failed_{};  // since it was opened
  std::array<bool, own_files + 1> was_emptied_{};  // in this launch, by an open with O_TRUNC
  std::array<int, own_files> planned_open_{};      // 0: not; else 1 + kind
  bool shared_closed_well_ = true;
  script calls_;
  std::vector<planned> planned_;
};

void faulty_writer::plan_open(const std::string& path, int file, int flags, std::string& input,
                              std::uint64_t& output_bytes) {
  planned& p = plan(action::open, file);
  p.flags = flags;
  device_call& c = add(action::open, file);
  c.bytes = 0644;
  c.flags = flags;
  c.memory = add_string(input, path);
  plan_status(p, output_bytes);
}

void faulty_writer::plan_write(int file, std::uint64_t at, std::uint64_t bytes, std::string& input,
                               int flags) {
  planned& p = plan(action::write, file);
  p.at = at;
  p.flags = flags;
  for (std::uint64_t i = 0; i < bytes; ++i)
    p.bytes += static_cast<char>((file == shared_file || below(2) == 0 ? 'a' : 'A') + below(26));
  device_call& c = add(action::write, file);
  c.offset = static_cast<std::int64_t>(at);
  c.bytes = bytes;
  c.memory = input.size();
  input += p.bytes;
}

void faulty_writer::plan_read(int file, std::uint64_t at, std::uint64_t bytes,
                              std::uint64_t& output_bytes) {
  planned& p = plan(action::read, file);
  p.at = at;
  p.count = bytes;
  p.memory = output(bytes, output_bytes);
  device_call& c = add(action::read, file);
  c.offset = static_cast<std::int64_t>(at);
  c.bytes = bytes;
  c.memory = p.memory;
}

// A byte through a mapping: map, store, msync, unmap.
void faulty_writer::plan_store(int file, std::uint64_t at, std::string& input) {
  constexpr int pointer = 10, descriptor = 11;
  static_assert(descriptor < static_cast<int>(register_count));
  planned& p = plan(action::map_write, file);
  p.at = at;
  p.bytes = static_cast<char>('a' + below(26));
  device_call& map = add(action::map_write, file);
  map.to = pointer;
  map.offset = static_cast<std::int64_t>(at);
  map.bytes = 1;
  device_call& poke = add(action::poke, pointer);
  poke.bytes = 1;
  poke.memory = input.size();
  input += p.bytes;
  for (const action end : {action::msync, action::unmap_write}) {
    device_call& c = add(end, pointer);
    c.flags = file;
    c.bytes = 1;
  }
}

void faulty_writer::use_own(const file_world& world, int i, std::string& input,
                            std::uint64_t& output_bytes) {
  const std::uint64_t at = below(8 * page_bytes_);
  const std::uint64_t bytes = 1 + (below(3) == 0 ? below(3 * page_bytes_) : below(60));
  int& open = planned_open_[i];
  if (open == 0) {
    open = 1 + static_cast<int>(below(4));  // read and write, write, append, once
    constexpr int kinds[] = {O_RDWR, O_WRONLY, O_RDWR | O_APPEND, O_WRONLY | O_GWRONCE};
    plan_open(world.path(files_[i].name), i,
              O_CREAT | kinds[open - 1] | (below(4) == 0 ? O_TRUNC : 0), input, output_bytes);
    return;
  }
  switch (below(12)) {
    case 0:
      plan_end(action::close, i);
      open = 0;
      break;
    case 1: plan_end(action::sync, i); break;
    case 2: {
      // Written back by itself: what fails is told later.
      device_call& c = add(action::advise, i);
      c.offset = static_cast<std::int64_t>(at);
      c.bytes = bytes;
      c.flags = POSIX_FADV_DONTNEED;
      break;
    }
    case 3: {
      planned& p = plan(action::truncate, i);
      p.at = at;
      add(action::truncate, i).offset = static_cast<std::int64_t>(at);
      plan_status(p, output_bytes);
      break;
    }
    case 4:
    case 5:
      if (open == 1 || open == 3) plan_read(i, at, bytes, output_bytes);
      break;
    case 6:
      if (open == 1) plan_store(i, at, input);
      break;
    default: plan_write(i, at, bytes, input, open == 3 ? O_APPEND : 0);
  }
}

script faulty_writer::next(const file_world& world, const std::string& shared, std::uint64_t round,
                           std::uint64_t stripe, std::string& input, std::uint64_t& output_bytes) {
  calls_.clear();
  planned_.clear();
  told_ = {};
  was_emptied_ = {};
  shared_closed_well_ = true;
  plan_open(world.path(shared), shared_file, O_RDWR, input, output_bytes);
  const std::uint64_t rounds = models_[shared_file].size() / round;
  while (calls_.size() < calls_of_a_script) {
    if (below(3) != 0) {
      use_own(world, static_cast<int>(below(own_files)), input, output_bytes);
      continue;
    }
    const std::uint64_t skip = below(stripe), n = 1 + below(stripe - skip);
    const std::uint64_t at = below(rounds) * round + number_ * stripe + skip;
    if (below(12) == 0) plan_end(action::sync, shared_file);
    else if (below(3) == 0) plan_read(shared_file, at, n, output_bytes);
    else plan_write(shared_file, at, n, input);
  }
  for (int i = 0; i < own_files; ++i) {
    if (planned_open_[i] != 0) plan_end(action::close, i);
    planned_open_[i] = 0;
  }
  plan_end(action::close, shared_file);
  return calls_;
}

bool faulty_writer::went_well(std::int64_t result, const failing_file& f, told_errors& told,
                              bool tells_of_syncs) {
  if (result == -f.write_error) ++told.writes;
  else if (tells_of_syncs && result == -f.sync_error) ++told.syncs;
  else EXPECT_EQ(result, 0);
  return result == 0;
}

void faulty_writer::follow_store(const planned& p, const std::vector<outcome>& outcomes,
                                 const failing_file& f) {
  uncertain_file& model = models_[p.file];
  const std::int64_t mapped = outcomes[p.call].result;
  if (p.at >= model.size()) {
    EXPECT_EQ(mapped, 0);
    return;
  }
  EXPECT_EQ(mapped, 1);
  model.write(p.at, p.bytes);
  // It is of one page, so it says nothing of the others.
  (void)went_well(outcomes[p.call + 2].result, f, told_[p.file], false);
  EXPECT_EQ(outcomes[p.call + 3].result, 0);
}

void faulty_writer::follow_one(const planned& p, const std::vector<outcome>& outcomes,
                               const std::string& output, const failing_file& f) {
  const std::int64_t result = outcomes[p.call].result;
  uncertain_file& model = models_[p.file];
  told_errors& told = told_[p.file];
  const auto status_size = [&] {
    file_status status{};
    std::memcpy(&status, output.data() + p.memory, sizeof status);
    return status.size;
  };
  if (p.what != action::open && !is_open_[p.file]) {
    EXPECT_EQ(result, -EBADF);
    return;
  }
  switch (p.what) {
    case action::open: {
      const bool empties = (p.flags & O_TRUNC) != 0 && !was_emptied_[p.file];
      is_open_[p.file] = result >= 0;
      if (result >= 0) {
        exists_[p.file] = true;
        was_emptied_[p.file] = was_emptied_[p.file] || empties;
        EXPECT_TRUE(model.open(status_size(), empties)) << "a size of " << status_size();
      } else if (empties && result == -f.truncate_error) {
        ++told.truncations;
        model.fail_to_empty();
      } else {
        ++told.opens;
        EXPECT_EQ(result, -f.open_error);
      }
      break;
    }
    case action::close: {
      // One of the other groups' may have failed, too.
      const bool all_written =
          went_well(result, f, told, sync_failed_[p.file] || p.file == shared_file);
      EXPECT_FALSE(sync_failed_[p.file] && all_written);
      sync_failed_[p.file] = false;
      is_open_[p.file] = false;
      if (p.file == shared_file) shared_closed_well_ = all_written;  // by the last of all, for all
      else model.close(all_written);
      break;
    }
    case action::sync:
      if (went_well(result, f, told, true)) {
        EXPECT_FALSE(sync_failed_[p.file]);
        model.sync();
      }
      if (result == -f.sync_error) sync_failed_[p.file] = true;
      break;
    case action::truncate:
      if (result == 0) {
        model.truncate(p.at);
        EXPECT_EQ(status_size(), p.at);
      } else {
        EXPECT_EQ(result, -f.truncate_error);
        ++told.truncations;
        EXPECT_EQ(status_size(), model.size()) << "it is what it was";
      }
      break;
    case action::write:
      EXPECT_EQ(result, static_cast<std::int64_t>(p.bytes.size()));
      model.write((p.flags & O_APPEND) != 0 ? model.size() : p.at, p.bytes);
      break;
    case action::read: {
      const std::uint64_t there = p.at >= model.size() ? 0 : std::min(p.count, model.size() - p.at);
      EXPECT_EQ(result, static_cast<std::int64_t>(there));
      for (std::uint64_t i = 0; i < there; ++i)
        ASSERT_TRUE(model.may_be_read(p.at + i, output[p.memory + i])) << "byte " << p.at + i;
      break;
    }
    default: follow_store(p, outcomes, f);
  }
}

void faulty_writer::follow(const performance& p, const failing_file& shared) {
  for (const planned& call : planned_) {
    const failing_file& f = call.file == shared_file ? shared : files_[call.file];
    const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                       "group " + std::to_string(number_) + ", call " +
                                           std::to_string(call.call) + " of kind " +
                                           std::to_string(static_cast<int>(call.what)) + " on " +
                                           f.name + " at " + std::to_string(call.at));
    follow_one(call, p.outcomes[number_], p.output, f);
  }
}

// As the host sees them, when all is closed.
void faulty_writer::check_files(const file_world& world) {
  for (int i = 0; i < own_files; ++i) {
    const std::string& name = files_[i].name;
    ASSERT_EQ(world.exists(name), exists_[i]) << name;
    if (!exists_[i]) continue;
    const std::string content = world.content(name);
    EXPECT_TRUE(models_[i].may_have_size_on_host(content.size()))
        << name << " has " << content.size();
    for (std::uint64_t at = 0; at < content.size(); ++at)
      ASSERT_TRUE(models_[i].may_be_on_host(at, content[at]))
          << name << ", byte " << at << " of " << content.size();
    models_[i].set_content(content);
  }
}

class random_write_faults : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  // The numbers differ, so that each error says where it comes from.
  void add_rules(const file_world& world, failing_file& f, double probability) {
    std::array<int, 4> errors{EIO, ENOSPC, EDQUOT, ENXIO};
    std::shuffle(errors.begin(), errors.end(), random_);
    f.open_error = errors[0];
    f.write_error = errors[1];
    f.sync_error = errors[2];
    f.truncate_error = errors[3];
    const auto add = [&](operation on, int error_number, std::atomic<unsigned>& count) {
      fault rule;
      rule.on = on;
      rule.path = world.path(f.name);
      rule.probability = probability;
      rule.error_number = error_number;
      rule.before = [&count] { ++count; };
      io_->add(rule);
    };
    add(operation::open, f.open_error, f.opens);
    add(operation::write, f.write_error, f.writes);
    add(operation::sync, f.sync_error, f.syncs);
    add(operation::truncate, f.truncate_error, f.truncations);
  }
  void add_interruptions() {
    for (const operation on :
         {operation::open, operation::write, operation::sync, operation::truncate}) {
      fault interrupted;
      interrupted.on = on;
      interrupted.error_number = EINTR;
      interrupted.probability = 0.1;
      io_->add(interrupted);
    }
    fault shortened;
    shortened.on = operation::write;
    shortened.bytes_max = 1 + below(900);
    shortened.probability = 0.3;
    io_->add(shortened);
  }
  // What was told of a file's errors, against what happened; and from now on of the next launch.
  void check_told(failing_file& f, const told_errors& told, bool is_shared) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, f.name);
    const unsigned writes = f.writes.exchange(0), opens = f.opens.exchange(0);
    EXPECT_LE(told.writes, writes);
    // A gfsync whose fdatasync fails too says only that.
    EXPECT_TRUE(writes == 0 || told.writes + told.syncs != 0) << writes << " writes failed";
    // Each that failed, and others after it.
    const unsigned syncs = f.syncs.exchange(0);
    EXPECT_GE(told.syncs, syncs);
    EXPECT_TRUE(syncs != 0 || told.syncs == 0) << told.syncs << " syncs failed";
    EXPECT_EQ(told.truncations, f.truncations.exchange(0));
    // Groups that open a file at the same time have one answer.
    if (is_shared) EXPECT_GE(told.opens, opens);
    else EXPECT_EQ(told.opens, opens);
  }
  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  std::mt19937_64 random_{GetParam()};
  std::shared_ptr<fault_backend> io_;
};

TEST_P(random_write_faults, are_told_and_lose_nothing_that_went_well) {
  const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                     "GPUFS_TEST_SEED=" + std::to_string(GetParam()));
  const auto kind = static_cast<group_kind>(below(3));
  mount_options options = base_options();
  options.page_bytes = std::uint64_t{512} << below(4);
  options.workers = 1 + static_cast<unsigned>(below(4));
  options.cpu_threads = 2 + static_cast<unsigned>(below(5));
  options.channel_slots = below(3) == 0 ? 2 : 16;
  // Waiting for a frame ends when a write has gone well at last.
  options.request_timeout = options.reclaim_timeout = std::chrono::seconds(60);
  const auto group_count = 3 + static_cast<std::uint32_t>(below(8));
  // A group holds a page, the two frames of a mapping, and one that it writes back.
  options.cache_bytes = (3 * options.cpu_threads + 8 + below(30)) * options.page_bytes;
  options.rings = 1 + static_cast<unsigned>(below(3));

  const std::unique_ptr<file_world> world =
      file_world::make(below(2) == 0 ? source::posix : source::memory);
  io_ = std::make_shared<fault_backend>(world->io(), GetParam());
  options.backend = io_;
  if (below(2) == 0) add_interruptions();
  std::unique_ptr<random_delays> delays;
  if (below(2) == 0) delays = std::make_unique<random_delays>(GetParam());
  const double probability = 0.02 * static_cast<double>(1 + below(12));

  failing_file shared;
  shared.name = "shared";
  add_rules(*world, shared, probability);
  const std::uint64_t stripe = 1 + below(60), round = stripe * group_count;
  std::string content(round * (1 + below(20 * options.page_bytes) / round), 'z');
  world->write(shared.name, content);
  std::deque<faulty_writer> writers;
  for (std::uint32_t g = 0; g < group_count; ++g) {
    faulty_writer& w = writers.emplace_back(random_(), g, options.page_bytes);
    for (int i = 0; i < own_files; ++i) add_rules(*world, w.file(i), probability);
    w.shared().set_content(content);
  }

  mount fs(options);
  stage s(fs, kind, group_count);
  for (int launch = 0; launch < launches && !HasFailure(); ++launch) {
    std::string input;
    std::uint64_t output_bytes = 0;
    std::vector<script> scripts;
    for (faulty_writer& w : writers)
      scripts.push_back(w.next(*world, shared.name, round, stripe, input, output_bytes));
    const performance p = s.run(scripts, input, output_bytes + 64);
    told_errors told;
    bool all_written = true;
    for (faulty_writer& w : writers) {
      w.follow(p, shared);
      w.check_files(*world);
      for (int i = 0; i < own_files; ++i) check_told(w.file(i), w.told(i), false);
      const told_errors& of_shared = w.told(shared_file);
      told.opens += of_shared.opens;
      told.writes += of_shared.writes;
      told.syncs += of_shared.syncs;
      all_written = all_written && w.all_of_shared_closed_well();
    }
    check_told(shared, told, true);
    const std::string before = std::exchange(content, world->content(shared.name));
    ASSERT_EQ(content.size(), before.size());
    for (faulty_writer& w : writers) w.shared().close(all_written);
    for (std::uint64_t at = 0; at < content.size(); ++at) {
      ASSERT_TRUE(writers[at % round / stripe].shared().may_be_on_host(at, content[at]))
          << "byte " << at << " of the shared file";
    }
    for (faulty_writer& w : writers) w.shared().set_content(content);
  }
  EXPECT_EQ(fs.stats()[counter::rpc_failures], 0u);
  EXPECT_EQ(fs.stats()[counter::no_frames], 0u);
}

INSTANTIATE_TEST_SUITE_P(seed, random_write_faults, ::testing::ValuesIn(seeds()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace gpufs::testing
