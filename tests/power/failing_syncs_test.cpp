// Two of a hundred syncs of the host fail, and lose bytes as Linux does, while several groups
// write, sync and close the same files, and another program syncs them too. A gfsync that returns 0
// has lost nothing of what its group wrote: that is looked at when it returns. After an error that
// a group was told, every gfsync and gclose of the file fails, up to the last gclose; the host can
// ask for it, and unmount() throws it.
#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "api/session.hpp"
#include "gpufs/error.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "gpufs/write.cuh"
#include "support/durable_backend.hpp"
#include "support/schedule.hpp"
#include "support/seeds.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing {
namespace {

constexpr std::size_t file_count = 2;
constexpr unsigned steps_of_a_launch = is_sanitized ? 24 : 40;
constexpr int launches = 3;

// A file, as all groups see it.
struct shared_file {
  std::string path;
  std::uint64_t inode = 0;
  bool stays_open = false;          // the test has it open while groups open and close it
  std::atomic<bool> failed{false};  // since the test opened it a group was told that a sync failed
};

// What all groups of a launch share.
struct world {
  std::shared_ptr<durable_backend> io;
  std::deque<shared_file> files;
  std::uint64_t file_bytes = 0, stripe = 0;
  std::uint32_t groups = 0;
  std::atomic<std::uint64_t> syncs{0};
  std::mutex mutex;     // guards the next
  std::string failure;  // the first

  void fail(const std::string& what) {
    const std::lock_guard lock(mutex);
    if (failure.empty()) failure = what;
  }
};

// Byte i of a file is group (i / stripe) % groups's.
class syncing_group {
 public:
  syncing_group(world& all, std::uint32_t number, std::uint64_t seed)
      : all_(all), number_(number), random_(seed) {
    for (own_file& f : own_) f.bytes.resize(all.file_bytes);
  }

  template <class Group>
  void run(const Group& g, const mount_ref& fs) {
    for (unsigned step = 0; step < steps_of_a_launch; ++step) use(g, fs, random_() % file_count);
    for (std::size_t i = 0; i < file_count; ++i) {
      if (own_[i].fd < 0) continue;
      sync(g, fs, i);
      close(g, fs, i);
    }
  }

  // All that was written is in the host's file now, where no sync has failed.
  void expect_on_host(std::size_t file) {
    const std::string content = all_.io->content(all_.files[file].path);
    for (std::uint64_t i = 0; i < all_.file_bytes; ++i) {
      const own_byte b = own_[file].bytes[i];
      if (b.is != known::unknown && (i >= content.size() || content[i] != b.value))
        return all_.fail("byte " + std::to_string(i) + " of " + all_.files[file].path +
                         " is not in the host's file");
    }
  }
  // The power may go now; `synced`: all that was written was synced just now.
  void expect_on_disk(std::size_t file, bool synced) {
    own_file& own = own_[file];
    const durable_backend::file_on_disk possible = all_.io->possible_file(all_.files[file].inode);
    const std::uint64_t size = *std::min_element(possible.sizes.begin(), possible.sizes.end());
    for (std::uint64_t i = 0; i < all_.file_bytes; ++i) {
      own_byte& b = own.bytes[i];
      if (b.is == known::written && synced) b.is = known::synced;
      if (b.is != known::synced) continue;
      bool is_there = i < size;
      if (is_there) {
        for (const auto& sector : possible.sectors[i / durable_backend::sector_bytes])
          is_there = is_there && sector[i % durable_backend::sector_bytes] == b.value;
      }
      if (!is_there)
        return all_.fail("gfsync returned 0 and byte " + std::to_string(i) + " of " +
                         all_.files[file].path + " may be lost: group " + std::to_string(number_));
    }
  }
  // Bytes that were written and not synced may be lost from now on.
  void forget_unsynced(std::size_t file) {
    for (own_byte& b : own_[file].bytes) {
      if (b.is == known::written) b.is = known::unknown;
    }
  }

 private:
  enum class known : char { unknown, written, synced };
  struct own_byte {
    char value = 0;
    known is = known::unknown;
  };
  struct own_file {
    std::vector<own_byte> bytes;
    std::int32_t fd = -1;
    bool failed = false;  // this group was told since it opened the file
  };

