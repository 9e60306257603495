/** What the processes of a dataflow share in host memory: orders, semaphores and matrices. */
#pragma once

#include <semaphore.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>

#include "bench/dataflow/graph.hpp"
#include "bench/program.hpp"

namespace gdev_bench {

/** How results get from one module to the next. */
enum class way : unsigned {
  copied,  // to the host, and to the device again
  shared,  // in device memory that both have by a key
};

/** What all modules do next. */
enum class step : unsigned {
  start,    // make a context
  prepare,  // get the memory for a case
  remove,   // take the keys away, when all have the memory; it stays until they let go of it
  round,    // wait for the inputs, compute, hand on
  release,  // let go of the memory
  end,
};

struct order {
  step what = step::start;
  operation computed = operation::add;
  way by = way::copied;
  bool is_pinned = false;  // the host memory that is copied from and to
  std::size_t side = 0;
  std::uint32_t salt = 0;
  std::int64_t first_key = 0;  // of module 0; the next ones follow
};

/** Memory that a process shares with the children that it forks later. Zero at first. */
class shared_pages {
 public:
  explicit shared_pages(std::size_t bytes)
      : data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
        bytes_(bytes) {
    if (data_ == MAP_FAILED) {
      fail("mmap: out of memory");
    }
  }
  shared_pages(const shared_pages&) = delete;
  shared_pages& operator=(const shared_pages&) = delete;
  ~shared_pages() { munmap(data_, bytes_); }

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_;
  std::size_t bytes_;
};

/** A semaphore of several processes. */
class semaphore {
 public:
  semaphore() {
    if (sem_init(&value_, 1, 0) != 0) {
      fail("sem_init: failed");
    }
  }

  void post() { sem_post(&value_); }
  /** Waits without limit: the process that would post kills the waiting one when it ends. */
  void wait() {
    while (sem_wait(&value_) != 0 && errno == EINTR) {
    }
  }
  /** Waits for a tenth of a second at most. Returns whether it was posted. */
  bool wait_a_moment() {
    timespec end{};
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += 100'000'000;
    end.tv_sec += end.tv_nsec / 1'000'000'000;
    end.tv_nsec %= 1'000'000'000;
    return sem_timedwait(&value_, &end) == 0;
  }

 private:
  sem_t value_{};
};

/** Made before the modules' processes are forked. */
class board {
 public:
  struct seat {
    semaphore go;     // the next order is there
    semaphore ready;  // once for each result that this module takes
  };

  /** `most_bytes`: of a matrix. */
  board(const graph& flow, std::size_t most_bytes)
      : sources_(flow.sources), matrix_bytes_(divide_up(most_bytes, page) * page),
        pages_(head_bytes(flow) + (flow.sources + flow.modules.size()) * matrix_bytes_),
        matrices_(pages_.data() + head_bytes(flow)), head_(new (pages_.data()) head) {
    for (std::size_t i = 0; i < flow.modules.size(); ++i) {
      new (pages_.data() + sizeof(head) + i * sizeof(seat)) seat;
    }
  }

  /** The order that is valid. A module may read it when it may go. */
  [[nodiscard]] order& current() const { return head_->current; }
  /** Posted by each module that has followed an order. */
  [[nodiscard]] semaphore& done() const { return head_->done; }
  [[nodiscard]] seat& of(std::size_t number) const {
    return *std::launder(reinterpret_cast<seat*>(pages_.data() + sizeof(head)) + number);
  }

  [[nodiscard]] std::uint32_t* source(std::size_t number) const { return matrix(number); }
  /** Where a module leaves its result on the host. */
  [[nodiscard]] std::uint32_t* result(std::size_t number) const {
    return matrix(sources_ + number);
  }
  [[nodiscard]] std::uint32_t* host_of(const node::input& from) const {
    return from.is_source ? source(from.number) : result(from.number);
  }

 private:
  struct head {
    order current;
    semaphore done;
  };
  static constexpr std::size_t page = 4096;

  static std::size_t head_bytes(const graph& flow) {
    return divide_up(sizeof(head) + flow.modules.size() * sizeof(seat), page) * page;
  }
  [[nodiscard]] std::uint32_t* matrix(std::size_t number) const {
    return reinterpret_cast<std::uint32_t*>(matrices_ + number * matrix_bytes_);
  }

  std::size_t sources_;
  std::size_t matrix_bytes_;
  shared_pages pages_;
  std::byte* matrices_;
  head* head_;
};

}  // namespace gdev_bench
