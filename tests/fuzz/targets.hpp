// The parsers of bytes that others write, each as a function of any bytes. It ends the program when
// the parser does what it should not. libFuzzer drives them (make fuzz), and
// tests/fuzz/corpus_test.cpp does without it. A new one needs a line in targets.cpp, one in
// tests/CMakeLists.txt, and a folder corpus/NAME with inputs to begin with.
#pragma once

#include <cstdint>
#include <span>

namespace gpufs::testing {

struct fuzz_target {
  const char* name;
  const char* text;  // what it feeds
  void (*run)(std::span<const std::uint8_t> input);
  unsigned inputs;  // made-up ones of a step of the test: some milliseconds
};

std::span<const fuzz_target> fuzz_targets();

void fuzz_slots(std::span<const std::uint8_t> input);
void fuzz_text(std::span<const std::uint8_t> input);
void fuzz_format(std::span<const std::uint8_t> input);
void fuzz_words(std::span<const std::uint8_t> input);
void fuzz_grep(std::span<const std::uint8_t> input);
void fuzz_paths(std::span<const std::uint8_t> input);

}  // namespace gpufs::testing
