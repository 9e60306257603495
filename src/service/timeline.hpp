// The timeline: what the service did, request by request, on which thread. Off by default. While
// on, each request costs two clock reads and one short lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace gpufs {

struct timeline_event {
  const char* name;  // a literal: "open", "read", "close", "send", "register"
  std::uint32_t thread;
  std::uint64_t begin_ns, end_ns;  // from platform::now_ns()
  std::uint64_t offset, bytes;
  std::int32_t result;
  std::string path;  // as opened; empty when unknown
};

class timeline {
 public:
  // Thread numbers.
  static constexpr std::uint32_t registrar_thread = 0, first_worker = 1, first_opener = 1001,
                                 first_copier = 1501,  // at most 257 threads of each kind
      first_sink = 2001;                               // plus the sink's place

  // The limit of each event's path. A longer path keeps its end.
  static constexpr std::size_t path_bytes_max = 256;

  // Clears the recording, and records up to `events_max` events from now on.
  void start(std::size_t events_max);
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Adds an event. Drops it while off, and counts it as dropped when there is no room. Thread-safe.
  void add(timeline_event event);
  // Ends the recording. Returns JSON in the Trace Event Format, which Perfetto and chrome://tracing
  // show, with times in microseconds since start(). "otherData" has the number of dropped events.
  std::string stop();

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;  // guards the members below
  std::vector<timeline_event> events_;
  std::size_t events_max_ = 0;
  std::uint64_t dropped_ = 0;
  std::uint64_t start_ns_ = 0;
};

}  // namespace gpufs
