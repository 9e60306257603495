#include "collect.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "gpufs/error.hpp"

namespace gpufs::grep {

namespace {
constexpr std::size_t slab_counts = (std::size_t{1} << 20) / sizeof(word_count);
static_assert(slab_counts >= message_bytes_max / sizeof(word_count),
              "a section's counts fit into one slab");
}  // namespace

int collector::take(const char* bytes, std::size_t count) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (count > message_bytes_max || count % sizeof(word_count) != 0) return EPROTO;
    // Checked in a copy, because a kernel can still change the message.
    char* const message = reinterpret_cast<char*>(message_.data());
    if (count != 0) std::memcpy(message, bytes, count);
    for (std::size_t at = 0; at < count;) {
      section s;
      if (count - at < sizeof(s)) return EPROTO;
      std::memcpy(&s, message + at, sizeof(s));
      at += sizeof(s);
      // A block sends nothing about an item after its end.
      if (s.item >= ends_.size() || ends_[s.item].done ||
          s.count > (count - at) / sizeof(word_count))
        return EPROTO;
      if (const int refused = take_counts(s, reinterpret_cast<const word_count*>(message + at));
          refused != 0)
        return refused;
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

int collector::take_counts(const section& s, const word_count* first) {
  if (s.count == 0) return 0;
  // Kernels may send anything. The host uses these numbers as indices, so they are checked.
  if (std::any_of(first, first + s.count, [this](const word_count& c) { return c.word >= words_; }))
    return EPROTO;
  const std::uint64_t bytes = sizeof(item_counts) + s.count * sizeof(word_count);
  if (bytes > bytes_left_) {
    has_passed_limit_ = true;
    return ENOSPC;
  }
  bytes_left_ -= bytes;
  counts_.push_back({s.item, s.count, keep(first, s.count)});
  return 0;
}

word_count* collector::keep(const word_count* first, std::size_t count) {
  if (count > slab_left_) {
    slabs_.push_back(std::make_unique_for_overwrite<word_count[]>(slab_counts));
    slab_left_ = slab_counts;
  }
  word_count* const to = slabs_.back().get() + (slab_counts - slab_left_);
  std::copy_n(first, count, to);
  slab_left_ -= count;
  return to;
}

void collector::check_complete() const {
  if (has_passed_limit_) throw error(ENOSPC, "grep: more counts than this host has memory for");
  for (const item_end& end : ends_) {
    if (!end.done) throw error(EIO, "grep: the device did not finish its work");
  }
}

}  // namespace gpufs::grep
