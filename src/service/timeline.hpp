// The timeline: what the service did, request by request, on the threads that did it. Off until
// somebody asks: then each request costs two looks at the clock and one short lock.
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
  std::uint64_t begin_ns, end_ns;  // of platform::now_ns()
  std::uint64_t offset, bytes;
  std::int32_t result;
  std::string path;  // as it was opened; empty when unknown
};

class timeline {
 public:
  // Threads' numbers.
  static constexpr std::uint32_t registrar_thread = 0, first_worker = 1, first_opener = 1001,
                                 first_copier = 1501,  // of each kind 257 at most
      first_sink = 2001;                               // of sinks: the place

  // Of each event's path; of a longer one the end.
  static constexpr std::size_t path_bytes_max = 256;

  // Forgets what was recorded, and records up to `events_max` events.
  void start(std::size_t events_max);
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Nothing when it is off by now; counted as dropped when there is no more room.
  void add(timeline_event event);
  // Ends the recording. JSON in the Trace Event Format, which Perfetto and chrome://tracing show;
  // times in microseconds since start(). What was dropped stands in "otherData".
  std::string stop();

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;  // guards the rest
  std::vector<timeline_event> events_;
  std::size_t events_max_ = 0;
  std::uint64_t dropped_ = 0;
  std::uint64_t start_ns_ = 0;
};

}  // namespace gpufs
