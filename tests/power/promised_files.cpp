#include "power/promised_files.hpp"

#include <algorithm>
#include <stdexcept>

namespace gpufs::testing {
namespace {

constexpr std::uint64_t zero = 1;

std::string at_byte(const char* what, std::uint64_t at, char c) {
  return std::string(what) + " byte " + std::to_string(at) + " is " +
         (c == '\0' ? "0" : std::string(1, c));
}

}  // namespace

promised_file::values promised_file::value(char c) {
  if (c == '\0') return zero;
  if (c >= 'a' && c <= 'z') return values{2} << (c - 'a');
  if (c >= 'A' && c <= 'Z') return values{2} << 26 << (c - 'A');
  return 0;  // never written
}

promised_file::promised_file(std::string_view content) {
  for (const char c : content) {
    if (value(c) == 0) throw std::invalid_argument("promised_file: bytes are zeros and letters");
    shown_.push_back(value(c));
  }
  disk_ = shown_;
  disk_size_min_ = shown_.size();
}

// The disk's file may be longer than it was, and have zeros wherever it may have ended.
void promised_file::grow_disk(std::uint64_t size) {
  if (size > disk_.size()) disk_.resize(size, 0);
  for (std::uint64_t i = disk_size_min_; i < size; ++i) disk_[i] |= past_end(i);
}

promised_file::values promised_file::past_end(std::uint64_t i) const {
  return i < cut_.size() ? zero | cut_[i] : zero;
}

void promised_file::grow(std::uint64_t size) {
  for (std::uint64_t i = shown_.size(); i < size; ++i) shown_.push_back(past_end(i));
}

void promised_file::may_write(std::uint64_t at, std::string_view bytes) {
  grow_disk(at + bytes.size());
  for (std::uint64_t i = 0; i < bytes.size(); ++i) disk_[at + i] |= value(bytes[i]);
}

void promised_file::write(std::uint64_t at, std::string_view bytes) {
  grow(at + bytes.size());
  for (std::uint64_t i = 0; i < bytes.size(); ++i) shown_[at + i] = value(bytes[i]);
}

void promised_file::may_truncate(std::uint64_t size) {
  disk_size_min_ = std::min(disk_size_min_, size);
  grow_disk(std::max<std::uint64_t>(size, disk_.size()));
}

void promised_file::truncate(std::uint64_t size) {
  grow(size);
  shown_.resize(size);
}

void promised_file::sync() {
  if (lost_) return;
  disk_ = shown_;
  disk_size_min_ = shown_.size();
}

void promised_file::close() {
  if (!lost_) return;
  // Linux may have gone back to what the disk has.
  for (std::uint64_t i = 0; i < shown_.size(); ++i) shown_[i] |= disk_[i];
  cut_ = disk_;
  lost_ = false;
}

std::string promised_file::refute(const durable_backend::file_on_disk& possible) const {
  std::uint64_t longest = 0;
  for (const std::uint64_t size : possible.sizes) {
    longest = std::max(longest, size);
    if (size >= disk_size_min_ && size <= disk_.size()) continue;
    return "a size of " + std::to_string(size) + ", not from " + std::to_string(disk_size_min_) +
           " to " + std::to_string(disk_.size());
  }
  const std::vector<durable_backend::sector> only_zeros(1);
  for (std::uint64_t begin = 0; begin < longest; begin += durable_backend::sector_bytes) {
    const std::uint64_t number = begin / durable_backend::sector_bytes;
    const std::uint64_t end = std::min(longest, begin + durable_backend::sector_bytes);
    for (const auto& sector :
         number < possible.sectors.size() ? possible.sectors[number] : only_zeros) {
      for (std::uint64_t i = begin; i < end; ++i) {
        if ((disk_[i] & value(sector[i - begin])) == 0)
          return at_byte("on the disk,", i, sector[i - begin]);
      }
    }
  }
  return {};
}

std::string promised_file::refute_host(const std::string& content) const {
  if (content.size() != shown_.size())
    return "the host's file has " + std::to_string(content.size()) + " bytes, not " +
           std::to_string(shown_.size());
  for (std::uint64_t i = 0; i < content.size(); ++i) {
    const values allowed = lost_ ? shown_[i] | disk_[i] : shown_[i];
    if ((allowed & value(content[i])) == 0) return at_byte("in the host's file,", i, content[i]);
  }
  return {};
}

void promised_files::add(const std::string& path, std::uint64_t inode, std::string_view content) {
  files_.emplace(inode, promised_file(content));
  for (entries& state : folders_.at(folder_of(path))) state[path] = inode;
}

// From now on a path is another file's name, or (`unborn` a second time) the one of a file that is
// to be.
void promised_files::change(const std::string& path, std::uint64_t inode) {
  std::vector<entries>& states = folders_.at(folder_of(path));
  entries next = states.back();
  next[path] = inode;
  states.push_back(std::move(next));
}

void promised_files::may_unlink(const std::string& path) {
  std::vector<entries>& states = folders_.at(folder_of(path));
  entries next = states.back();
  next.erase(path);
  states.push_back(std::move(next));
}

void promised_files::may_rename(const std::string& path, const std::string& new_path) {
  const std::uint64_t file = inode(path);
  if (folder_of(path) != folder_of(new_path)) {
    may_unlink(path);
    change(new_path, file);
    return;
  }
  std::vector<entries>& states = folders_.at(folder_of(path));
  entries next = states.back();
  next.erase(path);
  next[new_path] = file;
  states.push_back(std::move(next));
}

void promised_files::create(const std::string& path, std::uint64_t inode) {
  files_.emplace(inode, promised_file());
  for (entries& state : folders_.at(folder_of(path))) {
    if (const auto found = state.find(path); found != state.end() && found->second == unborn)
      found->second = inode;
  }
}

void promised_files::sync_folder(const std::string& folder) {
  std::vector<entries>& states = folders_.at(folder);
  states.erase(states.begin(), states.end() - 1);
}

std::string promised_files::refute(const durable_backend::disk& possible) const {
  for (const auto& file : possible.files) {
    const auto known = files_.find(file.inode);
    const std::string why =
        known != files_.end() ? known->second.refute(file) : promised_file().refute(file);
    if (!why.empty()) return "file " + std::to_string(file.inode) + ": " + why;
  }
  for (const auto& [folder, states] : possible.folders) {
    const std::vector<entries>& allowed = folders_.at(folder);
    for (entries state : states) {
      for (auto& [path, inode] : state) {
        if (!files_.contains(inode)) inode = unborn;
      }
      if (std::find(allowed.begin(), allowed.end(), state) == allowed.end())
        return "folder " + folder +
               " may have names that it never had, or not those that were synced";
    }
  }
  return {};
}

}  // namespace gpufs::testing
