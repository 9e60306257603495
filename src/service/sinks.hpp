// Sinks: host functions that receive what device code sends.
//
// Each sink has its own thread and queue, so a slow sink delays neither the service's workers nor
// another sink. A slot of the channel holds one request at a time, so a queue has at most one entry
// for each slot. A faulty kernel that rings a bell again before the answer could exceed that:
// send() then refuses.
//
// A sink's number is reused after 2^31 others, because kernels keep it in an int. So a message to a
// closed sink reaches no other sink.
//
// Threads. The host opens and closes sinks, service threads call send(), and each sink's thread
// runs serve(). Locks: sink_table::mutex_ guards the table, entry::mutex one sink's queue. No
// thread holds both. Neither is held while the user's function runs.
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
  // Receives the result of a send, 0 or -errno, and the time when the sink's function was called.
  // Called by the sink's thread.
  using answer = std::function<void(std::int32_t result, std::uint64_t begin_ns)>;

  sink_table() = default;
  // As stop(), without a deadline.
  ~sink_table();
  sink_table(const sink_table&) = delete;
  sink_table& operator=(const sink_table&) = delete;

  // Returns the sink's number. Throws gpufs::error: EMFILE, or EAGAIN when the sink's thread cannot
  // be created.
  std::int32_t open(taker take);
  // Closes a sink. No call of its function begins any more; queued sends get -EBADF. Waits for the
  // call under way; so does a close of a sink that another one is closing, or has given up. Returns
  // false when that call has not returned by the deadline. Then everything that the function uses
  // must stay alive until it returns, and stop() waits for it again.
  [[nodiscard]] bool close(std::int32_t sink, const deadline& end);
  // Queues a message. Returns 0: then the bytes must stay until the sink's thread calls `to`, which
  // must not throw. Otherwise returns -EBADF, or -ENOBUFS when more messages are queued than a
  // channel has slots, or throws std::bad_alloc; `to` is then not called. Does not wait for the
  // sink.
  int send(std::uint64_t sink, const char* bytes, std::size_t count, answer to);
  // Closes all sinks, and waits also for those whose close() returned false. Returns false when a
  // call has not returned by the deadline. Its thread is then detached, and answers the send later,
  // so the channel and the timeline must stay alive.
  [[nodiscard]] bool stop(const deadline& end);

 private:
  struct message {
    const char* bytes;
    std::size_t count;
    answer to;
  };
  // Shared with the sink's thread. It outlives the table while the function has not returned.
  struct entry {
    explicit entry(taker t) : take(std::move(t)) {}
    const taker take;
    std::mutex mutex;  // guards the other members, except take
    std::condition_variable wake;
    std::deque<message> queue;
    bool is_closed = false;
  };
  struct open_sink {
    std::uint64_t number = 0;
    std::shared_ptr<entry> shared;  // null once closed
    std::unique_ptr<host_threads> thread;
    bool is_abandoned = false;  // by stop(): nobody learns when its function returns
  };
  // Lists, so that a sink moves from one to another without an allocation.
  using sink_list = std::list<open_sink>;
  // The place of the sink with this number, or null when it is not open. The caller holds mutex_.
  sink_list* find(std::uint64_t number);
  static void serve(entry& e);
  static void ask_to_end(entry& e);
  // Drops the sinks that have ended, until none in `ending_` is wanted. Returns false at the
  // deadline.
  template <class Wanted>
  bool wait_for(const deadline& end, const Wanted& is_wanted);

  std::mutex mutex_;  // guards the members below
  // Each place has at most one sink: the one whose number, modulo the count, is the place.
  std::array<sink_list, limits::sinks_max> sinks_;
  sink_list ending_;  // closed, but their functions may not have returned
  std::uint64_t next_number_ = 0;
};

}  // namespace gpufs
