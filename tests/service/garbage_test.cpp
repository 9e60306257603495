// A kernel may write anything into its part of the channel. Whatever it asks for, the service
// answers, with an error or with what was really asked for, and serves the next one.
#include <errno.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/memory_backend.hpp"
#include "support/seeds.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

// What a handle may look like that is none: others' neighbours, and any of its bits wrong.
std::vector<std::uint64_t> wrong_ones(std::uint64_t handle) {
  std::vector<std::uint64_t> all{handle + 1, ~handle, ~std::uint64_t{0}, no_node};
  if (handle != 0) all.push_back(0);
  for (unsigned bit = 0; bit < 64; ++bit) all.push_back(handle ^ std::uint64_t{1} << bit);
  return all;
}

class garbage : public ::testing::Test {
 protected:
  garbage() { io_->write("/a", "0123456789"); }
  rig_reply call(request_code code, std::uint64_t handle, std::uint32_t length,
                 std::uint64_t offset, std::string_view staging = {}) {
    return rig_.call({code, handle, length, offset}, staging);
  }
  static constexpr std::uint32_t staging_bytes = limits::staging_bytes_min;

  const std::shared_ptr<memory_backend> io_ = std::make_shared<memory_backend>();
  service_rig rig_{io_};
};

TEST_F(garbage, unknown_codes_are_refused) {
  for (const std::uint32_t code : {0u, 15u, 99u, 0x80000000u, 0xffffffffu}) {
    EXPECT_EQ(call(static_cast<request_code>(code), 1, 1, 0).result, -ENOSYS) << code;
  }
}

TEST_F(garbage, reads_are_checked) {
  const std::uint64_t handle = rig_.open("/a").handle;
  EXPECT_EQ(rig_.read(handle, 0, staging_bytes).bytes, "0123456789");
  EXPECT_EQ(rig_.read(handle, 3, 4).bytes, "3456");
  EXPECT_EQ(rig_.read(handle, 3, 0).result, 0);
  EXPECT_EQ(rig_.read(handle, 10, 4).result, 0);
  EXPECT_EQ(rig_.read(handle, limits::file_bytes_max - 1, 4).result, 0);
  EXPECT_EQ(rig_.read(handle, limits::file_bytes_max, 4).result, -EINVAL);
  EXPECT_EQ(rig_.read(handle, ~std::uint64_t{0}, 4).result, -EINVAL);
  EXPECT_EQ(rig_.read(handle, std::uint64_t{1} << 63, 4).result, -EINVAL);
  EXPECT_EQ(rig_.read(handle, 0, staging_bytes + 1).result, -EINVAL)
      << "it would go into the next slot's memory";
  EXPECT_EQ(rig_.read(handle, 0, 0xffffffffu).result, -EINVAL);
  for (const std::uint64_t wrong : wrong_ones(handle))
    EXPECT_EQ(rig_.read(wrong, 0, 4).result, -EBADF) << wrong;
  EXPECT_EQ(rig_.close(handle).result, 0);
  EXPECT_EQ(rig_.read(handle, 0, 4).result, -EBADF);
  EXPECT_EQ(rig_.close(handle).result, -EBADF);
  EXPECT_EQ(rig_.close(0).result, -EBADF);
}

TEST_F(garbage, paths_are_checked) {
  const std::string nul_inside("/a\0b", 4), nul_at_the_end("/a\0", 3);
  EXPECT_EQ(rig_.open(nul_inside).result, -EINVAL);
  EXPECT_EQ(rig_.open(nul_at_the_end).result, -EINVAL);
  EXPECT_EQ(call(request_code::open, 0, 0, 0).result, -ENAMETOOLONG);
  const std::string longest(limits::path_bytes_max - 1, 'x');
  EXPECT_EQ(rig_.open(longest).result, -ENOENT);
  EXPECT_EQ(call(request_code::open, 0, limits::path_bytes_max, 0, longest + "x").result,
            -ENAMETOOLONG);
  EXPECT_EQ(call(request_code::open, 0, 0xffffffffu, 0).result, -ENAMETOOLONG);
  EXPECT_EQ(rig_.open("\xff\xfe\x01").result, -ENOENT);
}

TEST_F(garbage, a_small_file_comes_along_only_if_it_fits_what_was_asked_for) {
  EXPECT_EQ(rig_.open("/a", 9).result, 0);
  EXPECT_EQ(rig_.open("/a", 0).result, 0);
  io_->write("/big", std::string(staging_bytes + 1, 'b'));
  EXPECT_EQ(rig_.open("/big", ~std::uint64_t{0}).result, 0)
      << "it is larger than the slot's memory";
  EXPECT_EQ(rig_.open("/a", ~std::uint64_t{0}).bytes, "0123456789");
  io_->write("/empty", "");
  EXPECT_EQ(rig_.open("/empty", 100).result, 0);
}

