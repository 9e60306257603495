#include "service/timeline.hpp"

#include <cinttypes>
#include <cstdio>
#include <new>
#include <set>
#include <utility>

#include "gpufs/base/platform.cuh"

namespace gpufs {
namespace {

// The length of the UTF-8 sequence at `at`, or 0 when there is none. RFC 3629: no overlong forms,
// no surrogates.
std::size_t utf8_length(const std::string& s, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const unsigned second = byte(at + 1);
  if (first >= 0xc2 && first <= 0xdf) return continues(at + 1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const bool valid = !(first == 0xe0 && second < 0xa0) && !(first == 0xed && second > 0x9f);
    return valid && continues(at + 1) && continues(at + 2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const bool valid = !(first == 0xf0 && second < 0x90) && !(first == 0xf4 && second > 0x8f);
    return valid && continues(at + 1) && continues(at + 2) && continues(at + 3) ? 4 : 0;
  }
  return 0;
}

// A path as a JSON string. Bytes that are not UTF-8 become U+FFFD.
std::string quoted(const std::string& s) {
  std::string out = "\"";
  for (std::size_t i = 0; i < s.size();) {
    const std::size_t n = utf8_length(s, i);
    if (n == 0) {
      out += "\\ufffd";
      ++i;
      continue;
    }
    const char c = s[i];
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (n == 1 && static_cast<unsigned char>(c) < 0x20) {
      char text[8];
      std::snprintf(text, sizeof text, "\\u%04x", static_cast<unsigned>(c));
      out += text;
    } else {
      out.append(s, i, n);
    }
    i += n;
  }
  return out + '"';
}

}  // namespace

void timeline::start(std::size_t events_max) {
  const std::lock_guard lock(mutex_);
  events_.clear();
  events_max_ = events_max;
  dropped_ = 0;
  start_ns_ = platform::now_ns();
  on_.store(true, std::memory_order_relaxed);
}

void timeline::add(timeline_event event) {
  const std::lock_guard lock(mutex_);
  if (!on()) return;
  if (event.begin_ns < start_ns_) return;  // from before start()
  if (events_.size() >= events_max_) {
    ++dropped_;
    return;
  }
  try {
    // A copy, because substr() releases the memory of the longer text.
    if (event.path.size() > path_bytes_max)
      event.path = event.path.substr(event.path.size() - path_bytes_max);
    events_.push_back(std::move(event));
  } catch (const std::bad_alloc&) {
    ++dropped_;
  }
}

std::string timeline::stop() {
  std::vector<timeline_event> events;
  std::uint64_t dropped = 0, start_ns = 0;
  {
    const std::lock_guard lock(mutex_);
    on_.store(false, std::memory_order_relaxed);
    events = std::move(events_);
    events_ = {};
    dropped = std::exchange(dropped_, 0);
    start_ns = start_ns_;
  }
  const auto microseconds = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e3; };
  std::set<std::uint32_t> threads;
  std::string json =
      "{\"displayTimeUnit\": \"ns\",\n\"otherData\": {\"dropped\": " + std::to_string(dropped) +
      "},\n\"traceEvents\": [\n"
      R"({"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "gpufs service"}})";
  char text[320];
  for (const timeline_event& e : events) {
    threads.insert(e.thread);
    std::snprintf(text, sizeof text,
                  ",\n{\"name\": \"%s\", \"cat\": \"gpufs\", \"ph\": \"X\", \"pid\": 1, \"tid\": "
                  "%u, \"ts\": %.3f, "
                  "\"dur\": %.3f, \"args\": {\"offset\": %" PRIu64 ", \"bytes\": %" PRIu64
                  ", \"result\": %d, \"path\": ",
                  e.name, e.thread, microseconds(e.begin_ns - start_ns),
                  microseconds(e.end_ns - e.begin_ns), e.offset, e.bytes, e.result);
    json += text;
    json += quoted(e.path) + "}}";
  }
  for (const std::uint32_t thread : threads) {
    const std::string name =
        thread == registrar_thread ? "registrar"
        : thread < first_opener    ? "worker " + std::to_string(thread - first_worker)
        : thread < first_copier    ? "opener " + std::to_string(thread - first_opener)
        : thread < first_sink      ? "copier " + std::to_string(thread - first_copier)
                                   : "sink " + std::to_string(thread - first_sink);
    json += ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 1, \"tid\": " +
            std::to_string(thread) + ", \"args\": {\"name\": \"" + name + "\"}}";
  }
  return json + "\n]}\n";
}

}  // namespace gpufs
