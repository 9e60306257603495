// Several arrays in one allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/arithmetic.cuh"

namespace gpufs {

// Returns arrays one after another, each aligned like an allocation of its own.
class device_parts {
 public:
  static constexpr std::size_t alignment = 256;
  // Null: only computes the total size.
  explicit device_parts(char* begin) : begin_(reinterpret_cast<std::uintptr_t>(begin)) {}
  template <class T>
  T* take(std::uint64_t count) {
    const std::uintptr_t at = begin_ + bytes_;
    bytes_ += ceiling(count * sizeof(T), alignment) * alignment;
    return reinterpret_cast<T*>(at);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  const std::uintptr_t begin_;
  std::size_t bytes_ = 0;
};

}  // namespace gpufs
