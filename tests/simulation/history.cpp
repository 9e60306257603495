#include "simulation/history.hpp"

#include <algorithm>

namespace gpufs::testing {

void history::add_read(const span& at, const std::vector<std::uint64_t>& values, const char* what,
                       bool in_full) {
  reads_.push_back({at, values, what, in_full, settlements_});
  reads_.back().values.resize(at.count);
}

std::string history::contradiction() const {
  for (const found& read : reads_) {
    for (std::uint64_t word = read.at.first; word < read.at.first + read.at.count; ++word) {
      std::string found = contradiction(read, word);
      if (!found.empty()) return found;
    }
  }
  return {};
}

std::string history::contradiction(const found& read, std::uint64_t word) const {
  const auto is_there = [word](const written& w) {
    return w.at.first <= word && (w.at.count == for_ever || word < w.at.first + w.at.count);
  };
  const std::uint64_t value = read.values[word - read.at.first];
  const auto text = [&](const std::string& why) {
    return std::string(read.what) + " from " + std::to_string(read.at.begin) + " to " +
           std::to_string(read.at.end) + " found in word " + std::to_string(word) + " the value " +
           std::to_string(value) + ": " + why;
  };
  // The newest write since the last settlement that ended before the read began, and does not hide
  // by failing.
  std::uint64_t settled = 0;
  for (const written& w : writes_) {
    if (w.after == read.after && is_there(w) && w.at.end < read.at.begin)
      settled = std::max(settled, w.at.begin);
  }
  bool is_known = value == 0;
  bool may_be = value == 0 && settled == 0;
  for (const written& w : writes_) {
    if (!is_there(w) || w.value != value || w.at.begin > read.at.end) continue;
    is_known = true;
    // Not if one that began after its end was over before the read.
    if (w.after == read.after ? w.at.end >= settled : settled == 0) may_be = true;
  }
  if (!is_known) return text("nobody had written it");
  if (!may_be && is_checked_for_loss(read))
    return text("another write came in between, which began at " + std::to_string(settled));
  return {};
}

bool history::is_checked_for_loss(const found& read) const {
  if (!errors_.contains(read.after)) return true;
  return read.in_full &&
         std::none_of(failed_closes_.begin(), failed_closes_.end(), [&](const steps& close) {
           return close.begin <= read.at.end && read.at.begin <= close.end;
         });
}

}  // namespace gpufs::testing
