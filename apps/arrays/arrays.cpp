// Compiled by nvcc if there is one, otherwise by the host compiler.
#include "arrays/arrays.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>

#include "arrays/kernels.cuh"
#include "common/arithmetic.cuh"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"

namespace gpufs::arrays {
namespace {

constexpr std::uint32_t walk_threads = 256, warps_of_block = walk_threads / 32;

// One thread copies each run that is smaller than this, because most of a warp would have nothing
// to do.
constexpr std::uint64_t small_run_bytes = 64;
// From this size on, blocks read past the cache: such amounts usually pass through memory only
// once.
constexpr std::uint64_t block_run_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t warp_piece_bytes = std::uint64_t{32} << 10;

std::uint64_t count_of(const steps* dimensions, std::uint32_t n) {
  std::uint64_t count = 1;
  for (std::uint32_t i = 0; i < n; ++i) count *= dimensions[i].count;
  return count;
}

using pinned_word = channel_word<std::uint64_t>;

// Takes what kernels have stored in the word of struct failure. 0 if there is no error.
std::uint64_t take_failure(pinned_word& failed) {
  // Kernels store the whole word. For them it is host memory, on which they have no atomic
  // exchange.
  auto* const word = reinterpret_cast<std::uint64_t*>(&failed);
  if (__atomic_load_n(word, __ATOMIC_RELAXED) == 0) return 0;
  return __atomic_exchange_n(word, 0, __ATOMIC_RELAXED);
}

[[noreturn]] void throw_failure(std::uint64_t word, const std::string& name) {
  const std::uint64_t kind = word & 0xff;
  const std::int64_t where = static_cast<std::int64_t>(word) >> 8;
  if (kind == failure::bad_index) throw index_error(where);
  if (kind == failure::ended_early)
    throw error(ENODATA,
                "the file ends at byte " + std::to_string(where) + ", before what was to be read",
                name);
  throw error(static_cast<int>(kind), "at byte " + std::to_string(where), name);
}

// Throws the first of two errors, with the second as its nested exception. The second may be null.
std::exception_ptr joined(const std::exception_ptr& first, const std::exception_ptr& second) {
  if (first == nullptr || second == nullptr) return first != nullptr ? first : second;
  try {
    std::rethrow_exception(first);
  } catch (const error& e) {
    try {
      try {
        std::rethrow_exception(second);
      } catch (...) {
        std::throw_with_nested(error(e));
      }
    } catch (...) {
      return std::current_exception();
    }
  } catch (...) {
    return first;
  }
}

}  // namespace

index_error::index_error(std::int64_t index)
    : text_("index " + std::to_string(index) + " is out of bounds") {}

outcome::outcome(std::shared_ptr<device_memory> memory)
    : memory_(std::move(memory)), end_(memory_->make_event()), failed_(memory_->pin()) {
  new (failed_) pinned_word{};
}

outcome::~outcome() {
  try {
    end_->wait();                    // until then kernels may store into the word
  } catch (const std::exception&) {  // an error of the driver: it runs no kernels any more
  }
  memory_->unpin(failed_);
}

void outcome::wait() {
  end_->wait();
  const std::uint64_t word = take_failure(*static_cast<pinned_word*>(failed_));
  if (word != 0) throw_failure(word, name_);
}

file::file(mount& m, std::shared_ptr<device_memory> memory, const std::string& path,
           std::string name, std::int32_t flags, std::uint32_t mode)
    : mount_(m), memory_(std::move(memory)), name_(std::move(name)) {
  if (path.size() > limits::path_bytes_max) throw error(ENAMETOOLONG, "open", name_);
  if (path.find('\0') != std::string::npos)
    throw error(EINVAL, "open: a path with a zero byte", name_);
  static_assert(sizeof(board) <= device_memory::pinned_bytes, "one for each file");
  board_ = new (memory_->pin()) board{};
  path.copy(board_->path, path.size());
  // The record of an older file of this path may still be open, or closing, although the path leads
  // to another file by now. O_TRUNC must not empty the older file.
  if ((flags & O_ACCMODE) != O_RDONLY) flags |= detail::open_unshared;
  try {
    const std::int64_t result = ask(open_call{flags, mode});
    // The flags and the path were valid at the open.
    if (result < 0) {
      const char* const what =
          "not a regular file that holds data, but a FIFO, a socket, a device, or of /proc or the "
          "like";
      throw error(static_cast<int>(-result), result == -EINVAL ? what : "open", name_);
    }
    fd_ = static_cast<std::int32_t>(result);
  } catch (...) {
    memory_->unpin(board_);
    throw;
  }
}

file::~file() {
  try {
    close();
  } catch (const std::exception&) {  // a destructor cannot report errors
  }
  memory_->unpin(board_);
}

template <class Call>
std::int64_t file::ask(const Call& call) {
  board_->result = -EIO;
  void* const stream = memory_->own_stream();
  launch(mount_, {1, asked<Call>::threads, 0, stream, false}, asked<Call>{board_, call});
  const std::unique_ptr<device_memory::event> done = memory_->make_event();
  done->record(stream);
  done->wait();
  return board_->result;
}

template <class Call>
std::int64_t file::ask_for(const Call& call, const char* what) {
  const std::int64_t result = ask(call);
  if (result < 0) throw error(static_cast<int>(-result), what, name_);
  return result;
}

template <class Kernel>
void file::launch_walk(const Kernel& kernel, std::uint64_t groups, std::uint32_t groups_of_block,
                       void* stream, outcome* own) {
  const std::uint64_t blocks = ceiling(groups, groups_of_block);
  // As many blocks as fill the device, but with pins for at most half of a small cache. A caller
  // that finds all frames pinned for long fails.
  const std::uint64_t most = std::clamp<std::uint64_t>(
      frames() / 2 / Kernel::pins_of_block, 1,
      std::uint64_t{mount_.multiprocessors()} * walk_shape::blocks_per_multiprocessor);
  // Before the launch: a kernel that runs must have an event that is waited for.
  const std::shared_ptr<device_memory::event> place = places_.place_in(stream);
  // No bulk path: the caller may make any call of the driver next.
  launch(mount_,
         {static_cast<std::uint32_t>(std::min(blocks, most)), walk_threads, 0, stream, false},
         kernel);
  place->record(stream);
  if (own != nullptr) own->end_->record(stream);
}

pinned_word* file::begin_call(outcome* own, bool writes) {
  if (own == nullptr) {
    check();
    return writes ? &board_->failed_write : &board_->failed;
  }
  own->name_ = name_;
  return static_cast<pinned_word*>(own->failed_);
}

void file::read(char* to, std::uint64_t bytes, std::uint64_t offset, void* stream, outcome* own) {
  selection s;
  s.offset = static_cast<std::int64_t>(offset);
  s.run_bytes = bytes;
  read(to, s, keep::when_it_pays, stream, own);
}

void file::read(char* to, const selection& s, keep pages, void* stream, outcome* own) {
  const failure failed{begin_call(own, false)};
  std::uint64_t runs = count_of(s.before, s.before_count) * count_of(s.behind, s.behind_count);
  if (s.list.items != nullptr) runs *= s.list.count;
  if (runs == 0 || s.run_bytes == 0) return;
  const std::uint32_t members = mount_.device() == device_kind::cuda ? 32 : 1;  // of a warp
  // Each thread holds a page.
  const bool has_frames = frames() / 2 >= read_small_runs::pins_of_block;
  if (s.run_bytes < small_run_bytes && has_frames) {
    return launch_walk(read_small_runs(s, fd_, to, runs, failed), ceiling(runs, members),
                       warps_of_block, stream, own);
  }
  using detail::keeps;
  const std::uint64_t page_bytes = mount_.options().page_bytes;
  const bool is_long = s.run_bytes >= block_run_bytes;
  const bool keeps_all = pages == keep::always ||
                         (pages == keep::when_it_pays && !is_long && s.run_bytes * 2 >= page_bytes);
  const auto start = [&](auto kernel, std::uint64_t piece_bytes, std::uint32_t groups_of_block) {
    kernel.runs = runs;
    kernel.piece_bytes = piece_bytes;
    kernel.pieces = ceiling(s.run_bytes, piece_bytes);
    launch_walk(kernel, runs * kernel.pieces, groups_of_block, stream, own);
  };
  const auto start_as = [&]<keeps Keeps>() {
    if (is_long)
      return start(read_runs<block_group, Keeps>(s, fd_, to, failed), block_run_bytes, 1);
    if (s.run_bytes > page_bytes)
      return start(read_runs<warp_group, Keeps>(s, fd_, to, failed), warp_piece_bytes,
                   warps_of_block);
    // As many runs at a time as leave work for each warp of a full device.
    const std::uint64_t warps = std::uint64_t{mount_.multiprocessors()} *
                                walk_shape::blocks_per_multiprocessor * warps_of_block;
    const auto batch =
        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(runs / warps, 1, members));
    launch_walk(read_records<Keeps>(s, fd_, to, runs, batch, failed), ceiling(runs, batch),
                warps_of_block, stream, own);
  };
  if (keeps_all) start_as.template operator()<keeps::all_pages>();
  else start_as.template operator()<keeps::uncached>();
}

