/**
 * A program that uses pools in several streams as it is told to, line by line: KIND ARGUMENT...
 *
 * Each line is answered by one: "ok", with numbers where there are some, or "error N", CUDA's.
 * Allocations, streams and pools have keys of their own, from 0. STREAM -1 is the default stream,
 * -2 that of the thread. POOL -1 is the device's current one.
 *
 *   init                        cuInit, and the primary context; context: another one,
 *                               destroy_context: ends it; reset: cuDevicePrimaryCtxReset
 *   stream, pool TYPES          make one; TYPES: of handles
 *   limited BYTES               makes a pool with a largest size
 *   current POOL                cuDeviceSetMemPool; destroy POOL: cuMemPoolDestroy
 *   end STREAM                  cuStreamDestroy
 *   set POOL WHICH VALUE        an attribute; amounts POOL: "ok RESERVED HIGH USED HIGH"
 *   trim POOL BYTES             share POOL: lets the device 1 use it
 *   alloc BYTES STREAM POOL     "ok KEY ADDRESS"
 *   thread BYTES                the same, by the call for per-thread streams
 *   free KEY STREAM             cuMemFreeAsync; thread_free KEY, inside KEY (in its middle)
 *   at_once KEY                 cuMemFree
 *   plain BYTES                 cuMemAlloc: "ok KEY ADDRESS"
 *   fill KEY VALUE STREAM       verify KEY VALUE STREAM: copies it to the host in the stream
 *   verdict                     waits for all; "ok N": so many verify have found a wrong byte
 *   spin MILLISECONDS STREAM    a kernel that takes so long; after A B: A waits for what is in B
 *   sync STREAM, wait           cuStreamSynchronize, cuCtxSynchronize; event STREAM: by an event
 *   facts KEY                   "ok BASE BYTES BASE BYTES POOL LEGACY": of cuMemGetAddressRange and
 *                               of attributes; POOL: its key, -1: none, -2: another
 *   export KEY, retain KEY      cuIpcGetMemHandle, cuMemRetainAllocationHandle
 *   unmap KEY, access KEY       cuMemUnmap, cuMemSetAccess of its own device, and
 *   map KEY, unreserve KEY      cuMemMap of a new chunk, and cuMemAddressFree, of all of its range
 *   sync_memops KEY             CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
 *   capture STREAM, done STREAM begin and end a capture; after lets another stream join it
 *   green                       makes a green context the current one; end_green: ends it, and the
 *                               primary one is current again; release: cuDevicePrimaryCtxRelease
 *   info                        cuMemGetInfo: "ok FREE TOTAL"
 *   fork                        the child initializes CUDA anew, and answers from now on
 */
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "clients/contexts.hpp"

namespace {

struct allocation {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
};

struct check {
  std::unique_ptr<std::uint8_t[]> copied;
  std::size_t bytes = 0;
  std::uint8_t value = 0;
};

std::vector<allocation> allocations;
std::vector<CUstream> streams;
std::vector<CUmemoryPool> pools;
std::vector<check> checks;

CUresult end_context() {
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  return cuCtxDestroy(context);
}

/** Reads the arguments of a line. */
class arguments {
 public:
  explicit arguments(std::istream& words) : words_(words) {}

  std::int64_t number() {
    std::int64_t found = 0;
    words_ >> found;
    return found;
  }
  std::size_t size() { return static_cast<std::size_t>(number()); }
  allocation& memory() { return allocations.at(size()); }
  CUstream stream() {
    const std::int64_t key = number();
    return key == -1   ? nullptr
           : key == -2 ? CU_STREAM_PER_THREAD
                       : streams.at(static_cast<std::size_t>(key));
  }
  CUmemoryPool pool() {
    const std::int64_t key = number();
    CUmemoryPool found = nullptr;
    if (key == -1) {
      cuDeviceGetMemPool(&found, 0);
    }
    return key == -1 ? found : pools.at(static_cast<std::size_t>(key));
  }

 private:
  std::istream& words_;
};

CUresult add(CUresult result, const allocation& made, std::string& said) {
  if (result == CUDA_SUCCESS) {
    said = std::to_string(allocations.size()) + " " + std::to_string(made.address);
    allocations.push_back(made);
  }
  return result;
}

CUresult make_pool(std::int64_t types, std::size_t most, std::string& said) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = static_cast<CUmemAllocationHandleType>(types);
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  properties.maxSize = most;
  CUmemoryPool made = nullptr;
  const CUresult result = cuMemPoolCreate(&made, &properties);
  said = std::to_string(pools.size());
  pools.push_back(made);
  return result;
}

