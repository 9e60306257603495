// The host's side of the messages: keeps what one launch sent.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "report.hpp"

namespace gpufs::grep {

struct item_end {
  bool done = false;
  int error = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = no_nul;
};

struct item_counts {
  std::uint32_t item;
  std::uint32_t count;
  word_count* first;  // in the collector
};

class collector {
 public:
  // `words`: of the dictionary. `on_done` is called for each item at its end, with the collector
  // latched.
  collector(std::size_t items, std::size_t words, std::function<void(const section&)> on_done)
      : words_(words), ends_(items), on_done_(std::move(on_done)) {}

  // Takes one message, on a service thread. Returns 0, or an errno: EPROTO when it makes no sense,
  // ENOMEM.
  int take(const char* bytes, std::size_t count) noexcept;

  // After the launch. Throws gpufs::error (EIO) when the end of an item is missing: a block gave
  // up.
  void check_complete() const;
  const std::vector<item_end>& ends() const { return ends_; }
  // In no order; several for one item, with the same words.
  const std::vector<item_counts>& counts() const { return counts_; }

 private:
  char* keep(const char* bytes, std::size_t count);

  const std::size_t words_;
  std::mutex mutex_;  // guards everything below while the launch runs
  std::vector<item_end> ends_;
  std::vector<item_counts> counts_;
  std::function<void(const section&)> on_done_;
  std::vector<std::unique_ptr<std::uint64_t[]>> slabs_;  // messages, one behind the other
  std::size_t slab_left_ = 0;                            // bytes, in the last slab
};

}  // namespace gpufs::grep
