#include "interposer/memory_calls.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "interposer/captures.hpp"
#include "interposer/client.hpp"
#include "interposer/driver.hpp"
#include "interposer/gate.hpp"
#include "interposer/handles.hpp"
#include "interposer/ipc.hpp"
#include "interposer/ledger.hpp"
#include "interposer/pools.hpp"
#include "interposer/swappable_memory.hpp"
#include "interposer/with_account.hpp"
#include "interposer/wrappers.hpp"

namespace gdev {

namespace {

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) noexcept {
  return bytes > ~std::uint64_t{0} - unit ? bytes : (bytes + unit - 1) / unit * unit;
}

/** Returns the product, or the largest number if it does not fit. */
std::uint64_t times(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? ~std::uint64_t{0} : product;
}

/** Returns what the driver takes for an allocation: it places small ones together. */
std::uint64_t physical(std::uint64_t bytes) noexcept {
  constexpr std::uint64_t small = std::uint64_t{1} << 20;
  return bytes <= small ? round_up(bytes, 512) : swappable_memory::physical(bytes);
}

CUcontext current_context() noexcept {
  CUcontext found = nullptr;
  static_cast<void>(call_driver<CUresult>(id_cuCtxGetCurrent, &found));
  return found;
}

/** Allocates what is freed with its context; key() is the new address then. */
template <typename Key, typename Call>
CUresult allocate(ledger& where, std::uint64_t bytes, Key&& key, Call&& call) {
  return with_account(
      bytes, swappable().place(), [&](const std::shared_ptr<holding>& /*held*/) { return call(); },
      [&](std::shared_ptr<holding> held) {
        where.add(key(), {std::move(held), current_context()});
      });
}

/** Calls the driver to free what has this key. */
template <typename Call>
CUresult free_entry(ledger& where, std::uint64_t key, Call&& call) {
  const submission in_turn(work::other);
  entry freed = where.take(key);
  const CUresult result = call();
  if (result != CUDA_SUCCESS && freed.held != nullptr) {
    where.add(key, std::move(freed));
  }
  return result;
}

// --- Allocations ---

/** Allocates memory that can be swapped. */
CUresult allocate_swappable(CUdeviceptr* address, std::size_t bytes) {
  return with_swappable_account(swappable_memory::physical(bytes),
                                [&](const std::shared_ptr<holding>& held) {
                                  return swappable().allocate(address, bytes, held);
                                });
}

CUresult mem_alloc(CUdeviceptr* address, std::size_t bytes) noexcept {
  if (bytes >= swappable_memory::smallest && swappable().begin()) {
    return allocate_swappable(address, bytes);
  }
  return allocate(
      allocations(), physical(bytes), [&] { return *address; },
      [&] { return call_driver<CUresult>(id_cuMemAlloc_v2, address, bytes); });
}

CUresult mem_alloc_pitch(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                         std::size_t height, unsigned element) noexcept {
  // The driver rounds the width up to a multiple of 512.
  const std::uint64_t bytes = times(round_up(width, 512), height);
  if (bytes >= swappable_memory::smallest && pitch != nullptr && width != 0 &&
      (element == 4 || element == 8 || element == 16) && swappable().begin()) {
    *pitch = round_up(width, 512);
    return allocate_swappable(address, bytes);
  }
  return allocate(
      allocations(), physical(bytes), [&] { return *address; },
      [&] {
        return call_driver<CUresult>(id_cuMemAllocPitch_v2, address, pitch, width, height, element);
      });
}

CUresult mem_alloc_managed(CUdeviceptr* address, std::size_t bytes, unsigned flags) noexcept {
  return allocate(
      allocations(), physical(bytes), [&] { return *address; },
      [&] { return call_driver<CUresult>(id_cuMemAllocManaged, address, bytes, flags); });
}

/** Tells whether a call becomes a node of a graph. */
template <function_id IsCapturing>
bool is_captured(CUstream stream) noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return has_captures() && call_driver<CUresult>(IsCapturing, stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

template <function_id Id, function_id IsCapturing>
CUresult mem_alloc_async(CUdeviceptr* address, std::size_t bytes, CUstream stream) noexcept {
  if (is_captured<IsCapturing>(stream)) {
    return call_driver<CUresult>(Id, address, bytes, stream);  // its launch takes the memory
  }
  if (const auto served = pools().allocate(address, bytes, nullptr, named<IsCapturing>(stream))) {
    return *served;
  }
  return allocate(
      allocations(), physical(bytes), [&] { return *address; },
      [&] { return call_driver<CUresult>(Id, address, bytes, stream); });
}

template <function_id Id, function_id IsCapturing>
CUresult mem_alloc_from_pool(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                             CUstream stream) noexcept {
  if (is_captured<IsCapturing>(stream)) {
    return call_driver<CUresult>(Id, address, bytes, pool, stream);
  }
  if (pool != nullptr) {
    const auto served = pools().allocate(address, bytes, pool, named<IsCapturing>(stream));
    if (served) {
      return *served;
    }
  }
  return allocate(
      allocations(), physical(bytes), [&] { return *address; },
      [&] { return call_driver<CUresult>(Id, address, bytes, pool, stream); });
}

CUresult mem_free(CUdeviceptr address) noexcept {
  if (swappable().begins_at(address)) {
    const memory_pass in_place;  // its work has ended, wherever it is
    return swappable().free(address);
  }
  if (const auto served = pools().free_now(address)) {
    return *served;
  }
  return free_entry(allocations(), address,
                    [&] { return call_driver<CUresult>(id_cuMemFree_v2, address); });
}

template <function_id Id, function_id IsCapturing>
CUresult mem_free_async(CUdeviceptr address, CUstream stream) noexcept {
  if (is_captured<IsCapturing>(stream)) {
    return call_driver<CUresult>(Id, address, stream);  // frees what the graph has allocated
  }
  if (const auto served = pools().free_in(address, named<IsCapturing>(stream))) {
    return *served;
  }
  if (swappable().begins_at(address)) {
    const submission in_turn(work::other);
    return swappable().free(address);  // waits for the stream too
  }
  return free_entry(allocations(), address,
                    [&] { return call_driver<CUresult>(Id, address, stream); });
}

// --- Arrays ---

std::uint64_t bytes_of_format(CUarray_format format) noexcept {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    default: return 4;  // none has more
  }
}

std::uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR* wanted) noexcept {
  if (wanted == nullptr) {
    return 0;
  }
  const std::uint64_t element = times(wanted->NumChannels, bytes_of_format(wanted->Format));
  const std::uint64_t rows =
      times(std::max<std::uint64_t>(wanted->Height, 1), std::max<std::uint64_t>(wanted->Depth, 1));
  return physical(times(times(wanted->Width, rows), element));
}

