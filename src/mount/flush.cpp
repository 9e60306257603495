#include "mount/flush.hpp"

#include <errno.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/host_threads.hpp"
#include "base/uninterrupted.hpp"
#include "gpufs/base/blocked_signals.hpp"
#include "gpufs/base/platform.cuh"
#include "gpufs/base/start_thread.hpp"
#include "gpufs/cache/dirty.cuh"
#include "gpufs/error.hpp"
#include "mount/snapshot.hpp"

namespace gpufs {
namespace {

using detail::page_dirt;

// The cache is copied to the host in chunks of this size.
constexpr std::uint64_t chunk_bytes = std::uint64_t{16} << 20;

// One version that is open for writing, with all files through which it is open.
struct written_version {
  std::vector<std::shared_ptr<host_file>> files;
  std::optional<inode_state> node;  // as the device has it; read at the first dirty page
};
using written_versions = std::map<std::uint64_t, written_version>;

written_versions versions_of(const file_table& files) {
  written_versions all;
  for (std::shared_ptr<host_file>& file : files.writers())
    all[file->version().number].files.push_back(std::move(file));
  return all;
}

inode_state node_of(device& gpu, const mount_ref& fs, const host_file& file) {
  return snapshot<inode_state>(gpu, fs, fs.layout.nodes + sizeof(inode_state) * file.node(), 1)[0];
}

// A file of which a last gclose gave bytes up, and whose close found no channel slot or got no
// answer (open_file::unclosed).
struct unreported_loss {
  std::shared_ptr<host_file> file;
  int status;  // -errno
};
std::vector<unreported_loss> unreported_losses(device& gpu, const mount_ref& fs,
                                               const file_table& files) {
  std::vector<unreported_loss> all;
  if (snapshot<name_state>(gpu, fs, fs.layout.names, 1)[0].unclosed_losses.value == 0) return all;
  for (const open_file& record :
       snapshot<open_file>(gpu, fs, fs.layout.files, fs.layout.file_count)) {
    const int status = -std::abs(std::clamp(record.unclosed_discarded.value, -4095, 4095));
    if (record.unclosed.value == 0 || status == 0) continue;
    std::shared_ptr<host_file> file = files.find(record.unclosed.value);
    if (file != nullptr && file->writes()) all.push_back({std::move(file), status});
  }
  return all;
}

// Shared by the flushing thread and the thread that waits for it.
struct flush_state {
  std::atomic<std::uint64_t> steps{0};  // incremented when a call returns
  // Release: pairs with the acquire in wait_for(). Without it the waiter could free what the flush
  // still uses.
  std::atomic<bool> done{false};
  std::atomic<bool> given_up{false};
  std::mutex mutex;  // guards unfinished
  written_versions unfinished;
};

// Used by one thread.
class flusher {
 public:
  flusher(device& gpu, const mount_ref& fs, file_table& files, bool service_hangs,
          flush_state& state)
      : gpu_(gpu), fs_(fs), files_(files), service_hangs_(service_hangs), state_(state),
        versions_(state.unfinished) {}

  void run() {
    try {
      for (const auto& [file, status] : unreported_losses(gpu_, fs_, files_))
        report(*file, status, file_operation::write_back);
      write_dirty_pages();
    } catch (const error& e) {
      fail_all(-e.code().value());
    } catch (const std::bad_alloc&) {
      fail_all(-ENOMEM);
    }
    for (auto& [number, version] : versions_) {
      if (state_.given_up) return;
      end_files(version);
      const std::lock_guard lock(state_.mutex);
      state_.unfinished.erase(number);
    }
  }

 private:
  struct dirty_page {
    written_version* version;
    slot_key key;
    std::uint32_t place;  // in the chunk
    std::uint32_t flags;
  };

  static bool is_dirty(const frame_dirt& dirt) {
    return (dirt.flags.value & (page_dirt::dirty | page_dirt::cleaning)) != 0;
  }

  void write_dirty_pages() {
    const arena_layout& l = fs_.layout;
    const auto chunk =
        static_cast<std::uint32_t>(std::max<std::uint64_t>(chunk_bytes >> l.page_shift, 1));
    for (std::uint32_t at = 0; at < l.frame_count && !state_.given_up;) {
      const std::uint32_t count = std::min(chunk, l.frame_count - at);
      const auto dirt =
          snapshot<frame_dirt>(gpu_, fs_, l.dirt + sizeof(frame_dirt) * std::uint64_t{at}, count);
      const auto first = std::find_if(dirt.begin(), dirt.end(), is_dirty);
      const auto end =
          std::find_if(dirt.rbegin(), std::make_reverse_iterator(first), is_dirty).base();
      if (first != end)
        write_chunk(at + static_cast<std::uint32_t>(first - dirt.begin()), {first, end});
      at += count;
      ++state_.steps;
    }
  }

