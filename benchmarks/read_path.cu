// Does the read path hold what design.md promises? Random 4 KiB pages of one file, each once: misses over the direct
// and the staged path, misses with steady eviction, and hits; beside the limits of the machine, measured in the same
// run: raw pulls from registered host memory, and raw reads of device memory. Every byte read is checked in a pass of
// its own. Prints one JSON object.
//
//   read_path [--file PATH] [--mib N] [--page BYTES] [--commit ID] [--date DATE]
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gpufs/launch.cuh"

namespace {

using gpufs::detail::check;

constexpr std::uint32_t block_threads = 256;
constexpr int runs = 3;

// The content of the file: word i of 8 bytes. Never zeros, checks itself.
GPUFS_HD std::uint64_t word_at(std::uint64_t i) { return gpufs::mix(i + 0x1234567); }

// Position i of a walk over [0, pages) in an order without a pattern; pages is a power of two.
GPUFS_HD std::uint64_t shuffled(std::uint64_t i, std::uint64_t pages) {
  std::uint64_t x = i;
  for (int round = 0; round < 2; ++round) {
    x = (x * 0x9e3779b97f4a7c15ull + 0x7f4a7c15) & (pages - 1);
    x ^= x >> 7;
  }
  return x;
}

GPUFS_HD std::uint64_t fold(const gpufs::vector16& v) {
  return (std::uint64_t{v.x} << 32 | v.y) ^ (std::uint64_t{v.z} << 32 | v.w);
}

// XOR of a page's bytes as seen by one lane; loads in flight as in a good hand-written kernel.
template <class Load>
GPUFS_HD std::uint64_t sum_page(const char* page, std::uint64_t bytes, std::uint32_t lane, std::uint32_t lanes, const Load& load) {
  const auto* v = reinterpret_cast<const gpufs::vector16*>(page);
  const std::uint64_t n = bytes / sizeof *v;
  std::uint64_t sum = 0;
  std::uint64_t i = lane;
  for (; i + 7 * std::uint64_t{lanes} < n; i += 8 * std::uint64_t{lanes}) {
    gpufs::vector16 part[8];
    GPUFS_UNROLL
    for (int k = 0; k < 8; ++k) part[k] = load(v + i + std::uint64_t{lanes} * k);
    GPUFS_UNROLL
    for (int k = 0; k < 8; ++k) sum ^= fold(part[k]);
  }
  for (; i < n; i += lanes) sum ^= fold(load(v + i));
  return sum;
}

// Every page once, in random order, a warp each: mapped, summed, unmapped.
struct map_pages {
  static constexpr int block_threads_max = block_threads;
  static constexpr int blocks_per_multiprocessor = 4;
  std::int32_t fd;
  std::uint64_t pages;
  std::uint64_t* sum;
  unsigned long long* failures;
  GPUFS_HD void operator()(const gpufs::mount_ref& fs) const {
    const gpufs::warp_group warp = gpufs::this_warp();
    std::uint64_t total = 0;
    const std::uint64_t bytes = fs.layout.page_bytes();
    for (std::uint64_t i = warp.grid_rank(); i < pages; i += warp.grid_size()) {
      const gpufs::mapping m = gpufs::gmmap(warp, fs, fd, static_cast<std::int64_t>(shuffled(i, pages) * bytes), bytes);
      if (m.bytes != static_cast<std::int64_t>(bytes)) {
#if defined(__CUDA_ARCH__)
        if (warp.is_leader()) atomicAdd(failures, 1ull);
#endif
        if (m.bytes <= 0) continue;
      }
      total ^= sum_page(m.data, bytes, warp.rank(), warp.size(), [](const gpufs::vector16* p) { return *p; });
      (void)gpufs::gmunmap(warp, fs, m.data);
    }
    if (total == 1) *sum = total;  // keeps the loads
  }
};

// The same pages, compared byte for byte with what the file should hold.
struct verify_pages {
  std::int32_t fd;
  std::uint64_t pages;
  unsigned long long* failures;
  GPUFS_HD void operator()(const gpufs::mount_ref& fs) const {
    const gpufs::warp_group warp = gpufs::this_warp();
    const std::uint64_t bytes = fs.layout.page_bytes();
    for (std::uint64_t i = warp.grid_rank(); i < pages; i += warp.grid_size()) {
      const std::uint64_t page = shuffled(i, pages);
      const gpufs::mapping m = gpufs::gmmap(warp, fs, fd, static_cast<std::int64_t>(page * bytes), bytes);
      bool wrong = m.bytes != static_cast<std::int64_t>(bytes);
      if (!wrong) {
        const auto* words = reinterpret_cast<const std::uint64_t*>(m.data);
        for (std::uint64_t w = warp.rank(); w < bytes / 8; w += warp.size()) wrong = wrong || words[w] != word_at(page * bytes / 8 + w);
        (void)gpufs::gmunmap(warp, fs, m.data);
      }
#if defined(__CUDA_ARCH__)
      if (wrong) atomicAdd(failures, 1ull);
#endif
    }
  }
};

struct open_file_kernel {
  const char* path;
  std::int32_t* fd;
  GPUFS_HD void operator()(const gpufs::mount_ref& fs) const {
    const std::int32_t opened = gpufs::gopen(gpufs::this_warp(), fs, path);
    if (gpufs::this_warp().is_leader()) *fd = opened;
  }
};

// The device learns of an extent from the answer to a staged load in it: one page each, before the clock runs.
struct touch_kernel {
  std::int32_t fd;
  std::uint64_t count, stride;
  GPUFS_HD void operator()(const gpufs::mount_ref& fs) const {
    const gpufs::warp_group warp = gpufs::this_warp();
    for (std::uint64_t i = warp.grid_rank(); i < count; i += warp.grid_size()) {
      const gpufs::mapping m = gpufs::gmmap(warp, fs, fd, static_cast<std::int64_t>(i * stride), 1);
      if (m.bytes > 0) (void)gpufs::gmunmap(warp, fs, m.data);
    }
  }
};

// The limits: the same walk over plain memory, copied (host) or summed (device).
__global__ void pull_raw(const char* from, char* to, std::uint64_t pages, std::uint64_t bytes) {
  const gpufs::warp_group warp = gpufs::this_warp();
  for (std::uint64_t i = warp.grid_rank(); i < pages; i += warp.grid_size()) {
    gpufs::copy_from_host(warp, to + i * bytes, from + shuffled(i, pages) * bytes, bytes);
  }
}
__global__ void read_raw(const char* from, std::uint64_t pages, std::uint64_t bytes, std::uint64_t* sum) {
  const gpufs::warp_group warp = gpufs::this_warp();
  std::uint64_t total = 0;
  for (std::uint64_t i = warp.grid_rank(); i < pages; i += warp.grid_size()) {
    total ^= sum_page(from + shuffled(i, pages) * bytes, bytes, warp.rank(), warp.size(), [](const gpufs::vector16* p) { return *p; });
  }
  if (total == 1) *sum = total;
}

class stopwatch {
 public:
  stopwatch() {
    check(cudaEventCreate(&begin_), "event");
    // Waiting threads sleep, so that host time measured is the service's.
    check(cudaEventCreateWithFlags(&end_, cudaEventBlockingSync), "event");
  }
  ~stopwatch() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  template <class Work>
  double seconds(const Work& work) {
    check(cudaEventRecord(begin_), "event");
    work();
    check(cudaEventRecord(end_), "event");
    check(cudaEventSynchronize(end_), "kernel");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_), "event");
    return ms / 1e3;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

double cpu_seconds() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  const auto s = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return s(u.ru_utime) + s(u.ru_stime);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

struct arguments {
  std::string file = "read_path.data";
  std::string commit = "unknown", date = "unknown";
  std::uint64_t bytes = std::uint64_t{8} << 30;
  std::uint64_t page = 4096;
};

arguments parse(int argc, char** argv) {
  arguments a;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--file") a.file = value;
    else if (key == "--mib") a.bytes = std::stoull(value) << 20;
    else if (key == "--page") a.page = std::stoull(value);
    else if (key == "--commit") a.commit = value;
    else if (key == "--date") a.date = value;
    else throw gpufs::error(EINVAL, "unknown option " + key);
  }
  return a;
}

