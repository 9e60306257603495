// A kernel of a user with 14 calls for one group: what benchmarks/compile_times.py compiles.
#include "gpufs/launch.cuh"

__global__ void fourteen_calls(gpufs::mount_ref fs, const char* from, const char* to, char* buffer,
                               std::int64_t* results) {
  const auto warp = gpufs::this_warp();
  const std::int32_t fd = gopen(warp, fs, from, O_RDWR | O_CREAT);
  gpufs::file_status status;
  results[0] = gfstat(warp, fs, fd, status);
  results[1] = gread(warp, fs, fd, buffer, 4096, 0);
  results[2] = gwrite(warp, fs, fd, buffer, 4096, 8192);
  const gpufs::mapping map = gmmap(warp, fs, fd, 0, 100);
  results[3] = map.bytes > 0 ? map.data[0] : 0;
  results[4] = gmunmap(warp, fs, map);
  results[5] = gread_each(warp, fs, fd, buffer + warp.rank() * 64, 64, warp.rank() * 64);
  results[6] = gfadvise(warp, fs, fd, 0, 0, POSIX_FADV_WILLNEED);
  results[7] = gfsync(warp, fs, fd);
  results[8] = gftruncate(warp, fs, fd, 100);
  const gpufs::writable_mapping writable = gmmap_write(warp, fs, fd, 0, 50);
  results[9] = gmsync(warp, fs, writable);
  results[10] = gmunmap(warp, fs, writable);
  results[11] = gclose(warp, fs, fd);
  results[12] = grename(warp, fs, from, to);
  results[13] = gunlink(warp, fs, to);
}
