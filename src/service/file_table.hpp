// The service's open files: handles that device code holds, host descriptors behind them, and the versions of files.
//
// A handle is not a host descriptor. The table keeps at most `descriptors_max` backend files open and re-opens one when
// it is needed again, so that a mount may have 65,536 files open where the process may have 1,024.
//
// Versions: a number names one state of one file, and is never used again. At an open, device, inode, size, mtime and
// ctime are compared with what was seen last; any difference gives a new number, so cached pages of the old one are
// misses. Times are only as fine as the file system's clock: a file that had changed within `racy_ns` before it was
// looked at could change again without showing it, so its next open gets a new number in any case.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpufs/backend.hpp"

namespace gpufs {

class extent_set;  // service/extents.hpp

// One state of one file, shared by all its opens.
struct file_version {
  std::uint64_t number = 0;
  file_identity identity;
  bool racy = false;                   // guarded by the table
  std::atomic<bool> delivered{false};  // its bytes went to the device with an open
  std::shared_ptr<extent_set> extents;
};

// One open file. Thread-safe.
class host_file {
 public:
  host_file(std::string path, bool no_follow, std::shared_ptr<file_version> version, std::shared_ptr<backend_file> file)
      : path_(std::move(path)), no_follow_(no_follow), version_(std::move(version)), file_(std::move(file)) {}

  const std::string& path() const { return path_; }
  file_version& version() const { return *version_; }
  const std::shared_ptr<file_version>& shared_version() const { return version_; }

 private:
  friend class file_table;
  // Closes the backend's file if nobody is using it. True when it did.
  bool rest();

  const std::string path_;
  const bool no_follow_;
  const std::shared_ptr<file_version> version_;
  std::mutex mutex_;  // guards file_ and used_
  std::shared_ptr<backend_file> file_;
  bool used_ = true;              // since the last look for one to close (CLOCK)
  std::atomic<bool> open_{true};  // file_ is not null; to be looked at without the mutex
};

// Thread-safe.
class file_table {
 public:
  static constexpr std::int64_t racy_ns = 2'000'000'000;  // FAT's two seconds are the coarsest clock in use

  file_table(std::shared_ptr<backend> io, std::size_t descriptors_max);

  // 0 and a handle (never 0), or -errno.
  int open(const std::string& path, bool no_follow, std::uint32_t& handle, std::shared_ptr<host_file>& file);
  // Null for a handle that is not open.
  std::shared_ptr<host_file> find(std::uint32_t handle) const;
  // 0, or -EBADF.
  int close(std::uint32_t handle);

  // What a thread looked up last, so that the common read takes no lock. Each worker has one of its own; it lets go of
  // everything when any file was closed since, or when it is cleared.
  struct lookups {
    struct entry {
      std::uint32_t handle = 0;
      std::shared_ptr<host_file> file;
      std::shared_ptr<backend_file> reached;
    };
    std::uint64_t epoch = 0;
    std::array<entry, 8> entries;
    void clear() { entries = {}; }
  };
  // The entry of a handle, with the backend's file reached; 0, -EBADF, or as reach().
  int look_up(std::uint32_t handle, lookups& known, lookups::entry*& found);

  // Tells the file, if it is remembered, that this will be read in a moment. Only for speed.
  static void expect(std::uint32_t handle, const lookups& known, std::uint64_t bytes, std::uint64_t offset) {
    const lookups::entry& e = known.entries[handle % known.entries.size()];
    if (e.handle == handle && e.reached != nullptr) e.reached->expect(bytes, offset);
  }

  // The backend's file, opened again if it had to be closed; 0, or -errno: -ESTALE when the path leads elsewhere now.
  int reach(host_file& file, std::shared_ptr<backend_file>& reached);

  // Reads until `bytes` are there, or the end, or an error: interrupted and short reads are continued.
  // Bytes read, or -errno.
  static std::int64_t read(backend_file& file, char* to, std::uint64_t bytes, std::uint64_t offset);

  std::size_t open_count() const;

 private:
  static constexpr std::uint32_t index_bits = 18;  // twice the records of a mount: closes arrive late
  static constexpr std::size_t versions_max = std::size_t{1} << 20;

  struct key {
    std::uint64_t device, inode;
    bool operator==(const key& other) const = default;
  };
  struct key_hash {
    std::size_t operator()(const key& k) const {
      return std::hash<std::uint64_t>()(k.inode * 0x9e3779b97f4a7c15ull ^ k.device);
    }
  };
  struct entry {
    std::shared_ptr<host_file> file;
    std::uint32_t generation = 0;
  };

  int open_backend(const std::string& path, bool no_follow, std::shared_ptr<backend_file>& file);
  std::shared_ptr<file_version> version_of(const file_identity& identity, std::int64_t seen_ns);
  void make_room();

  const std::shared_ptr<backend> io_;
  const std::size_t descriptors_max_;
  std::atomic<std::uint64_t> epoch_{1};  // raised by whatever lookups must not outlive
  mutable std::shared_mutex mutex_;      // guards the entries; never held across I/O
  std::vector<entry> entries_;
  std::vector<std::uint32_t> unused_;
  std::size_t hand_ = 0;
  std::mutex versions_mutex_;  // guards the versions; never held across I/O
  std::unordered_map<key, std::shared_ptr<file_version>, key_hash> versions_;
  std::uint64_t last_version_ = 0;
  // Backend files open now. Shared with their deleters, so that it is exact whoever lets one go.
  const std::shared_ptr<std::atomic<std::size_t>> descriptors_ = std::make_shared<std::atomic<std::size_t>>(0);
};

}  // namespace gpufs
