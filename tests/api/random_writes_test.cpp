// Random calls that change files, in random mounts, against a naive model: bytes, sizes, and what
// others see, after every call of a group and after every close. A failure prints the seed;
// GPUFS_TEST_SEED=<seed> runs that one again.
//
// Groups run at the same time. Each has files of its own, with which it does everything there is;
// for those the model is a string. All write to the same shared files too, each of them only its
// own bytes (stripes that are narrower than pages), as does a thread of the host that knows nothing
// of them; so all must find their bytes, and in the end the files have everybody's. And all append
// records to one file, each of which must be there once and whole. In every other seed the groups
// are those of two mounts, each with its file of records.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "api/expected_calls.hpp"
#include "api/matrix.hpp"
#include "support/schedule.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

constexpr std::size_t calls_of_a_script = is_sanitized ? 40 : 120;
constexpr int launches = is_sanitized ? 2 : 5;

// Files that all share: byte `i` belongs to writer `i / stripe % writers`; the last of them is the
// host.
struct shared_file {
  std::string name;
  std::string content;
  std::uint64_t stripe = 1;
};

// What a group knows of its own files, and expects of its calls.
class writer {
 public:
  writer(std::uint64_t seed, std::uint32_t number, std::uint64_t page_bytes, std::string records)
      : random_(seed), number_(number), page_bytes_(page_bytes), records_(std::move(records)) {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  script next(const file_world& world, std::vector<shared_file>& shared, std::uint64_t writers,
              std::string& input, std::uint64_t& output_bytes);
  void check(const std::vector<outcome>& outcomes, const std::string& output) const {
    calls_.check("group " + std::to_string(number_), outcomes, output);
  }
  // As the host sees them, when all is closed.
  void check_files(const file_world& world) const {
    for (int i = 0; i < own_files; ++i) {
      const std::string name = name_of(i);
      ASSERT_EQ(world.exists(name), files_[i].exists) << name;
      if (files_[i].exists) expect_same_bytes(world.content(name), files_[i].content, name);
    }
  }
  const std::vector<std::string>& appended() const { return appended_; }

 private:
  static constexpr int own_files = 2;
  static constexpr int shared_register = 4, append_register = 8;
  struct own_file {
    bool exists = false;
    int open = 0;  // 0: not; else 1 + kind of the descriptor
    std::string content;
    // In this launch:
    bool was_made = false;  // without O_TRUNC
    bool was_emptied = false;
  };

  std::string name_of(int i) const {
    return "own-" + std::to_string(number_) + "-" + std::to_string(i);
  }
  std::string fresh(std::uint64_t bytes) {
    std::string s(bytes, '\0');
    for (char& c : s) c = static_cast<char>('a' + random_() % 26);
    return s;
  }
  std::uint64_t place(const std::string& content) {
    std::uint64_t at = below(content.size() + 1);
    if (below(3) == 0) at = at / page_bytes_ * page_bytes_;
    if (below(6) == 0) at = content.size() + below(3 * page_bytes_);
    return at;
  }
  std::uint64_t length() {
    return 1 + (below(3) == 0   ? below(3 * page_bytes_)
                : below(3) == 0 ? page_bytes_ - 1
                                : below(60));
  }
  void open_own(const file_world& world, int i, std::string& input);
  void use_own(const file_world& world, int i, std::string& input, std::uint64_t& output_bytes);
  void use_shared(shared_file& f, int from, std::uint64_t writers, std::string& input,
                  std::uint64_t& output_bytes);
  void plan_write(int from, std::uint64_t at, const std::string& bytes, std::string& input,
                  const std::string& what) {
    calls_.add_write(from, at, bytes, input, below(16), what);
  }
  void plan_read(int from, std::uint64_t at, std::uint64_t bytes, const std::string& expected,
                 std::uint64_t& output_bytes, const std::string& what) {
    device_call c{action::read};
    c.from = from;
    c.offset = static_cast<std::int64_t>(at);
    (void)calls_.add_read(c, bytes, expected, output_bytes, below(16), what);
  }

  std::mt19937_64 random_;
  const std::uint32_t number_;
  const std::uint64_t page_bytes_;
  const std::string records_;  // the file that it appends to
  own_file files_[own_files];
  std::vector<std::string> appended_;
  expected_calls calls_;
};

void writer::open_own(const file_world& world, int i, std::string& input) {
  own_file& f = files_[i];
  const int kind = static_cast<int>(below(4));  // read and write, write, append, once
  device_call c{action::open};
  c.to = i;
  c.bytes = 0644;
  c.memory = add_string(input, world.path(name_of(i)));
  c.flags = kind == 0   ? O_RDWR
            : kind == 1 ? O_WRONLY
            : kind == 2 ? O_RDWR | O_APPEND
                        : O_WRONLY | O_GWRONCE;
  if (below(3) != 0) c.flags |= O_CREAT;
  // A file that was just made may be taken for one that was just removed, and that this launch had
  // emptied (service/file_table.hpp).
  if (below(4) == 0 && !f.was_made) c.flags |= O_TRUNC;
  if (below(6) == 0) c.flags |= O_CREAT | O_EXCL;
  const bool creates = (c.flags & O_CREAT) != 0;
  const std::int64_t error = f.exists && (c.flags & O_EXCL) != 0 ? -EEXIST
                             : !f.exists && !creates             ? -ENOENT
                                                                 : 0;
  if (error != 0) return calls_.add(c, error, "open " + name_of(i));
  calls_.add_open(c, "open " + name_of(i));
  f.was_made = f.was_made || (!f.exists && (c.flags & O_TRUNC) == 0);
  f.exists = true;
  // Once in a launch.
  if ((c.flags & O_TRUNC) != 0 && !f.was_emptied) f.content.clear();
  f.was_emptied = f.was_emptied || (c.flags & O_TRUNC) != 0;
  f.open = 1 + kind;
}

void writer::use_own(const file_world& world, int i, std::string& input,
                     std::uint64_t& output_bytes) {
  own_file& f = files_[i];
  if (f.open == 0) {
    if (f.exists && below(8) == 0) {
      device_call c{action::unlink};
      c.memory = add_string(input, world.path(name_of(i)));
      calls_.add(c, 0, "unlink " + name_of(i));
      f = {};
    } else if (f.exists && files_[1 - i].open == 0 && below(8) == 0) {
      device_call c{action::rename};
      c.memory = add_string(input, world.path(name_of(i)));
      c.bytes = add_string(input, world.path(name_of(1 - i)));
      calls_.add(c, 0, "rename " + name_of(i));
      files_[1 - i] = f;
      f = {};
    } else {
      open_own(world, i, input);
    }
    return;
  }
  const std::string what = name_of(i) + " (kind " + std::to_string(f.open) + ")";
  switch (below(10)) {
    case 0: {
      device_call c{action::close};
      c.from = i;
      calls_.add(c, 0, "close " + what);
      f.open = 0;
      break;
    }
    case 1: {
      // All of it, or what is dirty of some of it.
      device_call c{below(2) == 0 ? action::sync : action::advise};
      c.from = i;
      if (c.what == action::advise) {
        c.offset = static_cast<std::int64_t>(place(f.content));
        c.bytes = length();
        c.flags = POSIX_FADV_DONTNEED;
      }
      calls_.add(c, 0, (c.what == action::sync ? "sync " : "advise ") + what);
      break;
    }
    case 2: {
      device_call c{action::truncate};
      c.from = i;
      const std::uint64_t size = place(f.content);
      c.offset = static_cast<std::int64_t>(size);
      calls_.add(c, 0, "truncate " + what + " to " + std::to_string(size));
      f.content.resize(size, '\0');
      break;
    }
    case 3:
    case 4:
    case 5: {
      if (f.open != 1 && f.open != 3) break;
      const std::uint64_t at = place(f.content), n = length();
      plan_read(i, at, n, at < f.content.size() ? f.content.substr(at, n) : std::string(),
                output_bytes, "read " + what + " at " + std::to_string(at));
      break;
    }
    default: {
      const std::string bytes = fresh(length());
      const std::uint64_t at = f.open == 3 ? f.content.size() : place(f.content);
      plan_write(i, at, bytes, input, "write " + what + " at " + std::to_string(at));
      if (f.content.size() < at + bytes.size()) f.content.resize(at + bytes.size(), '\0');
      f.content.replace(at, bytes.size(), bytes);
    }
  }
}

// Only bytes of its own, and only those.
void writer::use_shared(shared_file& f, int from, std::uint64_t writers, std::string& input,
                        std::uint64_t& output_bytes) {
  const std::uint64_t rounds = f.content.size() / (f.stripe * writers);
  if (rounds == 0) return;
  const std::uint64_t first = (below(rounds) * writers + number_) * f.stripe;
  const std::uint64_t skip = below(f.stripe), n = 1 + below(f.stripe - skip);
  const std::uint64_t at = first + skip;
  const std::string what = f.name + " at " + std::to_string(at);
  if (below(2) == 0) {
    plan_read(from, at, n, f.content.substr(at, n), output_bytes, "read " + what);
  } else {
    const std::string bytes = fresh(n);
    plan_write(from, at, bytes, input, "write " + what);
    f.content.replace(at, n, bytes);
  }
}

script writer::next(const file_world& world, std::vector<shared_file>& shared,
                    std::uint64_t writers, std::string& input, std::uint64_t& output_bytes) {
  calls_.clear();
  for (own_file& f : files_) f.was_made = f.was_emptied = false;
  for (std::size_t i = 0; i <= shared.size(); ++i) {
    device_call c{action::open};
    const bool appends = i == shared.size();
    c.to = appends ? append_register : shared_register + static_cast<int>(i);
    c.bytes = 0644;
    c.flags = appends ? O_WRONLY | O_APPEND | O_CREAT : O_RDWR;
    c.memory = add_string(input, world.path(appends ? records_ : shared[i].name));
    calls_.add_open(c, "open shared");
  }
  while (calls_.size() < calls_of_a_script) {
    switch (below(4)) {
      case 0:
      case 1: use_own(world, static_cast<int>(below(own_files)), input, output_bytes); break;
      case 2: {
        const auto i = static_cast<int>(below(shared.size()));
        use_shared(shared[static_cast<std::size_t>(i)], shared_register + i, writers, input,
                   output_bytes);
        break;
      }
      default: {
        std::string record = std::to_string(number_) + ":" + std::to_string(appended_.size()) +
                             ":" + fresh(below(100)) + ";";
        plan_write(append_register, 0, record, input, "append");
        appended_.push_back(std::move(record));
        if (below(30) == 0) {
          device_call c{action::sync};
          c.from = append_register;
          calls_.add(c, 0, "sync records");
        }
      }
    }
  }
  for (int i = 0; i < own_files; ++i) {
    if (files_[i].open == 0) continue;
    device_call c{action::close};
    c.from = i;
    calls_.add(c, 0, "close at the end");
    files_[i].open = 0;
  }
  for (std::size_t i = 0; i <= shared.size(); ++i) {
    device_call c{action::close};
    c.from = i == shared.size() ? append_register : shared_register + static_cast<int>(i);
    calls_.add(c, 0, "close shared");
  }
  return calls_.calls();
}

class random_writes : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(random_writes, agree_with_a_naive_model) {
  const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                     "GPUFS_TEST_SEED=" + std::to_string(GetParam()));
  std::mt19937_64 random(GetParam());
  const auto below = [&](std::uint64_t n) { return random() % n; };
  const auto chance = [&](std::uint64_t n) { return below(n) == 0; };

