// The mount: creates device, arena, channel and service, and destroys them.
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <random>
#include <shared_mutex>
#include <string>
#include <thread>
#include <unordered_set>

#include "gpufs/backend.hpp"
#include "gpufs/gpufs.hpp"
#include "mount/cpu_launch.hpp"
#include "mount/descriptors.hpp"
#include "mount/flush.hpp"
#include "mount/plan.hpp"
#include "mount/snapshot.hpp"
#include "service/service.hpp"

namespace gpufs {
namespace {

// The minimum of workers for opener threads with their own descriptor table. With fewer workers the
// kernel's lock on the table is not the bottleneck yet (docs/decisions/devices.md), and on the few
// cores of such a machine extra threads only compete for them.
constexpr unsigned openers_from_workers = 4;
// An idle device reports idle within this time, even on a busy machine.
constexpr std::uint64_t idle_answer_ns = 1'000'000'000;
// The minimum of time to close files in, even if earlier steps have used up the deadline.
constexpr std::uint64_t closing_ns = 1'000'000'000;
constexpr const char* dropped_losses =
    "bytes of files may be lost whose errors the list has no room for";

std::unique_ptr<device> make_device(mount_options& options) {
  if (options.device == device_kind::automatic)
    options.device = cuda_device_count() > 0 ? device_kind::cuda : device_kind::cpu;
  if (options.device == device_kind::cuda) return make_cuda_device(options.ordinal);
  const unsigned threads = options.cpu_threads != 0
                               ? options.cpu_threads
                               : std::max(1u, std::thread::hardware_concurrency());
  return make_cpu_device(threads);
}

// complete() has refused negative times.
std::uint64_t in_ns(std::chrono::nanoseconds time) {
  return static_cast<std::uint64_t>(time.count());
}

}  // namespace

struct mount::implementation {
  explicit implementation(const mount_options& asked) : options(asked) {
    gpu = make_device(options);
    options = complete(options, *gpu);
    if (options.backend == nullptr) {
      posix_backend_options posix;
      if (options.root) posix.root = options.root->native();
      // Mapped writes need several threads: one or two threads write() as fast as they copy and
      // fault pages in.
      posix.mapped_writes = options.maps_files && options.workers >= 4;
      posix.mapped_reads = options.maps_files;
      posix.read_only = options.read_only;
      options.backend = make_posix_backend(posix);
    }
    if (options.extent_budget_bytes == 0) {
      direct_obstacle = "the budget for registered host memory is 0";
    } else {
      direct_obstacle = gpu->direct_obstacle();
    }

    bulk_obstacle = gpu->bulk_obstacle();
    ref.layout =
        lay_out(options, gpu->multiprocessors(), direct_obstacle.empty(), bulk_obstacle.empty());
    if (bulk_obstacle.empty() && ref.layout.bulk.most == 0)
      bulk_obstacle = options.bulk_bytes == 0
                          ? "the bulk size is 0"
                          : "the cache or its extents are too small, or its pages too large";
    ref.arena = gpu->allocate_arena(ref.layout.total_bytes);
    try {
      initialize();
    } catch (...) {
      release_memory();
      throw;
    }
  }

