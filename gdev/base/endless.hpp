/** Objects that no destructor ends: threads may use them while the process ends. */
#pragma once

#include <cstddef>
#include <new>

namespace gdev {

template <typename Object>
class endless {
 public:
  endless() noexcept { new (&room_) Object; }
  [[nodiscard]] Object& get() noexcept { return *std::launder(reinterpret_cast<Object*>(&room_)); }
  /** Makes it anew; what it held is not freed. For forked children. */
  void forget() noexcept { new (&room_) Object; }

 private:
  alignas(Object) std::byte room_[sizeof(Object)];
};

}  // namespace gdev