TEST_F(garbage, sends_are_checked) {
  std::string got;
  const std::int32_t sink = rig_.sinks().open([&](const char* bytes, std::size_t count) {
    got.assign(bytes, count);
    return 0;
  });
  const auto handle = static_cast<std::uint64_t>(sink);
  EXPECT_EQ(call(request_code::send, handle, staging_bytes, 0).result, 0);
  EXPECT_EQ(got.size(), staging_bytes);
  EXPECT_EQ(call(request_code::send, handle, staging_bytes + 1, 0).result, -EINVAL);
  EXPECT_EQ(call(request_code::send, handle, 0xffffffffu, 0).result, -EINVAL);
  for (const std::uint64_t wrong : wrong_ones(handle))
    EXPECT_EQ(call(request_code::send, wrong, 1, 0).result, -EBADF) << wrong;
}

TEST_F(garbage, a_bell_may_jump) {
  channel_client client = rig_.client();
  const auto slot = static_cast<std::uint32_t>(client.acquire());
  const std::uint64_t handle = rig_.open("/a").handle;
  std::mt19937 random(8);
  for (int i = 0; i < 200; ++i) {
    rig_.memory().record(slot).sequence.store_relaxed(random());
    client.post(slot, {request_code::read, handle, 10, 0});
    const channel_client::answer answer = client.wait(slot);
    ASSERT_EQ(answer.result, 10);
  }
  client.release(slot);
}

