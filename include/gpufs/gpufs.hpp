// gpufs, the host API: mounts. A mount is one GPU file system instance of a process: a page cache
// on one device, a channel, and the service threads that answer it. Kernels use it through
// mount::ref() and gpufs/gpufs.cuh.
#pragma once

#include <cstddef>
#include <cstdint>
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
  device_kind device =
      device_kind::automatic;  // automatic: a GPU if there is one, else the CPU device
  int ordinal = 0;             // which GPU
  // Page cache in bytes, rounded down to whole pages. 0: a quarter of the GPU's free memory; 256
  // MiB on the CPU device.
  std::uint64_t cache_bytes = 0;
  std::uint64_t page_bytes = 4096;  // power of two, 512 B to 2 MiB
  // Service threads, at most 256; from 4 on, as many openers too; with a bulk path as many copiers,
  // two at least. 0: half the cores, 1 to 8.
  unsigned workers = 0;
  // Host memory that may be mapped and registered for direct loads. 0: none, all loads are staged.
  // Default (~0): half of the host's memory.
  std::uint64_t extent_budget_bytes = ~std::uint64_t{0};
  // Size of one extent; power of two, at least a page and 64 KiB, at most 2 GiB.
  std::uint64_t extent_bytes = std::uint64_t{64} << 20;
  unsigned channel_slots =
      0;  // requests under way at once. 0: 512 on a GPU, 64 on the CPU device; at most 4096
  // Pinned host memory per slot; files up to this size come with the answer to their open. 8 KiB to
  // 1 MiB, power of two.
  std::uint32_t staging_bytes = 32768;
  // The most that is written to a file at once; an eighth of the slots have so much more of pinned
  // memory. A power of two up to 4 MiB; not above staging_bytes: no such slots.
  std::uint32_t write_bytes = 262144;
  // The most that the copy engine loads at once: for gfadvise and large reads; a quarter of it
  // where a file is merely read from front to back. At most 16 MiB. 0: pages are loaded one by one.
  std::uint64_t bulk_bytes = std::uint64_t{8} << 20;
  // Frame rings, at most as many as frames. 0: one per multiprocessor, fewer for small caches.
  unsigned rings = 0;
  unsigned open_files = 131072;  // open-file records, at most 131,072
  unsigned cpu_threads = 0;      // threads of a launch on the CPU device. 0: one per core
  std::uint64_t reclaim_timeout_ns =
      1'000'000'000;  // without a frame that moves, after which a call gives -ENOBUFS
  // One request in all, then -EIO. Of each time in which this process is stopped a tenth of a
  // second counts.
  std::uint64_t request_timeout_ns = 120'000'000'000;
  // The most that unmounting takes; kernels that still run get half of it. Time in which this
  // process is stopped does not count. See mount::~mount.
  std::uint64_t unmount_timeout_ns = 20'000'000'000;
  // Nothing is ever written: what would is answered with -EROFS, and the memory that says which
  // bytes of a page are dirty, an eighth of the cache's size beside the cache, is not allocated.
  bool read_only = false;
  // A folder: nothing outside of it is served. Paths are relative to it; absolute ones, and those
  // that lead out of it by ".." or a symbolic link, are answered with -EXDEV. Without a value: all
  // that the process may open. An empty path is refused, so that a setting that was left empty
  // cannot serve everything. Not together with a backend.
  std::optional<std::string> root;
  // Whether the service may copy to and from mappings of files (without a backend). It then puts a
  // handler of SIGBUS in place, for files that become shorter meanwhile; a program that sets a
  // handler of its own later should call the one that it found. False: no handler, and half the
  // rate of staged loads.
  bool maps_files = true;
  std::shared_ptr<gpufs::backend> backend;  // who does the I/O; null: POSIX
};

// What a mount counted since it began, summed over its multiprocessors. Names as in
// gpufs/base/statistics.cuh.
struct statistics {
  std::uint64_t values[counter_count] = {};
  std::uint64_t fault_latency[latency_bucket_count] =
      {};  // bucket b: major faults that took [2^b, 2^(b+1)) ns
  // Counted by the service:
  std::uint64_t extents_registered = 0;
  std::uint64_t extent_bytes = 0;
  std::uint64_t extents_refused =
      0;  // budget used up, not in the page cache, or the driver said no
  std::uint64_t host_open_files = 0;
  std::uint64_t requests_served = 0;

  std::uint64_t operator[](counter c) const { return values[static_cast<std::uint32_t>(c)]; }
  static const char* name(counter c);
};

struct file_statistics {
  std::string path;
  std::uint64_t size = 0;
  // Counted since it was opened. What was staged, or came with the open, is page_loads -
  // direct_loads.
  std::uint64_t hits = 0;
  std::uint64_t page_loads = 0;
  std::uint64_t direct_loads = 0;  // of these: by the direct or the bulk path
  std::uint64_t loaded_bytes = 0;
  std::uint32_t holders = 0;  // opens not closed yet
  std::uint64_t extents = 0;  // registered for direct loads
};

// Thread-safe, except for unmount() and the destructor: no other call may be under way then but a
// launch on the CPU device, which they wait for.
class mount {
 public:
  // Throws gpufs::error: EINVAL for impossible options (the text says which), ENODEV without a GPU,
  // ENOTSUP for a GPU when the library was built without CUDA, ENOMEM, EAGAIN when the system gives
  // no thread. Or std::bad_alloc.
  explicit mount(const mount_options& options = {});
  // As unmount(), if that was not called; what it would throw is reported on standard error, a line
  // for each file. A kernel that never ends, or a thread that hangs in a call of the backend or of
  // a sink (open, read, sync or close on a dead server), is reported there too, and left behind:
  // what it may still use stays allocated until the process ends.
  ~mount();
  mount(const mount&) = delete;
  mount& operator=(const mount&) = delete;

