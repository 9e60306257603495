/**
 * The search tasks of figures 12 and 13 of Gdev (ATC 2012):
 * search [--bytes N] [--repeats R] [--seed S]
 *
 * Fills N bytes of device memory with text, and counts a pattern in all of it R times. R = 0: until
 * SIGTERM. Each repeat also replaces every letter of text and pattern by the next one of its kind,
 * so a part of the text that is lost or is that of another repeat changes the count.
 *
 * Prints a line of JSON when the text is there, and one at the end with the time at the program's
 * begin and end (CLOCK_REALTIME, seconds) and the number of wrong counts.
 */
#include <csignal>
#include <ctime>

#include "bench/memory.hpp"

namespace gdev_bench {
namespace {

// Text is of small letters, patterns of capital ones: patterns are only where they were planted.
constexpr unsigned alphabet = 16;
constexpr unsigned pattern_bytes = 12;
// Each slot of the text has one pattern, or none.
constexpr unsigned slot_bytes = 1024;
constexpr unsigned threads = 256;
constexpr unsigned most_blocks = 4096;

struct pattern {
  char letters[pattern_bytes];
};

/** Returns letter `i` of the pattern, in repeat `repeat`. Neighbours differ. */
__host__ __device__ char pattern_letter(unsigned i, std::size_t repeat) {
  return static_cast<char>('A' + (i * i + 3 * i + repeat) % alphabet);
}

/** Returns where the pattern begins in slot `slot`, or `slot_bytes` if it has none. */
__host__ __device__ unsigned planted_at(std::uint64_t seed, std::size_t slot) {
  const std::uint64_t chosen = hash(seed ^ hash(slot));
  if (chosen % 2 == 0) {
    return slot_bytes;
  }
  return static_cast<unsigned>((chosen >> 1) % (slot_bytes - pattern_bytes));
}

__device__ char next_letter(char letter) {
  const char first = letter >= 'a' ? 'a' : 'A';
  return static_cast<char>(first + (letter - first + 1) % alphabet);
}

__global__ void write_text(std::uint64_t seed, std::size_t bytes, char* text) {
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const unsigned begin = planted_at(seed, i / slot_bytes);
    const unsigned offset = i % slot_bytes;
    text[i] = offset >= begin && offset - begin < pattern_bytes
                  ? pattern_letter(offset - begin, 0)
                  : static_cast<char>('a' + hash(seed + i) % alphabet);
  }
}

/**
 * Counts the places where `wanted` begins, and replaces each letter. Each block takes whole slots.
 * A pattern lies within a slot.
 */
__global__ void count_and_change(pattern wanted, std::size_t bytes, char* text,
                                 unsigned long long* count) {
  __shared__ char slot[slot_bytes];
  unsigned own = 0;
  for (std::size_t first = std::size_t{blockIdx.x} * slot_bytes; first < bytes;
       first += std::size_t{gridDim.x} * slot_bytes) {
    for (unsigned i = threadIdx.x; i < slot_bytes; i += threads) {
      slot[i] = text[first + i];
      text[first + i] = next_letter(slot[i]);
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i <= slot_bytes - pattern_bytes; i += threads) {
      unsigned same = 0;
      while (same < pattern_bytes && slot[i + same] == wanted.letters[same]) ++same;
      own += same == pattern_bytes ? 1 : 0;
    }
    __syncthreads();
  }
  if (own != 0) {
    atomicAdd(count, own);
  }
}

double now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

volatile std::sig_atomic_t is_stopped = 0;

int search(std::size_t bytes, std::size_t repeats, std::uint64_t seed, double start) {
  const std::size_t slots = bytes / slot_bytes;
  unsigned long long planted = 0;
  for (std::size_t i = 0; i < slots; ++i) planted += planted_at(seed, i) < slot_bytes ? 1 : 0;

  const auto blocks = static_cast<unsigned>(std::min<std::size_t>(slots, most_blocks));
  const device_array<char> text(bytes);
  const device_array<unsigned long long> count(1);
  write_text<<<blocks, threads>>>(seed, bytes, text.data());
  check_launch();
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const double filled = now();
  std::printf("{\"program\": \"search\", \"filled\": %.6f}\n", filled);
  std::fflush(stdout);

  std::size_t done = 0;
  std::size_t wrong = 0;
  for (; (repeats == 0 || done < repeats) && is_stopped == 0; ++done) {
    pattern wanted{};
    for (unsigned i = 0; i < pattern_bytes; ++i) wanted.letters[i] = pattern_letter(i, done);
    check(cudaMemset(count.data(), 0, sizeof planted), "cudaMemset");
    count_and_change<<<blocks, threads>>>(wanted, bytes, text.data(), count.data());
    check_launch();
    unsigned long long found = 0;
    count.copy_to(&found, 1);
    wrong += found == planted ? 0 : 1;
  }
  std::printf(
      "{\"program\": \"search\", \"bytes\": %zu, \"repeats\": %zu, \"planted\": %llu, "
      "\"wrong\": %zu, \"start\": %.6f, \"filled\": %.6f, \"end\": %.6f}\n",
      bytes, done, planted, wrong, start, filled, now());
  return wrong == 0 ? 0 : wrong_result;
}

}  // namespace
}  // namespace gdev_bench

int main(int argc, char** argv) {
  using namespace gdev_bench;
  const double start = now();
  arguments given(argc, argv);
  const std::size_t bytes = given.number("--bytes", std::size_t{128} << 20);
  const std::size_t repeats = given.number("--repeats", 1000);
  const std::size_t seed = given.number("--seed", 1);
  given.finish();
  if (bytes == 0 || bytes % slot_bytes != 0) {
    fail("--bytes: a positive multiple of " + std::to_string(slot_bytes) + " is needed");
  }
  if (std::signal(SIGTERM, [](int) { is_stopped = 1; }) == SIG_ERR) {
    fail("signal: SIGTERM cannot be handled");
  }
  return search(bytes, repeats, seed, start);
}
