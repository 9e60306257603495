// Moves of swappable memory: the gate is closed, and no submission is held.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/crash_point.hpp"
#include "interposer/driver.hpp"
#include "interposer/driver_scope.hpp"
#include "interposer/gate.hpp"
#include "interposer/swappable_memory.hpp"

namespace gdev {

namespace {

/** Chunks are released, and others are told of it, when so much has been copied. */
constexpr std::size_t batch_bytes = std::size_t{64} << 20;
/** What a client that may have to leave prepares between two looks at its orders. */
constexpr std::size_t prepared_at_once = std::size_t{512} << 20;

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

/** Tells whether an error says that a graph is being captured. */
bool is_of_capture(CUresult result) noexcept {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
         result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

/** Memory could not be brought back. A program must not go on with wrong bytes. */
[[noreturn]] void end_with_lost_memory() noexcept {
  constexpr std::string_view text =
      "gdev: memory of this process could not be brought back to the GPU; the process ends\n";
  static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
  std::abort();
}

}  // namespace

std::uint64_t swappable_memory::writes() const {
  // Copies to the host too: what a program calls the host may be an address of the device.
  return count_submissions(work::launch) + count_submissions(work::fill) +
         count_submissions(work::to_device) + count_submissions(work::to_host);
}

std::vector<chunk*> swappable_memory::all_chunks() {
  std::vector<chunk*> all;
  for (auto& [address, one] : ranges_) {
    for (chunk& part : one.chunks) {
      all.push_back(&part);
    }
  }
  all.insert(all.end(), others_.begin(), others_.end());
  std::erase_if(all, [](const chunk* one) { return one->is_wired; });
  return all;
}

std::vector<chunk*> swappable_memory::chunks_to_move(std::uint64_t kept) {
  std::vector<chunk*> found = all_chunks();
  // A chunk that has a place on the host goes first: then each turn moves the same ones, and the
  // host needs no memory for the others.
  std::stable_partition(found.begin(), found.end(), [](const chunk* one) {
    return std::all_of(one->places.begin(), one->places.end(),
                       [](const host_place& part) { return part.is_there(); });
  });
  std::uint64_t left = resident_;
  std::erase_if(found, [&](const chunk* one) {
    if (one->on_host != nullptr) {
      return false;
    }
    const bool moves = one->handle != 0 && left > kept;
    left -= moves ? one->bytes : 0;
    return !moves;
  });
  return found;
}

CUstream swappable_memory::stream_of(CUcontext context) {
  CUstream& found = streams_[context];
  if (found == nullptr) {
    call_driver<CUresult>(id_cuStreamCreate, &found, unsigned{CU_STREAM_NON_BLOCKING});
  }
  return found;
}

bool swappable_memory::prepare_host(std::uint64_t kept) {
  const submission in_turn(work::other);  // no context ends meanwhile
  std::size_t needed = 0;
  CUcontext context = nullptr;
  {
    const std::lock_guard lock(mutex_);
    for (const chunk* const one : chunks_to_move(kept)) {
      context = one->context;
      for (const host_place& part : one->places) {
        needed += part.is_there() ? 0 : part.bytes;
      }
    }
  }
  if (context == nullptr) {
    return false;
  }
  const driver_scope scope(context);
  return pool_.prepare(needed, prepared_at_once);
}

void swappable_memory::report_gpu(const std::function<gpu_facts()>& look) {
  CUdevice home = -1;
  {
    const std::lock_guard lock(mutex_);
    home = home_;
  }
  for (const CUcontext context : all_contexts()) {
    const driver_scope scope(context);
    CUdevice device = -1;
    if (call_driver<CUresult>(id_cuCtxGetDevice, &device) != CUDA_SUCCESS || device != home) {
      continue;  // of another GPU
    }
    if (const gpu_facts seen = look(); seen.number != 0 && use_gpu(seen)) {
      return;
    }
  }
  memory_facts unused;
  static_cast<void>(ask_memory(unused));  // a daemon that hangs is found only by a message
}

std::uint64_t swappable_memory::resident() {
  const std::lock_guard lock(mutex_);
  return resident_;
}

std::vector<CUcontext> swappable_memory::all_contexts() {
  const std::lock_guard lock(mutex_);
  return {contexts_.begin(), contexts_.end()};
}

/** Waits for a context without an event. Returns false if a capture forbids that. */
bool swappable_memory::synchronize(CUcontext context) {
  const CUresult result = call_driver<CUresult>(id_cuCtxSynchronize);
  if (is_of_capture(result)) {
    return false;
  }
  if (result != CUDA_SUCCESS) {
    broken_.insert(context);  // nothing runs in it any more
  }
  return true;
}

bool swappable_memory::is_drained() { return drain(std::chrono::steady_clock::time_point{}); }

bool swappable_memory::drain(std::chrono::steady_clock::time_point deadline) {
  const bool may_wait = deadline != std::chrono::steady_clock::time_point{};
  for (const CUcontext context : all_contexts()) {
    const driver_scope scope(context);
    CUevent done = nullptr;
    CUresult result =
        call_driver<CUresult>(id_cuEventCreate, &done, unsigned{CU_EVENT_DISABLE_TIMING});
    if (result == CUDA_SUCCESS) {
      result = call_driver<CUresult>(id_cuCtxRecordEvent, context, done);
    }
    if (result == CUDA_SUCCESS) {
      result = call_driver<CUresult>(id_cuEventQuery, done);
      for (int tries = 0; result == CUDA_ERROR_NOT_READY && may_wait; ++tries) {
        if (std::chrono::steady_clock::now() >= deadline) {
          break;
        }
        usleep(tries < 100 ? 20 : 500);
        result = call_driver<CUresult>(id_cuEventQuery, done);
      }
    }
    if (done != nullptr) {
      call_driver<CUresult>(id_cuEventDestroy_v2, done);
    }
    if (result == CUDA_ERROR_NOT_READY || is_of_capture(result) ||
        result == CUDA_ERROR_OUT_OF_MEMORY) {  // of an event: it is tried again
      return false;
    }
    // An error, or a driver before 12.5: waiting is all that is left, for as long as work takes.
    if (result != CUDA_SUCCESS && (!may_wait || !synchronize(context))) {
      return false;
    }
  }
  return true;
}

/** Copies what has a place in the host's memory, and releases everything, batch by batch. */
void swappable_memory::copy_out(std::vector<moving>& all, std::uint64_t& copied,
                                const std::function<void(std::uint64_t)>& progress) {
  struct batch {
    std::size_t end = 0;
    CUevent done = nullptr;
    CUcontext context = nullptr;
    bool is_right = true;
  };
  std::vector<batch> batches;
  std::size_t bytes = 0;
  bool is_right = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [of, part, is_kept] = all[i];
    const driver_scope scope(of->context);
    if (of->handle != 0 && part->copy != nullptr && !is_kept) {
      is_right &= call_driver<CUresult>(id_cuMemcpyDtoHAsync_v2, static_cast<void*>(part->copy),
                                        all[i].address(), part->bytes,
                                        stream_of(of->context)) == CUDA_SUCCESS;
      copied += part->bytes;
    }
    bytes += part->bytes;
    const bool is_last = i + 1 == all.size() || all[i + 1].of->context != of->context;
    if (bytes >= batch_bytes || is_last) {
      batch& made = batches.emplace_back(batch{i + 1, nullptr, of->context, is_right});
      made.is_right &= call_driver<CUresult>(id_cuEventCreate, &made.done,
                                             unsigned{CU_EVENT_DISABLE_TIMING}) == CUDA_SUCCESS;
      made.is_right &= call_driver<CUresult>(id_cuEventRecord, made.done, stream_of(of->context)) ==
                       CUDA_SUCCESS;
      bytes = 0;
      is_right = true;
    }
  }
  std::size_t begin = 0;
  for (const batch& one : batches) {
    const driver_scope scope(one.context);
    const bool is_done =
        one.is_right && call_driver<CUresult>(id_cuEventSynchronize, one.done) == CUDA_SUCCESS;
    call_driver<CUresult>(id_cuEventDestroy_v2, one.done);
    crash_point("batch_copied");
    if (!is_done) {
      copy_again(all, begin, one.end);
    }
    for (; begin < one.end; ++begin) {
      chunk& gone = *all[begin].of;
      if (all[begin].is_last()) {
        resident_ -= gone.handle != 0 && gone.on_host == nullptr ? gone.bytes : 0;
        release(gone);
      }
    }
    crash_point("batch_released");
    publish_memory(size_, resident_);
    progress(resident_);
    crash_point("batch_told");
  }
}

bool swappable_memory::copy_now(std::byte* to, const moving& one) {
  const driver_scope scope(one.of->context);
  const CUstream stream = stream_of(one.of->context);
  return call_driver<CUresult>(id_cuMemcpyDtoHAsync_v2, static_cast<void*>(to), one.address(),
                               one.part->bytes, stream) == CUDA_SUCCESS &&
         call_driver<CUresult>(id_cuStreamSynchronize, stream) == CUDA_SUCCESS;
}

/** A copy has failed. Does it once more, or ends the process, unless its context is broken. */
void swappable_memory::copy_again(const std::vector<moving>& all, std::size_t begin,
                                  std::size_t end) {
  for (; begin < end; ++begin) {
    const auto& [of, part, is_kept] = all[begin];
    if (of->handle == 0 || part->copy == nullptr || is_kept) {
      continue;
    }
    if (!copy_now(part->copy, all[begin])) {
      note_failure(of->context);
    }
  }
}

/** A move has failed in a context. If that is not broken, the process ends. */
void swappable_memory::note_failure(CUcontext context) {
  const driver_scope scope(context);
  const CUresult result = call_driver<CUresult>(id_cuCtxSynchronize);
  if (result == CUDA_ERROR_DEINITIALIZED) {
    // The process is ending: this thread is not needed any more, and the one that ends it may wait
    // at the gate.
    open_gate();
    for (;;) {
      pause();
    }
  }
  if (result == CUDA_SUCCESS && !broken_.contains(context)) {
    end_with_lost_memory();
  }
  broken_.insert(context);
}

/** Finds places on the host for all parts that have none. Returns false, and gives them back. */
bool swappable_memory::find_places(std::vector<moving>& all) {
  std::size_t needed = 0;
  for (const auto& [of, part, is_kept] : all) {
    needed += of->handle != 0 && !part->is_there() ? part->bytes : 0;
  }
  if (needed == 0) {
    return true;
  }
  const driver_scope scope(all.front().of->context);
  pool_.prepare(needed, needed);
  std::vector<host_place*> placed;
  for (const auto& [of, part, is_kept] : all) {
    if (of->handle == 0 || part->is_there()) {
      continue;
    }
    part->copy = pool_.take(part->bytes);
    if (part->copy == nullptr) {
      part->file = files_.take(part->bytes);
    }
    placed.push_back(part);
    if (!part->is_there()) {
      for (host_place* const given : placed) {
        give_place(*given);
      }
      pool_.give_back_segments();
      return false;
    }
  }
  return true;
}

/** Copies what has its place in the file. Nothing is released before all is written. */
int swappable_memory::write_files(const std::vector<moving>& all, std::uint64_t& copied) {
  for (const moving& one : all) {
    const auto& [of, part, is_kept] = one;
    if (of->handle == 0 || part->file == swap_file::none || is_kept) {
      continue;
    }
    const driver_scope scope(of->context);
    staging_ = staging_ == nullptr ? host_pool::make_segment() : staging_;
    if (staging_ == nullptr) {
      return ENOMEM;
    }
    if (!copy_now(staging_, one)) {
      note_failure(of->context);
      continue;
    }
    if (files_.write(part->file, staging_, part->bytes) != 0) {
      return EIO;
    }
    crash_point("file_written");
    copied += part->bytes;
  }
  return 0;
}

bool swappable_memory::copy_in(const moving& one) {
  const host_place& part = *one.part;
  const CUstream stream = stream_of(one.of->context);
  const bool is_of_file = part.copy == nullptr;
  if (is_of_file && part.file == swap_file::none) {
    return true;
  }
  const std::byte* const from = is_of_file ? staging_ : part.copy;
  return (!is_of_file || files_.read(part.file, staging_, part.bytes) == 0) &&
         call_driver<CUresult>(id_cuMemcpyHtoDAsync_v2, one.address(),
                               static_cast<const void*>(from), part.bytes,
                               stream) == CUDA_SUCCESS &&
         (!is_of_file || call_driver<CUresult>(id_cuStreamSynchronize, stream) == CUDA_SUCCESS);
}

move_result swappable_memory::move_out(std::uint64_t kept,
                                       const std::function<void(std::uint64_t)>& progress) {
  free_deferred();  // what was freed during a capture
  std::vector<moving> all;
  // Work may have reached any chunk; those that stay now are copied later.
  if (const std::uint64_t written = writes(); written != std::exchange(writes_then_, written)) {
    for (chunk* const one : all_chunks()) {
      one->is_clean = false;
    }
  }
  move_result result;
  stopwatch watch;
  const std::vector<chunk*> chunks = chunks_to_move(kept);
  for (chunk* const one : chunks) {
    const driver_scope scope(one->context);
    if (one->handle != 0 && open_window(*one) != CUDA_SUCCESS) {
      result.error = ENOMEM;
    }
    for (host_place& part : one->places) {
      all.push_back({one, &part, one->is_clean && part.is_there()});
    }
  }
  watch.stop();
  if (result.error == 0 && !find_places(all)) {
    result.error = ENOMEM;
  }
  watch.go_on();
  if (result.error == 0) {
    crash_point("places_found");
    result.error = write_files(all, result.bytes);
  }
  if (result.error == 0) {
    copy_out(all, result.bytes, progress);
    bring_home(chunks);
  } else {
    std::for_each(chunks.begin(), chunks.end(), [](chunk* one) { close_window(*one); });
  }
  watch.stop();
  result.ns = watch.ns();
  return result;
}

void swappable_memory::bring_home(const std::vector<chunk*>& moved) {
  for (chunk* const one : moved) {
    size_ += std::exchange(one->on_host, nullptr) != nullptr ? one->bytes : 0;
  }
  crash_point("brought_home");
  publish_memory(size_, resident_);
}

move_result swappable_memory::move_in(const std::function<bool(std::uint64_t)>& may_have,
                                      const std::function<bool(std::uint64_t)>& is_full) {
  move_result result;
  stopwatch watch;
  std::set<CUcontext> used;
  const std::vector<chunk*> chunks = all_chunks();
  for (chunk* const one : chunks) {
    if (one->handle != 0) {
      continue;
    }
    const driver_scope scope(one->context);
    CUresult made = CUDA_ERROR_OUT_OF_MEMORY;
    while (result.error == 0 && made == CUDA_ERROR_OUT_OF_MEMORY) {
      result.error = may_have(resident_ + one->bytes) ? 0 : ECANCELED;
      if (result.bytes == 0) {
        watch = {};  // the move begins when there is room; later waits are for what others copy
      }
      if (result.error == 0) {
        made = make(*one);
      }
      if (result.error == 0 && made == CUDA_ERROR_OUT_OF_MEMORY) {
        result.error = is_full(one->bytes) ? 0 : ECANCELED;
      }
    }
    if (result.error != 0) {
      break;
    }
    if (made != CUDA_SUCCESS) {
      note_failure(one->context);
      continue;
    }
    resident_ += one->bytes;
    publish_memory(size_, resident_);
    crash_point("chunk_entered");
    bool is_right = open_window(*one) == CUDA_SUCCESS;
    for (host_place& part : one->places) {
      is_right = is_right && copy_in({one, &part});
    }
    if (!is_right) {
      note_failure(one->context);
    }
    one->is_clean = true;
    used.insert(one->context);
    result.bytes += one->bytes;
  }
  for (const CUcontext context : used) {
    const driver_scope scope(context);
    if (call_driver<CUresult>(id_cuStreamSynchronize, stream_of(context)) != CUDA_SUCCESS) {
      note_failure(context);
    }
  }
  for (chunk* const one : chunks) {
    close_window(*one);
  }
  crash_point("moved_in");
  watch.stop();
  result.ns = watch.ns();
  writes_then_ = writes();
  return result;
}

}  // namespace gdev
