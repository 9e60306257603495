// What a kernel may put into the channel is anything: an input, of any bytes, is taken for requests
// in slots, and for the bytes in their staging memory. The service has to answer each, within what
// was asked for, and go on.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "fuzz/watched_backend.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {

class fuzz_input;

// One service for all inputs: starting one takes longer than answering.
class slot_fuzzer {
 public:
  slot_fuzzer();

  // Ends the program when the service does what it should not.
  void run(std::span<const std::uint8_t> input);
  // Requests that were answered so far.
  std::uint64_t answered() const { return answered_; }

 private:
  static constexpr std::uint32_t slot_count = 4;
  static constexpr std::uint32_t staging_bytes = limits::staging_bytes_min;

  // A request that was posted, and what was in its slot's staging memory then.
  struct posted {
    bool is_there = false;
    request asked{};
    std::string staging;
  };

  void post(std::uint32_t slot, std::uint8_t how, const request& r, fuzz_input& in);
  request make_request(fuzz_input& in, std::string& staging);
  void name_paths(const request& r, const std::string& staging);
  // Answers of all requests under way.
  void finish();
  void check_answer(const posted& p, std::uint32_t slot, std::int32_t result, bool alone);
  void check_open(const posted& p, std::uint32_t slot, std::int32_t result);
  void check_bulk(const posted& p, std::int32_t result, bool alone);
  void check_written(const std::vector<std::pair<posted, std::int32_t>>& answers);
  bool is_open(std::uint64_t handle, bool to_write) const;
  bool is_node(std::uint64_t node) const;  // of a file that is open for writing

  const std::shared_ptr<watched_backend> io_;
  service_rig rig_;
  channel_client client_;
  const std::uint32_t sink_;
  std::array<posted, slot_count> posted_;
  std::set<std::uint64_t> reading_;                 // handles of files that are open
  std::map<std::uint64_t, std::uint64_t> writing_;  // ... for writing, with their nodes' names
  std::string frames_;                              // as they should be
  std::uint64_t answered_ = 0;
};

}  // namespace gpufs::testing
