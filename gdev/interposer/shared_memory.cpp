#define GDEV_SHARED_MEMORY_EXPORTED
#include "interposer/shared_memory.hpp"

#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "base/crash_point.hpp"
#include "base/endless.hpp"
#include "gdev/shared_memory.h"
#include "interposer/client.hpp"
#include "interposer/driver.hpp"
#include "interposer/driver_scope.hpp"
#include "interposer/gate.hpp"
#include "interposer/gpu_facts.hpp"
#include "interposer/with_account.hpp"

namespace gdev {

namespace {

/** Descriptors are how chunks leave a process. */
constexpr CUmemAllocationHandleType by_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

struct attachment {
  std::uint64_t id = 0;
  std::size_t bytes = 0;
  CUcontext of = nullptr;
  bool may_write = false;
};

using attachments = std::map<CUdeviceptr, attachment>;

/** No lock is held across a call of the driver, or while the daemon is asked. */
struct attachment_table {
  std::mutex mutex;
  attachments all;
};

endless<attachment_table> the_table;

attachment_table& table() noexcept { return the_table.get(); }

int errno_of(CUresult result) noexcept {
  switch (result) {
    case CUDA_SUCCESS: return 0;
    case CUDA_ERROR_OUT_OF_MEMORY: return ENOMEM;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT: return ENODEV;
    case CUDA_ERROR_NOT_SUPPORTED: return ENOTSUP;
    default: return EIO;
  }
}

struct place {
  CUcontext context = nullptr;
  CUdevice device = 0;
};

/** Returns 0; ENODEV: there is no current context. */
int find_place(place& found) noexcept {
  CUresult result = call_driver<CUresult>(id_cuCtxGetCurrent, &found.context);
  if (result == CUDA_SUCCESS) {
    result = call_driver<CUresult>(id_cuCtxGetDevice, &found.device);
  }
  return result != CUDA_SUCCESS || found.context == nullptr ? ENODEV : 0;
}

void unmap(CUdeviceptr address, std::size_t bytes) noexcept {
  static_cast<void>(call_driver<CUresult>(id_cuMemUnmap, address, bytes));
  static_cast<void>(call_driver<CUresult>(id_cuMemAddressFree, address, bytes));
}

/** Maps a chunk at an address that it stores. */
CUresult map(CUmemGenericAllocationHandle chunk, std::size_t bytes, CUdevice device, bool may_write,
             CUdeviceptr& address) noexcept {
  CUresult result = call_driver<CUresult>(id_cuMemAddressReserve, &address, bytes, std::size_t{0},
                                          CUdeviceptr{0}, 0ULL);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = call_driver<CUresult>(id_cuMemMap, address, bytes, std::size_t{0}, chunk, 0ULL);
  if (result != CUDA_SUCCESS) {
    static_cast<void>(call_driver<CUresult>(id_cuMemAddressFree, address, bytes));
    return result;
  }
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = may_write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  const CUmemAccessDesc* const only = &access;
  result = call_driver<CUresult>(id_cuMemSetAccess, address, bytes, only, std::size_t{1});
  if (result != CUDA_SUCCESS) {
    unmap(address, bytes);
  }
  return result;
}

void release(CUmemGenericAllocationHandle chunk) noexcept {
  static_cast<void>(call_driver<CUresult>(id_cuMemRelease, chunk));
}

/** Sets a chunk to zero, in a stream of its own: it waits for no work of the program. */
CUresult clear(CUmemGenericAllocationHandle chunk, std::size_t bytes, CUdevice device) noexcept {
  CUstream stream = nullptr;
  CUresult result = call_driver<CUresult>(id_cuStreamCreate, &stream,
                                          static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  if (result != CUDA_SUCCESS) {
    return result;
  }
  CUdeviceptr address = 0;
  result = map(chunk, bytes, device, true, address);
  if (result == CUDA_SUCCESS) {
    result = call_driver<CUresult>(id_cuMemsetD8Async, address, static_cast<unsigned char>(0),
                                   bytes, stream);
    if (result == CUDA_SUCCESS) {
      result = call_driver<CUresult>(id_cuStreamSynchronize, stream);
    }
    unmap(address, bytes);
  }
  static_cast<void>(call_driver<CUresult>(id_cuStreamDestroy_v2, stream));
  return result;
}

CUmemAllocationProp properties_on(CUdevice device) noexcept {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = by_descriptor;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

/** Makes a chunk that lives as long as its descriptor. Its bytes must be in use. */
CUresult make_chunk(std::size_t bytes, CUdevice device, file_descriptor& made) noexcept {
  const CUmemAllocationProp properties = properties_on(device);
  const CUmemAllocationProp* const wanted = &properties;
  CUmemGenericAllocationHandle chunk = 0;
  CUresult result = call_driver<CUresult>(id_cuMemCreate, &chunk, bytes, wanted, 0ULL);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  crash_point("segment_made");
  result = clear(chunk, bytes, device);
  if (result == CUDA_SUCCESS) {
    int file = -1;
    void* const place = &file;
    result =
        call_driver<CUresult>(id_cuMemExportToShareableHandle, place, chunk, by_descriptor, 0ULL);
    made = file_descriptor(file);
    crash_point("segment_exported");
  }
  release(chunk);
  return result;
}

/** Makes a segment. Returns its id, or that of a segment that another has made meanwhile. */
int make_segment(message asked) noexcept {
  place here;
  if (const int error = find_place(here); error != 0) {
    return -error;
  }
  const driver_scope scope(here.context);
  const CUmemAllocationProp properties = properties_on(here.device);
  const CUmemAllocationProp* const wanted = &properties;
  std::size_t unit = 0;
  const CUresult known = call_driver<CUresult>(id_cuMemGetAllocationGranularity, &unit, wanted,
                                               CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (known != CUDA_SUCCESS) {
    return -errno_of(known);
  }
  const std::uint64_t bytes = asked.numbers[1];
  if (bytes == 0) {
    return -EINVAL;
  }
  if (bytes > ~std::uint64_t{0} - unit) {
    return -ENOMEM;
  }
  const std::uint64_t physical = (bytes + unit - 1) / unit * unit;
  file_descriptor chunk;
  int error = 0;
  const auto attempt = [&] {
    if (error = use_memory(physical); error != 0) {
      return false;
    }
    const submission in_turn(work::other);
    error = errno_of(make_chunk(physical, here.device, chunk));
    if (error != 0) {
      free_memory(physical);
    }
    return error == ENOMEM;
  };
  refused_chunks refusals;
  while_refused(attempt, [&] { return refusals.look(physical); });
  if (error != 0) {
    return -error;
  }
  asked.kind = message_kind::key_make;
  asked.numbers[3] = physical;
  file_descriptor none;
  error = ask_for_segment(asked, chunk.number(), none);
  crash_point("segment_sent");
  if (error != 0 || asked.numbers[1] == 0) {
    chunk = file_descriptor();
    free_memory(physical);
  }
  return error != 0 ? -error : static_cast<int>(asked.numbers[0]);
}

/** Asks the daemon, without descriptors. Returns 0 or a negative errno. */
int ask(message& said) noexcept {
  file_descriptor none;
  return -ask_for_segment(said, -1, none);
}

message about(message_kind kind, std::uint64_t id, std::uint64_t second = 0) noexcept {
  message made;
  made.kind = kind;
  made.numbers[0] = id;
  made.numbers[1] = second;
  return made;
}

/** Undoes an attachment that is in no table any more. */
void undo(CUdeviceptr address, const attachment& one) noexcept {
  {
    const submission in_turn(work::other);
    const driver_scope scope(one.of);
    static_cast<void>(call_driver<CUresult>(id_cuCtxSynchronize));
    unmap(address, one.bytes);
  }
  crash_point("segment_unmapped");
  // A daemon that does not know of it has lost it, with all segments.
  message said = about(message_kind::key_detach, one.id);
  static_cast<void>(ask(said));
  crash_point("segment_detached");
}

std::uint64_t rights_for(bool may_write) noexcept {
  return may_write ? key_rights::write : key_rights::read;
}

int attach(int id, CUdeviceptr& address, bool may_write) noexcept {
  message said =
      about(message_kind::key_attach, static_cast<std::uint64_t>(id), rights_for(may_write));
  file_descriptor file;
  if (const int error = ask_for_segment(said, -1, file); error != 0) {
    return -error;
  }
  crash_point("segment_received");
  attachment made{static_cast<std::uint64_t>(id), said.numbers[1], nullptr, may_write};
  place here;
  int error = find_place(here);
  if (error == 0) {
    made.of = here.context;
    const submission in_turn(work::other);
    const driver_scope scope(here.context);
    CUmemGenericAllocationHandle chunk = 0;
    void* const number = reinterpret_cast<void*>(static_cast<std::intptr_t>(file.number()));
    CUresult result =
        call_driver<CUresult>(id_cuMemImportFromShareableHandle, &chunk, number, by_descriptor);
    if (result == CUDA_SUCCESS) {
      crash_point("segment_imported");
      result = map(chunk, made.bytes, here.device, may_write, address);
      release(chunk);
    }
    error = errno_of(result);
  }
  if (error != 0) {
    message undone = about(message_kind::key_detach, made.id);
    static_cast<void>(ask(undone));
    return -error;
  }
  const std::lock_guard lock(table().mutex);
  table().all[address] = made;
  crash_point("segment_attached");
  return 0;
}

void describe(const message& said, gshm_ds& into) noexcept {
  const auto low = [&](std::size_t i) { return static_cast<std::uint32_t>(said.numbers[i]); };
  const auto high = [&](std::size_t i) {
    return static_cast<std::uint32_t>(said.numbers[i] >> 32);
  };
  into = {};
  into.key = static_cast<std::int64_t>(said.numbers[0]);
  into.bytes = said.numbers[1];
  into.uid = low(2);
  into.gid = high(2);
  into.creator_uid = low(3);
  into.creator_gid = high(3);
  into.mode = low(4);
  into.attachments = high(4);
  into.creator_pid = static_cast<pid_t>(low(5));
  into.last_pid = static_cast<pid_t>(high(5));
  static_assert(sizeof into.vgpu == sizeof said.name);
  name_of(said).copy(into.vgpu, sizeof into.vgpu - 1);
}

}  // namespace

void detach_all(CUcontext context) noexcept {
  attachments taken;
  {
    const std::lock_guard lock(table().mutex);
    attachments& all = table().all;
    for (auto one = all.begin(); one != all.end();) {
      const auto next = std::next(one);
      if (one->second.of == context) {
        taken.insert(all.extract(one));
      }
      one = next;
    }
  }
  for (const auto& [address, one] : taken) {
    undo(address, one);
  }
}

std::uint64_t attached_bytes() noexcept {
  const std::lock_guard lock(table().mutex);
  std::uint64_t all = 0;
  for (const auto& [address, one] : table().all) {
    all += one.bytes;
  }
  return all;
}

void attach_again(int (*ask)(message& asked) noexcept) noexcept {
  attachments all;
  {
    const std::lock_guard lock(table().mutex);
    all = table().all;
  }
  for (const auto& [address, one] : all) {
    message said =
        about(message_kind::key_attach, one.id, rights_for(one.may_write) | key_rights::again);
    static_cast<void>(ask(said));  // an error: that daemon has no such segment
  }
}

void forget_attachments() noexcept { the_table.forget(); }

}  // namespace gdev

extern "C" {

int gshmget(std::int64_t key, std::size_t bytes, int flags) {
  gdev::message asked =
      gdev::about(gdev::message_kind::key_get, static_cast<std::uint64_t>(key), bytes);
  asked.numbers[2] = static_cast<std::uint64_t>(flags);
  gdev::message said = asked;
  const int error = gdev::ask(said);
  if (error == 0) {
    return static_cast<int>(said.numbers[0]);
  }
  const bool may_make = (flags & IPC_CREAT) != 0 || key == IPC_PRIVATE;
  return error == -ENOENT && may_make ? gdev::make_segment(asked) : error;
}

int gshmat(int id, CUdeviceptr* address, int flags) {
  if (address == nullptr || id < 0 || (flags & ~SHM_RDONLY) != 0) {
    return -EINVAL;
  }
  return gdev::attach(id, *address, flags == 0);
}

int gshmdt(CUdeviceptr address) {
  gdev::attachments taken;
  {
    const std::lock_guard lock(gdev::table().mutex);
    const auto found = gdev::table().all.find(address);
    if (found == gdev::table().all.end()) {
      return -EINVAL;
    }
    taken.insert(gdev::table().all.extract(found));
  }
  gdev::undo(address, taken.begin()->second);
  return 0;
}

int gshmctl(int id, int command, gshm_ds* buffer) {
  using gdev::message_kind;
  if (id < 0 || (buffer == nullptr && command != IPC_RMID)) {
    return -EINVAL;
  }
  const auto number = static_cast<std::uint64_t>(id);
  if (command == IPC_STAT) {
    gdev::message said = gdev::about(message_kind::key_status, number);
    const int error = gdev::ask(said);
    if (error == 0) {
      gdev::describe(said, *buffer);
    }
    return error;
  }
  if (command == IPC_SET) {
    gdev::message said = gdev::about(message_kind::key_set, number, buffer->uid);
    said.numbers[2] = buffer->gid;
    said.numbers[3] = buffer->mode & 0777;
    return gdev::ask(said);
  }
  if (command == IPC_RMID) {
    gdev::message said = gdev::about(message_kind::key_remove, number);
    return gdev::ask(said);
  }
  return -EINVAL;
}
}
