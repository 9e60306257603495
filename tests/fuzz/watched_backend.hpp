// Files in memory for a service that is asked for anything: what it does to them must have been
// asked for. What was not ends the program, so that a fuzzer keeps the input.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fuzz/input.hpp"
#include "support/memory_backend.hpp"

namespace gpufs::testing {

// Bytes that reached a file.
struct written_bytes {
  std::uint64_t offset;
  std::string bytes;
};

// Thread-safe.
class watched_backend final : public backend {
 public:
  // `bytes_max`: the most that may be read or written by one call.
  explicit watched_backend(std::uint64_t bytes_max);

  // Files as at the beginning; no path was named yet. Nobody has a file open.
  void begin();
  // The service may do something with this path from now on.
  void name(std::string path);
  // What was written since the last call.
  std::vector<written_bytes> take_written();
  // Whether the file that nobody may open is as it was.
  bool is_precious_untouched() const;

  int open(const std::string& path, bool no_follow, std::unique_ptr<backend_file>& file) override;
  int open_to_change(const std::string& path, const open_how& how,
                     std::unique_ptr<backend_file>& file) override;
  int unlink(const std::string& path) override;
  int rename(const std::string& path, const std::string& new_path) override;

 private:
  class file;
  struct log {
    std::mutex mutex;  // guards what follows
    std::vector<written_bytes> written;
  };
  // 0, or -EACCES for the precious file.
  int check_name(const std::string& path);

  const std::uint64_t bytes_max_;
  const std::shared_ptr<log> log_ = std::make_shared<log>();
  mutable std::mutex mutex_;  // guards what follows
  std::set<std::string> named_;
  std::shared_ptr<memory_backend> files_;
};

}  // namespace gpufs::testing
