// Runs that the device cannot copy out of the file's own pages: a worker reads them into pinned
// memory, piece by piece, and the device copies each while the next is read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "device/device.hpp"
#include "gpufs/backend.hpp"
#include "gpufs/channel/layout.cuh"
#include "service/driver_gate.hpp"

namespace gpufs {

// How long the service waits for a copy of the device's, or for its threads before it says that it
// is dead.
inline constexpr std::uint64_t answer_time_ns = 1'000'000'000;

// Of one thread, and used by it only.
class run_stager {
 public:
  run_stager(device& d, driver_gate& gate, unsigned thread, const std::atomic<bool>& stopping)
      : device_(d), gate_(gate), thread_(thread), stopping_(stopping) {}
  ~run_stager();
  run_stager(const run_stager&) = delete;
  run_stager& operator=(const run_stager&) = delete;

  // No result, but for who serves a request: the device itself will answer it.
  static constexpr std::int32_t device_answers = -0x7fffffff;

  // Where a request is answered, as the host and as the device address it.
  struct reply_place {
    const channel_word<std::uint64_t>* here;
    channel_word<std::uint64_t>* seen;
    driver_gate::request_name name;
  };
  // Asks the device for a copy that ends with the answer `result` of a request. As
  // device::bulk_copy(); -EAGAIN when the driver lets nobody in.
  std::int64_t copy_and_answer(char* to, std::uint64_t from, std::uint64_t bytes,
                               const reply_place& reply, std::int32_t result);
  // Reads `length` bytes of a file into frames. The bytes with `flags`, -errno, or
  // `device_answers`.
  std::int32_t read(backend_file& file, std::uint64_t offset, char* to, std::uint64_t length,
                    const reply_place& reply, std::int32_t flags);

 private:
  struct bounce_buffer {
    device::shared_memory memory{nullptr, nullptr};
    channel_word<std::uint64_t>* emptied =
        nullptr;  // where the device tells that it has emptied it
    channel_word<std::uint64_t>* emptied_seen = nullptr;
    // What the device stores, and where, once it has emptied the buffer; null when it is empty.
    const channel_word<std::uint64_t>* told = nullptr;
    std::uint64_t word = 0;
    bool is_reply = false;
    bool is_empty() const {
      // Acquire: pairs with the device's store, behind its copy out of the buffer. A reply may have
      // been followed by others.
      const std::uint64_t now = told->load_acquire();
      return is_reply ? static_cast<std::int32_t>(reply_sequence(now) - reply_sequence(word)) >= 0
                      : now == word;
    }
  };
  // A buffer. The copy engine needs copies of this size for its full rate; more would not stay in
  // the processor's cache.
  static constexpr std::uint64_t piece_bytes = std::uint64_t{4} << 20;
  static constexpr std::uint64_t memory_bytes = 2 * piece_bytes + 64;  // with the words

  bool allocate(const driver_gate::request_name& name);
  bounce_buffer* free_buffer(const driver_gate::request_name& name);
  bool drain(const driver_gate::request_name& name);
  bool wait_until_empty(bounce_buffer& buffer);
  std::int64_t copy_piece(bounce_buffer& buffer, char* to, std::uint64_t bytes,
                          const channel_word<std::uint64_t>* told,
                          channel_word<std::uint64_t>* told_seen, std::uint64_t word,
                          const driver_gate::request_name& name);
  std::int64_t copy(char* to, std::uint64_t from, std::uint64_t bytes,
                    channel_word<std::uint64_t>* told, std::uint64_t word,
                    const driver_gate::request_name& name, bool answers);

  device& device_;
  driver_gate& gate_;
  const unsigned thread_;
  const std::atomic<bool>& stopping_;
  device::shared_memory memory_{nullptr,
                                nullptr};  // of all buffers; allocated when it is first needed
  std::array<bounce_buffer, 2> buffers_;   // one is filled while the device empties the other
  unsigned next_ = 0;
  std::uint64_t count_ = 0;  // of pieces
};

}  // namespace gpufs
