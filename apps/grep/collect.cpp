#include "collect.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "gpufs/error.hpp"

namespace gpufs::grep {

namespace {
constexpr std::size_t slab_bytes = std::size_t{1} << 20;
static_assert(slab_bytes >= message_bytes_max, "a message fits into one slab");
}  // namespace

int collector::take(const char* bytes, std::size_t count) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (count > message_bytes_max || count % sizeof(word_count) != 0) return EPROTO;
    char* kept = keep(bytes, count);
    for (std::size_t at = 0; at < count;) {
      section s;
      if (count - at < sizeof(s)) return EPROTO;
      std::memcpy(&s, kept + at, sizeof(s));
      at += sizeof(s);
      if (s.item >= ends_.size() || s.count > (count - at) / sizeof(word_count)) return EPROTO;
      auto* const first = reinterpret_cast<word_count*>(kept + at);
      // Kernels may send anything. The host uses these numbers as indices, so they are checked.
      if (std::any_of(first, first + s.count,
                      [this](const word_count& c) { return c.word >= words_; }))
        return EPROTO;
      if (s.count != 0) counts_.push_back({s.item, s.count, first});
      at += s.count * sizeof(word_count);
      if (s.kind != section_kind::done) continue;
      ends_[s.item] = {true, s.error, s.bytes, s.offset};
      if (on_done_) on_done_(s);
    }
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  } catch (const std::exception&) {
    return EIO;
  }
}

char* collector::keep(const char* bytes, std::size_t count) {
  if (count > slab_left_ || slabs_.empty()) {
    slabs_.push_back(
        std::make_unique_for_overwrite<std::uint64_t[]>(slab_bytes / sizeof(std::uint64_t)));
    slab_left_ = slab_bytes;
  }
  char* to = reinterpret_cast<char*>(slabs_.back().get()) + (slab_bytes - slab_left_);
  if (count != 0) std::memcpy(to, bytes, count);
  slab_left_ -= count;
  return to;
}

void collector::check_complete() const {
  for (const item_end& end : ends_) {
    if (!end.done) throw error(EIO, "grep: the device did not finish its work");
  }
}

}  // namespace gpufs::grep
