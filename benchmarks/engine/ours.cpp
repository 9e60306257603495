// Opens and writes through gpufs. Compiled by nvcc if there is one, otherwise by the host compiler.
#include "engine/files.hpp"
#include "engine/launch.cuh"

namespace gpufs::bench {

namespace {

std::int32_t open_as(mount& m, const std::string& path, std::int32_t flags) {
  const device_path device(m, path);
  const device_array<std::int32_t> fd(m, 1);
  launch(m, {1, 32, 0, nullptr}, open_kernel{device.data(), flags, fd.data()});
  m.synchronize();
  std::int32_t opened = 0;
  m.copy_to_host(&opened, fd.data(), sizeof opened);
  if (opened < 0) throw error(-opened, "gopen", path);
  return opened;
}

void close_file(mount& m, std::int32_t fd, const told& t) {
  launch(m, {1, 256, 0, nullptr}, close_kernel(fd, t.data()));
}

// Launches a walk of warps that write from `from`, or from scratch memory if it is null.
void launch_writes(mount& m, const walk& w, const task& work, const char* from) {
  constexpr std::uint32_t at_once = write_chunks::blocks_per_multiprocessor;
  launch(m, from == nullptr ? shape_with_scratch(m, w, at_once) : shape_of(m, w, at_once),
         write_chunks(work, from));
}

}  // namespace

std::int32_t open_file(mount& m, const std::string& path) { return open_as(m, path, O_RDONLY); }

sample write_file(mount& m, const std::string& path, const plain_memory& content,
                  const writing& w) {
  const walk all = walk_of(w, w.bytes / w.chunk_bytes, false);
  check_walk(all);
  const told t(m);
  const std::int32_t fd = open_as(m, path, O_RDWR | O_CREAT);
  return timed(m, all, t, [&](std::uint64_t operations) {
    launch_writes(m, all, t.make_task(fd, all, operations), content.data());
    close_file(m, operations == 0 ? -1 : fd, t);
  });
}

sample write_cached(mount& m, const std::string& path, const writing& w, std::uint64_t operations) {
  const walk fill = walk_of(w, w.bytes / w.chunk_bytes, false), all = walk_of(w, operations, true);
  check_walk(all);
  const told t(m);
  const std::int32_t fd = open_as(m, path, O_RDWR | O_CREAT | O_TRUNC);
  launch_writes(m, fill, t.make_task(fd, fill, fill.operations), nullptr);
  const sample s = timed(
      m, all, t, [&](std::uint64_t n) { launch_writes(m, all, t.make_task(fd, all, n), nullptr); });
  close_file(m, fd, t);
  m.synchronize();
  return s;
}

sample append(mount& m, const std::string& path, const writing& w) {
  walk all = walk_of(w, w.bytes / w.chunk_bytes, false);
  all.span_bytes = std::bit_ceil(w.bytes);
  const told t(m);
  const std::int32_t fd = open_as(m, path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND);
  const sample s = timed(
      m, all, t, [&](std::uint64_t n) { launch_writes(m, all, t.make_task(fd, all, n), nullptr); });
  close_file(m, fd, t);
  m.synchronize();
  return s;
}

void touch_extents(mount& m, std::int32_t fd, std::uint64_t bytes) {
  const std::uint64_t stride = m.options().extent_bytes;
  launch(m, {16, 32, 0, nullptr}, touch_kernel{fd, (bytes + stride - 1) / stride, stride});
  m.synchronize();
}

sample open_small_files(mount& m, const std::string& folder, std::uint64_t first,
                        std::uint64_t count) {
  std::vector<char> paths;
  const std::uint64_t stride = small_file_path(folder, first + count).size() + 1;
  paths.resize(count * stride);
  for (std::uint64_t i = 0; i < count; ++i)
    small_file_path(folder, first + i).copy(paths.data() + i * stride, stride - 1);
  const told t(m);
  const device_array<char> device_paths(m, paths);
  walk w;
  w.operations = count;
  sample s = timed(m, w, t, [&](std::uint64_t operations) {
    launch(m, shape_of(m, w),
           small_files_kernel(device_paths.data(), stride, first, operations, t.data()));
  });
  s.bytes = small_files_bytes(first, count);
  return s;
}

sample reopen(mount& m, const std::string& path, std::uint64_t operations) {
  const device_path device(m, path);
  (void)open_file(m, path);  // stays open as long as the mount
  const told t(m);
  walk w;
  w.operations = operations;
  return timed(m, w, t, [&](std::uint64_t n) {
    launch(m, shape_of(m, w), reopen_kernel(device.data(), n, t.data()));
  });
}

}  // namespace gpufs::bench
