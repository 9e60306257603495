/**
 * A program that does with memory what it is told to, line by line: KIND ARGUMENT...
 *
 * Each line is answered by one: "ok", with a number where there is one, or "error N", CUDA's. What
 * is made gets the next key, from 0; it is freed by it.
 *
 *   init                  cuInit, and the primary context; device N: that of another GPU
 *   alloc BYTES           managed BYTES, pitch WIDTH HEIGHT, async BYTES, array WIDTH HEIGHT,
 *                         pool BYTES, thread BYTES (async, of a per-thread default stream),
 *                         array3d WIDTH HEIGHT DEPTH, mipmapped WIDTH HEIGHT LEVELS (4 bytes each)
 *   create BYTES          a chunk; map KEY maps it, unmap KEY undoes that; retain KEY makes another
 *                         reference to the chunk that is mapped there
 *   churn BYTES TIMES     allocates and frees; "ok N": so many allocations failed
 *   timer                 a signal interrupts the program every 20 ms from now on
 *   free KEY              address KEY: "ok N", its address
 *   wait                  cuCtxSynchronize
 *   info, total           cuMemGetInfo: free and total; cuDeviceTotalMem
 *   reset                 cuDevicePrimaryCtxReset
 *   fill KEY VALUE BYTES  check KEY VALUE BYTES: "ok 1" if all 4-byte numbers are VALUE
 *   sum KEY VALUE BYTES   as check, but kernels do it, and write all anew; KERNELS names the PTX
 *   spin MILLISECONDS     launches a kernel that takes so long; KERNELS as of sum
 *   export KEY            cuIpcGetMemHandle: "ok HANDLE"; open HANDLE makes a new key
 *                         (cuIpcOpenMemHandle), close KEY undoes that
 *   part KEY OFFSET       a new key for the memory from there on
 *   range KEY             "ok BASE BYTES": cuMemGetAddressRange
 *   legacy KEY            "ok 1 BYTES": it can be exported, and its allocation has so many bytes
 *   sync KEY              CU_POINTER_ATTRIBUTE_SYNC_MEMOPS; dmabuf KEY: a descriptor for others
 *   context               cuCtxCreate, which becomes current; destroy: ends it
 *   release               cuDevicePrimaryCtxRelease
 *   graph BYTES...        an executable graph with memory nodes of so many bytes; captured BYTES:
 *                         the same, of a captured cuMemAllocAsync; upload KEY, launch KEY, drop KEY
 *   trim                  cuDeviceGraphMemTrim; free_in_capture KEY: cuMemFree in a capture
 *   module                loads the module of KERNELS; unload: unloads it
 *   end                   ends the process; what is allocated is freed when the driver has ended
 *   fork                  the child initializes CUDA anew, and answers from now on
 */
#include <cuda.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "clients/contexts.hpp"
#include "clients/graphs.hpp"

namespace {

constexpr std::size_t block = std::size_t{2} << 20;

struct thing {
  std::string kind;
  CUdeviceptr address = 0;
  CUarray array = nullptr;
  CUmipmappedArray mipmapped = nullptr;
  CUmemGenericAllocationHandle chunk = 0;
  std::size_t bytes = 0;
  CUdeviceptr mapped = 0;
  CUgraphExec graph = nullptr;
};

std::vector<thing>& things = *new std::vector<thing>;  // needed until the end
bool is_ending = false;

CUmemAllocationProp on_device() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return properties;
}

CUDA_ARRAY3D_DESCRIPTOR array_of(std::size_t width, std::size_t height, std::size_t depth) {
  CUDA_ARRAY3D_DESCRIPTOR wanted{};
  wanted.Width = width;
  wanted.Height = height;
  wanted.Depth = depth;
  wanted.Format = CU_AD_FORMAT_FLOAT;
  wanted.NumChannels = 1;
  return wanted;
}

