// A backend of a simulation: files in memory behind a disk that takes its time by the seed, fails,
// hangs, and ends the threads that use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "support/memory_backend.hpp"

namespace gpufs::testing {

struct disk_options {
  std::uint64_t delay_ns_max = 20'000;  // of a call; half of the times a thousandth of it
  // Of 1024 calls that change or sync a file, at how many it fails: before or after it was done, or
  // in part. And of calls that read or open one.
  unsigned failing_changes = 0, failing_reads = 0;
  unsigned deaths = 0;  // of 4096 calls, after how many the calling thread dies
  unsigned deaths_max = 0;
  std::uint64_t hangs_at = 0;  // this call, counted from 1, hangs until mend(). 0: none
};

// By threads of one simulation.
class disk final : public backend {
 public:
  disk(std::shared_ptr<memory_backend> files, const disk_options& options)
      : files_(std::move(files)), state_(std::make_shared<state>(options)) {}

  int open(const std::string& path, bool no_follow, std::unique_ptr<backend_file>& file) override;
  int open_to_change(const std::string& path, const open_how& how,
                     std::unique_ptr<backend_file>& file) override;

  // From now on all calls are made, none fails, and what hangs goes on.
  void mend() { state_->is_mended = true; }

 private:
  // Opens by `call`, which is one of the files'.
  template <class Call>
  int opened_by(const Call& call, std::unique_ptr<backend_file>& file);

  enum class kind { reads, changes };
  struct state {
    explicit state(const disk_options& o) : options(o) {}
    // Waits, dies, hangs; the error of the call, or 0.
    int begin(kind what);
    void end();
    const disk_options options;
    bool is_mended = false;
    std::uint64_t calls = 0;
    unsigned deaths = 0;
  };
  class file;

  const std::shared_ptr<memory_backend> files_;
  const std::shared_ptr<state> state_;
};

}  // namespace gpufs::testing
