// What tests with a FUSE server share: files on the server, and mounts with few and many workers.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "api/matrix.hpp"
#include "support/fuse_folder.hpp"

namespace gpufs::testing {

inline std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}
inline void put(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

inline mount_options options_of(unsigned workers) {
  mount_options o = base_options();
  o.workers = workers;
  return o;
}

// The number of workers: from four on the openers open and close, which have not the descriptors of
// the others.
class fuse_test : public ::testing::TestWithParam<unsigned> {
 protected:
  using on = fuse_operation;
  static constexpr group_kind kind = group_kind::warp;
  static void run(const fuse_options& options, const std::function<void(fuse_folder&)>& body) {
    in_fuse_folder(options, body);
  }
  // Writes file "a" into the kernel's memory. The server will refuse the bytes (ENOSPC).
  static void write_what_will_be_refused(session& calls, const fuse_folder& files,
                                         std::int32_t& fd) {
    fd = calls.open(files / "a", O_RDWR | O_CREAT);
    ASSERT_EQ(calls.write(fd, std::string(30'000, 'x'), 0), 30'000);
    files.fail(on::write, ENOSPC);
  }
};

}  // namespace gpufs::testing
