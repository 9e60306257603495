// The host descriptors that a mount uses.
#pragma once

#include <cstddef>

namespace gpufs {

// A share of the host descriptors that the process may have, for one mount. Thread-safe.
//
// It is three eighths of what is free. What other mounts may open counts as taken, so a process
// with a mount for each GPU has descriptors left. What they have already opened counts twice, which
// leaves the program more.
class descriptor_grant {
 public:
  // With `raises_limit`, raises the process's soft limit to the hard limit, as language run-times
  // do. Subtracts the descriptors that are open, and those that the mount's `threads` need for a
  // moment.
  descriptor_grant(std::size_t threads, bool raises_limit);
  ~descriptor_grant();
  descriptor_grant(const descriptor_grant&) = delete;
  descriptor_grant& operator=(const descriptor_grant&) = delete;

  // The number of descriptors that the mount may keep open for files: at least 8.
  std::size_t files_max() const { return files_max_; }

  // Gives all back but `open` descriptors, which the mount leaves open for good.
  void keep_only(std::size_t open);

 private:
  std::size_t files_max_ = 0;
  std::size_t all_ = 0;  // also those of the threads
};

}  // namespace gpufs
