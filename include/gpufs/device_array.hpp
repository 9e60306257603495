// Places arrays, results and paths in the memory of a mount's device, for kernels.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpufs/gpufs.hpp"

namespace gpufs {

// An array in the memory of a mount's device. The mount must outlive it, and must not move
// meanwhile. Calls throw what those of the mount throw.
template <class T>
class device_array {
  static_assert(std::is_trivially_copyable_v<T>, "it is copied as bytes");

 public:
  // The elements are zero.
  device_array(mount& m, std::size_t count)
      : mount_(&m), size_(count), data_(static_cast<T*>(m.allocate(count * sizeof(T)))) {}
  device_array(mount& m, const std::vector<T>& values) : device_array(m, values.size()) {
    upload(values);
  }
  // Waits for the device's kernels, as mount::free() does.
  ~device_array() {
    if (data_ != nullptr) mount_->free(data_);
  }
  device_array(device_array&& other) noexcept
      : mount_(other.mount_), size_(std::exchange(other.size_, 0)),
        data_(std::exchange(other.data_, nullptr)) {}
  device_array& operator=(device_array&& other) noexcept {
    std::swap(mount_, other.mount_);
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
    return *this;
  }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;

  // For kernels.
  T* data() const { return data_; }
  std::size_t size() const { return size_; }

  // Copies values to the start of the array; there must not be more than it has elements.
  void upload(const std::vector<T>& values) {
    if (values.size() > size_) throw error(EINVAL, "device_array: more values than elements");
    if (!values.empty()) mount_->copy_to_device(data_, values.data(), values.size() * sizeof(T));
  }
  // Waits for the device's kernels (mount::synchronize), and returns the elements.
  std::vector<T> download() const {
    mount_->synchronize();
    std::vector<T> values(size_);
    if (size_ != 0) mount_->copy_to_host(values.data(), data_, size_ * sizeof(T));
    return values;
  }

 private:
  mount* mount_;
  std::size_t size_;
  T* data_;
};

// A path for gopen, in the memory of a mount's device.
class device_path {
 public:
  device_path(mount& m, const std::filesystem::path& path)
      : chars_(m, std::vector<char>(path.c_str(), path.c_str() + path.native().size() + 1)) {}
  // For kernels; zero-terminated.
  const char* data() const { return chars_.data(); }

 private:
  device_array<char> chars_;
};

}  // namespace gpufs
