// Extents: what is mapped and registered for direct loads, when, and who is told.
#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/device.hpp"
#include "support/eventually.hpp"
#include "support/fault_backend.hpp"
#include "support/memory_backend.hpp"
#include "support/schedule.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

using namespace std::chrono_literals;

std::string content_of(std::uint64_t bytes) {
  std::string content(bytes, '\0');
  for (std::uint64_t i = 0; i + 8 <= bytes; i += 8) std::memcpy(content.data() + i, &i, 8);
  return content;
}

service_rig_options with_budget(std::uint64_t extents) {
  service_rig_options options;
  options.extent_budget_bytes = extents * extent_bytes;
  options.extent_bytes = extent_bytes;
  return options;
}

class extents : public ::testing::Test {
 protected:
  extents() { memory_->write("/a", content_); }

  // Reads there until the answer tells of an extent, or for so many reads.
  rig_reply read_until_told(service_rig& rig, std::uint64_t handle, std::uint64_t offset) {
    rig_reply r;
    EXPECT_TRUE(eventually([&] {
      r = rig.read(handle, offset, 64);
      return r.extent_bytes != 0;
    })) << "no extent at "
        << offset;
    return r;
  }
  void expect_never_told(service_rig& rig, std::uint64_t handle, std::uint64_t offset) {
    const std::uint64_t refused = rig.extents().count().refused;
    (void)rig.read(handle, offset, 64);
    EXPECT_TRUE(eventually([&] { return rig.extents().count().refused > refused; }));
    for (int i = 0; i < 20; ++i) EXPECT_EQ(rig.read(handle, offset, 64).extent_bytes, 0u);
  }

  const std::string content_ = content_of(10 * extent_bytes + 12345);
  const std::shared_ptr<memory_backend> memory_ =
      std::make_shared<memory_backend>(memory_backend_options{.mappings = true});
  const std::shared_ptr<fault_backend> io_ = std::make_shared<fault_backend>(memory_);
};

TEST_F(extents, a_read_leads_to_registration_and_later_reads_tell_of_it) {
  service_rig rig(io_, with_budget(100));
  const std::uint64_t handle = rig.open("/a").handle;
  const rig_reply first = rig.read(handle, 3 * extent_bytes + 5, 64);
  EXPECT_EQ(first.extent_bytes, 0u) << "nothing waits for registration";
  const rig_reply told = read_until_told(rig, handle, 3 * extent_bytes + 5);
  EXPECT_EQ(told.bytes, content_.substr(3 * extent_bytes + 5, 64));
  EXPECT_EQ(told.extent_number, 3u);
  EXPECT_EQ(told.extent_bytes, extent_bytes);
  EXPECT_EQ(std::memcmp(reinterpret_cast<const char*>(told.extent_address),
                        content_.data() + 3 * extent_bytes, extent_bytes),
            0);
  EXPECT_EQ(rig.read(handle, 2 * extent_bytes, 64).extent_bytes, 0u)
      << "another part is another extent";
}

TEST_F(extents, the_last_one_ends_with_the_file) {
  service_rig rig(io_, with_budget(100));
  const rig_reply told = read_until_told(rig, rig.open("/a").handle, 10 * extent_bytes);
  EXPECT_EQ(told.extent_number, 10u);
  EXPECT_EQ(told.extent_bytes, 12345u);
  EXPECT_EQ(rig.extents().count().bytes, 12345u);
}

TEST_F(extents, all_opens_of_a_version_share_them) {
  service_rig rig(io_, with_budget(100));
  (void)read_until_told(rig, rig.open("/a").handle, 0);
  EXPECT_EQ(rig.read(rig.open("/a").handle, 0, 64).extent_bytes, extent_bytes);
  memory_->touch("/a");
  EXPECT_EQ(rig.read(rig.open("/a").handle, 0, 64).extent_bytes, 0u)
      << "a new version has none yet";
}

