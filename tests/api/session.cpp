#include "api/session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace gpufs::testing {
namespace {

constexpr std::uint64_t guard_bytes = 64;

}  // namespace

outcome session::call(device_call c, std::int64_t from, const std::string& input,
                      std::size_t output_bytes) {
  device_call set;
  set.offset = from;
  performance p = stage_.run({{set, c}}, input, output_bytes);
  output_ = std::move(p.output);
  return p.outcomes[0][1];
}

std::int32_t session::open(const std::string& path, int flags, unsigned mode) {
  std::string input;
  device_call c{action::open};
  c.to = 1;
  c.bytes = mode;
  c.flags = flags;
  c.memory = add_string(input, path);
  return static_cast<std::int32_t>(call(c, 0, input).result);
}

std::int32_t session::open_null_path() {
  device_call c{action::open};
  c.to = 1;
  return static_cast<std::int32_t>(call(c, 0).result);
}

std::int32_t session::close(std::int32_t fd) {
  return static_cast<std::int32_t>(call({action::close}, fd).result);
}

read_answer session::read(std::int32_t fd, std::int64_t offset, std::uint64_t bytes,
                          std::uint64_t misalignment) {
  device_call c{action::read};
  c.offset = offset;
  c.bytes = bytes;
  c.memory = guard_bytes + misalignment;
  read_answer answer;
  answer.result = call(c, fd, {}, c.memory + bytes + guard_bytes).result;
  const std::uint64_t got = answer.result < 0 ? 0 : static_cast<std::uint64_t>(answer.result);
  EXPECT_LE(got, bytes);
  for (std::uint64_t i = 0; i < output_.size(); ++i) {
    if (i >= c.memory && i < c.memory + got) continue;
    if (output_[i] == untouched) continue;
    ADD_FAILURE() << "read(offset " << offset << ", bytes " << bytes << ") gave " << got
                  << " bytes and wrote at " << static_cast<std::int64_t>(i - c.memory);
    break;
  }
  answer.bytes = output_.substr(c.memory, std::min(got, bytes));
  return answer;
}

void session::expect_read(std::int32_t fd, const std::string& content, std::int64_t offset,
                          std::uint64_t bytes, std::uint64_t misalignment) {
  const read_answer answer = read(fd, offset, bytes, misalignment);
  const auto at = static_cast<std::uint64_t>(offset);
  const std::string expected = at < content.size() ? content.substr(at, bytes) : std::string();
  const std::string what = "read(offset " + std::to_string(offset) + ", bytes " +
                           std::to_string(bytes) + ", misaligned by " +
                           std::to_string(misalignment) + ")";
  EXPECT_EQ(answer.result, static_cast<std::int64_t>(expected.size())) << what;
  expect_same_bytes(answer.bytes, expected, what);
}

std::int64_t session::read_result(std::int32_t fd, std::int64_t offset, std::uint64_t bytes,
                                  std::uint64_t room) {
  device_call c{action::read};
  c.offset = offset;
  c.bytes = bytes;
  c.memory = 0;
  return call(c, fd, {}, room).result;
}

std::int64_t session::read_to_null(std::int32_t fd, std::int64_t offset, std::uint64_t bytes) {
  device_call c{action::read};
  c.offset = offset;
  c.bytes = bytes;
  return call(c, fd).result;
}

map_answer session::map(std::int32_t fd, std::int64_t offset, std::uint64_t bytes) {
  device_call c{action::map};
  c.to = 1;
  c.offset = offset;
  c.bytes = bytes;
  const outcome o = call(c, fd);
  return {o.result, o.value};
}

std::string session::peek(std::int64_t pointer, std::uint64_t bytes) {
  device_call c{action::peek};
  c.bytes = bytes;
  c.memory = 0;
  (void)call(c, pointer, {}, bytes);
  return output_;
}

std::int32_t session::unmap(std::int64_t pointer, bool unfenced, std::int32_t bytes) {
  device_call c{action::unmap};
  c.flags = unfenced ? 1 : 0;
  c.to = bytes - 1;
  return static_cast<std::int32_t>(call(c, pointer).result);
}

map_each_answer session::each(action what, std::int32_t fd, std::int64_t offset,
                              std::uint64_t bytes, std::int32_t piece_bytes) {
  device_call c{what};
  c.flags = piece_bytes;
  c.offset = offset;
  c.bytes = bytes;
  c.memory = 0;
  const outcome o = call(c, fd, {}, bytes);
  return {o.result, o.value, output_};
}

std::int32_t session::advise(std::int32_t fd, std::int64_t offset, std::uint64_t bytes,
                             int advice) {
  device_call c{action::advise};
  c.offset = offset;
  c.bytes = bytes;
  c.flags = advice;
  return static_cast<std::int32_t>(call(c, fd).result);
}

status_answer session::status(std::int32_t fd) {
  device_call c{action::status};
  c.memory = 0;
  status_answer answer;
  answer.result = static_cast<std::int32_t>(call(c, fd, {}, sizeof(file_status)).result);
  std::memcpy(&answer.status, output_.data(), sizeof answer.status);
  return answer;
}