// What runs now, for whoever waits.
void tell(const char* what) { std::fprintf(stderr, "read_path: %s\n", what); }

void make_file(const arguments& a) {
  const int fd = open(a.file.c_str(), O_RDWR | O_CREAT, 0644);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(a.bytes)) != 0) throw gpufs::error(errno, "create", a.file);
  std::vector<std::thread> writers;
  constexpr std::uint64_t part = std::uint64_t{4} << 20;
  for (unsigned t = 0; t < 16; ++t) {
    writers.emplace_back([&, t] {
      std::vector<std::uint64_t> words(part / 8);
      for (std::uint64_t at = t * part; at < a.bytes; at += 16 * part) {
        for (std::uint64_t w = 0; w < words.size(); ++w) words[w] = word_at(at / 8 + w);
        if (pwrite(fd, words.data(), part, static_cast<off_t>(at)) != static_cast<ssize_t>(part)) std::abort();
      }
    });
  }
  for (auto& w : writers) w.join();
  close(fd);
  // A file that changed a moment ago gets a new version at its next open (file_table.hpp), which would make the extents
  // registered before useless.
  std::this_thread::sleep_for(std::chrono::seconds(3));
}

struct measured {
  double seconds = 0;
  double cores = 0;  // host CPU time over wall time
  gpufs::statistics stats;
};

