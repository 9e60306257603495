#include "engine/files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <vector>

#include "common/owned_file.hpp"
#include "engine/content.cuh"
#include "engine/together.hpp"

namespace gpufs::bench {

namespace {

constexpr std::uint64_t part_bytes = std::uint64_t{4} << 20;
constexpr std::uint64_t files_in_folder = 1000;

unsigned writers() { return std::clamp(std::thread::hardware_concurrency(), 1u, 16u); }

void fill(std::vector<std::uint64_t>& words, std::uint64_t first_word) {
  for (std::uint64_t i = 0; i < words.size(); ++i) words[i] = word_at(first_word + i);
}

void write_words(const owned_file& file, const std::vector<std::uint64_t>& words,
                 std::uint64_t offset) {
  file.write(reinterpret_cast<const char*>(words.data()), words.size() * 8, offset);
}

std::uint64_t size_of(const owned_file& file, const std::string& path) {
  struct stat status{};
  if (fstat(file.fd(), &status) != 0) throw error(errno, "fstat", path);
  return static_cast<std::uint64_t>(status.st_size);
}

// Folder names have a fixed width, so all paths have the same length.
std::string numbered(std::uint64_t number, std::size_t width) {
  const std::string digits = std::to_string(number);
  return std::string(width > digits.size() ? width - digits.size() : 0, '0') + digits;
}

}  // namespace

void write_content(const std::string& path, std::uint64_t offset, std::uint64_t bytes) {
  const owned_file file(path, O_WRONLY | O_CREAT);
  const unsigned threads = writers();
  (void)run_together(threads, [&](unsigned thread, start_line& start) {
    std::vector<std::uint64_t> words;
    start.pass();
    for (std::uint64_t at = thread * part_bytes; at < bytes; at += threads * part_bytes) {
      words.resize(std::min(part_bytes, bytes - at) / 8);
      fill(words, (offset + at) / 8);
      write_words(file, words, offset + at);
    }
  });
}

bool holds_content(const std::string& path) {
  constexpr std::uint64_t samples = 64;
  const owned_file file(path);
  const std::uint64_t words = size_of(file, path) / 8;
  if (words < samples) return false;
  std::uint64_t right = 0;
  for (std::uint64_t i = 0; i < samples; ++i) {
    const std::uint64_t number = words / samples * i;
    std::uint64_t word = 0;
    file.read(reinterpret_cast<char*>(&word), sizeof word, number * 8);
    right += word == word_at(number) ? 1 : 0;
  }
  return right > samples / 2;
}

double cached_share(const std::string& path) {
  const owned_file file(path);
  const std::uint64_t bytes = size_of(file, path);
  if (bytes == 0) return 1;
  const owned_mapping mapped(path, bytes);
  const auto host_page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((bytes + host_page - 1) / host_page);
  if (mincore(mapped.data(), bytes, resident.data()) != 0) throw error(errno, "mincore", path);
  const auto pages =
      std::count_if(resident.begin(), resident.end(), [](unsigned char c) { return (c & 1) != 0; });
  return static_cast<double>(pages) / static_cast<double>(resident.size());
}

void drop_from_cache(const std::string& path) {
  const owned_file file(path);
  if (fsync(file.fd()) != 0) throw error(errno, "fsync", path);
  if (const int failed = posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED); failed != 0) {
    throw error(failed, "posix_fadvise", path);
  }
}

std::string small_file_path(const std::string& folder, std::uint64_t number) {
  return folder + "/" + numbered(number / files_in_folder, 6) + "/" +
         numbered(number % files_in_folder, 3);
}

std::uint64_t small_files_bytes(std::uint64_t first, std::uint64_t count) {
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < count; ++i) bytes += small_file_bytes(first + i);
  return bytes;
}

void write_small_files(const std::string& folder, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t i = first; i < first + count; i += files_in_folder - i % files_in_folder) {
    std::filesystem::create_directories(
        std::filesystem::path(small_file_path(folder, i)).parent_path());
  }
  const unsigned threads = writers();
  (void)run_together(threads, [&](unsigned thread, start_line& start) {
    std::vector<std::uint64_t> words;
    start.pass();
    for (std::uint64_t i = first + thread; i < first + count; i += threads) {
      words.resize(small_file_bytes(i) / 8);
      fill(words, small_file_first_word(i));
      write_words(owned_file(small_file_path(folder, i), O_WRONLY | O_CREAT | O_TRUNC), words, 0);
    }
  });
}

}  // namespace gpufs::bench
