/**
 * A thread loads a library that calls the driver (slow_library.cpp); meanwhile another makes its
 * first call: loading LIBRARY
 */
#include <cuda.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <thread>

int main(int /*count*/, char** arguments) {
  std::thread loads([&] {
    if (dlopen(arguments[1], RTLD_NOW) == nullptr) {
      std::printf("%s\n", dlerror());
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  int version = 0;
  const CUresult result = cuDriverGetVersion(&version);
  loads.join();
  std::printf("%d %d\n", static_cast<int>(result), version);
}