TEST_F(extents, the_budget_is_kept) {
  service_rig rig(io_, with_budget(3));
  const std::uint64_t handle = rig.open("/a").handle;
  for (std::uint64_t e = 0; e < 3; ++e) (void)read_until_told(rig, handle, e * extent_bytes);
  for (std::uint64_t e = 3; e < 10; ++e) expect_never_told(rig, handle, e * extent_bytes);
  EXPECT_EQ(rig.extents().count().registered, 3u);
  EXPECT_EQ(rig.extents().count().bytes, 3 * extent_bytes);
  EXPECT_EQ(rig.extents().count().refused, 7u);
}

TEST_F(extents, without_a_budget_nothing_is_mapped) {
  service_rig rig(io_, with_budget(0));
  const std::uint64_t handle = rig.open("/a").handle;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(rig.read(handle, 0, 64).extent_bytes, 0u);
  EXPECT_EQ(rig.extents().register_all(rig.files().find(handle)), 0u);
  EXPECT_EQ(io_->calls(operation::map), 0u);
}

TEST_F(extents, small_files_are_not_mapped) {
  service_rig_options options = with_budget(10);
  options.extent_file_bytes_min = 8193;
  service_rig rig(io_, options);
  memory_->write("/small", std::string(8192, 's'));
  memory_->write("/large", std::string(8193, 'l'));
  const std::uint64_t small = rig.open("/small").handle;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(rig.read(small, 0, 64).extent_bytes, 0u);
  EXPECT_EQ(read_until_told(rig, rig.open("/large").handle, 0).extent_bytes, 8193u);
}

TEST_F(extents, a_file_that_cannot_be_mapped_is_refused) {
  service_rig rig(io_, with_budget(100));
  const std::uint64_t handle = rig.open("/a").handle;
  io_->add({.on = operation::map, .error_number = EACCES});
  expect_never_told(rig, handle, 0);
  EXPECT_EQ(rig.extents().count().bytes, 0u) << "what was refused counts in the budget";
}

// What is registered stays mapped, and counts, until it is unregistered.
TEST_F(extents, one_without_an_address_for_the_device_is_kept_until_the_budget_is_used_up) {
  service_rig rig(io_, with_budget(2));
  const std::uint64_t handle = rig.open("/a").handle;
  rig.gpu().without_address = 1;
  expect_never_told(rig, handle, 0);
  EXPECT_EQ(rig.gpu().registered(), 1u);
  EXPECT_EQ(rig.extents().count().bytes, extent_bytes);
  (void)read_until_told(rig, handle, extent_bytes);
  EXPECT_EQ(rig.gpu().registered(), 2u);
  (void)read_until_told(rig, handle, 2 * extent_bytes);
  EXPECT_EQ(rig.gpu().registered(), 2u) << "the budget was used up, and no kernel knows the first";
  rig.extents().drop_all();
  EXPECT_EQ(rig.gpu().registered(), 0u);
  EXPECT_EQ(rig.extents().count().bytes, 0u);
}

TEST_F(extents, one_that_was_refused_is_tried_again_after_many_reads) {
  service_rig rig(io_, with_budget(100));
  const std::uint64_t handle = rig.open("/a").handle;
  io_->add({.on = operation::map, .times_max = 1, .error_number = EACCES});
  expect_never_told(rig, handle, 0);
  int reads = 0;
  EXPECT_TRUE(eventually(
      [&] {
        ++reads;
        return rig.read(handle, 0, 64).extent_bytes != 0;
      },
      60s));
  EXPECT_GT(reads, 500) << "not at each read";
}

TEST_F(extents, one_that_was_refused_and_is_registered_by_hand_is_told_soon) {
  service_rig rig(io_, with_budget(100));
  const std::uint64_t handle = rig.open("/a").handle;
  io_->add({.on = operation::map, .times_max = 1, .error_number = EACCES});
  expect_never_told(rig, handle, 0);
  EXPECT_GT(rig.extents().register_all(rig.files().find(handle)), 0u);
  int reads = 0;
  while (rig.read(handle, 0, 64).extent_bytes == 0 && ++reads < 500) {
  }
  EXPECT_LT(reads, 500);
  for (int i = 0; i < 20; ++i)
    EXPECT_NE(rig.read(handle, 0, 64).extent_bytes, 0u) << "and then always";
}

