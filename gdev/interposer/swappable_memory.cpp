#include "interposer/swappable_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/endless.hpp"
#include "interposer/driver.hpp"
#include "interposer/driver_scope.hpp"
#include "interposer/gate.hpp"

namespace gdev {

namespace {

constexpr std::size_t granularity = std::size_t{2} << 20;
constexpr std::size_t chunk_bytes = host_pool::segment_bytes;
/** Chunks are released, and others are told of it, when so much has been copied. */
constexpr std::size_t batch_bytes = std::size_t{64} << 20;
/** What a client that may have to leave prepares between two looks at its orders. */
constexpr std::size_t prepared_at_once = std::size_t{512} << 20;

endless<swappable_memory> only;

/** A clock that can be stopped. */
class stopwatch {
 public:
  void stop() noexcept {
    ns_ += static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now() - begin_)
                                          .count());
  }
  void go_on() noexcept { begin_ = std::chrono::steady_clock::now(); }
  [[nodiscard]] std::uint64_t ns() const noexcept { return ns_; }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::uint64_t ns_ = 0;
};

CUmemLocation on(CUdevice device) noexcept {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

int attribute(CUdevice_attribute which, CUdevice device) noexcept {
  int value = 0;
  static_cast<void>(call_driver<CUresult>(id_cuDeviceGetAttribute, &value, which, device));
  return value;
}

bool is_switched_off() noexcept {
  const char* const chosen = std::getenv("GDEV_SWAP");
  return chosen != nullptr && chosen[0] == '0' && chosen[1] == '\0';
}

/** Memory could not be brought back. A program must not go on with wrong bytes. */
[[noreturn]] void end_with_lost_memory() noexcept {
  constexpr std::string_view text =
      "gdev: memory of this process could not be brought back to the GPU; the process ends\n";
  static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
  std::abort();
}

}  // namespace

swappable_memory& swappable() noexcept { return only.get(); }

void forget_swappable() noexcept { only.forget(); }

std::uint64_t swappable_memory::physical(std::uint64_t bytes) noexcept {
  return bytes > ~std::uint64_t{0} - granularity
             ? bytes
             : (bytes + granularity - 1) / granularity * granularity;
}

bool swappable_memory::is_possible() {
  CUdevice device = 0;
  if (!has_joined() || call_driver<CUresult>(id_cuCtxGetDevice, &device) != CUDA_SUCCESS) {
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    if (home_ >= 0) {
      return device == home_;
    }
  }
  if (is_switched_off() ||
      attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) == 0) {
    return false;
  }
  const gpu_facts seen = look_at_gpu();
  if (seen.number == 0 || !use_gpu(seen)) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  home_ = device;
  return true;
}

bool swappable_memory::is_elsewhere(CUdevice device) {
  const std::lock_guard lock(mutex_);
  return home_ >= 0 && device != home_;
}

bool swappable_memory::is_elsewhere() {
  CUdevice device = 0;
  return call_driver<CUresult>(id_cuCtxGetDevice, &device) == CUDA_SUCCESS && is_elsewhere(device);
}

void swappable_memory::note_context(CUcontext made) {
  const std::lock_guard lock(mutex_);
  contexts_.insert(made);
}

void swappable_memory::note_size(std::uint64_t bytes, bool is_more) {
  const std::lock_guard lock(mutex_);
  size_ = is_more ? size_ + bytes : size_ - bytes;
  resident_ = is_more ? resident_ + bytes : resident_ - bytes;
  publish_memory(size_, resident_);
}

