// A worker may be at a request for as long as its disk likes. Meanwhile the caller gives up, the
// file is closed, and another one is opened in its place. Then the request reaches its own file or
// none, never the other one.
#include <errno.h>
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "support/memory_backend.hpp"
#include "support/seeds.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

constexpr std::uint64_t place_mask = (std::uint64_t{1} << 18) - 1;

// All that name an open file, or the version that they write.
constexpr request_code names_a_file[] = {
    request_code::read,    request_code::bulk,         request_code::close,
    request_code::write,   request_code::truncate,     request_code::sync,
    request_code::emptied, request_code::report_close, request_code::close_written};

class replaced_file : public ::testing::Test {
 protected:
  replaced_file() {
    io_->write("/before", content);
    io_->write("/after", content);
  }
  // Each in the form that changes or shows something, if it is served.
  rig_reply send(request_code code, const rig_reply& file) {
    switch (code) {
      case request_code::read: return rig_.read(file.handle, 0, 4);
      case request_code::bulk: return rig_.bulk(file.handle, 0, service_rig::frame_bytes, 0);
      case request_code::write: return rig_.write(file.node, 0, "late");
      case request_code::truncate: return rig_.call({code, file.handle, 0, 3});
      case request_code::emptied: return rig_.call({code, file.handle, 0, 77});
      default: return rig_.call({code, file.handle, 0, 0});
    }
  }
  // "/after" in the place where "/before" was, and what "/before" was called.
  struct opened {
    rig_reply before, after;
  };
  opened replace() {
    opened o;
    o.before = rig_.open_to_write("/before");
    EXPECT_EQ(rig_.close(o.before.handle).result, 0);
    o.after = rig_.open_to_write("/after");
    EXPECT_EQ(o.after.handle & place_mask, o.before.handle & place_mask) << "or this tests nothing";
    EXPECT_EQ(node_of(o.after.node), node_of(o.before.node)) << "or this tests nothing";
    return o;
  }
  void expect_untouched(const rig_reply& after) {
    EXPECT_EQ(io_->content("/before"), content);
    EXPECT_EQ(io_->content("/after"), content);
    EXPECT_EQ(rig_.frames(), std::string(rig_.frames().size(), '?'));
    EXPECT_EQ(rig_.files().open_count(), 1u);
    EXPECT_TRUE(rig_.files().errors().list().errors.empty());
    EXPECT_EQ(rig_.files().find(after.handle)->version().emptied_by, 0u);
    for (const request_code code : {request_code::read, request_code::write, request_code::sync})
      EXPECT_GE(send(code, after).result, 0) << "the other file's own request";
  }

  const std::string content = std::string(9000, 'c');
  const std::shared_ptr<memory_backend> io_ = std::make_shared<memory_backend>();
  service_rig rig_{io_};
};

class late_requests : public replaced_file, public ::testing::WithParamInterface<request_code> {};
INSTANTIATE_TEST_SUITE_P(, late_requests, ::testing::ValuesIn(names_a_file),
                         [](const auto& p) -> std::string {
                           switch (p.param) {
                             case request_code::read: return "read";
                             case request_code::bulk: return "bulk";
                             case request_code::close: return "close";
                             case request_code::write: return "write";
                             case request_code::truncate: return "truncate";
                             case request_code::sync: return "sync";
                             case request_code::emptied: return "emptied";
                             case request_code::close_written: return "close_written";
                             default: return "report_close";
                           }
                         });

TEST_P(late_requests, do_not_reach_the_next_file_in_the_place_of_theirs) {
  const opened o = replace();
  EXPECT_EQ(send(GetParam(), o.before).result, -EBADF);
  expect_untouched(o.after);
}

// Each worker remembers what it looked up last.
TEST_P(late_requests, nor_after_many_were_served_for_the_file) {
  const rig_reply first = rig_.open_to_write("/before");
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(rig_.read(first.handle, 0, 4).bytes, "cccc");
    EXPECT_EQ(rig_.write(first.node, 4, "cccc").result, 4);
  }
  EXPECT_EQ(rig_.close(first.handle).result, 0);
  const rig_reply after = rig_.open_to_write("/after");
  EXPECT_EQ(after.handle & place_mask, first.handle & place_mask) << "or this tests nothing";
  for (int i = 0; i < 20; ++i) EXPECT_EQ(send(GetParam(), first).result, -EBADF);
  expect_untouched(after);
}

// The same file, opened again: a request of the first open is none of the second one's, which may
// only read.
TEST_P(late_requests, do_not_reach_their_own_file_through_another_open) {
  const rig_reply before = rig_.open_to_write("/before");
  EXPECT_EQ(rig_.close(before.handle).result, 0);
  rig_reply again = rig_.open("/before");
  // Of the openers each has a part of the table of its own, and on a loaded machine one of them may
  // serve many opens in a row.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while ((again.handle & place_mask) != (before.handle & place_mask) &&
         std::chrono::steady_clock::now() < end) {
    EXPECT_EQ(rig_.close(again.handle).result, 0);
    again = rig_.open("/before");
  }
  EXPECT_EQ(again.handle & place_mask, before.handle & place_mask) << "or this tests nothing";
  EXPECT_EQ(send(GetParam(), before).result, -EBADF);
  EXPECT_EQ(rig_.read(again.handle, 0, 4).bytes, "cccc");
  EXPECT_EQ(io_->content("/before"), content);
}

// A name of which fewer bits are compared comes again after a power of two.
TEST_F(replaced_file, is_not_reached_by_late_requests_however_often_its_place_was_used) {
  const rig_reply before = rig_.open_to_write("/before");
  ASSERT_EQ(rig_.close(before.handle).result, 0);
  for (unsigned uses = 1;; ++uses) {
    const rig_reply after = rig_.open_to_write("/after");
    ASSERT_EQ(after.handle & place_mask, before.handle & place_mask) << "or this tests nothing";
    ASSERT_EQ(node_of(after.node), node_of(before.node)) << "or this tests nothing";
    for (const request_code code : names_a_file) {
      if (!std::has_single_bit(uses)) break;
      ASSERT_EQ(send(code, before).result, -EBADF) << "after " << uses << " files in the place";
    }
    if (uses == 1u << (is_sanitized ? 12 : 15)) return expect_untouched(after);
    ASSERT_EQ(rig_.close(after.handle).result, 0);
  }
}

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
      for (const std::int32_t old : closed)
        ASSERT_TRUE(rig.sinks().close(old, deadline::after(deadline::never)));
      ASSERT_EQ(rig.send(sink, "x").result, 0) << "an old number closed it";
    }
    ASSERT_TRUE(rig.sinks().close(sink, deadline::after(deadline::never)));
    closed.push_back(sink);
  }
  EXPECT_EQ(got, std::string(10, 'x'));
}

}  // namespace
}  // namespace gpufs::testing
