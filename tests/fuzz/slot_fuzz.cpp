// For libFuzzer: make fuzz.
#include <cstddef>
#include <cstdint>

#include "fuzz/slot_fuzzer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static gpufs::testing::slot_fuzzer fuzzer;
  fuzzer.run({data, size});
  return 0;
}
