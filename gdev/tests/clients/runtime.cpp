/**
 * A program of the runtime API, linked with the static or the shared runtime: asks for the devices.
 *
 * Prints the runtime's error too: the runtime asks for private tables, which the simulated driver
 * does not have.
 */
#include <cuda_runtime_api.h>

#include "clients/work.hpp"

int main() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  std::printf("%d %d\n", static_cast<int>(error), devices);
  print_status(0);
}