TEST_F(extents, a_file_that_changes_meanwhile_is_told_to_nobody) {
  service_rig rig(io_, with_budget(100));
  const std::uint64_t handle = rig.open("/a").handle;
  io_->add({.on = operation::map, .times_max = 1, .before = [&] {
              memory_->write_at("/a", 7, "changed");
            }});
  expect_never_told(rig, handle, 0);
  EXPECT_EQ(rig.extents().register_all(rig.files().find(handle)), 0u);
  EXPECT_EQ(read_until_told(rig, rig.open("/a").handle, 0).extent_bytes, extent_bytes)
      << "its new version is";
}

TEST_F(extents, an_exception_is_a_refusal) {
  service_rig rig(io_, with_budget(11));
  const std::uint64_t handle = rig.open("/a").handle;
  io_->add({.on = operation::map, .times_max = 1, .exception = true});
  expect_never_told(rig, handle, 0);
  io_->clear();
  io_->add({.on = operation::map, .times_max = 1, .worker_death = true});
  expect_never_told(rig, handle, extent_bytes);
  io_->clear();
  EXPECT_EQ(rig.extents().count().bytes, 0u);
  EXPECT_EQ(rig.extents().register_all(rig.files().find(handle)), content_.size())
      << "the budget was given back";
}

TEST_F(extents, those_behind_neighbours_in_use_are_registered_ahead) {
  service_rig_options options = with_budget(11);
  options.extents_ahead = 3;
  service_rig rig(io_, options);
  const std::uint64_t handle = rig.open("/a").handle;
  const auto registered = [&] { return rig.extents().count().registered; };
  EXPECT_NE(read_until_told(rig, handle, 2 * extent_bytes).extent_bytes, 0u);
  EXPECT_NE(read_until_told(rig, handle, 4 * extent_bytes).extent_bytes, 0u);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(registered(), 2u) << "nobody reads from front to back";
  EXPECT_NE(read_until_told(rig, handle, 5 * extent_bytes).extent_bytes, 0u);
  EXPECT_TRUE(eventually([&] { return registered() == 6; }));
  EXPECT_NE(rig.read(handle, 8 * extent_bytes, 64).extent_bytes, 0u) << "told at the first read";
  EXPECT_NE(read_until_told(rig, handle, 9 * extent_bytes).extent_bytes, 0u);
  EXPECT_TRUE(eventually([&] { return registered() == 8; })) << "up to the end of the file";
}

TEST_F(extents, register_all_registers_a_file_once) {
  service_rig rig(io_, with_budget(11));
  const std::uint64_t handle = rig.open("/a").handle;
  EXPECT_EQ(rig.extents().register_all(rig.files().find(handle)), content_.size());
  EXPECT_EQ(rig.extents().register_all(rig.files().find(handle)), content_.size());
  EXPECT_EQ(rig.extents().count().registered, 11u);
  EXPECT_EQ(rig.extents().count().bytes, content_.size());
  EXPECT_EQ(extent_registrar::registered_in(rig.files().find(handle)->version()), 11u);
  for (std::uint64_t e = 0; e <= 10; ++e)
    EXPECT_NE(rig.read(handle, e * extent_bytes, 64).extent_bytes, 0u);
}

