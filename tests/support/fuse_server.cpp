#include "support/fuse_server.hpp"

#define FUSE_USE_VERSION 35
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace gpufs::testing {
namespace {

using op = fuse_operation;

// A file or folder that the kernel knows. Its descriptor prevents the reuse of the inode.
struct node {
  int fd = -1;  // O_PATH
  bool is_file = false;
  bool was_removed_here = false;  // by a client of this mount, whose open files stay valid
};

class server {
 public:
  server(const std::string& served, const fuse_options& options, fuse_folder::control& control)
      : options_(options), control_(control) {
    root_.fd = ::open(served.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  }

  node& at(fuse_ino_t number) {
    return number == FUSE_ROOT_ID ? root_ : *reinterpret_cast<node*>(number);
  }

  // Returns the effect of a rule on a request: 0 or an errno.
  int struck(op on) {
    fuse_folder::rule& rule = control_.rules[static_cast<int>(on)];
    ++rule.calls;
    if (rule.hangs) {
      ++control_.hanging;
      while (rule.hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      --control_.hanging;
    }
    const int error = rule.error;
    if (error == 0) return 0;
    std::uint64_t left = rule.times;
    while (left != 0 && !rule.times.compare_exchange_weak(left, left - 1)) {
    }
    return left != 0 ? error : 0;
  }
  // The same for a request about a node.
  int struck(op on, const node& n) {
    if (!n.is_file) return 0;
    const int error = struck(on);
    return error != 0 ? error : is_stale(n) ? ESTALE : 0;
  }

  // Returns 0 and the entry, or an errno.
  int find(node& parent, const char* name, fuse_entry_param& entry) {
    const int fd = openat(parent.fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno;
    if (fstat(fd, &entry.attr) != 0) return errno;
    const std::lock_guard lock(mutex_);
    std::unique_ptr<node>& known = nodes_[{entry.attr.st_dev, entry.attr.st_ino}];
    if (known == nullptr) {
      known = std::make_unique<node>();
      known->fd = fd;
      known->is_file = S_ISREG(entry.attr.st_mode);
    } else {
      (void)::close(fd);
    }
    entry.ino = reinterpret_cast<fuse_ino_t>(known.get());
    entry.entry_timeout = options_.trusts_names_s;
    entry.attr_timeout = options_.trusts_attributes_s;
    return 0;
  }
  void note_removed(const node& parent, const char* name) {
    struct stat s{};
    if (fstatat(parent.fd, name, &s, AT_SYMLINK_NOFOLLOW) != 0) return;
    const std::lock_guard lock(mutex_);
    if (const auto known = nodes_.find({s.st_dev, s.st_ino}); known != nodes_.end())
      known->second->was_removed_here = true;
  }
  static std::string link_to(const node& n) { return "/proc/self/fd/" + std::to_string(n.fd); }
  int open(const node& n, int flags) const {
    // The kernel then reads what surrounds a write, and appends by itself.
    if (options_.writes_back) {
      if ((flags & O_ACCMODE) == O_WRONLY) flags = (flags & ~O_ACCMODE) | O_RDWR;
      flags &= ~O_APPEND;
    }
    return ::open(link_to(n).c_str(), (flags & ~(O_NOFOLLOW | O_CREAT | O_EXCL)) | O_CLOEXEC);
  }
  double trusts_attributes_s() const { return options_.trusts_attributes_s; }
  bool writes_back() const { return options_.writes_back; }
  fuse_folder::control& control() { return control_; }

 private:
  static bool is_stale(const node& n) {
    struct stat s{};
    return !n.was_removed_here && fstat(n.fd, &s) == 0 && s.st_nlink == 0;
  }

  const fuse_options options_;
  fuse_folder::control& control_;
  node root_;
  std::mutex mutex_;  // guards the members below
  std::map<std::pair<dev_t, ino_t>, std::unique_ptr<node>> nodes_;
};

server& of(fuse_req_t request) { return *static_cast<server*>(fuse_req_userdata(request)); }
// Answers a request without a result of its own.
void answer(fuse_req_t request, int status) {
  (void)fuse_reply_err(request, status == 0 ? 0 : errno);
}

void init(void* data, fuse_conn_info* connection) {
  auto& s = *static_cast<server*>(data);
  // As a client of a network file system does.
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_ATOMIC_O_TRUNC);
  if (s.writes_back() && (connection->capable & FUSE_CAP_WRITEBACK_CACHE) != 0) {
    connection->want |= FUSE_CAP_WRITEBACK_CACHE;
    s.control().writes_back = true;
  }
}

void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  server& s = of(request);
  fuse_entry_param entry{};
  int error = s.find(s.at(parent), name, entry);
  if (error == 0 && S_ISREG(entry.attr.st_mode)) error = s.struck(op::lookup);
  if (error != 0) (void)fuse_reply_err(request, error);
  else (void)fuse_reply_entry(request, &entry);
}

void answer_attributes(fuse_req_t request, const node& n) {
  struct stat attributes{};
  if (fstatat(n.fd, "", &attributes, AT_EMPTY_PATH) != 0) return answer(request, -1);
  (void)fuse_reply_attr(request, &attributes, of(request).trusts_attributes_s());
}
void getattr(fuse_req_t request, fuse_ino_t number, fuse_file_info*) {
  server& s = of(request);
  const node& n = s.at(number);
  if (const int error = s.struck(op::getattr, n); error != 0) (void)fuse_reply_err(request, error);
  else answer_attributes(request, n);
}
void setattr(fuse_req_t request, fuse_ino_t number, struct stat* to, int what, fuse_file_info*) {
  server& s = of(request);
  const node& n = s.at(number);
  if (const int error = s.struck(op::setattr, n); error != 0)
    return (void)fuse_reply_err(request, error);
  const std::string link = server::link_to(n);
  if ((what & FUSE_SET_ATTR_MODE) != 0 && chmod(link.c_str(), to->st_mode) != 0)
    return answer(request, -1);
  if ((what & FUSE_SET_ATTR_SIZE) != 0 && truncate(link.c_str(), to->st_size) != 0)
    return answer(request, -1);
  if ((what & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME)) != 0) {
    const auto time = [what](int set, int now, timespec given) {
      return (what & now) != 0   ? timespec{0, UTIME_NOW}
             : (what & set) != 0 ? given
                                 : timespec{0, UTIME_OMIT};
    };
    const timespec times[] = {time(FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW, to->st_atim),
                              time(FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW, to->st_mtim)};
    if (utimensat(AT_FDCWD, link.c_str(), times, 0) != 0) return answer(request, -1);
  }
  answer_attributes(request, n);
}

void open(fuse_req_t request, fuse_ino_t number, fuse_file_info* info) {
  server& s = of(request);
  const node& n = s.at(number);
  if (const int error = s.struck(op::open, n); error != 0)
    return (void)fuse_reply_err(request, error);
  const int fd = s.open(n, info->flags);
  if (fd < 0) return answer(request, -1);
  info->fh = static_cast<std::uint64_t>(fd);
  (void)fuse_reply_open(request, info);
}
void create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode,
            fuse_file_info* info) {
  server& s = of(request);
  if (const int error = s.struck(op::create); error != 0)
    return (void)fuse_reply_err(request, error);
  const int made =
      openat(s.at(parent).fd, name, (info->flags & O_EXCL) | O_CREAT | O_WRONLY | O_CLOEXEC, mode);
  if (made < 0) return answer(request, -1);
  (void)::close(made);
  fuse_entry_param entry{};
  if (const int error = s.find(s.at(parent), name, entry); error != 0)
    return (void)fuse_reply_err(request, error);
  const int fd = s.open(s.at(entry.ino), info->flags);
  if (fd < 0) return answer(request, -1);
  info->fh = static_cast<std::uint64_t>(fd);
  (void)fuse_reply_create(request, &entry, info);
}
void read(fuse_req_t request, fuse_ino_t number, std::size_t bytes, off_t offset,
          fuse_file_info* info) {
  server& s = of(request);
  if (const int error = s.struck(op::read, s.at(number)); error != 0)
    return (void)fuse_reply_err(request, error);
  std::vector<char> buffer(bytes);
  const ssize_t n = pread(static_cast<int>(info->fh), buffer.data(), bytes, offset);
  if (n < 0) return answer(request, -1);
  (void)fuse_reply_buf(request, buffer.data(), static_cast<std::size_t>(n));
}
void write(fuse_req_t request, fuse_ino_t number, const char* from, std::size_t bytes, off_t offset,
           fuse_file_info* info) {
  server& s = of(request);
  if (const int error = s.struck(op::write, s.at(number)); error != 0)
    return (void)fuse_reply_err(request, error);
  const ssize_t n = pwrite(static_cast<int>(info->fh), from, bytes, offset);
  if (n < 0) return answer(request, -1);
  (void)fuse_reply_write(request, static_cast<std::size_t>(n));
}
void flush(fuse_req_t request, fuse_ino_t number, fuse_file_info*) {
  (void)fuse_reply_err(request, of(request).struck(op::flush, of(request).at(number)));
}
void release(fuse_req_t request, fuse_ino_t number, fuse_file_info* info) {
  const int error = of(request).struck(op::release, of(request).at(number));
  (void)::close(static_cast<int>(info->fh));
  (void)fuse_reply_err(request, error);
}
void fsync(fuse_req_t request, fuse_ino_t number, int, fuse_file_info* info) {
  if (const int error = of(request).struck(op::fsync, of(request).at(number)); error != 0)
    return (void)fuse_reply_err(request, error);
  answer(request, fdatasync(static_cast<int>(info->fh)));
}

void unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  server& s = of(request);
  s.note_removed(s.at(parent), name);
  answer(request, unlinkat(s.at(parent).fd, name, 0));
}
void rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
            const char* new_name, unsigned flags) {
  server& s = of(request);
  if (flags != 0) return (void)fuse_reply_err(request, EINVAL);
  s.note_removed(s.at(new_parent), new_name);
  answer(request, renameat(s.at(parent).fd, name, s.at(new_parent).fd, new_name));
}
void mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  server& s = of(request);
  if (mkdirat(s.at(parent).fd, name, mode) != 0) return answer(request, -1);
  fuse_entry_param entry{};
  if (const int error = s.find(s.at(parent), name, entry); error != 0)
    (void)fuse_reply_err(request, error);
  else (void)fuse_reply_entry(request, &entry);
}
void rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  answer(request, unlinkat(of(request).at(parent).fd, name, AT_REMOVEDIR));
}

