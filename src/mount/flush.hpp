// The end of a mount's files: flushes what kernels wrote and did not close, as happens when a
// process ends.
//
// The dirty bytes are read from the arena. A kernel may have stored anything there, so nothing read
// from it is trusted. A page is written only to a file that the service itself has open for
// writing, and only if the page's key names that file's version. Frames, page numbers and sizes are
// checked before use.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "device/device.hpp"
#include "gpufs/cache/arena.cuh"
#include "service/file_table.hpp"

namespace gpufs {

struct flush_rules {
  // A service thread hangs in a backend call. If that call is a write, it may still overwrite newer
  // bytes. So a file with an unanswered write is not written any more.
  bool service_hangs = false;
  // The flush gives up if no backend call returns for this time.
  std::uint64_t timeout_ns = 0;
};

// Writes the dirty bytes of all files that are open for writing, syncs each of them, and asks the
// file system for the error that close(2) would report. Precondition: no kernel runs. Adds errors
// to `files.errors()`: one for each file and operation, with the path. Waits; returns false if the
// flush gave up. Then a thread hangs in the backend, and `gpu` and `files` must stay alive.
[[nodiscard]] bool flush_files(device& gpu, const mount_ref& fs, file_table& files,
                               const flush_rules& rules);

// Reports each file with dirty bytes as not written, with the error `status` (-errno). For a mount
// whose kernels do not end: they may still write, so nothing is flushed.
void report_unwritten(device& gpu, const mount_ref& fs, file_table& files, int status);

}  // namespace gpufs
