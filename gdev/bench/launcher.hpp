/** Launches by the driver's own interface: for programs that need no runtime. */
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace gdev_bench {

// A kernel of `work` dependent steps in each thread. A kernel that waits for a time would also
// "work" while another program has the GPU. It stores what never comes, so that no compiler removes
// the steps. On the simulated driver it takes `work` nanoseconds.
inline constexpr const char* kernels = R"(
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

inline constexpr unsigned threads = 256;
inline constexpr unsigned blocks_per_multiprocessor = 8;

[[noreturn]] inline void fail(const std::string& text) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, text.c_str());
  std::exit(2);
}

inline void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    fail(std::string(what) + ": error " + std::to_string(result));
  }
}

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/** Whose signatures are used: for later versions the driver gives a cuCtxSynchronize(CUcontext). */
inline constexpr int signatures = 12000;

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

  using launch_function = decltype(&cuLaunchKernel);
  [[nodiscard]] launch_function launcher() const { return launch_; }

  /** Launches a kernel that fills the GPU, or with work 0 an empty one of one thread. */
  void launch(std::uint64_t work) { launch(work, launch_); }
  /** The same, by one of the driver's functions. */
  void launch(std::uint64_t work, launch_function by) {
    const auto blocks = static_cast<unsigned>(multiprocessors_) * blocks_per_multiprocessor;
    void* parameters[] = {&work};
    check(by(work_, work == 0 ? 1 : blocks, 1, 1, work == 0 ? 1 : threads, 1, 1, 0, nullptr,
             parameters, nullptr),
          "cuLaunchKernel");
  }

  void wait() { check(wait_(), "cuCtxSynchronize"); }

 private:
  launch_function launch_;
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

}  // namespace gdev_bench