TEST_F(garbage, random_requests_are_answered_and_harm_nobody) {
  std::mt19937_64 random(2024);
  // A word that is often almost right.
  const auto word = [&](std::uint64_t likely) -> std::uint64_t {
    switch (random() % 6) {
      case 0: return random();
      case 1: return random() % 70000;
      case 2: return std::uint64_t{1} << random() % 64;
      case 3: return (std::uint64_t{1} << random() % 64) - 1;
      default: return likely + random() % 3 - 1;
    }
  };
  io_->write("/page", std::string(70'000, 'p'));
  io_->write("/precious", "nobody opens it");
  std::vector<std::uint64_t> handles{rig_.open("/a").handle, rig_.open("/page").handle};
  const std::int32_t sink = rig_.sinks().open([](const char* bytes, std::size_t count) {
    unsigned sum = 0;  // every byte can be read
    for (std::size_t i = 0; i < count; ++i) sum += static_cast<unsigned char>(bytes[i]);
    return sum % 2 == 0 ? 0 : EPROTO;
  });
  std::uint64_t opened = handles.size(), closed = 0;
  const std::string names = std::string("/a") + '\0' + "/page./..//";
  std::string pool(3 * staging_bytes, '\0');
  for (char& c : pool) c = names[random() % names.size()];
  for (int i = 0; i < (is_sanitized ? 10'000 : 30'000); ++i) {
    const auto code = static_cast<request_code>(
        random() % 8 == 0 ? word(2) % request_record::codes : 1 + random() % request_code_max);
    const std::uint64_t handle =
        word(code == request_code::send ? static_cast<std::uint64_t>(sink)
                                        : handles[random() % handles.size()]);
    const auto length = static_cast<std::uint32_t>(word(random() % staging_bytes));
    std::string staging = pool.substr(random() % (2 * staging_bytes), staging_bytes);
    if (random() % 3 == 0) staging.replace(0, 5, "/page");
    const bool opens = code == request_code::open || code == request_code::open_write;
    // A file that grows for ever would only take long.
    const std::uint64_t offset = code == request_code::truncate ? random() % 100'000 : word(4096);
    const rig_reply r =
        rig_.call({code, handle, opens && random() % 2 == 0 ? 5 : length, offset}, staging);
    ASSERT_FALSE(r.abandoned) << "request " << i << " got no answer";
    ASSERT_LE(r.result, static_cast<std::int32_t>(staging_bytes));
    if (r.result < 0) continue;
    if (opens) {
      ++opened;
      handles.push_back(r.handle);
    }
    if (code == request_code::close || code == request_code::close_written) {
      ++closed;
      std::erase(handles, handle);
      if (handles.empty()) {
        handles.push_back(rig_.open("/page").handle);
        ++opened;
      }
    }
    if (code == request_code::unlink || code == request_code::rename)
      io_->write("/page", std::string(70'000, 'p'));
  }
  EXPECT_EQ(rig_.files().open_count(), opened - closed);
  EXPECT_EQ(io_->content("/precious"), "nobody opens it");
  io_->write("/page", std::string(70'000, 'p'));
  EXPECT_EQ(rig_.read(rig_.open("/page").handle, 69'999, 100).bytes, "p");
}

TEST(garbage_in_wide_slots, writes_are_as_long_as_the_slot_has_room) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "");
  service_rig rig(io, {.write_bytes = 65536});
  const std::uint64_t node = rig.open_to_write("/a").node;
  std::string content(65536, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 >> 3);
  EXPECT_EQ(rig.write(node, 5, content).result, 65536);
  EXPECT_EQ(io->content("/a"), std::string(5, '\0') + content);
  EXPECT_EQ(rig.call({request_code::write, node, 65537, 0}, content).result, -EINVAL)
      << "of the next slot's memory";
  EXPECT_EQ(rig.call({request_code::write, node, 65536 | masked_flag, 0}, content).result, -EINVAL);
  EXPECT_EQ(
      rig.call({request_code::write, node, (65536 / 9 * 8) | masked_flag, 0}, content).result >= 0,
      true);
}

TEST_F(garbage, writes_are_checked) {
  const rig_reply opened =
      rig_.call({request_code::open_write, open_reads | open_writes, 2, 0}, "/a");
  const std::uint64_t handle = opened.handle, node = opened.node;
  ASSERT_GE(opened.result, 0);
  const rig_reply read_only = rig_.open("/a");
  const std::uint64_t reader = read_only.handle;
  const auto write = [&](std::uint64_t of, std::uint64_t offset, std::uint32_t length) {
    return rig_.call({request_code::write, of, length, offset}, std::string(staging_bytes, 'w'))
        .result;
  };
  EXPECT_EQ(read_only.node, node);
  EXPECT_EQ(rig_.call({request_code::truncate, reader, 0, 0}).result, -EBADF);
  EXPECT_EQ(rig_.call({request_code::sync, reader, 0, 0}).result, -EBADF);
  EXPECT_EQ(rig_.call({request_code::report_close, reader, 0, 0}).result, -EBADF);
  for (const std::uint64_t wrong : wrong_ones(handle))
    EXPECT_EQ(rig_.call({request_code::truncate, wrong, 0, 0}).result, -EBADF) << wrong;
  for (const std::uint64_t wrong : wrong_ones(node)) EXPECT_EQ(write(wrong, 0, 3), -EBADF) << wrong;
  EXPECT_EQ(write(node, 0, staging_bytes + 1), -EINVAL) << "of the next slot's memory";
  EXPECT_EQ(write(node, 0, staging_bytes | masked_flag), -EINVAL)
      << "with a mask that lies behind it";
  EXPECT_EQ(write(node, limits::file_bytes_max, 1), -EINVAL);
  EXPECT_EQ(write(node, ~std::uint64_t{0}, 3), -EINVAL);
  EXPECT_EQ(rig_.call({request_code::truncate, handle, 0, limits::file_bytes_max}).result, -EINVAL);
  EXPECT_EQ(io_->content("/a"), "0123456789");
  EXPECT_EQ(write(node, 2, 0), 0);
  EXPECT_EQ(write(node, 2, masked_flag), 0) << "no bytes, by a mask of none";
  EXPECT_EQ(io_->content("/a"), "0123456789");
  EXPECT_EQ(write(node, 2, 3), 3);
  EXPECT_EQ(io_->content("/a"), "01www56789");
  EXPECT_EQ(rig_.close(handle).result, 0);
  EXPECT_EQ(write(node, 0, 3), -EBADF) << "it is open to be read only";
  EXPECT_EQ(io_->content("/a"), "01www56789");
  for (const std::string& paths : {std::string("/a"), std::string("/a\0", 3),
                                   std::string("/a\0/b\0", 6), std::string("\0/b", 3)})
    EXPECT_LT(
        rig_.call({request_code::rename, 0, static_cast<std::uint32_t>(paths.size()), 0}, paths)
            .result,
        0);
  EXPECT_EQ(rig_.call({request_code::unlink, 0, 4, 0}, std::string("/a\0x", 4)).result, -EINVAL);
  EXPECT_EQ(io_->content("/a"), "01www56789");
}

// Each bit a byte, whatever the length and the pattern.
TEST_F(garbage, masks_say_which_bytes_are_written) {
  const std::uint64_t node = rig_.open_to_write("/a").node;
  std::mt19937_64 random(5);
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t bytes = 1 + random() % 700;
    std::string content(bytes + 20, 'o'), staging(staging_bytes, 'w');
    io_->write("/a", content);
    std::vector<std::uint64_t> mask(mask_words(bytes));
    for (std::uint64_t& w : mask)
      w = random() % 4 == 0 ? ~std::uint64_t{0} : random() % 3 == 0 ? 0 : random() & random();
    for (std::uint64_t b = 0; b < bytes; ++b) {
      if ((mask[b / 64] >> b % 64 & 1) != 0) content[7 + b] = 'w';
    }
    std::memcpy(staging.data() + mask_offset(bytes), mask.data(), mask.size() * 8);
    const auto length = static_cast<std::uint32_t>(bytes) | masked_flag;
    ASSERT_GE(rig_.call({request_code::write, node, length, 7}, staging).result, 0);
    ASSERT_EQ(io_->content("/a"), content) << bytes;
  }
}

}  // namespace
}  // namespace gpufs::testing
