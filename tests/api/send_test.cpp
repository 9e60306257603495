// gsend: output of kernels through sinks.
#include <errno.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "api/matrix.hpp"

namespace gpufs::testing {
namespace {

class send_test : public conformance {
 protected:
  // A sink that keeps what it gets.
  struct received {
    std::mutex mutex;
    std::vector<std::string> calls;
    std::string all() {
      const std::lock_guard lock(mutex);
      std::string s;
      for (const std::string& call : calls) s += call;
      return s;
    }
  };
  std::int32_t open_sink(received& r) {
    return fs().open_sink([&r](const char* bytes, std::size_t count) {
      const std::lock_guard lock(r.mutex);
      r.calls.emplace_back(bytes, count);
      return 0;
    });
  }
};
INSTANTIATE_TEST_SUITE_P(conformance, send_test,
                         ::testing::ValuesIn(settings({source::memory}, {4096})), name_of_setting);

TEST_P(send_test, bytes_arrive_in_order) {
  received r;
  const std::int32_t sink = open_sink(r);
  EXPECT_EQ(calls().send(sink, "first "), 6);
  EXPECT_EQ(calls().send(sink, "second"), 6);
  EXPECT_EQ(r.calls, (std::vector<std::string>{"first ", "second"}));
  EXPECT_EQ(counted(counter::sent_bytes), 12u);
}

TEST_P(send_test, many_bytes_arrive_in_pieces_of_the_staging_size) {
  received r;
  const std::int32_t sink = open_sink(r);
  const std::size_t piece = options.staging_bytes;
  for (const std::size_t bytes : {std::size_t{1}, piece - 1, piece, piece + 1, 5 * piece + 77}) {
    r.calls.clear();
    const std::string content = self_checking(5, 0, 0, bytes);
    EXPECT_EQ(calls().send(sink, content), static_cast<std::int64_t>(bytes));
    expect_same_bytes(r.all(), content, "sent");
    EXPECT_EQ(r.calls.size(), (bytes + piece - 1) / piece);
  }
}

TEST_P(send_test, no_bytes_make_no_call) {
  received r;
  const std::int32_t sink = open_sink(r);
  EXPECT_EQ(calls().send(sink, ""), 0);
  EXPECT_EQ(r.calls.size(), 0u);
}

TEST_P(send_test, sinks_that_are_not_open_are_bad) {
  received r;
  const std::int32_t sink = open_sink(r);
  for (const std::int32_t bad : {-1, sink + 1, 63, 64, 1 << 20, -0x7fffffff - 1})
    EXPECT_EQ(calls().send(bad, "x"), -EBADF) << bad;
  EXPECT_TRUE(fs().close_sink(sink));
  EXPECT_EQ(calls().send(sink, "x"), -EBADF);
  EXPECT_TRUE(fs().close_sink(sink));
  EXPECT_TRUE(fs().close_sink(-1));
  EXPECT_TRUE(fs().close_sink(1000));
  const std::int32_t again = open_sink(r);
  EXPECT_EQ(calls().send(again, "x"), 1);
  EXPECT_EQ(r.all(), "x");
}

TEST_P(send_test, the_sender_gets_the_error_of_the_sink) {
  int calls_made = 0;
  const std::int32_t sink =
      fs().open_sink([&](const char*, std::size_t) { return ++calls_made == 2 ? ENOSPC : 0; });
  const std::string three_pieces(3 * options.staging_bytes, 'x');
  EXPECT_EQ(calls().send(sink, three_pieces), -ENOSPC);
  EXPECT_EQ(calls_made, 2) << "nothing is sent behind what failed";
  EXPECT_EQ(counted(counter::sent_bytes), options.staging_bytes);
  const std::int32_t throws =
      fs().open_sink([](const char*, std::size_t) -> int { throw std::runtime_error("sink"); });
  EXPECT_EQ(calls().send(throws, "x"), -EIO);
  EXPECT_EQ(calls().send(sink, "x"), 1) << "the service lives on";
}

TEST_P(send_test, there_are_64_sinks) {
  received r;
  for (int i = 0; i < 64; ++i) EXPECT_EQ(open_sink(r), i);
  try {
    open_sink(r);
    ADD_FAILURE() << "a 65th sink";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EMFILE);
  }
  EXPECT_TRUE(fs().close_sink(40));
  const std::int32_t last = open_sink(r);
  EXPECT_NE(last, 40) << "a kernel that still has the old number would send to the new sink";
  EXPECT_EQ(calls().send(40, "x"), -EBADF);
  EXPECT_EQ(calls().send(last, "x"), 1);
}

TEST_P(send_test, messages_of_many_groups_arrive_whole_and_in_each_groups_order) {
  received r;
  const std::int32_t sink = open_sink(r);
  constexpr std::uint32_t groups = 12;
  constexpr std::uint32_t messages = 20;
  std::string input;
  std::vector<script> scripts;
  for (std::uint32_t g = 0; g < groups; ++g) {
    device_call set{action::set};
    set.offset = sink;
    scripts.push_back({set});
    for (std::uint32_t m = 0; m < messages; ++m) {
      device_call send{action::send};
      send.bytes = 2 + m * 37;
      send.memory = input.size();
      input += static_cast<char>('A' + g);
      input += static_cast<char>('a' + m);
      input += std::string(m * 37, static_cast<char>('A' + g));
      scripts.back().push_back(send);
    }
  }
  stage(fs(), GetParam().kind, groups).run(scripts, input, 0);
  ASSERT_EQ(r.calls.size(), groups * messages);
  std::vector<std::uint32_t> next(groups, 0);
  for (const std::string& call : r.calls) {
    const auto g = static_cast<std::size_t>(call[0] - 'A');
    ASSERT_LT(g, groups);
    EXPECT_EQ(call[1], static_cast<char>('a' + next[g]));
    EXPECT_EQ(call.substr(2), std::string(next[g] * 37, call[0]));
    ++next[g];
  }
}

}  // namespace
}  // namespace gpufs::testing
