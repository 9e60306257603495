// Files as arrays: what Python's File and FileArray do. Kernels of the mount's device open, read
// and write the file. Calls that read or write are enqueued in a stream and return at once. The
// next call that waits reports errors of the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "arrays/stream_places.hpp"
#include "gpufs/gpufs.cuh"
#include "gpufs/gpufs.hpp"

namespace gpufs::arrays {

// A dimension with a fixed step in the file.
struct steps {
  std::uint64_t count;
  std::int64_t stride;  // bytes
};

// Integers in device memory: where in the file a dimension's items lie.
struct index_list {
  const void* items = nullptr;  // null: there is no list
  std::uint64_t count = 0;
  std::uint32_t item_bytes = 8;  // 1, 2, 4 or 8
  bool is_signed = true;
  // Items are from -length (the first item) to length - 1. 0: any, and negative items do not
  // count from the end.
  std::int64_t length = 0;
  std::int64_t stride = 1;  // bytes from one item to the next
};

// Runs of bytes of a file, in the order of the result: `before` is outermost, then the list, then
// `behind`.
struct selection {
  static constexpr std::uint32_t dimensions_max = 8;
  std::int64_t offset = 0;  // of the first run, if all indices are 0
  std::uint32_t before_count = 0, behind_count = 0;
  steps before[dimensions_max] = {},
        behind[dimensions_max] = {};  // plain arrays, because kernels use them
  index_list list;
  std::uint64_t run_bytes = 0;
};

// Whether missing pages are loaded into the cache, or only the wanted bytes are read from the host.
// `when_it_pays`: loads pages for runs from half a page to a MiB.
enum class keep { when_it_pays, always, never };

// A list had an item out of its dimension's range.
class index_error : public std::exception {
 public:
  explicit index_error(std::int64_t index);
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

struct board;

// The errors of one read or write of a file, separate from the file's other calls. For one call;
// must outlive it.
class outcome {
 public:
  explicit outcome(std::shared_ptr<device_memory> memory);
  // Waits for the call.
  ~outcome();
  outcome(const outcome&) = delete;
  outcome& operator=(const outcome&) = delete;

  // Waits until the device is done with the call. Throws its error as file::check() does, once.
  void wait();

 private:
  friend class file;
  const std::shared_ptr<device_memory> memory_;
  const std::shared_ptr<device_memory::event> end_;
  void* const failed_;  // pinned: the word of struct failure
  std::string name_;    // of the file
};

// An open file of a mount. The mount must outlive it. Thread-safe.
class file {
 public:
  // Opens the file by a kernel; `flags` and `mode` are those of gopen. A file that is opened for
  // writing shares its record with no other open: it is the file that the path leads to now. Throws
  // gpufs::error with `name`, as all calls do. Waits.
  file(mount& m, std::shared_ptr<device_memory> memory, const std::string& path, std::string name,
       std::int32_t flags, std::uint32_t mode);
  // Closes the file. Ignores errors.
  ~file();
  file(const file&) = delete;
  file& operator=(const file&) = delete;

  std::int32_t descriptor() const { return fd_; }
  // The mount is gone, so there is nothing to close.
  void forget() { fd_ = -1; }

  // Reads bytes [offset, offset + bytes) into device memory. The file must have them when they are
  // read. With `own`, only `own` reports errors of this call; use it for nothing else.
  void read(char* to, std::uint64_t bytes, std::uint64_t offset, void* stream,
            outcome* own = nullptr);
  // Reads a selection into contiguous memory. `s.list` must stay until the stream has passed the
  // call.
  void read(char* to, const selection& s, keep pages, void* stream, outcome* own = nullptr);
  // `appends`: writes at the end that the file then has, in one piece, and ignores `offset`.
  void write(const char* from, std::uint64_t bytes, std::uint64_t offset, bool appends,
             void* stream, outcome* own = nullptr);

  // The calls below wait for all earlier calls, and throw their errors.
  void wait();
  struct state {
    file_status status;
    // The file shares its content and size with files of this mount that write it, or wrote it.
    bool is_shared;
    bool is_written;  // such a file is open
  };
  state status();
  void sync();
  void truncate(std::uint64_t size);
  // Closes the file in any case. Throws an error of the close itself first, because it means that
  // bytes are lost. An earlier error is its nested exception.
  void close();

  // Throws pending errors, one a call: first that of writes, then that of reads. Does not wait.
  void check();
  // Keeps an error of a call that has no caller to throw to. check() throws the first one of writes
  // and the first one of reads.
  void keep_error(const std::exception_ptr& failed, bool writes) noexcept;
  // How often check() has thrown. After that, what was read before may be incomplete.
  std::uint64_t failures() const { return failures_; }

 private:
  // Runs a call's kernel, waits for it, and returns its result.
  template <class Call>
  std::int64_t ask(const Call& call);
  // The same, but throws if the call has failed.
  template <class Call>
  std::int64_t ask_for(const Call& call, const char* what);
  template <class Kernel>
  void launch_walk(const Kernel& kernel, std::uint64_t groups, std::uint32_t groups_of_block,
                   void* stream, outcome* own);
  // Returns the word where a call's kernels report errors. If the call has no outcome of its own,
  // throws the errors of earlier calls.
  channel_word<std::uint64_t>* begin_call(outcome* own, bool writes);
  std::uint64_t frames() const {
    return mount_.options().cache_bytes / mount_.options().page_bytes;
  }

  mount& mount_;
  const std::shared_ptr<device_memory> memory_;
  const std::string name_;
  std::atomic<std::int32_t> fd_{-1};
  std::atomic<std::uint64_t> failures_{0};
  // Guards the board, except the words in which kernels report errors. Held while the host
  // waits for an answer.
  std::mutex ask_latch_;
  struct board* board_ = nullptr;  // pinned
  std::mutex latch_;               // guards the members below; held only briefly
  std::exception_ptr kept_write_, kept_read_;
  stream_places places_{*memory_};
};

}  // namespace gpufs::arrays
