// The service's side of a bulk request: what it copies, and what it refuses.
#include <errno.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "support/eventually.hpp"
#include "support/memory_backend.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

class bulk_service : public ::testing::Test {
 protected:
  static service_rig_options with_extents() {
    service_rig_options o;
    o.extent_budget_bytes = std::uint64_t{1} << 20;
    return o;
  }
  bulk_service() {
    for (std::size_t i = 0; i < 100000; ++i)
      content_.push_back(static_cast<char>('a' + i * 7 % 26));
    io_->write("/a", content_);
    file_ = rig_.open("/a").handle;
  }
  void register_all() { (void)rig_.extents().register_all(rig_.files().find(file_)); }
  std::string frames(std::uint32_t first, std::size_t bytes) const {
    return rig_.frames().substr(first * service_rig::frame_bytes, bytes);
  }

  std::string content_;
  const std::shared_ptr<memory_backend> io_ =
      std::make_shared<memory_backend>(memory_backend_options{true});
  service_rig rig_{io_, with_extents()};
  std::uint64_t file_ = 0;
};

TEST_F(bulk_service, copies_into_the_frames_and_says_where_the_extent_is) {
  register_all();
  const rig_reply reply = rig_.bulk(file_, 8192, 3 * 4096, 5);
  EXPECT_EQ(reply.result, 3 * 4096);
  EXPECT_EQ(reply.extent_number, 0u);
  EXPECT_EQ(reply.extent_bytes, 65536u);
  EXPECT_EQ(frames(5, 3 * 4096), content_.substr(8192, 3 * 4096));
  EXPECT_EQ(frames(0, 5 * 4096), std::string(5 * 4096, '?'));
  EXPECT_EQ(frames(8, 8 * 4096), std::string(8 * 4096, '?'));
}

TEST_F(bulk_service, the_end_of_a_file_is_no_whole_page) {
  register_all();
  const std::uint64_t at = 90112;
  EXPECT_EQ(rig_.bulk(file_, at, static_cast<std::uint32_t>(content_.size() - at), 0).result,
            static_cast<std::int32_t>(content_.size() - at));
  EXPECT_EQ(frames(0, content_.size() - at + 1), content_.substr(at) + "?");
}

TEST_F(bulk_service, what_is_not_registered_is_read) {
  EXPECT_EQ(rig_.bulk(file_, 65536, 4096, 3).result, 4096 | staged_flag);
  EXPECT_EQ(frames(3, 4096), content_.substr(65536, 4096));
  // And then it is: the request asked for it.
  EXPECT_TRUE(eventually([&] { return rig_.extents().count().registered == 1; }));
  EXPECT_EQ(rig_.bulk(file_, 65536 + 4096, 4096, 3).result, 4096);
  EXPECT_EQ(frames(3, 4096), content_.substr(65536 + 4096, 4096));
  register_all();
  EXPECT_EQ(rig_.bulk(file_, 65536 - 4096, 8192, 0).result, 8192 | staged_flag) << "two extents";
  EXPECT_EQ(frames(0, 8192), content_.substr(65536 - 4096, 8192));
  // As much as there is.
  EXPECT_EQ(rig_.bulk(file_, 98304, 4096, 7).result, 1696 | staged_flag);
  EXPECT_EQ(frames(7, 1697), content_.substr(98304) + "?");
  EXPECT_EQ(rig_.bulk(file_, 102400, 4096, 7).result, 0);
}

