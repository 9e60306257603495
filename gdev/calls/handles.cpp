#include "calls/handles.hpp"

#include <pthread.h>

#include <map>
#include <utility>

#include "base/endless.hpp"

namespace gdev::calls {

namespace {

struct handle_table {
  std::mutex mutex;
  std::map<ghandle, std::shared_ptr<held_handle>> all;
  ghandle next = 1;
};

endless<handle_table> the_table;

/** A child must neither use nor end what the parent's context has. */
void forget_in_children() noexcept {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    const ghandle next = the_table.get().next;
    the_table.forget();
    the_table.get().next = next;
  });
  static_cast<void>(registered);
}

/** Retains the context of a GPU, and makes what a handle needs there. */
int begin(int minor, open_gpu& made) noexcept {
  if (const CUresult result = driver().cuDeviceGet(&made.device, minor); result != CUDA_SUCCESS) {
    return error_of(result);
  }
  if (const CUresult result = driver().cuDevicePrimaryCtxRetain(&made.context, made.device);
      result != CUDA_SUCCESS) {
    return error_of(result);
  }
  int error = 0;
  {
    const context_scope scope(made.context);
    error = made.work.begin();
  }
  if (error != 0) {
    static_cast<void>(driver().cuDevicePrimaryCtxRelease(made.device));
  }
  return error;
}

/** Returns 0, or -EIO if work has failed. */
int end(open_gpu& ended) noexcept {
  int error = 0;
  {
    const context_scope scope(ended.context);
    error = ended.work.end();
    ended.images.unload();
    ended.memory.free_all();
  }
  const CUresult result = driver().cuDevicePrimaryCtxRelease(ended.device);
  return error != 0 ? error : error_of(result);
}

}  // namespace

ghandle open_handle(int minor) noexcept {
  int count = 0;
  if (const int error = gdevice_count(&count); error != 0) {
    return error;
  }
  if (minor < 0 || minor >= count) {
    return -ENODEV;
  }
  forget_in_children();
  const auto made = std::make_shared<held_handle>();
  if (const int error = begin(minor, made->gpu); error != 0) {
    return error;
  }
  handle_table& table = the_table.get();
  const std::lock_guard lock(table.mutex);
  table.all[table.next] = made;
  return table.next++;
}

int close_handle(ghandle handle) noexcept {
  std::shared_ptr<held_handle> closed;
  {
    handle_table& table = the_table.get();
    const std::lock_guard lock(table.mutex);
    const auto found = table.all.find(handle);
    if (found == table.all.end()) {
      return -EBADF;
    }
    closed = std::move(found->second);
    table.all.erase(found);
  }
  const std::lock_guard lock(closed->in_use);
  closed->is_closed = true;
  return end(closed->gpu);
}

std::shared_ptr<held_handle> find_handle(ghandle handle) noexcept {
  handle_table& table = the_table.get();
  const std::lock_guard lock(table.mutex);
  const auto found = table.all.find(handle);
  return found == table.all.end() ? nullptr : found->second;
}

}  // namespace gdev::calls