  // Ends the mount, as the end of a process does: waits for the kernels of the device, at most
  // `unmount_timeout_ns`, ends the service, writes what kernels wrote and did not close (exactly
  // the dirty bytes) to its files, has these reach their disks, and closes all files. What was
  // stored in a writable mapping without gmsync or gmunmap is dropped. Throws gpufs::error for the
  // first file of which bytes are lost or may be, with its path, because a result would be
  // overlooked; file_errors() has them all. ETIMEDOUT: a kernel, or a call of the backend, does not
  // end. Of a kernel that does not end nothing is written, as nobody knows what it is about to
  // write. Afterwards launches and what needs the service throw ESHUTDOWN; memory, copies and
  // counters are there until the destructor. Another call does nothing. A call of the backend may
  // take `request_timeout_ns` before it is given up.
  void unmount();

  // What went wrong with files so far: failed write-backs, syncs and closes of the host, also those
  // that a kernel was told of. At any time, also after unmount().
  file_error_list file_errors() const;

  // Makes what was created, renamed (grename) and removed (gunlink) in a folder durable, by
  // whomever. After a rename from one folder to another it takes both. The files' bytes are made
  // durable by gfsync, before the rename. Throws gpufs::error with the path, for what cannot be
  // opened as a folder too. Also after unmount(). Waits for the disk.
  void sync_folder(const std::string& path) const;

  // The handle for kernels. Throws ESHUTDOWN after unmount(). Taking it also wakes the service, so
  // take it at each launch (gpufs::launch does). `bulk`: as launch_shape has it (launch.cuh).
  mount_ref ref(bool bulk = true) const;

  // The handle without the bulk path in memory of the mount's device, for kernels whose launch
  // passes no structs by value (those of run-time compilers). The address stays the same while the
  // mount lives. Taking it wakes the service too: what nobody woke may answer the first request
  // some milliseconds later.
  const mount_ref* device_ref() const;

  device_kind device() const;  // cpu or cuda
  int ordinal() const;
  std::string device_name() const;
  const mount_options& options() const;  // with the defaults filled in
  std::string direct_path() const;       // "on", or why every load is staged
  std::string bulk_path() const;         // "on", or why runs of pages are loaded page by page
  unsigned multiprocessors() const;      // CPU device: its threads

  statistics stats() const;
  std::vector<file_statistics> file_stats() const;  // of the files open now

  // Records from now on what the service does (opens, staged reads, closes, sends, registrations),
  // up to `events_max` events of about 150 bytes each, and 256 of its path at most. Direct loads
  // and hits never come to the host: stats() counts them.
  void start_timeline(std::size_t events_max = 1'000'000) const;
  // Ends the recording and returns it in the Trace Event Format (JSON), for Perfetto or
  // chrome://tracing.
  std::string stop_timeline() const;

  // A sink takes bytes that kernels send (gsend). Each sink has a thread, on which `take` runs, one
  // call at a time; a slow one holds up only the groups that send to it. `take` returns 0, or an
  // errno that the sender gets; what it throws is EIO, or ENOMEM for std::bad_alloc. It must not
  // close its own sink. Kernels can still change the bytes: copy them, then check them. Throws
  // gpufs::error: EMFILE when limits::sinks_max are open, EAGAIN when the system gives no thread.
  std::int32_t open_sink(std::function<int(const char* bytes, std::size_t count)> take) const;
  // Waits for the call of `take` under way, at most `request_timeout_ns`; no other one begins.
  // False when it has not returned by then: what it uses must stay until it does.
  [[nodiscard]] bool close_sink(std::int32_t sink) const;

  // Maps and registers a file for direct loads now, as far as the budget goes, reading it into the
  // page cache first. Returns the bytes registered: 0 when there is no direct path. A file that
  // changed less than two seconds ago gets a new version at its next open, and then this was for
  // nothing. Kernels learn of each extent by one staged load. Throws for a file that cannot be
  // opened. Waits for I/O.
  std::uint64_t register_file(const std::string& path);

  // Ends the direct path for all that is registered, and frees it. Only while no kernel of the
  // mount runs. Waits for the device, at most `unmount_timeout_ns`; throws gpufs::error EBUSY when
  // it is not idle by then, and leaves everything as it is.
  void drop_extents();

  // Waits until the device has ended all work. Throws gpufs::error (EIO) when a kernel failed. When
  // the budget for direct loads is used up it also gives back what is registered of files that have
  // changed since; that waits for kernels, too.
  void synchronize() const;

  // Memory of the mount's device, zeroed. Plain allocations; the CPU device's are host memory. free()
  // waits for the device's kernels; of a GPU's memory up to 128 MiB are kept for later calls, until
  // the mount ends.
  void* allocate(std::size_t bytes) const;
  void free(void* memory) const noexcept;
  // Copies from and to any memory of the host, done when they return; they wait for no kernel. From
  // 4 MiB on several threads make them, through pinned memory of up to 16 MiB, which a GPU's mount
  // keeps.
  void copy_to_device(void* to, const void* from, std::size_t bytes) const;
  void copy_to_host(void* to, const void* from, std::size_t bytes) const;

 private:
  friend class device_guard;
  friend class cpu_launch;
  struct implementation;
  std::unique_ptr<implementation> self_;
};

// Makes a mount's GPU the calling thread's current one, until it goes out of scope.
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

// True when a usable GPU is there.
bool cuda_available();

}  // namespace gpufs