  // Stops kernels, service and files, once. If something still runs afterwards, `obstacle` names
  // it. Then this object must live for ever, with everything that the running threads may use.
  void end() {
    if (ended.exchange(true)) return;
    const deadline all = deadline::after(in_ns(options.unmount_timeout));
    // Kernels get half of the time. A kernel that waits for a hanging service ends when the service
    // stops.
    (void)gpu->wait_idle(all.or_after(in_ns(options.unmount_timeout) / 2).left_ns());
    extents->ask_to_end();
    requests->ask_to_end();
    const bool service_hangs = !requests->stop(all);
    if (service_hangs) obstacle = "a service thread hangs in I/O";
    if (!sinks->stop(all)) obstacle = "a sink has not returned";
    if (!extents->stop(all)) obstacle = "the registrar hangs in I/O";
    // Wait again: a worker may have begun a copy for a group that had given up. Wait
    // `idle_answer_ns` even if a hanging thread has used up the time: a GPU takes a moment to
    // report idle, and without that nothing would be flushed.
    const bool idle = gpu->wait_idle(std::max(all.left_ns(), idle_answer_ns));
    if (!idle) obstacle = "a kernel is still running";
    const std::uint64_t rest_ns = all.left_ns();
    std::exception_ptr failure;
    try {
      if (!idle) report_unwritten(*gpu, ref, *files_open, -ETIMEDOUT);
      else if (!flush_files(*gpu, ref, *files_open,
                            {service_hangs, in_ns(options.request_timeout)}))
        obstacle = "writing what was not closed hangs in I/O";
    } catch (const std::exception&) {  // most likely out of memory
      failure = std::current_exception();
    }
    const auto close = [](void* self) { static_cast<implementation*>(self)->close_files(); };
    if (obstacle == nullptr &&
        !closer.run(close, this, deadline::after(std::max(rest_ns, closing_ns))))
      obstacle = "closing a file hangs";
    if (obstacle == nullptr) descriptors.reset();
    else descriptors->keep_only(files_open->descriptors_open());
    if (failure != nullptr) std::rethrow_exception(failure);
  }
  // True in a child process of the process that mounted. The child has neither the mount's threads
  // nor its device.
  bool is_forked() const { return getpid() != owner; }
  void refuse_forked() const {
    if (is_forked()) throw error(EPERM, "the mount is the parent process's");
  }
  void refuse_ended() const {
    refuse_forked();
    if (ended) throw error(ESHUTDOWN, "the mount has ended");
  }
  // Called after everything has ended, or before anything has started.
  ~implementation() {
    requests.reset();
    extents.reset();
    files_open.reset();
    options.backend.reset();
    release_memory();
  }
  implementation(const implementation&) = delete;
  implementation& operator=(const implementation&) = delete;

  void initialize() {
    std::vector<slot_ring> rings(ref.layout.ring_count);
    const std::uint32_t share = ref.layout.frame_count / ref.layout.ring_count;
    for (std::uint32_t r = 0; r < ref.layout.ring_count; ++r) {
      rings[r] = {};
      rings[r].first = r * share;
      rings[r].count = r + 1 == ref.layout.ring_count ? ref.layout.frame_count - r * share : share;
    }
    gpu->copy_to_device(ref.at<slot_ring>(ref.layout.rings), rings.data(),
                        rings.size() * sizeof(slot_ring));
    slot_ring files{};
    files.count = ref.layout.file_count;
    gpu->copy_to_device(ref.at<slot_ring>(ref.layout.file_ring), &files, sizeof files);

    const channel_layout channel =
        channel_layout::make(options.channel_slots, options.staging_bytes, options.write_bytes);
    shared = gpu->allocate_shared(channel.total_bytes);
    shared_bytes = channel.total_bytes;
    ref.channel = {shared.device, channel};
    ref.timeouts = {in_ns(options.request_timeout)};
    ref.reclaim_timeout_ns = in_ns(options.reclaim_timeout);
    std::random_device random;
    for (std::uint64_t& word : ref.path_key) word = (std::uint64_t{random()} << 32) | random();
    // The handle does not change from here on.
    device_ref = static_cast<mount_ref*>(gpu->allocate(sizeof ref));
    mount_ref without_bulk = ref;
    without_bulk.layout.bulk.most = 0;
    gpu->copy_to_device(device_ref, &without_bulk, sizeof without_bulk);

    const bool openers = options.workers >= openers_from_workers;
    const unsigned copiers = ref.layout.bulk.most == 0 ? 0 : std::max(options.workers, 2u);
    descriptors.emplace((openers ? 2 : 1) * options.workers + copiers,
                        options.raises_descriptor_limit);
    files_open = std::make_unique<file_table>(options.backend, descriptors->files_max(),
                                              ref.layout.node_count);
    extents = std::make_unique<extent_registrar>(
        *gpu, *files_open, *record,
        extent_options{direct_obstacle.empty() ? options.extent_budget_bytes : 0,
                       options.extent_bytes, options.staging_bytes + 1u, 8});
    // A GPU's next request arrives within microseconds, so workers spin longer. A CPU device wakes
    // the workers itself.
    const std::uint64_t spin_ns = options.device == device_kind::cuda ? 200'000 : 20'000;
    requests = std::make_unique<service>(
        *gpu, channel_view{shared.host, channel}, ref.channel,
        bulk_frames{ref.page(0), ref.layout.page_shift, ref.layout.frame_count,
                    std::uint64_t{ref.layout.bulk.most} << ref.layout.page_shift},
        *files_open, *extents, *sinks, *record,
        service_options{options.workers, spin_ns, openers, copiers});
  }

