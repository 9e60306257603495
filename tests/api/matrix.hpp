// The matrix of the conformance tests: where the bytes come from, who calls, and the size of a
// page. Each test has its own files and its own mount.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "api/file_world.hpp"
#include "api/session.hpp"
#include "support/fault_backend.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {

inline constexpr group_kind all_kinds[] = {group_kind::thread, group_kind::warp, group_kind::block};

inline const char* name_of(group_kind kind) {
  return kind == group_kind::thread ? "thread" : kind == group_kind::warp ? "warp" : "block";
}
inline std::string name_of_kind(const ::testing::TestParamInfo<group_kind>& info) {
  return name_of(info.param);
}
inline void PrintTo(group_kind kind, std::ostream* out) { *out << name_of(kind); }

struct setting {
  source where = source::posix;
  group_kind kind = group_kind::thread;
  std::uint64_t page_bytes = 4096;
};

inline std::string name_of(const setting& s) {
  const char* where = s.where == source::posix ? "posix" : "memory";
  return std::string(where) + "_" + name_of(s.kind) + "_" + std::to_string(s.page_bytes);
}
inline std::string name_of_setting(const ::testing::TestParamInfo<setting>& info) {
  return name_of(info.param);
}
inline void PrintTo(const setting& s, std::ostream* out) { *out << name_of(s); }

// These sources and sizes of a page, with every kind of group.
inline std::vector<setting> settings(std::vector<source> sources,
                                     std::vector<std::uint64_t> page_sizes) {
  std::vector<setting> all;
  for (const source where : sources) {
    for (const group_kind kind : all_kinds) {
      for (const std::uint64_t page_bytes : page_sizes) all.push_back({where, kind, page_bytes});
    }
  }
  if (!is_sanitized) return all;
  // Of each kind one source and one size of pages: all of them in turn. `make test` runs a test
  // under a sanitizer every eighth day (GPUFS_TEST_ROTATION).
  std::vector<setting> some;
  for (std::size_t i = 0; i < std::size(all_kinds); ++i) {
    const std::size_t turn = rotation() / 8 + i;
    some.push_back({sources[turn % sources.size()], all_kinds[i],
                    page_sizes[turn / sources.size() % page_sizes.size()]});
  }
  return some;
}
inline std::vector<setting> all_settings() {
  return settings({source::posix, source::memory}, {512, 4096, 65536});
}
// For calls that see no pages.
inline std::vector<setting> settings_of_one_page_size() {
  return settings({source::posix, source::memory}, {4096});
}

// Waits for what another thread is about to do; the caller then checks that it has happened.
template <class Condition>
void wait_until(const Condition& condition,
                std::chrono::milliseconds longest = std::chrono::milliseconds(20000)) {
  const auto end = std::chrono::steady_clock::now() + longest;
  while (!condition() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// So many that the warps of a block read several pages at once (detail::reads_by_warps), on any GPU
// of today.
inline std::uint64_t large_cache_frames() { return device() == device_kind::cuda ? 32768 : 4096; }

class conformance : public ::testing::TestWithParam<setting> {
 protected:
  conformance()
      : files(file_world::make(GetParam().where)),
        io(std::make_shared<fault_backend>(files->io())) {
    options = base_options();
    options.page_bytes = page_bytes();
    options.cache_bytes = 64 * page_bytes();
    options.backend = io;
  }

  std::uint64_t page_bytes() const { return GetParam().page_bytes; }

  // With `options` as they are at the first call of one of these.
  mount& fs() {
    if (mounted_ == nullptr) mounted_ = std::make_unique<mount>(options);
    return *mounted_;
  }
  session& calls() {
    if (session_ == nullptr) session_ = std::make_unique<session>(fs(), GetParam().kind);
    return *session_;
  }
  // For calls that hang: they give up after 250 ms in which the service lives. All others wait for
  // a busy machine.
  session& hurried() {
    if (hurried_ == nullptr)
      hurried_ = std::make_unique<session>(fs(), GetParam().kind, std::chrono::milliseconds(250));
    return *hurried_;
  }
  void unmount() {
    session_.reset();
    hurried_.reset();
    mounted_.reset();
  }
  std::uint64_t counted(counter c) { return fs().stats()[c]; }

  // Creates a file of self-checking bytes; returns them.
  std::string create(const std::string& name, std::uint64_t bytes, unsigned generation = 0) {
    std::string content = self_checking(7, generation, 0, bytes);
    files->write(name, content);
    return content;
  }
  std::int32_t open(const std::string& name, int flags = O_RDONLY) {
    return calls().open(files->path(name), flags);
  }
  // As it is in the file.
  void expect_content(const std::string& name, const std::string& expected) {
    expect_same_bytes(files->content(name), expected, name);
  }
  void fail(operation on, int error_number, std::uint64_t nth = 0) {
    fault rule;
    rule.on = on;
    rule.error_number = error_number;
    rule.nth = nth;
    io->add(rule);
  }

  std::unique_ptr<file_world> files;
  std::shared_ptr<fault_backend> io;
  mount_options options;

 private:
  std::unique_ptr<mount> mounted_;
  std::unique_ptr<session> session_, hurried_;
};

}  // namespace gpufs::testing