  template <class Group>
  void use(const Group& g, const mount_ref& fs, std::size_t file) {
    own_file& own = own_[file];
    const shared_file& shared = all_.files[file];
    if (own.fd < 0) {
      // By two descriptors of the host, where others do not have it open by one.
      const int flags = !shared.stays_open && random_() % 2 == 0 ? O_WRONLY : O_RDWR;
      own.fd = gopen(g, fs, shared.path.c_str(), flags);
      if (own.fd < 0) all_.fail("gopen returned " + std::to_string(own.fd));
      own.failed = false;
      return;
    }
    switch (random_() % 8) {
      case 0:
      case 1: return sync(g, fs, file);
      case 2:
        if (random_() % 3 == 0) close(g, fs, file);
        return;
      default: return write(g, fs, file);
    }
  }

  template <class Group>
  void write(const Group& g, const mount_ref& fs, std::size_t file) {
    own_file& own = own_[file];
    const std::uint64_t round = all_.stripe * all_.groups;
    const std::uint64_t begin =
        random_() % (all_.file_bytes / round) * round + number_ * all_.stripe;
    const std::uint64_t skip = random_() % all_.stripe, n = 1 + random_() % (all_.stripe - skip);
    std::string bytes;
    for (std::uint64_t i = begin + skip; i < begin + skip + n; ++i) {
      own_byte& b = own.bytes[i];
      b.value = static_cast<char>(b.value % 100 + 1);  // another one than before
      b.is = known::written;
      bytes += b.value;
    }
    const std::int64_t written =
        gwrite(g, fs, own.fd, bytes.data(), n, static_cast<std::int64_t>(begin + skip));
    if (written != static_cast<std::int64_t>(n))
      all_.fail("gwrite returned " + std::to_string(written));
  }

  // Of a call that is to fail if a sync has failed since the file's first open.
  void check(std::int32_t result, bool must_fail, std::size_t file, const char* what) {
    own_file& own = own_[file];
    if (result != 0 && result != -EIO)
      all_.fail(std::string(what) + " returned " + std::to_string(result));
    if (result == 0 && must_fail)
      all_.fail(std::string(what) + " of " + all_.files[file].path +
                " returned 0 after a sync that failed: group " + std::to_string(number_));
    if (result == 0) return;
    own.failed = true;
    all_.files[file].failed = true;
    forget_unsynced(file);
  }
  bool must_fail(std::size_t file) const {
    return own_[file].failed || (all_.files[file].stays_open && all_.files[file].failed);
  }

  template <class Group>
  void sync(const Group& g, const mount_ref& fs, std::size_t file) {
    const bool fails = must_fail(file);
    const std::int32_t result = gfsync(g, fs, own_[file].fd);
    ++all_.syncs;
    check(result, fails, file, "gfsync");
    if (result == 0) expect_on_disk(file, true);
  }

  template <class Group>
  void close(const Group& g, const mount_ref& fs, std::size_t file) {
    own_file& own = own_[file];
    const bool fails = must_fail(file);
    const std::int32_t result = gclose(g, fs, own.fd);
    own.fd = -1;
    check(result, fails, file, "gclose");
    // Who syncs the file later may be told that it is on the disk; but not who does not.
    if (!all_.files[file].stays_open) forget_unsynced(file);
  }

  world& all_;
  const std::uint32_t number_;
  std::mt19937_64 random_;
  own_file own_[file_count];
};

struct syncing_kernel {
  syncing_group* const* groups;
  bool by_blocks;

  void operator()(const mount_ref& fs) const {
    syncing_group& own = *groups[this_block().grid_rank()];
    if (by_blocks) own.run(this_block(), fs);
    else own.run(this_warp(), fs);
  }
};

// Opens the files one after the other, and syncs them. What it is told, later descriptors are not.
class syncing_program {
 public:
  explicit syncing_program(const world& all) : thread_([this, &all] { run(all); }) {}
  ~syncing_program() {
    ends_ = true;
    thread_.join();
  }

 private:
  void run(const world& all) {
    while (!ends_) {
      for (const shared_file& f : all.files) {
        std::unique_ptr<backend_file> file;
        if (all.io->open(f.path, false, file) == 0) (void)file->sync();
      }
    }
  }
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

class failing_syncs_run {
 public:
  explicit failing_syncs_run(std::uint64_t seed)
      : random_(seed), delays_(below(2) == 0 ? new random_delays(seed) : nullptr) {
    options_ = base_options();
    options_.page_bytes = std::uint64_t{512} << below(3);
    options_.workers = 1 + static_cast<unsigned>(below(4));
    all_.groups = 2 + static_cast<std::uint32_t>(below(6));
    options_.cpu_threads = all_.groups;
    options_.cache_bytes = (3 * all_.groups + 8 + below(20)) * options_.page_bytes;
    options_.reclaim_timeout = options_.request_timeout;
    all_.io = std::make_shared<durable_backend>(seed);
    options_.backend = all_.io;
    all_.stripe = 1 + below(100);
    const std::uint64_t round = all_.stripe * all_.groups;
    all_.file_bytes = (1 + (4096 + below(8192)) / round) * round;
    for (std::size_t i = 0; i < file_count; ++i) {
      shared_file& f = all_.files.emplace_back();
      f.path = "d/" + std::to_string(i);
      f.stays_open = i == 0;
      all_.io->create(f.path, std::string(below(all_.file_bytes), '\0'));
      f.inode = all_.io->inode(f.path);
    }
    for (std::uint32_t g = 0; g < all_.groups; ++g) {
      groups_.push_back(std::make_unique<syncing_group>(all_, g, random_()));
      pointers_.push_back(groups_.back().get());
    }
  }

