/** The g* calls. Each checks what its caller gave it, and calls a part of the handle. */
#include "gdev/gdev.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string_view>

#include "calls/handles.hpp"

namespace {

using gdev::calls::driver;
using gdev::calls::error_of;
using gdev::calls::open_gpu;
using gdev::calls::with_handle;

/** Waits for the handle's work, and goes on only if it has not failed. */
template <typename Call>
int after_work(ghandle handle, Call&& call) noexcept {
  return with_handle(handle, [&](open_gpu& gpu) {
    const int error = gpu.work.wait_for_all();
    return error != 0 ? error : call(gpu);
  });
}

/**
 * Submits a copy in pieces; copy(offset, bytes, stream) submits one. The work has one id.
 * piece: bytes; 0: all in one.
 */
template <typename Copy>
int submit_copy(open_gpu& gpu, std::size_t bytes, std::size_t piece, std::uint64_t* id,
                Copy&& copy) noexcept {
  return gpu.work.submit(id, [&](CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    std::size_t done = 0;
    while (done < bytes && result == CUDA_SUCCESS) {
      const std::size_t now = piece == 0 ? bytes : std::min(piece, bytes - done);
      result = copy(done, now, stream);
      done += now;
    }
    return result;
  });
}

int copy_to_device(open_gpu& gpu, CUdeviceptr to, const void* from, std::size_t bytes,
                   std::uint64_t* id) noexcept {
  if (from == nullptr || !gpu.memory.may_use(to, bytes)) {
    return -EINVAL;
  }
  const auto* const begin = static_cast<const char*>(from);
  return submit_copy(gpu, bytes, gpu.chunk.load(std::memory_order_relaxed), id,
                     [&](std::size_t at, std::size_t now, CUstream stream) {
                       return driver().cuMemcpyHtoDAsync(to + at, begin + at, now, stream);
                     });
}

int copy_from_device(open_gpu& gpu, void* to, CUdeviceptr from, std::size_t bytes,
                     std::uint64_t* id) noexcept {
  if (to == nullptr || !gpu.memory.may_use(from, bytes)) {
    return -EINVAL;
  }
  auto* const begin = static_cast<char*>(to);
  return submit_copy(gpu, bytes, gpu.chunk.load(std::memory_order_relaxed), id,
                     [&](std::size_t at, std::size_t now, CUstream stream) {
                       return driver().cuMemcpyDtoHAsync(begin + at, from + at, now, stream);
                     });
}

int copy_in_device(open_gpu& gpu, CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                   std::uint64_t* id) noexcept {
  if (!gpu.memory.may_use(to, bytes) || !gpu.memory.may_use(from, bytes)) {
    return -EINVAL;
  }
  return submit_copy(gpu, bytes, 0, id, [&](std::size_t, std::size_t now, CUstream stream) {
    return driver().cuMemcpyDtoDAsync(to, from, now, stream);
  });
}

/** Submits by submit(gpu), and waits. */
template <typename Submit>
int submit_and_wait(ghandle handle, Submit&& submit) noexcept {
  return with_handle(handle, [&](open_gpu& gpu) {
    const int error = submit(gpu);
    return error != 0 ? error : gpu.work.wait_for_all();
  });
}

/** Tells whether a kernel can be launched at all. */
bool is_whole(const gkernel& kernel) noexcept {
  const auto has_zero = [](const unsigned (&of)[3]) {
    return std::find(std::begin(of), std::end(of), 0U) != std::end(of);
  };
  if (kernel.image == nullptr || kernel.entry == nullptr || has_zero(kernel.grid) ||
      has_zero(kernel.block) || (kernel.parameters == nullptr && kernel.parameter_count != 0)) {
    return false;
  }
  void* const* const end = kernel.parameters + kernel.parameter_count;
  return std::find(kernel.parameters, end, nullptr) == end;
}

int launch(open_gpu& gpu, const gkernel& kernel, std::uint64_t* id) noexcept {
  gdev::calls::loaded_kernel found;
  const std::string_view image(static_cast<const char*>(kernel.image), kernel.image_bytes);
  if (const int error = gpu.images.find(image, kernel.entry, found); error != 0) {
    return error;
  }
  if (found.parameters.value_or(kernel.parameter_count) != kernel.parameter_count) {
    return -EINVAL;
  }
  return gpu.work.submit(id, [&](CUstream stream) {
    return driver().cuLaunchKernel(found.function, kernel.grid[0], kernel.grid[1], kernel.grid[2],
                                   kernel.block[0], kernel.block[1], kernel.block[2],
                                   kernel.shared_bytes, stream,
                                   const_cast<void**>(kernel.parameters), nullptr);
  });
}

int ask_attribute(CUdevice device, CUdevice_attribute which, int& value) noexcept {
  return error_of(driver().cuDeviceGetAttribute(&value, which, device));
}

int query_memory(bool is_free, std::uint64_t& result) noexcept {
  std::size_t free = 0;
  std::size_t total = 0;
  const int error = error_of(driver().cuMemGetInfo(&free, &total));
  if (error == 0) {
    result = is_free ? free : total;
  }
  return error;
}

int query_capability(CUdevice device, std::uint64_t& result) noexcept {
  int major = 0;
  int minor = 0;
  int error = ask_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major);
  if (error == 0) {
    error = ask_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, minor);
  }
  if (error == 0) {
    result = static_cast<std::uint64_t>(10 * major + minor);
  }
  return error;
}

