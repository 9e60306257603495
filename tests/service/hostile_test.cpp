// What a kernel can make the host keep: not more memory than is documented (docs/security.md),
// whatever it asks for and however often.
#include <errno.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpufs/backend.hpp"
#include "support/device.hpp"
#include "support/eventually.hpp"
#include "support/fault_backend.hpp"
#include "support/hanging_backend.hpp"
#include "support/memory_backend.hpp"
#include "support/seeds.hpp"
#include "support/service_rig.hpp"
#include "support/temporary.hpp"
#include "support/work_budget.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Of both sanitizers; not every compiler comes with the header that declares it
// (sanitizer/allocator_interface.h).
extern "C" std::size_t
__sanitizer_get_current_allocated_bytes();  // NOLINT(bugprone-reserved-identifier)
#endif

namespace gpufs::testing {
namespace {

service_rig_options with_extents() {
  service_rig_options options;
  options.extent_budget_bytes = 4 * extent_bytes;
  options.extent_bytes = extent_bytes;
  return options;
}

// ---- as many requests as wanted, of all kinds

// What the process has. A sanitizer's allocator is asked by its own call, as it does not fill
// mallinfo2().
struct holdings {
  std::int64_t allocated_bytes = 0, resident_bytes = 0, descriptors = 0, threads = 0;

  static holdings now() {
    holdings h;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    h.allocated_bytes = static_cast<std::int64_t>(__sanitizer_get_current_allocated_bytes());
#else
    h.allocated_bytes = static_cast<std::int64_t>(mallinfo2().uordblks + mallinfo2().hblkhd);
#endif
    std::ifstream statm("/proc/self/statm");
    std::int64_t pages = 0;
    statm >> pages >> h.resident_bytes;
    h.resident_bytes *= sysconf(_SC_PAGESIZE);
    const auto entries = [](const char* folder) {
      return std::distance(std::filesystem::directory_iterator(folder),
                           std::filesystem::directory_iterator());
    };
    h.descriptors = entries("/proc/self/fd");
    h.threads = entries("/proc/self/task");
    return h;
  }
};

enum class files_in : std::uint8_t { memory, a_folder };

class hostile_kernel : public ::testing::TestWithParam<files_in> {
 protected:
  hostile_kernel() {
    service_rig_options options = with_extents();
    // What waits for a disk to be registered is bounded, but not soon.
    if (GetParam() == files_in::a_folder) options.extent_budget_bytes = 0;
    rig_.emplace(make_backend(), options);
    sink_ =
        static_cast<std::uint32_t>(rig_->sinks().open([](const char*, std::size_t) { return 0; }));
  }

  // What the host keeps of files, and of those who sent, does not grow any more.
  void reach_all_bounds() {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) send(~seed, 1000);
  }

