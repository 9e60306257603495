// The kernel that finds, in files with a late NUL, the line at which GNU grep stops counting
// (grep_buffer.hpp).
#pragma once

#include "gpufs/text/find.cuh"
#include "grep_buffer.hpp"
#include "kernel.cuh"

namespace gpufs::grep {

struct cut_memory {
  char text[4096];
};

// Items are whole files; `begin` is the offset of the first NUL. One block simulates a file's reads
// one after another, and searches only around their ends. The done section's `offset` is the cut.
struct find_cuts_kernel {
  work_list work;

  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    auto& memory = *reinterpret_cast<cut_memory*>(g.scratch());
    for (;;) {
      const std::uint32_t k = work.take(g);
      if (k >= work.item_count) return;
      section answer{k, 0, section_kind::done, 0, 0, 0};
      const std::int32_t fd = gopen(g, fs, work.paths + work.items[k].path);
      if (fd < 0) {
        answer.error = -fd;
      } else {
        find_cut(g, fs, memory, fd, work.items[k].begin, answer);
        (void)gclose(g, fs, fd);  // a file that is only read
      }
      char* message = work.messages + g.grid_rank() * work.message_bytes;
      if (g.is_leader()) *reinterpret_cast<section*>(message) = answer;
      g.sync();
      if (gsend(g, fs, work.sink, message, sizeof(section)) < 0)
        return;  // the host notices the missing end of the item
    }
  }

 private:
  GPUFS_HD static void find_cut(const block_group& g, const mount_ref& fs, cut_memory& memory,
                                std::int32_t fd, std::uint64_t nul, section& answer) {
    file_status status{};
    if (const std::int32_t error = gfstat(g, fs, fd, status); error < 0) {
      answer.error = -error;
      return;
    }
    grep_buffer buffer(status.size);
    std::uint64_t end = 0;   // end of the read text
    std::uint64_t line = 0;  // beginning of the line that is not complete yet
    for (;;) {
      const std::uint64_t bytes = buffer.read(end - line);
      if (bytes == 0 || nul < end + bytes) break;
      end += bytes;
      const std::int64_t found = line_begin(g, fs, memory, fd, line, end);
      if (found < 0) {
        answer.error = static_cast<std::int32_t>(-found);
        return;
      }
      line = static_cast<std::uint64_t>(found);
    }
    answer.offset = line;
  }

  // Returns the place after the last newline in [from, end), `from` if there is none, or -errno.
  GPUFS_HD static std::int64_t line_begin(const block_group& g, const mount_ref& fs,
                                          cut_memory& memory, std::int32_t fd, std::uint64_t from,
                                          std::uint64_t end) {
    while (end > from) {
      const std::uint64_t begin =
          end - from > sizeof(memory.text) ? end - sizeof(memory.text) : from;
      g.sync();  // all members are done with the old text
      const std::int64_t n = read_fully(g, fs, fd, memory.text, end - begin, begin);
      if (n < 0) return n;
      const std::uint64_t newline =
          find_last_byte(g, {memory.text, static_cast<std::uint64_t>(n)}, '\n');
      if (newline != not_found) return static_cast<std::int64_t>(begin + newline + 1);
      end = begin;
    }
    return static_cast<std::int64_t>(from);
  }
};

}  // namespace gpufs::grep
