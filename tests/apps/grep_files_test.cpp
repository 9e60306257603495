// gpufs::grep::search: files that are binary, fail, or change; progress; several searches.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "apps/grep_oracle.hpp"
#include "grep/late_nul.hpp"
#include "grep/parts.hpp"
#include "support/fault_backend.hpp"

namespace gpufs::testing {
namespace {

const std::string line = "foo bar\n";
const std::size_t first_read = grep::first_read_bytes;

TEST(GrepFiles, ANulInTheFirstReadLeavesNothing) {
  grep_world world;
  std::map<std::string, std::string> files;
  for (const std::size_t at : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, first_read - 1}) {
    std::string text = repeat(line, 40'000);
    text[at] = '\0';
    files["f" + std::to_string(at)] = text;
  }
  files["short"] = std::string("foo\0foo", 7);
  files["text"] = "foo";
  const counts found = world.search(files, {"foo"});
  EXPECT_EQ(found, (counts{{{"text", "foo"}, 1}}));
  EXPECT_EQ(world.last.binary.size(), 5u);
  EXPECT_EQ(world.last.files, 6u);
}

TEST(GrepFiles, ALateNulLeavesTheLinesThatWereCompleteBefore) {
  grep_world world;
  const std::size_t lines = first_read / line.size();
  const std::map<std::string, std::string> files = {
      {"a",
       repeat(line, lines) + std::string("foo\n\0foo\n", 9)},  // the first read ends with a line
      {"b",
       repeat(line, lines - 1) + "foo foo foo\n" + std::string(1, 0)},  // a line crosses its end
      {"c", repeat(line, 2 * lines) + std::string(1, 0)},
      {"d", repeat("foo ", first_read / 4) + std::string(1, 0)},  // one line
      {"e",
       repeat(line, 5 * lines) + repeat("foo ", 1000) + std::string(1, 0) + repeat(line, 100'000)},
      {"f", repeat(line, 400'000)},
  };
  const counts found = world.search(files, {"foo", "bar"});
  expect_same(expected_counts(files, {"foo", "bar"}), found, "late");
  EXPECT_EQ(found.at({"a", "foo"}), lines);
  EXPECT_EQ(found.at({"b", "foo"}), lines - 1);
  EXPECT_EQ(found.at({"c", "foo"}), 2 * lines);
  EXPECT_FALSE(found.contains({"d", "foo"}));
  EXPECT_EQ(world.last.binary, (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
}

class GrepRealFiles : public ::testing::Test {
 protected:
  GrepRealFiles() {
    char name[] = "/tmp/gpufs-grep-XXXXXX";
    if (mkdtemp(name) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
  }
  ~GrepRealFiles() override {
    for (const std::string& path : made_) unlink(path.c_str());
    rmdir(folder_.c_str());
  }
  std::string make(const std::string& name, std::uint64_t at, const std::string& text) {
    std::string path = folder_ + "/" + name;
    made_.push_back(path);
    const int fd = open(path.c_str(), O_CREAT | O_WRONLY, 0600);
    EXPECT_EQ(pwrite(fd, text.data(), text.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(text.size()));
    close(fd);
    return path;
  }

  std::string folder_;
  std::vector<std::string> made_;
};

TEST_F(GrepRealFiles, AHoleMakesALongFileBinaryFromItsBeginning) {
  const std::string text = repeat(line, 50'000);
  const std::string full = make("full", 0, text);
  const std::string holed = make("holed", 0, text);
  make("holed", 3 << 20, "foo\n");
  const std::string nuls = make("nuls", 0, text + std::string(1 << 20, '\0') + "foo\n");
  mount_options options = grep_world::grep_options();
  mount m(options);
  const grep::result r =
      grep::search(m, grep::dictionary({"foo"}), {{full, 1}, {holed, 1}, {nuls, 1}});
  // A file system without holes stores the NULs, and grep sees a late one: then both files are
  // alike.
  const int fd = open(holed.c_str(), O_RDONLY);
  const bool has_holes = lseek(fd, 0, SEEK_HOLE) < (3 << 20);
  close(fd);
  ASSERT_EQ(r.matches.size(), has_holes ? 2u : 3u);
  EXPECT_EQ(r.matches[0].count, 50'000u);
  EXPECT_EQ(r.matches.back().file, 2u);
  EXPECT_EQ(r.binary, (std::vector<std::uint32_t>{1, 2}));
}

// A program may put a FIFO in the place of a file that was searched.
TEST_F(GrepRealFiles, AFifoIsNotWaitedFor) {
  const std::string path = make("fifo", 0, "");
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  auto holed = std::async(std::launch::async, [&] { return grep::has_hole(path); });
  const bool ended = holed.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  EXPECT_TRUE(ended);
  if (!ended) close(open(path.c_str(), O_RDWR | O_NONBLOCK));  // a writer
  EXPECT_FALSE(holed.get());
}

TEST(GrepFiles, AreCutIntoAMillionPartsAtMost) {
  for (const std::uint64_t bytes : {std::uint64_t{1} << 42, limits::file_bytes_max - 1}) {
    for (const std::uint32_t blocks : {1u, 528u}) {
      const std::uint64_t part_bytes = grep::part_bytes_for(bytes, blocks);
      EXPECT_LE(grep::count_parts(bytes, part_bytes), grep::parts_max) << bytes;
      EXPECT_LE(10 * grep::count_parts(bytes / 10, part_bytes), grep::parts_max + 10)
          << "ten files of " << bytes / 10;
    }
  }
  EXPECT_EQ(grep::part_bytes_for(std::uint64_t{1} << 40, 528), std::uint64_t{1} << 20);
}

TEST(GrepFiles, OneOfAnySizeDoesNotFailTheSearch) {
  grep_world world;
  world.backend().write("good", repeat(line, 60'000));
  std::vector<grep::file_item> list = {{"good", 480'000}};
  for (const std::uint64_t size :
       {limits::file_bytes_max, std::uint64_t{1} << 52, ~std::uint64_t{0}}) {
    list.push_back({"huge" + std::to_string(size), size});
    world.backend().write(list.back().path, "foo");
  }
  const counts found = world.search_list(grep::dictionary({"foo"}), list);
  EXPECT_EQ(found.at({"good", "foo"}), 60'000u);
  EXPECT_EQ(world.last.matches.size(), 4u) << "a wrong size costs time, and no match";
  EXPECT_TRUE(world.last.failures.empty());
}

TEST(GrepFiles, OneThatCannotBeOpenedIsReportedAndTheRestIsSearched) {
  grep_world world;
  world.backend().write("good", "foo");
  world.backend().make_directory("directory");
  world.backend().make_fifo("fifo");
  world.backend().write("refused", "foo");
  world.backend().refuse("refused", EACCES);
  const std::vector<grep::file_item> list = {{"missing", 5},       {"good", 3},
                                             {"directory", 0},     {"fifo", 0},
                                             {"refused", 1 << 20}, {std::string(5000, 'p'), 1}};
  const counts found = world.search_list(grep::dictionary({"foo"}), list);
  EXPECT_EQ(found, (counts{{{"good", "foo"}, 1}}));
  std::map<std::uint32_t, int> errors;
  for (const grep::failure& f : world.last.failures) errors[f.file] = f.error;
  EXPECT_EQ(errors, (std::map<std::uint32_t, int>{
                        {0, ENOENT}, {2, EISDIR}, {3, EINVAL}, {4, EACCES}, {5, ENAMETOOLONG}}));
}

TEST(GrepFiles, OneThatCannotBeReadToItsEndHasNoMatches) {
  const auto memory = std::make_shared<memory_backend>();
  const auto faulty = std::make_shared<fault_backend>(memory);
  memory->write("bad", repeat(line, 60'000));
  memory->write("good", repeat(line, 60'000));
  for (std::uint64_t nth = 20; nth < 200; ++nth)
    faulty->add({.on = operation::read, .path = "bad", .nth = nth, .error_number = EIO});
  mount_options options = grep_world::grep_options();
  options.backend = faulty;
  grep_world world(options);
  const counts found =
      world.search_list(grep::dictionary({"foo"}), {{"bad", 480'000}, {"good", 480'000}});
  EXPECT_EQ(found, (counts{{{"good", "foo"}, 60'000}}));
  ASSERT_EQ(world.last.failures.size(), 1u);
  EXPECT_EQ(world.last.failures[0].error, EIO);
}

TEST(GrepFiles, OneThatIsCutOffWhileItIsReadEndsThere) {
  const auto memory = std::make_shared<memory_backend>();
  const auto faulty = std::make_shared<fault_backend>(memory);
  memory->write("f", repeat(line, 60'000));
  faulty->add(
      {.on = operation::read, .nth = 3, .before = [&memory] { memory->truncate("f", 8000); }});
  mount_options options = grep_world::grep_options();
  options.backend = faulty;
  grep_world world(options);
  const counts found = world.search_list(grep::dictionary({"foo"}), {{"f", 480'000}});
  ASSERT_TRUE(world.last.failures.empty());
  EXPECT_GE(found.at({"f", "foo"}), 1000u);
  EXPECT_LE(found.at({"f", "foo"}), 60'000u);
}

TEST(GrepFiles, AServiceThatDiesEndsTheSearchWithAnError) {
  const auto memory = std::make_shared<memory_backend>();
  const auto faulty = std::make_shared<fault_backend>(memory);
  std::vector<grep::file_item> list;
  for (int f = 0; f < 100; ++f) {
    list.push_back({"f" + std::to_string(f), 100'000});
    memory->write(list.back().path, repeat(line, 12'500));
  }
  faulty->add({.on = operation::read, .nth = 50, .worker_death = true});
  mount_options options = grep_world::grep_options();
  options.workers = 1;
  options.backend = faulty;
  grep_world world(options);
  try {
    grep::search(world.m(), grep::dictionary({"foo"}), list);
    FAIL() << "no error";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EIO);
  }
}

TEST(GrepFiles, ProgressReachesTheWhole) {
  grep_world world;
  std::vector<grep::file_item> list = {{"missing", 1000}};
  std::uint64_t bytes = 0;
  for (int f = 0; f < 50; ++f) {
    const std::string text = repeat(line, static_cast<std::size_t>(f) * f * 100);
    list.push_back({"f" + std::to_string(f), text.size()});
    world.backend().write(list.back().path, text);
    bytes += text.size();
  }
  grep::progress progress;
  const grep::result r = grep::search(world.m(), grep::dictionary({"foo"}), list, &progress);
  EXPECT_EQ(progress.bytes_done.load(), bytes);
  EXPECT_EQ(progress.files_done.load(), list.size());
  EXPECT_EQ(r.bytes, bytes);
  EXPECT_EQ(r.files, list.size() - 1);
}

TEST(GrepFiles, ManySearchesCanFollowEachOtherAndRunAtOnce) {
  grep_world world;
  std::vector<grep::file_item> list;
  for (int f = 0; f < 20; ++f) {
    list.push_back({"f" + std::to_string(f), 8000});
    world.backend().write(list.back().path, repeat(line, 1000));
  }
  const grep::dictionary words({"foo", "bar", "o"});
  const auto search = [&](int times) {
    for (int k = 0; k < times; ++k)
      EXPECT_EQ(grep::search(world.m(), words, list).matches.size(), 40u);
  };
  search(70);  // more than there are sinks
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) threads.emplace_back(search, 10);
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace gpufs::testing
