// A thread with a descriptor table of its own, which closes copies of the process's descriptors. A
// close in the process's table would drop the locks that the program has on the file
// (descriptor_table.hpp).
//
// It takes its table once, when the backend is made, because that closes copies of the program's
// descriptors, and so consumes write errors of the program's files (docs/security.md).
#pragma once

#include <sys/types.h>

#include <memory>

#include "base/host_threads.hpp"

namespace gpufs {

// Thread-safe.
class closing_thread {
 public:
  // Waits until the thread has its table, at most 1 s. Throws std::bad_alloc.
  closing_thread();
  // Ends the thread and waits for it, at most 1 s. Then, and in a forked child, abandons it.
  ~closing_thread();
  closing_thread(const closing_thread&) = delete;
  closing_thread& operator=(const closing_thread&) = delete;

  // Called by a thread of the process's table. Closes a copy of the descriptor, and waits for that.
  // Returns 0, and in `closed` the result of close(2), 0 or -errno. Or the -errno of the copy. Or
  // -EAGAIN: there is no thread, or it could not take its table (before Linux 5.9, in a sandbox),
  // or it closes another descriptor for longer than 1 s.
  int close_copy(int descriptor, int& closed);

 private:
  struct shared_state;
  static void run(shared_state& state);
  std::shared_ptr<shared_state> state_;  // the thread's, too; null: no thread
  host_threads thread_;
  const pid_t owner_;
};

}  // namespace gpufs
