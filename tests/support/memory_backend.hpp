// A backend over files in memory. The test controls every state of a file, and the time of every
// change.
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
  // Files can be mapped: they are then memfds, one host descriptor each. Off: map() returns null.
  bool mappings = false;
  // What files report. They have one lock in any case.
  bool writes_together = false;
  // The apparent age of each change, in ns. An hour: no version is "racy". 0: all are.
  std::int64_t age_ns = std::int64_t{3600} * 1'000'000'000;
  // After this many files inode numbers repeat, as on file systems that reuse them.
  std::uint64_t inode_count = ~std::uint64_t{0};
};

// Thread-safe. Paths are compared as strings: there is no working directory and no "..". Calls
// throw gpufs::error ENOENT if a file does not exist that must exist: that is a mistake in the
// test.
class memory_backend final : public backend {
 public:
  explicit memory_backend(const memory_backend_options& options = {});
  ~memory_backend() override;

  int open(const std::string& path, bool no_follow, std::unique_ptr<backend_file>& file) override;
  int open_to_change(const std::string& path, const open_how& how,
                     std::unique_ptr<backend_file>& file) override;
  int unlink(const std::string& path) override;
  int rename(const std::string& path, const std::string& new_path) override;

  // ---- Changes by the test. Each change gives a file new times, never the same twice.

  // Creates the file, or overwrites it in place (same inode).
  void write(const std::string& path, std::string_view content);
  // Overwrites a part, or extends the file, with a hole if necessary. Creates the file.
  void write_at(const std::string& path, std::uint64_t offset, std::string_view content);
  void truncate(const std::string& path, std::uint64_t size);
  // Puts a new file (new inode) under the path, as a rename over it does. Open files do not change.
  void replace(const std::string& path, std::string_view content);
  void remove(const std::string& path);
  void make_directory(const std::string& path);
  void make_fifo(const std::string& path);
  void make_link(const std::string& path, const std::string& target);
  // Opens of the path return -error_number; 0 permits them again. The path need not exist.
  void refuse(const std::string& path, int error_number);
  // Changes only the times.
  void touch(const std::string& path);
  // Frozen: changes leave the times as they are, like a change that the file system's clock is too
  // coarse to show.
  void freeze_times(bool frozen);
  void set_age_ns(std::int64_t age_ns);

  std::string content(const std::string& path) const;
  bool exists(const std::string& path) const;
  // Counts of backend_file objects: open now, the most at the same time, and all successful opens.
  std::size_t open_now() const;
  std::size_t open_most() const;
  std::size_t open_total() const;

 private:
  struct node;
  class file;
  struct open_counts;

  std::shared_ptr<node> find(
      const std::string& path) const;  // follows links; null if there is none
  std::shared_ptr<node> existing(const std::string& path) const;
  std::shared_ptr<node> create(std::uint32_t mode);
  void changed(node& n) const;

  const memory_backend_options options_;
  mutable std::mutex mutex_;  // guards all members below and the identities of nodes
  std::map<std::string, std::shared_ptr<node>> nodes_;
  std::map<std::string, int> refused_;
  std::int64_t age_ns_;
  mutable std::int64_t last_time_ns_ = 0;
  bool frozen_ = false;
  std::uint64_t last_inode_ = 0;
  const std::shared_ptr<open_counts> counts_;
};

}  // namespace gpufs::testing
