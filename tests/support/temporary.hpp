// A folder of real files that is removed at the end of the test.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "gpufs/error.hpp"

namespace gpufs::testing {

// On a real file system if there is one, because tmpfs supports fewer operations.
class temporary_folder {
 public:
  temporary_folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gpufs-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw error(errno, "mkdtemp", pattern);
    path_ = pattern;
  }
  ~temporary_folder() {
    std::error_code ignored;  // a folder that remains does no harm
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  // Writes a part of a file and creates it if necessary. Returns its path.
  std::string write(const std::string& name, std::string_view content,
                    std::uint64_t offset = 0) const {
    const std::string path = *this / name;
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    const bool good =
        fd >= 0 && pwrite(fd, content.data(), content.size(), static_cast<off_t>(offset)) ==
                       static_cast<ssize_t>(content.size());
    const int error_number = errno;
    if (fd >= 0) (void)::close(fd);
    if (!good) throw error(error_number, "write", path);
    return path;
  }
  void truncate(const std::string& name, std::uint64_t bytes) const {
    if (::truncate((*this / name).c_str(), static_cast<off_t>(bytes)) != 0)
      throw error(errno, "truncate", *this / name);
  }

 private:
  std::string path_;
};

}  // namespace gpufs::testing
