// The kernel: blocks take work items until there are none left.
#pragma once

#include "line_counter.cuh"
#include "matcher.cuh"

namespace gpufs::grep {

// A part of a file. The offsets divide the work; they are not the exact borders. The kernel moves
// both ends of the searched text forward to the next place that no chain of matches crosses
// (byte_breaks). So the parts of one file never need each other.
struct work_item {
  std::uint64_t begin;
  std::uint64_t end;   // any value past the end of the file means its end
  std::uint64_t path;  // offset in the launch's path pool
  std::uint32_t file;
  std::uint32_t part;  // number among the file's parts, in order of offset
};

// Arguments of all kernels of this folder: the list of work, and where results go.
struct work_list {
  const work_item* items;
  const char* paths;                  // zero-terminated
  atomic_word<std::uint32_t>* taken;  // items that blocks have taken; 0 at the launch
  char* messages;                     // `message_bytes` for each block
  std::uint32_t item_count;
  std::uint32_t message_bytes;  // multiple of 16
  std::int32_t sink;

  // Collective. Returns the next item's index; item_count or more at the end.
  GPUFS_HD std::uint32_t take(const block_group& g) const {
    std::uint32_t item = 0;
    // Relaxed: only the number matters. The item was written before the launch.
    if (g.is_leader()) item = taken->fetch_add_relaxed(1);
    return g.broadcast(item);
  }
};

struct search_memory {
  window_memory window;
  tally_memory counts;
  std::uint8_t classes[256];
};

struct line_search_memory {
  search_memory search;
  line_memory lines;
};

enum class counted {
  words,  // matches of each word
  // Lines with a match. All bytes have the class byte_breaks, because it does not matter which of
  // overlapping matches counts, and `dictionary.overlapping` is 0. NUL bytes end lines. The end of
  // an item has part_lines instead of the NUL.
  lines
};

template <counted what>
struct search_kernel {
  dictionary_ref dictionary;
  work_list work;
  // By file: 1 + the smallest part in which a block found a NUL, or a larger such part; 0: none
  // yet. Null for lines.
  atomic_word<std::uint32_t>* nul_parts;
  carried_chain* chains;  // `dictionary.overlapping` for each block

  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    auto& memory = *reinterpret_cast<search_memory*>(g.scratch());
    carried_chain* own_chains = chains + g.grid_rank() * dictionary.overlapping;
    for (std::uint32_t k = g.rank(); k < dictionary.overlapping; k += g.size()) {
      own_chains[k].notes[0].store_relaxed(0);
      own_chains[k].notes[1].store_relaxed(0);
    }
    for (std::uint32_t k = g.rank(); k < 256; k += g.size())
      memory.classes[k] = dictionary.classes[k];
    tally counts(g, fs, memory.counts, work.messages + g.grid_rank() * work.message_bytes,
                 work.message_bytes, work.sink);
    std::uint32_t window_number = 2;  // notes with the number 0 belong to no window
    while (counts.error() == 0) {
      const std::uint32_t item = work.take(g);
      if (item >= work.item_count) break;
      counts.begin(item);
      search_item(g, fs, memory, work.items[item], own_chains, counts, window_number);
      window_number += 2;  // the next item must not read the notes of this item's last window
    }
    counts.send();
  }

 private:
  struct outcome {
    std::int32_t error;
    std::uint64_t bytes;
    std::uint64_t offset;  // for the section that ends the item
  };
  static constexpr std::uint64_t nothing = what == counted::words ? no_nul : part_lines{}.pack();

  GPUFS_HD void search_item(const block_group& g, const mount_ref& fs, search_memory& memory,
                            const work_item& item, carried_chain* own_chains, tally& counts,
                            std::uint32_t& window_number) const {
    outcome end{0, 0, nothing};
    // A part after a NUL in an earlier part does not count.
    if (item.part == 0 || !behind_nul(g, item)) {
      const std::int32_t fd = gopen(g, fs, work.paths + item.path);
      if (fd < 0) {
        end.error = -fd;
      } else {
        file_status status{};
        const std::int32_t answer = gfstat(g, fs, fd, status);
        end = answer < 0 ? outcome{-answer, 0, nothing}
                         : search_part(g, memory, item, {g, fs, memory.window, fd, status.size},
                                       own_chains, counts, window_number);
        (void)gclose(g, fs, fd);  // a file that is only read
      }
    }
    counts.end_item(end.error, end.bytes, end.offset);
  }

