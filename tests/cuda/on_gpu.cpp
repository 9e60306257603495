// `on_gpu [PROGRAM ARGUMENT...]` runs the program where a GPU can be used, and exits with 77 where
// none can, which CTest shows as a skipped test.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>

int main(int argc, char** argv) {
  constexpr int skipped = 77;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    std::printf("skipped: no GPU here (%s)\n",
                status == cudaSuccess ? "none is visible" : cudaGetErrorString(status));
    return skipped;
  }
  if (argc < 2) {
    std::printf("%d GPU(s)\n", count);
    return 0;
  }
  execvp(argv[1], argv + 1);
  std::perror(argv[1]);
  return 1;
}