// The registrar then holds the file, and may be the last that does: the end of a file closes its
// descriptor.
TEST_F(extents, a_touch_does_not_wait_for_one_whose_quiet_moment_has_come) {
  std::atomic<bool> is_due{false}, go_on{false};
  const schedule_hook holds([&](const char* point) {
    if (std::string_view(point) != "extents.due") return;
    is_due = true;
    while (!go_on) std::this_thread::sleep_for(1ms);
  });
  service_rig rig(io_, with_budget(11));
  const auto file = rig.files().find(rig.open("/a").handle);
  (void)rig.extents().touch(file, 0, extent_registrar::urgency::when_quiet);
  EXPECT_TRUE(eventually([&] { return is_due.load(); }));
  auto touched = std::async(std::launch::async, [&] {
    (void)rig.extents().touch(file, extent_bytes, extent_registrar::urgency::now);
  });
  EXPECT_EQ(touched.wait_for(5s), std::future_status::ready);
  go_on = true;
  touched.get();
  EXPECT_TRUE(eventually([&] { return rig.extents().count().registered == 2; }));
}

// Statistics ask for each open file, and the table remembers the versions of a million files.
TEST_F(extents, asking_for_their_number_makes_none) {
  service_rig rig(io_, with_budget(11));
  file_version& version = rig.files().find(rig.open("/a").handle)->version();
  EXPECT_EQ(extent_registrar::registered_in(version), 0u);
  EXPECT_FALSE(version.has_extents());
}

TEST_F(extents, two_that_register_at_once_agree) {
  for (int round = 0; round < 10; ++round) {
    service_rig rig(io_, with_budget(50));
    const std::uint64_t handle = rig.open("/a").handle;
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        if (rig.extents().register_all(rig.files().find(handle)) != content_.size()) ++wrong;
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(extent_registrar::registered_in(rig.files().find(handle)->version()), 11u);
  }
}

// Each entry of the registrar's queue for a quiet moment holds the file's version.
TEST_F(extents, one_that_is_deferred_again_and_again_is_queued_once) {
  constexpr std::uint64_t count = 4;
  service_rig rig(io_, with_budget(100));
  const auto file = rig.files().find(rig.open("/a").handle);
  const auto touch = [&](std::uint64_t number, extent_registrar::urgency when) {
    return rig.extents().touch(file, number * extent_bytes, when);
  };
  const long before = file->shared_version().use_count();
  io_->add({.on = operation::map, .error_number = EACCES});
  long most = before;
  for (int round = 0; round < 50; ++round) {
    for (std::uint64_t n = 0; n < count; ++n) {
      const std::uint64_t refused = rig.extents().count().refused;
      // As many as it takes until one that was refused is tried again.
      for (int i = 0; i < 1100; ++i) (void)touch(n, extent_registrar::urgency::when_quiet);
      (void)touch(n, extent_registrar::urgency::now);
      ASSERT_TRUE(eventually([&] { return rig.extents().count().refused != refused; }));
      most = std::max(most, file->shared_version().use_count());
    }
  }
  EXPECT_LE(most, before + static_cast<long>(count) + 1) << "with the one that is being taken out";
  EXPECT_TRUE(eventually([&] { return file->shared_version().use_count() == before; }));
  // One that has left the queue is queued again, and registered at a quiet moment.
  io_->clear();
  EXPECT_TRUE(
      eventually([&] { return touch(0, extent_registrar::urgency::when_quiet).bytes != 0; }));
}

// The queue outlives what the host drops.
TEST_F(extents, one_that_is_queued_when_all_are_dropped_is_queued_once) {
  service_rig rig(io_, with_budget(100));
  const auto file = rig.files().find(rig.open("/a").handle);
  EXPECT_GT(rig.extents().register_all(file), 0u);
  rig.extents().drop_all();
  const long before = file->shared_version().use_count();
  for (int round = 0; round < 50; ++round) {
    (void)rig.extents().touch(file, 0, extent_registrar::urgency::when_quiet);
    EXPECT_LE(file->shared_version().use_count(), before + 2) << round;
    rig.extents().drop_all();
  }
}

// ---- giving back

