// Failures of a mount's files: the result of mount::file_errors().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpufs {

// The operation of the host that failed.
enum class file_operation {
  write_back,  // bytes that kernels wrote did not reach the file
  sync,        // the bytes may not be on the file's disk
  close        // the file system reported a late error, as NFS and FUSE do: bytes may be missing
};

struct file_error {
  std::string path;  // as the kernel opened it
  int error_number = 0;
  file_operation what = file_operation::write_back;
  // The failure occurred while the mount ended, so there is no retry: bytes are lost, or may be.
  // Otherwise a failed write-back leaves its bytes dirty, and a later one may succeed.
  bool at_unmount = false;
  // The last gclose discarded bytes that it could not write. They are lost, unless a write that got
  // no answer in time has completed since. Then `what` is write_back.
  bool discarded = false;
  std::uint64_t count = 1;  // how often the same failure occurred

  // "write-back", "sync" or "close".
  const char* operation_name() const noexcept;
};

// In the order of their first occurrence.
struct file_error_list {
  std::vector<file_error> errors;
  std::uint64_t dropped = 0;  // failures for which the list had no room
};

}  // namespace gpufs
