// A kernel may write anything into all memory that it shares with the host: the arena, the channel
// and its staging memory. What the host reads of it is not followed anywhere.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "api/session.hpp"
#include "gpufs/backend.hpp"
#include "gpufs/gpufs.hpp"
#include "support/seeds.hpp"
#include "support/temporary.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing {
namespace {

class scribbled_arena : public ::testing::Test {
 protected:
  static mount_options small() {
    mount_options options;
    options.device = device_kind::cpu;
    options.cache_bytes = 1 << 20;
    options.open_files = 64;
    options.workers = 1;
    return options;
  }
  void SetUp() override {
    session calls(fs_, group_kind::thread);
    ASSERT_GE(calls.open(folder_.write("read", "content")), 0);
    ASSERT_GE(calls.open(folder_.write("written", "content"), O_RDWR), 0);
    ASSERT_EQ(fs_.file_stats().size(), 2u);
  }
  const temporary_folder folder_;
  mount fs_{small()};
};

TEST_F(scribbled_arena, the_number_of_a_files_node_is_checked) {
  const mount_ref ref = fs_.ref();
  const std::uint32_t nodes = ref.layout.node_count;
  for (const std::uint32_t node : {nodes, nodes + 1, 0x7fff'ffffu, 0xffff'ffffu}) {
    for (std::uint32_t record = 0; record < ref.layout.file_count; ++record) {
      for (std::uint32_t copy = 0; copy < file_copies; ++copy)
        ref.facts_of(record, copy).size.store_relaxed(file_facts::size_in_node | node);
    }
    const std::vector<file_statistics> stats = fs_.file_stats();
    ASSERT_EQ(stats.size(), 2u);
    for (const file_statistics& f : stats) EXPECT_EQ(f.size, 7u) << "the host's own number";
  }
}

TEST_F(scribbled_arena, records_that_name_the_same_file_count_once) {
  const mount_ref ref = fs_.ref();
  auto* const files = reinterpret_cast<char*>(ref.at<open_file>(ref.layout.files));
  // The first two records are those of the open files.
  for (std::uint32_t record = 2; record < ref.layout.file_count; ++record)
    std::memcpy(files + sizeof(open_file) * record, files + sizeof(open_file) * (record % 2),
                sizeof(open_file));
  EXPECT_EQ(fs_.file_stats().size(), 2u);
}

TEST_F(scribbled_arena, the_host_reads_on_whatever_is_there) {
  const mount_ref ref = fs_.ref();
  std::mt19937_64 random(11);
  // All tables: everything but the pages themselves.
  for (int round = 0; round < 30; ++round) {
    for (std::uint64_t at = 0; at + 8 <= ref.layout.pages; at += 8) {
      const std::uint64_t word = round == 0 ? ~std::uint64_t{0} : random() >> random() % 64;
      if (round == 0 || random() % 4 == 0) std::memcpy(ref.arena + at, &word, sizeof word);
    }
    for (const file_statistics& f : fs_.file_stats()) EXPECT_FALSE(f.path.empty());
    (void)fs_.stats();
  }
}

// A file of any size, that notes where its bytes end.
class endless_backend final : public backend {
 public:
  std::atomic<std::uint64_t> written_to{0};

  int open(const std::string&, bool, std::unique_ptr<backend_file>& opened) override {
    opened = std::make_unique<file>(*this);
    return 0;
  }
  int open_to_change(const std::string&, const open_how&,
                     std::unique_ptr<backend_file>& opened) override {
    return open({}, false, opened);
  }