CUresult make(const std::string& kind, std::istream& words) {
  thing made{kind};
  std::size_t a = 0;
  std::size_t b = 0;
  std::size_t c = 0;
  words >> a >> b >> c;
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  made.bytes = a;
  if (kind == "alloc") {
    result = cuMemAlloc(&made.address, a);
  } else if (kind == "managed") {
    result = cuMemAllocManaged(&made.address, a, CU_MEM_ATTACH_GLOBAL);
  } else if (kind == "async") {
    result = cuMemAllocAsync(&made.address, a, nullptr);
  } else if (kind == "pool") {
    CUmemoryPool pool = nullptr;
    result = cuDeviceGetMemPool(&pool, 0);
    if (result == CUDA_SUCCESS) {
      result = cuMemAllocFromPoolAsync(&made.address, a, pool, nullptr);
    }
  } else if (kind == "thread") {
    result = of_thread<decltype(&cuMemAllocAsync)>("cuMemAllocAsync")(&made.address, a, nullptr);
  } else if (kind == "pitch") {
    std::size_t pitch = 0;
    result = cuMemAllocPitch(&made.address, &pitch, a, b, 4);
  } else if (kind == "array") {
    CUDA_ARRAY_DESCRIPTOR wanted{};
    wanted.Width = a;
    wanted.Height = b;
    wanted.Format = CU_AD_FORMAT_FLOAT;
    wanted.NumChannels = 1;
    result = cuArrayCreate(&made.array, &wanted);
  } else if (kind == "array3d") {
    const CUDA_ARRAY3D_DESCRIPTOR wanted = array_of(a, b, c);
    result = cuArray3DCreate(&made.array, &wanted);
  } else if (kind == "mipmapped") {
    const CUDA_ARRAY3D_DESCRIPTOR wanted = array_of(a, b, 0);
    result = cuMipmappedArrayCreate(&made.mipmapped, &wanted, static_cast<unsigned>(c));
  } else if (kind == "create") {
    const CUmemAllocationProp properties = on_device();
    result = cuMemCreate(&made.chunk, a, &properties, 0);
  }
  if (result == CUDA_SUCCESS) {
    things.push_back(made);
  }
  return result;
}

CUresult free_thing(thing& one) {
  if (one.array != nullptr) {
    return cuArrayDestroy(one.array);
  }
  if (one.mipmapped != nullptr) {
    return cuMipmappedArrayDestroy(one.mipmapped);
  }
  if (one.kind == "create") {
    return cuMemRelease(one.chunk);
  }
  if (one.kind == "thread") {
    return of_thread<decltype(&cuMemFreeAsync)>("cuMemFreeAsync")(one.address, nullptr);
  }
  return one.kind == "async" || one.kind == "pool" ? cuMemFreeAsync(one.address, nullptr)
                                                   : cuMemFree(one.address);
}

CUresult map(thing& one) {
  CUresult result = cuMemAddressReserve(&one.mapped, one.bytes, block, 0, 0);
  if (result == CUDA_SUCCESS) {
    result = cuMemMap(one.mapped, one.bytes, 0, one.chunk, 0);
  }
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return result == CUDA_SUCCESS ? cuMemSetAccess(one.mapped, one.bytes, &access, 1) : result;
}

CUresult unmap(thing& one) {
  const CUresult result = cuMemUnmap(one.mapped, one.bytes);
  return result == CUDA_SUCCESS ? cuMemAddressFree(one.mapped, one.bytes) : result;
}

CUmodule module = nullptr;

CUresult load_module() {
  const char* const file_name = std::getenv("KERNELS");
  std::ifstream file(file_name == nullptr ? "" : file_name);
  const std::string ptx{std::istreambuf_iterator<char>(file), {}};
  return cuModuleLoadData(&module, ptx.c_str());
}

CUresult find_kernel(const char* name, CUfunction& found) {
  const CUresult result = module == nullptr ? load_module() : CUDA_SUCCESS;
  return result == CUDA_SUCCESS ? cuModuleGetFunction(&found, module, name) : result;
}

/** Tells whether all numbers are `value`: a kernel adds them up. Then they are written anew. */
CUresult sum(CUdeviceptr address, std::uint32_t value, std::uint64_t count, bool& is_right) {
  static CUfunction add_up = nullptr;
  static CUfunction fill = nullptr;
  static CUdeviceptr result = 0;
  CUresult error = CUDA_SUCCESS;
  if (add_up == nullptr) {
    error = find_kernel("gdev_fill", fill);
    error = error == CUDA_SUCCESS ? cuMemAlloc(&result, sizeof(std::uint64_t)) : error;
    error = error == CUDA_SUCCESS ? find_kernel("gdev_sum", add_up) : error;
  }
  std::uint64_t total = 0;
  void* of_sum[] = {&address, &count, &result};
  void* of_fill[] = {&address, &count, &value};
  for (const auto& call :
       {std::function([&] { return cuMemsetD32(result, 0, 2); }), std::function([&] {
          return cuLaunchKernel(add_up, 1024, 1, 1, 256, 1, 1, 0, nullptr, of_sum, nullptr);
        }),
        std::function([&] { return cuMemcpyDtoH(&total, result, sizeof total); }),
        std::function([&] {
          return cuLaunchKernel(fill, 1024, 1, 1, 256, 1, 1, 0, nullptr, of_fill, nullptr);
        })}) {
    error = error == CUDA_SUCCESS ? call() : error;
  }
  is_right = total == count * value;
  return error;
}

