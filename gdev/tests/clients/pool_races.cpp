/**
 * Threads that use pools beside each other, as it is told to, line by line: KIND ARGUMENT...
 *
 * Each line is answered by one: "ok", with numbers where there are some, or "error N", CUDA's.
 *
 *   init             cuInit, and the primary context; bare: cuInit only
 *   access           allocates 8 MiB of a pool in a thread while another device gets access to the
 *                    pool: "ok FLAGS", that device's access to the allocation
 *   destroy TIMES    a thread wants to destroy the default pool, so often, and is refused; another
 *                    allocates of it: "ok USED EXPECTED", what is in use of it
 *   contexts TIMES   a thread allocates and frees; another does so in contexts that it ends
 *   chunks TIMES     contexts end while a thread releases chunks that were made in them
 *   burst PENDING COUNT
 *                    that many frees wait for a kernel; "ok NS", what an allocation in another
 *                    stream takes on the average of COUNT
 */
#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "clients/contexts.hpp"

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/** Keeps the first error of several calls. */
class errors {
 public:
  void note(CUresult result) {
    if (result != CUDA_SUCCESS && first_ == CUDA_SUCCESS) {
      first_ = result;
    }
  }
  [[nodiscard]] CUresult first() const { return first_; }

 private:
  std::atomic<CUresult> first_ = CUDA_SUCCESS;
};

CUmemLocation device(int number) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = number;
  return location;
}

CUcontext current() {
  CUcontext found = nullptr;
  cuCtxGetCurrent(&found);
  return found;
}

CUresult give_access(std::string& said) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = device(0);
  CUmemoryPool pool = nullptr;
  errors of;
  of.note(cuMemPoolCreate(&pool, &properties));
  CUdeviceptr made = 0;
  std::thread user([&, context = current()] {
    cuCtxSetCurrent(context);
    of.note(cuMemAllocFromPoolAsync(&made, 8 * mebibyte, pool, nullptr));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // in cuMemCreate()
  const CUmemAccessDesc access{device(1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  of.note(cuMemPoolSetAccess(pool, &access, 1));
  user.join();
  unsigned long long flags = 0;
  of.note(cuMemGetAccess(&flags, &access.location, made));
  said = std::to_string(flags);
  return of.first();
}

CUresult want_to_destroy(int times, std::string& said) {
  CUmemoryPool pool = nullptr;
  errors of;
  of.note(cuDeviceGetDefaultMemPool(&pool, 0));
  std::atomic<bool> is_over = false;
  std::thread other([&] {
    for (int i = 0; i < times; ++i) {
      if (cuMemPoolDestroy(pool) == CUDA_SUCCESS) {
        of.note(CUDA_ERROR_UNKNOWN);
      }
    }
    is_over = true;
  });
  std::vector<CUdeviceptr> live;
  while (!is_over) {
    CUdeviceptr made = 0;
    of.note(cuMemAllocAsync(&made, 512, nullptr));
    live.push_back(made);
    if (live.size() > 100) {
      of.note(cuMemFreeAsync(live.front(), nullptr));
      live.erase(live.begin());
    }
  }
  other.join();
  cuuint64_t used = 0;
  of.note(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  said = std::to_string(used) + " " + std::to_string(512 * live.size());
  return of.first();
}

/** Allocates and frees in the thread's default stream. */
void use_pool(errors& of, int times) {
  for (int i = 0; i < times; ++i) {
    CUdeviceptr made = 0;
    const std::size_t bytes = i % 2 == 0 ? 512 : 2 * mebibyte;
    of.note(cuMemAllocAsync(&made, bytes, CU_STREAM_PER_THREAD));
    of.note(cuMemsetD8Async(made, 1, bytes, CU_STREAM_PER_THREAD));
    of.note(cuMemFreeAsync(made, CU_STREAM_PER_THREAD));
  }
}

CUresult end_contexts(int times) {
  errors of;
  std::atomic<bool> is_over = false;
  std::thread other([&, context = current()] {
    cuCtxSetCurrent(context);
    while (!is_over) {
      use_pool(of, 8);
      of.note(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    }
  });
  for (int i = 0; i < times; ++i) {
    of.note(make_context());
    use_pool(of, 4);
    of.note(cuCtxDestroy(current()));
  }
  is_over = true;
  other.join();
  return of.first();
}

CUresult release_chunks(int times) {
  errors of;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = device(0);
  for (int i = 0; i < times; ++i) {
    of.note(make_context());
    std::vector<CUmemGenericAllocationHandle> made(6);
    for (CUmemGenericAllocationHandle& one : made) {
      of.note(cuMemCreate(&one, 2 * mebibyte, &properties, 0));
    }
    std::thread other([&] {
      for (const CUmemGenericAllocationHandle one : made) {
        of.note(cuMemRelease(one));
      }
    });
    of.note(cuCtxDestroy(current()));
    other.join();
  }
  return of.first();
}

CUresult spin(std::uint64_t milliseconds, CUstream stream) {
  const char* const file_name = std::getenv("KERNELS");
  std::ifstream file(file_name == nullptr ? "" : file_name);
  const std::string ptx{std::istreambuf_iterator<char>(file), {}};
  CUmodule module = nullptr;
  CUfunction found = nullptr;
  errors of;
  of.note(cuModuleLoadData(&module, ptx.c_str()));
  of.note(cuModuleGetFunction(&found, module, "gdev_spin"));
  std::uint64_t nanoseconds = milliseconds * 1'000'000;
  void* parameters[] = {&nanoseconds};
  of.note(cuLaunchKernel(found, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
  return of.first();
}

CUresult time_allocations(int pending, int count, std::string& said) {
  errors of;
  CUstream busy = nullptr;
  CUstream other = nullptr;
  of.note(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
  of.note(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  // Each second one is freed, so that no two are one block.
  std::vector<CUdeviceptr> all(2 * static_cast<std::size_t>(pending));
  for (CUdeviceptr& one : all) {
    of.note(cuMemAllocAsync(&one, 512, busy));
  }
  of.note(spin(3000, busy));
  for (std::size_t i = 0; i < all.size(); i += 2) {
    of.note(cuMemFreeAsync(all[i], busy));
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    CUdeviceptr made = 0;
    of.note(cuMemAllocAsync(&made, mebibyte, other));
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  said = std::to_string(std::chrono::nanoseconds(took).count() / count);
  return of.first();
}

using command = std::function<CUresult(std::istream&, std::string&)>;

int number(std::istream& words) {
  int found = 0;
  words >> found;
  return found;
}

const std::map<std::string, command>& commands() {
  static const std::map<std::string, command> all{
      {"init", [](auto&, auto&) { return init(); }},
      {"bare", [](auto&, auto&) { return cuInit(0); }},
      {"access", [](auto&, auto& said) { return give_access(said); }},
      {"destroy", [](auto& of, auto& said) { return want_to_destroy(number(of), said); }},
      {"contexts", [](auto& of, auto&) { return end_contexts(number(of)); }},
      {"chunks", [](auto& of, auto&) { return release_chunks(number(of)); }},
      {"burst",
       [](auto& of, auto& said) {
         const int pending = number(of);
         return time_allocations(pending, number(of), said);
       }},
  };
  return all;
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    std::string said;
    const CUresult result = commands().at(kind)(words, said);
    std::cout << (result == CUDA_SUCCESS ? "ok " + said : "error " + std::to_string(result))
              << std::endl;
  }
}