CUresult set(CUmemoryPool pool, CUmemPool_attribute which, std::int64_t value) {
  cuuint64_t large = static_cast<cuuint64_t>(value);
  int small = static_cast<int>(value);
  const bool is_flag = which == CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
                       which == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC ||
                       which == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
  return cuMemPoolSetAttribute(pool, which,
                               is_flag ? static_cast<void*>(&small) : static_cast<void*>(&large));
}

CUresult amounts(CUmemoryPool pool, std::string& said) {
  CUresult result = CUDA_SUCCESS;
  for (const CUmemPool_attribute which :
       {CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH}) {
    cuuint64_t found = 0;
    result = result == CUDA_SUCCESS ? cuMemPoolGetAttribute(pool, which, &found) : result;
    said += std::to_string(found) + " ";
  }
  return result;
}

CUresult share(CUmemoryPool pool) {
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {1}};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return cuMemPoolSetAccess(pool, &access, 1);
}

CUresult verify(const allocation& of, std::uint8_t value, CUstream stream) {
  check& made = checks.emplace_back();
  made.copied = std::make_unique<std::uint8_t[]>(of.bytes);
  made.bytes = of.bytes;
  made.value = value;
  return cuMemcpyDtoHAsync(made.copied.get(), of.address, of.bytes, stream);
}

CUresult verdict(std::string& said) {
  const CUresult result = cuCtxSynchronize();
  const auto wrong = std::count_if(checks.begin(), checks.end(), [](const check& one) {
    return std::any_of(one.copied.get(), one.copied.get() + one.bytes,
                       [&one](std::uint8_t byte) { return byte != one.value; });
  });
  said = std::to_string(wrong);
  checks.clear();
  return result;
}

CUresult spin(std::uint64_t milliseconds, CUstream stream) {
  static CUfunction found = nullptr;
  CUresult result = CUDA_SUCCESS;
  if (found == nullptr) {
    const char* const file_name = std::getenv("KERNELS");
    std::ifstream file(file_name == nullptr ? "" : file_name);
    const std::string ptx{std::istreambuf_iterator<char>(file), {}};
    CUmodule module = nullptr;
    result = cuModuleLoadData(&module, ptx.c_str());
    result = result == CUDA_SUCCESS ? cuModuleGetFunction(&found, module, "gdev_spin") : result;
  }
  std::uint64_t nanoseconds = milliseconds * 1'000'000;
  void* parameters[] = {&nanoseconds};
  return result == CUDA_SUCCESS
             ? cuLaunchKernel(found, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr)
             : result;
}

/** Records an event in a stream, and passes it on. */
CUresult with_event(CUstream in, const std::function<CUresult(CUevent)>& use) {
  CUevent event = nullptr;
  CUresult result = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  result = result == CUDA_SUCCESS ? cuEventRecord(event, in) : result;
  result = result == CUDA_SUCCESS ? use(event) : result;
  cuEventDestroy(event);
  return result;
}

