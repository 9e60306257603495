#include "api/expected_calls.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "api/session.hpp"

namespace gpufs::testing {

void expected_calls::clear() {
  calls_.clear();
  expected_.clear();
}

expectation& expected_calls::add(const device_call& c, expectation e) {
  calls_.push_back(c);
  return expected_.emplace_back(std::move(e));
}

void expected_calls::add(const device_call& c, std::int64_t result, std::string what) {
  expectation e;
  e.least = e.most = result;
  e.what = std::move(what);
  (void)add(c, std::move(e));
}

void expected_calls::add_open(const device_call& c, std::string what) {
  expectation e;
  e.most = std::numeric_limits<std::int32_t>::max();
  e.what = std::move(what);
  (void)add(c, std::move(e));
}

void expected_calls::add_write(int from, std::uint64_t at, const std::string& bytes,
                               std::string& input, std::uint64_t misalignment, std::string what) {
  device_call c{action::write};
  c.from = from;
  c.offset = static_cast<std::int64_t>(at);
  c.bytes = bytes.size();
  input.append(misalignment, '.');
  c.memory = input.size();
  input += bytes;
  add(c, static_cast<std::int64_t>(bytes.size()), std::move(what));
}

expectation& expected_calls::add_read(device_call c, std::uint64_t bytes,
                                      const std::string& expected, std::uint64_t& output_bytes,
                                      std::uint64_t misalignment, std::string what) {
  c.bytes = bytes;
  c.memory = output_bytes + misalignment;
  output_bytes = c.memory + bytes;
  expectation e;
  e.least = e.most = static_cast<std::int64_t>(expected.size());
  e.what = std::move(what);
  e.memory = c.memory;
  e.bytes = expected;
  return add(c, std::move(e));
}

std::string expected_calls::describe(std::size_t i) const {
  return "call " + std::to_string(i) + ": " + expected_[i].what + ", " +
         std::to_string(calls_[i].bytes) + " bytes";
}

// The calls that lead to a failure are among the last ones.
std::string expected_calls::before(std::size_t i) const {
  constexpr std::size_t shown = 40;
  std::string text;
  for (std::size_t k = i - std::min(i, shown); k < i; ++k) text += "\n  " + describe(k);
  return text;
}

void expected_calls::check(const std::string& who, const std::vector<outcome>& outcomes,
                           const std::string& output) const {
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    const expectation& e = expected_[i];
    const std::int64_t result = outcomes[i].result;
    const bool is_right = result >= e.least && result <= e.most;
    if (is_right && output.compare(e.memory, e.bytes.size(), e.bytes) == 0 && !e.judge) continue;
    const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                       who + ", " + describe(i) + "; before it:" + before(i));
    if (!is_right) ADD_FAILURE() << "result " << result << ", not " << e.least << " to " << e.most;
    if (!is_right) continue;
    expect_same_bytes(output.substr(e.memory, e.bytes.size()), e.bytes, "bytes read");
    if (e.judge) e.judge(outcomes[i], output);
  }
}

}  // namespace gpufs::testing
