// Descriptor tables: the process's, and those that openers have of their own.
//
// A table belongs to the threads that have it: only they can use its numbers, and only they can close them. What a thread of
// another table wants of a descriptor:
//
//   to use it    It opens the same file once more, by the link that /proc has of it. The link leads to the file itself, also
//                when its path was renamed or removed meanwhile. If the file cannot be opened once more (its mode was changed; a
//                server does not know it any more), it asks for a copy of the descriptor itself, which Linux 6.9 gives.
//   to close it  It leaves the number to the table's own threads, which close it in close_handed().
//
// An opener's table ends with its stay, and with it all descriptors in it.
#pragma once

#include <atomic>
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
  static descriptor_table& of_this_thread() { return current_ != nullptr ? **current_ : of_process(); }
  // The same for those who keep it; null is the process's.
  static std::shared_ptr<descriptor_table> shared_of_this_thread() { return current_ != nullptr ? *current_ : nullptr; }

  // Whether a thread can have a table of its own that others can reach into; tried by a thread that ends with it. `proc`: where
  // the proc file system is.
  static bool can_be_own(const std::string& proc) noexcept;
  // Gives the calling thread, which has the process's, a table of its own until the result is destroyed. Null when that cannot
  // be done.
  static std::unique_ptr<opener_stay> make_own(const std::string& proc) noexcept;

  // `thread`: one that has this table; `proc`: where the proc file system is.
  descriptor_table(const std::string& proc, long thread);
  descriptor_table(const descriptor_table&) = delete;
  descriptor_table& operator=(const descriptor_table&) = delete;

  bool is_of_this_thread() const { return &of_this_thread() == this; }
  bool is_own() const { return this != &of_process(); }

  // By threads of this table. As the functions of these names, but -errno instead of -1.
  int open(const char* path, int flags, unsigned mode = 0) const;
  std::int64_t read(int descriptor, char* to, std::uint64_t bytes, std::uint64_t offset) const;

  // By any thread: closes it now, or leaves it to those who can. The caller has owned it alone until now.
  void close(int descriptor) noexcept;
  // By threads of this table: closes what others left.
  void close_handed() noexcept;
  // By threads of another table, which get a descriptor of theirs for the same file, or -errno. `descriptor` must not be
  // closed before this has returned.
  int reopen(int descriptor);

 private:
  friend class own_table_stay;
  descriptor_table();  // the process's
  void close_now(int descriptor) const noexcept;
  int copy(int descriptor) const;
  void end();

  static thread_local const std::shared_ptr<descriptor_table>* current_;  // null: the process's

  const long thread_ = 0;    // that has this table; 0: not known
  const std::string links_;  // the folder with the links to what is open in this table, with the slash
  std::shared_mutex life_;   // held shared while a thread follows a link, so that the table does not end; taken first
  std::mutex mutex_;         // guards handed_ and ended_
  std::vector<int> handed_;
  bool ended_ = false;  // to be read with either, written with both
  // Whether handed_ has any. Relaxed: only saves the mutex, under which the numbers pass. Who misses one finds it next time.
  std::atomic<bool> any_handed_{false};
};

}  // namespace gpufs