  const auto kind = static_cast<group_kind>(below(3));
  mount_options options = base_options();
  options.page_bytes = std::uint64_t{512} << (chance(4) ? below(8) : below(4));
  options.workers = 1 + static_cast<unsigned>(below(4));
  options.cpu_threads = 2 + static_cast<unsigned>(below(8));
  options.staging_bytes = 8192u << below(4);
  options.write_bytes = options.staging_bytes << GetParam() % 4;
  options.channel_slots = chance(3) ? 1 + static_cast<unsigned>(below(3)) : 16;
  options.extent_budget_bytes = chance(2) ? std::uint64_t{4} << 20 : 0;
  options.request_timeout = std::chrono::seconds(120);
  options.reclaim_timeout = std::chrono::seconds(60);
  const auto group_count = 4 + static_cast<std::uint32_t>(below(20));
  // A pin for each call under way; all others have to be written back for others.
  const std::uint64_t at_once = device() == device_kind::cpu
                                    ? std::min<std::uint64_t>(options.cpu_threads, group_count)
                                    : group_count;
  options.cache_bytes = (at_once + 8 + below(chance(3) ? 1000 : 20)) * options.page_bytes;
  options.rings = 1 + static_cast<unsigned>(below(4));

  const std::unique_ptr<file_world> world =
      file_world::make(chance(2) ? source::posix : source::memory);
  const auto io = std::make_shared<fault_backend>(world->io(), GetParam());
  options.backend = io;
  if (chance(3)) {
    fault interrupted;
    interrupted.on = chance(2) ? operation::write : operation::read;
    interrupted.error_number = EINTR;
    interrupted.probability = 0.2;
    io->add(interrupted);
    fault shortened;
    shortened.on = operation::write;
    shortened.bytes_max = 700;
    shortened.probability = 0.3;
    io->add(shortened);
  }
  std::unique_ptr<random_delays> delays;
  if (chance(2)) delays = std::make_unique<random_delays>(GetParam());

