// Common code of CPU programs without gpufs: numbers in mapped files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/for_each_processor.hpp"
#include "common/owned_file.hpp"

namespace gpufs::rival {

class mapped_file {
 public:
  // Maps `bytes` from `offset` on. Throws gpufs::error, ENODATA if the file is shorter.
  mapped_file(const std::string& path, std::uint64_t offset, std::uint64_t bytes)
      : offset_(offset) {
    if (bytes != 0) mapping_.emplace(path, offset + bytes);
  }
  template <class T>
  const T* numbers() const {
    return mapping_ ? reinterpret_cast<const T*>(mapping_->data() + offset_) : nullptr;
  }

 private:
  const std::uint64_t offset_;
  std::optional<owned_mapping> mapping_;
};

}  // namespace gpufs::rival
