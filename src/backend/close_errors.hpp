// The errors of close(2) that no caller waits for. A file system may tell the close of one
// descriptor of bytes that were written through another one (FUSE: the next flush of the file). So
// an error of such a close is kept for the service, which knows who writes the file.
#pragma once

#include <errno.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gpufs/backend.hpp"

namespace gpufs {

// Thread-safe. `mutex_` guards the list.
class close_errors {
 public:
  // `status`: -errno. Without memory, the error is kept without the name of its file.
  void add(const std::string& path, std::uint64_t device, std::uint64_t inode,
           int status) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      list_.push_back({path, device, inode, status});
    } catch (const std::bad_alloc&) {
      unnamed_ = status;
    }
    any_.store(true, std::memory_order_release);
  }
  // Acquire: pairs with the release above, so that a thread that has seen such a close end, by
  // other means than the mutex, finds its error.
  std::vector<close_error> take() {
    if (!any_.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(mutex_);
    if (unnamed_ != 0) list_.push_back({{}, 0, 0, unnamed_});
    unnamed_ = 0;
    any_.store(false, std::memory_order_relaxed);
    return std::exchange(list_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<close_error> list_;
  int unnamed_ = 0;
  std::atomic<bool> any_{false};
};

// Is told the errors of the closes of one file's descriptors. Thread-safe.
struct close_listener {
  close_listener(std::string p, std::shared_ptr<close_errors> e)
      : path(std::move(p)), errors(std::move(e)) {}

  const std::string path;
  const std::shared_ptr<close_errors> errors;  // null: nobody is interested
  // Of the file. Relaxed: who uses them got the file from the thread that stored them.
  std::atomic<std::uint64_t> device{0}, inode{0};

  // `status`: of close(2), 0 or -errno. -EBADF says that the program has closed the descriptor.
  void tell(int status) const noexcept {
    if (errors != nullptr && status != 0 && status != -EBADF)
      errors->add(path, device.load(std::memory_order_relaxed),
                  inode.load(std::memory_order_relaxed), status);
  }
};

}  // namespace gpufs
