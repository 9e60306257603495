// The host's part of a search: divides the work, runs the kernels, and makes the result of their
// messages.
#include <sys/sysinfo.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "collect.hpp"
#include "gpufs/device_array.hpp"
#include "late_nul.hpp"
#include "launch.hpp"
#include "merge.hpp"
#include "parts.hpp"

namespace gpufs::grep {

namespace {

// Enough blocks to keep the service busy with opens and reads while other blocks search.
constexpr std::uint32_t blocks_per_multiprocessor = 4;
constexpr std::uint32_t threads_per_block = 256;
// Limits the memory for notes on overlapping words (matcher.cuh). Dictionaries with many such words
// run with fewer blocks.
constexpr std::uint64_t chains_bytes_max = std::uint64_t{256} << 20;

// Limits the memory for the counts of one launch. The result needs as much again, and more.
std::uint64_t counts_bytes_max() {
  struct sysinfo info;
  if (sysinfo(&info) != 0) throw error(errno, "grep: sysinfo");
  return std::uint64_t{info.totalram} * info.mem_unit / 4;
}

class open_sink {
 public:
  open_sink(mount& m, collector& to)
      : mount_(m), sink_(mount_.open_sink([&to](const char* bytes, std::size_t count) {
          return to.take(bytes, count);
        })) {}
  ~open_sink() { (void)mount_.close_sink(sink_); }  // take() never waits
  open_sink(const open_sink&) = delete;
  open_sink& operator=(const open_sink&) = delete;
  std::int32_t number() const { return sink_; }

 private:
  mount& mount_;
  std::int32_t sink_;
};

// One launch: its items and its results.
struct round {
  std::vector<work_item> items;
  std::vector<std::uint32_t> file_of_item;
  std::optional<collector> collected;
};

class searcher {
 public:
  searcher(mount& m, const dictionary& d, const std::vector<file_item>& files, progress* p)
      : mount_(m), dictionary_(d.flat()), files_(files), progress_(p), failed_(files.size(), 0),
        first_nul_(files.size(), no_nul) {
    if (files.size() > ~std::uint32_t{0}) throw error(EINVAL, "grep: too many files");
    blocks_ = mount_.device() == device_kind::cpu
                  ? mount_.multiprocessors()
                  : mount_.multiprocessors() * blocks_per_multiprocessor;
    if (const std::uint64_t bytes = dictionary_.overlapping * sizeof(carried_chain); bytes != 0) {
      blocks_ = static_cast<std::uint32_t>(
          std::clamp<std::uint64_t>(chains_bytes_max / bytes, 1, blocks_));
    }
    message_bytes_ = std::min(mount_.options().staging_bytes, message_bytes_max);
    pool_paths();
  }

  result run() {
    round first;
    round again;
    if (!dictionary_.words.empty() && !files_.empty()) {
      make_first_items(first);
      search<counted::words>(first, true);
      note_failures(first);
      note_nuls(first);
      make_late_items(again);
      search<counted::words>(again, false);
    }
    result r;
    for (std::uint32_t file = 0; file < files_.size(); ++file) {
      if (failed_[file] != 0) {
        r.failures.push_back({file, failed_[file]});
        continue;
      }
      ++r.files;
      if (first_nul_[file] != no_nul) r.binary.push_back(file);
    }
    r.bytes = searched_bytes(first);
    r.matches = merge(first, again);
    return r;
  }

  line_result run_lines() {
    round all;
    if (!dictionary_.words.empty() && !files_.empty()) {
      make_first_items(all);
      search<counted::lines>(all, true);
      note_failures(all);
    }
    // A file's items are adjacent, in order of offset.
    std::vector<part_lines> lines(files_.size());
    for (std::size_t k = 0; k < all.items.size(); ++k)
      lines[all.file_of_item[k]].append(part_lines::unpack(all.collected->ends()[k].offset));
    line_result r;
    for (std::uint32_t file = 0; file < files_.size(); ++file) {
      if (failed_[file] != 0) r.failures.push_back({file, failed_[file]});
      r.lines.push_back(failed_[file] != 0 ? 0 : lines[file].count);
    }
    r.files = files_.size() - r.failures.size();
    r.bytes = searched_bytes(all);
    return r;
  }

