#include "service/file_error_log.hpp"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

namespace gpufs {

const char* file_error::operation_name() const noexcept {
  switch (what) {
    case file_operation::write_back: return "write-back";
    case file_operation::sync: return "sync";
    case file_operation::close: return "close";
  }
  return "unknown";
}

void file_error_log::add(const std::string& path, file_error fresh) noexcept {
  const std::lock_guard lock(mutex_);
  const auto known =
      std::find_if(list_.errors.begin(), list_.errors.end(), [&](const file_error& e) {
        return e.error_number == fresh.error_number && e.what == fresh.what &&
               e.at_unmount == fresh.at_unmount && e.discarded == fresh.discarded && e.path == path;
      });
  if (known != list_.errors.end()) {
    ++known->count;
    return;
  }
  const bool loses = is_lost(fresh);
  try {
    fresh.path = path;
    if (list_.errors.size() == errors_max && loses) {
      const auto other = std::find_if_not(list_.errors.rbegin(), list_.errors.rend(), is_lost);
      if (other != list_.errors.rend()) {
        list_.dropped += other->count;
        list_.errors.erase(std::next(other).base());
      }
    }
    if (list_.errors.size() < errors_max) {
      list_.errors.push_back(std::move(fresh));
      return;
    }
  } catch (const std::bad_alloc&) {
    // No memory: counted below.
  }
  ++list_.dropped;
  has_dropped_loss_ = has_dropped_loss_ || loses;
}

file_error_list file_error_log::list() const {
  const std::lock_guard lock(mutex_);
  return list_;
}

bool file_error_log::has_dropped_loss() const {
  const std::lock_guard lock(mutex_);
  return has_dropped_loss_;
}

}  // namespace gpufs