std::uint64_t bytes_of(const CUDA_ARRAY_DESCRIPTOR* wanted) noexcept {
  if (wanted == nullptr) {
    return 0;
  }
  const CUDA_ARRAY3D_DESCRIPTOR flat{wanted->Width,  wanted->Height,      0,
                                     wanted->Format, wanted->NumChannels, 0};
  return bytes_of(&flat);
}

std::uint64_t key_of(const void* handle) noexcept {
  return reinterpret_cast<std::uint64_t>(handle);
}

CUresult array_create(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* wanted) noexcept {
  return allocate(
      arrays(), bytes_of(wanted), [&] { return key_of(*array); },
      [&] { return call_driver<CUresult>(id_cuArrayCreate_v2, array, wanted); });
}

CUresult array_3d_create(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* wanted) noexcept {
  return allocate(
      arrays(), bytes_of(wanted), [&] { return key_of(*array); },
      [&] { return call_driver<CUresult>(id_cuArray3DCreate_v2, array, wanted); });
}

CUresult mipmapped_array_create(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* wanted,
                                unsigned levels) noexcept {
  const std::uint64_t first = bytes_of(wanted);
  // Each level has half of the rows and columns of the one before it. All have at most twice the
  // bytes of the first: an array of one row takes so much.
  const std::uint64_t bytes = levels <= 1 || first > ~std::uint64_t{0} / 2 ? first : 2 * first;
  return allocate(
      arrays(), bytes, [&] { return key_of(*array); },
      [&] { return call_driver<CUresult>(id_cuMipmappedArrayCreate, array, wanted, levels); });
}

CUresult array_destroy(CUarray array) noexcept {
  return free_entry(arrays(), key_of(array),
                    [&] { return call_driver<CUresult>(id_cuArrayDestroy, array); });
}

