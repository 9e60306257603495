// What a kernel can make the host keep: not more memory than is documented (docs/security.md), whatever it asks for and however often.
#include <errno.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/eventually.hpp"
#include "support/memory_backend.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

constexpr std::uint64_t extent_bytes = 65536;

service_rig_options with_extents() {
  service_rig_options options;
  options.extent_budget_bytes = 4 * extent_bytes;
  options.extent_bytes = extent_bytes;
  return options;
}

TEST(hostile_requests, leave_memory_flat) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator does not say how much is allocated";
#endif
  const auto io = std::make_shared<memory_backend>(memory_backend_options{.mappings = true});
  io->write("/read", std::string(200'000, 'r'));
  io->write("/written", std::string(200'000, 'w'));
  service_rig rig(io, with_extents());
  const std::vector<std::uint32_t> handles{rig.open("/read").handle, rig.open_to_write("/written").handle};
  std::mt19937_64 random(3);
  const auto send = [&](int requests) {
    for (int i = 0; i < requests; ++i) {
      const std::uint32_t handle = random() % 8 == 0 ? static_cast<std::uint32_t>(random()) : handles[random() % 2];
      const std::uint64_t offset = random() >> (16 + random() % 20);
      switch (random() % 8) {
        case 0: (void)rig.close(rig.open("/read", random() % 300'000).handle); break;
        case 1: (void)rig.open("/none/" + std::to_string(random())); break;
        case 2: (void)rig.close(rig.open_to_write("/written").handle); break;
        case 3: (void)rig.read(handle, offset, 100); break;
        default: (void)rig.bulk(handle, offset, 4096, 0); break;
      }
    }
  };
  const auto allocated = [] { return static_cast<std::int64_t>(mallinfo2().uordblks); };
  send(20'000);
  const std::int64_t before = allocated();
  send(100'000);
  EXPECT_LT(allocated() - before, 1 << 19);
}

// A file may be as long as a kernel makes it, and touched anywhere.
TEST(hostile_requests, only_so_many_extents_are_remembered) {
  const auto io = std::make_shared<memory_backend>();  // nothing can be registered
  io->write("/a", "a");
  io->truncate("/a", limits::file_bytes_max / 2);
  service_rig rig(io, with_extents());
  std::uint32_t handle = 0;
  std::shared_ptr<host_file> file;
  ASSERT_EQ(rig.files().open("/a", false, handle, file), 0);
  for (std::uint64_t n = 0; n < 2 * extent_registrar::known_min; ++n) (void)rig.extents().touch(file, n * extent_bytes);
  EXPECT_LE(rig.extents().known_count(), extent_registrar::known_min + 4);
  (void)rig.extents().touch(file, limits::file_bytes_max / 2);
  EXPECT_LE(rig.extents().known_count(), extent_registrar::known_min + 4);
}

TEST(hostile_requests, past_a_files_end_no_extent_is_remembered) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", std::string(2 * extent_bytes, 'a'));
  service_rig rig(io, with_extents());
  const rig_reply opened = rig.open_to_write("/a");
  for (std::uint64_t n = 2; n < 2000; ++n) EXPECT_EQ(rig.bulk(opened.handle, n * extent_bytes, 4096, 0).result, 0);
  EXPECT_EQ(rig.extents().known_count(), 0u);
  EXPECT_GT(rig.bulk(opened.handle, extent_bytes, 4096, 0).result, 0);
  EXPECT_GE(rig.extents().known_count(), 1u);
}

TEST(hostile_requests, open_paths_are_bounded_in_bytes) {
  const auto io = std::make_shared<memory_backend>();
  const std::string path = "/" + std::string(limits::path_bytes_max - 2, 'x');
  io->write(path, "content");
  io->write("/short", "content");
  file_table files(io, 64, 16);
  std::vector<std::uint32_t> handles;
  std::shared_ptr<host_file> file;
  std::uint32_t handle = 0;
  int status = 0;
  while (handles.size() <= file_table::path_bytes_max / path.size()) {
    status = files.open(path, false, handle, file);
    if (status < 0) break;
    handles.push_back(handle);
  }
  EXPECT_EQ(status, -ENFILE);
  EXPECT_EQ(handles.size(), file_table::path_bytes_max / path.size());
  EXPECT_EQ(files.open_to_change(path, {}, handle, file), -ENFILE);
  file = nullptr;
  EXPECT_EQ(files.close(handles.back()), 0);
  EXPECT_EQ(files.open_to_change(path, {}, handle, file), 0);
  EXPECT_EQ(files.open(path, false, handle, file), -ENFILE);
  // Opens that fail keep nothing.
  EXPECT_EQ(files.close(handles.front()), 0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(files.open("/none" + path.substr(0, 4000), false, handle, file), -ENOENT);
  EXPECT_EQ(files.open(path, false, handle, file), 0);
}

// Posts a request as a kernel can that heeds no rule: without a word to the host, and into a slot that may be in use.
void post(service_rig& rig, std::uint32_t slot, std::uint32_t sequence, const request& r) {
  const channel_view view = rig.memory().view();
  view.request(slot).store(r, sequence);
  view.bell(slot).store_release(sequence);
}
bool is_answered(service_rig& rig, std::uint32_t slot, std::uint32_t sequence) {
  return eventually([&] { return reply_sequence(rig.memory().view().reply(slot).word.load_acquire()) == sequence; });
}

// Where the service's threads sleep is in memory that kernels can write.
TEST(hostile_requests, the_service_follows_nothing_that_the_channels_header_says) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "content");
  service_rig rig(io);
  const std::uint32_t handle = rig.open("/a").handle;
  std::mt19937 random(5);
  for (std::uint32_t round = 1; round <= 60; ++round) {
    auto* const header = reinterpret_cast<std::uint32_t*>(rig.memory().view().base);
    for (std::size_t i = 0; i < sizeof(channel_header) / sizeof *header; ++i)
      __atomic_store_n(header + i, round % 2 == 0 ? ~0u : random() >> random() % 32, __ATOMIC_RELAXED);
    const std::uint32_t slot = round % 8, sequence = 1000 + round;
    post(rig, slot, sequence, {request_code::read, handle, 7, 0});
    ASSERT_TRUE(is_answered(rig, slot, sequence));
    EXPECT_EQ(std::string(rig.memory().view().staging(slot), 7), "content");
    if (round % 20 == 0) rig.workers().wake_all();
  }
}

// A slot has one request at a time; but a kernel may ring its bell again before the answer.
TEST(hostile_requests, what_waits_for_a_sink_is_bounded) {
  service_rig rig(std::make_shared<memory_backend>());
  std::atomic<bool> go_on{false}, inside{false};
  std::atomic<std::uint32_t> calls{0};
  const std::int32_t sink = rig.sinks().open([&](const char*, std::size_t) {
    ++calls;
    inside = true;
    while (!go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 0;
  });
  const request r{request_code::send, static_cast<std::uint32_t>(sink), 1, 0};
  std::uint32_t sequence = 0, refused = 0;
  constexpr std::uint32_t slot = 3;
  const auto is_refused = [&] {
    const std::uint64_t word = rig.memory().view().reply(slot).word.load_acquire();
    return reply_sequence(word) == sequence && reply_result(word) == -ENOBUFS;
  };
  post(rig, slot, ++sequence, r);
  ASSERT_TRUE(eventually([&] { return inside.load(); }));
  for (const std::uint32_t more = 2 * limits::channel_slots_max; sequence < more;) {
    const std::uint64_t before = rig.workers().served_count();
    post(rig, slot, ++sequence, r);
    ASSERT_TRUE(eventually([&] { return rig.workers().served_count() != before; }));
    refused += is_refused() ? 1 : 0;
  }
  EXPECT_GE(refused, limits::channel_slots_max - 1);
  go_on = true;
  // Who keeps to the rules is served again.
  EXPECT_TRUE(eventually([&] { return rig.send(sink, "x").result == 0; }));
  EXPECT_LE(calls, limits::channel_slots_max + 2);
}

}  // namespace
}  // namespace gpufs::testing
