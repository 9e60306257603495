#include "interposer/swap_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "base/crash_point.hpp"
#include "base/environment.hpp"
#include "interposer/client.hpp"
#include "interposer/notices.hpp"

namespace gdev {

namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 62;

/** Reads or writes all bytes. Returns an errno, or 0. */
template <typename Call, typename Byte>
int transfer(Call&& call, int file, std::int64_t at, Byte* bytes, std::size_t size) {
  while (size != 0) {
    const ssize_t moved = call(file, bytes, size, at);
    if (moved <= 0) {
      if (moved < 0 && errno == EINTR) {
        continue;
      }
      return moved < 0 ? errno : EIO;
    }
    at += moved;
    bytes += moved;
    size -= static_cast<std::size_t>(moved);
  }
  return 0;
}

}  // namespace

bool swap_file::open() {
  if (file_.number() >= 0 || is_impossible_) {
    return file_.is_there();
  }
  const char* const folder = variable("GDEV_SWAP_FOLDER");
  int made = -1;
  if (*folder != '\0') {
    made = ::open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC | O_DIRECT, 0600);
    if (made < 0) {  // a file system without direct I/O
      made = ::open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    }
    if (made < 0) {
      say("GDEV_SWAP_FOLDER: no files in %s: %s", folder, std::strerror(errno));
    }
  }
  is_impossible_ = made < 0;
  if (made >= 0) {
    file_.take(made);
    const std::lock_guard lock(mutex_);
    free_.add(0, most_bytes);
    crash_point("file_opened");
  }
  return made >= 0;
}

/** Gives the file blocks up to an end. Returns false: it has those that it had. */
bool swap_file::grow(std::int64_t end) {
  if (end <= end_) {
    return true;
  }
  if (ask_for_swap_files(static_cast<std::uint64_t>(end)) != 0) {
    return false;
  }
  if (posix_fallocate(file_.number(), end_, end - end_) != 0) {
    // The disk is full: neither a part of this stays, nor its place in what files may have.
    static_cast<void>(!ftruncate(file_.number(), end_));
    static_cast<void>(ask_for_swap_files(static_cast<std::uint64_t>(end_)));
    return false;
  }
  crash_point("file_allocated");
  end_ = end;
  return true;
}

std::int64_t swap_file::take(std::size_t bytes) {
  if (!open()) {
    return none;
  }
  std::optional<std::uint64_t> found;
  {
    const std::lock_guard lock(mutex_);
    found = free_.take(bytes);
  }
  if (!found) {
    return none;
  }
  const auto place = static_cast<std::int64_t>(*found);
  if (!grow(place + static_cast<std::int64_t>(bytes))) {
    give(place, bytes);
    return none;
  }
  return place;
}

void swap_file::give(std::int64_t place, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_.give(static_cast<std::uint64_t>(place), bytes);
}

int swap_file::write(std::int64_t place, const std::byte* from, std::size_t bytes) const {
  // The program may have closed it, and have another file under its number.
  return file_.is_there() ? transfer(pwrite, file_.number(), place, from, bytes) : EBADF;
}

int swap_file::read(std::int64_t place, std::byte* to, std::size_t bytes) const {
  return file_.is_there() ? transfer(pread, file_.number(), place, to, bytes) : EBADF;
}

}  // namespace gdev