  std::uint64_t syncs() const { return all_.syncs; }
  std::uint64_t failed_syncs() const { return all_.io->failed_syncs(); }

  // Empty, or what is wrong.
  std::string run() {
    mount fs(options_);
    session calls(fs, group_kind::thread);
    for (int i = 0; i < launches && all_.failure.empty(); ++i)
      launch_groups(fs, calls, i + 1 == launches);
    return all_.failure;
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  void launch_groups(mount& fs, session& calls, bool is_last) {
    shared_file& open_file = all_.files[0];
    const std::int32_t fd = calls.open(open_file.path, O_RDWR);
    for (shared_file& f : all_.files) f.failed = false;
    all_.io->fail_at_random(0.02, below(2) == 0 ? 0.02 : 0);
    {
      const auto other = below(2) == 0 ? std::make_unique<syncing_program>(all_) : nullptr;
      launch(fs, {.blocks = all_.groups}, syncing_kernel{pointers_.data(), below(2) == 0});
    }
    all_.io->fail_at_random(0, 0);
    if (!all_.failure.empty()) return;
    check_reports(fs);
    if (!all_.files[1].failed) expect_on_host(1);
    if (is_last && below(2) == 0) return end(fs);
    const bool fails = open_file.failed;
    const std::int32_t synced = calls.sync(fd), closed = calls.close(fd);
    // What the host failed to write by itself the first sync may be told.
    if (synced != 0 && synced != -EIO) all_.fail("gfsync of the test");
    if (synced == 0 && fails) all_.fail("the last gfsync returned 0 after a sync that failed");
    if ((closed == 0) != (synced == 0))
      all_.fail("the last gclose returned " + std::to_string(closed));
    settle(0, synced == 0);
  }

  // Every group has closed its files. What of file 0 is not synced is as its last sync says.
  void settle(std::size_t file, bool synced) {
    for (auto& group : groups_) {
      if (synced) group->expect_on_disk(file, true);
      else group->forget_unsynced(file);
    }
    for (std::size_t i = 0; i < file_count; ++i) {
      for (auto& group : groups_) group->expect_on_disk(i, false);
    }
  }
  void expect_on_host(std::size_t file) {
    for (auto& group : groups_) group->expect_on_host(file);
  }

  // The host can ask for what groups were told.
  void check_reports(mount& fs) {
    const file_error_list list = fs.file_errors();
    for (const shared_file& f : all_.files) {
      bool is_reported = false;
      for (const file_error& e : list.errors)
        is_reported = is_reported ||
                      (e.path == f.path && e.what == file_operation::sync && e.error_number == EIO);
      if (f.failed && !is_reported) all_.fail("file_errors() does not have " + f.path);
    }
  }

  void end(mount& fs) {
    int thrown = 0;
    try {
      fs.unmount();
    } catch (const error& e) {
      thrown = e.code().value();
    }
    if (all_.files[0].failed && thrown != EIO)
      all_.fail("unmount() did not throw after a sync that failed");
    settle(0, thrown == 0);
  }

  std::mt19937_64 random_;
  const std::unique_ptr<random_delays> delays_;
  mount_options options_;
  world all_;
  std::vector<std::unique_ptr<syncing_group>> groups_;
  std::vector<syncing_group*> pointers_;
};

TEST(failing_syncs, are_returned_to_every_group_that_may_have_lost_bytes) {
  work_budget budget(is_sanitized ? 10 : 40);
  std::uint64_t failed = 0;
  while (budget.next()) {
    failing_syncs_run one(budget.seed());
    const std::string why = one.run();
    if (!why.empty()) ADD_FAILURE() << why << "\n" << budget.replay();
    budget.covers("gfsyncs", one.syncs());
    failed += one.failed_syncs();
  }
  EXPECT_TRUE(failed != 0 || budget.begun() < 10) << "nothing has failed";
}

}  // namespace
}  // namespace gpufs::testing
