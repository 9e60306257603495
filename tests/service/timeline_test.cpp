// The timeline: what is recorded, and that the text is JSON whatever the paths are.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "support/memory_backend.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

timeline_event event_of(const std::string& path, std::uint64_t begin_ns) {
  return {"read", 1, begin_ns, begin_ns + 1500, 4096, 512, 512, path};
}

TEST(timeline_test, shows_each_request_of_the_service_with_its_file) {
  const auto io = std::make_shared<memory_backend>();
  io->write("some/file", std::string(20'000, 'x'));
  service_rig rig(io);
  const rig_reply before = rig.open("some/file");
  ASSERT_GE(before.result, 0);
  rig.record().start(100);
  const rig_reply opened = rig.open("some/file");
  ASSERT_GE(opened.result, 0);
  EXPECT_EQ(rig.read(opened.handle, 4096, 1000).result, 1000);
  EXPECT_EQ(rig.open("nothing").result, -ENOENT);
  EXPECT_EQ(rig.close(opened.handle).result, 0);
  EXPECT_EQ(rig.send(7, "hello").result, -EBADF);
  const std::string text = rig.record().stop();
  EXPECT_EQ(rig.read(before.handle, 0, 10).result, 10);

  EXPECT_EQ(count_of(text, R"("ph": "X")"), 5u) << text;
  EXPECT_EQ(count_of(text, R"("name": "open")"), 2u);
  EXPECT_EQ(count_of(text, R"("path": "some/file")"), 3u);
  EXPECT_EQ(count_of(text, R"("offset": 4096, "bytes": 1000, "result": 1000, "path": "some/file")"),
            1u);
  EXPECT_EQ(count_of(text, "\"result\": " + std::to_string(-ENOENT) + R"(, "path": "nothing")"),
            1u);
  EXPECT_EQ(count_of(text, R"("path": "sink 7")"), 1u);
  EXPECT_GE(count_of(text, R"("args": {"name": "worker )"), 1u);
  EXPECT_EQ(count_of(text, R"("dropped": 0)"), 1u);
  EXPECT_EQ(count_of(rig.record().stop(), R"("ph": "X")"), 0u)
      << "nothing is recorded when it is off";
}

TEST(timeline_test, times_are_microseconds_since_the_start) {
  timeline record;
  const std::uint64_t before = platform::now_ns() - 1;
  record.start(10);
  record.add(event_of("a", platform::now_ns()));
  record.add(event_of("begun before the start", before));
  const std::string text = record.stop();
  EXPECT_NE(text.find(R"("dur": 1.500,)"), std::string::npos) << text;
  EXPECT_EQ(text.find("begun before"), std::string::npos);
}

TEST(timeline_test, keeps_as_many_events_as_it_was_told_and_counts_the_rest) {
  timeline record;
  record.start(3);
  for (int i = 0; i < 8; ++i) record.add(event_of("a", platform::now_ns()));
  const std::string text = record.stop();
  EXPECT_EQ(count_of(text, R"("ph": "X")"), 3u);
  EXPECT_EQ(count_of(text, R"("dropped": 5)"), 1u);
}

TEST(timeline_test, keeps_256_bytes_of_a_path) {
  timeline record;
  record.start(2);
  const std::string longest(timeline::path_bytes_max, 'p');
  record.add(event_of(longest, platform::now_ns()));
  record.add(event_of("first" + std::string(4000, 'm') + "last", platform::now_ns()));
  const std::string text = record.stop();
  EXPECT_NE(text.find('"' + longest + '"'), std::string::npos) << "whole";
  EXPECT_NE(text.find("mmmlast\""), std::string::npos) << "the end of a longer one is kept";
  EXPECT_EQ(text.find("first"), std::string::npos);
  EXPECT_LT(text.size(), 2 * timeline::path_bytes_max + 1000);
}

TEST(timeline_test, any_path_becomes_valid_text) {
  const auto shown = [](const std::string& path) {
    timeline record;
    record.start(1);
    record.add(event_of(path, platform::now_ns()));
    const std::string text = record.stop();
    const std::string head = R"("path": )";
    const std::size_t at = text.find(head) + head.size();
    return text.substr(at, text.find("}}", at) - at);
  };
  EXPECT_EQ(shown("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(shown("tab\tand\x01"), R"("tab\u0009and\u0001")");
  EXPECT_EQ(shown("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"),
            "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"");
  EXPECT_EQ(shown("\xff"
                  "a\xc3"),
            R"("\ufffda\ufffd")");
  EXPECT_EQ(shown("\xc0\x80"), R"("\ufffd\ufffd")") << "overlong";
  EXPECT_EQ(shown("\xed\xa0\x80"), R"("\ufffd\ufffd\ufffd")") << "surrogate";
  EXPECT_EQ(shown("\xf4\x90\x80\x80"), R"("\ufffd\ufffd\ufffd\ufffd")")
      << "beyond the last code point";
}

}  // namespace
}  // namespace gpufs::testing
