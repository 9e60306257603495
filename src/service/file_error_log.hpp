// The failures of a mount's files. The list is bounded, because a full disk fails at each write.
// Equal failures are counted. After `errors_max` different ones, further failures are only counted.
// But a failure that loses bytes replaces the last one that does not: a kernel may cause any number
// of other failures, and the unmount must still report what was lost.
#pragma once

#include <cstddef>
#include <mutex>

#include "gpufs/file_error.hpp"

namespace gpufs {

// Thread-safe. `mutex_` guards all members.
class file_error_log {
 public:
  static constexpr std::size_t errors_max = 1024;

  // `status`: -errno. Never fails: a failure that there is no memory for counts as dropped.
  void add(const std::string& path, int status, file_operation what,
           bool at_unmount = false) noexcept {
    add(path, {{}, -status, what, at_unmount, false, 1});
  }
  // As add(), for bytes that a last gclose discarded.
  void add_discarded(const std::string& path, int status) noexcept {
    add(path, {{}, -status, file_operation::write_back, false, true, 1});
  }
  file_error_list list() const;

  // Whether a failure of this kind loses bytes of a file, or may.
  static bool is_lost(const file_error& e) {
    return e.at_unmount || e.discarded || e.what == file_operation::close;
  }
  // Whether a failure that loses bytes is missing from the list, for lack of room or memory.
  bool has_dropped_loss() const;

 private:
  // `fresh`: without its path.
  void add(const std::string& path, file_error fresh) noexcept;

  mutable std::mutex mutex_;  // guards the members below
  file_error_list list_;
  bool has_dropped_loss_ = false;
};

}  // namespace gpufs
