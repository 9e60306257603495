// The engine of `gpufs bench`. Each function makes one measurement and returns a sample. Printing,
// repetition and comparison are in python/gpufs/bench.
//
// Each function takes the mount that it measures, or whose device it uses. On the CPU device the
// same functions run, and device memory is host memory.
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
  // Host CPU time of all threads of this process during the measurement. The kernels of the CPU
  // device are such threads.
  double cpu_seconds = 0;
  std::uint64_t operations = 0;
  std::uint64_t bytes = 0;
  std::uint64_t wrong_bytes = 0;  // bytes that differ from the file's content, or are missing
};

enum class access {
  map,  // a warp maps a page, reads it in place, unmaps it
  // A warp maps a page for each lane (gmmap_each), reads one after the other, unmaps them.
  map_each,
  // A block prefetches a chunk of many pages (gfadvise), then its warps map the pages one by one.
  advised_map,
  read_by_warp,   // gread into shared memory
  read_by_block,  // the same, by a block of 256 threads
  // view<T>: each thread reads words of 8 bytes. Adjacent threads read the words of one record.
  view,
  view_several,  // the same, four words at a time (view::read)
  gather         // each thread calls gread for whole records, into an array in device memory
};

// Which parts of a file are read, how, and by how many threads.
struct walk {
  access how = access::map;
  bool random = true;            // false: from front to back
  std::uint64_t span_bytes = 0;  // from the start of the file; a power of two
  // Of one operation; a power of two, at least 8. For mappings at most the mount's page size.
  std::uint64_t chunk_bytes = 0;
  std::uint64_t operations = 0;  // if more than the span's chunks, chunks are read repeatedly
  std::uint32_t blocks = 0;      // 0: eight for each multiprocessor
  std::uint32_t threads = 256;   // in a block; a multiple of 32
};

// Returns the numbers of a walk's chunks, in the order of the walk. For peers that read the same
// chunks.
std::vector<std::uint64_t> positions(const walk& w);

class plain_memory;  // below

// --- The mount's own calls (ours.cpp) ---

// Opens a file on the device. Throws the error of gopen.
std::int32_t open_file(mount& m, const std::string& path);
// Makes one staged load in each extent of the first `bytes`, so that the device learns of the
// extents that are registered.
void touch_extents(mount& m, std::int32_t fd, std::uint64_t bytes);
// Timed. To measure first contact the mount must be fresh. `wrong_bytes` counts calls that failed.
sample read(mount& m, std::int32_t fd, const walk& w);
// The same walk, not timed, with each word compared. Only `wrong_bytes` of the result is set.
sample check(mount& m, std::int32_t fd, const walk& w);
// Opens, reads, checks and closes small files (files.hpp), one warp for each file. Timed. An
// operation is a file.
sample open_small_files(mount& m, const std::string& folder, std::uint64_t first,
                        std::uint64_t count);
// Opens and closes, repeatedly, a file that stays open. Timed. An operation is a pair of calls.
sample reopen(mount& m, const std::string& path, std::uint64_t operations);

// How warps write a file from device memory, until they close it.
struct writing {
  std::uint64_t bytes = 0;        // size of the file; a power of two
  std::uint64_t chunk_bytes = 0;  // size of a call
  std::uint32_t blocks = 0;       // 0: eight for each multiprocessor
};
// Writes a file from front to back; creates or overwrites it. Timed with the close, but without
// fsync. Afterwards the file has the content of write_content().
sample write_file(mount& m, const std::string& path, const plain_memory& content, const writing& w);
// Writes random chunks, repeatedly, into a file whose pages are already dirty in the cache. Timed
// without the close.
sample write_cached(mount& m, const std::string& path, const writing& w, std::uint64_t operations);
// All warps append records of `chunk_bytes` (any size) to a new file until it has `bytes`. Timed
// without the close.
sample append(mount& m, const std::string& path, const writing& w);

// --- Limits: the same walks without a file system (limits.cpp) ---

// A copy of a file's content in device memory, or the file's own pages registered for the device.
class plain_memory {
 public:
  virtual ~plain_memory() = default;
  virtual const char* data() const = 0;  // address for kernels
};
std::unique_ptr<plain_memory> copy_on_device(mount& m, std::uint64_t bytes);
// Throws gpufs::error (ENOTSUP) if the driver does not register files.
std::unique_ptr<plain_memory> registered_file(mount& m, const std::string& path,
                                              std::uint64_t bytes);

// A kernel pulls chunks from host memory into device memory, one warp for each chunk: the limit of
// first contact. Checked.
sample raw_pull(mount& m, const plain_memory& from, const walk& w);
// A kernel reads device memory as the walk does, into the same places: the limit of hits. Checked
// for `gather`.
sample raw_read(mount& m, const plain_memory& from, const walk& w);
// A kernel stores chunks into device memory, one warp for each chunk, as write_cached() does: the
// limit of writes to the cache.
sample raw_write(mount& m, const writing& w, std::uint64_t operations);
// The copy engine copies from pinned memory, in pieces of `chunk_bytes`. Not checked: the bytes are
// not a file's.
sample copy_engine(mount& m, std::uint64_t bytes, std::uint64_t chunk_bytes);

// --- What a program without gpufs does (peers.cpp) ---

// Reads the whole file with pread, then copies it to the device at once. Checked.
sample read_then_copy(mount& m, const std::string& path, std::uint64_t bytes);
// Each thread has two pinned buffers: it fills one by pread while the other is copied to the
// device. Checked.
sample pipeline(mount& m, const std::string& path, std::uint64_t bytes, std::uint64_t chunk_bytes,
                unsigned threads);

enum class host_way { mapping, call, direct_io };
// Host threads read chunks of a file into memory of their own. The check covers what is still in
// memory at the end: the last MiB of each thread. direct_io bypasses the page cache; throws EINVAL
// if the file system refuses it.
sample host_read(const std::string& path, host_way way, const walk& w, unsigned threads);
// Host threads write a file from front to back, each a part of it; they create or overwrite it.
// They use pwrite, or with `way` mapping stores into a mapping. The source is one chunk, which
// stays in the processor's caches. With `in_memory` it is as large as the file and does not stay
// there.
sample host_write(const std::string& path, host_way way, std::uint64_t bytes,
                  std::uint64_t chunk_bytes, unsigned threads, bool in_memory);
// Host threads open, fstat, pread and close small files. Checked. An operation is a file.
sample host_open_small_files(const std::string& folder, std::uint64_t first, std::uint64_t count,
                             unsigned threads);
// Host threads open and close one file. An operation is a pair of calls.
sample host_reopen(const std::string& path, std::uint64_t operations, unsigned threads);

// Device memory for other libraries: Python passes its address to them.
class device_memory {
 public:
  device_memory(mount& m, std::uint64_t bytes);
  ~device_memory();
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  char* data() const { return data_; }
  void copy_from_host(const void* from, std::uint64_t bytes);
  // Returns how many bytes differ from the content: chunk i must be chunk order.position(i) of the
  // file.
  std::uint64_t wrong_bytes(const walk& w) const;

 private:
  mount& mount_;
  char* data_;
  std::uint64_t bytes_;
};

}  // namespace gpufs::bench