  // All kinds of requests, right and wrong ones. A few files are open at a time: that many may be
  // open for ever, which takes memory, is another limit.
  void send(std::uint64_t seed, int requests) {
    std::mt19937_64 random(seed);
    const auto one_of = [&](const auto& some) { return some[random() % std::size(some)]; };
    for (int i = 0; i < requests; ++i) {
      std::string staging(random() % 64 == 0 ? limits::staging_bytes_min : random() % 300, '\0');
      for (char& c : staging) c = static_cast<char>(random());
      request r{static_cast<request_code>(random() % 64 == 0 ? random() % request_record::codes
                                                             : random() % (request_code_max + 1)),
                0, static_cast<std::uint32_t>(staging.size()), near(random)};
      r.handle = random() % 8 == 0 ? random() >> random() % 64 : handle(random());
      if (random() % 32 == 0) r.length = static_cast<std::uint32_t>(random());
      if (random() % 16 == 0) r.offset = random() >> random() % 64 | limits::file_bytes_max;
      // A host that does not use inode numbers again has more to remember with each.
      if (GetParam() == files_in::a_folder && r.code == request_code::unlink)
        r.code = request_code::open;
      if (GetParam() == files_in::a_folder && r.code == request_code::rename)
        r.code = request_code::open_write;
      const bool opens = r.code == request_code::open || r.code == request_code::open_write;
      const bool names = opens || r.code == request_code::unlink || r.code == request_code::rename;
      if (names) {
        // There are at most so many names that files are made under.
        staging = one_of(names_);
        if (r.code == request_code::open && random() % 4 == 0)
          staging += std::string(random() % 5000, 'x');
        if (r.code == request_code::rename)
          staging += std::string(1, '\0') + std::string(one_of(names_));
        r.length = static_cast<std::uint32_t>(staging.size());
        if (staging.size() > limits::staging_bytes_min) staging.resize(limits::staging_bytes_min);
        if (opens) r.handle = static_cast<std::uint32_t>(random());
      }
      if (r.code == request_code::send) r.handle = random() % 4 == 0 ? r.handle : sink_;
      if (r.code == request_code::write)
        r.handle = random() % 4 == 0 || nodes_.empty() ? r.handle : one_of(nodes_);
      if (r.code == request_code::bulk) {
        const bulk_target to{static_cast<std::uint32_t>(random() % (service_rig::frame_count + 2))};
        staging.replace(0, sizeof to, reinterpret_cast<const char*>(&to), sizeof to);
      }
      const rig_reply reply = rig_->call(r, staging);
      ASSERT_FALSE(reply.abandoned) << "request " << i << " has no answer";
      if (opens && reply.result >= 0) {
        handles_.push_back(reply.handle);
        if (reply.node != no_node) nodes_.push_back(reply.node);
      }
      if (handles_.size() > 16) close_all();
    }
    close_all();
  }