void file::write(const char* from, std::uint64_t bytes, std::uint64_t offset, bool appends,
                 void* stream, outcome* own) {
  const failure failed{begin_call(own, true)};
  if (bytes == 0) return;
  const std::uint64_t page_bytes = mount_.options().page_bytes;
  const std::uint64_t piece_bytes = appends ? bytes : std::max<std::uint64_t>(page_bytes, 65536);
  launch_walk(write_pieces(from, fd_, offset, bytes, piece_bytes, appends, failed),
              ceiling(bytes, piece_bytes), 1, stream, own);
}

void file::check() {
  const auto check_one = [&](pinned_word& word, std::exception_ptr& kept) {
    std::exception_ptr earlier;
    {
      const std::lock_guard lock(latch_);
      earlier = std::exchange(kept, nullptr);
    }
    const std::uint64_t failed = earlier == nullptr ? take_failure(word) : 0;
    if (earlier == nullptr && failed == 0) return;
    ++failures_;
    if (earlier != nullptr) std::rethrow_exception(earlier);
    throw_failure(failed, name_);
  };
  check_one(board_->failed_write, kept_write_);
  check_one(board_->failed, kept_read_);
}

void file::keep_error(const std::exception_ptr& failed, bool writes) noexcept {
  const std::lock_guard lock(latch_);
  std::exception_ptr& kept = writes ? kept_write_ : kept_read_;
  if (kept == nullptr) kept = failed;
}

