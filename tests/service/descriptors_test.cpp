// More files open than the process may have descriptors: which are closed, and how they come back.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "service/file_table.hpp"
#include "support/eventually.hpp"
#include "support/fault_backend.hpp"
#include "support/memory_backend.hpp"
#include "support/record_lock.hpp"
#include "support/service_rig.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

std::string path_of(std::size_t i) { return "/files/" + std::to_string(i); }
std::string content_of_file(std::size_t i) { return "content of file " + std::to_string(i); }

class descriptors : public ::testing::Test {
 protected:
  static constexpr std::size_t descriptors_max = 16;

  std::shared_ptr<host_file> open(const std::string& path) {
    std::uint64_t handle = 0;
    std::shared_ptr<host_file> file;
    EXPECT_EQ(table_.open(path, false, handle, file), 0) << path;
    return file;
  }
  // The content, or -errno.
  std::pair<std::int64_t, std::string> read(host_file& file) {
    std::string to(100, '\0');
    std::shared_ptr<backend_file> reached;
    const int status = table_.reach(file, reached);
    const std::int64_t n =
        status < 0 ? status : file_table::read(*reached, to.data(), to.size(), 0);
    to.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return {n, to};
  }
  // Opens so many others that the descriptors of all before are closed.
  void press() {
    for (std::size_t i = 0; i < 4 * descriptors_max; ++i) {
      const std::string path = "/pressure/" + std::to_string(i);
      memory_->write(path, "p");
      EXPECT_NE(open(path), nullptr);
    }
  }

  const std::shared_ptr<memory_backend> memory_ = std::make_shared<memory_backend>();
  const std::shared_ptr<fault_backend> io_ = std::make_shared<fault_backend>(memory_);
  file_table table_{io_, descriptors_max};
};

TEST_F(descriptors, thousands_of_open_files_are_readable_with_a_few) {
  constexpr std::size_t count = 3000;
  std::vector<std::shared_ptr<host_file>> files;
  for (std::size_t i = 0; i < count; ++i) {
    memory_->write(path_of(i), content_of_file(i));
    files.push_back(open(path_of(i)));
  }
  EXPECT_EQ(table_.open_count(), count);
  std::mt19937 random(3);
  for (std::size_t i = 0; i < 2 * count; ++i) {
    const std::size_t f = random() % count;
    ASSERT_EQ(read(*files[f]).second, content_of_file(f));
  }
  EXPECT_LE(memory_->open_most(), descriptors_max);
}

TEST_F(descriptors, several_readers_go_beyond_the_bound_only_by_what_they_use) {
  constexpr std::size_t count = 300;
  constexpr unsigned readers = 6;
  std::vector<std::shared_ptr<host_file>> files;
  for (std::size_t i = 0; i < count; ++i) {
    memory_->write(path_of(i), content_of_file(i));
    files.push_back(open(path_of(i)));
  }
  std::atomic<std::size_t> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < readers; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 2000; ++i) {
        const std::size_t f = random() % count;
        if (read(*files[f]).second != content_of_file(f)) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_LE(memory_->open_most(), descriptors_max + 2 * readers);
}

TEST_F(descriptors, a_file_that_is_used_keeps_its_own) {
  memory_->write("/hot", "hot");
  const auto hot = open("/hot");
  const std::size_t opens = io_->calls(operation::open);
  for (std::size_t i = 0; i < 200; ++i) {
    memory_->write(path_of(i), "cold");
    open(path_of(i));
    EXPECT_EQ(read(*hot).second, "hot");
  }
  EXPECT_LE(io_->calls(operation::open) - opens, 200u + 20u) << "it was opened again and again";
}

TEST_F(descriptors, a_file_opened_again_may_have_been_changed_but_not_exchanged) {
  memory_->write("/changed", "before");
  memory_->write("/replaced", "before");
  memory_->write("/removed", "before");
  memory_->write("/refused", "before");
  memory_->write("/turned", "before");
  const auto changed = open("/changed"), replaced = open("/replaced"), removed = open("/removed"),
             refused = open("/refused"), turned = open("/turned");
  press();
  memory_->write("/changed", "after");
  memory_->replace("/replaced", "after");
  memory_->remove("/removed");
  memory_->refuse("/refused", EACCES);
  memory_->refuse("/turned", ENOTDIR);
  EXPECT_EQ(read(*changed).second, "after");
  EXPECT_EQ(read(*replaced).first, -ESTALE);
  EXPECT_EQ(read(*removed).first, -ESTALE);
  EXPECT_EQ(read(*refused).first, -EACCES);
  EXPECT_EQ(read(*turned).first, -ESTALE);
  memory_->refuse("/refused", 0);
  EXPECT_EQ(read(*refused).second, "before");
}