  // Makes all calls of the backend that may hang: drops mappings and closes files. Precondition:
  // nothing else runs.
  void close_files() {
    extents->drop_all();
    files_open->close_all();
    files_open->close_handed();
  }

  void release_memory() noexcept {
    if (device_ref != nullptr) gpu->free(device_ref);
    if (shared.host != nullptr) gpu->free_shared(shared, shared_bytes);
    gpu->free_arena();
  }

  // Calls gpufs::snapshot() with this mount's device and arena.
  template <class T>
  std::vector<T> snapshot(std::uint64_t offset, std::size_t count) const {
    return gpufs::snapshot<T>(*gpu, ref, offset, count);
  }

  const pid_t owner = getpid();
  mount_options options;
  std::unique_ptr<gpufs::device> gpu;
  std::string direct_obstacle;
  std::string bulk_obstacle;
  mount_ref ref{};
  // A copy of `ref` in device memory. Its launches differ only by the grid's number.
  mount_ref* device_ref = nullptr;
  std::atomic<std::uint64_t> last_launch{0};
  gpufs::device::shared_memory shared{nullptr, nullptr};
  std::uint64_t shared_bytes = 0;
  std::atomic<bool> ended{false};
  const char* obstacle = nullptr;  // why end() did not complete
  // Until all files are closed.
  std::optional<descriptor_grant> descriptors;
  // In the order of their use of each other: the closer is destroyed first, then the service.
  std::unique_ptr<timeline> record = std::make_unique<timeline>();
  std::unique_ptr<sink_table> sinks = std::make_unique<sink_table>();
  std::unique_ptr<file_table> files_open;
  std::unique_ptr<extent_registrar> extents;
  std::unique_ptr<service> requests;
  spare_thread closer{"closing files"};
  implementation* left_before = nullptr;  // next in the list of leave_behind()
};

namespace {

// Keeps a mount that could not end. The list lets a leak checker find what the mount owns.
template <class Implementation>
void leave_behind(Implementation* left) noexcept {
  static std::atomic<Implementation*> last{nullptr};
  left->left_before = last.load(std::memory_order_relaxed);
  // Relaxed: no thread reads the list.
  while (!last.compare_exchange_weak(left->left_before, left, std::memory_order_relaxed)) {
  }
}

}  // namespace

mount::mount(const mount_options& options) : self_(std::make_unique<implementation>(options)) {}
mount::mount(mount&& other) noexcept = default;
mount& mount::operator=(mount&& other) noexcept {
  if (this == &other) return *this;
  const mount before(std::move(*this));
  self_ = std::move(other.self_);
  return *this;
}
mount::~mount() {
  if (self_ == nullptr) return;
  // A forked child lacks the threads that end() would wait for, and only the parent may flush the
  // files.
  if (self_->is_forked()) {
    leave_behind(self_.release());
    return;
  }
  try {
    if (!self_->ended) {
      self_->end();
      for (const file_error& e : file_errors().errors) {
        if (file_error_log::is_lost(e))
          std::fprintf(stderr, "gpufs: unmount: %s: %s: %s\n", detail::printable(e.path).c_str(),
                       e.operation_name(), std::generic_category().message(e.error_number).c_str());
      }
      if (self_->files_open->errors().has_dropped_loss())
        std::fprintf(stderr, "gpufs: unmount: %s\n", dropped_losses);
    }
  } catch (const std::exception& e) {  // most likely out of memory
    std::fprintf(stderr, "gpufs: unmount: %s\n", e.what());
  }
  if (self_->obstacle == nullptr) return;
  std::fprintf(stderr, "gpufs: unmount: %s after %.1f s; what it may use stays allocated\n",
               self_->obstacle,
               std::chrono::duration<double>(self_->options.unmount_timeout).count());
  self_->closer.dismiss();
  leave_behind(self_.release());
}

void mount::unmount() {
  if (self_->ended) return;
  self_->refuse_forked();
  self_->end();
  for (const file_error& e : file_errors().errors) {
    if (file_error_log::is_lost(e))
      throw error(e.error_number, std::string("unmount: ") + e.operation_name(), e.path);
  }
  if (self_->files_open->errors().has_dropped_loss())
    throw error(EIO, std::string("unmount: ") + dropped_losses);
  if (self_->obstacle != nullptr)
    throw error(ETIMEDOUT, std::string("unmount: ") + self_->obstacle);
}

file_error_list mount::file_errors() const { return self_->files_open->errors().list(); }

void mount::sync_folder(const std::filesystem::path& path) {
  const int status = self_->options.backend->sync_folder(path.native());
  if (status < 0)
    throw error(-status, status == -EINVAL ? "not a folder that holds data" : "sync_folder",
                path.native());
}

mount_ref mount::ref(bool bulk) {
  self_->refuse_ended();
  self_->requests->wake();
  mount_ref ref = self_->ref;
  ref.launch = self_->last_launch.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!bulk) ref.layout.bulk.most = 0;
  return ref;
}

