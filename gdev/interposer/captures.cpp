#include "interposer/captures.hpp"

#include <pthread.h>

#include <map>
#include <mutex>

#include "base/endless.hpp"
#include "interposer/driver.hpp"
#include "interposer/gate.hpp"

namespace gdev {

namespace {

struct table {
  std::mutex mutex;
  std::map<stream_key, CUcontext> contexts;  // of captures, by their streams
};

endless<table> captures;

bool is_default(CUstream stream) noexcept {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

}  // namespace

stream_key key_of(CUstream stream) noexcept {
  stream_key key{.handle = stream};
  if (is_default(stream)) {
    static_cast<void>(call_driver<CUresult>(id_cuCtxGetCurrent, &key.context));
    key.thread = static_cast<std::uint64_t>(pthread_self());
  }
  return key;
}

capture_origin origin_of(CUstream stream) noexcept {
  capture_origin found{.stream = key_of(stream)};
  found.context = found.stream.context;
  if (!is_default(stream)) {
    static_cast<void>(call_driver<CUresult>(id_cuStreamGetCtx, stream, &found.context));
  }
  return found;
}

bool note_capture(const capture_origin& begun) {
  const std::lock_guard lock(captures.get().mutex);
  const bool is_new = captures.get().contexts.try_emplace(begun.stream, begun.context).second;
  if (is_new) {
    count_capture(1);
  }
  return is_new;
}

std::optional<capture_origin> take_capture(const stream_key& stream) {
  const std::lock_guard lock(captures.get().mutex);
  const auto found = captures.get().contexts.find(stream);
  if (found == captures.get().contexts.end()) {
    return std::nullopt;
  }
  const capture_origin taken{found->first, found->second};
  captures.get().contexts.erase(found);
  count_capture(-1);
  return taken;
}

void forget_captures(CUcontext ended) {
  const std::lock_guard lock(captures.get().mutex);
  const auto count = std::erase_if(captures.get().contexts,
                                   [ended](const auto& one) { return one.second == ended; });
  count_capture(-static_cast<int>(count));
}

void forget_captures() noexcept { captures.forget(); }

}  // namespace gdev
