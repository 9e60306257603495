// The exception of the host API.
#pragma once

#include <string>
#include <system_error>

namespace gpufs {

// `code()` is the errno (std::generic_category). `path()` is the file that the error is about, or
// empty.
class error : public std::system_error {
 public:
  error(int error_number, const std::string& what, std::string path = {})
      : std::system_error(error_number, std::generic_category(),
                          path.empty() ? what : what + ": " + path),
        path_(std::move(path)) {}
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace gpufs
