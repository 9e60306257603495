// Backend calls that change what paths stand for: removals, renames, and opens that create. Such a
// call may hang and outlive its caller, which gives up in time. It may then take effect when the
// path stands for another file, and remove or rename that one. So a later operation on such a path
// is refused until the call has returned. Operations whose callers still wait cause no refusal:
// they take effect in any order.
//
// Paths are compared as given, after removing repeated slashes and "." parts. Another path to the
// same file is not recognized. Each operation occupies a service thread, so there are at most as
// many operations as the service has threads.
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

// Thread-safe. `mutex_` guards the list of operations; it is not held during a call.
class path_operations {
 public:
  // Removes the parts of a path that do not change where it leads, so that more spellings of a path
  // compare as equal.
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

  // Calls `run` and returns its result. Returns -EBUSY instead when an earlier operation on one of
  // the paths is still under way although its caller has given up, as `given_up(slot, sequence)`
  // says. Returns -ECANCELED when this operation's caller has given up. Waits only in `run`.
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
      // The operation is registered from here on. If its caller gives up later and posts another
      // request, that request finds it.
      all_.splice(all_.end(), own);
    }
    const registration ends{*this, place};
    if (given_up(place->slot, place->sequence)) return -ECANCELED;
    return run();
  }

 private:
  struct registration {
    ~registration() {
      std::list<path_operation> own;  // destroyed after the mutex is released
      const std::lock_guard lock(all.mutex_);
      own.splice(own.end(), all.all_, place);
    }
    path_operations& all;
    const std::list<path_operation>::iterator place;
  };

  static bool must_wait(const path_operation& later, const path_operation& earlier) {
    using kind = path_operation::kind;
    // An open changes no file that an open creates, and a creation changes no file that an open
    // opens.
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

  std::mutex mutex_;  // guards all_
  std::list<path_operation> all_;
};

}  // namespace gpufs
