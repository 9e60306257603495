// Where GNU grep stops counting in a file whose first NUL byte comes late: a model of grep's read
// buffer.
//
// GNU grep 3.8 (observed with strace; tests/apps/grep_buffer_test.cpp has the observations) reads
// into one buffer, at first 96 KiB and page-aligned. It searches complete lines. The rest of the
// buffer, the beginning of a line, stays before the next read and takes whole pages of room from
// it. If a line leaves no room, the buffer grows by half. When a read brings the first NUL, the
// kept beginning and all that follows is "binary", and prints nothing.
//
// The model is exact except for one number: how much kept text fits before the first page boundary
// of the buffer. This depends on the place of grep's heap, which differs with the word's length.
// `front_bytes` is the value of GNU grep 3.8 in Debian 12 for words of three bytes (75 to 3,888 for
// others). So the model can be wrong by a page if lines at the ends of reads are longer than that.
#pragma once

#include "gpufs/base/platform.cuh"

namespace gpufs::grep {

// A NUL within this many first bytes makes the whole file binary. So does a hole anywhere in a
// longer file.
inline constexpr std::uint64_t first_read_bytes = 98304;

class grep_buffer {
 public:
  GPUFS_HD explicit grep_buffer(std::uint64_t file_bytes, std::uint64_t front_bytes = 896)
      : file_bytes_(file_bytes), front_bytes_(front_bytes) {
    end_ = front_bytes_;
  }

  // Simulates the next read. grep keeps `kept` bytes before it: those after the last newline that
  // it has read. Returns the bytes of the read, 0 at the end of the file.
  GPUFS_HD std::uint64_t read(std::uint64_t kept) {
    std::uint64_t to = end_;
    if (allocated_bytes_ - guard_bytes - end_ < page_bytes) {
      make_room(kept);
      to = page_boundary(kept + 1);
    }
    const std::uint64_t room = (allocated_bytes_ - guard_bytes - to) / page_bytes * page_bytes;
    const std::uint64_t left = file_bytes_ - done_bytes_;
    const std::uint64_t bytes = room < left ? room : left;
    end_ = to + bytes;
    done_bytes_ += bytes;
    return bytes;
  }

 private:
  static constexpr std::uint64_t page_bytes = 4096;
  static constexpr std::uint64_t guard_bytes = 8;  // one machine word after the text
  static constexpr std::uint64_t front_bytes_grown =
      4080;  // A large buffer has its own pages, after malloc's 16 bytes.

  // Returns the first page boundary of the buffer at or after `at`.
  GPUFS_HD std::uint64_t page_boundary(std::uint64_t at) const {
    return at <= front_bytes_
               ? front_bytes_
               : front_bytes_ + (at - front_bytes_ + page_bytes - 1) / page_bytes * page_bytes;
  }

  GPUFS_HD void make_room(std::uint64_t kept) {
    const std::uint64_t needed = kept + 2 * page_bytes + guard_bytes;
    if (needed <= allocated_bytes_) return;
    const std::uint64_t for_all = kept + (file_bytes_ - done_bytes_) + page_bytes + guard_bytes;
    std::uint64_t grown = allocated_bytes_ + allocated_bytes_ / 2;
    if (grown > for_all) grown = for_all;
    allocated_bytes_ = grown > needed ? grown : needed;
    front_bytes_ = front_bytes_grown;
  }

  std::uint64_t file_bytes_;
  std::uint64_t front_bytes_;  // from the buffer's start to its first page boundary
  std::uint64_t allocated_bytes_ = first_read_bytes + page_bytes + guard_bytes;
  std::uint64_t done_bytes_ = 0;
  std::uint64_t end_ = 0;  // place in the buffer after the text
};

}  // namespace gpufs::grep
