// A group that makes one call at a time: tests of single calls read like a program that uses files.
#pragma once

#include <fcntl.h>

#include <optional>
#include <string>

#include "api/stage.hpp"
#include "gpufs/gpufs.cuh"

namespace gpufs::testing {

struct read_answer {
  std::int64_t result = 0;  // as the call returned it
  std::string bytes;        // as many as `result` says
};

struct map_answer {
  std::int64_t result = 0;
  std::int64_t pointer = 0;  // a device address
};

struct map_each_answer {
  std::int64_t result = 0;  // bytes that were mapped
  std::int64_t error = 0;   // of any member that has one, the nearest to 0
  std::string bytes;        // as many as were asked for; `untouched` where nothing was mapped
};

struct status_answer {
  std::int32_t result = 0;
  file_status status{};
};

struct view_answer {
  std::uint64_t size = 0;
  std::int32_t error = 0;
  std::vector<std::uint64_t> words;
};

struct stream_answer {
  std::int64_t result = 0;
  std::int64_t position = 0;
  std::string output;  // up to the first byte that was not written
};

// Each function launches a kernel, in which one group makes the call, and waits for it.
class session {
 public:
  session(mount& m, group_kind kind) : stage_(m, kind, 1) {}
  // Of a caller in a hurry: its calls give up after `request`, whatever the mount has. So a
  // test of a request that hangs needs no short timeout for calls that a busy machine answers late.
  session(mount& m, group_kind kind, std::chrono::nanoseconds request) : session(m, kind) {
    stage_.give_up_after(request);
  }

  std::int32_t open(const std::string& path, int flags = O_RDONLY, unsigned mode = 0666);
  std::int32_t open_null_path();
  std::int32_t close(std::int32_t fd);
  // Into memory that begins `misalignment` bytes behind a 64-byte boundary. Fails the test when
  // bytes around what the call says it has read were written.
  read_answer read(std::int32_t fd, std::int64_t offset, std::uint64_t bytes,
                   std::uint64_t misalignment = 0);
  // As read(), of a file that holds `content`: fails the test when the answer is not what POSIX's
  // pread gives.
  void expect_read(std::int32_t fd, const std::string& content, std::int64_t offset,
                   std::uint64_t bytes, std::uint64_t misalignment = 0);
  std::int64_t read_to_null(std::int32_t fd, std::int64_t offset, std::uint64_t bytes);
  map_answer map(std::int32_t fd, std::int64_t offset, std::uint64_t bytes);
  std::string peek(std::int64_t pointer, std::uint64_t bytes);
  // `hands_over`: with what was made of the mapping.
  std::int32_t unmap(std::int64_t pointer, bool unfenced = false, std::int32_t bytes = 1);
  // In pieces, one for each member.
  map_each_answer map_each(std::int32_t fd, std::int64_t offset, std::uint64_t bytes,
                           std::int32_t piece_bytes) {
    return each(action::map_each, fd, offset, bytes, piece_bytes);
  }
  map_each_answer read_each(std::int32_t fd, std::int64_t offset, std::uint64_t bytes,
                            std::int32_t piece_bytes) {
    return each(action::read_each, fd, offset, bytes, piece_bytes);
  }
  std::int32_t advise(std::int32_t fd, std::int64_t offset, std::uint64_t bytes, int advice);
  status_answer status(std::int32_t fd);
  std::int64_t write(std::int32_t fd, const std::string& bytes, std::int64_t offset,
                     std::uint64_t misalignment = 0);
  std::int32_t sync(std::int32_t fd);
  std::int32_t truncate(std::int32_t fd, std::int64_t size);
  map_answer map_write(std::int32_t fd, std::int64_t offset, std::uint64_t bytes);
  std::int64_t poke(std::int64_t pointer, const std::string& bytes);
  std::int32_t msync(std::int32_t fd, std::int64_t pointer, std::uint64_t bytes) {
    return end_write(action::msync, fd, pointer, bytes);
  }
  std::int32_t unmap_write(std::int32_t fd, std::int64_t pointer, std::uint64_t bytes) {
    return end_write(action::unmap_write, fd, pointer, bytes);
  }
  std::int32_t unlink(const std::string& path);
  std::int32_t rename(const std::string& path, const std::string& new_path);
  std::int64_t send(std::int32_t sink, const std::string& bytes);
  view_answer view(std::int32_t fd, std::uint64_t offset, std::uint64_t count);

  // What a stream with a buffer of `buffer_bytes` does, from `offset` on: `what` of script.hpp's
  // actions of streams.
  stream_answer stream(action what, std::int32_t fd, std::int64_t offset,
                       std::uint64_t buffer_bytes, std::uint64_t output_bytes = 4096);
  stream_answer print(std::int32_t fd, std::int64_t offset, std::uint64_t buffer_bytes,
                      const std::string& text, std::int32_t number);
  stream_answer seek(std::int32_t fd, std::int64_t position, std::int64_t offset, int whence);

  // A read that asks for more than can be; the output has room for `room` bytes.
  std::int64_t read_result(std::int32_t fd, std::int64_t offset, std::uint64_t bytes,
                           std::uint64_t room);

 private:
  map_each_answer each(action what, std::int32_t fd, std::int64_t offset, std::uint64_t bytes,
                       std::int32_t piece_bytes);
  std::int32_t end_write(action what, std::int32_t fd, std::int64_t pointer, std::uint64_t bytes);
  stream_answer use_stream(device_call c, std::int32_t fd, std::uint64_t buffer_bytes,
                           const std::string& input, std::uint64_t output_bytes);
  outcome call(device_call c, std::int64_t from, const std::string& input = {},
               std::size_t output_bytes = 0);

  stage stage_;
  std::string output_;  // of the last call
};

// Fails the test, and says where, when two byte strings differ.
void expect_same_bytes(const std::string& actual, const std::string& expected,
                       const std::string& what);

}  // namespace gpufs::testing