  GPUFS_HD bool behind_nul(const block_group& g, const work_item& item) const {
    if constexpr (what == counted::words) {
      // Relaxed: a store that arrives late only costs time.
      const std::uint32_t part = g.broadcast(nul_parts[item.file].load_relaxed());
      return part != 0 && part - 1 < item.part;
    } else {
      return false;
    }
  }

  GPUFS_HD outcome search_part(const block_group& g, search_memory& memory, const work_item& item,
                               text_window window, carried_chain* own_chains, tally& counts,
                               std::uint32_t& window_number) const {
    outcome end{0, 0, nothing};
    part_lines lines;
    std::uint64_t from = item.begin;
    bool at_break = from == 0;
    for (bool last = false; !last && !window.file_ends_before(from);) {
      if (const std::int32_t error = window.move(from); error < 0) return {-error, 0, nothing};
      // Once for each window, so that a case-sensitive search has no work for each byte.
      if (dictionary.folds_case != 0) window.fold();
      last = window.at_file_end();
      const std::uint64_t read_to =
          window.end() < item.end ? window.end() : item.end;  // the rest belongs to the next part
      end.bytes = read_to > item.begin ? read_to - item.begin : 0;
      if (!at_break) {
        from = next_break(window, memory.classes, from, window.end());
        at_break = from != nowhere;
        if (!at_break) from = window.end();
        if (from >= item.end) break;  // the previous part covers all of this one
        if (!at_break) continue;
      }
      std::uint64_t to = window.at_file_end() ? window.end() : window.end() - lookahead_bytes;
      if (to > item.end) {
        const std::uint64_t stop =
            next_break(window, memory.classes, from > item.end ? from : item.end, to);
        if (stop != nowhere) {
          to = stop;
          last = true;
        }
      }
      if (to <= from) continue;
      const auto first = static_cast<std::uint32_t>(from - window.begin());
      const auto behind = static_cast<std::uint32_t>(to - window.begin());
      const std::uint32_t nul = window.classify(first, behind);
      if (what == counted::words && nul != text_window::no_offset) {
        end.offset = window.begin() + nul;
        // Parts may store in any order: a later part's number here only skips less.
        if (g.is_leader()) nul_parts[item.file].store_relaxed(item.part + 1);
        break;
      }
      ++window_number;
      const matcher m(dictionary, memory.classes, window, first, behind, window_number, own_chains,
                      counts);
      if constexpr (what == counted::words) {
        for (std::uint32_t k = first / segment_bytes + g.rank(); k <= (behind - 1) / segment_bytes;
             k += g.size())
          m.search_segment(k);
        counts.make_room(window_number);
      } else {
        auto& line_masks = *reinterpret_cast<line_search_memory*>(g.scratch());
        lines.append(count_lines(g, m, window.text(), line_masks.lines, first, behind));
      }
      from = to;
    }
    if constexpr (what == counted::lines) end.offset = lines.pack();
    return end;
  }

  static constexpr std::uint64_t nowhere = ~std::uint64_t{0};

  // Returns the first place of the file in [from, to) after a breaking byte, or nowhere.
  GPUFS_HD static std::uint64_t next_break(const text_window& window, const std::uint8_t* classes,
                                           std::uint64_t from, std::uint64_t to) {
    const std::uint32_t at =
        window.first_break(classes, static_cast<std::uint32_t>(from - window.begin()),
                           static_cast<std::uint32_t>(to - window.begin()));
    return at == text_window::no_offset ? nowhere : window.begin() + at;
  }
};

}  // namespace gpufs::grep
