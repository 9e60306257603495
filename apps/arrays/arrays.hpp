// Files as arrays: what Python's File and FileArray do, by kernels of the mount's device that open,
// read and write the file. Calls that read or write are made in the order of a stream, and return
// when they are in it; what goes wrong on the device is told by the next call that waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "arrays/memory.hpp"
#include "gpufs/gpufs.cuh"
#include "gpufs/gpufs.hpp"

namespace gpufs::arrays {

// A dimension that is walked with a fixed step in the file.
struct steps {
  std::uint64_t count;
  std::int64_t stride;  // bytes
};

// Integers in memory of the device: where in the file a dimension's items lie.
struct index_list {
  const void* items = nullptr;  // null: there is no list
  std::uint64_t count = 0;
  std::uint32_t item_bytes = 8;  // 1, 2, 4 or 8
  bool is_signed = true;
  std::int64_t length =
      // items are from -length, which is the first, to length - 1. 0: any, none counts from the end
      0;
  std::int64_t stride = 1;  // bytes from one to the next
};

// Runs of bytes of a file, in the order in which they lie in the result: `before` outermost, then
// the list, then `behind`.
struct selection {
  static constexpr std::uint32_t dimensions_max = 8;
  std::int64_t offset = 0;  // of the first run, if all steps are 0
  std::uint32_t before_count = 0, behind_count = 0;
  steps before[dimensions_max] = {},
        behind[dimensions_max] = {};  // plain arrays, as kernels use them
  index_list list;
  std::uint64_t run_bytes = 0;
};

// Whether pages that were missing are kept in the cache, or what is wanted of them read where the
// host has it. `when_it_pays`: of runs from half a page to a MiB.
enum class keep { when_it_pays, always, never };

// A list had an item that is out of its dimension's length.
class index_error : public std::exception {
 public:
  explicit index_error(std::int64_t index);
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

struct board;

// What one read or write of a file comes to, apart from the file's other calls. For one call; must
// outlive it.
class outcome {
 public:
  explicit outcome(std::shared_ptr<device_memory> memory);
  // Waits for the call.
  ~outcome();
  outcome(const outcome&) = delete;
  outcome& operator=(const outcome&) = delete;

  // Until the device is done with the call. Throws what went wrong with it, as file::check(); a
  // second time nothing.
  void wait();

 private:
  friend class file;
  const std::shared_ptr<device_memory> memory_;
  const std::shared_ptr<device_memory::event> end_;
  void* const failed_;  // pinned: struct failure's word
  std::string name_;    // of the file
};

// An open file of a mount, which must outlive it. Thread-safe.
class file {
 public:
  // Opens, by a kernel; `flags` and `mode` as gopen. Throws gpufs::error with `name`, as all calls
  // do. Waits.
  file(const mount& m, std::shared_ptr<device_memory> memory, const std::string& path,
       std::string name, std::int32_t flags, std::uint32_t mode);
  // Closes it, and drops what goes wrong.
  ~file();
  file(const file&) = delete;
  file& operator=(const file&) = delete;

  std::int32_t descriptor() const { return fd_; }
  // The mount is gone: nothing is left to be closed.
  void forget() { fd_ = -1; }

  // Bytes [offset, offset + bytes), which the file must have when it is read, to memory of the
  // device. With `own`, which is used for nothing else, only that reports what goes wrong with the
  // call.
  void read(char* to, std::uint64_t bytes, std::uint64_t offset, void* stream,
            outcome* own = nullptr);
  // A selection, as one piece without gaps. `s.list` must stay until the stream has come behind it.
  void read(char* to, const selection& s, keep pages, void* stream, outcome* own = nullptr);
  // `appends`: behind what the file has then, in one piece; `offset` is not looked at.
  void write(const char* from, std::uint64_t bytes, std::uint64_t offset, bool appends,
             void* stream, outcome* own = nullptr);

  // These wait for all that was asked before, and throw what went wrong with it.
  void wait();
  // `is_shared`: somebody may be writing the file in this mount, so its size may change.
  file_status status(bool& is_shared);
  void sync();
  void truncate(std::uint64_t size);
  // Closes it in any case. What the close itself met is thrown first, as bytes are lost then; what
  // went wrong before is its nested exception.
  void close();

  // Throws what has gone wrong so far, once: of writes first, then of reads, one a call. Does not
  // wait.
  void check();
  // How often check() has thrown: what was read before that may not be whole.
  std::uint64_t failures() const { return failures_; }

 private:
  // Runs a call's kernel, and waits for it. Its result.
  template <class Call>
  std::int64_t ask(const Call& call);
  // The same; throws when the call has failed.
  template <class Call>
  std::int64_t ask_for(const Call& call, const char* what);
  template <class Kernel>
  void launch_walk(const Kernel& kernel, std::uint64_t groups, std::uint32_t groups_of_block,
                   void* stream, outcome* own);
  // Where a call's kernels report what goes wrong. Without an outcome of its own throws what
  // earlier calls have reported.
  channel_word<std::uint64_t>* begin_call(outcome* own, bool writes);
  std::shared_ptr<device_memory::event> place_in(void* stream);
  std::uint64_t frames() const {
    return mount_.options().cache_bytes / mount_.options().page_bytes;
  }

  const mount& mount_;
  const std::shared_ptr<device_memory> memory_;
  const std::string name_;
  std::atomic<std::int32_t> fd_{-1};
  std::atomic<std::uint64_t> failures_{0};
  std::mutex
      // guards the board, but for what kernels tell of failures; held while the host waits for an
      // answer
      ask_latch_;
  struct board* board_ = nullptr;  // pinned
  std::mutex latch_;               // guards what follows; held for moments
  // The file's last place in each stream that it was used in.
  std::vector<std::pair<void*, std::shared_ptr<device_memory::event>>> last_;
};

}  // namespace gpufs::arrays
