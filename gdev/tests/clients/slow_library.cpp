/** A library that uses the driver while the loader loads it, as extension modules do. */
#include <cuda.h>
#include <dlfcn.h>

#include <chrono>
#include <thread>

namespace {

__attribute__((constructor)) void use_driver() {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  int version = 0;
  const auto ask =
      reinterpret_cast<decltype(&cuDriverGetVersion)>(dlsym(RTLD_DEFAULT, "cuDriverGetVersion"));
  ask(&version);
}

}  // namespace
