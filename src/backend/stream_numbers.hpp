// The numbers of a descriptor table that are the program's standard streams: 0, 1 and 2.
//
// The kernel gives an open the lowest free number. If the program has closed a stream, an opened
// file could get its number. Then what the program writes to its standard error could become the
// file's data. And the file could not leave the number without a close, which drops the program's
// record locks on the file (descriptor_table.hpp).
//
// So O_PATH descriptors occupy the free numbers while files are opened. They can be neither read
// nor written, and their close drops no locks. All threads of the table share them: the last thread
// that leaves closes them. The program may close a stream while threads are inside. Then the next
// thread that enters occupies the number.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpufs {

// Thread-safe: called by all threads of its table.
class stream_numbers {
 public:
  stream_numbers() = default;
  stream_numbers(const stream_numbers&) = delete;
  stream_numbers& operator=(const stream_numbers&) = delete;

  // While it lives, no number that above() has occupied becomes free.
  class stay {
   public:
    explicit stay(stream_numbers& numbers) noexcept : numbers_(numbers) { numbers_.enter(); }
    ~stay() { numbers_.leave(); }
    stay(const stay&) = delete;
    stay& operator=(const stay&) = delete;

   private:
    stream_numbers& numbers_;
  };

  // Called during a stay. Takes an O_PATH descriptor, or -errno. Returns the same file under a
  // number above 2, or -errno. All free numbers up to 2 are then occupied.
  int above(int path_descriptor) noexcept;

  // Called in a forked child, whose only thread is not inside. Closes what threads of the parent
  // have occupied.
  void reset_in_child() noexcept;

 private:
  void enter() noexcept;
  void leave() noexcept;
  static void close_occupied(std::uint32_t state) noexcept;

  // The number of threads inside, a bit for each occupied number, and `closing` while these are
  // being closed. One word, so that the last thread that leaves also knows what is occupied.
  static constexpr std::uint32_t threads = (1u << 24) - 1, occupied = 1u << 24, closing = 1u << 31;
  std::atomic<std::uint32_t> state_{0};
};

}  // namespace gpufs
