#include "grep.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpufs/base/start_thread.hpp"
#include "grep/grep.hpp"
#include "mount.hpp"
#include "rivals/grep/rivals.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gpufs::python {
namespace {

nb::bytes to_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

std::vector<std::string> to_strings(const nb::list& list) {
  std::vector<std::string> strings;
  strings.reserve(list.size());
  for (const nb::handle item : list) {
    const auto bytes = nb::cast<nb::bytes>(item);
    strings.emplace_back(bytes.c_str(), bytes.size());
  }
  return strings;
}

grep::letter_case case_of(bool ignore_case) {
  return ignore_case ? grep::letter_case::ignored : grep::letter_case::heeded;
}

// The result of a search, with the names for its numbers. Constant once it is complete.
struct search_result {
  explicit search_result(grep::dictionary w) : words(std::move(w)) {}

  grep::dictionary words;
  std::vector<grep::file_item> files;
  std::vector<grep::path_failure> failures;  // of the listing, then of the search
  grep::result found;
  std::vector<std::uint64_t> lines;  // of each file; only if lines were counted
  std::uint64_t words_found = 0;
  std::uint64_t occurrences = 0;

  // Called when the search has ended.
  void add_up() {
    for (const grep::failure& f : found.failures) {
      // The path now names something else than at the listing, or its content is not that of a
      // regular file.
      const char* reason =
          f.error == EINVAL ? "cannot be searched: it is no regular file" : nullptr;
      failures.push_back({files[f.file].path, f.error, reason});
    }
    std::vector<bool> seen(words.words().size());
    for (const grep::match& match : found.matches) {
      words_found += seen[match.word] ? 0 : 1;
      seen[match.word] = true;
      occurrences += match.count;
    }
  }

  // Takes the result of count_lines. Leaves out files that could not be searched.
  void add_up_lines(grep::line_result&& counted) {
    found.failures = std::move(counted.failures);
    found.bytes = counted.bytes;
    found.files = counted.files;
    add_up();
    std::vector<bool> failed(files.size());
    for (const grep::failure& f : found.failures) failed[f.file] = true;
    std::vector<grep::file_item> searched;
    for (std::size_t k = 0; k < files.size(); ++k) {
      if (failed[k]) continue;
      searched.push_back(std::move(files[k]));
      lines.push_back(counted.lines[k]);
    }
    files = std::move(searched);
    found.failures.clear();  // their numbers refer to the old list
  }

  std::size_t size() const { return found.matches.size(); }
  // Limits `start` and `stop` to the existing matches.
  std::pair<std::size_t, std::size_t> range(std::size_t start, std::size_t stop) const {
    stop = std::min(stop, size());
    return {std::min(start, stop), stop};
  }
  const std::string& path(const grep::match& m) const { return files[m.file].path; }
  const std::string& word(const grep::match& m) const { return words.words()[m.word]; }

  nb::list matches(std::size_t start, std::size_t stop) const {
    std::tie(start, stop) = range(start, stop);
    nb::list list;
    for (std::size_t i = start; i < stop; ++i) {
      const grep::match& m = found.matches[i];
      list.append(nb::make_tuple(to_bytes(path(m)), to_bytes(word(m)), m.count));
    }
    return list;
  }

  // Returns the number of matches that only one of two results has. Both are sorted.
  std::size_t differing(const search_result& other) const {
    const auto key = [](const search_result& of, std::size_t i) {
      const grep::match& m = of.found.matches[i];
      return std::tie(of.path(m), of.word(m), m.count);
    };
    std::size_t same = 0;
    for (std::size_t i = 0, j = 0; i < size() && j < other.size();) {
      const auto mine = key(*this, i), theirs = key(other, j);
      same += mine == theirs ? 1 : 0;
      i += mine <= theirs ? 1 : 0;
      j += theirs <= mine ? 1 : 0;
    }
    return size() + other.size() - 2 * same;
  }

  nb::list line_counts() const {
    nb::list list;
    for (std::size_t k = 0; k < lines.size(); ++k)
      list.append(nb::make_tuple(to_bytes(files[k].path), lines[k]));
    return list;
  }

