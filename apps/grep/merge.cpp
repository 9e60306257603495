#include "merge.hpp"

#include <algorithm>
#include <numeric>
#include <thread>

#include "job/in_threads.hpp"

namespace gpufs::grep {

namespace {

constexpr unsigned mergers_max = 16;
constexpr std::size_t counts_per_thread = 50'000;  // fewer are not worth a thread

struct ranked_counts {
  std::uint32_t rank;
  std::uint32_t count;
  word_count* first;
};

// Sorts by the files' ranks. A counting sort, because there are as many ranks as files.
std::vector<ranked_counts> sort_by_rank(const std::vector<file_counts>& all,
                                        const std::vector<std::uint32_t>& files_by_path) {
  std::vector<std::uint32_t> rank_of_file(files_by_path.size());
  for (std::size_t rank = 0; rank < files_by_path.size(); ++rank)
    rank_of_file[files_by_path[rank]] = static_cast<std::uint32_t>(rank);
  std::vector<std::size_t> begin(files_by_path.size() + 1, 0);
  for (const file_counts& counts : all) ++begin[rank_of_file[counts.file] + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<ranked_counts> sorted(all.size());
  for (const file_counts& counts : all) {
    const std::uint32_t rank = rank_of_file[counts.file];
    sorted[begin[rank]++] = {rank, counts.count, counts.first};
  }
  return sorted;
}

// The sorted counts of a range of files. A thread makes it. When all are made and their sizes are
// known, the thread writes it to its place in the result.
class partial_result {
 public:
  partial_result(const std::vector<std::uint32_t>& files_by_path, std::size_t words)
      : files_by_path_(files_by_path), words_(words) {}

  void make(const ranked_counts* first, const ranked_counts* last) {
    while (first != last) {
      const ranked_counts* end = first;
      std::size_t total = 0;
      for (; end != last && end->rank == first->rank; ++end) total += end->count;
      const std::uint32_t file = files_by_path_[first->rank];
      if (end == first + 1) {
        // A section has no duplicate words. This is the usual case, so its counts stay in place.
        std::sort(first->first, first->first + first->count, by_word);
        files_.push_back({file, first->count, first->first, 0});
      } else {
        files_.push_back({file, 0, nullptr, added_.size()});
        add(first, end, total);
        files_.back().count = static_cast<std::uint32_t>(added_.size() - files_.back().added);
      }
      size_ += files_.back().count;
      first = end;
    }
  }

  std::size_t size() const { return size_; }

  void write(match* to) const {
    for (const sorted_counts& file : files_) {
      for (std::uint32_t k = 0; k < file.count; ++k) {
        *to++ = file.section != nullptr
                    ? match{file.file, file.section[k].word, file.section[k].count}
                    : match{file.file, added_[file.added + k].word, added_[file.added + k].count};
      }
    }
  }

 private:
  struct sorted_counts {
    std::uint32_t file;
    std::uint32_t count;
    const word_count* section;  // null: in added_, from `added` on
    std::size_t added;
  };
  struct wide_count {
    std::uint32_t word;
    std::uint64_t count;
  };

  static bool by_word(const word_count& a, const word_count& b) { return a.word < b.word; }

  // Adds up the counts of one file from several sections, by word.
  void add(const ranked_counts* first, const ranked_counts* last, std::size_t total) {
    if (total > words_ / 4) {
      // The parts of a large file have most words many times: too many to sort.
      totals_.assign(words_, 0);
      for (; first != last; ++first) {
        for (std::uint32_t k = 0; k < first->count; ++k)
          totals_[first->first[k].word] += first->first[k].count;
      }
      for (std::uint32_t word = 0; word < words_; ++word) {
        if (totals_[word] != 0) added_.push_back({word, totals_[word]});
      }
      return;
    }
    sorted_.clear();
    for (; first != last; ++first)
      sorted_.insert(sorted_.end(), first->first, first->first + first->count);
    std::sort(sorted_.begin(), sorted_.end(), by_word);
    for (std::size_t k = 0; k < sorted_.size();) {
      wide_count sum{sorted_[k].word, 0};
      for (; k < sorted_.size() && sorted_[k].word == sum.word; ++k) sum.count += sorted_[k].count;
      added_.push_back(sum);
    }
  }

  const std::vector<std::uint32_t>& files_by_path_;
  std::size_t words_;
  std::vector<sorted_counts> files_;
  std::vector<wide_count> added_;
  std::size_t size_ = 0;
  std::vector<std::uint64_t> totals_;  // by word
  std::vector<word_count> sorted_;
};

}  // namespace

std::vector<std::uint32_t> order_by_path(const std::vector<file_item>& files) {
  std::vector<std::uint32_t> order(files.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    return files[a].path < files[b].path;
  };
  if (!std::is_sorted(order.begin(), order.end(), before))
    std::stable_sort(order.begin(), order.end(), before);
  return order;
}

std::vector<std::uint32_t> order_large_first(const std::vector<file_item>& files,
                                             std::uint64_t part_bytes) {
  std::vector<std::uint32_t> order(files.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto large = [&](std::uint32_t file) {
    return files[file].size_hint > part_bytes ? files[file].size_hint : 0;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return large(a) > large(b); });
  return order;
}

match_list merge_counts(const std::vector<file_counts>& all,
                        const std::vector<std::uint32_t>& files_by_path, std::size_t words) {
  const std::vector<ranked_counts> sorted = sort_by_rank(all, files_by_path);
  std::size_t total = 0;
  for (const ranked_counts& counts : sorted) total += counts.count;
  const std::size_t threads =
      std::clamp<std::size_t>(total / counts_per_thread, 1,
                              std::clamp(std::thread::hardware_concurrency(), 1u, mergers_max));

  // Where each thread's counts begin. Each thread gets about as many; no file is divided.
  std::vector<std::size_t> begin(threads + 1, sorted.size());
  std::size_t passed = 0;
  for (std::size_t k = 0, t = 0; k < sorted.size(); passed += sorted[k++].count) {
    while (t < threads && passed >= total * t / threads &&
           (k == 0 || sorted[k].rank != sorted[k - 1].rank))
      begin[t++] = k;
  }

  std::vector<partial_result> parts(threads, partial_result(files_by_path, words));
  job::in_threads(threads, [&](std::size_t t) {
    parts[t].make(sorted.data() + begin[t], sorted.data() + begin[t + 1]);
  });
  std::vector<std::size_t> at(threads + 1, 0);
  for (std::size_t t = 0; t < threads; ++t) at[t + 1] = at[t] + parts[t].size();
  match_list merged(at.back());
  job::in_threads(threads, [&](std::size_t t) { parts[t].write(merged.data() + at[t]); });
  return merged;
}

}  // namespace gpufs::grep
