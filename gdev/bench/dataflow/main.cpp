/**
 * The dataflows of figure 11 of Gdev (ATC 2012):
 * dataflow tree|rectangle [--depth D] [--width W] [--first N] [--add N] [--multiply N]
 *   [--shared 0|1] [--repeats R] [--seed S] [--limit SECONDS]
 *
 * Each module is a process with a context of its own, and adds or multiplies two square matrices.
 * Results go to the next module through the host ("copied": a copy to host memory that all share,
 * and one to the device again), or stay in device memory that both modules have by a key ("shared",
 * with --shared 1: the program must run under gdev). What comes from outside, and the result of the
 * whole, is copied from and to the host in both. The host memory is pageable, or pinned.
 *
 * The matrices have --first rows, twice as many, and so on, up to --add and --multiply for each
 * operation; 0: it is not measured. Prints a line of JSON for each case:
 * - "start": seconds from the first fork until all modules have a context and their kernels. It is
 *   the same for all cases of a run;
 * - "prepare": until all modules have their memory: allocated, pinned, or attached by key;
 * - "seconds": of each round: from the order until all modules have done their work, once. A first
 *   round is not counted.
 *
 * --limit: how long a step of all modules may take.
 */
#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "bench/dataflow/board.hpp"
#include "bench/dataflow/graph.hpp"
#include "bench/dataflow/module.hpp"
#include "bench/matrix_tile.hpp"
#include "bench/micro/compare.hpp"

namespace gdev_bench {
namespace {

constexpr double round_seconds = 0.3;
constexpr std::size_t rounds_max = 30;
// For modules to take away their keys, when one has failed.
constexpr double give_up_seconds = 2;

struct settings {
  std::string shape;
  std::size_t depth;
  std::size_t width;
  std::size_t first;
  std::size_t most[2];  // by operation
  bool has_shared;
  std::size_t repeats;
  std::size_t seed;
  std::size_t limit;

  [[nodiscard]] std::size_t most_side() const { return std::max(most[0], most[1]); }
};

std::string read_kernels() {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "dataflow.ptx";
  std::ifstream file(path);
  if (!file) {
    fail(path.string() + ": cannot be read");
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

/** The processes of all modules. They end when this process does. */
class processes {
 public:
  processes(const graph& flow, const board& shared, const settings& chosen)
      : board_(shared), limit_(static_cast<double>(chosen.limit)) {
    const std::string kernels = read_kernels();
    const stopwatch watch;
    const pid_t self = getpid();
    std::fflush(stdout);
    for (std::size_t i = 0; i < flow.modules.size(); ++i) {
      const pid_t made = fork();
      if (made < 0) {
        fail("fork: " + std::string(std::strerror(errno)));
      }
      if (made == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != self) {
          std::_Exit(could_not_run);
        }
        run_module(flow, i, shared, kernels);
        std::exit(0);
      }
      children_.push_back(made);
    }
    follow({});
    start_seconds_ = watch.seconds();
  }

  [[nodiscard]] double start_seconds() const { return start_seconds_; }

  /** Gives an order to all modules and waits until they have followed it. */
  double follow(const order& next) {
    const stopwatch watch;
    give(next);
    for (std::size_t left = children_.size(); left != 0;) {
      if (board_.done().wait_a_moment()) {
        --left;
      } else if (watch.seconds() > limit_) {
        end(give_up_seconds);
        fail("the modules did not end a step within the limit");
      } else {
        check_children();
      }
    }
    return watch.seconds();
  }

  /** Lets all end. Returns whether they did in time. */
  bool end(double limit_seconds) {
    order last;
    last.what = step::end;
    give(last);
    const stopwatch watch;
    for (const pid_t one : children_) {
      while (waitpid(one, nullptr, WNOHANG) == 0) {
        if (watch.seconds() > limit_seconds) {
          return false;
        }
        usleep(1000);
      }
    }
    return true;
  }

 private:
  void give(const order& next) {
    board_.current() = next;
    for (std::size_t i = 0; i < children_.size(); ++i) board_.of(i).go.post();
  }

  /** Ends this process, and so all modules, if one has ended. */
  void check_children() {
    int status = 0;
    if (waitpid(-1, &status, WNOHANG) <= 0) {
      return;
    }
    end(give_up_seconds);
    if (WIFSIGNALED(status)) {
      fail("a module was killed by signal " + std::to_string(WTERMSIG(status)));
    }
    std::exit(could_not_run);  // it has said why
  }

  const board& board_;
  double limit_;
  std::vector<pid_t> children_;
  double start_seconds_ = 0;
};

class experiment {
 public:
  experiment(const graph& flow, const settings& chosen)
      : flow_(flow), chosen_(chosen),
        board_(flow, chosen.most_side() * chosen.most_side() * sizeof(std::uint32_t)),
        processes_(flow, board_, chosen) {}

  /** Measures all cases. Returns whether all results were right. */
  bool measure() {
    for (std::size_t side = chosen_.first; side <= chosen_.most_side(); side *= 2) {
      make_sources(side);
      for (const operation computed : {operation::add, operation::multiply}) {
        if (side > chosen_.most[static_cast<unsigned>(computed)]) continue;
        for (const bool is_pinned : {false, true}) {
          for (const way by : {way::copied, way::shared}) {
            if (by == way::copied || chosen_.has_shared) {
              measure({step::prepare, computed, by, is_pinned, side, 0, key()});
            }
          }
        }
      }
    }
    if (!processes_.end(static_cast<double>(chosen_.limit))) {
      fail("a module did not end within the limit");
    }
    return all_right_;
  }

 private:
  void make_sources(std::size_t side) {
    for (std::size_t number = 0; number < flow_.sources; ++number) {
      std::uint32_t* const to = board_.source(number);
      const std::uint64_t first = hash(chosen_.seed ^ (std::uint64_t{number} << 32));
      in_parallel(side * side, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
          to[i] = static_cast<std::uint32_t>(hash(first + i));
        }
      });
    }
  }