  std::string text(std::size_t start, std::size_t stop) const {
    std::tie(start, stop) = range(start, stop);
    std::string text;
    text.reserve((stop - start) * 64);
    char digits[20];  // enough for the largest count
    for (std::size_t i = start; i < stop; ++i) {
      const grep::match& m = found.matches[i];
      char* const end = std::to_chars(digits, digits + sizeof digits, m.count).ptr;
      text.append(path(m)).push_back('\t');
      text.append(word(m)).push_back('\t');
      text.append(digits, end).push_back('\n');
    }
    return text;
  }
};

// A search on a thread of its own. That thread shares the job with Python's object, which may be
// released before the search ends. In that case, closing the mount waits for the thread.
class search_job {
 public:
  search_job(std::shared_ptr<mount_holder> holder, grep::dictionary words,
             std::vector<std::string> roots, bool lines)
      : holder_(std::move(holder)), words_(std::move(words)), roots_(std::move(roots)),
        lines_(lines) {}
  search_job(const search_job&) = delete;
  search_job& operator=(const search_job&) = delete;

  void run() noexcept {
    std::shared_ptr<const search_result> result;
    std::exception_ptr error;
    try {
      result = holder_->use([this](mount& m) { return search(m); });
    } catch (...) {
      error = std::current_exception();  // result() throws it again
    }
    bool left = false;
    {
      const std::lock_guard lock(mutex_);
      result_ = std::move(result);
      error_ = std::move(error);
      done_ = true;
      left = left_;
    }
    ended_.notify_all();
    if (left) holder_->left()->remove();
  }

  // Detaches the search: nothing waits for its end any more, not even closing the mount.
  void leave() {
    const std::lock_guard lock(mutex_);
    if (done_ || left_) return;
    holder_->left()->add();
    left_ = true;
  }

  bool wait(double seconds) {
    holder_->refuse_forked();
    std::unique_lock lock(mutex_);
    // Bounded, because the clock's arithmetic overflows after some centuries.
    return ended_.wait_for(lock, std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6)),
                           [this] { return done_; });
  }

  std::shared_ptr<const search_result> result() {
    holder_->refuse_forked();
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return done_; });
    if (error_ != nullptr) std::rethrow_exception(error_);
    return result_;
  }

  // Returns files done, files in total, bytes done, bytes in total.
  std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t> progress() const {
    // Relaxed: these four numbers are only displayed, and each is valid by itself.
    return {progress_.files_done.load(std::memory_order_relaxed),
            files_total_.load(std::memory_order_relaxed),
            progress_.bytes_done.load(std::memory_order_relaxed),
            bytes_total_.load(std::memory_order_relaxed)};
  }

 private:
  std::shared_ptr<const search_result> search(mount& m) {
    search_result r(words_);
    r.files = grep::walk(roots_, r.failures);
    std::uint64_t bytes = 0;
    for (const grep::file_item& file : r.files) bytes += file.size_hint;
    bytes_total_.store(bytes, std::memory_order_relaxed);
    files_total_.store(r.files.size(), std::memory_order_relaxed);
    if (lines_) {
      r.add_up_lines(grep::count_lines(m, words_, r.files, &progress_));
    } else {
      r.found = grep::search(m, words_, r.files, &progress_);
      r.add_up();
    }
    return std::make_shared<const search_result>(std::move(r));
  }

  const std::shared_ptr<mount_holder> holder_;
  const grep::dictionary words_;
  const std::vector<std::string> roots_;
  const bool lines_;  // counts lines instead of words
  grep::progress progress_;
  std::atomic<std::uint64_t> files_total_{0};
  std::atomic<std::uint64_t> bytes_total_{0};
  std::mutex mutex_;  // guards all fields below
  std::condition_variable ended_;
  bool done_ = false;
  bool left_ = false;
  std::shared_ptr<const search_result> result_;
  std::exception_ptr error_;
};

// Python's objects. They only wrap shared state, which the search's thread may own longer.
struct py_search {
  std::shared_ptr<search_job> job;
};
struct py_search_result {
  std::shared_ptr<const search_result> result;
};

void start_search(py_search* place, const py_mount& m, const grep::dictionary& words,
                  const nb::list& roots, bool lines) {
  auto job = std::make_shared<search_job>(m.holder, words, to_strings(roots), lines);
  m.holder->refuse_forked();
  start_thread([job] { job->run(); }).detach();
  new (place) py_search{std::move(job)};
}

nb::list failures_of(const py_search_result& self) {
  nb::list list;
  for (const grep::path_failure& f : self.result->failures) {
    const nb::object reason = f.reason == nullptr ? nb::none() : nb::object(nb::str(f.reason));
    list.append(nb::make_tuple(to_bytes(f.path), f.error, reason));
  }
  return list;
}

