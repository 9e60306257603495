// The calls that tell whether written bytes of one file are lost: syncs, and reports of closes
// (backend_file::report_close()). When bytes cannot be written, Linux marks their pages as clean,
// and reports the error once to each descriptor that was open by then. Other file systems report it
// once for the file, to the first call that comes. So
//   - the calls of a file are made in *rounds*, one round at a time: a call beside another one
//     might return 0 while the other one is told that the bytes of both are lost.
//   - a round asks through all descriptors that may have something to tell
//     (file_table::make_round()). So requests that come while a round runs can share the next one
//     of their kind.
//   - the first error is remembered. Every later sync and close of the file returns it, because
//     others may have lost bytes, too. It is forgotten with this object, when the last writer has
//     left.
//
// No thread waits for a round, however long it takes: the thread that finds none under way makes
// rounds until none is left, and answers the requests of all.
#pragma once

#include <errno.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace gpufs {

// Thread-safe. `mutex_` guards all members. It is not held during a round or an answer.
class sync_rounds {
 public:
  enum class kind { sync, close };
  // Gets the result of a request's round: 0 or -errno. Called once, by the thread that makes the
  // round. Must not throw. May be empty.
  using answer = std::function<void(int)>;

  // Adds a request to the next round of its kind. If it returns true, no thread makes rounds, and
  // the caller must call make() now. `place`: what a thread needs to make rounds of syncs. The
  // first one is kept until no round is left. Throws std::bad_alloc, without a change.
  [[nodiscard]] bool add(kind what, answer done, std::shared_ptr<void> place = nullptr) {
    const std::lock_guard lock(mutex_);
    const auto own = std::ranges::find(waiting_, what, &round::what);
    if (own != waiting_.end()) {
      own->answers.push_back(std::move(done));
    } else {
      round fresh{what, {}};
      fresh.answers.push_back(std::move(done));
      waiting_.push_back(std::move(fresh));
    }
    if (place_ == nullptr) place_ = std::move(place);
    return !std::exchange(is_made_, true);
  }

  // Makes rounds until none is left: `make_one(kind)` returns the result. Returns that of the first
  // round, which is the caller's. If a call throws, its round gets -EIO. The last exception leaves
  // make() after the last round.
  template <class MakeOne>
  int make(const MakeOne& make_one) {
    std::exception_ptr thrown;
    std::shared_ptr<void> place;  // destroyed after the mutex is released
    int first = 1;
    for (bool is_last = false; !is_last;) {
      const round one = take_round();
      int status = -EIO;
      try {
        status = make_one(one.what);
      } catch (...) {
        thrown = std::current_exception();
        note_error(status);
      }
      if (first > 0) first = std::min(status, 0);
      {
        // Before the answers: who gets one may close the file and open it again. That open must
        // find no rounds under way (is_busy()).
        const std::lock_guard lock(mutex_);
        is_last = waiting_.empty();
        is_made_ = !is_last;
        if (is_last) place = std::move(place_);
      }
      for (const answer& done : one.answers) {
        if (done) done(status);
      }
    }
    if (thrown) std::rethrow_exception(thrown);
    return first;
  }

  // Remembers an error that says that bytes are lost, unless there is one. 0: none.
  void note_error(int status) {
    const std::lock_guard lock(mutex_);
    if (error_ == 0) error_ = std::min(status, 0);
  }
  // The remembered error, or 0.
  int error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  // Whether a thread makes rounds.
  bool is_busy() {
    const std::lock_guard lock(mutex_);
    return is_made_;
  }

 private:
  struct round {
    kind what;
    std::vector<answer> answers;
  };
  round take_round() {
    const std::lock_guard lock(mutex_);
    round one = std::move(waiting_.front());
    waiting_.pop_front();
    return one;
  }

  std::mutex mutex_;
  std::deque<round> waiting_;  // one of each kind at most; they begin in this order
  bool is_made_ = false;
  std::shared_ptr<void> place_;
  int error_ = 0;
};

}  // namespace gpufs
