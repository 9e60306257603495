// The files of a test: in a temporary folder of the host, or in a memory_backend. The same test
// runs on both.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gpufs/backend.hpp"
#include "support/memory_backend.hpp"

namespace gpufs::testing {

enum class source { posix, memory };

// Bytes that tell where they belong: each 8-byte word holds the file's number, the generation of
// its content, and the word's place. `file` and `generation` are at most 255, and `file` is not 0,
// so that no word is zero.
std::string self_checking(unsigned file, unsigned generation, std::uint64_t offset,
                          std::uint64_t bytes);

// Everything in it is removed when it is destroyed. Names have no slash in them. Failures throw.
class file_world {
 public:
  // `in`: the folder for a temporary folder of source::posix; empty: the system's.
  static std::unique_ptr<file_world> make(source where, const std::string& in = {});
  virtual ~file_world() = default;

  virtual std::shared_ptr<backend> io() const = 0;
  // What device code opens.
  virtual std::string path(const std::string& name) const = 0;
  // Another path to the same file, of exactly so many bytes.
  virtual std::string path_of_length(const std::string& name, std::size_t bytes) = 0;

  virtual void write(const std::string& name,
                     std::string_view content) = 0;  // creates, or overwrites in place
  virtual void write_at(const std::string& name, std::uint64_t offset,
                        std::string_view content) = 0;
  virtual void truncate(const std::string& name, std::uint64_t size) = 0;
  virtual void replace(const std::string& name,
                       std::string_view content) = 0;  // another file under the name
  virtual void remove(const std::string& name) = 0;
  virtual std::string content(const std::string& name) const = 0;
  virtual bool exists(const std::string& name) const = 0;
  virtual void make_directory(const std::string& name) = 0;
  virtual void make_fifo(const std::string& name) = 0;
  virtual void make_link(const std::string& name, const std::string& target) = 0;
  // From here on the files count as unchanged for long, so that a later open keeps what is cached.
  // May sleep.
  virtual void settle() = 0;
};

}  // namespace gpufs::testing