std::int64_t session::write(std::int32_t fd, const std::string& bytes, std::int64_t offset,
                            std::uint64_t misalignment) {
  device_call c{action::write};
  c.offset = offset;
  c.bytes = bytes.size();
  c.memory = misalignment;
  return call(c, fd, std::string(misalignment, '.') + bytes).result;
}

std::int32_t session::sync(std::int32_t fd) {
  return static_cast<std::int32_t>(call({action::sync}, fd).result);
}

std::int32_t session::truncate(std::int32_t fd, std::int64_t size) {
  device_call c{action::truncate};
  c.offset = size;
  return static_cast<std::int32_t>(call(c, fd).result);
}

map_answer session::map_write(std::int32_t fd, std::int64_t offset, std::uint64_t bytes) {
  device_call c{action::map_write};
  c.to = 1;
  c.offset = offset;
  c.bytes = bytes;
  const outcome o = call(c, fd);
  return {o.result, o.value};
}

std::int64_t session::poke(std::int64_t pointer, const std::string& bytes) {
  device_call c{action::poke};
  c.bytes = bytes.size();
  c.memory = 0;
  return call(c, pointer, bytes).result;
}

std::int32_t session::end_write(action what, std::int32_t fd, std::int64_t pointer,
                                std::uint64_t bytes) {
  device_call set{action::set}, c{what};
  set.to = 2;
  set.offset = fd;
  c.from = 1;
  c.flags = 2;
  c.bytes = bytes;
  device_call at{action::set};
  at.to = 1;
  at.offset = pointer;
  return static_cast<std::int32_t>(stage_.run({{set, at, c}}, {}, 0).outcomes[0][2].result);
}

std::int32_t session::unlink(const std::string& path) {
  std::string input;
  device_call c{action::unlink};
  c.memory = add_string(input, path);
  return static_cast<std::int32_t>(call(c, 0, input).result);
}

std::int32_t session::rename(const std::string& path, const std::string& new_path) {
  std::string input;
  device_call c{action::rename};
  c.memory = add_string(input, path);
  c.bytes = add_string(input, new_path);
  return static_cast<std::int32_t>(call(c, 0, input).result);
}

std::int64_t session::send(std::int32_t sink, const std::string& bytes) {
  device_call c{action::send};
  c.bytes = bytes.size();
  c.memory = 0;
  return call(c, sink, bytes).result;
}

view_answer session::view(std::int32_t fd, std::uint64_t offset, std::uint64_t count) {
  device_call c{action::view};
  c.offset = static_cast<std::int64_t>(offset);
  c.bytes = count;
  c.memory = 0;
  const outcome o = call(c, fd, {}, count * sizeof(std::uint64_t));
  view_answer answer{static_cast<std::uint64_t>(o.result), static_cast<std::int32_t>(o.value),
                     std::vector<std::uint64_t>(count)};
  std::memcpy(answer.words.data(), output_.data(), output_.size());
  return answer;
}

stream_answer session::use_stream(device_call c, std::int32_t fd, std::uint64_t buffer_bytes,
                                  const std::string& input, std::uint64_t output_bytes) {
  constexpr std::uint64_t misalignment = 5;
  c.memory = misalignment;
  c.flags = static_cast<std::int32_t>(buffer_bytes);
  const outcome o = call(c, fd, input, c.memory + buffer_bytes + output_bytes);
  const std::string output = output_.substr(c.memory + buffer_bytes);
  return {o.result, o.value, output.substr(0, output.find(untouched))};
}

stream_answer session::stream(action what, std::int32_t fd, std::int64_t offset,
                              std::uint64_t buffer_bytes, std::uint64_t output_bytes) {
  device_call c{what};
  c.offset = offset;
  c.bytes = output_bytes;
  return use_stream(c, fd, buffer_bytes, {}, output_bytes);
}

stream_answer session::print(std::int32_t fd, std::int64_t offset, std::uint64_t buffer_bytes,
                             const std::string& text, std::int32_t number) {
  std::string input;
  device_call c{action::print};
  c.offset = offset;
  c.bytes = add_string(input, text);
  c.to = number;
  return use_stream(c, fd, buffer_bytes, input, 1);
}

stream_answer session::seek(std::int32_t fd, std::int64_t position, std::int64_t offset,
                            int whence) {
  device_call c{action::seek};
  c.offset = position;
  c.bytes = static_cast<std::uint64_t>(offset);
  c.to = whence;
  return use_stream(c, fd, 1, {}, 1);
}

void expect_same_bytes(const std::string& actual, const std::string& expected,
                       const std::string& what) {
  if (actual == expected) return;
  const std::size_t both = std::min(actual.size(), expected.size());
  const auto differ = std::mismatch(
      actual.begin(), actual.begin() + static_cast<std::ptrdiff_t>(both), expected.begin());
  const auto at = static_cast<std::size_t>(differ.first - actual.begin());
  const auto word = [at](const std::string& s) {
    std::uint64_t w = 0;
    std::memcpy(&w, s.data() + at / 8 * 8, std::min<std::size_t>(8, s.size() - at / 8 * 8));
    return w;
  };
  ADD_FAILURE() << what << ": " << actual.size() << " bytes, expected " << expected.size()
                << "; they differ at " << at << std::hex << (at < both ? ": word " : "")
                << (at < both ? word(actual) : 0) << ", expected "
                << (at < both ? word(expected) : 0);
}

}  // namespace gpufs::testing
