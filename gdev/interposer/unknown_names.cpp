#include "interposer/unknown_names.hpp"

#include <algorithm>

namespace gdev {

void name_list::add(std::string_view name) noexcept {
  times_.fetch_add(1, std::memory_order_relaxed);
  name = name.substr(0, longest);
  for (place& one : places_) {
    std::uint32_t state = one.state.load(std::memory_order_acquire);  // with the release below
    if (state == empty &&
        one.state.compare_exchange_strong(state, writing, std::memory_order_relaxed)) {
      std::copy(name.begin(), name.end(), one.name.begin());
      one.state.store(written, std::memory_order_release);  // publishes the name
      return;
    }
    // A name that another thread is writing is passed over: it may end up in the list twice.
    if (state == written && name == one.name.data()) {
      return;
    }
  }
}

const char* name_list::at(std::size_t index) const noexcept {
  if (index >= capacity ||
      places_[index].state.load(std::memory_order_acquire) != written) {  // with the release above
    return nullptr;
  }
  return places_[index].name.data();
}

name_list& unknown_names() noexcept {
  static constinit name_list list;
  return list;
}

}  // namespace gdev
