// gpufs, the host API: mounts. A mount is one GPU file system instance of a process: a page cache
// on one device, a channel, and the service threads that answer its requests. Kernels use it
// through mount::ref() and gpufs/gpufs.cuh.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpufs/base/statistics.cuh"
#include "gpufs/cache/arena.cuh"
#include "gpufs/error.hpp"
#include "gpufs/file_error.hpp"

namespace gpufs {

class backend;  // gpufs/backend.hpp
class device;   // internal

enum class device_kind { automatic, cpu, cuda };

struct mount_options {
  // automatic: a GPU if there is one, else the CPU device
  device_kind device = device_kind::automatic;
  int ordinal = 0;  // number of the GPU
  // Size of the page cache in bytes, rounded down to whole pages. 0: a quarter of the GPU's free
  // memory; on the CPU device 256 MiB.
  std::uint64_t cache_bytes = 0;
  std::uint64_t page_bytes = 4096;  // a power of two, 512 B to 2 MiB
  // Number of service threads, at most 256. With 4 or more there are as many openers too; with a
  // bulk path, as many copiers (at least two). 0: half of the cores, 1 to 8.
  unsigned workers = 0;
  // Bytes of host memory that may be mapped and registered for direct loads. 0: all loads are
  // staged. Default (~0): half of the host's memory.
  std::uint64_t extent_budget_bytes = ~std::uint64_t{0};
  // Size of one extent in bytes: a power of two, at least a page and 64 KiB, at most 2 GiB.
  std::uint64_t extent_bytes = std::uint64_t{64} << 20;
  // Requests under way at once, at most 4096. 0: 512 on a GPU, 64 on the CPU device.
  unsigned channel_slots = 0;
  // Bytes of pinned host memory per slot: a power of two, 8 KiB to 1 MiB. Files up to this size
  // come with the answer to their open.
  std::uint32_t staging_bytes = 32768;
  // Largest write to a file in bytes: a power of two up to 4 MiB. An eighth of the slots have so
  // much more pinned memory. If not above staging_bytes, there are no such slots.
  std::uint32_t write_bytes = 262144;
  // Most bytes that the copy engine loads at once, at most 16 MiB: for gfadvise and large reads; a
  // quarter of it for sequential reads. 0: pages are loaded one by one.
  std::uint64_t bulk_bytes = std::uint64_t{8} << 20;
  // Number of frame rings, at most the number of frames. 0: one per multiprocessor, fewer for small
  // caches.
  unsigned rings = 0;
  unsigned open_files = 131072;  // open-file records, at most 131,072
  unsigned cpu_threads = 0;      // threads of a launch on the CPU device. 0: one per core
  // A call that needs a frame returns -ENOBUFS after this time without any progress in the cache.
  std::chrono::nanoseconds reclaim_timeout = std::chrono::seconds(1);
  // A request returns -EIO after this time in all. Of each period in which this process is stopped,
  // a tenth of a second counts.
  std::chrono::nanoseconds request_timeout = std::chrono::seconds(120);
  // Limit of unmount(). Kernels that still run get half of it. Time in which this process is
  // stopped does not count. See mount::~mount.
  std::chrono::nanoseconds unmount_timeout = std::chrono::seconds(20);
  // Never writes: calls that would write return -EROFS. Saves the memory that stores which bytes of
  // a page are dirty: an eighth of cache_bytes, in addition to the cache.
  bool read_only = false;
  // The folder that kernels may use. Paths are relative to it. Absolute paths, and paths that leave
  // it by ".." or a symbolic link, give -EXDEV.
  //
  // No value: every file that the process may open. An empty path is an error, so that a setting
  // left empty does not give access to all files. Not allowed together with `backend`.
  std::optional<std::filesystem::path> root;
  // Whether the service may copy to and from mappings of files (only without `backend`). The
  // service then installs a handler of SIGBUS, for files that become shorter meanwhile. A program
  // that installs its own handler later should call the one that it found. False: no handler, and
  // half the rate of staged loads.
  bool maps_files = true;
  // Whether the mount raises the soft limit of descriptors of the process (RLIMIT_NOFILE) to its
  // hard limit. It keeps a descriptor for each file that it caches. False: with fewer, files are
  // opened again more often.
  bool raises_descriptor_limit = true;
  std::shared_ptr<gpufs::backend> backend;  // does the I/O; null: POSIX
};

// Counters of a mount since it began, summed over its multiprocessors. Names as in
// gpufs/base/statistics.cuh.
struct statistics {
  std::uint64_t values[counter_count] = {};
  // Bucket b: major faults that took [2^b, 2^(b+1)) ns.
  std::uint64_t fault_latency[latency_bucket_count] = {};
  // Counted by the service:
  std::uint64_t extents_registered = 0;
  std::uint64_t extent_bytes = 0;
  // Extents not registered: over budget, not in the page cache, or refused by the driver.
  std::uint64_t extents_refused = 0;
  std::uint64_t host_open_files = 0;
  std::uint64_t requests_served = 0;

