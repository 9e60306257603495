/**
 * A program that uses the g* calls as it is told to, line by line. It is linked with libgdev.so.
 *
 * Each line is answered by one: "ok", the result if it is not 0, and what was stored; or "error N":
 * an errno. A line is the name of a call and its arguments: numbers for numbers and addresses; "_"
 * for a place of something that is to be stored, or "null"; a name of gexport() in hexadecimal
 * digits; "_" for the kernel that the last line "kernel" described:
 *
 *   kernel IMAGE ENTRY GRID BLOCK PARAMETERS
 *                            IMAGE: "tests" for the tests' kernels, or a text; "null" for none.
 *                            GRID, BLOCK: in x, with 1 in y and z. Parameters: 8-byte numbers, with
 *                            a dash 4-byte ones, or "null"; "none": a null array of one
 *   host BYTES               ordinary memory of the host
 *   poke P VALUE COUNT       sets 4-byte numbers of the host: VALUE, VALUE + 1, ...
 *   peek P COUNT             returns them
 *   threads H TIMES          four threads that use one handle
 *   racing_close H           closes the handle while four threads use it
 *   fork                     the child answers from now on
 */
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gdev/gdev.h"

namespace {

using values = std::vector<std::uint32_t>;
using line_words = std::istringstream;

std::string next_word(line_words& line) {
  std::string found;
  line >> found;
  return found;
}

template <typename Number>
Number next_number(line_words& line) {
  return static_cast<Number>(std::stoll(next_word(line)));
}

template <typename Type>
Type* next_pointer(line_words& line) {
  return reinterpret_cast<Type*>(next_number<std::uintptr_t>(line));
}

// --- Kernels ---

/** Returns the tests' kernels, as PTX. */
const std::string& tests_image() {
  static const std::string read = [] {
    std::ifstream file(std::getenv("KERNELS"));
    return std::string{std::istreambuf_iterator<char>(file), {}};
  }();
  return read;
}

/** A kernel of the tests, without parameters. */
gkernel whole_kernel(const char* entry) {
  gkernel made{};
  made.image = tests_image().data();
  made.image_bytes = tests_image().size();
  made.entry = entry;
  std::fill_n(made.grid, 3, 1U);
  std::fill_n(made.block, 3, 1U);
  made.block[0] = 32;
  return made;
}

/** A kernel as a line describes it, with all that it points to. */
struct described_kernel {
  std::string image;
  std::string entry;
  std::vector<std::uint64_t> numbers;
  std::vector<void*> parameters;
  gkernel kernel{};
};

described_kernel described;

void describe_kernel(line_words& line) {
  described = {};
  described.image = next_word(line);
  described.entry = next_word(line);
  described.kernel = whole_kernel(described.entry == "null" ? nullptr : described.entry.c_str());
  if (described.image != "tests") {
    described.kernel.image = described.image == "null" ? nullptr : described.image.data();
    described.kernel.image_bytes = described.image.size();
  }
  described.kernel.grid[0] = next_number<unsigned>(line);
  described.kernel.block[0] = next_number<unsigned>(line);
  described.numbers.reserve(8);
  for (std::string text; line >> text;) {
    if (text == "none") {
      described.kernel.parameter_count = 1;
      return;
    }
    const bool is_short = text.front() == '-';  // little-endian: then the low half is the number
    described.numbers.push_back(text == "null" ? 0 : std::stoull(text.substr(is_short ? 1 : 0)));
    described.parameters.push_back(text == "null" ? nullptr : &described.numbers.back());
  }
  described.kernel.parameters = described.parameters.data();
  described.kernel.parameter_count = described.parameters.size();
}

// --- Arguments of calls: read from a line; what was stored is printed ---

/** A number or an address. */
template <typename Type>
struct argument {
  Type value;
  explicit argument(line_words& line) {
    if constexpr (std::is_pointer_v<Type>) {
      value = next_pointer<std::remove_pointer_t<Type>>(line);
    } else {
      value = next_number<Type>(line);
    }
  }
  Type pass() { return value; }
  void print(std::ostream& /*said*/) const {}
};

/** A place for what the call stores. */
template <typename Type>
struct place {
  Type stored{};
  bool is_null;
  explicit place(line_words& line) : is_null(next_word(line) == "null") {}
  Type* pass() { return is_null ? nullptr : &stored; }
  void print(std::ostream& said) const {
    if constexpr (std::is_pointer_v<Type>) {
      said << ' ' << reinterpret_cast<std::uintptr_t>(stored);
    } else if constexpr (std::is_integral_v<Type>) {
      said << ' ' << stored;
    } else {
      said << ' ' << std::hex << std::setfill('0');
      for (const unsigned byte : std::bit_cast<std::array<unsigned char, sizeof stored>>(stored)) {
        said << std::setw(2) << byte;
      }
    }
  }
};

template <>
struct argument<int*> : place<int> {
  using place::place;
};
template <>
struct argument<std::uint64_t*> : place<std::uint64_t> {
  using place::place;
};
template <>
struct argument<CUdeviceptr*> : place<CUdeviceptr> {
  using place::place;
};
template <>
struct argument<void**> : place<void*> {
  using place::place;
};
template <>
struct argument<gname*> : place<gname> {
  using place::place;
};

template <>
struct argument<const gname*> {
  std::array<unsigned char, sizeof(gname)> bytes{};
  gname name{};
  bool is_null;
  explicit argument(line_words& line) {
    const std::string text = next_word(line);
    is_null = text == "null";
    for (std::size_t i = 0; !is_null && i < bytes.size(); ++i) {
      bytes[i] = static_cast<unsigned char>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
    }
    name = std::bit_cast<gname>(bytes);
  }
  const gname* pass() const { return is_null ? nullptr : &name; }
  void print(std::ostream& /*said*/) const {}
};

template <>
struct argument<const gkernel*> {
  bool is_null;
  explicit argument(line_words& line) : is_null(next_word(line) == "null") {}
  const gkernel* pass() const { return is_null ? nullptr : &described.kernel; }
  void print(std::ostream& /*said*/) const {}
};

using command = std::function<int(line_words&, std::ostream&)>;

/** Returns the command that reads a call's arguments, calls it, and prints what it stored. */
template <typename... Types>
command call(int (*function)(Types...)) {
  return [function](line_words& line, std::ostream& said) {
    std::tuple<argument<Types>...> arguments{argument<Types>(line)...};
    return std::apply(
        [&](auto&... each) {
          const int result = function(each.pass()...);
          if (result > 0) {
            said << ' ' << result;
          }
          (each.print(said), ...);
          return std::min(result, 0);
        },
        arguments);
  };
}

// --- Commands of the tests ---

/** Allocates, fills by a copy, adds by a kernel, copies back, checks and frees. */
int use_once(ghandle handle, std::uint32_t value) {
  constexpr std::uint64_t count = 256;
  std::uint64_t numbers = count;
  std::uint32_t increment = 5;
  CUdeviceptr address = 0;
  values filled(count, value);
  int result = gmalloc(handle, &address, 4 * count);
  if (result == 0) {
    result = gmemcpy_to_device(handle, address, filled.data(), 4 * count);
  }
  std::uint64_t id = 0;
  if (result == 0) {
    const std::array<void*, 3> parameters{&address, &numbers, &increment};
    gkernel made = whole_kernel("gdev_add");
    made.parameters = parameters.data();
    made.parameter_count = parameters.size();
    result = glaunch(handle, &made, &id);
  }
  if (result == 0) {
    result = gsync(handle, id, -1);
  }
  if (result == 0) {
    result = gmemcpy_from_device(handle, filled.data(), address, 4 * count);
  }
  if (result == 0 && filled != values(count, value + increment)) {
    return -EILSEQ;
  }
  return result == 0 ? gfree(handle, address) : result;
}

/** Calls call(i) in four threads, and meanwhile() here. Returns the first error. */
template <typename Call, typename Meanwhile>
int in_threads(Call&& call, Meanwhile&& meanwhile) {
  std::array<int, 4> results{};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = call(static_cast<std::uint32_t>(i)); });
  }
  const int own = meanwhile();
  for (std::thread& one : threads) {
    one.join();
  }
  const auto* const failed =
      std::find_if(results.begin(), results.end(), [](int result) { return result != 0; });
  return own != 0 || failed == results.end() ? own : *failed;
}