  const std::uint64_t writers_count = group_count + 1;
  std::vector<shared_file> shared(1 + below(2));
  for (std::size_t i = 0; i < shared.size(); ++i) {
    shared[i].name = "shared-" + std::to_string(i);
    shared[i].stripe = 1 + below(chance(2) ? 10 : 300);
    shared[i].content =
        self_checking(static_cast<unsigned>(i) + 1, 0, 0, below(40 * options.page_bytes));
    if (shared[i].content.size() > 300'000) shared[i].content.resize(300'000);
    world->write(shared[i].name, shared[i].content);
  }

  const unsigned mounts = 1 + GetParam() % 2;
  std::vector<writer> writers;
  for (std::uint32_t g = 0; g < group_count; ++g)
    writers.emplace_back(random(), g, options.page_bytes, "records-" + std::to_string(g % mounts));
  // Of each mount; writer g is one of mount g % mounts.
  std::vector<std::unique_ptr<mount>> all;
  std::vector<std::unique_ptr<stage>> stages;
  for (unsigned m = 0; m < mounts; ++m) {
    options.ordinal = m == 0 ? 0 : another_gpu();
    all.push_back(std::make_unique<mount>(options));
    stages.push_back(
        std::make_unique<stage>(*all[m], kind, (group_count + mounts - 1 - m) / mounts));
  }
  for (int round = 0; round < launches && !HasFailure(); ++round) {
    struct of_mount {
      std::string input;
      std::uint64_t output_bytes = 0;
      std::vector<script> scripts;
      performance done;
    };
    std::vector<of_mount> parts(mounts);
    for (std::size_t g = 0; g < writers.size(); ++g) {
      of_mount& part = parts[g % mounts];
      part.scripts.push_back(
          writers[g].next(*world, shared, writers_count, part.input, part.output_bytes));
    }
    // The host writes its bytes meanwhile. What it has written when the kernel begins, a group may
    // see or not; what it writes in the end everybody must.
    std::vector<std::pair<std::size_t, std::uint64_t>> of_host;
    for (std::size_t i = 0; i < shared.size(); ++i) {
      const std::uint64_t rounds = shared[i].content.size() / (shared[i].stripe * writers_count);
      for (std::uint64_t k = 0; k < rounds; ++k) {
        const std::uint64_t at = (k * writers_count + group_count) * shared[i].stripe;
        if (chance(3)) of_host.emplace_back(i, at);
        else continue;
        const std::string bytes(shared[i].stripe, static_cast<char>('A' + below(26)));
        shared[i].content.replace(at, bytes.size(), bytes);
      }
    }
    std::thread host([&] {
      for (const auto& [i, at] : of_host)
        world->write_at(shared[i].name, at, shared[i].content.substr(at, shared[i].stripe));
    });
    const auto run = [&](unsigned m) {
      parts[m].done = stages[m]->run(parts[m].scripts, parts[m].input, parts[m].output_bytes + 64);
    };
    std::thread second([&] {
      if (mounts == 2) run(1);
    });
    run(0);
    second.join();
    host.join();
    for (std::size_t g = 0; g < writers.size(); ++g) {
      const performance& done = parts[g % mounts].done;
      writers[g].check(done.outcomes[g / mounts], done.output);
    }
    for (const writer& w : writers) w.check_files(*world);
    for (const shared_file& f : shared)
      expect_same_bytes(world->content(f.name), f.content, f.name);
  }

  std::multiset<std::string> records, wanted;
  for (unsigned m = 0; m < mounts; ++m) {
    const std::string text = world->content("records-" + std::to_string(m));
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find(';', at), text.size() - 1);
      records.insert(text.substr(at, end + 1 - at));
      at = end + 1;
    }
  }
  for (const writer& w : writers) wanted.insert(w.appended().begin(), w.appended().end());
  EXPECT_EQ(records, wanted);
  for (const std::unique_ptr<mount>& m : all) {
    const statistics counted = m->stats();
    EXPECT_EQ(counted[counter::rpc_failures], 0u);
    EXPECT_EQ(counted[counter::no_frames], 0u);
    EXPECT_EQ(counted[counter::write_back_errors], 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(seed, random_writes, ::testing::ValuesIn(seeds()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace gpufs::testing