  // Writes the dirty pages of the frames from `first_frame` on. `dirt` has one element per frame.
  void write_chunk(std::uint32_t first_frame, const std::vector<frame_dirt>& dirt) {
    const arena_layout& l = fs_.layout;
    const auto frames = snapshot<frame>(
        gpu_, fs_, l.frames + sizeof(frame) * std::uint64_t{first_frame}, dirt.size());
    std::vector<dirty_page> pages;
    for (std::uint32_t i = 0; i < dirt.size(); ++i) {
      if (!is_dirty(dirt[i])) continue;
      const slot_key key = frames[i].header.key();
      if (slot_state::phase(frames[i].header.state.peek()) != slot_phase::resident) continue;
      const auto version = versions_.find(key.high & ~detail::once_bit);
      if (version == versions_.end() || key.low >= limits::file_bytes_max >> l.page_shift) continue;
      pages.push_back({&version->second, key, i, dirt[i].flags.value});
    }
    if (pages.empty()) return;
    // One copy for the whole chunk: a copy from a GPU takes microseconds whatever its size.
    const std::uint64_t words = mask_words(l.page_bytes());
    std::vector<char> bytes(dirt.size() << l.page_shift);
    gpu_.copy_to_host(bytes.data(), fs_.page(first_frame), bytes.size());
    const auto masks = snapshot<std::uint64_t>(
        gpu_, fs_, l.masks + sizeof(std::uint64_t) * words * std::uint64_t{first_frame},
        words * dirt.size());
    std::sort(pages.begin(), pages.end(), [](const dirty_page& a, const dirty_page& b) {
      return a.key.high != b.key.high ? a.key.high < b.key.high : a.key.low < b.key.low;
    });
    for (const dirty_page& page : pages) {
      if (state_.given_up) return;
      const int status =
          write_page(page, bytes.data() + (std::uint64_t{page.place} << l.page_shift),
                     masks.data() + words * page.place);
      if (status < 0) report(*page.version->files.back(), status, file_operation::write_back);
    }
  }

  // Returns 0 or -errno.
  int write_page(const dirty_page& page, const char* bytes, const std::uint64_t* mask) {
    host_file& file = *page.version->files.back();
    if (!page.version->node.has_value()) page.version->node = node_of(gpu_, fs_, file);
    const inode_state& node = *page.version->node;
    // Fail if a kernel was writing the page back when it ended: which of its bytes are dirty is
    // then unknown. Also fail if the file's size is unknown.
    if ((page.flags & page_dirt::cleaning) != 0 || node.version.value != file.version().number)
      return -EIO;
    if (service_hangs_ && node.timed_out.value != node.settled.value) return -EIO;
    const std::uint64_t begin = page.key.low << fs_.layout.page_shift;
    // A file has less than file_bytes_max bytes.
    const std::uint64_t size = std::min(node.size.value, limits::file_bytes_max - 1);
    if (size <= begin) return 0;
    const std::uint64_t length = std::min(size - begin, fs_.layout.page_bytes());
    const bool whole = (page.flags & page_dirt::whole) != 0;
    if (!whole && (page.flags & page_dirt::partial) == 0) return 0;
    const auto write_through = [&](host_file& one) {
      return by_backend(one, -EBADF, [&](backend_file& reached) {
        const std::int64_t written =
            file_table::write(reached, bytes, length, begin, whole ? nullptr : mask, [&] {
              ++state_.steps;
              return true;
            });
        one.mark_untold();
        return std::min<std::int64_t>(written, 0);
      });
    };
    // A service thread that hung may close one of them meanwhile (-EBADF).
    int status = -EBADF;
    for (auto one = page.version->files.rbegin();
         status == -EBADF && one != page.version->files.rend(); ++one)
      status = write_through(**one);
    return status;
  }

  // Returns the result of `call(backend's file)`, or -EIO if it throws. `closed`: that of a file
  // that a service thread which hung has closed meanwhile.
  template <class Call>
  int by_backend(host_file& file, int closed, const Call& call) {
    int status = 0;
    try {
      std::shared_ptr<backend_file> reached;
      status = files_.reach(file, reached);
      if (status == -EBADF) status = closed;
      else if (status == 0)
        status = uninterrupted([&] { return static_cast<int>(call(*reached)); });
    } catch (...) {
      status = -EIO;  // a backend is the user's and may throw any type
    }
    ++state_.steps;
    return status;
  }