// Reads all names at once, when the folder is opened.
using names = std::vector<std::string>;
void opendir(fuse_req_t request, fuse_ino_t number, fuse_file_info* info) {
  auto found = std::make_unique<names>();
  std::error_code error;
  for (const auto& e :
       std::filesystem::directory_iterator(server::link_to(of(request).at(number)), error))
    found->push_back(e.path().filename());
  if (error) return (void)fuse_reply_err(request, error.value());
  info->fh = reinterpret_cast<std::uint64_t>(found.release());
  (void)fuse_reply_open(request, info);
}
void readdir(fuse_req_t request, fuse_ino_t, std::size_t bytes, off_t offset,
             fuse_file_info* info) {
  const names& all = *reinterpret_cast<names*>(info->fh);
  std::vector<char> buffer(bytes);
  std::size_t used = 0;
  struct stat unknown{};
  for (auto i = static_cast<std::size_t>(offset); i < all.size(); ++i) {
    const std::size_t more = fuse_add_direntry(request, buffer.data() + used, bytes - used,
                                               all[i].c_str(), &unknown, static_cast<off_t>(i + 1));
    if (more > bytes - used) break;
    used += more;
  }
  (void)fuse_reply_buf(request, buffer.data(), used);
}
void releasedir(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  delete reinterpret_cast<names*>(info->fh);
  (void)fuse_reply_err(request, 0);
}
void fsyncdir(fuse_req_t request, fuse_ino_t, int, fuse_file_info*) {
  (void)fuse_reply_err(request, of(request).struck(op::fsyncdir));
}
void statfs(fuse_req_t request, fuse_ino_t number) {
  struct statvfs s{};
  if (fstatvfs(of(request).at(number).fd, &s) != 0) return answer(request, -1);
  (void)fuse_reply_statfs(request, &s);
}

}  // namespace