int use_in_threads(ghandle handle, std::uint64_t times) {
  return in_threads(
      [&](std::uint32_t which) {
        int result = 0;
        for (std::uint64_t i = 0; i < times && result == 0; ++i) {
          result = use_once(handle, 1000 * which + static_cast<std::uint32_t>(i));
        }
        return result;
      },
      [] { return 0; });
}

int close_in_use(ghandle handle) {
  std::atomic<int> uses{0};
  std::atomic<bool> has_ended{false};  // a thread, for whatever reason
  return in_threads(
      [&](std::uint32_t which) {
        int result = 0;
        while (result == 0) {
          result = use_once(handle, which);
          ++uses;
        }
        has_ended = true;
        return result == -EBADF ? 0 : result;
      },
      [&] {
        while (uses < 20 && !has_ended) {
          std::this_thread::yield();
        }
        return gclose(handle);
      });
}

int poke(line_words& line) {
  auto* const to = next_pointer<std::uint32_t>(line);
  const auto first = next_number<std::uint32_t>(line);
  std::iota(to, to + next_number<std::size_t>(line), first);
  return 0;
}

int peek(line_words& line, std::ostream& said) {
  const auto* const from = next_pointer<const std::uint32_t>(line);
  said << ' ';
  std::copy_n(from, next_number<std::size_t>(line),
              std::ostream_iterator<std::uint32_t>(said, " "));
  return 0;
}