TEST_F(descriptors, a_file_that_keeps_its_own_survives_an_exchange) {
  memory_->write("/a", "before");
  const auto file = open("/a");
  memory_->replace("/a", "after");
  EXPECT_EQ(read(*file).second, "before");
}

TEST_F(descriptors, when_the_system_has_none_left_the_table_gives_some_back_and_tries_again) {
  for (std::size_t i = 0; i < 8; ++i) {
    memory_->write(path_of(i), content_of_file(i));
    open(path_of(i));
  }
  for (const int error_number : {EMFILE, ENFILE}) {
    const std::size_t before = memory_->open_now();
    io_->add({.on = operation::open, .times_max = 1, .error_number = error_number});
    EXPECT_NE(open(path_of(0)), nullptr);
    EXPECT_LT(memory_->open_now(), before + 1);
    io_->clear();
  }
  for (const int error_number : {EMFILE, ENFILE}) {
    io_->add({.on = operation::open, .error_number = error_number});
    std::uint64_t handle = 0;
    std::shared_ptr<host_file> file;
    EXPECT_EQ(table_.open(path_of(1), false, handle, file), -EMFILE);
    io_->clear();
  }
}

// ---- with workers, which remember what they looked up last

class descriptors_of_a_service : public ::testing::Test {
 protected:
  static service_rig_options few_descriptors() {
    service_rig_options options;
    options.workers = 4;
    options.descriptors_max = 16;
    return options;
  }
  const std::shared_ptr<memory_backend> memory_ = std::make_shared<memory_backend>();
  service_rig rig_{memory_, few_descriptors()};
};

TEST_F(descriptors_of_a_service, many_files_are_readable_with_a_few) {
  constexpr std::size_t count = 500;
  std::vector<std::uint64_t> handles;
  for (std::size_t i = 0; i < count; ++i) {
    memory_->write(path_of(i), content_of_file(i));
    handles.push_back(rig_.open(path_of(i)).handle);
  }
  std::atomic<std::size_t> wrong{0};
  std::vector<std::thread> clients;
  for (unsigned c = 0; c < 6; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(c);
      for (int i = 0; i < 500; ++i) {
        const std::size_t f = random() % count;
        if (rig_.read(handles[f], 0, 100).bytes != content_of_file(f)) ++wrong;
      }
    });
  }
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(wrong, 0u);
  const std::size_t remembered = 4 * 2 * std::tuple_size_v<file_table::lookups::entries>;
  EXPECT_LE(memory_->open_most(), 16 + remembered + 8);
}

TEST_F(descriptors_of_a_service, a_closed_handle_is_forgotten_by_every_worker_at_once) {
  memory_->write("/a", "a");
  for (int round = 0; round < 200; ++round) {
    const std::uint64_t handle = rig_.open("/a").handle;
    for (int i = 0; i < 4; ++i) ASSERT_EQ(rig_.read(handle, 0, 1).bytes, "a");
    ASSERT_EQ(rig_.close(handle).result, 0);
    for (int i = 0; i < 4; ++i) ASSERT_EQ(rig_.read(handle, 0, 1).result, -EBADF);
  }
}

TEST_F(descriptors_of_a_service, sleeping_workers_keep_none_open) {
  memory_->write("/a", "a");
  const std::uint64_t handle = rig_.open("/a").handle;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(rig_.read(handle, 0, 1).bytes, "a");
  EXPECT_EQ(rig_.close(handle).result, 0);
  EXPECT_TRUE(eventually([&] { return memory_->open_now() == 0; }));
}

// ---- errors

