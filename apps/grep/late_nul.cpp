#include "late_nul.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "common/owned_file.hpp"
#include "grep_buffer.hpp"

namespace gpufs::grep {

namespace {

// Returns the place after the last newline in [from, end), or `from` if there is none.
std::uint64_t line_begin(const owned_file& file, std::uint64_t from, std::uint64_t end) {
  char text[4096];
  while (end > from) {
    const std::uint64_t begin = end - std::min<std::uint64_t>(end - from, sizeof text);
    file.read(text, end - begin, begin);
    if (const void* newline = memrchr(text, '\n', end - begin))
      return begin + static_cast<std::uint64_t>(static_cast<const char*>(newline) - text) + 1;
    end = begin;
  }
  return from;
}

}  // namespace

bool has_hole(const std::string& path) {
  // Another program may have replaced the file by a FIFO. O_NONBLOCK: do not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return false;
  struct stat status;
  bool is_holed = false;
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
    const off_t hole = lseek(fd, static_cast<off_t>(first_read_bytes), SEEK_HOLE);
    is_holed = hole >= 0 && hole < status.st_size;
  }
  close(fd);
  return is_holed;
}

std::uint64_t counted_bytes(const std::string& path, std::uint64_t nul) {
  if (nul < first_read_bytes || has_hole(path)) return 0;
  const owned_file file(path);
  grep_buffer buffer(file.size());
  std::uint64_t end = 0;   // end of the read text
  std::uint64_t line = 0;  // beginning of the line that is not complete yet
  for (;;) {
    const std::uint64_t bytes = buffer.read(end - line);
    if (bytes == 0 || nul < end + bytes) return line;
    end += bytes;
    line = line_begin(file, line, end);
  }
}

}  // namespace gpufs::grep
