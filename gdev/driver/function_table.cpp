#include "driver/function_table.hpp"

#include <algorithm>

namespace gdev {

int find_function(std::string_view name) noexcept {
  const auto* const found = std::lower_bound(
      functions.begin(), functions.end(), name,
      [](const function_info& one, std::string_view other) { return one.name < other; });
  if (found == functions.end() || found->name != name) {
    return -1;
  }
  return static_cast<int>(found - functions.begin());
}

std::string_view written_name(std::string_view exported) noexcept {
  for (const std::string_view stream : {"_ptds", "_ptsz"}) {
    if (exported.ends_with(stream)) {
      exported.remove_suffix(stream.size());
      break;
    }
  }
  const std::size_t last = exported.find_last_not_of("0123456789");
  if (last != std::string_view::npos && last + 1 < exported.size() && last > 1 &&
      exported.substr(last - 1, 2) == "_v") {
    exported.remove_suffix(exported.size() - last + 1);
  }
  return exported;
}

}  // namespace gdev
