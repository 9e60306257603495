// Descriptor tables: the process's, and those that openers have of their own.
//
// A table belongs to the threads that have it: only they can use its numbers, and only they can
// close them. What a thread of another table wants of a descriptor:
//
//   to use it    It opens the same file once more, by the link that /proc has of it. The link leads
//                to the file itself, also when its path was renamed or removed meanwhile. If the
//                file cannot be opened once more (its mode was changed; a server does not know it
//                any more), it asks for a copy of the descriptor itself, which Linux 6.9 gives.
//   to close it  It leaves the number to the table's own threads, which close it in close_handed().
//
// An opener's table ends with its stay, and with it all descriptors in it.
//
// POSIX record locks (fcntl(2)) belong to a table, too: a thread that closes any descriptor of a
// file drops all locks that its table has on that file. So a descriptor in the process's table is
// not closed while anyone holds such a lock on its file, as the lock may be the program's. It is
// kept, used again by the next open of that file, and closed after the lock has gone. A lock that
// the program takes between that look and the close, within a microsecond or so, is still dropped.
// Own tables have no locks.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "gpufs/backend.hpp"

namespace gpufs {

// Thread-safe.
class descriptor_table {
 public:
  // The table of all threads that have none of their own. Never destroyed.
  static descriptor_table& of_process();
  static descriptor_table& of_this_thread() {
    return current_ != nullptr ? **current_ : of_process();
  }
  // The same for those who keep it; null is the process's.
  static std::shared_ptr<descriptor_table> shared_of_this_thread() {
    return current_ != nullptr ? *current_ : nullptr;
  }

  // Whether a thread can have a table of its own that others can reach into; tried by a thread that
  // ends with it. `proc`: where the proc file system is.
  static bool can_be_own(const std::string& proc) noexcept;
  // Gives the calling thread, which has the process's, a table of its own until the result is
  // destroyed. Null when that cannot be done.
  static std::unique_ptr<descriptor_table_guard> make_own(const std::string& proc) noexcept;

  // `thread`: one that has this table; `proc`: where the proc file system is.
  descriptor_table(const std::string& proc, long thread);
  descriptor_table(const descriptor_table&) = delete;
  descriptor_table& operator=(const descriptor_table&) = delete;

  bool is_of_this_thread() const { return &of_this_thread() == this; }
  bool is_own() const { return this != &of_process(); }

  // By threads of this table. As openat(2) and pread(2), but -errno instead of -1. Never gives 0, 1
  // or 2, unless for O_PATH.
  int open(const char* path, int flags, unsigned mode = 0, int folder = AT_FDCWD) const;
  std::int64_t read(int descriptor, char* to, std::uint64_t bytes, std::uint64_t offset) const;

  // In an own table: the folder of /proc with links to what is open here, as an O_PATH descriptor;
  // negative where there is none.
  int links() const { return own_links_; }
  // By threads of this table: closes an O_PATH descriptor, which drops no locks.
  void close_path(int descriptor) const noexcept { close_now(descriptor); }

  // What a kept descriptor is of, and how it was opened: O_RDONLY, O_WRONLY or O_RDWR.
  struct kept_name {
    std::uint64_t device, inode;
    int access;
    bool operator==(const kept_name& other) const = default;
  };
  // By threads of this table: takes a descriptor that was kept because of a lock; -ENOENT where
  // there is none. `path`: an O_PATH descriptor of the file, by which the file's mode is asked
  // (-EACCES); -1: it is not asked.
  int take_kept(const kept_name& name, int path = -1);

  // By threads of this table, of a descriptor that is to be written and was opened just now: the
  // same under a number that no other thread copies when it takes a table of its own, since it
  // closes the copy, and hears of errors that nobody gets. As it was where that cannot be done: in
  // an own table, of a locked file, and where there are no such numbers.
  int move_from_copied(int descriptor) const;

  // By threads of the process's table: what close(2) of a copy of the descriptor reports; 0, or
  // -errno. Drops no locks. An error also where no copy can be closed: of a locked file, before
  // Linux 5.9 or in a sandbox (ENOSYS, EPERM).
  int report_close(int descriptor) const;

  // By any thread: closes it now, or leaves it to those who can. The caller has owned it alone
  // until now.
  void close(int descriptor) noexcept;
  // By threads of this table: closes what others left, and now and then what was kept because of
  // locks.
  void close_handed() noexcept;
  // Descriptors that are open only because of locks.
  std::size_t kept_count() const { return kept_count_.load(std::memory_order_relaxed); }
  // By threads of another table, which get a descriptor of theirs for the same file, or -errno.
  // `descriptor` must not be closed before this has returned.
  int reopen(int descriptor);

 private:
  friend class own_table_stay;
  descriptor_table();  // the process's
  // By threads of this table: the same file under a number that is none of the program's streams,
  // or -errno and closed.
  int above_streams(int descriptor) const;
  void close_now(int descriptor) const noexcept;
  void close_or_keep(int descriptor) noexcept;
  void close_kept() noexcept;
  int copy(int descriptor) const;
  void end();

  static thread_local const std::shared_ptr<descriptor_table>* current_;  // null: the process's

  const long thread_ = 0;  // that has this table; 0: not known
  const std::string
      links_;           // the folder with the links to what is open in this table, with the slash
  int own_links_ = -1;  // set by its thread before it is used
  std::shared_mutex
      // held shared while a thread follows a link, so that the table does not end; taken first
      life_;
  std::mutex mutex_;  // guards handed_, kept_ and ended_
  std::vector<int> handed_;
  struct kept_descriptor {
    kept_name name;
    int number;
  };
  std::vector<kept_descriptor> kept_;  // guarded by mutex_
  // Relaxed: a number, by which nothing else becomes known. Never less than there are, as those
  // count which a look at the locks has taken out of kept_.
  std::atomic<std::size_t> kept_count_{0};
  // As any_handed_; and when to look at the locks again, in milliseconds of CLOCK_MONOTONIC_COARSE.
  std::atomic<bool> any_kept_{false};
  std::atomic<std::int64_t> look_at_ms_{0};
  bool ended_ = false;  // to be read with either, written with both
  // Whether handed_ has any. Relaxed: only saves the mutex, under which the numbers pass. Who
  // misses one finds it next time.
  std::atomic<bool> any_handed_{false};
};

}  // namespace gpufs
