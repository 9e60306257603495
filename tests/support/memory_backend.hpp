// A backend over files in memory, for tests: every state of a file, and every time at which it
// changes, is the test's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "gpufs/backend.hpp"

namespace gpufs::testing {

struct memory_backend_options {
  // Files can be mapped: they are then kept in memfds, one host descriptor each. Off: map() gives
  // null.
  bool mappings = false;
  // What files say of themselves; they have one lock all the same.
  bool writes_together = false;
  // How old each change seems to be, in ns. An hour: no version is "racy". 0: all are.
  std::int64_t age_ns = std::int64_t{3600} * 1'000'000'000;
  // After so many files inode numbers begin again, as they do on file systems that use them again.
  std::uint64_t inode_count = ~std::uint64_t{0};
};

// Thread-safe. Paths are compared as they are: no working directory, no "..". Calls that name a
// file that must exist, and does not, throw gpufs::error ENOENT: a mistake of the test.
class memory_backend final : public backend {
 public:
  explicit memory_backend(const memory_backend_options& options = {});
  ~memory_backend() override;

  int open(const std::string& path, bool no_follow, std::unique_ptr<backend_file>& file) override;
  int open_to_change(const std::string& path, const open_how& how,
                     std::unique_ptr<backend_file>& file) override;
  int unlink(const std::string& path) override;
  int rename(const std::string& path, const std::string& new_path) override;

  // ---- What a test does to the files. Each change gives a file new times, never twice the same.

  // Creates the file, or overwrites it in place (same inode).
  void write(const std::string& path, std::string_view content);
  // Overwrites a part, or extends the file, with a hole if need be. Creates the file.
  void write_at(const std::string& path, std::uint64_t offset, std::string_view content);
  void truncate(const std::string& path, std::uint64_t size);
  // A new file (new inode) under the path, as a rename over it does. Files that are open stay what
  // they were.
  void replace(const std::string& path, std::string_view content);
  void remove(const std::string& path);
  void make_directory(const std::string& path);
  void make_fifo(const std::string& path);
  void make_link(const std::string& path, const std::string& target);
  // Opens of the path answer -error_number; 0 allows them again. The path need not exist.
  void refuse(const std::string& path, int error_number);
  // Changes the times only.
  void touch(const std::string& path);
  // From now on changes leave the times as they are: a change that the file system's clock is too
  // coarse to show.
  void freeze_times(bool frozen);
  void set_age_ns(std::int64_t age_ns);

  std::string content(const std::string& path) const;
  bool exists(const std::string& path) const;
  // backend_file objects that are open now, the most that ever were at once, and opens that
  // succeeded in all.
  std::size_t open_now() const;
  std::size_t open_most() const;
  std::size_t open_total() const;

 private:
  struct node;
  class file;
  struct open_counts;

  std::shared_ptr<node> find(
      const std::string& path) const;  // follows links; null when there is none
  std::shared_ptr<node> existing(const std::string& path) const;
  std::shared_ptr<node> create(std::uint32_t mode);
  void changed(node& n) const;

  const memory_backend_options options_;
  mutable std::mutex mutex_;  // guards all below and the identities of nodes
  std::map<std::string, std::shared_ptr<node>> nodes_;
  std::map<std::string, int> refused_;
  std::int64_t age_ns_;
  mutable std::int64_t last_time_ns_ = 0;
  bool frozen_ = false;
  std::uint64_t last_inode_ = 0;
  const std::shared_ptr<open_counts> counts_;
};

}  // namespace gpufs::testing
