// The last place of a file in each stream in which it was used.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "arrays/memory.hpp"

namespace gpufs::arrays {

// Thread-safe.
class stream_places {
 public:
  using event = device_memory::event;
  // `memory` must outlive this object.
  explicit stream_places(device_memory& memory) : memory_(memory) {}

  // Returns the event that the caller records in the stream after its call.
  std::shared_ptr<event> place_in(void* stream) {
    // Not the handle: a later stream may have the handle of one that was destroyed while its work
    // still ran.
    const std::uint64_t id = memory_.id_of(stream);
    const std::lock_guard lock(mutex_);
    for (const auto& [known, place] : places_) {
      if (known == id) return place;
    }
    // A program may create a stream for each call. An event that a caller still has may be recorded
    // again.
    std::erase_if(places_, [](const auto& known) {
      return known.second.use_count() == 1 && known.second->is_done();
    });
    return places_.emplace_back(id, memory_.make_event()).second;
  }
  // Waits until the device has reached all places.
  void wait() const {
    std::vector<std::shared_ptr<event>> all;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, place] : places_) all.push_back(place);
    }
    for (const auto& place : all) place->wait();
  }

 private:
  device_memory& memory_;
  mutable std::mutex mutex_;  // guards places_; held only briefly
  std::vector<std::pair<std::uint64_t, std::shared_ptr<event>>> places_;
};

}  // namespace gpufs::arrays