  /** Returns the first of keys that nobody else uses. */
  static std::int64_t key() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    const std::uint64_t chosen =
        hash(static_cast<std::uint64_t>(now.tv_sec) ^ hash(static_cast<std::uint64_t>(getpid())) ^
             static_cast<std::uint64_t>(now.tv_nsec));
    return static_cast<std::int64_t>(chosen >> 1 & ~std::uint64_t{0xffff}) + 1;
  }

  void measure(order now) {
    const double prepare = processes_.follow(now);
    if (now.by == way::shared) {
      now.what = step::remove;
      processes_.follow(now);
    }
    now.what = step::round;
    round(now);
    bool is_right = are_right(now);
    std::vector<double> seconds;
    const stopwatch all;
    while (seconds.size() < chosen_.repeats ||
           (seconds.size() < rounds_max && all.seconds() < round_seconds)) {
      seconds.push_back(round(now));
    }
    is_right = are_right(now) && is_right;
    all_right_ = all_right_ && is_right;
    print(now, prepare, seconds, is_right);
    now.what = step::release;
    processes_.follow(now);
  }

  /** Lets the data flow once, and returns how long that takes. */
  double round(order& now) {
    now.salt = ++salt_;
    const std::size_t bytes = now.side * now.side * sizeof(std::uint32_t);
    for (std::size_t i = 0; i < flow_.modules.size(); ++i) {
      if (flow_.modules[i].consumers.empty()) {
        std::memset(board_.result(i), 0, bytes);
      }
    }
    return processes_.follow(now);
  }

  [[nodiscard]] bool are_right(const order& now) const {
    const problem of{now.computed, now.side, now.salt,
                     [&](std::size_t number) { return board_.source(number); }};
    for (std::size_t i = 0; i < flow_.modules.size(); ++i) {
      if (flow_.modules[i].consumers.empty() && !is_result(flow_, of, i, board_.result(i))) {
        return false;
      }
    }
    return true;
  }

  void print(const order& now, double prepare, const std::vector<double>& seconds,
             bool is_right) const {
    std::printf(
        "{\"program\": \"dataflow\", \"graph\": \"%s\", \"modules\": %zu, \"operation\": \"%s\", "
        "\"side\": %zu, \"way\": \"%s\", \"memory\": \"%s\", \"right\": %s, \"start\": %.6f, "
        "\"prepare\": %.6f, \"seconds\": [",
        chosen_.shape.c_str(), flow_.modules.size(),
        now.computed == operation::add ? "add" : "multiply", now.side,
        now.by == way::copied ? "copied" : "shared", now.is_pinned ? "pinned" : "pageable",
        is_right ? "true" : "false", processes_.start_seconds(), prepare);
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      std::printf("%s%.6f", i == 0 ? "" : ", ", seconds[i]);
    }
    std::printf("]}\n");
    std::fflush(stdout);
  }

  const graph& flow_;
  const settings& chosen_;
  board board_;
  processes processes_;
  std::uint32_t salt_ = 0;
  bool all_right_ = true;
};

settings read_settings(arguments& given) {
  settings chosen{};
  chosen.shape = given.word();
  const bool is_tree = chosen.shape == "tree";
  if (!is_tree && chosen.shape != "rectangle") {
    fail("there is no such dataflow: '" + chosen.shape + "' (tree, rectangle)");
  }
  chosen.depth = given.number("--depth", 6);
  chosen.width = given.number("--width", 10);
  chosen.first = given.number("--first", 256);
  chosen.most[0] = given.number("--add", 4096);
  chosen.most[1] = given.number("--multiply", 2048);
  chosen.has_shared = given.number("--shared", 0) != 0;
  chosen.repeats = given.number("--repeats", 5);
  chosen.seed = given.number("--seed", 1);
  chosen.limit = given.number("--limit", 300);
  given.finish();
  if (chosen.depth < 1 || chosen.depth > 8) {
    fail("--depth: a number of 1 to 8 is needed");
  }
  if (!is_tree && (chosen.width < 2 || chosen.width > 32)) {
    fail("--width: a number of 2 to 32 is needed");
  }
  if (chosen.first == 0 || chosen.first % tile != 0) {
    fail("--first: a positive multiple of " + std::to_string(tile) + " is needed");
  }
  if (chosen.most_side() < chosen.first || chosen.most_side() > 32768) {
    fail("--add, --multiply: the larger one must be --first at least, and at most 32768");
  }
  if (chosen.has_shared && dlsym(RTLD_DEFAULT, "gshmget") == nullptr) {
    fail("--shared: the program does not run under gdev");
  }
  if (chosen.repeats == 0) {
    fail("--repeats: a positive number is needed");
  }
  return chosen;
}

}  // namespace
}  // namespace gdev_bench

int main(int argc, char** argv) {
  using namespace gdev_bench;
  arguments given(argc, argv);
  const settings chosen = read_settings(given);
  const graph flow =
      chosen.shape == "tree" ? make_tree(chosen.depth) : make_rectangle(chosen.depth, chosen.width);
  return experiment(flow, chosen).measure() ? 0 : wrong_result;
}
