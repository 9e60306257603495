/** FNV-1a: one number for some bytes, the same in all processes. */
#pragma once

#include <cstdint>

namespace gdev {

template <typename Bytes>
[[nodiscard]] constexpr std::uint64_t fnv_1a(const Bytes& bytes) noexcept {
  std::uint64_t number = 0xcbf29ce484222325;
  for (const char byte : bytes) {
    number = (number ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return number;
}

}  // namespace gdev
