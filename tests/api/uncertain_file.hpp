// The naive model of a file whose writes may fail: for each byte the values that it may have, as
// the mount shows it and as the host has it. What failed and what went well narrows them; a value
// that was never written is never among them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpufs::testing {

// Bytes are zeros and letters. Of a file that one group changes, or of one group's bytes in a file
// of a fixed size.
class uncertain_file {
 public:
  // The host has exactly this, and nobody has it open.
  void set_content(const std::string& content);
  // By a call that went well, whose file then has `size` bytes; with `empties`, as O_TRUNC. Whether
  // it can be of that size.
  [[nodiscard]] bool open(std::uint64_t size, bool empties);
  // An open that was to empty it has failed: then it is empty, or what it was.
  void fail_to_empty() { host_size_min_ = 0; }
  void write(std::uint64_t at, const std::string& bytes);
  // The host has all that was written.
  void sync();
  void truncate(std::uint64_t size);
  // `all_written`: what its close has said.
  void close(bool all_written) {
    if (all_written) sync();
  }

  std::uint64_t size() const { return seen_.size(); }
  bool may_be_read(std::uint64_t at, char c) const {
    return at < seen_.size() && (seen_[at] & value(c)) != 0;
  }
  bool may_be_on_host(std::uint64_t at, char c) const {
    return at < host_.size() && (host_[at] & value(c)) != 0;
  }
  bool may_have_size_on_host(std::uint64_t size) const {
    return size >= host_size_min_ && size <= host_.size();
  }

 private:
  using values = std::uint64_t;  // a bit for each
  static values value(char c);
  void grow_host(std::uint64_t size) {
    if (host_.size() < size) host_.resize(size, value('\0'));
  }
  void grow_seen(std::uint64_t size);

  std::vector<values> seen_;  // of the mount's file
  std::vector<values> host_;  // of the host's: as large as it may be
  std::uint64_t host_size_min_ = 0;
};

}  // namespace gpufs::testing
