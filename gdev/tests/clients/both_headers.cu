/**
 * A program that uses gpufs's calls of device code and gdev's g* calls in one source, without
 * qualified names: gopen() and gclose() are both. Prints the errno of gclose(-1), which needs no GPU.
 */
#include <cstdio>

#include "gdev/gdev.h"
#include "gpufs/gpufs.cuh"

using namespace gpufs;

/** Never launched: it shows that device code finds gpufs's. */
__global__ void open_and_close(mount_ref fs, const char* path, std::int32_t* result) {
  const block_group members;
  const std::int32_t file = gopen(members, fs, path, 0);
  *result = file < 0 ? file : gclose(members, fs, file);
}

int main() {
  std::printf("%d\n", -gclose(-1));
  return 0;
}
