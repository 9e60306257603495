/*
 * Adds two matrices by the g* calls (gdev/gdev.h), as a C program.
 *
 *   matrix_addition PTX ROWS COLUMNS
 *
 * PTX: the file of tests/kernels.cu. A vector has one row. Runs with and without gdev.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gdev/gdev.h"

/* Ends the program if a call failed. */
static void check(int result, const char* what) {
  if (result < 0) {
    fprintf(stderr, "%s: %s\n", what, strerror(-result));
    exit(1);
  }
}

/* Reads a file, which the caller frees. */
static char* read_file(const char* path, size_t* bytes) {
  FILE* const file = fopen(path, "rb");
  char* content = NULL;
  long size = -1;
  if (file != NULL && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) > 0) {
    rewind(file);
    content = malloc((size_t)size);
  }
  if (content == NULL || fread(content, 1, (size_t)size, file) != (size_t)size) {
    perror(path);
    exit(1);
  }
  fclose(file);
  *bytes = (size_t)size;
  return content;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s PTX ROWS COLUMNS\n", argv[0]);
    return 2;
  }
  uint32_t rows = (uint32_t)strtoul(argv[2], NULL, 10);
  uint32_t columns = (uint32_t)strtoul(argv[3], NULL, 10);
  const size_t count = (size_t)rows * columns;
  const size_t bytes = count * sizeof(uint32_t);
  size_t image_bytes = 0;
  char* const image = read_file(argv[1], &image_bytes);

  const ghandle gpu = gopen(0);
  check(gpu, "gopen");
  /* On the device: left, right, sum. On the host, pinned: the same. */
  CUdeviceptr on_device[3];
  void* on_host[3];
  for (int i = 0; i < 3; ++i) {
    check(gmalloc(gpu, &on_device[i], bytes), "gmalloc");
    check(gmalloc_dma(gpu, &on_host[i], bytes), "gmalloc_dma");
  }
  uint32_t* const left = on_host[0];
  uint32_t* const right = on_host[1];
  const uint32_t* const sum = on_host[2];
  for (size_t i = 0; i < count; ++i) {
    left[i] = (uint32_t)i;
    right[i] = (uint32_t)(7 * i + 1);
  }

  /* All is submitted without waiting, and runs in this order. */
  check(gmemcpy_to_device_async(gpu, on_device[0], left, bytes, NULL), "gmemcpy_to_device_async");
  check(gmemcpy_to_device_async(gpu, on_device[1], right, bytes, NULL), "gmemcpy_to_device_async");
  void* parameters[] = {&on_device[2], &on_device[0], &on_device[1], &rows, &columns};
  gkernel kernel = {0};
  kernel.image = image;
  kernel.image_bytes = image_bytes;
  kernel.entry = "gdev_add_matrices";
  kernel.grid[0] = (columns + 31) / 32;
  kernel.grid[1] = (rows + 7) / 8;
  kernel.grid[2] = 1;
  kernel.block[0] = 32;
  kernel.block[1] = 8;
  kernel.block[2] = 1;
  kernel.parameters = parameters;
  kernel.parameter_count = 5;
  check(glaunch(gpu, &kernel, NULL), "glaunch");
  uint64_t id = 0;
  check(gmemcpy_from_device_async(gpu, on_host[2], on_device[2], bytes, &id),
        "gmemcpy_from_device_async");
  check(gsync(gpu, id, -1), "gsync");

  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    wrong += sum[i] != left[i] + right[i];
  }
  check(gclose(gpu), "gclose"); /* frees all the memory */
  free(image);
  printf("%zu of %zu sums are wrong\n", wrong, count);
  return wrong == 0 ? 0 : 1;
}
