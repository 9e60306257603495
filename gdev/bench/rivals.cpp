/**
 * What `gdev bench rivals` runs under each way to share a GPU:
 *
 *   rivals launches [--count N]
 *       the time of an empty launch
 *   rivals pairs [--count N] [--bytes B]
 *       the time of a cuMemAllocAsync and its cuMemFreeAsync, for which the pool has memory
 *   rivals limit KIND [--piece B] [--most B] [--hold-ms T]
 *       allocates pieces until one is refused, or it has `most`; prints, and keeps them for so long
 *   rivals calibrate [--ns T]
 *       how much work a kernel of T nanoseconds is
 *   rivals bursts [--ms T] [--work W] [--pause-us P] [--start-ms S]
 *       launches kernels of work W, one by one, with pauses between them, for T milliseconds from
 *       the time S on (Unix; 0: now)
 *
 * KIND: alloc (cuMemAlloc), async (cuMemAllocAsync), chunk (cuMemCreate), array (cuArrayCreate),
 * managed (cuMemAllocManaged). Nothing touches the memory.
 *
 * It finds the driver as CUDA's runtime does: it opens the library, and asks cuGetProcAddress for
 * every other function. Each command prints a line of JSON. Exit status: 0; 2 if it could not run,
 * with one line on standard error.
 */
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <thread>

#include "bench/launcher.hpp"

using namespace gdev_bench;