const mount_ref* mount::device_ref() {
  self_->refuse_ended();
  self_->requests->wake();
  return self_->device_ref;
}

device_kind mount::device() const { return self_->options.device; }
int mount::ordinal() const { return self_->options.ordinal; }
std::string mount::device_name() const { return self_->gpu->name(); }
const mount_options& mount::options() const { return self_->options; }
std::string mount::direct_path() const {
  return self_->direct_obstacle.empty() ? "on" : self_->direct_obstacle;
}
std::string mount::bulk_path() const {
  return self_->bulk_obstacle.empty() ? "on" : self_->bulk_obstacle;
}
unsigned mount::multiprocessors() const { return self_->gpu->multiprocessors(); }

statistics mount::stats() const {
  const auto sets =
      self_->snapshot<counter_set>(self_->ref.layout.counters, self_->ref.layout.processor_count);
  statistics s;
  for (const counter_set& set : sets) {
    for (std::uint32_t i = 0; i < counter_count; ++i) s.values[i] += set.values[i].value;
    for (std::uint32_t i = 0; i < latency_bucket_count; ++i)
      s.fault_latency[i] += set.fault_latency[i].value;
  }
  const extent_registrar::counts e = self_->extents->count();
  s.extents_registered = e.registered;
  s.extent_bytes = e.bytes;
  s.extents_refused = e.refused;
  s.host_open_files = self_->files_open->open_count();
  s.requests_served = self_->requests->served_count();
  return s;
}

std::vector<file_statistics> mount::file_stats() const {
  const std::uint32_t count = self_->ref.layout.file_count;
  const auto records = self_->snapshot<open_file>(self_->ref.layout.files, count);
  const auto facts = self_->snapshot<file_facts>(self_->ref.layout.file_facts, count);
  const auto counts =
      self_->snapshot<file_counts>(self_->ref.layout.file_counts, std::size_t{file_copies} * count);
  std::vector<file_statistics> all;
  std::unordered_set<std::uint64_t> counted;  // handles
  for (std::uint32_t slot = 0; slot < count; ++slot) {
    const open_file& f = records[slot];
    const std::uint32_t word = f.header.state.peek();
    if (slot_state::phase(word) != slot_phase::resident) continue;
    // Null: the file was closed after the snapshot, so it is not open now.
    const std::shared_ptr<host_file> file = self_->files_open->find(f.handle.value);
    if (file == nullptr) continue;
    // A kernel may have written the same handle into all records.
    if (!counted.insert(f.handle.value).second) continue;
    file_statistics s;
    s.path = file->path();
    // A kernel may have written any value there, so the number of the inode state is checked.
    const std::uint64_t size = facts[slot].size.value;
    const auto node = static_cast<std::uint32_t>(size);
    if ((size & file_facts::size_in_node) == 0) s.size = size;
    else if (node >= self_->ref.layout.node_count) s.size = file->version().identity.size;
    else
      s.size =
          self_->snapshot<inode_state>(self_->ref.layout.nodes + sizeof(inode_state) * node, 1)[0]
              .size.value;
    for (std::size_t at = slot; at < counts.size(); at += count) {
      s.hits += counts[at].hits.value;
      s.page_loads += counts[at].page_loads.value;
      s.direct_loads += counts[at].direct_loads.value;
      s.loaded_bytes += counts[at].loaded_bytes.value;
    }
    s.holders =
        static_cast<std::uint32_t>(std::max(0, open_file::holders_in(f.tag_holders.value).holders));
    s.extents = extent_registrar::registered_in(file->version());
    all.push_back(std::move(s));
  }
  return all;
}

