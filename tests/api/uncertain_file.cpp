#include "api/uncertain_file.hpp"

#include <algorithm>
#include <stdexcept>

namespace gpufs::testing {

uncertain_file::values uncertain_file::value(char c) {
  if (c == '\0') return 1;
  if (c >= 'a' && c <= 'z') return values{2} << (c - 'a');
  if (c >= 'A' && c <= 'Z') return values{2} << 26 << (c - 'A');
  return 0;  // never written
}

void uncertain_file::set_content(const std::string& content) {
  host_.clear();
  for (const char c : content) {
    if (value(c) == 0) throw std::invalid_argument("uncertain_file: bytes are zeros and letters");
    host_.push_back(value(c));
  }
  seen_ = host_;
  host_size_min_ = host_.size();
}

bool uncertain_file::open(std::uint64_t size, bool empties) {
  if (empties) {
    host_.clear();
    host_size_min_ = 0;
  }
  const bool can_be = may_have_size_on_host(size);
  host_.resize(size, value('\0'));
  seen_ = host_;
  host_size_min_ = size;
  return can_be;
}

void uncertain_file::grow_seen(std::uint64_t size) {
  for (std::uint64_t i = seen_.size(); i < size; ++i) seen_.push_back(value('\0'));
}

void uncertain_file::write(std::uint64_t at, const std::string& bytes) {
  grow_seen(at + bytes.size());
  grow_host(at + bytes.size());
  for (std::uint64_t i = 0; i < bytes.size(); ++i) {
    seen_[at + i] = value(bytes[i]);
    host_[at + i] |= value(bytes[i]);
  }
}

void uncertain_file::sync() {
  host_.resize(seen_.size());
  grow_host(seen_.size());
  std::copy(seen_.begin(), seen_.end(), host_.begin());
  host_size_min_ = seen_.size();
}

void uncertain_file::truncate(std::uint64_t size) {
  grow_seen(size);
  seen_.resize(size);
  host_.resize(size, value('\0'));
  host_size_min_ = size;
}

}  // namespace gpufs::testing