namespace {

void launches(const driver& with, const options& chosen) {
  gpu device(with);
  const std::uint64_t count = chosen.number("--count", 100'000);
  for (int i = 0; i < 100; ++i) {
    device.launch(0);
  }
  device.wait();
  const double begin = now_s();
  for (std::uint64_t i = 0; i < count; ++i) {
    device.launch(0);
  }
  device.wait();
  std::printf("{\"launches\": %lu, \"us\": %.4f}\n", count,
              (now_s() - begin) * 1e6 / static_cast<double>(count));
}

void pairs(const driver& with, const options& chosen) {
  gpu device(with);
  const std::uint64_t count = chosen.number("--count", 100'000);
  const std::size_t bytes = chosen.number("--bytes", std::uint64_t{1} << 20);
  const auto allocates = with.find<decltype(cuMemAllocAsync)>("cuMemAllocAsync");
  const auto frees = with.find<decltype(cuMemFreeAsync)>("cuMemFreeAsync");
  const auto repeat = [&](std::uint64_t times) {
    for (std::uint64_t i = 0; i < times; ++i) {
      CUdeviceptr address = 0;
      check(allocates(&address, bytes, nullptr), "cuMemAllocAsync");
      check(frees(address, nullptr), "cuMemFreeAsync");
    }
  };
  repeat(100);
  const double begin = now_s();
  repeat(count);
  const double lasted = now_s() - begin;
  device.wait();
  std::printf("{\"pairs\": %lu, \"us\": %.4f}\n", count, lasted * 1e6 / static_cast<double>(count));
}

/** Allocates `bytes`, a multiple of 2 MiB, and keeps them. */
CUresult allocate(const driver& with, std::string_view kind, std::size_t bytes) {
  CUdeviceptr address = 0;
  if (kind == "alloc") {
    return with.find<decltype(cuMemAlloc)>("cuMemAlloc")(&address, bytes);
  }
  if (kind == "async") {
    return with.find<decltype(cuMemAllocAsync)>("cuMemAllocAsync")(&address, bytes, nullptr);
  }
  if (kind == "managed") {
    return with.find<decltype(cuMemAllocManaged)>("cuMemAllocManaged")(&address, bytes,
                                                                       CU_MEM_ATTACH_GLOBAL);
  }
  if (kind == "chunk") {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    return with.find<decltype(cuMemCreate)>("cuMemCreate")(&handle, bytes, &properties, 0);
  }
  if (kind == "array") {
    constexpr std::size_t width = 16384;
    CUDA_ARRAY_DESCRIPTOR wanted{};
    wanted.Width = width;
    wanted.Height = bytes / (width * sizeof(float));
    wanted.Format = CU_AD_FORMAT_FLOAT;
    wanted.NumChannels = 1;
    CUarray array = nullptr;
    return with.find<decltype(cuArrayCreate)>("cuArrayCreate")(&array, &wanted);
  }
  fail("no kind of memory: " + std::string(kind));
}

void limit(const driver& with, std::string_view kind, const options& chosen) {
  gpu device(with);
  const std::uint64_t piece = chosen.number("--piece", std::uint64_t{256} << 20);
  const std::uint64_t most = chosen.number("--most", std::uint64_t{12} << 30);
  std::size_t free = 0;
  std::size_t total = 0;
  check(with.find<decltype(cuMemGetInfo)>("cuMemGetInfo")(&free, &total), "cuMemGetInfo");
  std::uint64_t got = 0;
  CUresult result = CUDA_SUCCESS;
  while (got + piece <= most) {
    result = allocate(with, kind, piece);
    if (result != CUDA_SUCCESS) {
      break;
    }
    got += piece;
  }
  device.launch(1);
  device.wait();  // work goes on after a refusal
  std::printf("{\"memory\": \"%s\", \"free\": %zu, \"total\": %zu, \"got\": %lu, \"error\": %d}\n",
              std::string(kind).c_str(), free, total, got, static_cast<int>(result));
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::milliseconds(chosen.number("--hold-ms", 0)));
}

/** Returns how long a kernel of some work takes. */
double seconds_of(gpu& device, std::uint64_t work) {
  device.wait();
  const double begin = now_s();
  device.launch(work);
  device.wait();
  return now_s() - begin;
}

void calibrate(const driver& with, const options& chosen) {
  gpu device(with);
  const double wanted = static_cast<double>(chosen.number("--ns", 1'000'000)) * 1e-9;
  seconds_of(device, 1000);
  std::uint64_t work = 1000;
  double lasted = seconds_of(device, work);
  while (lasted < wanted && work < std::uint64_t{1} << 40) {
    work *= 2;
    lasted = seconds_of(device, work);
  }
  std::printf("{\"work\": %.0f}\n", static_cast<double>(work) * wanted / lasted);
}

void bursts(const driver& with, const options& chosen) {
  gpu device(with);
  const std::uint64_t work = chosen.number("--work", 1'000'000);
  const std::chrono::microseconds pause(chosen.number("--pause-us", 0));
  device.launch(1);
  device.wait();
  using clock = std::chrono::system_clock;
  const clock::time_point start(std::chrono::milliseconds(chosen.number("--start-ms", 0)));
  std::this_thread::sleep_until(start);
  const auto end = (start == clock::time_point{} ? clock::now() : start) +
                   std::chrono::milliseconds(chosen.number("--ms", 20'000));
  std::uint64_t finished = 0;
  double longest = 0;
  while (clock::now() < end) {
    longest = std::max(longest, seconds_of(device, work));
    finished += clock::now() < end ? 1 : 0;
    std::this_thread::sleep_for(pause);
  }
  std::printf("{\"finished\": %lu, \"longest_ms\": %.3f}\n", finished, longest * 1e3);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view command = count > 1 ? arguments[1] : "";
  const driver with;
  const options chosen(count - 2, arguments + 2);
  if (command == "launches") {
    launches(with, chosen);
  } else if (command == "pairs") {
    pairs(with, chosen);
  } else if (command == "limit" && count > 2) {
    limit(with, arguments[2], chosen);
  } else if (command == "calibrate") {
    calibrate(with, chosen);
  } else if (command == "bursts") {
    bursts(with, chosen);
  } else {
    fail("commands: launches, pairs, limit KIND, calibrate, bursts");
  }
  std::fflush(stdout);
  return 0;
}