 private:
  class file final : public backend_file {
   public:
    explicit file(endless_backend& owner) : owner_(owner) {}
    int identify(file_identity& identity) override {
      identity = {};
      identity.mode = S_IFREG | 0600;
      return 0;
    }
    std::int64_t read(char*, std::uint64_t, std::uint64_t) override { return 0; }
    std::unique_ptr<file_mapping> map(std::uint64_t, std::uint64_t) override { return nullptr; }
    double cached(const file_mapping&, std::uint64_t) override { return 0; }
    void read_ahead(std::uint64_t, std::uint64_t) override {}
    std::int64_t write(const char*, std::uint64_t bytes, std::uint64_t offset) override {
      owner_.written_to = offset + bytes;
      return static_cast<std::int64_t>(bytes);
    }
    int sync() override { return 0; }

   private:
    endless_backend& owner_;
  };
};

// No open would serve the file any more.
TEST(scribbled_sizes, an_unmount_makes_no_file_too_large) {
  const auto io = std::make_shared<endless_backend>();
  mount_options options = base_options();
  options.backend = io;
  mount fs(options);
  {
    session calls(fs, group_kind::thread);
    const std::int32_t fd = calls.open("large", O_RDWR);
    ASSERT_EQ(calls.write(fd, "the end", limits::file_bytes_max - 8), 7);
  }
  const mount_ref ref = fs.ref();
  for (std::uint32_t node = 0; node < ref.layout.node_count; ++node)
    ref.node(node).size.store_relaxed(limits::file_bytes_max);
  auto* const dirt = ref.at<frame_dirt>(ref.layout.dirt);
  for (std::uint32_t f = 0; f < ref.layout.frame_count; ++f) {
    if (dirt[f].flags.load_relaxed() != 0)
      dirt[f].flags.store_relaxed(detail::page_dirt::dirty | detail::page_dirt::whole);
  }
  fs.unmount();
  EXPECT_EQ(io->written_to, limits::file_bytes_max - 1);
}

// ---- all of it, by a kernel that goes on while the host works

// Writes words into shared memory as fast as it can until it is destroyed. Relaxed, as a kernel's
// stores.
class scribbler {
 public:
  scribbler(const mount_ref& fs, std::uint64_t seed)
      : fs_(fs), thread_([this, seed] { run(seed); }) {}
  ~scribbler() {
    ends_ = true;
    thread_.join();
  }
  scribbler(const scribbler&) = delete;
  scribbler& operator=(const scribbler&) = delete;

 private:
  void run(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const channel_layout& l = fs_.channel.layout;
    while (!ends_) {
      const std::uint64_t word = random() >> random() % 64;
      switch (random() % 8) {
        case 0: put(fs_.channel.base, l.total_bytes, random(), word); break;
        case 1: put(fs_.channel.base, l.staging, random(), word); break;
        case 2: put(fs_.channel.base, l.bells, random(), word); break;  // the header
        case 3: put(fs_.arena, fs_.layout.total_bytes, random(), word); break;
        case 4: ring(random); break;
        default: put(fs_.arena, fs_.layout.pages, random(), word); break;  // the tables
      }
    }
  }
  static void put(char* base, std::uint64_t bytes, std::uint64_t place, std::uint64_t word) {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(base + place % (bytes / 8) * 8), word,
                     __ATOMIC_RELAXED);
  }
  // A request that is one, whatever it asks for: one of the others seldom is.
  void ring(std::mt19937_64& random) const {
    const auto slot = static_cast<std::uint32_t>(random() % fs_.channel.layout.slot_count);
    const auto sequence = static_cast<std::uint32_t>(random());
    fs_.channel.request(slot).store(
        {static_cast<request_code>(random() % (request_code_max + 2)),
         static_cast<std::uint32_t>(random() % 64),
         static_cast<std::uint32_t>(random() >> random() % 64), random() >> random() % 64},
        sequence);
    fs_.channel.bell(slot).store_release(sequence);
  }

