// The engine of `gpufs bench`: each function makes one measurement and returns what it saw. It
// prints nothing, repeats nothing and compares nothing; that is python/gpufs/bench.
//
// All take the mount that they measure, or whose device they use: on the CPU device the same
// functions run, and device memory is host memory there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpufs/gpufs.hpp"

namespace gpufs::bench {

// One measurement.
struct sample {
  double seconds = 0;
  double cpu_seconds =
      0;  // host CPU time of this process meanwhile, all its threads; the CPU device's kernels are such
  std::uint64_t operations = 0;
  std::uint64_t bytes = 0;
  std::uint64_t wrong_bytes = 0;  // that were not the file's content, or did not come
};

enum class access {
  map,  // a warp maps a page, reads it where it lies, unmaps it
  // a warp maps a page for each lane (gmmap_each), reads one after the other, unmaps them
  map_each,
  // a block asks for a chunk of many pages (gfadvise), then its warps map them one by one
  advised_map,
  read_by_warp,   // gread into shared memory
  read_by_block,  // the same, by a block of 256 threads
  // view<T>: each thread reads words of 8 bytes; as many neighbouring threads as a record has words
  view,
  view_several,  // the same, four words at a time (view::read)
  gather         // each thread greads whole records of its own into an array in device memory
};

// Which parts of a file are read, how, and by how many threads.
struct walk {
  access how = access::map;
  bool random = true;            // else from front to back
  std::uint64_t span_bytes = 0;  // from the file's start; a power of two
  std::uint64_t chunk_bytes =
      0;  // of one operation, a power of two from 8 on; mapped: at most the mount's page
  std::uint64_t operations = 0;  // more than the span has chunks: these are read again and again
  std::uint32_t blocks = 0;      // 0: eight for each multiprocessor
  std::uint32_t threads = 256;   // of a block; a multiple of 32
};

// The chunks of a walk by number, in its order: for peers that are told what to read.
std::vector<std::uint64_t> positions(const walk& w);

class plain_memory;  // below

// --- The mount's own calls (ours.cpp) ---

// Opens a file on the device. Throws what gopen gave.
std::int32_t open_file(const mount& m, const std::string& path);
// Lets the device learn of the extents that are registered, by one staged load in each: of files
// that lie in the first `bytes`.
void touch_extents(const mount& m, std::int32_t fd, std::uint64_t bytes);
// Timed. For a first-touch measurement the mount must be fresh. `wrong_bytes` counts calls that
// failed.
sample read(const mount& m, std::int32_t fd, const walk& w);
// The same walk, not timed, with each word compared; `wrong_bytes` is all that it tells.
sample check(const mount& m, std::int32_t fd, const walk& w);
// Opens, reads, checks and closes small files (files.hpp), a warp for each; timed. Operations are
// files.
sample open_small_files(const mount& m, const std::string& folder, std::uint64_t first,
                        std::uint64_t count);
// Opens and closes, over and over, a file that stays open; timed. Operations are pairs of calls.
sample reopen(const mount& m, const std::string& path, std::uint64_t operations);

// How a file is written: by warps, from memory of the device, and closed at the end.
struct writing {
  std::uint64_t bytes = 0;        // of the file; a power of two
  std::uint64_t chunk_bytes = 0;  // of a call
  std::uint32_t blocks = 0;       // 0: eight for each multiprocessor
};
// A file from front to back, made anew or overwritten; timed with its close, but not until it is on
// a disk. It is then what write_content() makes.
sample write_file(const mount& m, const std::string& path, const plain_memory& content,
                  const writing& w);
// Chunks at random, over and over, in a file whose pages are in the cache and dirty already; timed
// without the close.
sample write_cached(const mount& m, const std::string& path, const writing& w,
                    std::uint64_t operations);
// Records of `chunk_bytes`, any number, appended to a new file by all warps, until it has `bytes`;
// timed without the close.
sample append(const mount& m, const std::string& path, const writing& w);

// --- Limits: the same walks without a file system (limits.cpp) ---

// A copy of a file's content in device memory, or the file's own pages registered for the device.
class plain_memory {
 public:
  virtual ~plain_memory() = default;
  virtual const char* data() const = 0;  // as kernels see it
};
std::unique_ptr<plain_memory> copy_on_device(const mount& m, std::uint64_t bytes);
// Throws gpufs::error (ENOTSUP) where the driver does not register files.
std::unique_ptr<plain_memory> registered_file(const mount& m, const std::string& path,
                                              std::uint64_t bytes);

// Kernels that pull chunks from host memory into device memory, a warp for each: what bounds first
// touches. Checked.
sample raw_pull(const mount& m, const plain_memory& from, const walk& w);
// Kernels that read device memory as the walk does, into the same places: what bounds hits. Checked
// for `gather`.
sample raw_read(const mount& m, const plain_memory& from, const walk& w);
// Kernels that store chunks into device memory, a warp each, as write_cached() does: what bounds
// writes to the cache.
sample raw_write(const mount& m, const writing& w, std::uint64_t operations);
// The copy engine, from pinned memory, in pieces of `chunk_bytes`. Nothing to check: the bytes are
// no file's.
sample copy_engine(const mount& m, std::uint64_t bytes, std::uint64_t chunk_bytes);

// --- What a program without gpufs would do (peers.cpp) ---

// Reads the whole file with pread, then copies it to the device at once. Checked.
sample read_then_copy(const mount& m, const std::string& path, std::uint64_t bytes);
// Threads with two pinned buffers each: one is filled by pread while the other is copied to the
// device. Checked.
sample pipeline(const mount& m, const std::string& path, std::uint64_t bytes,
                std::uint64_t chunk_bytes, unsigned threads);

enum class host_way { mapping, call, direct_io };
// Host threads that read chunks of a file into memory of their own. Checked as far as it is still
// there at the end: the last MiB of each thread. direct_io goes past the page cache; throws EINVAL
// where the file system refuses.
sample host_read(const std::string& path, host_way way, const walk& w, unsigned threads);
// Host threads that write a file from front to back, each a part of it, with pwrite, or (`way`:
// mapping) by stores into a mapping; made anew or overwritten. The same chunk again and again,
// which stays in the processor's caches; `in_memory`: as many bytes as the file has, which do not.
sample host_write(const std::string& path, host_way way, std::uint64_t bytes,
                  std::uint64_t chunk_bytes, unsigned threads, bool in_memory);
// Host threads that open, fstat, pread and close small files. Checked. Operations are files.
sample host_open_small_files(const std::string& folder, std::uint64_t first, std::uint64_t count,
                             unsigned threads);
// Host threads that open and close one file. Operations are pairs of calls.
sample host_reopen(const std::string& path, std::uint64_t operations, unsigned threads);

// Device memory for peers that are not ours: Python gives its address to libraries.
class device_memory {
 public:
  device_memory(const mount& m, std::uint64_t bytes);
  ~device_memory();
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  char* data() const { return data_; }
  void copy_from_host(const void* from, std::uint64_t bytes);
  // Bytes that are not the content: chunk i here should be the chunk order.position(i) of the file.
  std::uint64_t wrong_bytes(const walk& w) const;

 private:
  const mount& mount_;
  char* data_;
  std::uint64_t bytes_;
};

}  // namespace gpufs::bench