void mount::start_timeline(std::size_t events_max) { self_->record->start(events_max); }
std::string mount::stop_timeline() { return self_->record->stop(); }

std::int32_t mount::open_sink(std::function<int(const char*, std::size_t)> take) {
  self_->refuse_ended();
  return self_->sinks->open(std::move(take));
}
bool mount::close_sink(std::int32_t sink) {
  return self_->sinks->close(sink, deadline::after(in_ns(self_->options.request_timeout)));
}

std::uint64_t mount::register_file(const std::filesystem::path& path) {
  self_->refuse_ended();
  std::uint64_t handle = 0;
  std::shared_ptr<host_file> file;
  const int status = self_->files_open->open(path.native(), false, handle, file);
  if (status < 0) throw error(-status, "register_file", path.native());
  // Closes the file opened above on every path.
  struct closing {
    file_table& files;
    const std::uint64_t handle;
    ~closing() { (void)files.close(handle); }
  } const closes{*self_->files_open, handle};
  return self_->extents->register_all(file);
}

void mount::drop_extents() {
  const arena_layout& l = self_->ref.layout;
  if (l.extent_slots == 0) return;
  // Copies for groups that gave up, or ended, may still run, and the service may begin others. The
  // lock is not held while a kernel runs, which may need a copier.
  constexpr std::uint64_t idle_check_ns = 10'000'000;
  const deadline end = deadline::after(in_ns(self_->options.unmount_timeout));
  std::unique_lock copies(self_->extents->copies(), std::defer_lock);
  const auto is_idle = [&] {
    if (!copies.try_lock()) return false;
    if (self_->gpu->wait_idle(idle_check_ns)) return true;
    copies.unlock();
    return false;
  };
  // At least once, also with a timeout of 0.
  while (!self_->gpu->wait_idle(std::max(end.left_ns(), idle_check_ns)) || !is_idle()) {
    if (end.left_ns() == 0) throw error(EBUSY, "drop_extents: the device is not idle");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::vector<char> zeros(l.extents + sizeof(extent_entry) * std::uint64_t{l.extent_slots} -
                                l.extent_head);
  self_->gpu->copy_to_device(self_->ref.arena + l.extent_head, zeros.data(), zeros.size());
  self_->extents->drop_all();
}

void mount::synchronize() {
  self_->gpu->synchronize();
  if (self_->extents->lacks_budget()) self_->extents->give_back_unreachable();
}
void* mount::allocate(std::size_t bytes) { return self_->gpu->allocate(bytes); }
void mount::free(void* memory) noexcept { self_->gpu->free(memory); }
void mount::copy_to_device(void* to, const void* from, std::size_t bytes) {
  self_->gpu->copy_to_device(to, from, bytes);
}
void mount::copy_to_host(void* to, const void* from, std::size_t bytes) const {
  self_->gpu->copy_to_host(to, from, bytes);
}

device_guard::device_guard(const mount& m)
    : device_(m.self_->gpu.get()), previous_(device_->make_current()) {}
device_guard::~device_guard() { device_->restore(previous_); }

cpu_launch::cpu_launch(mount& m) : device_(*m.self_->gpu) { device_.begin_launch(); }
cpu_launch::~cpu_launch() { device_.end_launch(); }

bool cuda_available() { return cuda_device_count() > 0; }

const char* statistics::name(counter c) {
  static constexpr const char* names[counter_count] = {
      "hits",         "minor_faults",     "direct_loads",     "staged_loads",
      "bulk_loads",   "open_loads",       "load_errors",      "evictions",
      "reclaims",     "lost_races",       "no_frames",        "direct_bytes",
      "staged_bytes", "bulk_bytes",       "open_bytes",       "read_bytes",
      "opens",        "reopens",          "closes",           "rpcs",
      "rpc_wait_ns",  "rpc_failures",     "sent_bytes",       "written_bytes",
      "write_backs",  "write_back_bytes", "write_back_errors"};
  return names[static_cast<std::uint32_t>(c)];
}

}  // namespace gpufs
