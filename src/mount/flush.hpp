// The end of a mount's files: what kernels wrote and did not close goes to its files, as it would
// when a process ends.
//
// What is dirty is read out of the arena. A kernel may have stored anything there, so nothing that
// is read there is trusted: a page goes only to a file that the service itself has open for
// writing, and whose version the page's key names; frames, page numbers and sizes are checked
// before they are used.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "device/device.hpp"
#include "gpufs/cache/arena.cuh"
#include "service/file_table.hpp"

namespace gpufs {

struct flush_rules {
  // A service thread hangs in a call of the backend. If that is a write, it may still land on top
  // of what is newer, so a file that lacks the answer to a write is not written any more.
  bool service_hangs = false;
  // Without a call of the backend that returns, for so long, the flush is given up.
  std::uint64_t timeout_ns = 0;
};

// Writes the dirty bytes of all files that are open for writing, and nothing else; then syncs each
// of these files, and asks the file system for what close(2) would report. Only when no kernel
// runs. Errors go to `files.errors()`: with the path, one for each file and operation. False when
// it was given up: a thread hangs in the backend, and `gpu` and `files` must stay.
[[nodiscard]] bool flush_files(device& gpu, const mount_ref& fs, file_table& files,
                               const flush_rules& rules);

// Reports each file that has dirty bytes as not written, with this -errno. For a mount whose
// kernels do not end: what they are about to write is not known, so nothing is written.
void report_unwritten(device& gpu, const mount_ref& fs, file_table& files, int status);

}  // namespace gpufs
