// What every backend promises (gpufs/backend.hpp), asked of each of them.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/fault_backend.hpp"
#include "support/memory_backend.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

// A backend, and how a test makes files for it.
class world {
 public:
  virtual ~world() = default;
  virtual std::shared_ptr<backend> io() = 0;
  virtual std::string path(const std::string& name) = 0;
  virtual void write(const std::string& name, std::string_view content,
                     std::uint64_t offset = 0) = 0;
  virtual void truncate(const std::string& name, std::uint64_t bytes) = 0;
  virtual void replace(const std::string& name, std::string_view content) = 0;
  virtual void remove(const std::string& name) = 0;
  virtual void make_directory(const std::string& name) = 0;
  virtual void make_fifo(const std::string& name) = 0;
  virtual void make_link(const std::string& name, const std::string& target) = 0;
  virtual bool maps() const { return true; }
};

class posix_world : public world {
 public:
  std::shared_ptr<backend> io() override { return make_posix_backend(); }
  std::string path(const std::string& name) override { return folder_ / name; }
  void write(const std::string& name, std::string_view content, std::uint64_t offset) override {
    folder_.write(name, content, offset);
  }
  void truncate(const std::string& name, std::uint64_t bytes) override {
    folder_.truncate(name, bytes);
  }
  void replace(const std::string& name, std::string_view content) override {
    folder_.write(name + ".new", content);
    std::filesystem::rename(path(name + ".new"), path(name));
  }
  void remove(const std::string& name) override { std::filesystem::remove(path(name)); }
  void make_directory(const std::string& name) override {
    std::filesystem::create_directory(path(name));
  }
  void make_fifo(const std::string& name) override {
    ASSERT_EQ(mkfifo(path(name).c_str(), 0600), 0);
  }
  void make_link(const std::string& name, const std::string& target) override {
    std::filesystem::create_symlink(path(target), path(name));
  }

 private:
  temporary_folder folder_;
};

// The same behind a fault_backend that has no faults: what it wraps must not change.
class faultless_world final : public posix_world {
 public:
  std::shared_ptr<backend> io() override {
    return std::make_shared<fault_backend>(posix_world::io());
  }
};

class memory_world final : public world {
 public:
  explicit memory_world(bool mappings)
      : io_(std::make_shared<memory_backend>(memory_backend_options{.mappings = mappings})),
        mappings_(mappings) {}
  std::shared_ptr<backend> io() override { return io_; }
  std::string path(const std::string& name) override { return "/" + name; }
  void write(const std::string& name, std::string_view content, std::uint64_t offset) override {
    io_->write_at(path(name), offset, content);
  }
  void truncate(const std::string& name, std::uint64_t bytes) override {
    io_->truncate(path(name), bytes);
  }
  void replace(const std::string& name, std::string_view content) override {
    io_->replace(path(name), content);
  }
  void remove(const std::string& name) override { io_->remove(path(name)); }
  void make_directory(const std::string& name) override { io_->make_directory(path(name)); }
  void make_fifo(const std::string& name) override { io_->make_fifo(path(name)); }
  void make_link(const std::string& name, const std::string& target) override {
    io_->make_link(path(name), path(target));
  }
  bool maps() const override { return mappings_; }

 private:
  const std::shared_ptr<memory_backend> io_;
  const bool mappings_;
};

struct world_parameter {
  const char* name;
  std::function<std::unique_ptr<world>()> make;
};
void PrintTo(const world_parameter& p, std::ostream* out) { *out << p.name; }

