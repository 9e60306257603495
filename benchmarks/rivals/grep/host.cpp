#include "rivals/grep/host.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "gpufs/error.hpp"
#include "grep/late_nul.hpp"
#include "job/in_threads.hpp"
#include "rivals/grep/rivals.hpp"
#include "rivals/grep/text.hpp"

namespace gpufs::grep {

namespace {

constexpr std::uint64_t chunks_of_part = 8;      // fewer sections of counts than chunks
constexpr std::uint64_t padding_bytes_min = 64;  // what a search reads after its text

class part_searcher {
 public:
  part_searcher(const std::vector<file_item>& files, const key_table& keys, file_states& states,
                std::uint64_t chunk_bytes, findings& to)
      : files_(files), states_(states), chunk_bytes_(chunk_bytes), to_(to), searcher_(keys, to),
        buffer_(std::make_unique_for_overwrite<char[]>(lead_bytes + chunk_bytes + behind_bytes +
                                                       padding_bytes_min)) {}

  void search(const file_part& part) {
    if (states_.first_nul(part.file) < part.begin) return;
    const part_file file(files_[part.file].path.c_str());
    if (file.error() != 0) return states_.fail(part.file, file.error());
    for (std::uint64_t at = part.begin; at < part.end && search(part, file, at);
         at += chunk_bytes_) {
    }
    searcher_.end_section(part.file);
  }

 private:
  // Returns false if nothing after this chunk is wanted.
  bool search(const file_part& part, const part_file& file, std::uint64_t at) {
    const std::uint64_t wanted = std::min(chunk_bytes_, part.end - at);
    const std::int64_t got = file.read(buffer_.get(), at, wanted);
    if (got < 0) {
      states_.fail(part.file, static_cast<int>(-got));
      return false;
    }
    const char* const text = buffer_.get() + lead_bytes;
    const std::uint64_t bytes = std::min(wanted, static_cast<std::uint64_t>(got));
    to_.bytes += bytes;
    if (const void* nul = std::memchr(text, 0, bytes)) {
      states_.note_nul(part.file,
                       at + static_cast<std::uint64_t>(static_cast<const char*>(nul) - text));
      return false;
    }
    searcher_.search(
        text_in_file{buffer_.get(), lead_bytes + static_cast<std::uint32_t>(got), part.file, at},
        static_cast<std::uint32_t>(bytes));
    return bytes == wanted;
  }

  const std::vector<file_item>& files_;
  file_states& states_;
  const std::uint64_t chunk_bytes_;
  findings& to_;
  text_searcher searcher_;
  const std::unique_ptr<char[]> buffer_;
};

// One thread for each searcher. Threads take the parts in order.
void search_parts(const std::vector<file_part>& parts,
                  std::vector<std::unique_ptr<part_searcher>>& searchers) {
  std::atomic<std::size_t> next{0};
  job::in_threads(searchers.size(), [&](std::size_t t) {
    take_own_descriptors();
    for (std::size_t i = next++; i < parts.size(); i = next++) searchers[t]->search(parts[i]);
  });
}

struct searchers {
  std::vector<findings> found;
  std::vector<std::unique_ptr<part_searcher>> of_threads;
  searchers(const std::vector<file_item>& files, const key_table& keys, file_states& states,
            unsigned threads, std::uint64_t chunk_bytes)
      : found(threads) {
    for (findings& f : found)
      of_threads.push_back(std::make_unique<part_searcher>(files, keys, states, chunk_bytes, f));
  }
};

}  // namespace

void check_chunk(std::uint64_t bytes) {
  if (bytes < 4096 || bytes > (1u << 30) || bytes % 64 != 0)
    throw error(EINVAL, "grep: chunks of so many bytes");
}

result complete(const dictionary& d, const key_table& keys, const std::vector<file_item>& files,
                file_states& states, std::vector<findings>&& first, unsigned threads,
                std::uint64_t chunk_bytes) {
  std::vector<file_part> late;
  for (std::uint32_t file = 0; file < files.size(); ++file) {
    if (states.error(file) != 0 || states.first_nul(file) == no_nul) continue;
    try {
      const std::uint64_t bytes = counted_bytes(files[file].path, states.first_nul(file));
      if (bytes != 0) add_parts(late, file, bytes, chunks_of_part * chunk_bytes);
    } catch (const error& e) {
      states.fail(file, e.code().value());
    }
  }
  searchers work(files, keys, states, late.empty() ? 0 : threads, chunk_bytes);
  search_parts(late, work.of_threads);
  return put_together(d, files, states, std::move(first), std::move(work.found));
}

rival_result search_on_host(const dictionary& d, const std::vector<file_item>& files,
                            unsigned threads, std::uint64_t chunk_bytes) {
  check_chunk(chunk_bytes);
  const key_table keys(d.flat());
  file_states states(files.size());
  searchers work(files, keys, states, threads, chunk_bytes);
  const auto start = std::chrono::steady_clock::now();
  if (!d.words().empty())
    search_parts(cut_files(files, chunks_of_part * chunk_bytes), work.of_threads);
  result found = complete(d, keys, files, states, std::move(work.found), threads, chunk_bytes);
  return {std::move(found),
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

}  // namespace gpufs::grep
