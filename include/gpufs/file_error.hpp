// What failed for a file of a mount: mount::file_errors() returns these.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpufs {

// The host's operation that failed.
enum class file_operation {
  write_back,  // bytes that kernels wrote did not reach the file
  sync,        // they may not be on its disk
  close        // the file system reported a late error, as NFS and FUSE do: bytes may be missing
};

struct file_error {
  std::string path;  // as the kernel opened it
  int error_number = 0;
  file_operation what = file_operation::write_back;
  // The mount met it while it ended, so nobody tries again: bytes are lost, or may be. Otherwise a
  // failed write-back leaves its bytes dirty, and a later one may succeed.
  bool at_unmount = false;
  // The last gclose gave up bytes that it could not write: they are lost, unless a write that got
  // no answer in time has come to its end since. Then `what` is write_back.
  bool given_up = false;
  std::uint64_t count = 1;  // how often the same happened

  // "write-back", "sync" or "close".
  const char* operation_name() const noexcept;
};

// In the order in which they happened first.
struct file_error_list {
  std::vector<file_error> errors;
  std::uint64_t dropped = 0;  // failures that the list had no room for
};

}  // namespace gpufs
