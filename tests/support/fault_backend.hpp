// A backend that wraps another backend and fails by rules.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "gpufs/backend.hpp"

namespace gpufs::testing {

enum class operation {
  open,
  identify,
  read,
  map,
  write,
  truncate,
  sync,
  unlink,
  rename,
  close,  // report_close()
  sync_folder,
  real_close  // an error is told to the close_listener
};

// When a fault strikes, and what it does. At most one of the conditions `nth`, `every` and
// `probability` is set; with none it always strikes. Effects happen in the order of their fields. A
// call without an error continues to the file.
struct fault {
  operation on = operation::read;
  std::string path{};           // only calls on this path; empty: all paths
  std::uint64_t nth = 0;        // the nth matching call, counted from 1
  std::uint64_t every = 0;      // every k-th matching call
  double probability = 0;       // by a seeded random choice
  std::uint64_t times_max = 0;  // limit of strikes; 0: none

  std::chrono::nanoseconds delay{0};
  std::function<void()> before{};  // for example, truncates the file at this moment
  bool worker_death = false;       // throws gpufs::worker_death
  bool exception = false;          // throws std::runtime_error
  int error_number = 0;            // the call returns -error_number; map() returns null
  std::uint64_t bytes_max = 0;     // a read or a write requests at most this many bytes
};

// Thread-safe.
class fault_backend final : public backend {
 public:
  explicit fault_backend(std::shared_ptr<backend> wrapped, std::uint64_t seed = 1);
  ~fault_backend() override;

  int open(const std::string& path, bool no_follow, std::unique_ptr<backend_file>& file) override;
  int open_to_change(const std::string& path, const open_how& how,
                     std::unique_ptr<backend_file>& file) override;
  int unlink(const std::string& path) override;
  int rename(const std::string& path, const std::string& new_path) override;
  int sync_folder(const std::string& path) override;
  std::unique_ptr<descriptor_table_guard> enter_opener() override {
    return wrapped_->enter_opener();
  }
  void close_handed() override { wrapped_->close_handed(); }
  std::size_t kept_descriptors() const override { return wrapped_->kept_descriptors(); }

  // Rules are evaluated in the order in which they were added. All that strike take effect, up to
  // the first that throws or returns an error.
  void add(fault rule);
  // Removes all faults.
  void clear();
  // How many calls of this kind came, and how many rules have struck.
  std::uint64_t calls(operation on) const;
  std::uint64_t strikes() const;

 private:
  class file;
  struct rules;
  const std::shared_ptr<backend> wrapped_;
  const std::shared_ptr<rules> rules_;
};

}  // namespace gpufs::testing
