// Descriptor tables: the process's table, and the tables that openers have of their own.
//
// Threads. Only the threads of a table can use and close its numbers. Another thread can do this:
//   - To use a descriptor, it calls reopen(), which opens the same file again through its link in
//     /proc. The link leads to the file itself, even if the path was renamed or removed since. If
//     the file cannot be opened again (its mode was changed, or a server no longer knows it),
//     reopen() copies the descriptor itself, which needs Linux 6.9.
//   - To close a descriptor, it calls close(), which leaves the number to the table's own threads.
//     They close it in close_handed().
//
// An opener's table ends with its guard, and all its descriptors with it.
//
// Locks. `mutex_` guards the lists of handed and kept descriptors. `life_` is held shared while a
// thread follows a link, so that the table does not end meanwhile. end() takes `life_` first, then
// `mutex_`.
//
// File locks. POSIX record locks (fcntl(2)) belong to a table, too. A thread that closes any
// descriptor of a file drops all locks that its table has on that file. So a descriptor in the
// process's table is not closed while any process holds such a lock on its file, because the lock
// may be the program's. It is kept, reused by the next open of that file, and closed after the lock
// is gone. A lock that the program takes between the check and the close, within about a
// microsecond, is still dropped. Own tables have no locks.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "backend/stream_numbers.hpp"
#include "gpufs/backend.hpp"

namespace gpufs {

class closing_thread;

// Thread-safe, except for functions that only this table's threads may call.
class descriptor_table {
 public:
  // The table of all threads that have none of their own. Never destroyed.
  static descriptor_table& of_process();
  static descriptor_table& of_this_thread() {
    return current_ != nullptr ? **current_ : of_process();
  }
  // The calling thread's table for an object that keeps it. Null: the process's table.
  static std::shared_ptr<descriptor_table> shared_of_this_thread() {
    return current_ != nullptr ? *current_ : nullptr;
  }

  // Whether a thread can have its own table that other threads can reach. Tries it with a temporary
  // thread, and waits for it. `proc`: where the proc file system is mounted.
  static bool can_be_own(const std::string& proc) noexcept;
  // Gives the calling thread, which uses the process's table, its own table until the result is
  // destroyed. Returns null on failure.
  static std::unique_ptr<descriptor_table_guard> make_own(const std::string& proc) noexcept;

  // `thread`: the thread with this table. `proc`: where the proc file system is mounted.
  descriptor_table(const std::string& proc, long thread);
  descriptor_table(const descriptor_table&) = delete;
  descriptor_table& operator=(const descriptor_table&) = delete;

  bool is_of_this_thread() const { return &of_this_thread() == this; }
  bool is_own() const { return this != &of_process(); }

  // Called by threads of this table. As openat(2) and pread(2), but return -errno instead of -1.
  // open() returns 0, 1 or 2 only for O_PATH. For other flags, the caller has a path_descriptor.
  int open(const char* path, int flags, unsigned mode = 0, int folder = AT_FDCWD);
  std::int64_t read(int descriptor, char* to, std::uint64_t bytes, std::uint64_t offset) const;

  // For an own table: an O_PATH descriptor of the /proc folder with the links to this table's open
  // files. Negative when there is none.
  int links() const { return own_links_; }
  // Called by threads of this table. Closes an O_PATH descriptor, which drops no locks.
  void close_path(int descriptor) const noexcept { (void)close_now(descriptor); }
  stream_numbers& streams() { return streams_; }

  // The file of a kept descriptor, and how it was opened: O_RDONLY, O_WRONLY or O_RDWR.
  struct kept_name {
    std::uint64_t device, inode;
    int access;
    bool operator==(const kept_name& other) const = default;
  };
  // Called by threads of this table. Takes a descriptor that was kept because of a lock. Returns
  // -ENOENT when there is none. `path`: an O_PATH descriptor of the file, to check access
  // (-EACCES); -1: no check.
  int take_kept(const kept_name& name, int path = -1);

  // Called by threads of this table, for a descriptor just opened for writing. Moves it to a number
  // that no thread copies when it takes its own table. Such a thread closes its copies, and would
  // consume write errors. Returns the same descriptor when it cannot move: in an own table, for a
  // locked file, or without a free number. `reported`: what the close of the old number reports, 0
  // or -errno: on some file systems (FUSE) an error of any earlier write to the file.
  int move_from_copied(int descriptor, int& reported) const;

