/**
 * A process of a job: collective ARRIVALS RANK RANKS BYTES ROUNDS [GROWS [TIMES]]. ARRIVALS is a
 * file of 8 bytes for each rank, zero at first; ROUNDS and GROWS multiples of 64.
 *
 * Each round adds 1 to a part of BYTES of its memory, and meets the other ranks in a kernel, as a
 * collective does. So the work of a process ends only if the others submit theirs. After every
 * GROWS rounds, at most TIMES (1), it waits until a file ARRIVALS.RANK has one byte more, allocates
 * BYTES more, and adds there too. Where EXPORTS is set, it makes a handle for other processes of
 * these. It submits many rounds without a wait. At the end it prints "ok" if all numbers are right.
 */
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

/** Numbers to which a part of the rounds add 1 each. */
class counted_memory {
 public:
  counted_memory(std::uint64_t bytes, std::uint64_t begin)
      : numbers_(bytes / sizeof one_ / parts), begin_(begin) {
    must(cuMemAlloc(&values_, bytes), "cuMemAlloc");
    must(cuMemsetD32(values_, 0, bytes / sizeof one_), "cuMemsetD32");
  }

  void add(CUfunction add, std::uint64_t round) {
    CUdeviceptr part = values_ + round % parts * numbers_ * sizeof one_;
    void* parameters[] = {&part, &numbers_, &one_};
    must(cuLaunchKernel(add, 64, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr), "add");
  }

  void export_it() const {
    CUipcMemHandle handle{};
    must(cuIpcGetMemHandle(&handle, values_), "cuIpcGetMemHandle");
  }

  [[nodiscard]] bool is_right(std::uint64_t rounds) const {
    std::vector<std::uint32_t> found(parts * numbers_);
    must(cuMemcpyDtoH(found.data(), values_, found.size() * sizeof one_), "cuMemcpyDtoH");
    return std::all_of(found.begin(), found.end(),
                       [&](std::uint32_t value) { return value == (rounds - begin_) / parts; });
  }

 private:
  std::uint32_t one_ = 1;
  std::uint64_t numbers_;
  std::uint64_t begin_;  // the rounds before did not add
  CUdeviceptr values_ = 0;
};

void wait_for_bytes(const std::string& path, off_t bytes) {
  for (struct stat seen{}; stat(path.c_str(), &seen) != 0 || seen.st_size < bytes;) {
    usleep(1000);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 6 || count > 8) {
    std::fputs("usage: collective ARRIVALS RANK RANKS BYTES ROUNDS [GROWS [TIMES]]\n", stderr);
    return 2;
  }
  auto rank = static_cast<std::uint32_t>(std::strtoul(arguments[2], nullptr, 10));
  auto ranks = static_cast<std::uint32_t>(std::strtoul(arguments[3], nullptr, 10));
  const std::uint64_t bytes = std::strtoull(arguments[4], nullptr, 10);
  const std::uint64_t rounds = std::strtoull(arguments[5], nullptr, 10);
  const std::uint64_t grows = count > 6 ? std::strtoull(arguments[6], nullptr, 10) : 0;
  const std::uint64_t times = count > 7 ? std::strtoull(arguments[7], nullptr, 10) : 1;
  const std::string told = std::string(arguments[1]) + '.' + arguments[2];
  const char* const kernels = std::getenv("KERNELS");
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUfunction meet = nullptr;
  must(cuInit(0), "cuInit");
  must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  std::ifstream file(kernels == nullptr ? "" : kernels);
  const std::string image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  must(cuModuleLoadData(&module, image.c_str()), "cuModuleLoadData");
  must(cuModuleGetFunction(&add, module, "gdev_add"), "gdev_add");
  must(cuModuleGetFunction(&meet, module, "gdev_meet"), "gdev_meet");
  CUdeviceptr arrivals = map_arrivals(arguments[1], ranks * sizeof(std::uint64_t));
  std::vector<counted_memory> memory{{bytes, 0}};
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    void* meet_parameters[] = {&arrivals, &rank, &ranks, &round};
    for (counted_memory& one : memory) {
      one.add(add, round);
    }
    must(cuLaunchKernel(meet, 1, 1, 1, 1, 1, 1, 0, nullptr, meet_parameters, nullptr), "meet");
    if (round % rounds_ahead == 0) {
      must(cuCtxSynchronize(), "cuCtxSynchronize");
    }
    if (grows != 0 && round % grows == 0 && memory.size() <= times) {
      wait_for_bytes(told, static_cast<off_t>(memory.size()));
      memory.emplace_back(bytes, round);
      if (std::getenv("EXPORTS") != nullptr) {
        memory.back().export_it();
      }
    }
  }
  const bool is_right =
      std::all_of(memory.begin(), memory.end(),
                  [rounds](const counted_memory& one) { return one.is_right(rounds); });
  std::puts(is_right ? "ok" : "wrong numbers");
  return is_right ? 0 : 1;
}
