// One group of the fsx test: plans random calls on files of its own, beside a naive model of them,
// and has what they gave checked.
//
// The model of a file is a string. It says exactly what each call must give, with two exceptions,
// which the documents make: a descriptor that reads, of a file that an outside program changes
// meanwhile, may see old or new bytes; and a descriptor that was opened before the file was opened
// for writing keeps what it opened.
//
// Between a close and the next open an outside program changes the file: the group sends the host
// the number of a step, and goes on when the host has done it. Other steps compare the host's file
// with the model, after each close, sync and gmsync.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "api/expected_calls.hpp"
#include "api/file_world.hpp"

namespace gpufs::testing {

// What the host does in the midst of a kernel. A group sends a step's number (8 bytes) to a sink
// that calls run().
class host_steps {
 public:
  // A step fails by what it throws. Returns its number.
  std::uint64_t add(std::function<void()> step);
  // As a sink: 0, also when the step has failed.
  int run(const char* number, std::size_t bytes);
  // What failed since the last call. The steps are forgotten.
  std::vector<std::string> take_failures();

 private:
  std::mutex mutex_;  // guards the rest; steps run outside of it
  std::vector<std::function<void()>> steps_;
  std::vector<std::string> failures_;
};

// What the groups of a mount share.
struct fsx_world {
  file_world& files;
  host_steps& steps;
  std::uint64_t page_bytes;
  std::int32_t sink;
  std::size_t calls;  // of a script, about
  bool is_alone;      // there is one group
};

// A file that all groups use at the same time, each a range of its own; the last range reaches to
// the file's end, wherever that is. Ranges begin in the midst of pages.
struct fsx_shared_file {
  std::string name;
  std::string content;
  std::vector<std::uint64_t> begins;  // of the ranges, ascending
};

struct fsx_launch {
  bool begins_settled = false;  // nobody has changed a file for long
  bool closes_all = false;      // nothing is open at its end
};

class fsx_group {
 public:
  // `ranges`: those of the shared file that are the group's.
  fsx_group(const fsx_world& world, std::uint64_t seed, std::uint32_t number,
            std::vector<std::size_t> ranges);

  // The script of the next launch.
  const script& next(fsx_shared_file& shared, const fsx_launch& how, std::string& input,
                     std::uint64_t& output_bytes);
  void check(const std::vector<outcome>& outcomes, const std::string& output) const;
  // The host's files, after what was open was closed or unmounted.
  void check_files() const;

 private:
  enum class kind { read, read_write, write, append, once };
  struct descriptor {
    int in_register = 0;
    kind how = kind::read;
    // Of one that only reads: the contents that the file had since an outside program changed it;
    // none: it did not.
    std::vector<std::string> seen;
    bool unknown = false;  // opened before the file was opened for writing
    bool joined =
        // opened while the file was open for writing: what others cut off since reads as zeros
        false;
  };
  struct file {
    int name = -1;  // -1: none any more
    std::string content;
    std::vector<descriptor> open;
    bool was_made = false;     // in this launch, without O_TRUNC
    bool was_emptied = false;  // by O_TRUNC, in this launch
    std::uint64_t once_end =
        0;  // what follows was not written yet through a descriptor of kind::once
  };
  static constexpr std::uint64_t host_page_bytes = 4096, size_max = 400'000;
  static constexpr int names_count = 3, descriptors_max = 3, first_map = 9, maps_max = 2;
  static constexpr int shared_register = 12, shared_map = 13, sink_register = 14;

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }
  std::string fresh(std::uint64_t bytes);
  std::uint64_t place(std::uint64_t size);
  std::uint64_t length();
  std::uint64_t new_size(std::uint64_t size);

  std::string name_of(int name) const;
  std::string path_of(int name);
  static bool writes(const descriptor& d) { return d.how != kind::read; }
  static bool reads(const descriptor& d) { return d.how != kind::write && d.how != kind::once; }
  static bool is_written(const file& f);
  bool shares(const file& f, const descriptor& d) const;
  descriptor* pick(file& f, bool (*fits)(const descriptor&));
  int free_register() const;
  file* named(int name);
  void forget_gone();

  device_call call_of(action what, int from) const;
  void plan_host(std::function<void()> step, std::string what);
  void expect_on_host(const file& f, std::uint64_t at, std::uint64_t bytes,
                      const std::string& after);
  void expect_all_on_host(const file& f, const std::string& after);

  void use(int name);
  void open(int name) { open(name, static_cast<kind>(below(5))); }
  void open(int name, kind how);
  void look_change_and_look(int name);
  void change_names(int name);
  void change_outside(int name);
  void use_open(file& f);
  void close(file& f, std::size_t which);
  void write(file& f, descriptor& d);
  void write_at(file& f, descriptor& d, std::uint64_t at, const std::string& bytes);
  void truncate(file& f, descriptor& d);
  void sync(file& f, descriptor& d);
  void advise(file& f, descriptor& d);
  void status(file& f, descriptor& d);
  void store(file& f, descriptor& d);
  void read(file& f, descriptor& d);
  void read_view(file& f, descriptor& d);
  void read_map(file& f, descriptor& d);
  void expect_some_content(const descriptor& d, std::uint64_t at, std::uint64_t bytes,
                           device_call c, std::string what);
  void use_shared(fsx_shared_file& shared);

  const fsx_world& world_;
  std::mt19937_64 random_;
  const std::uint32_t number_;
  const std::vector<std::size_t> ranges_;
  std::vector<file> files_;
  std::vector<int>
      // names that an outside program gave to others while the files of before are open here
      blocked_;
  expected_calls calls_;
  std::string* input_ = nullptr;  // of the script that is being planned, as the next
  std::uint64_t* output_bytes_ = nullptr;
};

}  // namespace gpufs::testing