 private:
  void pool_paths() {
    path_at_.reserve(files_.size());
    for (const file_item& file : files_) {
      path_at_.push_back(paths_.size());
      paths_.insert(paths_.end(), file.path.c_str(), file.path.c_str() + file.path.size() + 1);
    }
  }

  void add_parts(round& r, std::uint32_t file, std::uint64_t bytes, std::uint64_t part_bytes,
                 std::uint64_t end) const {
    const std::uint64_t parts = count_parts(bytes, part_bytes);
    if (r.items.size() + parts > ~std::uint32_t{0})
      throw error(EINVAL, "grep: too much work for one search");
    for (std::uint64_t part = 0; part < parts; ++part) {
      const std::uint64_t part_end = part + 1 == parts ? end : (part + 1) * part_bytes;
      r.items.push_back(
          {part * part_bytes, part_end, path_at_[file], file, static_cast<std::uint32_t>(part)});
      r.file_of_item.push_back(file);
    }
  }

  void make_first_items(round& r) {
    std::uint64_t all_bytes = 0;
    for (const file_item& file : files_) all_bytes = add_bytes(all_bytes, bytes_to_share(file));
    const std::uint64_t part_bytes = part_bytes_for(all_bytes, blocks_);
    for (const std::uint32_t file : order_large_first(files_, part_bytes)) {
      const std::uint64_t bytes = bytes_to_share(files_[file]);
      add_parts(r, file, bytes > part_bytes ? bytes : 0, part_bytes, ~std::uint64_t{0});
    }
  }

  void note_failures(const round& r) {
    for (std::size_t k = 0; k < r.items.size(); ++k) {
      if (const int error = r.collected->ends()[k].error; error != 0)
        failed_[r.file_of_item[k]] = error;
    }
  }

  void note_nuls(const round& r) {
    for (std::size_t k = 0; k < r.items.size(); ++k) {
      std::uint64_t& first_nul = first_nul_[r.file_of_item[k]];
      first_nul = std::min(first_nul, r.collected->ends()[k].offset);
    }
  }

  // Only for files that did not fail.
  std::uint64_t searched_bytes(const round& r) const {
    std::uint64_t bytes = 0;
    for (std::size_t k = 0; k < r.items.size(); ++k) {
      if (failed_[r.file_of_item[k]] == 0) bytes += r.collected->ends()[k].bytes;
    }
    return bytes;
  }

  // Searches files with a late NUL again, up to where grep stops counting. Their pages are still in
  // the cache.
  void make_late_items(round& again) {
    round cuts;
    for (std::uint32_t file = 0; file < files_.size(); ++file) {
      if (failed_[file] != 0 || first_nul_[file] == no_nul || first_nul_[file] < first_read_bytes ||
          has_hole(files_[file].path))
        continue;
      cuts.items.push_back({first_nul_[file], 0, path_at_[file], file, 0});
      cuts.file_of_item.push_back(file);
    }
    if (cuts.items.empty()) return;
    find_cuts(cuts);
    std::uint64_t all_bytes = 0;
    for (const item_end& end : cuts.collected->ends())
      all_bytes = add_bytes(all_bytes, end.error == 0 ? end.offset : 0);
    const std::uint64_t part_bytes = part_bytes_for(all_bytes, blocks_);
    for (std::size_t k = 0; k < cuts.items.size(); ++k) {
      const item_end& end = cuts.collected->ends()[k];
      if (end.error != 0) failed_[cuts.file_of_item[k]] = end.error;
      if (end.error == 0 && end.offset != 0)
        add_parts(again, cuts.file_of_item[k], end.offset, part_bytes, end.offset);
    }
  }

  // Device memory that a launch's blocks share.
  struct device_work {
    device_work(mount& m, const round& r, const std::vector<char>& path_pool, std::uint32_t blocks,
                std::uint32_t message_bytes)
        : items(m, r.items), paths(m, path_pool), taken(m, 1),
          messages(m, std::size_t{blocks} * message_bytes) {}
    device_array<work_item> items;
    device_array<char> paths;
    device_array<atomic_word<std::uint32_t>> taken;
    device_array<char> messages;
  };

  work_list list_of(const device_work& work, const round& r, std::int32_t sink) const {
    return {work.items.data(),
            work.paths.data(),
            work.taken.data(),
            work.messages.data(),
            static_cast<std::uint32_t>(r.items.size()),
            message_bytes_,
            sink};
  }

