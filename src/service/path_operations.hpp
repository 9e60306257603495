// Calls of the backend that change what paths stand for: removals, renames, opens that create. One
// that hangs outlives its caller, which gives up in time. It may then take place when the path
// stands for another file, remove that one, or give it another name. So a later operation on such a
// path is refused until the call has returned. Operations whose callers still wait refuse nothing:
// they take place in any order.
//
// Paths are compared as they were given, but for repeated slashes and "." between them. Another
// path to the same file is not recognized. Each operation is one thread's, so there are no more of
// them than the service has threads.
#pragma once

#include <errno.h>

#include <array>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace gpufs {

struct path_operation {
  enum class kind { opens, creates, creates_exclusively, changes_names };
  kind what = kind::opens;
  std::array<std::string, 2> paths{};  // the second may be empty
  // The request.
  std::uint32_t slot = 0;
  std::uint32_t sequence = 0;
};

// Thread-safe.
class path_operations {
 public:
  // Without what does not change where it leads, so that fewer spellings of a path seem to be
  // different ones.
  static std::string plain(std::string_view path) {
    std::string plain;
    plain.reserve(path.size());
    for (std::size_t at = 0; at < path.size();) {
      const std::size_t end = path.find('/', at);
      const std::string_view name = path.substr(at, end == path.npos ? path.npos : end - at);
      const bool is_root = at == 0 && name.empty();
      if (is_root || (!name.empty() && name != ".")) {
        plain += name;
        if (end != path.npos) plain += '/';
      }
      at = end == path.npos ? path.size() : end + 1;
    }
    return plain;
  }

  // Does the operation, by calling `run`, and returns what that does. -EBUSY instead: an earlier
  // one on one of the paths goes on though its caller has given up, as `given_up(slot, sequence)`
  // says. -ECANCELED: this one's caller has.
  template <class GivenUp, class Run>
  int run(path_operation operation, const GivenUp& given_up, const Run& run) {
    for (std::string& path : operation.paths) path = plain(path);
    std::list<path_operation> own;
    own.push_back(std::move(operation));
    const auto place = own.begin();
    {
      const std::lock_guard lock(mutex_);
      for (const path_operation& other : all_) {
        if (must_wait(*place, other) && given_up(other.slot, other.sequence)) return -EBUSY;
      }
      // It is known from here on. A caller that gives up later may ask for more, and finds it.
      all_.splice(all_.end(), own);
    }
    const registration ends{*this, place};
    if (given_up(place->slot, place->sequence)) return -ECANCELED;
    return run();
  }

 private:
  struct registration {
    ~registration() {
      std::list<path_operation> own;  // destroyed after the mutex is given back
      const std::lock_guard lock(all.mutex_);
      own.splice(own.end(), all.all_, place);
    }
    path_operations& all;
    const std::list<path_operation>::iterator place;
  };

  static bool must_wait(const path_operation& later, const path_operation& earlier) {
    using kind = path_operation::kind;
    // Its file is not changed when it is opened, nor the other way round.
    const bool earlier_creates =
        earlier.what == kind::creates || earlier.what == kind::creates_exclusively;
    if (earlier.what == kind::opens) return false;
    if (earlier_creates && (later.what == kind::opens || later.what == kind::creates)) return false;
    for (const std::string& path : later.paths) {
      for (const std::string& other : earlier.paths) {
        if (!path.empty() && path == other) return true;
      }
    }
    return false;
  }

  std::mutex mutex_;  // guards the rest
  std::list<path_operation> all_;
};

}  // namespace gpufs