class bench {
 public:
  explicit bench(const arguments& a) : a_(a), pages_(a.bytes / a.page) {
    check(cudaMalloc(&sum_, 8), "cudaMalloc");
    check(cudaMalloc(&failures_, 8), "cudaMalloc");
    check(cudaMemset(failures_, 0, 8), "cudaMemset");
  }

  // One fresh mount a run. `passes` kernels over all pages; the last one counts.
  measured ours(std::uint64_t cache_bytes, bool direct, int passes) {
    std::vector<double> seconds, cores;
    measured m;
    for (int run = 0; run < runs; ++run) {
      gpufs::mount_options o;
      o.device = gpufs::device_kind::cuda;
      o.cache_bytes = cache_bytes;
      o.page_bytes = a_.page;
      o.extent_budget_bytes = direct ? 2 * a_.bytes : 0;
      gpufs::mount fs(o);
      if (direct && fs.register_file(a_.file) < a_.bytes) throw gpufs::error(EIO, "not all of the file could be registered", a_.file);
      const std::int32_t fd = open_in(fs);
      if (direct) touch_extents(fs, fd);
      double wall = 0, before = 0;
      for (int pass = 0; pass < passes; ++pass) {
        check(cudaDeviceSynchronize(), "kernel");
        before = cpu_seconds();
        wall = watch_.seconds([&] { gpufs::launch(fs, shape(fs), map_pages{fd, pages_, sum_, failures_}); });
      }
      seconds.push_back(wall);
      cores.push_back((cpu_seconds() - before) / wall);
      if (run == 0) gpufs::launch(fs, shape(fs), verify_pages{fd, pages_, failures_});
      fs.synchronize();
      m.stats = fs.stats();
    }
    m.seconds = median(seconds);
    m.cores = median(cores);
    return m;
  }

  double raw_pull() {
    const int fd = open(a_.file.c_str(), O_RDONLY);
    void* map = mmap(nullptr, a_.bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) throw gpufs::error(errno, "mmap", a_.file);
    check(cudaHostRegister(map, a_.bytes, cudaHostRegisterMapped | cudaHostRegisterReadOnly), "cudaHostRegister");
    void* seen = nullptr;
    char* to = nullptr;
    check(cudaHostGetDevicePointer(&seen, map, 0), "cudaHostGetDevicePointer");
    check(cudaMalloc(&to, a_.bytes), "cudaMalloc");
    std::vector<double> seconds;
    for (int run = 0; run <= runs; ++run) {
      const double s = watch_.seconds([&] { pull_raw<<<264, block_threads>>>(static_cast<const char*>(seen), to, pages_, a_.page); });
      if (run != 0) seconds.push_back(s);
    }
    check(cudaFree(to), "cudaFree");
    check(cudaHostUnregister(map), "cudaHostUnregister");
    munmap(map, a_.bytes);
    close(fd);
    return median(seconds);
  }

  double raw_read() {
    char* from = nullptr;
    check(cudaMalloc(&from, a_.bytes), "cudaMalloc");
    check(cudaMemset(from, 0x5a, a_.bytes), "cudaMemset");
    std::vector<double> seconds;
    for (int run = 0; run <= runs; ++run) {
      const double s = watch_.seconds([&] { read_raw<<<132 * 8, block_threads>>>(from, pages_, a_.page, sum_); });
      if (run != 0) seconds.push_back(s);
    }
    check(cudaFree(from), "cudaFree");
    return median(seconds);
  }