TEST_F(descriptors, errors_on_the_way_leave_nothing_open) {
  memory_->write("/a", "content");
  io_->add({.on = operation::identify, .error_number = EIO});
  std::uint64_t handle = 0;
  std::shared_ptr<host_file> file;
  EXPECT_EQ(table_.open("/a", false, handle, file), -EIO);
  EXPECT_EQ(memory_->open_now(), 0u);
  EXPECT_EQ(table_.open_count(), 0u);
}

// They keep theirs, and a kernel may open as many as it likes.
TEST(written_descriptors, are_not_all_that_there_are) {
  const auto io = std::make_shared<memory_backend>();
  file_table table(io, 16, 64);
  std::uint64_t handle = 0;
  std::shared_ptr<host_file> file;
  std::vector<std::uint64_t> handles;
  const open_how how{.write = true, .create = true, .mode = 0644};
  int status = 0;
  while (handles.size() < 32 && (status = table.open_to_change("/written", how, handle, file)) == 0)
    handles.push_back(handle);
  EXPECT_EQ(status, -EMFILE);
  EXPECT_EQ(handles.size(), table.written_max());
  EXPECT_LT(handles.size(), 16u);
  // The others are served, with what is left.
  for (std::size_t i = 0; i < 40; ++i) {
    io->write(path_of(i), content_of_file(i));
    ASSERT_EQ(table.open(path_of(i), false, handle, file), 0);
  }
  EXPECT_LE(io->open_most(), 16u + 2u);
  EXPECT_EQ(table.open_to_change("/written", how, handle, file), -EMFILE);
  file = nullptr;
  // In an order of their own; what stays is found.
  for (const std::size_t i : {3u, 0u, 7u}) EXPECT_EQ(table.close(handles[i]), 0);
  EXPECT_EQ(table.writers().size(), handles.size() - 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(table.open_to_change("/written", how, handle, file), 0);
  EXPECT_EQ(table.open_to_change("/written", how, handle, file), -EMFILE);
  file = nullptr;
  table.close_all();
  EXPECT_TRUE(table.writers().empty());
}

// A descriptor of a file that the program has locked stays open after the file is closed, and takes
// room all that time.
TEST(locked_descriptors, do_not_use_up_what_is_left_to_the_program) {
  constexpr std::size_t most = 16;
  const temporary_folder folder;
  std::vector<int> locks;
  for (const char* name : {"a", "b"}) {
    locks.push_back(::open(folder.write(name, "content").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(set_lock(locks.back(), F_WRLCK));
  }
  const auto open_now = [&] {
    std::size_t count = 0;
    for (const auto& link : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(link.path(), gone).string().starts_with(folder / ""))
        ++count;
    }
    return count - locks.size();
  };
  const auto io = make_posix_backend();
  file_table table(io, most, 64);
  std::uint64_t handle = 0;
  std::shared_ptr<host_file> file;
  for (const bool writes : {true, false}) {
    for (int round = 0; round < 20; ++round) {
      const std::string path = folder / (round % 2 == 0 ? "a" : "b");
      std::vector<std::uint64_t> handles;
      const auto open = [&] {
        return writes ? table.open_to_change(path, {}, handle, file)
                      : table.open(path, false, handle, file);
      };
      int status = 0;
      while (handles.size() < 40 && (status = open()) == 0) handles.push_back(handle);
      EXPECT_TRUE(status == 0 || status == -EMFILE) << status;
      EXPECT_LE(open_now(), most + 1) << "in round " << round;
      file = nullptr;
      for (const std::uint64_t h : handles) ASSERT_EQ(table.close(h), 0);
      ASSERT_LE(open_now(), most + 1) << "after round " << round;
      for (const int lock : locks) ASSERT_TRUE(is_locked(lock));
    }
  }
  EXPECT_GT(open_now(), 0u) << "none was kept, so this tests nothing";
  EXPECT_EQ(table.open_to_change(folder / "a", {}, handle, file), -EMFILE);
  for (const int lock : locks) ASSERT_TRUE(set_lock(lock, F_UNLCK));
  EXPECT_TRUE(eventually([&] {
    table.close_handed();
    return open_now() == 0;
  }));
  EXPECT_EQ(table.open_to_change(folder / "a", {}, handle, file), 0) << "they count no more";
  file = nullptr;
  table.close_all();
  for (const int lock : locks) EXPECT_EQ(::close(lock), 0);
}

}  // namespace
}  // namespace gpufs::testing