CUresult mipmapped_array_destroy(CUmipmappedArray array) noexcept {
  return free_entry(arrays(), key_of(array),
                    [&] { return call_driver<CUresult>(id_cuMipmappedArrayDestroy, array); });
}

// --- Reports: a program sees the virtual GPU ---

CUresult mem_get_info(std::size_t* free, std::size_t* total) noexcept {
  const CUresult result = call_driver<CUresult>(id_cuMemGetInfo_v2, free, total);
  const bool has_turns = result == CUDA_SUCCESS && swappable().could_begin();
  memory_facts facts;
  if (result == CUDA_SUCCESS && ask_memory(facts, has_turns ? look_at_gpu() : gpu_facts{})) {
    *total = std::min<std::size_t>(*total, facts.limit);
    // With turns it is of no account what other programs have on the GPU now.
    const std::uint64_t on_gpu =
        has_turns && facts.most != 0 ? facts.most - std::min(facts.most, facts.own) : *free;
    *free = std::min({on_gpu, facts.limit - std::min(facts.limit, facts.used), *total});
  }
  return result;
}

CUresult get_address_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) noexcept {
  std::optional<submission> in_turn;
  if (handles().has_mapped(address)) {
    in_turn.emplace(work::other);  // while it is off the GPU, the driver finds nothing there
  }
  return swappable().find(address, base, bytes) || pools().find(address, base, bytes) ||
                 find_imported(address, base, bytes)
             ? CUDA_SUCCESS
             : call_driver<CUresult>(id_cuMemGetAddressRange_v2, base, bytes, address);
}

CUresult device_total_mem(std::size_t* bytes, CUdevice device) noexcept {
  const CUresult result = call_driver<CUresult>(id_cuDeviceTotalMem_v2, bytes, device);
  memory_facts facts;
  if (result == CUDA_SUCCESS && ask_memory(facts)) {
    *bytes = std::min<std::size_t>(*bytes, facts.limit);
  }
  return result;
}

CUresult init(unsigned flags) noexcept {
  if (join_vgpu() != 0) {
    return CUDA_ERROR_SYSTEM_NOT_READY;  // it has said why
  }
  return call_driver<CUresult>(id_cuInit, flags);
}

}  // namespace

void* memory_wrapper(function_id id) noexcept {
  switch (id) {
    case id_cuInit: return address_of(&init);
    case id_cuMemAlloc_v2: return address_of(&mem_alloc);
    case id_cuMemAllocPitch_v2: return address_of(&mem_alloc_pitch);
    case id_cuMemAllocManaged: return address_of(&mem_alloc_managed);
    case id_cuMemAllocAsync:
      return address_of(&mem_alloc_async<id_cuMemAllocAsync, id_cuStreamIsCapturing>);
    case id_cuMemAllocAsync_ptsz:
      return address_of(&mem_alloc_async<id_cuMemAllocAsync_ptsz, id_cuStreamIsCapturing_ptsz>);
    case id_cuMemAllocFromPoolAsync:
      return address_of(&mem_alloc_from_pool<id_cuMemAllocFromPoolAsync, id_cuStreamIsCapturing>);
    case id_cuMemAllocFromPoolAsync_ptsz:
      return address_of(
          &mem_alloc_from_pool<id_cuMemAllocFromPoolAsync_ptsz, id_cuStreamIsCapturing_ptsz>);
    case id_cuMemFree_v2: return address_of(&mem_free);
    case id_cuMemFreeAsync:
      return address_of(&mem_free_async<id_cuMemFreeAsync, id_cuStreamIsCapturing>);
    case id_cuMemFreeAsync_ptsz:
      return address_of(&mem_free_async<id_cuMemFreeAsync_ptsz, id_cuStreamIsCapturing_ptsz>);
    case id_cuArrayCreate_v2: return address_of(&array_create);
    case id_cuArray3DCreate_v2: return address_of(&array_3d_create);
    case id_cuMipmappedArrayCreate: return address_of(&mipmapped_array_create);
    case id_cuArrayDestroy: return address_of(&array_destroy);
    case id_cuMipmappedArrayDestroy: return address_of(&mipmapped_array_destroy);
    case id_cuMemGetAddressRange_v2: return address_of(&get_address_range);
    case id_cuMemGetInfo_v2: return address_of(&mem_get_info);
    case id_cuDeviceTotalMem_v2: return address_of(&device_total_mem);
    default: return nullptr;
  }
}

}  // namespace gdev