CUresult facts(const allocation& of, std::string& said) {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  const CUresult result = cuMemGetAddressRange(&base, &bytes, of.address);
  CUdeviceptr begin = 0;
  std::size_t size = 0;
  CUmemoryPool pool = nullptr;
  int is_legacy = -1;
  CUpointer_attribute which[] = {
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  void* places[] = {&begin, &size, &pool, &is_legacy};
  const CUresult second = cuPointerGetAttributes(4, which, places, of.address);
  CUmemoryPool same = nullptr;
  const CUresult third =
      cuPointerGetAttribute(&same, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, of.address);
  const auto key = std::find(pools.begin(), pools.end(), pool) - pools.begin();
  const auto end = static_cast<std::ptrdiff_t>(pools.size());
  std::ostringstream text;
  text << base << ' ' << bytes << ' ' << begin << ' ' << size << ' '
       << (pool == nullptr ? -1
           : key == end    ? -2
                           : key)
       << ' ' << is_legacy;
  said = text.str();
  if (pool != same) {
    return CUDA_ERROR_UNKNOWN;
  }
  return result != CUDA_SUCCESS ? result : second != CUDA_SUCCESS ? second : third;
}

using command = std::function<CUresult(arguments&, std::string&)>;

CUresult allocate(arguments& of, std::string& said, bool is_plain) {
  allocation made;
  made.bytes = of.size();
  if (is_plain) {
    return add(cuMemAlloc(&made.address, made.bytes), made, said);
  }
  const CUstream stream = of.stream();
  const std::int64_t pool = of.number();
  const CUresult result =
      pool == -1 ? cuMemAllocAsync(&made.address, made.bytes, stream)
                 : cuMemAllocFromPoolAsync(&made.address, made.bytes,
                                           pools.at(static_cast<std::size_t>(pool)), stream);
  return add(result, made, said);
}

CUresult allocate_in_thread(arguments& of, std::string& said) {
  allocation made;
  made.bytes = of.size();
  const auto call = of_thread<decltype(&cuMemAllocAsync)>("cuMemAllocAsync");
  return add(call(&made.address, made.bytes, nullptr), made, said);
}

CUresult end_capture(CUstream stream) {
  CUgraph graph = nullptr;
  return cuStreamEndCapture(stream, &graph);
}

CUresult retain(const allocation& of) {
  CUmemGenericAllocationHandle found = 0;
  return cuMemRetainAllocationHandle(&found, reinterpret_cast<void*>(of.address));
}

/** Treats an allocation as what cuMemAddressReserve() and cuMemMap() have made. */
CUresult treat(const std::string& how, const allocation& of) {
  const std::size_t unit = std::size_t{2} << 20;
  const CUdeviceptr begin = of.address / unit * unit;
  const std::size_t bytes = (of.bytes + unit - 1) / unit * unit;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  if (how == "access") {
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READ};
    return cuMemSetAccess(begin, bytes, &access, 1);
  }
  if (how == "map") {
    CUmemGenericAllocationHandle made = 0;
    if (cuMemCreate(&made, bytes, &properties, 0) != CUDA_SUCCESS) {
      return CUDA_ERROR_UNKNOWN;
    }
    const CUresult result = cuMemMap(begin, bytes, 0, made, 0);
    cuMemRelease(made);
    return result;
  }
  return how == "unmap" ? cuMemUnmap(begin, bytes) : cuMemAddressFree(begin, bytes);
}

CUgreenCtx green = nullptr;

CUresult make_green() {
  CUdevResource resource{};
  CUdevResourceDesc description = nullptr;
  CUcontext context = nullptr;
  CUresult result = cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM);
  result = result == CUDA_SUCCESS ? cuDevResourceGenerateDesc(&description, &resource, 1) : result;
  result = result == CUDA_SUCCESS
               ? cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM)
               : result;
  result = result == CUDA_SUCCESS ? cuCtxFromGreenCtx(&context, green) : result;
  return result == CUDA_SUCCESS ? cuCtxPushCurrent(context) : result;
}

CUresult end_green() {
  CUcontext unused = nullptr;
  cuCtxPopCurrent(&unused);
  return cuGreenCtxDestroy(green);
}

