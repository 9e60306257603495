#include "bench/dataflow/module.hpp"

#include <cuda.h>
#include <gdev/shared_memory.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "bench/matrix_tile.hpp"

namespace gdev_bench {
namespace {

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    const char* name = nullptr;
    cuGetErrorName(result, &name);
    fail(std::string(what) + ": " + (name == nullptr ? "unknown error" : name));
  }
}

int check_key(int result, const char* what) {
  if (result < 0) {
    fail(std::string(what) + ": " + std::strerror(-result));
  }
  return result;
}

/** The segments that this process has found or made. Their keys go when it ends. */
std::vector<int> with_keys;

void remove_keys() {
  for (const int id : with_keys) {
    static_cast<void>(gshmctl(id, IPC_RMID, nullptr));  // most have none any more
  }
}

/** A matrix in device memory. */
class matrix {
 public:
  /** Makes one of its own. */
  static matrix own(std::size_t bytes) {
    matrix made;
    check(cuMemAlloc(&made.address_, bytes), "cuMemAlloc");
    return made;
  }
  /** Makes, or finds, the one that modules share by a key. */
  static matrix shared(std::int64_t key, std::size_t bytes) {
    matrix made;
    made.id_ = check_key(gshmget(key, bytes, IPC_CREAT | 0600), "gshmget");
    with_keys.push_back(made.id_);
    check_key(gshmat(made.id_, &made.address_, 0), "gshmat");
    return made;
  }

  [[nodiscard]] CUdeviceptr address() const { return address_; }
  /** Takes its key away; it stays for those that have it. */
  void remove_key() const {
    if (id_ >= 0) {
      check_key(gshmctl(id_, IPC_RMID, nullptr), "gshmctl");
    }
  }
  void release() const {
    if (id_ >= 0) {
      check_key(gshmdt(address_), "gshmdt");
    } else {
      check(cuMemFree(address_), "cuMemFree");
    }
  }

 private:
  CUdeviceptr address_ = 0;
  int id_ = -1;
};

class worker {
 public:
  worker(const graph& flow, std::size_t number, const board& shared, const std::string& kernels)
      : self_(flow.modules[number]), number_(number), board_(shared), kernels_(kernels) {}

  void follow(const order& next) {
    switch (next.what) {
      case step::start: start(); break;
      case step::prepare: prepare(next); break;
      case step::remove: result_.remove_key(); break;
      case step::round: compute(next); break;
      case step::release: release(next); break;
      case step::end: break;
    }
  }

 private:
  void start() {
    CUcontext context = nullptr;
    check(cuInit(0), "cuInit");
    if (std::atexit(remove_keys) != 0) {
      fail("atexit: out of memory");
    }
    // More modules than processors may wait at once: they sleep.
    check(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_BLOCKING_SYNC), "cuDevicePrimaryCtxSetFlags");
    check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    CUmodule loaded = nullptr;
    check(cuModuleLoadData(&loaded, kernels_.c_str()), "cuModuleLoadData");
    check(cuModuleGetFunction(&add_, loaded, "gdev_matrix_add"), "cuModuleGetFunction");
    check(cuModuleGetFunction(&multiply_, loaded, "gdev_matrix_multiply"), "cuModuleGetFunction");
  }

  /** Tells whether an input comes from the host. */
  [[nodiscard]] static bool is_copied(const order& now, const node::input& from) {
    return from.is_source || now.by == way::copied;
  }
  /** Tells whether the result goes to the host. */
  [[nodiscard]] bool is_copied_back(const order& now) const {
    return self_.consumers.empty() || now.by == way::copied;
  }
  [[nodiscard]] static std::size_t bytes_of(const order& now) {
    return now.side * now.side * sizeof(std::uint32_t);
  }

  void prepare(const order& now) {
    const std::size_t bytes = bytes_of(now);
    inputs_.clear();
    for (const node::input& from : self_.inputs) {
      inputs_.push_back(is_copied(now, from) ? matrix::own(bytes)
                                             : shared_result(now, from.number));
      if (is_copied(now, from)) {
        pin(now, board_.host_of(from));
      }
    }
    result_ = is_copied_back(now) ? matrix::own(bytes) : shared_result(now, number_);
    if (is_copied_back(now)) {
      pin(now, board_.result(number_));
    }
  }

  static matrix shared_result(const order& now, std::size_t number) {
    return matrix::shared(now.first_key + static_cast<std::int64_t>(number), bytes_of(now));
  }

  void pin(const order& now, std::uint32_t* memory) {
    if (now.is_pinned) {
      check(cuMemHostRegister(memory, bytes_of(now), 0), "cuMemHostRegister");
      pinned_.push_back(memory);
    }
  }

  void compute(const order& now) {
    const std::size_t bytes = bytes_of(now);
    for (std::size_t i = 0; i < self_.producers(); ++i) {
      board_.of(number_).ready.wait();
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (is_copied(now, self_.inputs[i])) {
        check(cuMemcpyHtoDAsync(inputs_[i].address(), board_.host_of(self_.inputs[i]), bytes,
                                stream_),
              "cuMemcpyHtoDAsync");
      }
    }
    launch(now);
    if (is_copied_back(now)) {
      check(cuMemcpyDtoHAsync(board_.result(number_), result_.address(), bytes, stream_),
            "cuMemcpyDtoHAsync");
    }
    check(cuStreamSynchronize(stream_), "cuStreamSynchronize");
    for (const std::size_t consumer : self_.consumers) {
      board_.of(consumer).ready.post();
    }
  }

  void launch(const order& now) {
    CUdeviceptr a = inputs_[0].address();
    CUdeviceptr b = inputs_[1].address();
    CUdeviceptr c = result_.address();
    std::uint64_t side = now.side;
    std::uint32_t salt = now.salt;
    void* parameters[] = {&a, &b, &c, &side, &salt};
    const auto tiles = static_cast<unsigned>(side / tile);
    const CUresult result = now.computed == operation::add
                                ? cuLaunchKernel(add_, tiles * tiles, 1, 1, tile * 8, 1, 1, 0,
                                                 stream_, parameters, nullptr)
                                : cuLaunchKernel(multiply_, tiles, tiles, 1, tile, tile, 1, 0,
                                                 stream_, parameters, nullptr);
    check(result, "cuLaunchKernel");
  }

  void release(const order& /*now*/) {
    for (std::uint32_t* const memory : pinned_) {
      check(cuMemHostUnregister(memory), "cuMemHostUnregister");
    }
    pinned_.clear();
    for (const matrix& one : inputs_) one.release();
    result_.release();
    with_keys.clear();
  }

  const node& self_;
  std::size_t number_;
  const board& board_;
  const std::string& kernels_;
  CUstream stream_ = nullptr;
  CUfunction add_ = nullptr;
  CUfunction multiply_ = nullptr;
  std::vector<matrix> inputs_;
  matrix result_;
  std::vector<std::uint32_t*> pinned_;
};

}  // namespace

void run_module(const graph& flow, std::size_t number, const board& shared,
                const std::string& kernels) {
  worker self(flow, number, shared, kernels);
  while (true) {
    shared.of(number).go.wait();
    const order now = shared.current();
    self.follow(now);
    if (now.what == step::end) {
      return;
    }
    shared.done().post();
  }
}

}  // namespace gdev_bench