  std::uint64_t operator[](counter c) const { return values[static_cast<std::uint32_t>(c)]; }
  static const char* name(counter c);
};

struct file_statistics {
  std::string path;
  std::uint64_t size = 0;
  // Counted since the file was opened. The page_loads that are not direct_loads were staged, read
  // by a copier, or came with the open.
  std::uint64_t hits = 0;
  std::uint64_t page_loads = 0;
  std::uint64_t direct_loads = 0;  // out of registered pages, by the GPU or the copy engine
  std::uint64_t loaded_bytes = 0;
  std::uint32_t holders = 0;  // opens not closed yet
  std::uint64_t extents = 0;  // registered for direct loads
};

// Thread-safe, except for unmount() and the destructor. During these no other call may be under
// way, except a launch on the CPU device; they wait for it.
class mount {
 public:
  // Throws gpufs::error: EINVAL, impossible options (the message says which); ENODEV, no GPU;
  // ENOTSUP, a GPU but the library was built without CUDA; ENOMEM; EAGAIN, the system gives no
  // thread. Throws std::bad_alloc too.
  explicit mount(const mount_options& options = {});
  // Calls unmount() if that was not called, and reports what it throws on standard error, a line
  // for each file. Also reports a kernel that never ends, and a thread that hangs in a call of the
  // backend or of a sink (open, read, sync or close on a dead server). Memory that these may still
  // use stays allocated until the process ends.
  ~mount();
  // Moves. Kernels, handles and device memory stay valid; a device_guard, a device_array and a
  // device_path refer to the object and not to the mount in it, so they must not outlive the move.
  // An assignment first ends the mount that was there, as the destructor does. A mount that was
  // moved from may only be assigned to or destroyed.
  mount(mount&& other) noexcept;
  mount& operator=(mount&& other) noexcept;
  mount(const mount&) = delete;
  mount& operator=(const mount&) = delete;

  // Ends the mount, in the way that the end of a process ends file access:
  // * waits for the kernels of the device, at most `unmount_timeout`;
  // * ends the service;
  // * writes the bytes that kernels wrote and did not close (exactly the dirty bytes) to their
  //   files, and makes them durable;
  // * closes all files.
  //
  // Drops what was stored in a writable mapping without gmsync or gmunmap. If a kernel does not
  // end, its bytes are not written, because it may still change them. A call of the backend may
  // take `request_timeout` before it is given up.
  //
  // Throws gpufs::error with the path, for the first file of which bytes are lost or may be: an
  // exception cannot be overlooked as a result can. file_errors() returns all of them. ETIMEDOUT: a
  // kernel, or a call of the backend, does not end.
  //
  // Afterwards, launches and calls that need the service throw ESHUTDOWN. Memory, copies and
  // counters stay until the destructor. A second call does nothing.
  void unmount();

  // Failures of files so far: failed write-backs, syncs and closes of the host, including those
  // that kernels were told of. May be called at any time, also after unmount().
  file_error_list file_errors() const;

  // Makes the files that any program created, renamed or removed in a folder durable (here: gopen,
  // grename, gunlink). After a rename between two folders, sync both. The bytes of a file need
  // gfsync, before the rename.
  //
  // May be called after unmount(). Throws gpufs::error with the path, also if the path cannot be
  // opened as a folder. Waits for the disk.
  void sync_folder(const std::filesystem::path& path);

  // The handle for kernels. Throws ESHUTDOWN after unmount(). The call also wakes the service, so
  // call it for each launch (gpufs::launch does). `bulk`: as in launch_shape (launch.cuh).
  mount_ref ref(bool bulk = true);