// Many workers are not disturbed by a registration while they read runs.
TEST_F(bulk_service, of_many_workers_is_registered_when_it_is_quiet) {
  service_rig_options options = with_extents();
  options.workers = 6;
  service_rig rig(io_, options);
  const std::uint64_t file = rig.open("/a").handle;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(rig.bulk(file, 0, 4096, 0).result, 4096 | staged_flag);
  EXPECT_TRUE(eventually([&] { return rig.extents().count().registered == 1; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
  EXPECT_EQ(rig.bulk(file, 0, 4096, 0).result, 4096);
}

// Who reads single pages does not wait for that.
TEST_F(bulk_service, what_is_read_by_the_page_is_registered_at_once) {
  io_->write("/large", std::string(1000 * 4096, 'l'));
  service_rig_options options = with_extents();
  options.workers = 6;
  options.extent_bytes = 4096;
  options.extent_budget_bytes = std::uint64_t{1} << 30;
  service_rig rig(io_, options);
  const std::uint64_t file = rig.open("/large").handle;
  EXPECT_EQ(rig.bulk(file, 0, 4096, 0).result, 4096 | staged_flag);
  bool told = false;
  for (std::uint64_t extent = 1; extent < 1000 && !told; ++extent) {  // it is not quiet meanwhile
    EXPECT_EQ(rig.bulk(file, extent * 4096, 4096, 0).result & bulk_bytes_mask, 4096);
    told = rig.read(file, 0, 64).extent_bytes != 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the registrar needs a processor
  }
  EXPECT_TRUE(told);
}

// A stream that comes by again and again does not keep it from being quiet.
TEST_F(bulk_service, what_is_read_again_and_again_is_registered) {
  service_rig_options options = with_extents();
  options.workers = 6;
  service_rig rig(io_, options);
  const std::uint64_t file = rig.open("/a").handle;
  EXPECT_TRUE(eventually([&] { return rig.bulk(file, 0, 4096, 0).result == 4096; }));
}

TEST_F(bulk_service, what_waits_to_be_registered_keeps_no_file_open) {
  service_rig_options options = with_extents();
  options.workers = 6;
  service_rig rig(io_, options);
  for (int i = 0; i < 100; ++i) {
    const std::string path = "/" + std::to_string(i);
    io_->write(path, content_);
    const std::uint64_t file = rig.open(path).handle;
    EXPECT_EQ(rig.bulk(file, 0, 4096, 0).result & bulk_bytes_mask, 4096);
    EXPECT_EQ(rig.close(file).result, 0);
  }
  EXPECT_LT(io_->open_most(), 30u) << "more than the workers may remember";
}

TEST_F(bulk_service, many_reads_share_the_buffers) {
  for (std::uint32_t round = 0; round < 40; ++round) {
    const std::uint64_t at = round * 1711;
    EXPECT_EQ(rig_.bulk(file_, at, 5000, round % 14).result & bulk_bytes_mask, 5000);
    EXPECT_EQ(frames(round % 14, 5000), content_.substr(at, 5000));
  }
}

TEST_F(bulk_service, requests_are_checked) {
  register_all();
  EXPECT_EQ(rig_.bulk(file_, 0, 0, 0).result, -EINVAL);
  EXPECT_EQ(rig_.bulk(file_, 0, service_rig::frame_count * service_rig::frame_bytes + 1, 0).result,
            -EINVAL);
  EXPECT_EQ(rig_.bulk(file_, 0, 4096, service_rig::frame_count).result, -EINVAL);
  EXPECT_EQ(rig_.bulk(file_, 0, 4096, ~0u).result, -EINVAL);
  EXPECT_EQ(rig_.bulk(file_, 0, 2 * 4096, service_rig::frame_count - 1).result, -EINVAL);
  EXPECT_EQ(rig_.bulk(file_, 0, 4097, service_rig::frame_count - 1).result, -EINVAL)
      << "it would write behind the arena";
  EXPECT_EQ(rig_.bulk(file_, limits::file_bytes_max, 4096, 0).result, -EINVAL);
  EXPECT_EQ(rig_.bulk(file_, ~std::uint64_t{0}, 4096, 0).result, -EINVAL);
  EXPECT_EQ(rig_.bulk(file_ + 1, 0, 4096, 0).result, -EBADF);
  EXPECT_EQ(rig_.frames(), std::string(rig_.frames().size(), '?'));
  EXPECT_EQ(rig_.bulk(file_, 0, 4096, service_rig::frame_count - 1).result, 4096);
}

TEST_F(bulk_service, a_file_that_is_shorter_now_gives_what_is_left) {
  register_all();
  io_->truncate("/a", 8192);
  const rig_reply reply = rig_.bulk(file_, 4096, 4 * 4096, 0);
  EXPECT_EQ(reply.result & bulk_bytes_mask, 4096);
  EXPECT_EQ(frames(0, 4096), content_.substr(4096, 4096));
}

}  // namespace
}  // namespace gpufs::testing
