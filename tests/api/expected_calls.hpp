// A script of one group, with what each of its calls must give: a test plans calls beside its
// model, runs the script, and has the answers checked.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "api/stage.hpp"

namespace gpufs::testing {

// What a call must give.
struct expectation {
  // The result, from `least` to `most`.
  std::int64_t least = 0;
  std::int64_t most = 0;
  std::string what;  // the call, for messages
  // Bytes of the output, if there are any: at `memory`, after a result that is right.
  std::uint64_t memory = 0;
  std::string bytes;
  // What else is to be seen to, after a result that is right. It fails the running test itself.
  std::function<void(const outcome&, const std::string& output)> judge;
};

class expected_calls {
 public:
  void clear();
  const script& calls() const { return calls_; }
  std::size_t size() const { return calls_.size(); }

  // A call that returns `result`.
  void add(const device_call& c, std::int64_t result, std::string what);
  // A call that returns a descriptor.
  void add_open(const device_call& c, std::string what);
  expectation& add(const device_call& c, expectation e);
  // gwrite of `bytes`, all of which it takes. They are added to the input, after a gap of
  // `misalignment` bytes.
  void add_write(int from, std::uint64_t at, const std::string& bytes, std::string& input,
                 std::uint64_t misalignment, std::string what);
  // A call that puts `expected` into the output, where room for `bytes` is added after a gap of
  // `misalignment` bytes. It returns how much that is.
  expectation& add_read(device_call c, std::uint64_t bytes, const std::string& expected,
                        std::uint64_t& output_bytes, std::uint64_t misalignment, std::string what);

  // Fails the running test for each answer that is not right. `who`: the group, for messages.
  void check(const std::string& who, const std::vector<outcome>& outcomes,
             const std::string& output) const;

 private:
  std::string describe(std::size_t i) const;
  std::string before(std::size_t i) const;

  script calls_;
  std::vector<expectation> expected_;
};

}  // namespace gpufs::testing