  // Called by threads of the process's table. As backend_file::report_close(): returns what
  // close(2) of a copy of the descriptor reports, or the error of a write-back that the descriptor
  // was not told of. Drops no locks: `other` closes the copy of a locked file.
  int report_close(int descriptor, closing_thread& other) const;

  // Called by the thread of an own table. Names who gets the error of the close of a descriptor,
  // also if the table's end closes it.
  void name_listener(int descriptor, std::shared_ptr<close_listener> told);
  // Called by any thread. Closes the descriptor, or leaves it to a thread of this table. No other
  // thread may use the descriptor any more. `told`: gets the error of the close. Null: who
  // was named, or nobody.
  void close(int descriptor, std::shared_ptr<close_listener> told = nullptr) noexcept;
  // Called by threads of this table. Closes descriptors that other threads left, and now and then
  // those that were kept because of locks.
  void close_handed() noexcept;
  // The number of descriptors that are open only because of locks.
  std::size_t kept_count() const { return kept_count_.load(std::memory_order_relaxed); }
  // Called by threads of another table. Returns a descriptor of the calling thread's table for the
  // same file, or -errno. `descriptor` must stay open until this returns.
  int reopen(int descriptor);

 private:
  friend class own_table_stay;
  descriptor_table();  // the process's table
  // Called by threads of this table, for a file that got one of the stream numbers because the
  // program closed that stream meanwhile. Returns the same file under a higher number, or closes it
  // and returns -errno.
  int above_streams(int descriptor);
  int close_now(int descriptor) const noexcept;  // 0 or -errno
  void close_or_keep(int descriptor, std::shared_ptr<close_listener> told = nullptr) noexcept;
  void close_kept() noexcept;
  int copy(int descriptor) const;
  void end();

  // The calling thread's own table. Null: it uses the process's table.
  static thread_local const std::shared_ptr<descriptor_table>* current_;

  const long thread_ = 0;  // the thread with this table; 0: the process's table
  // The folder with the links to this table's open files, with a slash at the end.
  const std::string links_;
  // Indexed by descriptor. Used by the thread of an own table only.
  std::vector<std::shared_ptr<close_listener>> listeners_;
  int own_links_ = -1;  // set by the table's thread before it is shared
  stream_numbers streams_;
  std::shared_mutex
      // Held shared while a thread follows a link, so that the table does not end. Taken first.
      life_;
  std::mutex mutex_;  // guards handed_ and kept_, and with life_ ended_
  struct handed_descriptor {
    int number = -1;
    std::shared_ptr<close_listener> told;
  };
  std::vector<handed_descriptor> handed_;
  struct kept_descriptor {
    kept_name name;
    int number;
    std::shared_ptr<close_listener> told;
  };
  std::vector<kept_descriptor> kept_;  // guarded by mutex_
  // Relaxed: the count orders no other memory. Never too low: a descriptor that close_kept() has
  // taken out of kept_ counts until it is closed.
  std::atomic<std::size_t> kept_count_{0};
  // Whether kept_ has any, as any_handed_; and the time of the next check of the locks, in ms of
  // CLOCK_MONOTONIC_COARSE.
  std::atomic<bool> any_kept_{false};
  std::atomic<std::int64_t> look_at_ms_{0};
  bool ended_ = false;  // read with life_ or mutex_ held, written with both
  // Whether handed_ has any. Relaxed: it only saves the mutex, which orders the numbers. A thread
  // that misses one finds it at its next call.
  std::atomic<bool> any_handed_{false};
};

// An O_PATH descriptor of the calling thread's table, closed in the destructor. Its number is never
// 0, 1 or 2, and no file that the thread opens while this object lives gets one of them
// (stream_numbers.hpp).
class path_descriptor {
 public:
  // `open` returns an O_PATH descriptor, or -errno.
  template <class Open>
  explicit path_descriptor(const Open& open)
      : table_(descriptor_table::of_this_thread()), streams_(table_.streams()),
        number_(table_.streams().above(open())) {}
  ~path_descriptor() {
    if (number_ >= 0) table_.close_path(number_);
  }
  path_descriptor(const path_descriptor&) = delete;
  path_descriptor& operator=(const path_descriptor&) = delete;
  int number() const { return number_; }  // or -errno

 private:
  descriptor_table& table_;
  const stream_numbers::stay streams_;
  const int number_;
};

}  // namespace gpufs
