// What a program may rely on when the power has gone: the table "What is durable when" of
// docs/api.md, as a model that follows the calls of one group. For each byte of a file it keeps
// the values that the mount may show, and those that the disk may have.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "support/durable_backend.hpp"

namespace gpufs::testing {

// Bytes are zeros and letters. A `may_` function is called before the call, the other one after it.
class promised_file {
 public:
  // It is on the disk with this content.
  explicit promised_file(std::string_view content = {});

  void may_write(std::uint64_t at, std::string_view bytes);
  void write(std::uint64_t at, std::string_view bytes);
  void may_truncate(std::uint64_t size);
  void truncate(std::uint64_t size);
  // A gfsync has returned 0, or an unmount() that found the file open for writing.
  void sync();
  // A gfsync has returned that the host's sync failed: bytes may be lost, and what is promised of
  // the others begins anew at the next open. Until then every gfsync and gclose returns an error.
  void lose() { lost_ = true; }
  bool lost() const { return lost_; }
  // The last close, or the end of the mount, whatever it has returned.
  void close();

  std::uint64_t size() const { return shown_.size(); }
  // Why the disk cannot have this; empty if it can.
  std::string refute(const durable_backend::file_on_disk& possible) const;
  // Why the host's file cannot be this after the mount has given it all; empty if it can.
  std::string refute_host(const std::string& content) const;

 private:
  using values = std::uint64_t;  // a bit for each
  static values value(char c);
  void grow_disk(std::uint64_t size);
  void grow(std::uint64_t size);
  // What a byte past the end of the file is when the file grows.
  values past_end(std::uint64_t i) const;

  std::vector<values> shown_;
  std::vector<values> disk_;  // as large as the disk's file may be
  std::uint64_t disk_size_min_ = 0;
  // What the disk may have past the end of the file after a sync that failed: the zeros that a
  // truncation puts into the last sector may be lost, too.
  std::vector<values> cut_;
  bool lost_ = false;
};

// The names of some folders, and the files. A file is known by its inode.
class promised_files {
 public:
  // Of a file that a call is about to create. Its inode is known when the call has returned.
  static constexpr std::uint64_t unborn = 0;

  void add_folder(const std::string& folder) { folders_[folder] = {{}}; }
  // A file that is on the disk, with its name.
  void add(const std::string& path, std::uint64_t inode, std::string_view content);

  promised_file& at(std::uint64_t inode) { return files_.at(inode); }
  bool exists(const std::string& path) const { return now(path).contains(path); }
  std::uint64_t inode(const std::string& path) const { return now(path).at(path); }

  // Before the call.
  void may_create(const std::string& path) { change(path, unborn); }
  void may_unlink(const std::string& path);
  void may_rename(const std::string& path, const std::string& new_path);
  // After the call.
  void create(const std::string& path, std::uint64_t inode);
  void sync_folder(const std::string& folder);

  // Why the disk cannot have this; empty if it can.
  std::string refute(const durable_backend::disk& possible) const;

 private:
  using entries = durable_backend::folder_entries;
  static std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
  const entries& now(const std::string& path) const { return folders_.at(folder_of(path)).back(); }
  void change(const std::string& path, std::uint64_t inode);

  std::map<std::uint64_t, promised_file> files_;
  // What each may be on the disk; last: as it is.
  std::map<std::string, std::vector<entries>> folders_;
};

}  // namespace gpufs::testing