// Returns the result of a program without gpufs, and the seconds for listing and searching. `way`:
// "cpu" or "cuda".
nb::tuple search_by_rival(const std::string& way, const grep::dictionary& words,
                          const nb::list& roots, unsigned threads, std::uint64_t chunk_bytes) {
  const std::vector<std::string> paths = to_strings(roots);
  auto r = std::make_shared<search_result>(words);
  double seconds = 0;
  {
    const nb::gil_scoped_release released;
    const auto start = std::chrono::steady_clock::now();
    r->files = grep::walk(paths, r->failures);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto search = way == "cpu" ? grep::search_on_host : grep::search_by_pipeline;
    grep::rival_result found = search(words, r->files, threads, chunk_bytes);
    seconds += found.seconds;
    r->found = std::move(found.found);
    r->add_up();
  }
  return nb::make_tuple(py_search_result{std::move(r)}, seconds);
}

nb::list binary_of(const py_search_result& self) {
  nb::list list;
  for (const std::uint32_t file : self.result->found.binary)
    list.append(to_bytes(self.result->files[file].path));
  return list;
}

}  // namespace

void bind_grep(nb::module_& m) {
  nb::class_<grep::dictionary>(m, "Dictionary")
      .def(
          "__init__",
          [](grep::dictionary* place, const nb::list& words, bool ignore_case) {
            new (place) grep::dictionary(
                interruptibly({}, nb::none(), [ignore_case, own = to_strings(words)]() mutable {
                  return grep::dictionary(std::move(own), case_of(ignore_case));
                }));
          },
          "words"_a, "ignore_case"_a)
      .def_static(
          "read",
          [](const nb::list& paths, const nb::list& more, bool ignore_case) {
            return interruptibly(
                {}, nb::none(),
                [ignore_case, files = to_strings(paths), words = to_strings(more)]() mutable {
                  return grep::dictionary::read(files, std::move(words), case_of(ignore_case));
                });
          },
          "paths"_a, "more"_a, "ignore_case"_a)
      .def("__len__", [](const grep::dictionary& self) { return self.words().size(); });

  nb::class_<py_search_result>(m, "SearchResult")
      .def_prop_ro("file_count",
                   [](const py_search_result& self) { return self.result->found.files; })
      .def_prop_ro("byte_count",
                   [](const py_search_result& self) { return self.result->found.bytes; })
      .def_prop_ro("words_found",
                   [](const py_search_result& self) { return self.result->words_found; })
      .def_prop_ro("occurrences",
                   [](const py_search_result& self) { return self.result->occurrences; })
      .def("__len__", [](const py_search_result& self) { return self.result->size(); })
      .def(
          "differing",
          [](const py_search_result& self, const py_search_result& other) {
            return self.result->differing(*other.result);
          },
          "other"_a)
      .def("failures", failures_of)
      .def("binary", binary_of)
      .def("line_counts", [](const py_search_result& self) { return self.result->line_counts(); })
      .def(
          "matches",
          [](const py_search_result& self, std::size_t start, std::size_t stop) {
            return self.result->matches(start, stop);
          },
          "start"_a, "stop"_a)
      .def(
          "lines",
          [](const py_search_result& self, std::size_t start, std::size_t stop) {
            return to_bytes(self.result->text(start, stop));
          },
          "start"_a, "stop"_a);

  nb::class_<py_search>(m, "Search")
      .def("__init__", start_search, "mount"_a, "dictionary"_a, "roots"_a, "lines"_a)
      .def(
          "wait",
          [](const py_search& self, double seconds) {
            const nb::gil_scoped_release released;
            return self.job->wait(seconds);
          },
          "timeout_s"_a)
      .def("leave", [](const py_search& self) { self.job->leave(); })
      .def("progress", [](const py_search& self) { return self.job->progress(); })
      .def("result", [](const py_search& self) {
        const nb::gil_scoped_release released;
        return py_search_result{self.job->result()};
      });

  m.def(
      "grep_searches",
      [](const nb::list& roots, const nb::bytes& path) {
        const std::vector<std::string> names = to_strings(roots);
        const std::string file(path.c_str(), path.size());
        const nb::gil_scoped_release released;
        return grep::is_searched(names, file);
      },
      "roots"_a, "path"_a);
  m.def("bench_grep_rival", search_by_rival, "way"_a, "dictionary"_a, "roots"_a, "threads"_a,
        "chunk_bytes"_a);
}

}  // namespace gpufs::python
