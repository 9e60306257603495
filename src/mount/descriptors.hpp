// The host descriptors that a mount uses.
#pragma once

#include <cstddef>

namespace gpufs {

// A share of the host descriptors that the process may have, for one mount. Thread-safe.
//
// A quarter of what is free stays for the program, with any number of mounts: what other mounts may
// open counts as taken. What they have already opened counts twice, which leaves the program more.
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

 private:
  std::size_t files_max_ = 0;
  std::size_t all_ = 0;  // also those of the threads
};

}  // namespace gpufs
