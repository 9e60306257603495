// Failures of a mount's files. Bounded, because a full disk fails at each write: equal failures are
// counted, and after `errors_max` different ones the rest is only counted. But a failure that loses
// bytes takes the place of the last one that does not: a kernel may cause as many others as it
// likes, and the unmount must still say what was lost.
#pragma once

#include <cstddef>
#include <mutex>

#include "gpufs/file_error.hpp"

namespace gpufs {

// Thread-safe.
class file_error_log {
 public:
  static constexpr std::size_t errors_max = 1024;

  // `status`: -errno. Never fails: what there is no memory for is counted as dropped.
  void add(const std::string& path, int status, file_operation what,
           bool at_unmount = false) noexcept {
    add(path, {{}, -status, what, at_unmount, false, 1});
  }
  // The same for bytes that a last gclose gave up.
  void add_given_up(const std::string& path, int status) noexcept {
    add(path, {{}, -status, file_operation::write_back, false, true, 1});
  }
  file_error_list list() const;

  // Whether bytes of a file are lost after such a failure, or may be.
  static bool is_lost(const file_error& e) {
    return e.at_unmount || e.given_up || e.what == file_operation::close;
  }
  // Whether such a failure is not in the list, because there was no room or no memory for it.
  bool has_dropped_loss() const;

 private:
  // `fresh`: without the path.
  void add(const std::string& path, file_error fresh) noexcept;

  mutable std::mutex mutex_;  // guards all below
  file_error_list list_;
  bool has_dropped_loss_ = false;
};

}  // namespace gpufs
