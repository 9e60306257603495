// The one exception of the host API.
#pragma once

#include <string>
#include <system_error>

namespace gpufs {

// `code()` holds the errno (std::generic_category), `path()` the file it is about, or nothing.
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
