// For libFuzzer: make fuzz. GPUFS_FUZZ_TARGET is the name of one of the targets.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fuzz/targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const gpufs::testing::fuzz_target& target : gpufs::testing::fuzz_targets())
    if (std::strcmp(target.name, GPUFS_FUZZ_TARGET) == 0) target.run({data, size});
  return 0;
}
