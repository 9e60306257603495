// The writers of the file table: through which file a version's bytes are written, and the calls
// that tell whether they are lost.
#include <errno.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "base/uninterrupted.hpp"
#include "service/file_table.hpp"

namespace gpufs {

// Called before the file leaves its node. Returns whether it is kept in `closed_`, because it may
// have an untold error.
bool file_table::forget_writer(host_file& file, closing how) {
  bool is_kept = false;
  {
    host_file_list one;  // destroyed after the mutex is released
    const std::lock_guard lock(nodes_mutex_);
    // Before the mark is loaded: see note_write(). Inside the mutex: a thread that looks the file
    // up with this epoch finds it no more.
    epoch_.fetch_add(1);
    if (file.stands_ == host_file::standing::writer) {
      is_kept = how != closing::asks_nothing && file.untold_.load();
      file.stands_ = !is_kept               ? host_file::standing::none
                     : how == closing::asks ? host_file::standing::in_round
                                            : host_file::standing::closed;
      // No search: a kernel may open one file as often as there are handles.
      host_file_list& to = is_kept ? closed_ : one;
      to.splice(to.end(), writers_[file.node()], file.place_);
    }
  }
  // After the file has left its node: a thread may have looked it up meanwhile. Sequentially
  // consistent: see is_written_through().
  epoch_.fetch_add(1);
  return is_kept;
}

// Called when a file of `closed_` was asked. Returns false if a write that ended meanwhile has
// marked it again: then it must be asked again, unless `at_once`.
bool file_table::forget_closed(host_file& file, bool at_once) {
  host_file_list one;                  // destroyed after the mutexes are released
  std::shared_ptr<backend_file> last;  // likewise
  const std::lock_guard lock(nodes_mutex_);
  if (!at_once && file.untold_.load()) return false;
  one.splice(one.end(), closed_, file.place_);
  file.stands_ = host_file::standing::none;
  const std::lock_guard own(file.mutex_);
  last.swap(file.file_);
  return true;
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
  std::vector<std::shared_ptr<host_file>> all(closed_.begin(), closed_.end());
  for (const auto& files : writers_) all.insert(all.end(), files.begin(), files.end());
  return all;
}

int file_table::note_write(const lookups::entry& through, const lookups& known) {
  host_file& file = *through.file;
  file.mark_untold();
  // Sequentially consistent: either the close sees the mark and asks, or this thread sees the
  // epoch that was raised before.
  if (known.epoch == epoch_.load()) return 0;
  host_file_list one{through.file};
  {
    const std::lock_guard lock(nodes_mutex_);
    if (file.stands_ != host_file::standing::none) return 0;
    file.stands_ = host_file::standing::in_round;
    file.place_ = one.begin();
    closed_.splice(closed_.end(), one);
    const std::lock_guard own(file.mutex_);
    file.file_ = through.reached;
  }
  return ask_closed(file);
}

void file_table::note_close(host_file& file) {
  {
    const std::lock_guard lock(nodes_mutex_);
    if (file.stands_ == host_file::standing::writer) {
      host_file_list& files = writers_[file.node()];
      files.splice(files.begin(), files, file.place_);
    }
    file.mark_untold();
  }
  // Threads that remember this file as the node's writer look it up again.
  epoch_.fetch_add(1, std::memory_order_release);
}

int file_table::ask(std::shared_ptr<writing_state> of, round_request r, bool& is_added) {
  const bool makes = of->syncs.add(r.what, std::move(r.done), std::move(r.place));
  is_added = true;
  if (!makes) return 0;
  return of->syncs.make([&](sync_rounds::kind what) { return make_round(*of, what); });
}

// Makes one round. A request may concern bytes that were written through any of the files, and one
// that was opened late may not be told of all errors. So a sync goes through all of them, and the
// report of a close through those that may have an untold error. Returns the first error, also of
// an earlier round.
int file_table::make_round(writing_state& of, sync_rounds::kind what) {
  int status = 0;
  std::exception_ptr thrown;  // the others are asked all the same
  for (const file_to_ask& one : files_to_ask(of, what)) {
    if (rounds_ended_) return status != 0 ? status : -ECANCELED;
    try {
      const int result = one.is_closed                      ? report_closed(*one.file)
                         : what == sync_rounds::kind::close ? report(*one.file, true)
                                                            : sync(*one.file);
      if (status == 0) status = result;
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
  return status != 0 ? status : of.syncs.error();
}

std::vector<file_table::file_to_ask> file_table::files_to_ask(const writing_state& of,
                                                              sync_rounds::kind what) const {
  const auto is_of = [&](const std::shared_ptr<host_file>& file) {
    return file->writing().get() == &of;
  };
  std::vector<file_to_ask> found;
  unsigned marked = 0;
  const std::shared_lock lock(nodes_mutex_);
  for (const std::shared_ptr<host_file>& file : closed_) {
    if (!is_of(file)) continue;
    found.push_back({file, true});
    if (file->untold_.load()) ++marked;
  }
  // The node may have another file by now.
  if (of.node >= writers_.size() || writers_[of.node].empty() || !is_of(writers_[of.node].front()))
    return found;
  const host_file_list& all = writers_[of.node];
  if (what == sync_rounds::kind::sync) {
    for (const std::shared_ptr<host_file>& file : all) found.push_back({file});
    return found;
  }
  // From both ends: the file that is about to be closed is at the front, and the one through which
  // bytes are written at the back. So as many closes as there are files take no square of the time.
  const auto look_at = [&](const std::shared_ptr<host_file>& file) {
    if (!file->untold_.load()) return;
    found.push_back({file});
    ++marked;
  };
  // A file is counted before it is marked. So a mark that comes meanwhile hides no earlier one.
  const auto are_more = [&] { return marked < of.untold.load(); };
  auto front = all.begin();
  auto back = all.end();
  while (front != back && are_more()) {
    look_at(*front++);
    if (front != back && are_more()) look_at(*--back);
  }
  return found;
}

// Returns 0 or -errno. A file that was closed meanwhile has nothing to tell: it was not marked.
int file_table::sync(host_file& file) {
  std::shared_ptr<backend_file> reached;
  if (const int status = reach(file, reached); status < 0) return status == -EBADF ? 0 : status;
  const int status = uninterrupted([&] { return std::min(reached->sync(), 0); });
  file.writing()->syncs.note_error(status);
  return status;
}

// As sync(), for a report of the file's close. Adds an error to the log. `again`: if the backend
// cannot ask now, the next round does.
int file_table::report(host_file& file, bool again) {
  int status = -EIO;  // that of an exception
  try {
    // Reached before the mark is taken: a close that finds no mark does not keep the file.
    std::shared_ptr<backend_file> reached;
    status = reach(file, reached);
    if (status == -EBADF || (status == 0 && !file.take_untold())) return 0;
    if (status == 0) {
      status = -EIO;
      status = report_close(*reached);
    }
  } catch (...) {
    errors_.add(file.path(), -EIO, file_operation::close);
    throw;
  }
  if (status == 0) return 0;
  errors_.add(file.path(), status, file_operation::close);
  if (!backend_file::could_not_ask(status)) file.writing()->syncs.note_error(status);
  else if (again) file.mark_untold();
  return status;
}

int file_table::report_closed(host_file& file) {
  int status = 0;
  try {
    do {
      const int result = report(file, false);
      if (status == 0) status = result;
    } while (!forget_closed(file, false));
  } catch (...) {
    (void)forget_closed(file, true);
    throw;
  }
  return status;
}

int file_table::report_close(backend_file& reached) {
  return uninterrupted([&] {
    return with_room(next_room_.fetch_add(1, std::memory_order_relaxed),
                     [&] { return std::min(reached.report_close(), 0); });
  });
}

// After forget_writer() has kept the file. Returns 0, or the error if this thread makes the round.
int file_table::ask_closed(const host_file& file) noexcept {
  try {
    bool is_added = false;
    const int status = ask(file.writing(), {}, is_added);
    return status == -ECANCELED ? -EIO : status;
  } catch (...) {
    return -EIO;  // a backend is the user's and may throw any type
  }
}

void file_table::ask_closed() noexcept {
  if (!awaits_asking()) return;
  const auto is_waiting = [](const std::shared_ptr<host_file>& one) {
    return one->stands_ == host_file::standing::closed;
  };
  std::shared_ptr<host_file> file;
  {
    const std::lock_guard lock(nodes_mutex_);
    const auto found = std::ranges::find_if(closed_, is_waiting);
    if (found != closed_.end()) {
      file = *found;
      file->stands_ = host_file::standing::in_round;
    }
    // For another thread, because this one may hang.
    awaits_asking_ = std::ranges::any_of(closed_, is_waiting);
  }
  if (file != nullptr) (void)ask_closed(*file);
}

// Called when an opened file could not become one of the service. Its open or its close may take an
// error of bytes that were written through other files, which then tell of it.
void file_table::give_up(const std::string& path, backend_file& file,
                         const std::optional<key>& identified) noexcept {
  int status = -EIO;
  try {
    status = report_close(file);
  } catch (...) {
    // A backend is the user's and may throw any type.
  }
  if (status == 0) return;
  errors_.add(path, status, file_operation::close);
  if (!backend_file::could_not_ask(status)) note_loss(identified, status);
}

// Bytes that were written through files of `of` may be lost. No value: of any file.
void file_table::note_loss(const std::optional<key>& of, int status) noexcept {
  if (!of) {
    try {
      for (const std::shared_ptr<host_file>& writer : writers())
        writer->writing()->syncs.note_error(status);
    } catch (const std::bad_alloc&) {
      // No memory: the log has the error.
    }
    return;
  }
  bool may_be_ours = false;
  if (const auto state = last_writing(*of, may_be_ours)) state->syncs.note_error(status);
}

// What the listeners of a table share with it. Some of them outlive it.
struct file_table::listeners_link {
  explicit listeners_link(file_table& t) : table(&t) {}
  std::mutex mutex;  // held while a listener uses the table. Taken before all mutexes of the table
  file_table* table;
};

class file_table::listener final : public close_listener {
 public:
  listener(std::shared_ptr<listeners_link> link, std::shared_ptr<const counted_path> path,
           const key& of)
      : link_(std::move(link)), path_(std::move(path)), of_(of) {}
  void close_failed(int status) noexcept override {
    const std::lock_guard lock(link_->mutex);
    if (link_->table != nullptr) link_->table->note_close_error(path_->text(), of_, status);
  }

 private:
  const std::shared_ptr<listeners_link> link_;
  const std::shared_ptr<const counted_path> path_;
  const key of_;
};

file_table::file_table(std::shared_ptr<backend> io, std::size_t descriptors_max,
                       std::uint32_t nodes_max, const numbering& numbers)
    : io_(std::move(io)), descriptors_max_(descriptors_max), numbers_(numbers),
      listeners_(std::make_shared<listeners_link>(*this)), nodes_max_(nodes_max),
      next_version_(numbers.first_version) {}

file_table::~file_table() {
  const std::lock_guard lock(listeners_->mutex);
  listeners_->table = nullptr;
}

std::shared_ptr<close_listener> file_table::listen(std::shared_ptr<const counted_path> path,
                                                   const key& of) {
  return std::make_shared<listener>(listeners_, std::move(path), of);
}

void file_table::note_close_error(const std::string& path, const key& of, int status) noexcept {
  bool may_be_ours = false;
  const std::shared_ptr<writing_state> state = last_writing(of, may_be_ours);
  // What other programs have written is their loss. And a server may return an error that a report
  // has told already for each close.
  if (!may_be_ours || (state != nullptr && state->syncs.error() == status)) return;
  errors_.add(path, status, file_operation::close);
  if (state != nullptr) state->syncs.note_error(status);
}

}  // namespace gpufs