  const mount_ref fs_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

class scribbled_memory : public ::testing::TestWithParam<unsigned> {
 protected:
  // Names of the calls, for a message; each may throw what a mount throws.
  using host_call = std::pair<const char*, std::function<void(mount&)>>;
  std::vector<host_call> host_calls() {
    return {
        {"stats", [](mount& m) { (void)m.stats(); }},
        {"file_stats", [](mount& m) { (void)m.file_stats(); }},
        {"file_errors", [](mount& m) { (void)m.file_errors(); }},
        {"ref", [](mount& m) { (void)m.ref(); }},
        {"device_ref", [](mount& m) { (void)m.device_ref(); }},
        {"start_timeline", [](mount& m) { m.start_timeline(1000); }},
        {"stop_timeline", [](mount& m) { (void)m.stop_timeline(); }},
        {"open_sink",
         [this](mount& m) { sink_ = m.open_sink([](const char*, std::size_t) { return 0; }); }},
        {"close_sink", [this](mount& m) { EXPECT_TRUE(m.close_sink(sink_)); }},
        {"register_file", [](mount& m) { EXPECT_LE(m.register_file("kept"), 200'000u); }},
        {"drop_extents", [](mount& m) { m.drop_extents(); }},
        {"synchronize", [](mount& m) { m.synchronize(); }},
        {"allocate", [](mount& m) { m.free(m.allocate(1000)); }},
        {"copies",
         [](mount& m) {
           char here[8] = "1234567";
           void* const there = m.allocate(8);
           m.copy_to_device(there, here, 8);
           m.copy_to_host(here, there, 8);
           m.free(there);
           EXPECT_STREQ(here, "1234567");
         }},
        {"sync_folder", [](mount& m) { m.sync_folder("."); }},
    };
  }

  static std::map<std::string, std::string> look(const std::string& folder) {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      all[entry.path()] = {std::istreambuf_iterator<char>(file), {}};
    }
    return all;
  }

  void run(std::uint64_t seed) {
    const temporary_folder folder;
    std::filesystem::create_directories(folder / "root");
    std::filesystem::create_directories(folder / "outside");
    folder.write("outside/file", "nobody may touch it");
    const auto before = look(folder / "outside");
    for (const char* name : {"root/kept", "root/read", "root/written"})
      folder.write(name, std::string(200'000, 'r'));
    mount_options options = base_options();
    options.root = folder / "root";
    options.workers = GetParam();
    options.cache_bytes = 64 * options.page_bytes;
    options.extent_budget_bytes = std::uint64_t{1} << 20;
    options.open_files = 64;
    options.write_bytes = 65536;
    options.request_timeout = std::chrono::seconds(2);
    mount fs(options);
    {
      session calls(fs, group_kind::thread);
      (void)calls.read(calls.open("read"), 0, 50'000);
      const std::int32_t fd = calls.open("written", O_RDWR);
      (void)calls.write(fd, std::string(30'000, 'w'), 100);
    }
    const auto start = std::chrono::steady_clock::now();
    {
      const scribbler scribbles(fs.ref(), seed);
      std::mt19937_64 random(seed);
      for (int round = 0; round < 3; ++round) {
        std::vector<host_call> all = host_calls();
        for (const auto& [name, call] : all) {
          const ::testing::ScopedTrace trace(__FILE__, __LINE__, name);
          call(fs);
          if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
    }
    // What a kernel that has ended leaves behind.
    try {
      fs.unmount();
    } catch (const error&) {
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
    EXPECT_EQ(look(folder / "outside"), before);
  }

 private:
  std::int32_t sink_ = -1;
};
INSTANTIATE_TEST_SUITE_P(with_workers, scribbled_memory, ::testing::Values(1u, 4u),
                         ::testing::PrintToStringParamName());

TEST_P(scribbled_memory, hurts_no_call_of_the_host) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a kernel's stores race with the host's reads, which is what this test is about";
#endif
  for (work_budget budget(is_sanitized ? 3 : 12); budget.next();) {
    SCOPED_TRACE(budget.replay());
    run(budget.seed());
    budget.covers("mounts", 1);
  }
}

}  // namespace
}  // namespace gpufs::testing
