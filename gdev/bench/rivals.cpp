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
#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

namespace {

// A kernel of `work` dependent steps in each thread. A kernel that waits for a time would also
// "work" while another program has the GPU. It stores what never comes, so that no compiler removes
// the steps. On the simulated driver it takes `work` nanoseconds.
constexpr const char* kernels = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry gdev_spin(.param .u64 work)
{
  .reg .pred %p<3>;
  .reg .u64 %r<4>;
  ld.param.u64 %r1, [work];
  mov.u64 %r2, 1;
  mov.u64 %r3, 0;
  setp.eq.u64 %p1, %r1, 0;
  @%p1 bra done;
step:
  mad.lo.u64 %r2, %r2, 6364136223846793005, 1442695040888963407;
  add.u64 %r1, %r1, -1;
  setp.ne.u64 %p1, %r1, 0;
  @%p1 bra step;
done:
  setp.eq.u64 %p2, %r2, 0;
  @%p2 st.global.u64 [%r3], %r2;
  ret;
}
)";

constexpr unsigned threads = 256;
constexpr unsigned blocks_per_multiprocessor = 8;

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "rivals: %s\n", text.c_str());
  std::exit(2);
}

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    fail(std::string(what) + ": error " + std::to_string(result));
  }
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/** Whose signatures are used: for later versions the driver gives a cuCtxSynchronize(CUcontext). */
constexpr int signatures = 12000;

/** The driver, and its functions by name. */
class driver {
 public:
  driver() : library_(dlopen("libcuda.so.1", RTLD_NOW)) {
    if (library_ == nullptr) {
      fail(dlerror());
    }
    const auto first =
        reinterpret_cast<decltype(get_address_)>(dlsym(library_, "cuGetProcAddress_v2"));
    if (first == nullptr) {
      fail("the driver has no cuGetProcAddress");
    }
    void* found = nullptr;
    check(first("cuGetProcAddress", &found, signatures, 0, nullptr), "cuGetProcAddress");
    get_address_ = reinterpret_cast<decltype(get_address_)>(found);
  }

  template <typename Function>
  [[nodiscard]] Function* find(const char* name) const {
    void* found = nullptr;
    CUdriverProcAddressQueryResult status{};
    const CUresult result = get_address_(name, &found, signatures, 0, &status);
    if (result != CUDA_SUCCESS || found == nullptr) {
      fail(std::string(name) + ": the driver has no such function");
    }
    return reinterpret_cast<Function*>(found);
  }

 private:
  void* library_;
  decltype(&cuGetProcAddress) get_address_ = nullptr;
};

/** The primary context of the first GPU, and the kernel. */
class gpu {
 public:
  explicit gpu(const driver& with)
      : launch_(with.find<decltype(cuLaunchKernel)>("cuLaunchKernel")) {
    CUcontext context = nullptr;
    check(with.find<decltype(cuInit)>("cuInit")(0), "cuInit");
    check(with.find<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&context, 0),
          "cuDevicePrimaryCtxRetain");
    check(with.find<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
    wait_ = with.find<decltype(cuCtxSynchronize)>("cuCtxSynchronize");
    check(with.find<decltype(cuDeviceGetAttribute)>("cuDeviceGetAttribute")(
              &multiprocessors_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0),
          "cuDeviceGetAttribute");
    CUmodule module = nullptr;
    check(with.find<decltype(cuModuleLoadData)>("cuModuleLoadData")(&module, kernels),
          "cuModuleLoadData");
    check(with.find<decltype(cuModuleGetFunction)>("cuModuleGetFunction")(&work_, module,
                                                                          "gdev_spin"),
          "cuModuleGetFunction");
  }

  /** Launches a kernel that fills the GPU, or with work 0 an empty one of one thread. */
  void launch(std::uint64_t work) {
    const auto blocks = static_cast<unsigned>(multiprocessors_) * blocks_per_multiprocessor;
    void* parameters[] = {&work};
    check(launch_(work_, work == 0 ? 1 : blocks, 1, 1, work == 0 ? 1 : threads, 1, 1, 0, nullptr,
                  parameters, nullptr),
          "cuLaunchKernel");
  }

  void wait() { check(wait_(), "cuCtxSynchronize"); }

 private:
  decltype(&cuLaunchKernel) launch_;
  decltype(&cuCtxSynchronize) wait_ = nullptr;
  CUfunction work_ = nullptr;
  int multiprocessors_ = 1;
};

/** The options `--name N` after the command. */
class options {
 public:
  options(int count, char** values) : count_(count), values_(values) {}

  [[nodiscard]] std::uint64_t number(std::string_view name, std::uint64_t otherwise) const {
    for (int i = 0; i + 1 < count_; ++i) {
      if (name == values_[i]) {
        char* end = nullptr;
        errno = 0;
        const std::uint64_t value = std::strtoull(values_[i + 1], &end, 10);
        if (errno != 0 || end == values_[i + 1] || *end != '\0') {
          fail(std::string(name) + ": not a number: " + values_[i + 1]);
        }
        return value;
      }
    }
    return otherwise;
  }

 private:
  int count_;
  char** values_;
};

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