std::vector<CUmemAccessDesc> swappable_memory::access_of(CUdevice device) {
  std::vector<CUmemAccessDesc> access{{on(device), CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  const std::lock_guard lock(mutex_);
  for (const CUdevice user : peers_[device]) {
    access.push_back({on(user), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  return access;
}

// --- Allocations ---

/** Makes a chunk at its address, which can be used when it has been given access. */
CUresult swappable_memory::make_chunk(CUdeviceptr address, chunk& made, CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = on(device);
  if (attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device) != 0) {
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;  // for ipc.hpp
  }
  properties.allocFlags.gpuDirectRDMACapable = static_cast<unsigned char>(
      attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device) != 0);
  CUmemGenericAllocationHandle handle = 0;
  CUresult result =
      call_driver<CUresult>(id_cuMemCreate, &handle, made.bytes,
                            static_cast<const CUmemAllocationProp*>(&properties), 0ULL);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = call_driver<CUresult>(id_cuMemMap, address, made.bytes, std::size_t{0}, handle, 0ULL);
  if (result != CUDA_SUCCESS) {
    call_driver<CUresult>(id_cuMemRelease, handle);
    return result;
  }
  made.handle = handle;
  return CUDA_SUCCESS;
}

void swappable_memory::release_chunk(CUdeviceptr address, chunk& gone) {
  if (gone.handle != 0) {
    call_driver<CUresult>(id_cuMemUnmap, address, gone.bytes);
    call_driver<CUresult>(id_cuMemRelease, gone.handle);
    gone.handle = 0;
  }
}

/** Gives back all that a range has, but for what it holds of the account. */
void swappable_memory::unmake(CUdeviceptr address, range& gone) {
  CUdeviceptr at = address;
  for (chunk& one : gone.chunks) {
    release_chunk(at, one);
    if (one.copy != nullptr) {
      pool_.give(one.copy, one.bytes);
    }
    if (one.file != swap_file::none) {
      files_.give(one.file, one.bytes);
    }
    at += one.bytes;
  }
  call_driver<CUresult>(id_cuMemAddressFree, address, gone.size);
}

CUresult swappable_memory::allocate(CUdeviceptr* address, std::size_t bytes,
                                    std::shared_ptr<holding> held) {
  range made;
  made.bytes = bytes;
  made.size = physical(bytes);
  made.held = std::move(held);
  if (address == nullptr || made.size < bytes || made.size % granularity != 0) {
    return address == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (call_driver<CUresult>(id_cuCtxGetCurrent, &made.context) != CUDA_SUCCESS ||
      call_driver<CUresult>(id_cuCtxGetDevice, &made.device) != CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  const driver_scope scope(made.context);
  free_deferred();
  CUdeviceptr base = 0;
  CUresult result = call_driver<CUresult>(id_cuMemAddressReserve, &base, made.size, std::size_t{0},
                                          CUdeviceptr{0}, 0ULL);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  for (std::size_t at = 0; at < made.size && result == CUDA_SUCCESS;) {
    chunk& one = made.chunks.emplace_back();
    one.bytes = std::min(chunk_bytes, made.size - at);
    result = make_chunk(base + at, one, made.device);
    at += one.bytes;
  }
  if (result == CUDA_SUCCESS) {
    const std::vector<CUmemAccessDesc> access = access_of(made.device);
    result =
        call_driver<CUresult>(id_cuMemSetAccess, base, made.size, access.data(), access.size());
  }
  if (result != CUDA_SUCCESS) {
    unmake(base, made);
    return result;
  }
  note_size(made.size, true);
  const std::lock_guard lock(mutex_);
  contexts_.insert(made.context);
  ranges_[base] = std::move(made);
  *address = base;
  return CUDA_SUCCESS;
}

bool swappable_memory::begins_at(CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  return ranges_.contains(address);
}

bool swappable_memory::find(CUdeviceptr address, CUdeviceptr* base, std::size_t* bytes) {
  const std::lock_guard lock(mutex_);
  auto found = ranges_.upper_bound(address);
  if (found == ranges_.begin() || address - (--found)->first >= found->second.bytes) {
    return false;
  }
  if (base != nullptr) {
    *base = found->first;
  }
  if (bytes != nullptr) {
    *bytes = found->second.bytes;
  }
  return true;
}

void swappable_memory::free_deferred() {
  std::map<CUdeviceptr, range> freed;
  if (has_captures()) {
    return;  // waiting for a context would end them
  }
  {
    const std::lock_guard lock(mutex_);
    freed = std::exchange(deferred_, {});
  }
  for (auto& [address, one] : freed) {
    const driver_scope scope(one.context);
    call_driver<CUresult>(id_cuCtxSynchronize);
    unmake(address, one);
    note_size(one.is_wired ? 0 : one.size, false);
  }
}

CUresult swappable_memory::free(CUdeviceptr address) {
  {
    const std::lock_guard lock(mutex_);
    deferred_.insert(ranges_.extract(address));
  }
  free_deferred();
  return CUDA_SUCCESS;
}

void swappable_memory::free_all(CUcontext context) {
  std::map<CUdeviceptr, range> freed;
  {
    const std::lock_guard lock(mutex_);
    for (std::map<CUdeviceptr, range>* const from : {&ranges_, &deferred_}) {
      for (auto one = from->begin(); one != from->end();) {
        const auto next = std::next(one);
        if (one->second.context == context) {
          freed.insert(from->extract(one));
        }
        one = next;
      }
    }
    contexts_.erase(context);
    streams_.erase(context);
  }
  pool_.forget_context();
  if (freed.empty()) {
    return;
  }
  const driver_scope scope(context);
  call_driver<CUresult>(id_cuCtxSynchronize);
  for (auto& [address, one] : freed) {
    unmake(address, one);
    note_size(one.is_wired ? 0 : one.size, false);
  }
}

CUresult swappable_memory::give_access(CUdevice owner, CUdevice user) {
  std::vector<std::pair<CUdeviceptr, std::size_t>> changed;
  {
    const std::lock_guard lock(mutex_);
    if (!peers_[owner].insert(user).second) {
      return CUDA_SUCCESS;
    }
    for (const auto& [address, one] : ranges_) {
      if (one.device == owner) {
        changed.emplace_back(address, one.size);
      }
    }
  }
  const std::vector<CUmemAccessDesc> access = access_of(owner);
  CUresult result = CUDA_SUCCESS;
  for (const auto& [address, size] : changed) {
    result = call_driver<CUresult>(id_cuMemSetAccess, address, size, access.data(), access.size());
  }
  return result;
}

// --- Moves: the gate is closed, and no submission is held ---

std::uint64_t swappable_memory::writes() const {
  return count_submissions(work::launch) + count_submissions(work::fill) +
         count_submissions(work::to_device);
}

std::vector<swappable_memory::moving> swappable_memory::all_chunks() {
  std::vector<moving> all;
  for (auto& [address, one] : ranges_) {
    CUdeviceptr at = address;
    for (chunk& part : one.chunks) {
      if (!one.is_wired) {
        all.push_back({&part, at, &one, false});
      }
      at += part.bytes;
    }
  }
  return all;
}

CUstream swappable_memory::stream_of(CUcontext context) {
  CUstream& found = streams_[context];
  if (found == nullptr) {
    call_driver<CUresult>(id_cuStreamCreate, &found, unsigned{CU_STREAM_NON_BLOCKING});
  }
  return found;
}

bool swappable_memory::prepare_host() {
  std::size_t needed = 0;
  CUcontext context = nullptr;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, one] : ranges_) {
      context = one.context;
      if (one.is_wired) {
        continue;
      }
      for (const chunk& part : one.chunks) {
        needed += part.copy == nullptr && part.file == swap_file::none ? part.bytes : 0;
      }
    }
  }
  if (context == nullptr) {
    return false;
  }
  // A submission: the context must not end meanwhile.
  const submission in_turn(work::other);
  const driver_scope scope(context);
  return pool_.prepare(needed, prepared_at_once);
}

void swappable_memory::report_gpu() {
  if (const auto first = contexts_.begin(); first != contexts_.end()) {
    const driver_scope scope(*first);
    if (const gpu_facts seen = look_at_gpu(); seen.number != 0) {
      static_cast<void>(use_gpu(seen));
    }
  }
}

bool swappable_memory::drain(std::chrono::steady_clock::time_point deadline) {
  for (const CUcontext context : contexts_) {
    const driver_scope scope(context);
    CUevent done = nullptr;
    if (call_driver<CUresult>(id_cuEventCreate, &done, unsigned{CU_EVENT_DISABLE_TIMING}) !=
        CUDA_SUCCESS) {
      continue;  // the context is broken: nothing runs in it any more
    }
    CUresult result = call_driver<CUresult>(id_cuCtxRecordEvent, context, done);
    if (result != CUDA_SUCCESS) {
      // A driver before 12.5. This waits for as long as the work takes.
      call_driver<CUresult>(id_cuCtxSynchronize);
    } else {
      result = call_driver<CUresult>(id_cuEventQuery, done);
      for (int tries = 0; result == CUDA_ERROR_NOT_READY; ++tries) {
        if (std::chrono::steady_clock::now() >= deadline) {
          break;
        }
        usleep(tries < 100 ? 20 : 500);
        result = call_driver<CUresult>(id_cuEventQuery, done);
      }
    }
    call_driver<CUresult>(id_cuEventDestroy_v2, done);
    if (result == CUDA_ERROR_NOT_READY) {
      return false;
    }
  }
  return true;
}

/** Copies what has a place in the host's memory, and releases everything, batch by batch. */
bool swappable_memory::copy_out(std::vector<moving>& all, std::uint64_t& copied,
                                const std::function<void(std::uint64_t)>& progress) {
  struct batch {
    std::size_t end = 0;
    CUevent done = nullptr;
    CUcontext context = nullptr;
  };
  std::vector<batch> batches;
  bool is_right = true;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [part, address, of, is_kept] = all[i];
    const driver_scope scope(of->context);
    if (part->handle != 0 && part->copy != nullptr && !is_kept) {
      is_right &=
          call_driver<CUresult>(id_cuMemcpyDtoHAsync_v2, static_cast<void*>(part->copy), address,
                                part->bytes, stream_of(of->context)) == CUDA_SUCCESS;
      copied += part->bytes;
    }
    bytes += part->bytes;
    const bool is_last = i + 1 == all.size() || all[i + 1].of->context != of->context;
    if (bytes >= batch_bytes || is_last) {
      batch& made = batches.emplace_back(batch{i + 1, nullptr, of->context});
      call_driver<CUresult>(id_cuEventCreate, &made.done, unsigned{CU_EVENT_DISABLE_TIMING});
      call_driver<CUresult>(id_cuEventRecord, made.done, stream_of(of->context));
      bytes = 0;
    }
  }
  std::size_t begin = 0;
  for (const batch& one : batches) {
    const driver_scope scope(one.context);
    is_right &= call_driver<CUresult>(id_cuEventSynchronize, one.done) == CUDA_SUCCESS;
    call_driver<CUresult>(id_cuEventDestroy_v2, one.done);
    for (; begin < one.end; ++begin) {
      resident_ -= all[begin].which->handle != 0 ? all[begin].which->bytes : 0;
      release_chunk(all[begin].address, *all[begin].which);
    }
    publish_memory(size_, resident_);
    progress(resident_);
  }
  return is_right;
}

/** Finds places on the host for all chunks that have none. Returns false, and gives them back. */
bool swappable_memory::find_places(std::vector<moving>& all) {
  std::size_t needed = 0;
  const auto has_place = [](const chunk& one) {
    return one.copy != nullptr || one.file != swap_file::none;
  };
  for (const moving& one : all) {
    needed += one.which->handle != 0 && !has_place(*one.which) ? one.which->bytes : 0;
  }
  if (needed == 0) {
    return true;
  }
  const driver_scope scope(all.front().of->context);
  pool_.prepare(needed, needed);
  std::vector<chunk*> placed;
  for (const moving& one : all) {
    chunk& part = *one.which;
    if (part.handle == 0 || has_place(part)) {
      continue;
    }
    part.copy = pool_.take(part.bytes);
    if (part.copy == nullptr) {
      part.file = files_.take(part.bytes);
    }
    placed.push_back(&part);
    if (!has_place(part)) {
      for (chunk* const given : placed) {
        if (given->copy != nullptr) {
          pool_.give(std::exchange(given->copy, nullptr), given->bytes);
        } else if (given->file != swap_file::none) {
          files_.give(std::exchange(given->file, swap_file::none), given->bytes);
        }
      }
      return false;
    }
  }
  return true;
}

/** Copies what has its place in the file. Nothing is released before all is written. */
int swappable_memory::write_files(const std::vector<moving>& all, std::uint64_t& copied) {
  for (const auto& [part, address, of, is_kept] : all) {
    if (part->handle == 0 || part->file == swap_file::none || is_kept) {
      continue;
    }
    const driver_scope scope(of->context);
    staging_ = staging_ == nullptr ? host_pool::make_segment() : staging_;
    if (staging_ == nullptr) {
      return ENOMEM;
    }
    if (call_driver<CUresult>(id_cuMemcpyDtoHAsync_v2, static_cast<void*>(staging_), address,
                              part->bytes, stream_of(of->context)) != CUDA_SUCCESS ||
        call_driver<CUresult>(id_cuStreamSynchronize, stream_of(of->context)) != CUDA_SUCCESS) {
      is_broken_ = true;
      continue;
    }
    if (files_.write(part->file, staging_, part->bytes) != 0) {
      return EIO;
    }
    copied += part->bytes;
  }
  return 0;
}

/** Copies a chunk from the file to the GPU. Returns false if that fails. */
bool swappable_memory::read_file(const moving& one) {
  const CUstream stream = stream_of(one.of->context);
  return files_.read(one.which->file, staging_, one.which->bytes) == 0 &&
         call_driver<CUresult>(id_cuMemcpyHtoDAsync_v2, one.address,
                               static_cast<const void*>(staging_), one.which->bytes,
                               stream) == CUDA_SUCCESS &&
         call_driver<CUresult>(id_cuStreamSynchronize, stream) == CUDA_SUCCESS;
}

move_result swappable_memory::move_out(const std::function<void(std::uint64_t)>& progress) {
  std::vector<moving> all = all_chunks();
  const bool was_written = writes() != writes_then_;
  for (moving& one : all) {
    one.is_kept =
        !was_written && (one.which->copy != nullptr || one.which->file != swap_file::none);
  }
  if (!find_places(all)) {
    return {ENOMEM, 0, 0};
  }
  move_result result;
  stopwatch watch;
  result.error = write_files(all, result.bytes);
  if (result.error == 0) {
    is_broken_ |= !copy_out(all, result.bytes, progress);
  }
  watch.stop();
  result.ns = watch.ns();
  return result;
}

move_result swappable_memory::move_in(const std::function<bool(std::uint64_t)>& may_have,
                                      const std::function<bool()>& is_full) {
  move_result result;
  stopwatch watch;
  std::set<CUcontext> used;
  bool is_right = true;
  for (const moving& one : all_chunks()) {
    const auto& [part, address, of, is_kept] = one;
    if (part->handle != 0) {
      continue;
    }
    const driver_scope scope(of->context);
    CUresult made = CUDA_ERROR_OUT_OF_MEMORY;
    while (result.error == 0 && made == CUDA_ERROR_OUT_OF_MEMORY) {
      watch.stop();
      result.error = may_have(resident_ + part->bytes) ? 0 : ECANCELED;
      watch.go_on();
      if (result.error == 0) {
        made = make_chunk(address, *part, of->device);
      }
      if (result.error == 0 && made == CUDA_ERROR_OUT_OF_MEMORY) {
        watch.stop();
        result.error = is_full() ? 0 : ECANCELED;
        watch.go_on();
      }
    }
    if (result.error != 0) {
      break;
    }
    const std::vector<CUmemAccessDesc> access = access_of(of->device);
    if (made != CUDA_SUCCESS ||
        call_driver<CUresult>(id_cuMemSetAccess, address, part->bytes, access.data(),
                              access.size()) != CUDA_SUCCESS) {
      is_right = false;
      continue;
    }
    resident_ += part->bytes;
    publish_memory(size_, resident_);
    if (part->copy != nullptr) {
      is_right &= call_driver<CUresult>(id_cuMemcpyHtoDAsync_v2, address,
                                        static_cast<const void*>(part->copy), part->bytes,
                                        stream_of(of->context)) == CUDA_SUCCESS;
      used.insert(of->context);
    } else if (part->file != swap_file::none) {
      is_right &= read_file(one);
    }
    result.bytes += part->bytes;
  }
  for (const CUcontext context : used) {
    const driver_scope scope(context);
    is_right &= call_driver<CUresult>(id_cuStreamSynchronize, stream_of(context)) == CUDA_SUCCESS;
  }
  if (!is_right && !is_broken_) {
    end_with_lost_memory();
  }
  watch.stop();
  result.ns = watch.ns();
  writes_then_ = writes();
  return result;
}

}  // namespace gdev
