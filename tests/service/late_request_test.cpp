// A worker may be at a request for as long as its disk likes. Meanwhile the caller gives up, the file is closed, and another one
// is opened in its place. Then the request reaches its own file or none, never the other one.
#include <errno.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/memory_backend.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

TEST(late_sends, do_not_reach_the_next_sink_in_the_place_of_theirs) {
  service_rig rig(std::make_shared<memory_backend>());
  std::string got;
  const auto take = [&](const char* bytes, std::size_t count) {
    got.append(bytes, count);
    return 0;
  };
  std::vector<std::int32_t> closed;
  for (int i = 0; i < 1000; ++i) {
    const std::int32_t sink = rig.sinks().open(take);
    for (const std::int32_t old : closed) ASSERT_NE(old, sink);
    if (i % 100 == 0) {
      for (const std::int32_t old : closed) ASSERT_EQ(rig.send(old, "late").result, -EBADF);
      for (const std::int32_t old : closed) ASSERT_TRUE(rig.sinks().close(old, deadline::after(deadline::never)));
      ASSERT_EQ(rig.send(sink, "x").result, 0) << "an old number closed it";
    }
    ASSERT_TRUE(rig.sinks().close(sink, deadline::after(deadline::never)));
    closed.push_back(sink);
  }
  EXPECT_EQ(got, std::string(10, 'x'));
}

}  // namespace
}  // namespace gpufs::testing
