// The exception of the host API.
#pragma once

#include <cstddef>
#include <string>
#include <system_error>
#include <utility>

namespace gpufs {
namespace detail {

// The path in one line of printable text. Kernels choose paths, and a terminal obeys control
// characters.
inline std::string printable(const std::string& path) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const auto byte = static_cast<unsigned char>(path[i]);
    // U+0080 to U+009F are control characters too.
    const bool is_first_of_two =
        byte == 0xc2 && i + 1 < path.size() && static_cast<unsigned char>(path[i + 1]) < 0xa0;
    if (byte >= ' ' && byte != 0x7f && byte != '\\' && !is_first_of_two) text += path[i];
    else text += {'\\', 'x', digits[byte / 16], digits[byte % 16]};
  }
  return text;
}

}  // namespace detail

// `code()` is the errno (std::generic_category). `path()` is the file that the error is about, or
// empty. `what()` shows control characters and backslashes of the path as \xHH.
class error : public std::system_error {
 public:
  error(int error_number, const std::string& what, std::string path = {})
      : std::system_error(error_number, std::generic_category(),
                          path.empty() ? what : what + ": " + detail::printable(path)),
        path_(std::move(path)) {}
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace gpufs
