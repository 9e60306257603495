// The writers of the file table: through which file a version's bytes are written, and the calls
// that tell whether they are lost.
#include <errno.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "base/uninterrupted.hpp"
#include "service/file_table.hpp"

namespace gpufs {

// Called before the file leaves its node.
void file_table::forget_writer(host_file& file) {
  {
    writer_list one;  // destroyed after the mutex is released
    const std::lock_guard lock(nodes_mutex_);
    // No search: a kernel may open one file as often as there are handles.
    if (file.is_writer_) one.splice(one.end(), writers_[file.node()], file.place_);
    file.is_writer_ = false;
  }
  epoch_.fetch_add(1);  // sequentially consistent: see is_written_through()
}

std::shared_ptr<host_file> file_table::find_writer(std::uint64_t name) const {
  const std::uint32_t node = node_of(name);
  const std::shared_lock lock(nodes_mutex_);
  if (node >= writers_.size() || writers_[node].empty()) return nullptr;
  const std::shared_ptr<host_file>& file = writers_[node].back();
  return node_name(node, file->version().number) == name ? file : nullptr;
}

std::vector<std::shared_ptr<host_file>> file_table::writers() const {
  const std::shared_lock lock(nodes_mutex_);
  std::vector<std::shared_ptr<host_file>> all;
  for (const auto& files : writers_) all.insert(all.end(), files.begin(), files.end());
  return all;
}

std::vector<std::shared_ptr<host_file>> file_table::writers_of(std::uint32_t node) const {
  const std::shared_lock lock(nodes_mutex_);
  return node < writers_.size() ? std::vector(writers_[node].begin(), writers_[node].end())
                                : std::vector<std::shared_ptr<host_file>>();
}

void file_table::note_close(host_file& file) {
  {
    const std::lock_guard lock(nodes_mutex_);
    if (file.is_writer_) {
      writer_list& files = writers_[file.node()];
      files.splice(files.begin(), files, file.place_);
    }
    // Sequentially consistent, and before the report. A writer loads it after its write. So either
    // the report comes after that write, or the writer reports again.
    file.is_close_reported_ = true;
  }
  // Threads that remember this file as the node's writer look it up again.
  epoch_.fetch_add(1, std::memory_order_release);
}

int file_table::report_close(backend_file& reached) {
  return uninterrupted([&] {
    return with_room(next_room_.fetch_add(1, std::memory_order_relaxed),
                     [&] { return std::min(reached.report_close(), 0); });
  });
}

int file_table::ask(host_file& file, const std::shared_ptr<backend_file>& reached,
                    sync_rounds::kind what) {
  return file.writing().syncs.run(what, reached.get(), [&] {
    if (what == sync_rounds::kind::sync)
      return uninterrupted([&] { return std::min(reached->sync(), 0); });
    // Loaded before the report, which may miss later writes. Rounds come one after another, so
    // nobody stores a smaller number later.
    const std::uint64_t writes = file.writes_made_.load();
    if (what == sync_rounds::kind::close_if_written && writes == file.writes_reported_.load())
      return 0;
    int status = -EIO;
    try {
      status = report_close(*reached);
    } catch (...) {
      errors_.add(file.path(), status, file_operation::close);
      throw;
    }
    file.writes_reported_.store(writes);
    if (status < 0) errors_.add(file.path(), status, file_operation::close);
    return status;
  });
}

int file_table::ask_all(host_file& file, sync_rounds::kind what,
                        const std::function<bool()>& goes_on) {
  int status = 0;
  const auto ask_one = [&](host_file& one, sync_rounds::kind how) {
    std::shared_ptr<backend_file> reached;
    int result = reach(one, reached);
    // Another one that is being closed is no writer any more: its close was reported before.
    if (result == -EBADF && &one != &file) return;
    if (result == 0) result = ask(one, reached, how);
    if (status == 0) status = result;
  };
  ask_one(file, what);
  for (const std::shared_ptr<host_file>& other : writers_of(file.node())) {
    if (other.get() == &file) continue;
    if (!goes_on()) return status != 0 ? status : -EIO;
    ask_one(*other, what == sync_rounds::kind::close ? sync_rounds::kind::close_if_written : what);
  }
  return status != 0 ? status : file.writing().syncs.error();
}

}  // namespace gpufs
