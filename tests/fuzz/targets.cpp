#include "fuzz/targets.hpp"

namespace gpufs::testing {
namespace {

constexpr fuzz_target all[] = {
    {"slot", "requests in the channel", fuzz_slots, 20},
    {"text", "numbers, tokens and searches of device code", fuzz_text, 2000},
    {"format", "formats and their arguments", fuzz_format, 2000},
    {"words", "word lists of grep", fuzz_words, 2000},
    {"grep", "texts and words that are searched for", fuzz_grep, 20},
    {"paths", "paths below a root", fuzz_paths, 20},
};

}  // namespace

std::span<const fuzz_target> fuzz_targets() { return all; }

}  // namespace gpufs::testing