TEST_F(extents, a_file_that_is_written_here_is_registered_once_and_stays_so) {
  service_rig rig(io_, with_budget(3));
  const rig_reply file = rig.open_to_write("/a");
  ASSERT_EQ(rig.write(file.node, 5, "changed").result, 7)
      << "its times are not the version's any more";
  const rig_reply told = read_until_told(rig, file.handle, 0);
  ASSERT_EQ(told.extent_bytes, extent_bytes);
  EXPECT_EQ(std::memcmp(reinterpret_cast<const char*>(told.extent_address) + 5, "changed", 7), 0);
  for (int i = 0; i < 5000; ++i) {
    if (i % 100 == 0) {
      ASSERT_EQ(rig.write(file.node, 5, "again").result, 5);
    }
    ASSERT_EQ(rig.read(file.handle, 0, 64).extent_bytes, extent_bytes)
        << "the direct path is lost after " << i;
  }
  EXPECT_EQ(rig.extents().count().bytes, extent_bytes);
  EXPECT_NE(read_until_told(rig, file.handle, extent_bytes).extent_bytes, 0u);
}

TEST_F(extents, of_versions_that_are_gone_are_given_back_when_the_budget_is_used_up) {
  service_rig rig(io_, with_budget(3));
  for (int version = 0; version < 12; ++version) {
    const rig_reply file = version % 2 == 0 ? rig.open("/a") : rig.open_to_write("/a");
    for (std::uint64_t e = 0; e < 2; ++e)
      ASSERT_NE(read_until_told(rig, file.handle, e * extent_bytes).extent_bytes, 0u);
    EXPECT_LE(rig.extents().count().bytes, 3 * extent_bytes);
    EXPECT_EQ(rig.close(file.handle).result, 0);
    memory_->touch("/a");
  }
}

TEST_F(extents, of_files_that_changed_meanwhile_are_given_back) {
  service_rig rig(io_, with_budget(3));
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t handle = rig.open("/a").handle;
    io_->add({.on = operation::map, .times_max = 1, .before = [&] {
                memory_->write_at("/a", 7, "changed");
              }});
    EXPECT_EQ(rig.extents().register_all(rig.files().find(handle)), 0u)
        << "of all extents, as the file has changed";
    io_->clear();
    EXPECT_EQ(rig.close(handle).result, 0);
  }
  EXPECT_NE(read_until_told(rig, rig.open("/a").handle, 0).extent_bytes, 0u);
  rig.extents().give_back_unreachable();
  EXPECT_EQ(rig.extents().count().bytes, extent_bytes);
}

// ---- dropping

TEST_F(extents, dropped_ones_are_gone_and_come_back) {
  service_rig rig(io_, with_budget(11));
  const std::uint64_t handle = rig.open("/a").handle;
  EXPECT_EQ(rig.extents().register_all(rig.files().find(handle)), content_.size());
  rig.extents().drop_all();
  EXPECT_EQ(rig.extents().count().bytes, 0u);
  EXPECT_EQ(extent_registrar::registered_in(rig.files().find(handle)->version()), 0u);
  EXPECT_EQ(rig.read(handle, 0, 64).extent_bytes, 0u);
  EXPECT_EQ(read_until_told(rig, handle, 0).extent_bytes, extent_bytes);
  EXPECT_EQ(rig.extents().register_all(rig.files().find(handle)), content_.size())
      << "the whole budget is there again";
}

// The registrar works in the background also while nobody reads: between two kernels, when extents
// are dropped.
TEST_F(extents, dropping_while_one_is_being_registered_keeps_the_accounts) {
  service_rig rig(io_, with_budget(11));
  const std::uint64_t handle = rig.open("/a").handle;
  for (const bool fails : {true, false}) {
    std::atomic<bool> mapping{false}, go_on{false};
    io_->add({.on = operation::map,
              .times_max = 1,
              .before =
                  [&] {
                    mapping = true;
                    while (!go_on) std::this_thread::sleep_for(1ms);
                  },
              .error_number = fails ? EIO : 0});
    const auto done = [&] {
      return rig.extents().count().registered + rig.extents().count().refused;
    };
    const std::uint64_t before = done();
    (void)rig.read(handle, 2 * extent_bytes, 64);
    EXPECT_TRUE(eventually([&] { return mapping.load(); }));
    rig.extents().drop_all();
    go_on = true;
    EXPECT_TRUE(eventually([&] { return done() > before; }));
    EXPECT_EQ(rig.extents().count().bytes, fails ? 0 : extent_bytes);
    io_->clear();
    rig.extents().drop_all();
    EXPECT_EQ(rig.extents().count().bytes, 0u);
    EXPECT_EQ(rig.extents().register_all(rig.files().find(handle)), content_.size());
    rig.extents().drop_all();
  }
}