int query_multiprocessors(CUdevice device, std::uint64_t& result) noexcept {
  int count = 0;
  const int error = ask_attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, count);
  if (error == 0) {
    result = static_cast<std::uint64_t>(count);
  }
  return error;
}

}  // namespace

int gdevice_count(int* count) {
  const auto* const found = gdev::calls::find_driver();
  if (found == nullptr) {
    return -ENODEV;
  }
  if (count == nullptr) {
    return -EINVAL;
  }
  const CUresult result = found->cuInit(0);
  return error_of(result == CUDA_SUCCESS ? found->cuDeviceGetCount(count) : result);
}

ghandle gopen(int minor) { return gdev::calls::open_handle(minor); }

int gclose(ghandle handle) { return gdev::calls::close_handle(handle); }

int guse(ghandle handle) {
  CUcontext context = nullptr;
  if (handle == -1) {
    if (gdev::calls::find_driver() == nullptr) {
      return -ENODEV;
    }
  } else if (const int error = with_handle(handle,
                                           [&](const open_gpu& gpu) {
                                             context = gpu.context;
                                             return 0;
                                           });
             error != 0) {
    return error;
  }
  return error_of(driver().cuCtxSetCurrent(context));
}

int gmalloc(ghandle handle, CUdeviceptr* address, std::size_t bytes) {
  return with_handle(handle, [&](open_gpu& gpu) {
    return address == nullptr ? -EINVAL : gpu.memory.allocate(*address, bytes);
  });
}

int gfree(ghandle handle, CUdeviceptr address) {
  return after_work(handle, [&](open_gpu& gpu) { return gpu.memory.free(address); });
}

int gmalloc_dma(ghandle handle, void** buffer, std::size_t bytes) {
  return with_handle(handle, [&](open_gpu& gpu) {
    return buffer == nullptr ? -EINVAL : gpu.memory.allocate_pinned(*buffer, bytes);
  });
}

int gfree_dma(ghandle handle, void* buffer) {
  return after_work(handle, [&](open_gpu& gpu) { return gpu.memory.free_pinned(buffer); });
}

int gvirtget(ghandle handle, const void* pointer, CUdeviceptr* address) {
  return with_handle(handle, [&](open_gpu& gpu) {
    return address == nullptr ? -EINVAL : gpu.memory.find_device_address(pointer, *address);
  });
}

