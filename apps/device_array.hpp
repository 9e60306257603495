// An array in the memory of a mount's device.
#pragma once

#include <type_traits>
#include <vector>

#include "gpufs/gpufs.hpp"

namespace gpufs {

template <class T>
class device_array {
  static_assert(std::is_trivially_copyable_v<T>, "it is copied as bytes");

 public:
  // The elements are zero.
  device_array(const mount& m, std::size_t count)
      : mount_(m), data_(static_cast<T*>(m.allocate(count * sizeof(T)))) {}
  device_array(const mount& m, const std::vector<T>& values) : device_array(m, values.size()) {
    if (!values.empty()) mount_.copy_to_device(data_, values.data(), values.size() * sizeof(T));
  }
  ~device_array() { mount_.free(data_); }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;

  T* data() const { return data_; }

 private:
  const mount& mount_;
  T* data_;
};

}  // namespace gpufs