// ---- the page cache

// A backend whose files are never in the host's page cache, or become so some time after they were
// read ahead.
class cold_backend final : public backend {
 public:
  explicit cold_backend(std::shared_ptr<backend> wrapped) : wrapped_(std::move(wrapped)) {}
  int open(const std::string& path, bool no_follow,
           std::unique_ptr<backend_file>& opened) override {
    std::unique_ptr<backend_file> f;
    const int status = wrapped_->open(path, no_follow, f);
    if (status == 0) opened = std::make_unique<file>(*this, std::move(f));
    return status;
  }
  std::atomic<int> looks_until_warm{1 << 30};
  std::atomic<int> looks{0};
  std::atomic<int> read_aheads{0};

 private:
  class file final : public backend_file {
   public:
    file(cold_backend& owner, std::unique_ptr<backend_file> wrapped)
        : owner_(owner), wrapped_(std::move(wrapped)) {}
    int identify(file_identity& identity) override { return wrapped_->identify(identity); }
    std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t offset) override {
      return wrapped_->read(to, bytes, offset);
    }
    std::unique_ptr<file_mapping> map(std::uint64_t offset, std::uint64_t bytes) override {
      return wrapped_->map(offset, bytes);
    }
    double cached(const file_mapping&, std::uint64_t) override {
      return ++owner_.looks > owner_.looks_until_warm ? 1.0 : 0.5;
    }
    void read_ahead(std::uint64_t, std::uint64_t) override { ++owner_.read_aheads; }

   private:
    cold_backend& owner_;
    const std::unique_ptr<backend_file> wrapped_;
  };
  const std::shared_ptr<backend> wrapped_;
};

TEST_F(extents, a_cold_file_is_read_ahead_and_registered_when_it_is_cached) {
  const auto cold = std::make_shared<cold_backend>(memory_);
  cold->looks_until_warm = 5;
  service_rig rig(cold, with_budget(100));
  EXPECT_EQ(read_until_told(rig, rig.open("/a").handle, 0).extent_bytes, extent_bytes);
  EXPECT_EQ(cold->read_aheads, 1);
  EXPECT_GE(cold->looks, 6);
}

TEST_F(extents, a_file_that_does_not_get_cached_is_refused_in_the_end) {
  const auto cold = std::make_shared<cold_backend>(memory_);
  service_rig rig(cold, with_budget(100));
  expect_never_told(rig, rig.open("/a").handle, 0);
  EXPECT_EQ(rig.extents().count().bytes, 0u);
}

TEST_F(extents, the_end_of_the_service_does_not_wait_for_a_cold_file) {
  const auto cold = std::make_shared<cold_backend>(memory_);
  // Of several, as this machine may be busy elsewhere.
  auto shortest = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 5 && shortest >= 3s; ++i) {
    cold->looks = 0;
    std::chrono::steady_clock::time_point start;
    {
      service_rig rig(cold, with_budget(100));
      (void)rig.read(rig.open("/a").handle, 0, 64);
      EXPECT_TRUE(eventually([&] { return cold->looks > 1; }));
      start = std::chrono::steady_clock::now();
    }
    shortest = std::min(shortest, std::chrono::steady_clock::now() - start);
  }
  EXPECT_LT(shortest, 3s);
}

}  // namespace
}  // namespace gpufs::testing