int obey(line_words& line, std::ostream& said) {
  static const std::map<std::string, command> commands{
      {"gdevice_count", call(gdevice_count)},
      {"gopen", call(gopen)},
      {"gclose", call(gclose)},
      {"guse", call(guse)},
      {"gmalloc", call(gmalloc)},
      {"gfree", call(gfree)},
      {"gmalloc_dma", call(gmalloc_dma)},
      {"gfree_dma", call(gfree_dma)},
      {"gvirtget", call(gvirtget)},
      {"gmemcpy_to_device", call(gmemcpy_to_device)},
      {"gmemcpy_from_device", call(gmemcpy_from_device)},
      {"gmemcpy", call(gmemcpy)},
      {"gmemcpy_to_device_async", call(gmemcpy_to_device_async)},
      {"gmemcpy_from_device_async", call(gmemcpy_from_device_async)},
      {"gmemcpy_async", call(gmemcpy_async)},
      {"glaunch", call(glaunch)},
      {"gsync", call(gsync)},
      {"gbarrier", call(gbarrier)},
      {"gquery", call(gquery)},
      {"gtune", call(gtune)},
      {"gexport", call(gexport)},
      {"gref", call(gref)},
      {"gunref", call(gunref)},
      {"gshmget", call(gshmget)},
      {"gshmat", call(gshmat)},
      {"gshmdt", call(gshmdt)},
      {"kernel",
       [](line_words& words, std::ostream&) {
         describe_kernel(words);
         return 0;
       }},
      {"host",
       [](line_words& words, std::ostream& answer) {
         answer << ' '
                << reinterpret_cast<std::uintptr_t>(std::malloc(next_number<std::size_t>(words)));
         return 0;
       }},
      {"poke", [](line_words& words, std::ostream&) { return poke(words); }},
      {"peek", peek},
      {"threads",
       [](line_words& words, std::ostream&) {
         const auto handle = next_number<ghandle>(words);
         return use_in_threads(handle, next_number<std::uint64_t>(words));
       }},
      {"racing_close",
       [](line_words& words, std::ostream&) { return close_in_use(next_number<ghandle>(words)); }},
  };
  return commands.at(next_word(line))(line, said);
}

}  // namespace

int main() {
  for (std::string text; std::getline(std::cin, text);) {
    if (text == "fork") {
      if (const pid_t child = fork(); child > 0) {
        int status = 0;
        waitpid(child, &status, 0);
        return status;
      }
      std::cout << "ok " << getpid() << std::endl;
      continue;
    }
    line_words line(text);
    std::ostringstream said;
    const int result = obey(line, said);
    if (result == 0) {
      std::cout << "ok" << said.str() << std::endl;
    } else {
      std::cout << "error " << -result << std::endl;
    }
  }
}
