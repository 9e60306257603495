// Sinks: functions of the host that take what device code sends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "gpufs/base/limits.hpp"

namespace gpufs {

// Thread-safe.
class sink_table {
 public:
  using taker = std::function<int(const char* bytes, std::size_t count)>;
  std::int32_t open(taker take);  // throws gpufs::error EMFILE
  void close(std::int32_t sink);
  int send(std::uint32_t sink, const char* bytes, std::size_t count);  // 0 or -errno

 private:
  struct entry {
    std::mutex mutex;  // one call at a time
    taker take;
  };
  std::mutex mutex_;  // guards entries_
  std::array<std::shared_ptr<entry>, limits::sinks_max> entries_;
};

}  // namespace gpufs
