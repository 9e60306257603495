#include <sys/stat.h>
#include <optional>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "common/owned_file.hpp"
#include "engine/bench.hpp"
#include "engine/content.cuh"
#include "engine/files.hpp"
#include "engine/runtime.hpp"
#include "engine/stopwatch.hpp"
#include "engine/together.hpp"

namespace gpufs::bench {

namespace {

constexpr std::uint64_t host_page_bytes = 4096;

struct free_memory {
  void operator()(char* memory) const { std::free(memory); }
};
using host_memory = std::unique_ptr<char, free_memory>;

// Aligned for direct I/O. Touches the pages, so that they exist before the clock starts.
host_memory allocate_host(std::uint64_t bytes) {
  const std::uint64_t rounded = (bytes + host_page_bytes - 1) / host_page_bytes * host_page_bytes;
  host_memory memory(static_cast<char*>(std::aligned_alloc(host_page_bytes, rounded)));
  if (memory == nullptr) throw error(ENOMEM, "bench: " + std::to_string(bytes) + " bytes");
  std::memset(memory.get(), 1, rounded);
  return memory;
}

std::uint64_t wrong_bytes_in(const char* data, std::uint64_t bytes, std::uint64_t first_word) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < bytes / 8; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + i * 8, sizeof word);
    if (word != word_at(first_word + i)) wrong += 8;
  }
  return wrong;
}

// Checks that the device memory holds the file's first bytes, in order.
std::uint64_t wrong_bytes_on_device(const device_memory& memory, std::uint64_t bytes) {
  walk whole;
  whole.random = false;
  whole.span_bytes = bytes;
  whole.chunk_bytes = std::min(bytes, host_page_bytes);
  whole.operations = bytes / whole.chunk_bytes;
  return memory.wrong_bytes(whole);
}

std::uint64_t sum(const std::vector<std::uint64_t>& of_threads) {
  std::uint64_t total = 0;
  for (const std::uint64_t n : of_threads) total += n;
  return total;
}

// One thread of host_read(). Its chunks go into a ring, which holds the last ones at the end.
class chunk_reader {
 public:
  chunk_reader(const std::string& path, host_way way, const walk& w)
      : walk_(w), way_(way),
        file_(path, way == host_way::direct_io ? O_RDONLY | O_DIRECT : O_RDONLY),
        places_(std::max<std::uint64_t>(1, ring_bytes / w.chunk_bytes)),
        ring_(allocate_host(places_ * w.chunk_bytes)), chunks_(w.span_bytes / w.chunk_bytes),
        where_(w.random ? order::random(chunks_) : order::forward(chunks_)) {
    if (way == host_way::mapping) mapped_ = std::make_unique<owned_mapping>(path, w.span_bytes);
  }

  void read(unsigned first, unsigned stride) {
    for (std::uint64_t i = first; i < walk_.operations; i += stride, ++done_) {
      const std::uint64_t at = where_.position(i) * walk_.chunk_bytes;
      char* const to = ring_.get() + done_ % places_ * walk_.chunk_bytes;
      if (mapped_ != nullptr) std::memcpy(to, mapped_->data() + at, walk_.chunk_bytes);
      else file_.read(to, walk_.chunk_bytes, at);
    }
  }

  // Checks the chunks that are still in the ring.
  std::uint64_t wrong_bytes(unsigned first, unsigned stride) const {
    std::uint64_t wrong = 0;
    for (std::uint64_t n = done_ - std::min(done_, places_); n < done_; ++n) {
      const std::uint64_t at = where_.position(first + n * stride) * walk_.chunk_bytes;
      wrong +=
          wrong_bytes_in(ring_.get() + n % places_ * walk_.chunk_bytes, walk_.chunk_bytes, at / 8);
    }
    return wrong;
  }

 private:
  static constexpr std::uint64_t ring_bytes = std::uint64_t{1} << 20;

  const walk walk_;
  const host_way way_;
  const owned_file file_;
  const std::uint64_t places_;
  const host_memory ring_;
  const std::uint64_t chunks_;
  const order where_;
  std::unique_ptr<owned_mapping> mapped_;
  std::uint64_t done_ = 0;
};

}  // namespace

std::vector<std::uint64_t> positions(const walk& w) {
  const std::uint64_t chunks = w.span_bytes / w.chunk_bytes;
  const order where = w.random ? order::random(chunks) : order::forward(chunks);
  std::vector<std::uint64_t> numbers(w.operations);
  for (std::uint64_t i = 0; i < w.operations; ++i) numbers[i] = where.position(i);
  return numbers;
}

sample read_then_copy(mount& m, const std::string& path, std::uint64_t bytes) {
  const owned_file file(path);
  const host_memory whole = allocate_host(bytes);
  device_memory to(m, bytes);
  const stopwatch watch;
  file.read(whole.get(), bytes, 0);
  to.copy_from_host(whole.get(), bytes);
  sample s;
  s.seconds = watch.seconds();
  s.cpu_seconds = watch.cpu_seconds();
  s.operations = 1;
  s.bytes = bytes;
  s.wrong_bytes = wrong_bytes_on_device(to, bytes);
  return s;
}