const std::map<std::string, command>& commands() {
  static const std::map<std::string, command> all{
      {"init", [](auto&, auto&) { return init(); }},
      {"context", [](auto&, auto&) { return make_context(); }},
      {"destroy_context", [](auto&, auto&) { return end_context(); }},
      {"reset", [](auto&, auto&) { return cuDevicePrimaryCtxReset(0); }},
      {"stream",
       [](auto&, auto& said) {
         said = std::to_string(streams.size());
         return cuStreamCreate(&streams.emplace_back(), CU_STREAM_NON_BLOCKING);
       }},
      {"end", [](auto& of, auto&) { return cuStreamDestroy(of.stream()); }},
      {"pool", [](auto& of, auto& said) { return make_pool(of.number(), 0, said); }},
      {"limited", [](auto& of, auto& said) { return make_pool(0, of.size(), said); }},
      {"current", [](auto& of, auto&) { return cuDeviceSetMemPool(0, of.pool()); }},
      {"destroy", [](auto& of, auto&) { return cuMemPoolDestroy(of.pool()); }},
      {"set",
       [](auto& of, auto&) {
         const CUmemoryPool pool = of.pool();
         const auto which = static_cast<CUmemPool_attribute>(of.number());
         return set(pool, which, of.number());
       }},
      {"amounts", [](auto& of, auto& said) { return amounts(of.pool(), said); }},
      {"trim",
       [](auto& of, auto&) {
         const CUmemoryPool pool = of.pool();
         return cuMemPoolTrimTo(pool, of.size());
       }},
      {"share", [](auto& of, auto&) { return share(of.pool()); }},
      {"alloc", [](auto& of, auto& said) { return allocate(of, said, false); }},
      {"plain", [](auto& of, auto& said) { return allocate(of, said, true); }},
      {"thread", [](auto& of, auto& said) { return allocate_in_thread(of, said); }},
      {"free",
       [](auto& of, auto&) {
         const CUdeviceptr address = of.memory().address;
         return cuMemFreeAsync(address, of.stream());
       }},
      {"at_once", [](auto& of, auto&) { return cuMemFree(of.memory().address); }},
      {"thread_free",
       [](auto& of, auto&) {
         const auto call = of_thread<decltype(&cuMemFreeAsync)>("cuMemFreeAsync");
         return call(of.memory().address, nullptr);
       }},
      {"inside",
       [](auto& of, auto&) {
         const allocation& one = of.memory();
         return cuMemFreeAsync(one.address + one.bytes / 2, nullptr);
       }},
      {"fill",
       [](auto& of, auto&) {
         const allocation& one = of.memory();
         const auto value = static_cast<unsigned char>(of.number());
         return cuMemsetD8Async(one.address, value, one.bytes, of.stream());
       }},
      {"verify",
       [](auto& of, auto&) {
         const allocation& one = of.memory();
         const auto value = static_cast<std::uint8_t>(of.number());
         return verify(one, value, of.stream());
       }},
      {"verdict", [](auto&, auto& said) { return verdict(said); }},
      {"spin",
       [](auto& of, auto&) {
         const std::size_t milliseconds = of.size();
         return spin(milliseconds, of.stream());
       }},
      {"after",
       [](auto& of, auto&) {
         const CUstream waits = of.stream();
         return with_event(of.stream(),
                           [waits](CUevent event) { return cuStreamWaitEvent(waits, event, 0); });
       }},
      {"sync", [](auto& of, auto&) { return cuStreamSynchronize(of.stream()); }},
      {"event", [](auto& of, auto&) { return with_event(of.stream(), &cuEventSynchronize); }},
      {"wait", [](auto&, auto&) { return cuCtxSynchronize(); }},
      {"facts", [](auto& of, auto& said) { return facts(of.memory(), said); }},
      {"export",
       [](auto& of, auto&) {
         CUipcMemHandle handle{};
         return cuIpcGetMemHandle(&handle, of.memory().address);
       }},
      {"retain", [](auto& of, auto&) { return retain(of.memory()); }},
      {"unmap", [](auto& of, auto&) { return treat("unmap", of.memory()); }},
      {"access", [](auto& of, auto&) { return treat("access", of.memory()); }},
      {"map", [](auto& of, auto&) { return treat("map", of.memory()); }},
      {"unreserve", [](auto& of, auto&) { return treat("unreserve", of.memory()); }},
      {"green", [](auto&, auto&) { return make_green(); }},
      {"end_green", [](auto&, auto&) { return end_green(); }},
      {"release", [](auto&, auto&) { return cuDevicePrimaryCtxRelease(0); }},
      {"sync_memops",
       [](auto& of, auto&) {
         const unsigned yes = 1;
         return cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, of.memory().address);
       }},
      {"capture",
       [](auto& of, auto&) {
         return cuStreamBeginCapture(of.stream(), CU_STREAM_CAPTURE_MODE_RELAXED);
       }},
      {"done", [](auto& of, auto&) { return end_capture(of.stream()); }},
      {"info",
       [](auto&, auto& said) {
         std::size_t free = 0;
         std::size_t total = 0;
         const CUresult result = cuMemGetInfo(&free, &total);
         said = std::to_string(free) + " " + std::to_string(total);
         return result;
       }},
  };
  return all;
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "fork") {
      std::cout.flush();
      const pid_t child = fork();
      if (child > 0) {
        int status = 0;
        waitpid(child, &status, 0);
        return status;
      }
      std::cout << "ok " << getpid() << std::endl;
      continue;
    }
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    arguments of(words);
    std::string said;
    const CUresult result = commands().at(kind)(of, said);
    if (result == CUDA_SUCCESS) {
      std::cout << "ok " << said << std::endl;
    } else {
      std::cout << "error " << result << std::endl;
    }
  }
}