void file::wait() {
  places_.wait();
  check();
}

file::state file::status() {
  wait();
  const std::lock_guard lock(ask_latch_);
  const std::int64_t bits = ask_for(status_call{fd_}, "stat");
  return {board_->status, (bits & status_call::is_shared) != 0,
          (bits & status_call::is_written) != 0};
}

void file::sync() {
  wait();
  const std::lock_guard lock(ask_latch_);
  (void)ask_for(sync_call{fd_}, "fsync");
}

void file::truncate(std::uint64_t size) {
  wait();
  const std::lock_guard lock(ask_latch_);
  (void)ask_for(truncate_call{fd_, static_cast<std::int64_t>(size)}, "truncate");
}

void file::close() {
  // First errors of writes, as check() throws them, then those of reads: at most two of each.
  std::exception_ptr earlier[4];
  for (std::exception_ptr& e : earlier) {
    try {
      wait();
      break;
    } catch (...) {
      e = std::current_exception();
    }
  }
  std::exception_ptr before;
  for (std::size_t i = std::size(earlier); i-- > 0;) before = joined(earlier[i], before);
  {
    const std::lock_guard lock(ask_latch_);
    std::exception_ptr failed;
    try {
      const std::int32_t fd = fd_.exchange(-1);
      if (fd >= 0) (void)ask_for(close_call{fd}, "close");
    } catch (...) {
      failed = std::current_exception();
    }
    if (failed != nullptr) std::rethrow_exception(joined(failed, before));
  }
  if (before != nullptr) std::rethrow_exception(before);
}

}  // namespace gpufs::arrays
