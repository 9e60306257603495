// The host's side of the messages: keeps what one launch sent.
#pragma once

#include <cstdint>
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
  word_count* first;  // in the collector's memory
};

class collector {
 public:
  // `words`: number of words in the dictionary. `bytes_max`: limit of memory for counts. Calls
  // `on_done` at the end of each item, with `mutex_` locked.
  collector(std::size_t items, std::size_t words, std::uint64_t bytes_max,
            std::function<void(const section&)> on_done)
      : words_(words), bytes_left_(bytes_max), ends_(items), on_done_(std::move(on_done)) {}

  // Takes one message. Called by a service thread. Returns 0 or an errno: EPROTO for a malformed
  // message, ENOSPC for counts past the limit, ENOMEM. An error leaves what the sections before it
  // say.
  int take(const char* bytes, std::size_t count) noexcept;

  // Called after the launch. Throws gpufs::error: ENOSPC if the counts passed the limit, EIO if an
  // item has no end, because its block failed.
  void check_complete() const;
  const std::vector<item_end>& ends() const { return ends_; }
  // In no order. An item may have several, with the same words.
  const std::vector<item_counts>& counts() const { return counts_; }

 private:
  int take_counts(const section& s, const word_count* first);
  word_count* keep(const word_count* first, std::size_t count);

  const std::size_t words_;
  std::mutex mutex_;  // guards everything below while the launch runs
  std::uint64_t bytes_left_;
  bool has_passed_limit_ = false;
  // The message that is being read.
  std::vector<std::uint64_t> message_ =
      std::vector<std::uint64_t>(message_bytes_max / sizeof(std::uint64_t));
  std::vector<item_end> ends_;
  std::vector<item_counts> counts_;
  std::function<void(const section&)> on_done_;
  std::vector<std::unique_ptr<word_count[]>> slabs_;  // counts, one section after another
  std::size_t slab_left_ = 0;                         // counts that fit into the last slab
};

}  // namespace gpufs::grep
