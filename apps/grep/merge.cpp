#include "merge.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <numeric>
#include <thread>

namespace gpufs::grep {

namespace {

constexpr unsigned threads_max = 16;
constexpr std::size_t counts_per_thread = 50'000;  // fewer are not worth a thread

struct ranked_counts {
  std::uint32_t rank;
  std::uint32_t count;
  const word_count* first;
};

// The chosen counts in the order of their files' ranks: a counting sort, since there are as many ranks as files.
std::vector<ranked_counts> sort_by_rank(const std::vector<count_source>& sources, const std::vector<std::uint32_t>& files_by_path) {
  std::vector<std::uint32_t> rank_of_file(files_by_path.size());
  for (std::size_t rank = 0; rank < files_by_path.size(); ++rank) rank_of_file[files_by_path[rank]] = static_cast<std::uint32_t>(rank);
  const auto for_each_wanted = [&](const auto& use) {
    for (const count_source& source : sources) {
      for (const item_counts& counts : source.collected->counts()) {
        const std::uint32_t file = (*source.file_of_item)[counts.item];
        if (source.wanted[file]) use(rank_of_file[file], counts);
      }
    }
  };
  std::vector<std::size_t> begin(files_by_path.size() + 1, 0);
  for_each_wanted([&](std::uint32_t rank, const item_counts&) { ++begin[rank + 1]; });
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<ranked_counts> sorted(begin.back());
  for_each_wanted([&](std::uint32_t rank, const item_counts& counts) { sorted[begin[rank]++] = {rank, counts.count, counts.first}; });
  return sorted;
}

// One thread's part, which holds whole files.
void add_up(const ranked_counts* first, const ranked_counts* last, const std::vector<std::uint32_t>& files_by_path, std::vector<match>& out) {
  std::vector<word_count> words;
  while (first != last) {
    const std::uint32_t rank = first->rank;
    words.clear();
    for (; first != last && first->rank == rank; ++first) words.insert(words.end(), first->first, first->first + first->count);
    std::sort(words.begin(), words.end(), [](const word_count& a, const word_count& b) { return a.word < b.word; });
    for (std::size_t k = 0; k < words.size();) {
      match m{files_by_path[rank], words[k].word, 0};
      for (; k < words.size() && words[k].word == m.word; ++k) m.count += words[k].count;
      out.push_back(m);
    }
  }
}

}  // namespace

std::vector<match> merge_counts(const std::vector<count_source>& sources, const std::vector<std::uint32_t>& files_by_path) {
  const std::vector<ranked_counts> sorted = sort_by_rank(sources, files_by_path);
  std::size_t total = 0;
  for (const ranked_counts& counts : sorted) total += counts.count;
  const std::size_t threads =
      std::clamp<std::size_t>(total / counts_per_thread, 1, std::clamp(std::thread::hardware_concurrency(), 1u, threads_max));

  std::vector<std::vector<match>> parts(threads);
  std::vector<std::exception_ptr> thrown(threads);
  {
    std::vector<std::jthread> pool;
    const ranked_counts* const end = sorted.data() + sorted.size();
    const ranked_counts* first = sorted.data();
    std::size_t passed = 0;
    for (std::size_t t = 0; t < threads; ++t) {
      const ranked_counts* last = first;
      while (last != end && (passed < total * (t + 1) / threads || (last != first && last->rank == last[-1].rank))) passed += (last++)->count;
      if (t + 1 == threads) last = end;
      pool.emplace_back([first, last, &files_by_path, &part = parts[t], &error = thrown[t]] {
        try {
          add_up(first, last, files_by_path, part);
        } catch (...) {
          error = std::current_exception();
        }
      });
      first = last;
    }
  }
  std::vector<match> all;
  std::size_t matches = 0;
  for (std::size_t t = 0; t < threads; ++t) {
    if (thrown[t] != nullptr) std::rethrow_exception(thrown[t]);
    matches += parts[t].size();
  }
  if (threads == 1) return std::move(parts[0]);
  all.reserve(matches);
  for (const std::vector<match>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace gpufs::grep
