// What a kernel can make the host keep: not more memory than is documented (docs/security.md), whatever it asks for and however often.
#include <errno.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/eventually.hpp"
#include "support/hanging_backend.hpp"
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

// The registrar may come to a file long after it was closed.
TEST(hostile_requests, what_waits_to_be_registered_keeps_no_descriptor) {
  const auto io = std::make_shared<memory_backend>(memory_backend_options{.mappings = true});
  auto hanging = std::make_shared<hanging_backend>(io, "map", 1);
  const auto gate = hanging->calls();
  {
    service_rig rig(hanging, with_extents());
    for (int i = 0; i < 50; ++i) {
      const std::string path = "/" + std::to_string(i);
      io->write(path, std::string(extent_bytes, 'a'));
      const std::uint32_t handle = rig.open(path).handle;
      EXPECT_EQ(rig.read(handle, 0, 10).bytes.size(), 10u);
      EXPECT_EQ(rig.close(handle).result, 0);
    }
    EXPECT_TRUE(eventually([&] { return gate->has_hung(); }));
    // The registrar's, and what workers remember until they rest.
    EXPECT_TRUE(eventually([&] { return io->open_now() <= 1; })) << io->open_now() << " files are open";
    gate->release();
    EXPECT_TRUE(eventually([&] { return rig.extents().count().registered + rig.extents().count().refused == 50; }))
        << "those that were closed are registered all the same, as far as the budget goes";
    EXPECT_GT(rig.extents().count().registered, 1u);
  }
  EXPECT_EQ(io->open_now(), 0u);
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

}  // namespace
}  // namespace gpufs::testing
