#pragma once

#include <cstdlib>

namespace gdev {

/** Returns a variable of the environment; "" where there is none. */
[[nodiscard]] inline const char* variable(const char* name) noexcept {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace gdev