int gmemcpy_to_device(ghandle handle, CUdeviceptr to, const void* from, std::size_t bytes) {
  return submit_and_wait(
      handle, [&](open_gpu& gpu) { return copy_to_device(gpu, to, from, bytes, nullptr); });
}

int gmemcpy_from_device(ghandle handle, void* to, CUdeviceptr from, std::size_t bytes) {
  return submit_and_wait(
      handle, [&](open_gpu& gpu) { return copy_from_device(gpu, to, from, bytes, nullptr); });
}

int gmemcpy(ghandle handle, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return submit_and_wait(
      handle, [&](open_gpu& gpu) { return copy_in_device(gpu, to, from, bytes, nullptr); });
}

int gmemcpy_to_device_async(ghandle handle, CUdeviceptr to, const void* from, std::size_t bytes,
                            std::uint64_t* id) {
  return with_handle(handle,
                     [&](open_gpu& gpu) { return copy_to_device(gpu, to, from, bytes, id); });
}

int gmemcpy_from_device_async(ghandle handle, void* to, CUdeviceptr from, std::size_t bytes,
                              std::uint64_t* id) {
  return with_handle(handle,
                     [&](open_gpu& gpu) { return copy_from_device(gpu, to, from, bytes, id); });
}

int gmemcpy_async(ghandle handle, CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                  std::uint64_t* id) {
  return with_handle(handle,
                     [&](open_gpu& gpu) { return copy_in_device(gpu, to, from, bytes, id); });
}

int glaunch(ghandle handle, const gkernel* kernel, std::uint64_t* id) {
  return with_handle(handle, [&](open_gpu& gpu) {
    return kernel == nullptr || !is_whole(*kernel) ? -EINVAL : launch(gpu, *kernel, id);
  });
}

int gsync(ghandle handle, std::uint64_t id, std::int64_t timeout_ns) {
  return with_handle(handle, [&](open_gpu& gpu) { return gpu.work.wait_for(id, timeout_ns); });
}

int gbarrier(ghandle handle) {
  return with_handle(handle, [](open_gpu& gpu) { return gpu.work.wait_for_all(); });
}

int gquery(ghandle handle, unsigned type, std::uint64_t* result) {
  return with_handle(handle, [&](const open_gpu& gpu) {
    if (result == nullptr) {
      return -EINVAL;
    }
    switch (type) {
      case GQUERY_MEMORY_BYTES: return query_memory(false, *result);
      case GQUERY_MEMORY_FREE_BYTES: return query_memory(true, *result);
      case GQUERY_COMPUTE_CAPABILITY: return query_capability(gpu.device, *result);
      case GQUERY_MULTIPROCESSORS: return query_multiprocessors(gpu.device, *result);
      default: return -EINVAL;
    }
  });
}

int gtune(ghandle handle, unsigned type, std::uint64_t value) {
  constexpr std::uint64_t unit = 4096;
  return with_handle(handle, [&](open_gpu& gpu) {
    if (type != GTUNE_MEMCPY_CHUNK_BYTES || value % unit != 0) {
      return -EINVAL;
    }
    gpu.chunk.store(value, std::memory_order_relaxed);
    return 0;
  });
}

int gexport(ghandle handle, CUdeviceptr address, gname* name) {
  return with_handle(handle, [&](open_gpu& gpu) {
    return name == nullptr ? -EINVAL : gpu.memory.name(address, *name);
  });
}

int gref(ghandle handle, const gname* name, CUdeviceptr* address) {
  return with_handle(handle, [&](open_gpu& gpu) {
    return name == nullptr || address == nullptr ? -EINVAL : gpu.memory.attach(*name, *address);
  });
}

int gunref(ghandle handle, CUdeviceptr address) {
  return after_work(handle, [&](open_gpu& gpu) { return gpu.memory.detach(address); });
}
