#include "interposer/pool_blocks.hpp"

#include <iterator>

namespace gdev {

bool pool_blocks::is_whole(blocks::iterator one) const {
  return one->second.after == nullptr && one->second.bytes == ranges_.at(one->second.range);
}

void pool_blocks::enqueue(blocks::iterator one) {
  queue& of = free_[stream_of(one->second)];
  of.by_size.emplace(one->second.bytes, one->first);
  if (one->second.after != nullptr) {
    of.by_age.emplace(one->second.after->number, one->first);
  } else if (is_whole(one)) {
    whole_.emplace(one->second.bytes, one->first);
  }
}

void pool_blocks::dequeue(blocks::iterator one) {
  queue& of = free_[stream_of(one->second)];
  of.by_size.erase({one->second.bytes, one->first});
  if (one->second.after != nullptr) {
    of.by_age.erase({one->second.after->number, one->first});
  } else if (is_whole(one)) {
    whole_.erase({one->second.bytes, one->first});
  }
}

void pool_blocks::insert_free(blocks::iterator one) {
  const auto touches = [](const blocks::value_type& a, const blocks::value_type& b) {
    return a.second.range == b.second.range && a.second.is == state::free &&
           b.second.is == state::free && stream_of(a.second) == stream_of(b.second);
  };
  const auto absorb_next = [this](blocks::iterator into) {
    const auto next = std::next(into);
    into->second.bytes += next->second.bytes;
    // The later point covers the earlier one.
    if (next->second.after != nullptr && next->second.after->number > into->second.after->number) {
      into->second.after = std::move(next->second.after);
    }
    blocks_.erase(next);
  };
  if (const auto next = std::next(one); next != blocks_.end() && touches(*one, *next)) {
    dequeue(next);
    absorb_next(one);
  }
  if (one != blocks_.begin() && touches(*std::prev(one), *one)) {
    --one;
    dequeue(one);
    absorb_next(one);
  }
  enqueue(one);
}

CUdeviceptr pool_blocks::cut(blocks::iterator one, std::size_t asked) {
  const std::size_t bytes = rounded(asked);
  block& taken = one->second;
  dequeue(one);
  if (taken.bytes > bytes) {
    const auto rest =
        blocks_.emplace_hint(std::next(one), one->first + bytes,
                             block{taken.bytes - bytes, 0, taken.range, state::free, taken.after});
    enqueue(rest);
  }
  taken = {bytes, asked, taken.range, state::used, nullptr};
  return one->first;
}

void pool_blocks::add_range(CUdeviceptr begin, std::size_t bytes) {
  ranges_[begin] = bytes;
  insert_free(blocks_.emplace(begin, block{bytes, 0, begin, state::free, nullptr}).first);
}

std::size_t pool_blocks::remove_range(CUdeviceptr begin) {
  std::size_t used = 0;
  auto one = blocks_.find(begin);
  while (one != blocks_.end() && one->second.range == begin) {
    if (one->second.is == state::free) {
      dequeue(one);
    } else {
      used += one->second.bytes;
    }
    one = blocks_.erase(one);
  }
  ranges_.erase(begin);
  return used;
}

std::optional<CUdeviceptr> pool_blocks::take_largest_range(std::size_t most) {
  const auto after = whole_.upper_bound({most, ~CUdeviceptr{0}});
  if (after == whole_.begin()) {
    return std::nullopt;
  }
  const CUdeviceptr begin = std::prev(after)->second;
  remove_range(begin);
  return begin;
}

std::optional<CUdeviceptr> pool_blocks::take_smallest_range(std::size_t least) {
  const auto found = whole_.lower_bound({least, 0});
  if (found == whole_.end()) {
    return std::nullopt;
  }
  const CUdeviceptr begin = found->second;
  remove_range(begin);
  return begin;
}

std::optional<CUdeviceptr> pool_blocks::take(std::size_t bytes, std::uint64_t stream) {
  std::optional<std::pair<std::size_t, CUdeviceptr>> best;
  for (const std::uint64_t which : {stream, all_streams}) {
    const auto of = free_.find(which);
    if (of == free_.end()) {
      continue;
    }
    const auto found = of->second.by_size.lower_bound({rounded(bytes), 0});
    if (found != of->second.by_size.end() && (!best || found->first < best->first)) {
      best = *found;
    }
  }
  return best ? std::optional(cut(blocks_.find(best->second), bytes)) : std::nullopt;
}

bool pool_blocks::has_after(std::size_t bytes) const {
  for (const auto& [stream, of] : free_) {
    if (stream != all_streams && of.by_size.lower_bound({rounded(bytes), 0}) != of.by_size.end()) {
      return true;
    }
  }
  return false;
}

std::optional<CUdeviceptr> pool_blocks::take_after(std::size_t bytes, point& after) {
  // Of those that suffice, the one that was freed first: it is likely to be reached first.
  blocks::iterator best = blocks_.end();
  for (const auto& [stream, of] : free_) {
    const auto found = of.by_size.lower_bound({rounded(bytes), 0});
    if (stream == all_streams || found == of.by_size.end()) {
      continue;
    }
    const auto one = blocks_.find(found->second);
    if (best == blocks_.end() || one->second.after->number < best->second.after->number) {
      best = one;
    }
  }
  if (best == blocks_.end()) {
    return std::nullopt;
  }
  after = best->second.after;
  return cut(best, bytes);
}

std::size_t pool_blocks::begin_free(CUdeviceptr address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end() || found->second.is != state::used) {
    return 0;
  }
  found->second.is = state::ending;
  return found->second.bytes;
}