sample pipeline(mount& m, const std::string& path, std::uint64_t bytes, std::uint64_t chunk_bytes,
                unsigned threads) {
  const owned_file file(path);
  const device_memory to(m, bytes);
  const std::unique_ptr<runtime> device = make_runtime(m);
  sample s = run_together(threads, [&](unsigned thread, start_line& start) {
    const device_guard guard(m);
    // Each buffer has its own queue: it may be filled again when the copy from it has ended.
    const std::array<pinned_memory, 2> buffers{pinned_memory(*device, chunk_bytes),
                                               pinned_memory(*device, chunk_bytes)};
    const std::array<std::unique_ptr<runtime::queue>, 2> queues{device->make_queue(),
                                                                device->make_queue()};
    start.pass();
    unsigned turn = 0;
    for (std::uint64_t at = thread * chunk_bytes; at < bytes;
         at += threads * chunk_bytes, turn ^= 1) {
      const std::uint64_t n = std::min(chunk_bytes, bytes - at);
      queues[turn]->wait();
      file.read(buffers[turn].data(), n, at);
      queues[turn]->copy(to.data() + at, buffers[turn].data(), n);
    }
    for (const auto& queue : queues) queue->wait();
  });
  s.operations = (bytes + chunk_bytes - 1) / chunk_bytes;
  s.bytes = bytes;
  s.wrong_bytes = wrong_bytes_on_device(to, bytes);
  return s;
}

sample host_read(const std::string& path, host_way way, const walk& w, unsigned threads) {
  std::vector<std::unique_ptr<chunk_reader>> readers(threads);
  sample s = run_together(threads, [&](unsigned thread, start_line& start) {
    readers[thread] = std::make_unique<chunk_reader>(path, way, w);
    start.pass();
    readers[thread]->read(thread, threads);
  });
  s.operations = w.operations;
  s.bytes = w.operations * w.chunk_bytes;
  for (unsigned t = 0; t < threads; ++t) s.wrong_bytes += readers[t]->wrong_bytes(t, threads);
  return s;
}

sample host_open_small_files(const std::string& folder, std::uint64_t first, std::uint64_t count,
                             unsigned threads) {
  std::vector<std::uint64_t> wrong(threads);
  sample s = run_together(threads, [&](unsigned thread, start_line& start) {
    const host_memory content = allocate_host(std::uint64_t{64} << 10);
    start.pass();
    for (std::uint64_t i = first + thread; i < first + count; i += threads) {
      const std::string path = small_file_path(folder, i);
      const owned_file file(path);
      struct stat status{};
      if (fstat(file.fd(), &status) != 0) throw error(errno, "fstat", path);
      const auto bytes = static_cast<std::uint64_t>(status.st_size);
      file.read(content.get(), bytes, 0);
      if (bytes != small_file_bytes(i)) wrong[thread] += small_file_bytes(i);
      else wrong[thread] += wrong_bytes_in(content.get(), bytes, small_file_first_word(i));
    }
  });
  s.operations = count;
  s.bytes = small_files_bytes(first, count);
  s.wrong_bytes = sum(wrong);
  return s;
}

sample host_write(const std::string& path, host_way way, std::uint64_t bytes,
                  std::uint64_t chunk_bytes, unsigned threads, bool in_memory) {
  const owned_file file(path, O_RDWR | O_CREAT);
  std::optional<owned_mapping> mapping;
  if (way == host_way::mapping) {
    file.resize(bytes);
    mapping.emplace(path, bytes, O_RDWR);
  }
  const std::unique_ptr<char[]> all(in_memory ? new char[bytes] : nullptr);  // no pages yet
  sample s = run_together(threads, [&](unsigned thread, start_line& start) {
    const auto for_each_chunk = [&](const auto& act) {
      for (std::uint64_t at = thread * chunk_bytes; at < bytes; at += threads * chunk_bytes)
        act(at, std::min(chunk_bytes, bytes - at));
    };
    const std::vector<char> own(chunk_bytes);
    if (in_memory)
      for_each_chunk([&](std::uint64_t at, std::uint64_t n) { std::memset(all.get() + at, 1, n); });
    start.pass();
    for_each_chunk([&](std::uint64_t at, std::uint64_t n) {
      const char* const from = in_memory ? all.get() + at : own.data();
      if (mapping) std::memcpy(mapping->data() + at, from, n);
      else file.write(from, n, at);
    });
  });
  s.operations = (bytes + chunk_bytes - 1) / chunk_bytes;
  s.bytes = bytes;
  return s;
}

sample host_reopen(const std::string& path, std::uint64_t operations, unsigned threads) {
  sample s = run_together(threads, [&](unsigned thread, start_line& start) {
    start.pass();
    for (std::uint64_t i = thread; i < operations; i += threads) (void)owned_file(path);
  });
  s.operations = operations;
  return s;
}

}  // namespace gpufs::bench