  std::uint32_t blocks_for(const round& r) const {
    return static_cast<std::uint32_t>(std::min<std::size_t>(blocks_, r.items.size()));
  }

  template <counted what>
  void search(round& r, bool reports_progress) {
    if (r.items.empty()) return;
    std::vector<std::uint32_t> parts_left(files_.size(), 0);
    for (const std::uint32_t file : r.file_of_item) ++parts_left[file];
    r.collected.emplace(r.items.size(), what == counted::words ? dictionary_.words.size() : 0,
                        counts_bytes_max(), [&](const section& s) {
                          if (progress_ == nullptr || !reports_progress) return;
                          progress_->bytes_done += s.bytes;
                          if (--parts_left[r.file_of_item[s.item]] == 0) ++progress_->files_done;
                        });

    constexpr bool words = what == counted::words;
    const std::uint32_t blocks = blocks_for(r);
    const std::uint32_t overlapping = words ? dictionary_.overlapping : 0;
    std::vector<std::uint8_t> byte_classes = dictionary_.classes;
    if (!words) {
      for (std::uint8_t& c : byte_classes) c |= byte_breaks;
    }
    const device_array<table_entry> entries(mount_, dictionary_.entries);
    const device_array<std::uint64_t> texts(mount_, dictionary_.texts);
    const device_array<std::uint8_t> classes(mount_, byte_classes);
    const device_array<atomic_word<std::uint32_t>> nul_parts(mount_, words ? files_.size() : 0);
    const device_array<carried_chain> chains(mount_, std::size_t{blocks} * overlapping);
    const device_work work(mount_, r, paths_, blocks, message_bytes_);
    const open_sink sink(mount_, *r.collected);

    search_kernel<what> kernel{};
    kernel.dictionary = {entries.data(),
                         texts.data(),
                         classes.data(),
                         static_cast<std::uint32_t>(dictionary_.entries.size() - 1),
                         overlapping,
                         dictionary_.longest,
                         dictionary_.begins_non_word ? 1u : 0u,
                         dictionary_.folds_case ? 1u : 0u};
    kernel.work = list_of(work, r, sink.number());
    kernel.nul_parts = nul_parts.data();
    kernel.chains = chains.data();
    run_search(mount_, {blocks, threads_per_block}, kernel);
    r.collected->check_complete();
  }

  void find_cuts(round& r) const {
    r.collected.emplace(r.items.size(), 0, 0, nullptr);  // the kernel sends no counts
    const std::uint32_t blocks = blocks_for(r);
    const device_work work(mount_, r, paths_, blocks, message_bytes_);
    const open_sink sink(mount_, *r.collected);
    run_find_cuts(mount_, {blocks, threads_per_block}, {list_of(work, r, sink.number())});
    r.collected->check_complete();
  }

  match_list merge(const round& first, const round& again) const {
    std::vector<file_counts> all;
    for (const round* r : {&first, &again}) {
      if (!r->collected) continue;
      for (const item_counts& counts : r->collected->counts()) {
        const std::uint32_t file = r->file_of_item[counts.item];
        // The first round counted an unknown part of a file with a NUL.
        if (failed_[file] == 0 && (first_nul_[file] == no_nul || r == &again))
          all.push_back({file, counts.count, counts.first});
      }
    }
    return merge_counts(all, order_by_path(files_), dictionary_.words.size());
  }

  mount& mount_;
  const flat_dictionary& dictionary_;
  const std::vector<file_item>& files_;
  progress* progress_;
  std::uint32_t blocks_ = 1;
  std::uint32_t message_bytes_ = 0;
  std::vector<char> paths_;
  std::vector<std::uint64_t> path_at_;    // by file, in paths_
  std::vector<int> failed_;               // by file: errno
  std::vector<std::uint64_t> first_nul_;  // by file
};

}  // namespace

result search(mount& m, const dictionary& d, const std::vector<file_item>& files, progress* p) {
  return searcher(m, d, files, p).run();
}

line_result count_lines(mount& m, const dictionary& d, const std::vector<file_item>& files,
                        progress* p) {
  return searcher(m, d, files, p).run_lines();
}

}  // namespace gpufs::grep
