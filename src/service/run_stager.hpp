// Stages runs that the device cannot copy out of the file's own pages. A copier reads a run into
// pinned memory, piece by piece, and the device copies each piece while the copier reads the next.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "device/device.hpp"
#include "gpufs/backend.hpp"
#include "gpufs/channel/layout.cuh"
#include "service/driver_gate.hpp"

namespace gpufs {

// How long the service waits for a copy of the device, or for its threads before it announces that
// it is dead.
inline constexpr std::uint64_t answer_time_ns = 1'000'000'000;

// One for each copier; used by that thread only.
class run_stager {
 public:
  run_stager(device& d, driver_gate& gate, unsigned thread, const std::atomic<bool>& stopping)
      : device_(d), gate_(gate), thread_(thread), stopping_(stopping) {}
  ~run_stager();
  run_stager(const run_stager&) = delete;
  run_stager& operator=(const run_stager&) = delete;

  // Not a result: read() and copy_and_answer() say with it that the device itself answers the
  // request.
  static constexpr std::int32_t device_answers = -0x7fffffff;

  // Where a request is answered: `here` at the host's address, `seen` at the device's.
  struct reply_place {
    const channel_word<std::uint64_t>* here;
    channel_word<std::uint64_t>* seen;
    driver_gate::request_name name;
  };
  // Enqueues a copy after which the device stores `result` as the request's answer. Returns as
  // device::bulk_copy(), or -EAGAIN when the gate refuses.
  std::int64_t copy_and_answer(char* to, std::uint64_t from, std::uint64_t bytes,
                               const reply_place& reply, std::int32_t result);
  // Reads `length` bytes of a file into frames. Returns the bytes with `flags` added, -errno, or
  // `device_answers`. Waits for I/O and for the device.
  std::int32_t read(backend_file& file, std::uint64_t offset, char* to, std::uint64_t length,
                    const reply_place& reply, std::int32_t flags);

 private:
  struct bounce_buffer {
    device::shared_memory memory{nullptr, nullptr};
    // The device stores here once it has emptied the buffer.
    channel_word<std::uint64_t>* emptied = nullptr;
    channel_word<std::uint64_t>* emptied_seen = nullptr;
    // The word that the device stores once it has emptied the buffer, and where. Null when empty.
    const channel_word<std::uint64_t>* told = nullptr;
    std::uint64_t word = 0;
    bool is_reply = false;
    bool is_empty() const {
      // Acquire: pairs with the device's store after its copy out of the buffer. Without it the
      // buffer could be filled again too early. Other replies may have followed an awaited reply.
      const std::uint64_t now = told->load_acquire();
      return is_reply ? static_cast<std::int32_t>(reply_sequence(now) - reply_sequence(word)) >= 0
                      : now == word;
    }
  };
  // The size of a buffer. The copy engine needs copies of this size for its full rate. A larger
  // buffer would not stay in the processor's cache.
  static constexpr std::uint64_t piece_bytes = std::uint64_t{4} << 20;
  static constexpr std::uint64_t memory_bytes = 2 * piece_bytes + 64;  // with the `emptied` words

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
  // The memory of all buffers; allocated when first needed.
  device::shared_memory memory_{nullptr, nullptr};
  std::array<bounce_buffer, 2> buffers_;  // one is filled while the device empties the other
  unsigned next_ = 0;
  std::uint64_t count_ = 0;  // pieces so far
};

}  // namespace gpufs