class backend_conformance : public ::testing::TestWithParam<world_parameter> {
 protected:
  std::unique_ptr<backend_file> open(const std::string& name, bool no_follow = false) {
    std::unique_ptr<backend_file> file;
    EXPECT_EQ(io_->open(world_->path(name), no_follow, file), 0) << name;
    EXPECT_NE(file, nullptr);
    return file;
  }
  int open_error(const std::string& name, bool no_follow = false) {
    std::unique_ptr<backend_file> file;
    const int status = io_->open(world_->path(name), no_follow, file);
    EXPECT_EQ(file == nullptr, status != 0);
    return status;
  }
  static std::string read(backend_file& file, std::uint64_t bytes, std::uint64_t offset) {
    std::string to(bytes, '\x55');
    const std::int64_t n = file.read(to.data(), bytes, offset);
    EXPECT_GE(n, 0);
    for (std::size_t i = n < 0 ? 0 : static_cast<std::size_t>(n); i < bytes; ++i)
      EXPECT_EQ(to[i], '\x55') << "written behind what was read";
    to.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return to;
  }
  static file_identity identify(backend_file& file) {
    file_identity identity;
    EXPECT_EQ(file.identify(identity), 0);
    return identity;
  }
  // So that a change has another time also on a file system with a coarse clock.
  static void tick() { std::this_thread::sleep_for(std::chrono::milliseconds(15)); }

  const std::unique_ptr<world> world_ = GetParam().make();
  const std::shared_ptr<backend> io_ = world_->io();
};

INSTANTIATE_TEST_SUITE_P(
    , backend_conformance,
    ::testing::Values(
        world_parameter{"posix", [] { return std::make_unique<posix_world>(); }},
        world_parameter{"memory", [] { return std::make_unique<memory_world>(false); }},
        world_parameter{"mapped_memory", [] { return std::make_unique<memory_world>(true); }},
        world_parameter{"fault", [] { return std::make_unique<faultless_world>(); }}),
    [](const auto& p) { return std::string(p.param.name); });

// ---- writing

TEST_P(backend_conformance, a_file_stays_open_when_it_is_asked_what_its_close_reports) {
  world_->write("file", "content");
  std::unique_ptr<backend_file> file;
  ASSERT_EQ(io_->open_to_change(world_->path("file"), {}, file), 0);
  EXPECT_EQ(file->write("C", 1, 0), 1);
  const auto descriptors = [] {
    const std::filesystem::directory_iterator open_now("/proc/self/fd");
    return std::distance(begin(open_now), end(open_now));
  };
  const auto before = descriptors();
  EXPECT_EQ(file->report_close(), 0);
  EXPECT_EQ(descriptors(), before);
  EXPECT_EQ(file->write("T", 1, 3), 1);
  EXPECT_EQ(file->report_close(), 0);
  EXPECT_EQ(read(*file, 7, 0), "ConTent");
}

// ---- opening

TEST_P(backend_conformance, says_why_a_file_cannot_be_opened) {
  world_->make_link("dangling", "nowhere");
  EXPECT_EQ(open_error("nothing"), -ENOENT);
  EXPECT_EQ(open_error("dangling"), -ENOENT);
}

TEST_P(backend_conformance, follows_links_unless_it_must_not) {
  world_->write("file", "content");
  world_->make_link("link", "file");
  EXPECT_EQ(read(*open("link"), 100, 0), "content");
  EXPECT_EQ(identify(*open("link")), identify(*open("file")));
  EXPECT_EQ(open_error("link", true), -ELOOP);
  EXPECT_EQ(open_error("file", true), 0);
}

TEST_P(backend_conformance, finds_loops_of_links) {
  world_->make_link("one", "two");
  world_->make_link("two", "one");
  EXPECT_LT(open_error("one"), 0);
}

TEST_P(backend_conformance, opens_regular_files_only_or_says_what_it_has_opened) {
  world_->make_directory("directory");
  world_->make_fifo("fifo");
  const auto kind = [&](const std::string& name, int refused) {
    std::unique_ptr<backend_file> file;
    const int status = io_->open(world_->path(name), false, file);
    EXPECT_TRUE(status == 0 || status == refused) << name << ": " << status;
    return status == 0 ? identify(*file).mode & S_IFMT : 0u;
  };
  EXPECT_TRUE(kind("directory", -EISDIR) == 0 || S_ISDIR(kind("directory", -EISDIR)));
  EXPECT_TRUE(kind("fifo", -EINVAL) == 0 || S_ISFIFO(kind("fifo", -EINVAL)));
}