  // Also for a folder without a root of its own, nothing outside of it is touched.
  std::shared_ptr<backend> make_backend() {
    for (const char* name : {"/a", "/b", "/new", "/other", "/\xff"}) {
      if (GetParam() == files_in::memory) memory_->write(name, std::string(200'000, name[1]));
      else folder_.write(name + 1, std::string(200'000, name[1]));
    }
    if (GetParam() == files_in::memory) return memory_;
    posix_backend_options options;
    options.root = folder_ / "";
    return make_posix_backend(options);
  }

 private:
  // Within a megabyte, so that files stay small.
  static std::uint64_t near(std::mt19937_64& random) {
    return random() % (1u << (1 + random() % 20));
  }
  std::uint64_t handle(std::uint64_t random) const {
    return handles_.empty() ? random : handles_[random % handles_.size()];
  }
  void close_all() {
    for (const std::uint64_t h : handles_) (void)rig_->close(h);
    handles_.clear();
    nodes_.clear();
  }

  const temporary_folder folder_;
  const std::shared_ptr<memory_backend> memory_ =
      std::make_shared<memory_backend>(memory_backend_options{.mappings = true, .inode_count = 64});
  std::optional<service_rig> rig_;
  std::uint32_t sink_ = 0;
  std::vector<std::uint64_t> handles_, nodes_;
  const std::vector<std::string> names_ =
      GetParam() == files_in::memory
          ? std::vector<std::string>{"/a", "/b", "/new", "/other", "\xff"}
          : std::vector<std::string>{"a", "b", "new", "other", ".", "a/b", "../x", "\xff", ".."};
};
INSTANTIATE_TEST_SUITE_P(of_files_in, hostile_kernel,
                         ::testing::Values(files_in::memory, files_in::a_folder),
                         [](const auto& info) {
                           return info.param == files_in::memory ? "memory" : "a_folder";
                         });

TEST_P(hostile_kernel, leaves_memory_descriptors_and_threads_flat) {
  reach_all_bounds();
  const holdings before = holdings::now();
  constexpr int requests = 1000;  // of a step
  std::int64_t sent = 0;
  for (work_budget budget(is_sanitized ? 5 : 25); budget.next();) {
    SCOPED_TRACE(budget.replay());
    send(budget.seed(), requests);
    budget.covers("requests", requests);
    sent += requests;
    const holdings now = holdings::now();
    // Less than the smallest piece of memory for every 64th request, but for tables that are not
    // full yet.
    EXPECT_LT(now.allocated_bytes - before.allocated_bytes, 262144 + sent / 2)
        << "after " << sent << " requests";
    // A sanitizer keeps what is freed for a while.
    if (!is_sanitized) {
      EXPECT_LT(now.resident_bytes - before.resident_bytes, (std::int64_t{4} << 20) + sent / 2);
    }
    EXPECT_LT(now.descriptors - before.descriptors, 64);
    EXPECT_EQ(now.threads, before.threads);
  }
}

// A file may be as long as a kernel makes it, and touched anywhere.
TEST(hostile_requests, only_so_many_extents_are_remembered) {
  const auto io = std::make_shared<memory_backend>();  // nothing can be registered
  io->write("/a", "a");
  io->truncate("/a", limits::file_bytes_max / 2);
  service_rig rig(io, with_extents());
  std::uint64_t handle = 0;
  std::shared_ptr<host_file> file;
  ASSERT_EQ(rig.files().open("/a", false, handle, file), 0);
  for (std::uint64_t n = 0; n < 2 * extent_registrar::known_min; ++n)
    (void)rig.extents().touch(file, n * extent_bytes);
  EXPECT_LE(rig.extents().known_count(), extent_registrar::known_min + 4);
  (void)rig.extents().touch(file, limits::file_bytes_max / 2);
  EXPECT_LE(rig.extents().known_count(), extent_registrar::known_min + 4);
  // What is remembered of versions that are gone makes room when no kernel runs.
  EXPECT_TRUE(rig.extents().lacks_budget());
}

TEST(hostile_requests, past_a_files_end_no_extent_is_remembered) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", std::string(2 * extent_bytes, 'a'));
  service_rig rig(io, with_extents());
  const rig_reply opened = rig.open_to_write("/a");
  for (std::uint64_t n = 2; n < 2000; ++n)
    EXPECT_EQ(rig.bulk(opened.handle, n * extent_bytes, 4096, 0).result, 0);
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
      const std::uint64_t handle = rig.open(path).handle;
      EXPECT_EQ(rig.read(handle, 0, 10).bytes.size(), 10u);
      EXPECT_EQ(rig.close(handle).result, 0);
    }
    EXPECT_TRUE(eventually([&] { return gate->has_hung(); }));
    // The registrar's, and what workers remember until they rest.
    EXPECT_TRUE(eventually([&] { return io->open_now() <= 1; }))
        << io->open_now() << " files are open";
    gate->release();
    EXPECT_TRUE(eventually([&] {
      return rig.extents().count().registered + rig.extents().count().refused == 50;
    })) << "those that were closed are registered all the same, as far as the budget goes";
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
  std::vector<std::uint64_t> handles;
  std::shared_ptr<host_file> file;
  std::uint64_t handle = 0;
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
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(files.open("/none" + path.substr(0, 4000), false, handle, file), -ENOENT);
  EXPECT_EQ(files.open(path, false, handle, file), 0);
}

// Posts a request as a kernel can that heeds no rule: without a word to the host, and into a slot
// that may be in use.
void post(service_rig& rig, std::uint32_t slot, std::uint32_t sequence, const request& r) {
  const channel_view view = rig.memory().view();
  view.request(slot).store(r, sequence);
  view.bell(slot).store_release(sequence);
}
bool is_answered(service_rig& rig, std::uint32_t slot, std::uint32_t sequence) {
  return eventually([&] {
    return reply_sequence(rig.memory().view().reply(slot).word.load_acquire()) == sequence;
  });
}

// Where the service's threads sleep is in memory that kernels can write.
TEST(hostile_requests, the_service_follows_nothing_that_the_channels_header_says) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "content");
  service_rig rig(io);
  const std::uint64_t handle = rig.open("/a").handle;
  std::mt19937 random(5);
  for (std::uint32_t round = 1; round <= 60; ++round) {
    auto* const header = reinterpret_cast<std::uint32_t*>(rig.memory().view().base);
    for (std::size_t i = 0; i < sizeof(channel_header) / sizeof *header; ++i)
      __atomic_store_n(header + i, round % 2 == 0 ? ~0u : random() >> random() % 32,
                       __ATOMIC_RELAXED);
    const std::uint32_t slot = round % 8, sequence = 1000 + round;
    post(rig, slot, sequence, {request_code::read, handle, 7, 0});
    ASSERT_TRUE(is_answered(rig, slot, sequence));
    EXPECT_EQ(std::string(rig.memory().view().staging(slot), 7), "content");
    if (round % 20 == 0) rig.workers().wake_all();
  }
}

// A slot has one request at a time; but a kernel may ring its bell again before the answer.
// A kernel may say of files that it could write what it likes, but of no others.
TEST(hostile_requests, what_a_close_says_was_discarded_is_an_errno_of_a_file_that_writes) {
  const auto files = std::make_shared<memory_backend>();
  files->write("/read", "content");
  files->write("/written", "content");
  service_rig rig(files);
  const auto close = [&](std::uint64_t handle, std::uint64_t says) {
    return rig.call({request_code::close, handle, 0, says}).result;
  };
  EXPECT_EQ(close(rig.open("/read").handle, ENOSPC), 0);
  EXPECT_EQ(close(12345, ENOSPC), -EBADF);
  EXPECT_EQ(close(rig.open_to_write("/written").handle, 0), 0);
  EXPECT_TRUE(rig.files().errors().list().errors.empty());
  for (const std::uint64_t says : {std::uint64_t{ENOSPC}, std::uint64_t{4096}, ~std::uint64_t{0}}) {
    const std::uint64_t handle = rig.open_to_write("/written").handle;
    EXPECT_EQ(close(handle, says), 0);
    EXPECT_EQ(close(handle, says), -EBADF);
  }
  const file_error_list list = rig.files().errors().list();
  ASSERT_EQ(list.errors.size(), 2u);
  EXPECT_EQ(list.errors[0].error_number, ENOSPC);
  EXPECT_EQ(list.errors[1].error_number, EIO);
  EXPECT_EQ(list.errors[1].count, 2u);
  EXPECT_EQ(list.errors[1].path, "/written");
  for (const file_error& e : list.errors) EXPECT_TRUE(file_error_log::is_lost(e));
}

// No open would serve the file any more.
TEST(hostile_requests, a_write_that_would_make_a_file_too_large_reaches_no_backend) {
  const auto io = std::make_shared<fault_backend>(std::make_shared<memory_backend>());
  io->add({.on = operation::write, .error_number = ENOSPC});
  service_rig rig(io);
  const std::uint64_t node = rig.open_to_write("/a").node;
  constexpr std::uint64_t end = limits::file_bytes_max;
  EXPECT_EQ(rig.write(node, end - 4, "123").result, -ENOSPC) << "2^48 - 1 bytes are allowed";
  EXPECT_EQ(io->calls(operation::write), 1u);
  EXPECT_EQ(rig.write(node, end - 3, "123").result, -EINVAL);
  EXPECT_EQ(rig.write(node, end - 2, "123").result, -EINVAL);
  for (const std::uint64_t offset : {end - 1, end, end + 1, ~std::uint64_t{0}})
    EXPECT_EQ(rig.write(node, offset, "1").result, -EINVAL) << offset;
  EXPECT_EQ(rig.write(node, end, "").result, -EINVAL);
  EXPECT_EQ(io->calls(operation::write), 1u);
}

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
  // Of nobody else, who would take an answer to one of these requests for its own.
  rig.memory().record(slot).owner.store_relaxed(static_cast<std::uint32_t>(slot_owner::busy));
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
