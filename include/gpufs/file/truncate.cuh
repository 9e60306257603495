// Syncs and truncations of files: gfsync, gftruncate and O_TRUNC are made of these.
#pragma once

#include "gpufs/file/open_files.cuh"
#include "gpufs/file/write_bytes.cuh"

namespace gpufs::detail {

// Makes all that was written to the file so far durable. Returns 0, or -errno. Collective.
template <class Group>
GPUFS_HD std::int32_t sync_file(const mount_ref& fs, const Group& g, const file_view& file) {
  std::int32_t error = flush_file(fs, g, file.version, file.node, false);
  g.sync();
  if (g.is_leader()) {
    inode_state& node = fs.node(file.node);
    if (error == 0) {
      const channel_client::answer answer =
          fs.client().ask({request_code::sync, file.handle, 0, 0});
      error = answer.result;
      // If the service is dead, the end of the mount syncs the file. The host remembers a failed
      // sync (service/sync_rounds.hpp). A sync that was not begun has lost nothing.
      if (error != 0 && (!answer.abandoned || answer.begun) && !fs.client().is_dead())
        keep_failure(fs, file.node, error);
    }
    // If there are several errors, the call returns one of them. The error of a write-back is
    // returned once: the bytes that it did not write are still dirty.
    const std::int32_t kept = node.error.exchange_acq_rel(0), failed = node.failed.load_acquire();
    if (error == 0) error = failed != 0 ? failed : kept;
  }
  return g.broadcast(error);
}

// Cuts the cached pages of a file at `size`, and drops the dirty bytes past it. Called by one warp
// or thread.
template <class Group>
GPUFS_HD void cut_pages(const mount_ref& fs, const Group& g, const file_view& file,
                        std::uint64_t size, std::uint64_t old_size) {
  const std::uint64_t page_bytes = fs.layout.page_bytes();
  const std::uint64_t first = size >> fs.layout.page_shift;
  const std::uint64_t end = (old_size + page_bytes - 1) >> fs.layout.page_shift;
  const frame_table frames(fs);
  write_back wb(fs, g);
  for (std::uint64_t kind = 0; kind <= once_bit && first < end; kind += once_bit) {
    const auto all = write_back<Group>::pages_asked::all;
    wb.for_each_resident(file.version | kind, first, end, all, [&](std::uint32_t frame_number) {
      // The lookup waits for a load and pins the page: a load that began before the cut has old
      // bytes.
      slot_key key = frames.header(frame_number).key();
      std::int32_t frame_there = -1;
      key = g.broadcast(key);
      if (key.high != (file.version | kind) || key.low < first) return true;
      if (g.is_leader()) {
        const lookup_result r = frames.index().lookup(key);
        if (r.what == lookup_result::kind::resident)
          frame_there = static_cast<std::int32_t>(r.slot);
      }
      frame_there = g.broadcast(frame_there);
      if (frame_there < 0) return true;
      const auto f = static_cast<std::uint32_t>(frame_there);
      const std::uint64_t page_begin = key.low << fs.layout.page_shift;
      const std::uint64_t keep = page_begin < size ? size - page_begin : 0;
      cut_page(fs, g, wb, f, key, file.node, keep);
      g.sync();
      if (g.is_leader()) frames.unpin(f);
      return true;
    });
  }
}
template <class Group>
GPUFS_HD void cut_page(const mount_ref& fs, const Group& g, write_back<Group>& wb,
                       std::uint32_t frame_number, const slot_key& key, std::uint32_t node,
                       std::uint64_t keep) {
  const std::uint64_t page_bytes = fs.layout.page_bytes();
  const std::uint32_t what = wb.begin_after_others(frame_number, key);
  if (what != 0) {
    // The bytes before the cut stay dirty. The mask now says which they are.
    atomic_word<std::uint64_t>* const mask = fs.mask(frame_number);
    bool left = false;
    for (std::uint64_t w = g.rank(); w < mask_words(page_bytes); w += g.size()) {
      const std::uint64_t kept = page_dirt::bits(w, 0, keep);
      std::uint64_t now = 0;
      if ((what & page_dirt::whole) != 0) {
        (void)mask[w].exchange_acq_rel(kept);
        now = kept;
      } else {
        now = mask[w].fetch_and_acq_rel(kept) & kept;
      }
      left = left || now != 0;
    }
    const bool any = !g.all(!left);
    if (g.is_leader())
      dirty_run<Group>::end_page(fs, frame_number, node,
                                 any ? (what & ~page_dirt::whole) | page_dirt::partial : 0);
  }
  zero_in_page(g, fs.page(frame_number) + keep, page_bytes - keep);
  g.sync();
  std::uint32_t mapped = 0;
  if (g.is_leader()) page_dirt(fs, frame_number).note_cut();
  if (g.is_leader()) mapped = are_pages_mapped(fs) ? 1 : 0;
  if (g.broadcast(mapped) == 0) return;
  change_twin(fs, g, frame_number,
              [&](char* twin) { zero_in_page(g, twin + keep, page_bytes - keep); });
}

// Waits for write-backs under way of pages from `size` on. No other write-back begins before `cuts`
// is even again. Called by one warp or thread.
template <class Group>
GPUFS_HD void wait_for_write_backs(const mount_ref& fs, const Group& g, const file_view& file,
                                   std::uint64_t size, std::uint64_t old_size) {
  const std::uint64_t first = size >> fs.layout.page_shift;
  const std::uint64_t end = (old_size + fs.layout.page_bytes() - 1) >> fs.layout.page_shift;
  write_back wb(fs, g);
  for (std::uint64_t kind = 0; kind <= once_bit && first < end; kind += once_bit) {
    wb.for_each_resident(file.version | kind, first, end, write_back<Group>::pages_asked::dirty,
                         [&](std::uint32_t frame_number) {
                           wb.wait_for_cleaner(frame_number);
                           return true;
                         });
  }
}

// Sets the size of the file to `size` bytes. Returns 0, or -errno, and then the file is unchanged.
// But if the host has begun and does not answer in time, the file's size is unknown, and every
// gfsync and gclose returns the error.
//
// The call waits for writes that were given up and may still take place, because they would bring
// back bytes that it cuts; -EIO if they get no answer. One truncation of a file runs at a time.
// Called by one warp or thread.
template <class Group>
GPUFS_HD std::int32_t truncate_file(const mount_ref& fs, const Group& g, const file_view& file,
                                    std::uint64_t size) {
  inode_state& node = fs.node(file.node);
  if (g.is_leader()) {
    wait_for_size_users(node);
    // Acquire and release: pairs with the end of the previous truncation, and with the reads of
    // `cuts` by groups that write and write back.
    for (std::uint32_t seen = wait_for_cut(fs, file);
         !node.cuts.compare_exchange_acq_rel(seen, seen + 1);)
      seen = wait_for_cut(fs, file);
  }
  g.sync();
  std::uint64_t old_size = file_size(fs, g, file.node);
  if (size < old_size) {
    wait_for_write_backs(fs, g, file, size, old_size);
  }
  GPUFS_SCHEDULE_POINT("file.truncate");
  std::int32_t result = 0;
  g.sync();
  // Comes after the wait for write-backs, because a write-back may be given up during that wait.
  if (g.is_leader() && !is_settled(fs, file.node, file.version, true)) result = -EIO;
  if (g.is_leader() && result == 0) {
    // Set before the host's file loses its pages. The registered pages of the file stay registered,
    // but no longer belong to it.
    if (size < old_size) (void)node.cuts.fetch_or_acq_rel(inode_state::shrunk);
    const std::uint32_t name = truncated_node(node_name(file.node, file.version));
    const channel_client::answer answer =
        fs.client().ask({request_code::truncate, file.handle, name, size});
    result = answer.result < 0 ? answer.result : 0;
    if (answer.begun) {
      keep_failure(fs, file.node, result);
      // Release: pairs with is_unsettled_now(), which then sees the slot as abandoned.
      (void)node.timed_out.fetch_add_release(1);
    }
    // `old_size` includes what was written during the request.
    if (result == 0) {
      const std::uint64_t then = node.size.exchange_acq_rel(size);
      if (then > old_size) old_size = then;
    }
  }
  result = g.broadcast(result);
  old_size = g.broadcast(old_size);
  if (result == 0) cut_pages(fs, g, file, size, old_size);
  g.sync();
  if (g.is_leader()) {
    // Release: pairs with the acquire in wait_for_cut(), so that a waiting write sees the zeros.
    (void)node.cuts.fetch_add_release(1);
    let_size_users_begin(node);
  }
  return result;
}

// Truncates to 0, for O_TRUNC. Asks the host even if the node's size is 0, because another program
// may have written the file since. Collective, for any group.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t empty_file(const mount_ref& fs, const Group g,
                                                   const file_view file) {
  return by_one_warp(
      g, [&](const one_warp_of<Group>& part) { return truncate_file(fs, part, file, 0); });
}

// As gftruncate.
template <class Group>
GPUFS_HD std::int32_t resize(const Group& g, const mount_ref& fs, std::int32_t fd,
                             std::int64_t size) {
  const found_file found = find_file(fs, g, fd, access_write);
  if (found.error != 0) return found.error;
  if (size < 0) return -EINVAL;
  if (static_cast<std::uint64_t>(size) >= limits::file_bytes_max) return -EFBIG;
  g.sync();
  return by_one_warp(g, [&](const one_warp_of<Group>& part) {
    return truncate_file(fs, part, found.view, static_cast<std::uint64_t>(size));
  });
}

}  // namespace gpufs::detail