  // The address of a handle in the memory of the mount's device, without the bulk path. For kernels
  // whose launch passes no structs by value (those of run-time compilers). The address stays the
  // same while the mount lives. The call wakes the service too: a service that was not woken may
  // answer the first request some milliseconds later.
  const mount_ref* device_ref();

  device_kind device() const;  // cpu or cuda
  int ordinal() const;
  std::string device_name() const;
  const mount_options& options() const;  // with the defaults filled in
  std::string direct_path() const;       // "on", or why every load is staged
  std::string bulk_path() const;         // "on", or why runs of pages are loaded page by page
  unsigned multiprocessors() const;      // CPU device: its threads

  statistics stats() const;
  std::vector<file_statistics> file_stats() const;  // of the files open now

  // Starts to record what the service does (opens, staged reads, closes, sends, registrations).
  // Records up to `events_max` events of about 150 bytes each, plus at most 256 bytes of the path.
  // Direct loads and hits never reach the host; stats() counts them.
  void start_timeline(std::size_t events_max = 1'000'000);
  // Ends the recording. Returns it in the Trace Event Format (JSON), for Perfetto or
  // chrome://tracing.
  std::string stop_timeline();

  // Opens a sink, which takes bytes that kernels send (gsend). Returns its number for gsend. Each
  // sink has a thread that calls `take`, one call at a time; a slow sink delays only the groups
  // that send to it.
  //
  // `take` returns 0, or an errno that the sender gets. An exception from it gives the sender EIO;
  // std::bad_alloc gives ENOMEM. `take` must not close its own sink. Kernels can still change the
  // bytes during the call: copy them first, then check the copy. Throws gpufs::error: EMFILE,
  // limits::sinks_max are open; EAGAIN, the system gives no thread.
  std::int32_t open_sink(std::function<int(const char* bytes, std::size_t count)> take);
  // Closes a sink. Waits for the current call of `take`, at most `request_timeout`; no further
  // call begins. Returns false if `take` has not returned by then; what it uses must stay until it
  // does. A later call waits for it again.
  [[nodiscard]] bool close_sink(std::int32_t sink);

  // Reads a file into the page cache, and maps and registers it for direct loads, as far as the
  // budget allows.
  //
  // Returns the bytes registered; 0 without a direct path. A file that changed less than two
  // seconds ago gets a new version at its next open, which makes the registration useless. Kernels
  // learn of each extent by one staged load. Throws if the file cannot be opened. Waits for I/O.
  std::uint64_t register_file(const std::filesystem::path& path);

  // Ends the direct path for all registered extents, and frees them. Waits for kernels that run, at
  // most `unmount_timeout`, then throws gpufs::error EBUSY and changes nothing. Launch none
  // meanwhile.
  void drop_extents();

  // Waits until the device has ended all work. Throws gpufs::error (EIO) if a kernel failed. If the
  // budget for direct loads is used up, also releases extents of files that have changed since;
  // that waits for kernels too.
  void synchronize();

  // Zeroed memory of the mount's device. Plain allocations; on the CPU device, host memory. free()
  // waits for the device's kernels. A GPU's mount keeps up to 128 MiB of freed memory for later
  // calls, until it ends.
  void* allocate(std::size_t bytes);
  void free(void* memory) noexcept;
  // Copies from or to any host memory. The copies are complete on return, and wait for no kernel.
  // For 4 MiB or more, several threads copy, through pinned memory of up to 16 MiB that a GPU's
  // mount keeps.
  void copy_to_device(void* to, const void* from, std::size_t bytes);
  void copy_to_host(void* to, const void* from, std::size_t bytes) const;

 private:
  friend class device_guard;
  friend class cpu_launch;
  struct implementation;
  std::unique_ptr<implementation> self_;
};

// Makes the mount's GPU the current one of the calling thread, for the lifetime of the guard.
class device_guard {
 public:
  explicit device_guard(const mount& m);
  ~device_guard();
  device_guard(const device_guard&) = delete;
  device_guard& operator=(const device_guard&) = delete;

 private:
  const class device* device_;
  int previous_;
};

// Whether there is a usable GPU.
bool cuda_available();

}  // namespace gpufs