  unsigned long long failures() const {
    unsigned long long n = 0;
    check(cudaMemcpy(&n, failures_, 8, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return n;
  }

 private:
  static gpufs::launch_shape shape(const gpufs::mount& fs) { return {fs.multiprocessors() * 8, block_threads, 0, nullptr}; }

  std::int32_t open_in(gpufs::mount& fs) {
    auto* path = static_cast<char*>(fs.allocate(a_.file.size() + 1));
    auto* fd = static_cast<std::int32_t*>(fs.allocate(sizeof(std::int32_t)));
    fs.copy_to_device(path, a_.file.c_str(), a_.file.size() + 1);
    gpufs::launch(fs, {1, 32, 0, nullptr}, open_file_kernel{path, fd});
    fs.synchronize();
    std::int32_t opened = 0;
    fs.copy_to_host(&opened, fd, sizeof opened);
    fs.free(path);
    fs.free(fd);
    if (opened < 0) throw gpufs::error(-opened, "gopen", a_.file);
    return opened;
  }

  void touch_extents(gpufs::mount& fs, std::int32_t fd) {
    const std::uint64_t stride = fs.options().extent_bytes;
    gpufs::launch(fs, {16, 32, 0, nullptr}, touch_kernel{fd, a_.bytes / stride, stride});
    fs.synchronize();
  }

  arguments a_;
  std::uint64_t pages_;
  std::uint64_t* sum_ = nullptr;
  unsigned long long* failures_ = nullptr;
  stopwatch watch_;
};

void print(const char* name, double gb, const measured& m, const char* limit_name, double limit_gb_per_s) {
  std::printf("  \"%s\": {\"gb_per_s\": %.2f, \"ratio_to_%s\": %.3f, \"host_cores_busy\": %.2f, \"hits\": %llu, \"direct_loads\": %llu, "
              "\"staged_loads\": %llu, \"evictions\": %llu},\n",
              name, gb / m.seconds, limit_name, gb / m.seconds / limit_gb_per_s, m.cores,
              static_cast<unsigned long long>(m.stats[gpufs::counter::hits]), static_cast<unsigned long long>(m.stats[gpufs::counter::direct_loads]),
              static_cast<unsigned long long>(m.stats[gpufs::counter::staged_loads]), static_cast<unsigned long long>(m.stats[gpufs::counter::evictions]));
}

int run(const arguments& a) {
  tell("writing the file");
  make_file(a);
  cudaDeviceProp gpu{};
  check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  utsname os{};
  uname(&os);
  const double gb = static_cast<double>(a.bytes) / 1e9;
  const std::uint64_t all = a.bytes + a.bytes / 8;

  bench b(a);
  tell("raw pulls from registered host memory");
  const double pull = gb / b.raw_pull();
  tell("raw reads of device memory");
  const double read = gb / b.raw_read();
  tell("misses, direct path");
  const measured direct = b.ours(all, true, 1);
  tell("misses with eviction, direct path");
  const measured evicting = b.ours(a.bytes / 4, true, 1);
  tell("hits");
  const measured hits = b.ours(all, true, 2);
  tell("misses, staged path");
  const measured staged = b.ours(all, false, 1);

  std::printf("{\n  \"benchmark\": \"read_path\", \"commit\": \"%s\", \"date\": \"%s\",\n", a.commit.c_str(), a.date.c_str());
  std::printf("  \"machine\": {\"gpu\": \"%s\", \"cores\": %u, \"kernel\": \"%s\"},\n", gpu.name, std::thread::hardware_concurrency(), os.release);
  std::printf("  \"file_bytes\": %llu, \"page_bytes\": %llu, \"runs\": %d, \"wrong_pages\": %llu,\n", static_cast<unsigned long long>(a.bytes),
              static_cast<unsigned long long>(a.page), runs, b.failures());
  std::printf("  \"raw_pull\": {\"gb_per_s\": %.2f},\n  \"raw_device_read\": {\"gb_per_s\": %.2f},\n", pull, read);
  print("miss_direct", gb, direct, "raw_pull", pull);
  print("miss_direct_evicting", gb, evicting, "raw_pull", pull);
  print("miss_staged", gb, staged, "raw_pull", pull);
  print("hit_gmmap", gb, hits, "raw_device_read", read);
  std::printf("  \"unit\": \"GB/s, 1e9 bytes\"\n}\n");
  unlink(a.file.c_str());
  return b.failures() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "read_path: %s\n", e.what());
    return 2;
  }
}