void pool_blocks::cancel_free(CUdeviceptr address) {
  if (const auto found = blocks_.find(address); found != blocks_.end()) {
    found->second.is = state::used;
  }
}

bool pool_blocks::end_free(CUdeviceptr address, point after) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end() || found->second.is != state::ending) {
    return false;
  }
  found->second.is = state::free;
  found->second.after = std::move(after);
  insert_free(found);
  return true;
}

std::vector<std::uint64_t> pool_blocks::waiting_streams() {
  std::erase_if(free_, [](const auto& one) { return one.second.by_size.empty(); });
  std::vector<std::uint64_t> all;
  for (const auto& [stream, of] : free_) {
    if (!of.by_age.empty()) {
      all.push_back(stream);
    }
  }
  return all;
}

pool_blocks::point pool_blocks::point_at(std::uint64_t stream, std::size_t index) const {
  const auto found = free_.find(stream);
  if (found == free_.end() || found->second.by_age.size() <= index) {
    return last_point(stream);
  }
  const auto one = std::next(found->second.by_age.begin(), static_cast<std::ptrdiff_t>(index));
  return blocks_.at(one->second).after;
}

pool_blocks::point pool_blocks::last_point(std::uint64_t stream) const {
  const auto found = free_.find(stream);
  return found == free_.end() || found->second.by_age.empty()
             ? nullptr
             : blocks_.at(found->second.by_age.rbegin()->second).after;
}

void pool_blocks::reach(std::uint64_t stream, std::uint64_t number) {
  const auto found = free_.find(stream);
  if (found == free_.end()) {
    return;
  }
  auto& waiting = found->second.by_age;
  while (!waiting.empty() && waiting.begin()->first <= number) {
    const auto one = blocks_.find(waiting.begin()->second);
    dequeue(one);
    one->second.after = nullptr;
    insert_free(one);
  }
  if (waiting.empty()) {
    free_.erase(found);
  }
}

bool pool_blocks::find(CUdeviceptr address, CUdeviceptr* begin, std::size_t* bytes) const {
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) {
    return false;
  }
  const auto& [at, one] = *std::prev(after);
  if (one.is == state::free || address - at >= one.bytes) {
    return false;
  }
  if (begin != nullptr) {
    *begin = at;
  }
  if (bytes != nullptr) {
    *bytes = one.asked;
  }
  return true;
}

}  // namespace gdev
