// Programs that keep the driver busy until a kernel ends that needs the copy engine. Both must end,
// by default: nobody waits until a request times out.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "api/file_world.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "support/device.hpp"

namespace gpufs::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20, file_bytes = std::uint64_t{96} << 20;
constexpr std::uint32_t blocks = 8;

// Waits until the host says so, at most 5 s. Then each block reads a share of the file, piece by
// piece.
struct reader {
  const char* path;
  char* pieces;                      // of each block, in device memory
  const volatile std::uint32_t* go;  // in pinned host memory
  std::uint64_t* sums;  // of each block: the bytes that it read, and how many calls failed

  GPUFS_HD void operator()(const mount_ref& fs) const {
    const auto g = this_block();
    const std::uint64_t start = platform::now_ns();
    while (*go == 0 && platform::elapsed_ns(start) < 5'000'000'000) platform::pause(9);
    g.sync();
    const std::uint64_t block = g.grid_rank();
    char* const to = pieces + block * piece_bytes;
    const std::int32_t fd = gopen(g, fs, path, O_RDONLY);
    std::uint64_t sum = 0, failed = fd < 0 ? 1 : 0;
    for (std::uint64_t at = block * piece_bytes; fd >= 0 && at < file_bytes;
         at += blocks * piece_bytes) {
      const std::int64_t n = gread(g, fs, fd, to, piece_bytes, static_cast<std::int64_t>(at));
      failed += n != static_cast<std::int64_t>(piece_bytes) ? 1 : 0;
      g.sync();
      for (std::uint64_t i = g.rank(); i < piece_bytes; i += g.size())
        sum += static_cast<unsigned char>(to[i]);
      g.sync();
    }
    if (fd >= 0) (void)gclose(g, fs, fd);
    const std::uint64_t all = g.sum(sum);
    if (g.is_leader()) {
      sums[2 * block] = all;
      sums[2 * block + 1] = failed;
    }
  }
};

__global__ void another_kernel(std::uint32_t* word) { atomicAdd(word, 1); }

enum class action {
  copy_to_pageable,
  copy_from_pageable,
  copy_asynchronously,
  free_memory,
  load_a_kernel,
  nothing
};
std::string name_of(const ::testing::TestParamInfo<action>& info) {
  switch (info.param) {
    case action::copy_to_pageable: return "copies_to_pageable_memory";
    case action::copy_from_pageable: return "copies_from_pageable_memory";
    case action::copy_asynchronously: return "copies_asynchronously_to_pageable_memory";
    case action::free_memory: return "frees_memory";
    case action::load_a_kernel: return "loads_another_kernel";
    case action::nothing: return "does_nothing";
  }
  return "";
}

class busy_driver_test : public ::testing::TestWithParam<action> {};
INSTANTIATE_TEST_SUITE_P(driver, busy_driver_test,
                         ::testing::Values(action::nothing, action::copy_to_pageable,
                                           action::copy_from_pageable, action::copy_asynchronously,
                                           action::free_memory, action::load_a_kernel),
                         name_of);

TEST_P(busy_driver_test, both_end) {
  const std::unique_ptr<file_world> files = file_world::make(source::posix);
  std::string content(file_bytes, '\0');
  std::uint64_t expected = 0, random = 1;
  for (char& c : content) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    c = static_cast<char>(random >> 56);
    expected += static_cast<unsigned char>(c);
  }
  files->write("large", content);

  mount_options options;
  options.device = device_kind::cuda;
  options.cache_bytes = std::uint64_t{256} << 20;
  options.backend = files->io();
  mount fs(options);
  ASSERT_EQ(fs.bulk_path(), "on");
  const std::string name = files->path("large");
  const device_array<char> path(fs,
                                std::vector<char>(name.c_str(), name.c_str() + name.size() + 1));
  const device_array<char> pieces(fs, blocks * piece_bytes);
  const device_array<std::uint64_t> sums(fs, 2 * blocks);
  std::uint32_t* go = nullptr;
  ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&go), sizeof *go, cudaHostAllocMapped),
            cudaSuccess);
  *go = 0;
  char* some = nullptr;  // memory that the program copies, or frees
  constexpr std::size_t some_bytes = std::size_t{32} << 20;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&some), some_bytes), cudaSuccess);
  std::vector<char> pageable(some_bytes);

  launch_shape shape;
  shape.blocks = blocks;
  launch(fs, shape, reader{path.data(), pieces.data(), go, sums.data()});
  std::atomic<bool> ended{false};
  const auto start = std::chrono::steady_clock::now();
  std::thread program([&] {
    switch (GetParam()) {
      case action::nothing: break;
      case action::copy_to_pageable:
        EXPECT_EQ(cudaMemcpy(pageable.data(), some, some_bytes, cudaMemcpyDeviceToHost),
                  cudaSuccess);
        break;
      case action::copy_from_pageable:
        EXPECT_EQ(cudaMemcpy(some, pageable.data(), some_bytes, cudaMemcpyHostToDevice),
                  cudaSuccess);
        break;
      case action::copy_asynchronously:
        EXPECT_EQ(
            cudaMemcpyAsync(pageable.data(), some, some_bytes, cudaMemcpyDeviceToHost, nullptr),
            cudaSuccess);
        break;
      case action::free_memory:
        EXPECT_EQ(cudaFree(some), cudaSuccess);
        some = nullptr;
        break;
      case action::load_a_kernel:
        another_kernel<<<1, 1>>>(reinterpret_cast<std::uint32_t*>(some));
        EXPECT_EQ(cudaGetLastError(), cudaSuccess);
        break;
    }
    ended = true;
  });
  // The program is in the driver by then, if it is going to be.
  std::this_thread::sleep_for(300ms);
  const bool had_ended = ended;
  *static_cast<volatile std::uint32_t*>(go) = 1;
  program.join();
  fs.synchronize();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(seconds, 30.0) << "the request timeout is 120 s";

  std::uint64_t sum = 0, failed = 0;
  const std::vector<std::uint64_t> told = sums.download();
  for (std::uint32_t b = 0; b < blocks; ++b) sum += told[2 * b], failed += told[2 * b + 1];
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(sum, expected);
  std::printf(
      "%s: %.2f s; the call %s before the kernel went on; %llu pages by the copy engine, of %llu\n",
      name_of({GetParam(), 0}).c_str(), seconds, had_ended ? "returned" : "waited",
      static_cast<unsigned long long>(fs.stats()[counter::bulk_loads]),
      static_cast<unsigned long long>(file_bytes / 4096));
  (void)cudaFreeHost(go);
  (void)cudaFree(some);
}

}  // namespace
}  // namespace gpufs::testing
