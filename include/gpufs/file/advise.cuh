// Advice about a part of a file: gfadvise is made of these.
#pragma once

#include "gpufs/file/open_files.cuh"

namespace gpufs::detail {

// Loads [begin, end) into the cache in runs. Two runs are under way at a time: the group claims one
// while the other is being loaded. If no run can be had for a while, because many are under way,
// the function leaves the rest.
template <class Group>
GPUFS_HD void load_runs(const mount_ref& fs, const Group& g, const file_view& file,
                        std::uint64_t begin, std::uint64_t end) {
  using bulk = bulk_loader<Group>;
  const std::uint64_t stop = ((end - 1) >> fs.layout.page_shift) + 1;
  const std::uint64_t most = fs.layout.bulk.most;
  if (most == 0) return;
  bulk_run under_way{};
  std::uint32_t failures = 0;
  for (std::uint64_t page = begin >> fs.layout.page_shift; page < stop && failures < 64;) {
    page = bulk::first_absent(fs, g, file, page, stop);
    if (page == stop) break;
    // A multiple of `most`, so that all groups that begin within one such piece end at the same
    // page.
    const std::uint64_t run_end = (page & ~(most - 1)) + most;
    const std::uint32_t wanted =
        bulk::fitting(fs, file, page, (run_end < stop ? run_end : stop) - page);
    if (wanted == 0) {  // too few for a run: their readers load them
      ++page;
      continue;
    }
    const bulk_run run = bulk::begin(fs, g, file, page, wanted);
    if (under_way.count != 0) bulk::end(fs, g, file, under_way);
    under_way = run;
    page += run.count;
    if (run.count != 0) {
      failures = 0;
      continue;
    }
    platform::pause(++failures, 65536);
    // Skips a page now and then: it may be resident, because a guess does not find every page.
    if (failures % 8 == 0) ++page;
  }
  if (under_way.count != 0) bulk::end(fs, g, file, under_way);
}

// As gfadvise.
template <class Group>
GPUFS_HD std::int32_t advise(const Group& g, const mount_ref& fs, std::int32_t fd,
                             std::int64_t offset, std::uint64_t bytes, std::int32_t advice) {
  if (offset < 0 || advice < POSIX_FADV_NORMAL || advice > POSIX_FADV_NOREUSE) return -EINVAL;
  const bool is_written = advice == POSIX_FADV_DONTNEED;
  const found_file found =
      find_file(fs, g, fd, is_written ? access_read | access_write : access_read);
  if (found.error != 0) return found.error;
  const file_view& file = found.view;
  const auto begin = static_cast<std::uint64_t>(offset);
  if ((advice != POSIX_FADV_WILLNEED && !is_written) || begin >= file.size) return 0;
  const std::uint64_t end = bytes == 0 || file.size - begin < bytes ? file.size : begin + bytes;
  if (is_written) {
    g.sync();  // Includes what all members wrote before the call.
    if (file.node != no_node)
      flush_pages(fs, g, file.version, file.node, begin >> fs.layout.page_shift,
                  ((end - 1) >> fs.layout.page_shift) + 1);
    return 0;
  }
  if (file.node != no_node) return 0;
  if constexpr (page_loader<Group>::looks_ahead) load_runs(fs, g, file, begin, end);
  return 0;
}

}  // namespace gpufs::detail
