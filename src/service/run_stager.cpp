#include "service/run_stager.hpp"

#include <errno.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "gpufs/error.hpp"
#include "service/file_table.hpp"

namespace gpufs {

run_stager::~run_stager() {
  if (memory_.host != nullptr) device_.free_buffers(memory_, memory_bytes);
}

// Reads a run piece by piece. `flags`: added to the answer. An answer means that no copy into the
// frames is under way. When that is not known, this thread does not answer, and the frames are lost
// with the request.
std::int32_t run_stager::read(backend_file& file, std::uint64_t offset, char* to,
                              std::uint64_t length, const reply_place& reply, std::int32_t flags) {
  std::uint64_t done = 0;
  const auto give_up = [&](std::int32_t error) {
    return done == 0 || drain(reply.name) ? error : device_answers;
  };
  try {
    for (;;) {
      bounce_buffer* buffer = free_buffer(reply.name);
      if (buffer == nullptr) return give_up(-EAGAIN);
      const std::uint64_t wanted = std::min<std::uint64_t>(length - done, piece_bytes);
      const std::int64_t n = file_table::read(file, buffer->memory.host, wanted, offset + done);
      if (n <= 0 && done == 0) return static_cast<std::int32_t>(n);
      // The bytes before an error, or before the end of the file, are still delivered.
      const std::uint64_t bytes = n < 0 ? 0 : static_cast<std::uint64_t>(n);
      const bool last = bytes < wanted || done + bytes == length;
      const auto result = static_cast<std::int32_t>(done + bytes) | flags;
      const std::int64_t copied =
          last ? copy_piece(*buffer, to + done, bytes, reply.here, reply.seen,
                            make_reply_word(reply.name.sequence, result), reply.name)
               : copy_piece(*buffer, to + done, bytes, buffer->emptied, buffer->emptied_seen,
                            ++count_, reply.name);
      if (copied < 0 && copied != -EINPROGRESS) return give_up(static_cast<std::int32_t>(copied));
      if (last) return copied < 0 ? device_answers : result;
      done += bytes;
    }
  } catch (...) {
    if (done != 0 && !drain(reply.name)) return device_answers;
    throw;
  }
}

std::int64_t run_stager::copy_piece(bounce_buffer& buffer, char* to, std::uint64_t bytes,
                                    const channel_word<std::uint64_t>* told,
                                    channel_word<std::uint64_t>* told_seen, std::uint64_t word,
                                    const driver_gate::request_name& name) {
  const std::int64_t copied = copy(to, reinterpret_cast<std::uint64_t>(buffer.memory.device), bytes,
                                   told_seen, word, name, told != buffer.emptied);
  buffer.told = copied == -EINPROGRESS ? told : nullptr;
  if (copied >= 0 && copied != static_cast<std::int64_t>(bytes)) return -EIO;
  buffer.word = word;
  buffer.is_reply = told != buffer.emptied;
  return copied;
}

std::int64_t run_stager::copy_and_answer(char* to, std::uint64_t from, std::uint64_t bytes,
                                         const reply_place& reply, std::int32_t result) {
  return copy(to, from, bytes, reply.seen, make_reply_word(reply.name.sequence, result), reply.name,
              true);
}

std::int64_t run_stager::copy(char* to, std::uint64_t from, std::uint64_t bytes,
                              channel_word<std::uint64_t>* told, std::uint64_t word,
                              const driver_gate::request_name& name, bool answers) {
  const driver_gate::pass in(gate_, thread_, name);
  if (!in) return -EAGAIN;
  if (answers) gate_.expect_answer(name);
  return device_.bulk_copy(thread_, to, from, bytes, reinterpret_cast<char*>(told), word);
}

// Waits until the device has emptied all buffers, without a deadline, because the frames are in use
// until then. The supervisor tells the group when it takes long. False when the mount ends.
bool run_stager::drain(const driver_gate::request_name& name) {
  gate_.expect_answer(name);
  for (bounce_buffer& buffer : buffers_) {
    for (; buffer.told != nullptr && !buffer.is_empty();
         std::this_thread::sleep_for(std::chrono::microseconds(100))) {
      if (stopping_) return false;
    }
    buffer.told = nullptr;
  }
  return true;
}

// Returns an empty buffer. Null when there is no memory for one, or the device does not answer in
// time.
run_stager::bounce_buffer* run_stager::free_buffer(const driver_gate::request_name& name) {
  bounce_buffer& buffer = buffers_[next_];
  next_ = (next_ + 1) % buffers_.size();
  if (memory_.host == nullptr && !allocate(name)) return nullptr;
  return wait_until_empty(buffer) ? &buffer : nullptr;
}

// False when there is no memory, or the gate refuses.
bool run_stager::allocate(const driver_gate::request_name& name) {
  const driver_gate::pass in(gate_, thread_, name);
  if (!in) return false;
  try {
    memory_ = device_.allocate_buffers(memory_bytes);
  } catch (const error&) {
    return false;
  }
  const auto word = [this](char* memory, std::size_t i) {
    return reinterpret_cast<channel_word<std::uint64_t>*>(memory + buffers_.size() * piece_bytes) +
           i;
  };
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].memory = {memory_.host + i * piece_bytes, memory_.device + i * piece_bytes};
    buffers_[i].emptied = word(memory_.host, i);
    buffers_[i].emptied_seen = word(memory_.device, i);
  }
  return true;
}

bool run_stager::wait_until_empty(bounce_buffer& buffer) {
  const std::uint64_t start = platform::now_ns();
  for (std::uint32_t attempt = 0; buffer.told != nullptr && !buffer.is_empty(); ++attempt) {
    if (stopping_ || gate_.is_closed() || platform::elapsed_ns(start) > answer_time_ns)
      return false;
    platform::pause(attempt);
  }
  buffer.told = nullptr;
  return true;
}

}  // namespace gpufs
