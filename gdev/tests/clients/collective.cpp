/**
 * A process of a job: collective ARRIVALS RANK RANKS BYTES ROUNDS. ARRIVALS is a file of 8 bytes
 * for each rank, zero at first; ROUNDS a multiple of 64.
 *
 * Each round adds 1 to a part of BYTES of its memory, and meets the other ranks in a kernel, as a
 * collective does. So the work of a process ends only if the others submit theirs. It submits many
 * rounds without a wait, and prints "ok" at the end if all numbers are right.
 */
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

constexpr unsigned rounds_ahead = 400;
constexpr std::uint64_t parts = 64;

void must(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    std::fprintf(stderr, "collective: %s: error %d\n", what, static_cast<int>(result));
    std::exit(1);
  }
}

CUdeviceptr map_arrivals(const char* path, std::size_t bytes) {
  const int file = open(path, O_RDWR | O_CLOEXEC);
  void* const mapped =
      file < 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    std::perror(path);
    std::exit(1);
  }
  CUdeviceptr address = 0;
  must(cuMemHostRegister(mapped, bytes, CU_MEMHOSTREGISTER_DEVICEMAP), "cuMemHostRegister");
  must(cuMemHostGetDevicePointer(&address, mapped, 0), "cuMemHostGetDevicePointer");
  return address;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) {
    std::fputs("usage: collective ARRIVALS RANK RANKS BYTES ROUNDS\n", stderr);
    return 2;
  }
  auto rank = static_cast<std::uint32_t>(std::strtoul(arguments[2], nullptr, 10));
  auto ranks = static_cast<std::uint32_t>(std::strtoul(arguments[3], nullptr, 10));
  const std::uint64_t bytes = std::strtoull(arguments[4], nullptr, 10);
  const std::uint64_t rounds = std::strtoull(arguments[5], nullptr, 10);
  const char* const kernels = std::getenv("KERNELS");
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUfunction meet = nullptr;
  CUdeviceptr values = 0;
  must(cuInit(0), "cuInit");
  must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  std::ifstream file(kernels == nullptr ? "" : kernels);
  const std::string image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  must(cuModuleLoadData(&module, image.c_str()), "cuModuleLoadData");
  must(cuModuleGetFunction(&add, module, "gdev_add"), "gdev_add");
  must(cuModuleGetFunction(&meet, module, "gdev_meet"), "gdev_meet");
  CUdeviceptr arrivals = map_arrivals(arguments[1], ranks * sizeof(std::uint64_t));
  must(cuMemAlloc(&values, bytes), "cuMemAlloc");
  must(cuMemsetD32(values, 0, bytes / sizeof(std::uint32_t)), "cuMemsetD32");
  std::uint64_t numbers = bytes / sizeof(std::uint32_t) / parts;
  std::uint32_t one = 1;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    CUdeviceptr part = values + round % parts * numbers * sizeof one;
    void* add_parameters[] = {&part, &numbers, &one};
    void* meet_parameters[] = {&arrivals, &rank, &ranks, &round};
    must(cuLaunchKernel(add, 64, 1, 1, 256, 1, 1, 0, nullptr, add_parameters, nullptr), "add");
    must(cuLaunchKernel(meet, 1, 1, 1, 1, 1, 1, 0, nullptr, meet_parameters, nullptr), "meet");
    if (round % rounds_ahead == 0) {
      must(cuCtxSynchronize(), "cuCtxSynchronize");
    }
  }
  std::vector<std::uint32_t> found(parts * numbers);
  must(cuMemcpyDtoH(found.data(), values, found.size() * sizeof one), "cuMemcpyDtoH");
  const bool is_right = std::all_of(found.begin(), found.end(), [rounds](std::uint32_t value) {
    return value == rounds / parts;
  });
  std::puts(is_right ? "ok" : "wrong numbers");
  return is_right ? 0 : 1;
}