void serve_fuse(int device, const std::string& served, const fuse_options& options,
                fuse_folder::control& control) {
  static server one(served, options, control);
  fuse_lowlevel_ops ops{};
  ops.init = init;
  ops.lookup = lookup;
  ops.getattr = getattr;
  ops.setattr = setattr;
  ops.open = open;
  ops.create = create;
  ops.read = read;
  ops.write = write;
  ops.flush = flush;
  ops.release = release;
  ops.fsync = fsync;
  ops.unlink = unlink;
  ops.rename = rename;
  ops.mkdir = mkdir;
  ops.rmdir = rmdir;
  ops.opendir = opendir;
  ops.readdir = readdir;
  ops.releasedir = releasedir;
  ops.fsyncdir = fsyncdir;
  ops.statfs = statfs;
  char name[] = "gpufs-test";
  char* arguments[] = {name, nullptr};
  fuse_args args = FUSE_ARGS_INIT(1, arguments);
  fuse_session* const session = fuse_session_new(&args, &ops, sizeof ops, &one);
  if (session == nullptr ||
      fuse_session_mount(session, ("/dev/fd/" + std::to_string(device)).c_str()) != 0)
    _exit(1);
  fuse_loop_config config{};
  config.max_idle_threads = 10;
  (void)fuse_session_loop_mt(session, &config);
  _exit(0);
}

}  // namespace gpufs::testing