CUresult open_memory(std::istream& words, std::string& said) {
  std::string text;
  words >> text;
  CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof handle.reserved; ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  thing made{"opened"};
  const CUresult result =
      cuIpcOpenMemHandle(&made.address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result == CUDA_SUCCESS) {
    things.push_back(made);
    said = std::to_string(things.size() - 1);
  }
  return result;
}

CUresult export_memory(CUdeviceptr address, std::string& said) {
  CUipcMemHandle handle{};
  const CUresult result = cuIpcGetMemHandle(&handle, address);
  for (const char byte : handle.reserved) {
    constexpr const char* digits = "0123456789abcdef";
    said += digits[static_cast<unsigned char>(byte) / 16];
    said += digits[static_cast<unsigned char>(byte) % 16];
  }
  return result;
}

/** What a program does with memory that other processes or devices use. */
CUresult share(const std::string& kind, const thing& one, std::istream& words, std::string& said) {
  if (kind == "export") {
    return export_memory(one.address, said);
  }
  if (kind == "close") {
    return cuIpcCloseMemHandle(one.address);
  }
  if (kind == "part") {
    std::size_t offset = 0;
    words >> offset;
    said = std::to_string(things.size());
    const CUdeviceptr begin = one.address + offset;
    things.push_back({"part", begin});
    return CUDA_SUCCESS;
  }
  if (kind == "range") {
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    const CUresult result = cuMemGetAddressRange(&base, &bytes, one.address);
    said = std::to_string(base) + " " + std::to_string(bytes);
    return result;
  }
  if (kind == "legacy") {
    int is_capable = 0;
    std::size_t bytes = 0;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void* places[] = {&is_capable, &bytes};
    const CUresult result = cuPointerGetAttributes(2, which, places, one.address);
    said = std::to_string(is_capable) + " " + std::to_string(bytes);
    return result;
  }
  if (kind == "sync") {
    const unsigned yes = 1;
    return cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, one.address);
  }
  int file = -1;
  const CUresult result = cuMemGetHandleForAddressRange(&file, one.address, block,
                                                        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  close(file);
  return result;
}

