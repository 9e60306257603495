// Sinks: functions of the host that take what device code sends.
//
// Each sink has a thread and a queue of its own, so that one that is slow holds up neither the
// service's workers nor another sink. A slot of the channel holds one request at a time, so a queue
// has one entry for each slot at most. A kernel that rings a bell again before the answer could
// make it longer: it is refused.
//
// A sink's number comes again after 2^31 others, as kernels have it in an int. So what is sent to a
// sink that is closed reaches no other one.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

#include "base/host_threads.hpp"
#include "gpufs/base/limits.hpp"

namespace gpufs {

// Thread-safe, except for the destructor.
class sink_table {
 public:
  using taker = std::function<int(const char* bytes, std::size_t count)>;
  // The result of a send, 0 or -errno, and when the sink's function was called.
  using answer = std::function<void(std::int32_t result, std::uint64_t begin_ns)>;

  sink_table() = default;
  ~sink_table();  // as stop(), without a deadline
  sink_table(const sink_table&) = delete;
  sink_table& operator=(const sink_table&) = delete;

  std::int32_t open(
      taker take);  // throws gpufs::error: EMFILE, or EAGAIN when the sink cannot have a thread
  // No call of the sink begins any more; sends that wait get -EBADF. False when the call under way
  // has not returned by the deadline: then what the function uses must stay until it returns, and
  // stop() waits for it again.
  [[nodiscard]] bool close(std::int32_t sink, const deadline& end);
  // 0: the bytes are queued, and must stay until the sink's thread calls `to`, which must not
  // throw. Or -EBADF; -ENOBUFS when more messages wait than a channel has slots; or throws
  // std::bad_alloc: then `to` is not called. Does not wait for the sink.
  int send(std::uint64_t sink, const char* bytes, std::size_t count, answer to);
  // Closes all sinks, and waits also for those whose close() returned false. False when a call has
  // not returned by the deadline: then its thread is left behind, and answers the send later, so
  // the channel and the timeline must stay.
  [[nodiscard]] bool stop(const deadline& end);

 private:
  struct message {
    const char* bytes;
    std::size_t count;
    answer to;
  };
  // Outlives the table while the function has not returned.
  struct entry {
    explicit entry(taker t) : take(std::move(t)) {}
    const taker take;
    std::mutex mutex;  // guards the rest
    std::condition_variable wake;
    std::deque<message> queue;
    bool is_closed = false;
  };
  struct open_sink {
    std::uint64_t number = 0;
    std::shared_ptr<entry> shared;  // null: closed
    std::unique_ptr<host_threads> thread;
  };
  // Lists, so that a sink passes from one to another without an allocation.
  using sink_list = std::list<open_sink>;
  // The place of the sink with this number; null when it is not open. The caller holds mutex_.
  sink_list* find(std::uint64_t number);
  static void serve(entry& e);
  static void ask_to_end(const open_sink& sink);

  std::mutex mutex_;  // guards the rest
  // At most one in each: in the place that its number says, modulo the count.
  std::array<sink_list, limits::sinks_max> sinks_;
  sink_list left_;  // closed, but their functions had not returned in time
  std::uint64_t next_number_ = 0;
};

}  // namespace gpufs
