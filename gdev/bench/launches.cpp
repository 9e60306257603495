/**
 * What gdev adds to a launch: launches [--count N] [--blocks B]
 *
 * Launches empty kernels through gdev's library, and past it by the driver's own function, in one
 * process and in turn: what processes differ by is more than what is to be seen. Prints one line of
 * JSON with the microseconds of a launch in each block of N (5000), B (60) of both kinds. A first
 * block of each is not counted. Exit status: 0; 2 if it could not run or is not under gdev, with
 * one line on standard error.
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <vector>

#include "bench/launcher.hpp"

using namespace gdev_bench;

namespace {

/** Returns how many symbols a table of GNU hashes counts. */
std::uint32_t symbols_in(const std::uint32_t* table) {
  const std::uint32_t buckets = table[0];
  const std::uint32_t first = table[1];
  const std::uint32_t filter_words = table[2] * 2;
  const std::uint32_t* const bucket = table + 4 + filter_words;
  const std::uint32_t* const chain = bucket + buckets;
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < buckets; ++i) {
    last = bucket[i] > last ? bucket[i] : last;
  }
  while (last >= first && (chain[last - first] & 1) == 0) {
    ++last;
  }
  return last + 1;
}

/** Returns the address of a symbol, from the tables of a loaded library: dlsym() is gdev's here. */
void* symbol_of(const link_map& library, std::string_view name) {
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  std::uint32_t count = 0;
  for (const ElfW(Dyn)* one = library.l_ld; one->d_tag != DT_NULL; ++one) {
    const auto* const there = reinterpret_cast<const void*>(one->d_un.d_ptr);
    switch (one->d_tag) {
      case DT_SYMTAB: symbols = static_cast<const ElfW(Sym)*>(there); break;
      case DT_STRTAB: names = static_cast<const char*>(there); break;
      case DT_HASH: count = static_cast<const std::uint32_t*>(there)[1]; break;
      case DT_GNU_HASH: count = symbols_in(static_cast<const std::uint32_t*>(there)); break;
      default: break;
    }
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    if (symbols[i].st_value != 0 && names + symbols[i].st_name == name) {
      return reinterpret_cast<void*>(library.l_addr + symbols[i].st_value);
    }
  }
  return nullptr;
}

/** Returns the driver's own cuLaunchKernel: not that of the library where `known` is. */
gpu::launch_function past(const void* known) {
  Dl_info gdev{};
  link_map* first = nullptr;
  if (dladdr(known, &gdev) == 0 ||
      dlinfo(dlopen(nullptr, RTLD_NOW), RTLD_DI_LINKMAP, &first) != 0) {
    fail("the loaded libraries are not known");
  }
  for (const link_map* one = first; one != nullptr; one = one->l_next) {
    const bool is_driver =
        std::string_view(one->l_name).find("libcuda.so") != std::string_view::npos;
    if (is_driver && one->l_addr != reinterpret_cast<ElfW(Addr)>(gdev.dli_fbase)) {
      if (void* const found = symbol_of(*one, "cuLaunchKernel"); found != nullptr) {
        return reinterpret_cast<gpu::launch_function>(found);
      }
    }
  }
  fail("it does not run under gdev (gdev bench launches)");
}

double block(gpu& on, gpu::launch_function by, std::uint64_t count) {
  const double begin = now_s();
  for (std::uint64_t i = 0; i < count; ++i) {
    on.launch(0, by);
  }
  const double us = (now_s() - begin) * 1e6 / static_cast<double>(count);
  on.wait();
  return us;
}

void print(const char* name, const std::vector<double>& values, const char* after) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::printf("%s%.5f", i == 0 ? "" : ", ", values[i]);
  }
  std::printf("]%s", after);
}

}  // namespace

int main(int count, char** values) {
  const options chosen(count - 1, values + 1);
  const driver with;
  gpu on(with);
  const gpu::launch_function ways[] = {past(reinterpret_cast<const void*>(on.launcher())),
                                       on.launcher()};
  const std::uint64_t launches = chosen.number("--count", 5000);
  const std::uint64_t blocks = chosen.number("--blocks", 60);
  std::vector<double> us[2];
  for (std::uint64_t i = 0; i <= blocks; ++i) {
    for (const std::size_t which : {i % 2, 1 - i % 2}) {
      const double one = block(on, ways[which], launches);
      if (i != 0) {
        us[which].push_back(one);
      }
    }
  }
  std::printf("{");
  print("past_us", us[0], ", ");
  print("gdev_us", us[1], "}\n");
}
