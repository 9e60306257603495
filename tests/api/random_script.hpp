// Random scripts, and the naive model that says what each of their calls must give: files are
// strings in memory, and a group's registers hold what its own calls put there. Files change only
// between launches, so groups need no model of each other; only descriptors are shared (an open of
// an open file gives the same one).
#pragma once

#include <array>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "api/stage.hpp"

namespace gpufs::testing {

// A path that scripts open.
struct model_file {
  enum class kind { absent, regular, folder };
  kind what = kind::absent;
  std::string path;
  std::string content;
  unsigned generation = 0;
};

// What may come instead of the right answer. It must then be exactly this: an error, or the bytes
// before it.
struct tolerated {
  bool host_errors = false;  // -EIO, from faults that were injected
  bool no_frames = false;    // -ENOBUFS, where all frames may be mapped
  bool no_records = false;   // -EMFILE, where there are few
};

struct script_limits {
  std::uint64_t page_bytes = 0;
  std::uint64_t bytes_max = 0;  // of a read
  std::size_t calls = 0;
  std::uint32_t mappings = 0;  // that a group may hold at once; at most 4
  bool keep_mappings = false;  // over the end of a launch
  std::int32_t sink = -1;
  bool read_only = false;  // the mount
};

// One group: makes its scripts, and checks what they gave.
class random_group {
 public:
  random_group(std::uint64_t seed, std::string name) : random_(seed), name_(std::move(name)) {}

  // The script of the next launch. Paths and messages are added to `input`, room for bytes to
  // `output_bytes`.
  script next(const std::vector<model_file>& files, const script_limits& limits, std::string& input,
              std::uint64_t& output_bytes);
  // Fails the running test for each answer that is not right.
  void check(const std::vector<model_file>& files, const script_limits& limits,
             const tolerated& also, const std::vector<outcome>& outcomes,
             const std::string& output);

  // Descriptors that the group holds, each with the number of its file, and what it has sent to the
  // sink.
  std::vector<std::pair<std::int64_t, std::size_t>> held() const;
  const std::string& sent() const { return sent_; }

 private:
  static constexpr int descriptors = 6;  // registers 0 to 5; mappings are in those from 6 on
  static constexpr int mappings = 4;
  static constexpr int sink_register = 10;
  struct open_file {
    std::size_t file;
    std::int64_t fd;
  };
  struct mapped {
    std::string rest;  // what stands there up to the end of the page: bytes of the file, then zeros
  };
  struct planned {
    device_call call;
    std::size_t file = 0;  // of an open
    std::string message;   // of a send
  };

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  void plan(const device_call& call, std::size_t file = 0, std::string message = {}) {
    plan_.push_back({call, file, std::move(message)});
  }
  void plan_set(int to, std::int64_t value);
  void plan_open(const std::vector<model_file>& files, const script_limits& limits,
                 std::string& input);
  void plan_close(int from);
  void plan_map(const std::vector<model_file>& files, const script_limits& limits);
  void plan_unmap(int from);
  void plan_read(const std::vector<model_file>& files, const script_limits& limits,
                 std::uint64_t& output_bytes, action what);
  void plan_peek(const script_limits& limits, std::uint64_t& output_bytes);
  void plan_send(std::string& input);
  void plan_advise(const std::vector<model_file>& files, const script_limits& limits);
  std::int64_t some_offset(const std::vector<model_file>& files, const script_limits& limits,
                           int from);

  void check_open(const model_file& file, const planned& p, const tolerated& also,
                  std::int64_t result);
  void check_read(const std::string& content, const device_call& c, std::uint64_t page_bytes,
                  const tolerated& also, std::int64_t result, const std::string& output);
  void check_map(const std::string& content, const device_call& c, std::uint64_t page_bytes,
                 const tolerated& also, const outcome& o);
  void check_view(const std::string& content, const device_call& c, const tolerated& also,
                  const outcome& o, const std::string& output);
  static bool tolerates(const tolerated& also, std::int64_t result);

  std::mt19937_64 random_;
  const std::string name_;
  std::vector<planned> plan_;
  std::array<int, descriptors>
      guess_{};  // while planning: the file that a register probably has open, or -1
  std::array<std::uint64_t, mappings>
      guess_room_{};  // while planning: bytes up to the end of the mapped page; 0: no mapping
  std::array<std::optional<open_file>, descriptors> open_;
  std::array<std::optional<mapped>, mappings> mapped_;
  std::string sent_;
};

}  // namespace gpufs::testing
