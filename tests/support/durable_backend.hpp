// A backend over files in memory that models what a power loss leaves of them.
//
// The host has each file as programs see it; the disk has an older state. A write or a truncation
// changes the host's copy. Until a sync has returned, the disk may have any mix: each sector of 512
// bytes, and the size, is as after the last sync or after any later change. A new name, or a new
// file under a name, is on the disk after a sync of the folder. Until then the folder is as after
// the last such sync or after any later change.
//
// A sync that fails does what Linux does. Its sectors count as clean from then on, so no later sync
// writes them. Some have reached the disk. For the others the host may continue to show the new
// bytes, or show the old bytes. Sizes, and what truncations cut off, are not lost. Each open file
// (each struct file of Linux) returns the error once.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gpufs/backend.hpp"

namespace gpufs::testing {

// Thread-safe. Paths are compared as strings. The folder of a path is the part before its last
// slash.
class durable_backend final : public backend {
 public:
  static constexpr std::uint64_t sector_bytes = 512;
  using sector = std::array<char, sector_bytes>;

  // What a file may be after a power loss: any of these sizes, and independently for each sector
  // any of its contents. Only zeros follow the last sector.
  struct file_on_disk {
    std::uint64_t inode = 0;
    std::vector<std::uint64_t> sizes;
    std::vector<std::vector<sector>> sectors;
  };
  // The paths of a folder's files, with their inodes.
  using folder_entries = std::map<std::string, std::uint64_t>;
  struct disk {
    std::vector<file_on_disk> files;                             // includes files without a name
    std::map<std::string, std::vector<folder_entries>> folders;  // each is any of these
  };

  // `seed` determines what failed syncs leave.
  explicit durable_backend(std::uint64_t seed = 1);
  ~durable_backend() override;

  int open(const std::string& path, bool no_follow, std::unique_ptr<backend_file>& file) override;
  int open_to_change(const std::string& path, const open_how& how,
                     std::unique_ptr<backend_file>& file) override;
  int unlink(const std::string& path) override;
  int rename(const std::string& path, const std::string& new_path) override;
  int sync_folder(const std::string& path) override;

  // ---- For tests. std::out_of_range if a path does not exist that must exist.

  // Creates a file that is on the disk, with its name.
  void create(const std::string& path, std::string_view content);
  void make_folder(const std::string& path);
  // As other programs see it.
  std::string content(const std::string& path) const;
  bool exists(const std::string& path) const;
  std::uint64_t inode(const std::string& path) const;
  // Returns what a power loss now would leave.
  disk possible_disk() const;
  file_on_disk possible_file(std::uint64_t inode) const;

  // Sets a function for the thread that changes a file or a folder to call after each change: a
  // possible point of power loss. Meanwhile no other call changes anything. The function must not
  // call the backend. Call watch() only while no thread uses the backend.
  using watcher = std::function<void(const disk& possible)>;
  void watch(watcher call);

  // The next sync fails.
  void fail_next_sync();
  // Syncs fail at random, with a probability from 0 to 1. The second probability is for what the
  // host writes by itself after a write.
  void fail_at_random(double syncs, double writes_of_the_host);
  // Syncs that had an error to return, since the beginning.
  std::uint64_t failed_syncs() const;

 private:
  struct node;
  class file;

  std::shared_ptr<node> find(const std::string& path) const;
  static std::string folder_of(const std::string& path);
  std::shared_ptr<node> add(const std::string& path);
  void note_entries(const std::string& folder);
  void changed(node& n);
  void was_changed(const node* n);
  file_on_disk possible(const node& n) const;
  bool strikes(double probability);

  void zero_tail(node& n);
  void store(node& n, std::uint64_t at, std::string_view bytes);
  void resize(node& n, std::uint64_t size);
  void clean(node& n, bool fails);
  int sync(const std::shared_ptr<node>& n, std::uint64_t& errors_seen);

  mutable std::mutex mutex_;  // guards all members below, and all nodes
  std::condition_variable cleaned_;
  std::map<std::string, std::shared_ptr<node>> names_;
  std::map<std::string, std::vector<folder_entries>> folders_;  // the last one is the current state
  std::map<std::uint64_t, std::shared_ptr<node>> nodes_;        // all that ever existed
  std::uint64_t last_inode_ = 0;
  std::int64_t last_time_ns_ = 0;
  std::mt19937_64 random_;
  double syncs_fail_ = 0, hosts_writes_fail_ = 0;
  bool next_sync_fails_ = false;
  std::uint64_t failed_syncs_ = 0;
  watcher watcher_;
};

}  // namespace gpufs::testing