/** Does what a line says. Stores what to print after "ok". */
CUresult obey(const std::string& line, std::string& said) {
  std::istringstream words(line);
  std::string kind;
  words >> kind;
  std::size_t key = 0;
  const auto named = [&]() -> thing& {
    words >> key;
    return things.at(key);
  };
  if (kind == "init") {
    return init();
  }
  if (kind == "device") {
    CUdevice device = 0;
    words >> device;
    CUcontext context = nullptr;
    const CUresult result = cuDevicePrimaryCtxRetain(&context, device);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
  }
  if (kind == "free") {
    return free_thing(named());
  }
  if (kind == "address") {
    said = std::to_string(named().address);
    return CUDA_SUCCESS;
  }
  if (kind == "map") {
    return map(named());
  }
  if (kind == "unmap") {
    return unmap(named());
  }
  if (kind == "retain") {
    thing made{"create"};
    const CUresult result =
        cuMemRetainAllocationHandle(&made.chunk, reinterpret_cast<void*>(named().mapped));
    things.push_back(made);
    said = std::to_string(things.size() - 1);
    return result;
  }
  if (kind == "open") {
    return open_memory(words, said);
  }
  if (kind == "export" || kind == "close" || kind == "part" || kind == "range" ||
      kind == "legacy" || kind == "sync" || kind == "dmabuf") {
    return share(kind, named(), words, said);
  }
  if (kind == "wait") {
    return cuCtxSynchronize();
  }
  if (kind == "context") {
    return make_context();
  }
  if (kind == "destroy") {
    CUcontext context = nullptr;
    cuCtxGetCurrent(&context);
    return cuCtxDestroy(context);
  }
  if (kind == "graph" || kind == "captured") {
    thing made{kind};
    const CUresult result = make_graph(kind == "captured", words, made.graph);
    things.push_back(made);
    said = std::to_string(things.size() - 1);
    return result;
  }
  if (kind == "upload") {
    return cuGraphUpload(named().graph, nullptr);
  }
  if (kind == "launch") {
    return cuGraphLaunch(named().graph, nullptr);
  }
  if (kind == "drop") {
    return cuGraphExecDestroy(named().graph);
  }
  if (kind == "free_in_capture") {
    return free_in_capture(named().address);
  }
  if (kind == "trim") {
    return cuDeviceGraphMemTrim(0);
  }
  if (kind == "release") {
    return cuDevicePrimaryCtxRelease(0);
  }
  if (kind == "module") {
    return load_module();
  }
  if (kind == "unload") {
    return cuModuleUnload(module);
  }
  if (kind == "churn") {
    std::size_t bytes = 0;
    int times = 0;
    int failures = 0;
    words >> bytes >> times;
    for (int i = 0; i < times; ++i) {
      CUdeviceptr address = 0;
      if (cuMemAlloc(&address, bytes) != CUDA_SUCCESS) {
        ++failures;
      } else if (cuMemFree(address) != CUDA_SUCCESS) {
        return CUDA_ERROR_UNKNOWN;
      }
    }
    said = std::to_string(failures);
    return CUDA_SUCCESS;
  }
  if (kind == "timer") {
    signal(SIGALRM, [](int) {});
    const itimerval often{{0, 20'000}, {0, 20'000}};
    setitimer(ITIMER_REAL, &often, nullptr);
    return CUDA_SUCCESS;
  }
  if (kind == "reset") {
    return cuDevicePrimaryCtxReset(0);
  }
  if (kind == "info" || kind == "total") {
    std::size_t free = 0;
    std::size_t total = 0;
    const CUresult result =
        kind == "info" ? cuMemGetInfo(&free, &total) : cuDeviceTotalMem(&total, 0);
    said = (kind == "info" ? std::to_string(free) + " " : "") + std::to_string(total);
    return result;
  }
  if (kind == "fill" || kind == "check") {
    const thing& one = named();
    const CUdeviceptr address = one.mapped != 0 ? one.mapped : one.address;
    unsigned value = 0;
    std::size_t bytes = 0;
    words >> value >> bytes;
    if (kind == "fill") {
      return cuMemsetD32(address, value, bytes / sizeof value);
    }
    std::vector<unsigned> copied(bytes / sizeof value);
    const CUresult result = cuMemcpyDtoH(copied.data(), address, bytes);
    said = std::all_of(copied.begin(), copied.end(), [&](unsigned one) { return one == value; })
               ? "1"
               : "0";
    return result;
  }
  if (kind == "spin") {
    std::uint64_t nanoseconds = 0;
    words >> nanoseconds;
    nanoseconds *= 1'000'000;
    CUfunction spin = nullptr;
    void* parameters[] = {&nanoseconds};
    const CUresult result = find_kernel("gdev_spin", spin);
    return result != CUDA_SUCCESS
               ? result
               : cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
  }
  if (kind == "sum") {
    const CUdeviceptr address = named().address;
    unsigned value = 0;
    std::size_t bytes = 0;
    bool is_right = false;
    words >> value >> bytes;
    const CUresult result = sum(address, value, bytes / sizeof value, is_right);
    said = is_right ? "1" : "0";
    return result;
  }
  const CUresult result = make(kind, words);
  said = std::to_string(things.size() - 1);
  return result;
}

}  // namespace

int main() {
  // Registered before the driver's own, so it runs after that.
  std::atexit([] {
    if (is_ending) {
      static_cast<void>(cuMemFree(things.at(0).address));
    }
  });
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "end") {
      is_ending = true;
      return 0;
    }
    if (line == "fork") {
      std::cout.flush();
      const pid_t child = fork();
      if (child > 0) {
        int status = 0;
        waitpid(child, &status, 0);
        return status;
      }
      things.clear();
      std::cout << "ok " << getpid() << std::endl;
      continue;
    }
    std::string said;
    const CUresult result = obey(line, said);
    if (result == CUDA_SUCCESS) {
      std::cout << "ok " << said << std::endl;
    } else {
      std::cout << "error " << result << std::endl;
    }
  }
}
