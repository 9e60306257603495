// A file of the host that is truncated while it is read by staged loads: short reads, and no signal
// ends the program.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/service_rig.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

TEST(staged_truncation, gives_short_reads_and_no_signal) {
  constexpr std::uint64_t bytes = 1 << 20, page = 4096;
  std::string content(bytes, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 % 255 + 1);
  const temporary_folder folder;
  const std::string path = folder.write("file", content);
  service_rig rig(make_posix_backend());
  const std::uint64_t handle = rig.open(path).handle;
  const auto read_all = [&](std::uint64_t end) {
    for (std::uint64_t offset = 0; offset < bytes; offset += page) {
      const rig_reply r = rig.read(handle, offset, page);
      const std::uint64_t there = offset < end ? std::min(page, end - offset) : 0;
      ASSERT_EQ(r.result, static_cast<std::int32_t>(there)) << "at " << offset;
      ASSERT_TRUE(content.compare(offset, there, r.bytes) == 0) << "at " << offset;
    }
  };
  for (int i = 0; i < 3; ++i) read_all(bytes);
  for (const std::uint64_t end :
       {bytes - 1, bytes - 5000, bytes / 2 + 100, page, std::uint64_t{0}}) {
    folder.truncate("file", end);
    for (int i = 0; i < 2; ++i) read_all(end);
  }
}

}  // namespace
}  // namespace gpufs::testing