  // The earlier failures that the device has recorded. Each is 0 or -errno.
  struct earlier {
    int failed = 0;     // for gfsync and gclose to return
    int discarded = 0;  // of a last gclose that the host has not seen
  };
  earlier earlier_failures(const host_file& file) {
    try {
      const inode_state node = node_of(gpu_, fs_, file);
      if (node.version.value != file.version().number) return {};
      return {std::clamp(node.failed.value, -4095, 0), std::clamp(node.discarded.value, -4095, 0)};
    } catch (const error&) {
      return {-EIO, 0};  // the device no longer answers
    } catch (const std::bad_alloc&) {
      return {-ENOMEM, 0};
    }
  }

  void end_files(written_version& version) {
    host_file& one = *version.files.back();
    const earlier before = earlier_failures(one);
    if (before.discarded != 0) report(one, before.discarded, file_operation::write_back);
    int synced = 0;
    // Through each descriptor: one that was opened late may not be told of all errors. In no round:
    // a service thread that hangs may be making one.
    for (const std::shared_ptr<host_file>& file : version.files) {
      const int status = by_backend(*file, 0, [](backend_file& reached) { return reached.sync(); });
      if (synced == 0) synced = std::min(status, 0);
    }
    // GPU code may not have received the error of an earlier one.
    if (synced == 0) synced = one.writing()->syncs.error();
    if (synced < 0) report(one, synced, file_operation::sync);
    // An earlier sync that failed may have lost bytes for good.
    else if (before.failed != 0) report(one, before.failed, file_operation::sync);
    for (const std::shared_ptr<host_file>& file : version.files) {
      const int closed =
          by_backend(*file, 0, [&](backend_file& reached) { return files_.report_close(reached); });
      if (closed < 0) report(*file, closed, file_operation::close);
    }
  }

  void report(const host_file& file, int status, file_operation what) {
    // After the waiter gave up, it has reported these files itself.
    if (!state_.given_up) files_.errors().add(file.path(), status, what, true);
  }
  void fail_all(int status) {
    for (const auto& [number, version] : versions_)
      report(*version.files.back(), status, file_operation::write_back);
  }

  device& gpu_;
  const mount_ref fs_;
  file_table& files_;
  const bool service_hangs_;
  flush_state& state_;
  written_versions versions_;  // a copy: state.unfinished shrinks
};

// Returns false if no call returned for `timeout_ns`.
bool wait_for(const flush_state& state, std::uint64_t timeout_ns) {
  deadline end = deadline::after(timeout_ns);
  std::uint64_t seen = state.steps;
  while (!state.done.load(std::memory_order_acquire)) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    const std::uint64_t steps = state.steps;
    if (steps != seen) {
      seen = steps;
      end = deadline::after(timeout_ns);
    } else if (end.left_ns() == 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool flush_files(device& gpu, const mount_ref& fs, file_table& files, const flush_rules& rules) {
  const auto state = std::make_shared<flush_state>();
  state->unfinished = versions_of(files);
  if (state->unfinished.empty() || !fs.writes()) return true;
  // Allocated here, where a lack of memory can be reported.
  const auto all = std::make_shared<flusher>(gpu, fs, files, rules.service_hangs, *state);
  const auto flush = [all, state] {
    all->run();
    state->done.store(true, std::memory_order_release);
  };
  std::thread thread;
  try {
    thread = start_thread(flush);
  } catch (const std::exception&) {  // no thread, or no memory for one
    const blocked_signals meanwhile;
    flush();  // without a time limit
    return true;
  }
  if (wait_for(*state, rules.timeout_ns)) {
    thread.join();
    return true;
  }
  thread.detach();
  const std::lock_guard lock(state->mutex);
  for (const auto& [number, version] : state->unfinished)
    files.errors().add(version.files.back()->path(), -ETIMEDOUT, file_operation::write_back, true);
  state->given_up = true;
  return false;
}

void report_unwritten(device& gpu, const mount_ref& fs, file_table& files, int status) {
  if (!fs.writes()) return;
  std::vector<unreported_loss> losses;
  try {
    losses = unreported_losses(gpu, fs, files);
  } catch (const error&) {
    // The device no longer answers: see below.
  }
  for (const auto& [number, version] : versions_of(files)) {
    const host_file& file = *version.files.back();
    bool is_dirty = true;  // unless the device shows that it is not
    try {
      const inode_state node = node_of(gpu, fs, file);
      is_dirty = node.version.value != number || node.dirty.value != 0 ||
                 node.discarded.value != 0 ||
                 std::ranges::any_of(losses, [&](const unreported_loss& loss) {
                   return loss.file->version().number == number;
                 });
    } catch (const error&) {
      // The device no longer answers.
    }
    if (is_dirty) files.errors().add(file.path(), status, file_operation::write_back, true);
  }
}

}  // namespace gpufs