// ---- reading

TEST_P(backend_conformance, reads_any_part_of_a_file) {
  std::string content(20'000, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 131 >> 4);
  world_->write("file", content);
  const auto file = open("file");
  for (const std::uint64_t offset : {0, 1, 4095, 4096, 4097, 19'999}) {
    for (const std::uint64_t bytes : {1, 2, 4095, 4096, 20'000})
      EXPECT_EQ(read(*file, bytes, offset), content.substr(offset, bytes))
          << offset << " " << bytes;
  }
}

TEST_P(backend_conformance, reads_nothing_at_and_behind_the_end) {
  world_->write("file", "content");
  world_->write("empty", "");
  const auto file = open("file");
  EXPECT_EQ(read(*file, 10, 6), "t");
  EXPECT_EQ(read(*file, 10, 7), "");
  EXPECT_EQ(read(*file, 10, 8), "");
  EXPECT_EQ(read(*file, 10, std::uint64_t{1} << 40), "");
  EXPECT_EQ(read(*file, 0, 3), "");
  EXPECT_EQ(read(*open("empty"), 10, 0), "");
  char byte = 0;
  EXPECT_LT(file->read(&byte, 1, std::uint64_t{1} << 63), 0);
}

TEST_P(backend_conformance, reads_beyond_four_gigabytes) {
  constexpr std::uint64_t far = (std::uint64_t{5} << 30) + 123;
  world_->write("sparse", "far away", far);
  const auto file = open("sparse");
  EXPECT_EQ(identify(*file).size, far + 8);
  EXPECT_EQ(read(*file, 100, far), "far away");
  EXPECT_EQ(read(*file, 4, far - 2), std::string("\0\0fa", 4));
  EXPECT_EQ(read(*file, 3, std::uint64_t{1} << 32), std::string(3, '\0'));
}

TEST_P(backend_conformance, an_open_file_shows_later_changes) {
  world_->write("file", "content");
  const auto file = open("file");
  world_->write("file", "CON", 0);
  EXPECT_EQ(read(*file, 100, 0), "CONtent");
  world_->write("file", "more", 7);
  EXPECT_EQ(read(*file, 100, 0), "CONtentmore");
  world_->truncate("file", 3);
  EXPECT_EQ(read(*file, 100, 0), "CON");
  world_->truncate("file", 5);
  EXPECT_EQ(read(*file, 100, 0), std::string("CON\0\0", 5));
}

TEST_P(backend_conformance, an_open_file_outlives_its_path) {
  world_->write("removed", "content");
  world_->write("replaced", "content");
  const auto removed = open("removed"), replaced = open("replaced");
  world_->remove("removed");
  world_->replace("replaced", "another");
  EXPECT_EQ(read(*removed, 100, 0), "content");
  EXPECT_EQ(read(*replaced, 100, 0), "content");
  EXPECT_EQ(read(*open("replaced"), 100, 0), "another");
  EXPECT_EQ(open_error("removed"), -ENOENT);
}

TEST_P(backend_conformance, several_threads_read_one_file) {
  std::string content(100'000, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 >> 3);
  world_->write("file", content);
  const auto file = open("file");
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::string to(1000, '\0');
      for (std::uint64_t i = 0; i < 200; ++i) {
        const std::uint64_t offset = (i * 487 + t * 1001) % 99'000;
        if (file->read(to.data(), 1000, offset) != 1000 || content.compare(offset, 1000, to) != 0)
          ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

// Often enough that a backend may find another way to read it.
TEST_P(backend_conformance, a_file_that_is_read_often_reads_as_before) {
  constexpr std::uint64_t bytes = 1'000'000, page = 4096;
  std::string content(bytes, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 131 >> 6);
  world_->write("file", content);
  const auto file = open("file");
  std::string to(page, '\0');
  const auto read_all = [&](int times) {
    for (int k = 0; k < times; ++k) {
      for (std::uint64_t offset = 0; offset < bytes; offset += page) {
        file->expect(page, offset);
        const std::int64_t n = file->read(to.data(), page, offset);
        const std::uint64_t there =
            offset < content.size() ? std::min(page, content.size() - offset) : 0;
        ASSERT_EQ(n, static_cast<std::int64_t>(there)) << offset;
        ASSERT_EQ(
            content.compare(std::min<std::size_t>(offset, content.size()), there, to, 0, there), 0)
            << offset;
      }
    }
  };
  read_all(3);
  for (const std::uint64_t end : {900'000, 500'001, 409'600, 300'000}) {
    world_->truncate("file", end);
    content.resize(end);
    read_all(2);
  }
  world_->truncate("file", 600'000);
  content.resize(600'000, '\0');
  read_all(2);
  content.append(std::string(bytes - content.size(), 'n'));
  world_->write("file", content);
  read_all(3);
}

// ---- identity

TEST_P(backend_conformance, the_identity_tells_files_and_their_states_apart) {
  world_->write("a", "content");
  world_->write("b", "content");
  const auto a = open("a");
  const file_identity first = identify(*a);
  EXPECT_EQ(first.size, 7u);
  EXPECT_TRUE(S_ISREG(first.mode));
  EXPECT_NE(first.modified_ns, 0);
  EXPECT_EQ(identify(*open("a")), first);
  EXPECT_NE(identify(*open("b")).inode, first.inode);
  EXPECT_EQ(identify(*open("b")).device, first.device);

  tick();
  world_->write("a", "CONTENT");
  const file_identity written = identify(*a);
  EXPECT_EQ(written.inode, first.inode);
  EXPECT_GT(written.modified_ns, first.modified_ns);
  EXPECT_GT(written.changed_ns, first.changed_ns);

  tick();
  world_->truncate("a", 3);
  EXPECT_EQ(identify(*a).size, 3u);
  EXPECT_GT(identify(*a).modified_ns, written.modified_ns);

  world_->replace("a", "content");
  EXPECT_NE(identify(*open("a")).inode, first.inode);
  EXPECT_EQ(identify(*a).size, 3u);
}

// ---- mapping

TEST_P(backend_conformance, a_mapping_shows_the_file_as_reads_do) {
  std::string content(50'000, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 17 >> 2);
  world_->write("file", content);
  const auto file = open("file");
  if (!world_->maps()) {
    EXPECT_EQ(file->map(0, 4096), nullptr);
    return;
  }
  const auto mapping = file->map(8192, 50'000 - 8192);
  ASSERT_NE(mapping, nullptr);
  EXPECT_EQ(mapping->bytes(), 50'000u - 8192);
  EXPECT_EQ(std::memcmp(mapping->data(), content.data() + 8192, mapping->bytes()), 0);
  world_->write("file", "changed", 9000);
  EXPECT_EQ(std::memcmp(mapping->data() + (9000 - 8192), "changed", 7), 0)
      << "the mapping is shared";
  file->fault_in(*mapping);
  const double cached = file->cached(*mapping, 8192);
  EXPECT_GE(cached, 0.0);
  EXPECT_LE(cached, 1.0);
}

TEST_P(backend_conformance, a_file_read_ahead_gets_into_the_page_cache) {
  world_->write("file", std::string(1 << 20, 'x'));
  const auto file = open("file");
  const auto mapping = file->map(0, 1 << 20);
  if (mapping == nullptr) return;
  file->read_ahead(0, 1 << 20);
  double cached = 0;
  for (int i = 0; i < 2000 && cached < 1; ++i) {
    cached = file->cached(*mapping, 0);
    if (cached < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(cached, 1.0);
}

TEST_P(backend_conformance, a_mapping_outlives_its_file) {
  if (!world_->maps()) GTEST_SKIP() << "this backend maps no files";
  world_->write("file", std::string(4096, 'm'));
  auto file = open("file");
  const auto mapping = file->map(0, 4096);
  ASSERT_NE(mapping, nullptr);
  file.reset();
  world_->remove("file");
  EXPECT_EQ(mapping->data()[4095], 'm');
}

}  // namespace
}  // namespace gpufs::testing
