// Compiled by nvcc if there is one, otherwise by the host compiler.
#include "common/owned_file.hpp"
#include "engine/launch.cuh"

namespace gpufs::bench {

namespace {

class device_copy final : public plain_memory {
 public:
  device_copy(mount& m, std::uint64_t bytes) : memory_(m, bytes) {
    launch(m, shape_of(m, {}), fill_content(memory_.data(), bytes));
    m.synchronize();
  }
  const char* data() const override { return memory_.data(); }

 private:
  device_memory memory_;
};

class file_pages final : public plain_memory {
 public:
  file_pages(mount& m, const std::string& path, std::uint64_t bytes)
      : mapped_(path, bytes), runtime_(make_runtime(m)),
        seen_(runtime_->register_pages(mapped_.data(), bytes)) {}
  ~file_pages() override { runtime_->unregister_pages(mapped_.data()); }
  file_pages(const file_pages&) = delete;
  file_pages& operator=(const file_pages&) = delete;
  const char* data() const override { return seen_; }

 private:
  const owned_mapping mapped_;
  const std::unique_ptr<runtime> runtime_;
  const char* const seen_;
};

}  // namespace

std::unique_ptr<plain_memory> copy_on_device(mount& m, std::uint64_t bytes) {
  return std::make_unique<device_copy>(m, bytes);
}

std::unique_ptr<plain_memory> registered_file(mount& m, const std::string& path,
                                              std::uint64_t bytes) {
  return std::make_unique<file_pages>(m, path, bytes);
}

sample raw_pull(mount& m, const plain_memory& from, const walk& w) {
  check_walk(w);
  const told t(m);
  const device_memory to(m, w.operations * w.chunk_bytes);
  sample s = timed(m, w, t, [&](std::uint64_t operations) {
    launch(m, shape_of(m, w), pull_chunks(t.make_task(0, w, operations), from.data(), to.data()));
  });
  s.wrong_bytes = to.wrong_bytes(w);
  return s;
}

sample raw_read(mount& m, const plain_memory& from, const walk& w) {
  check_walk(w);
  const told t(m);
  const device_memory gathered(m, w.how == access::gather ? w.operations * w.chunk_bytes : 0);
  sample s = timed(m, w, t, [&](std::uint64_t operations) {
    const task work = t.make_task(0, w, operations);
    switch (w.how) {
      case access::map:
      case access::map_each:
      case access::advised_map: launch(m, shape_of(m, w), sum_chunks(work, from.data())); break;
      case access::read_by_warp:
        launch(m, shape_with_scratch(m, w), copy_chunks<warp_group>(work, from.data()));
        break;
      case access::read_by_block:
        launch(m, shape_with_scratch(m, w), copy_chunks<block_group>(work, from.data()));
        break;
      case access::view:
      case access::view_several:
        launch(m, shape_of(m, w), load_words(work, from.data(), record_shift(w)));
        break;
      case access::gather:
        launch(m, shape_of(m, w), copy_records(work, from.data(), gathered.data()));
        break;
    }
  });
  if (w.how == access::gather) s.wrong_bytes = gathered.wrong_bytes(w);
  return s;
}

sample raw_write(mount& m, const writing& w, std::uint64_t operations) {
  const walk all = walk_of(w, operations, true);
  check_walk(all);
  const told t(m);
  const device_memory to(m, w.bytes);
  return timed(m, all, t, [&](std::uint64_t n) {
    launch(m, shape_with_scratch(m, all), store_chunks(t.make_task(0, all, n), to.data()));
  });
}

sample copy_engine(mount& m, std::uint64_t bytes, std::uint64_t chunk_bytes) {
  // Pinning is slow, so the source is small and copied repeatedly. It is larger than any cache of
  // the host's processor from which a device reads.
  const std::uint64_t source_bytes = std::min(bytes, std::uint64_t{256} << 20);
  const std::unique_ptr<runtime> device = make_runtime(m);
  const pinned_memory from(*device, source_bytes);
  for (std::uint64_t i = 0; i < source_bytes / 8; ++i)
    reinterpret_cast<std::uint64_t*>(from.data())[i] = word_at(i);
  const device_memory to(m, bytes);
  const std::unique_ptr<runtime::queue> queue = device->make_queue();
  const stopwatch watch;
  for (std::uint64_t at = 0; at < bytes; at += chunk_bytes) {
    queue->copy(to.data() + at, from.data() + at % source_bytes, std::min(chunk_bytes, bytes - at));
  }
  queue->wait();
  sample s;
  s.seconds = watch.seconds();
  s.cpu_seconds = watch.cpu_seconds();
  s.operations = (bytes + chunk_bytes - 1) / chunk_bytes;
  s.bytes = bytes;
  return s;
}

device_memory::device_memory(mount& m, std::uint64_t bytes)
    : mount_(m), data_(static_cast<char*>(m.allocate(bytes))), bytes_(bytes) {}
device_memory::~device_memory() { mount_.free(data_); }

void device_memory::copy_from_host(const void* from, std::uint64_t bytes) {
  if (bytes > bytes_) throw error(EINVAL, "bench: more bytes than the device memory has");
  mount_.copy_to_device(data_, from, bytes);
}

std::uint64_t device_memory::wrong_bytes(const walk& w) const {
  check_walk(w);
  if (w.operations * w.chunk_bytes > bytes_)
    throw error(EINVAL, "bench: more bytes than the device memory has");
  const told t(mount_);
  launch(mount_, shape_of(mount_, w), check_copy(t.make_task(0, w, w.operations), data_));
  mount_.synchronize();
  return t.wrong_bytes();
}

}  // namespace gpufs::bench
