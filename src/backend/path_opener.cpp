#include "backend/path_opener.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>

#include "base/uninterrupted.hpp"
#include "gpufs/base/kernel_file_systems.hpp"
#include "gpufs/base/limits.hpp"
#include "gpufs/error.hpp"

namespace gpufs {
namespace {

constexpr int folder_flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
constexpr int links_max = 40;                              // as many as the kernel follows
constexpr int no_links = std::numeric_limits<int>::min();  // /proc is not mounted; not an errno

// 0 if the file system of a descriptor holds data, or -errno.
int check_file_system(int descriptor) {
  struct statfs s;
  if (fstatfs(descriptor, &s) != 0) return -errno;
  return is_kernel_file_system(static_cast<std::uint32_t>(s.f_type)) ? -EINVAL : 0;
}

// 0 if the descriptor's file is a regular file that may be opened, or -errno. It uses statx(2),
// because ThreadSanitizer takes fstat(2) for a use of the process's table (descriptor_table.cpp).
int check_file(int descriptor, struct statx& s) {
  if (statx(descriptor, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO, &s) != 0) return -errno;
  if (S_ISDIR(s.stx_mode)) return -EISDIR;
  if (S_ISLNK(s.stx_mode)) return -ELOOP;
  return S_ISREG(s.stx_mode) ? check_file_system(descriptor) : -EINVAL;
}

descriptor_table::kept_name kept_name_of(const struct statx& s, int flags) {
  return {makedev(s.stx_dev_major, s.stx_dev_minor), s.stx_ino, flags & O_ACCMODE};
}

// 0 if a link in a folder may be followed, or -errno. The rule is that of fs.protected_symlinks: in
// a sticky folder that everybody may write, -EACCES for links that belong neither to the caller nor
// to the folder's owner.
int check_link(const struct statx& link, int folder) {
  struct statx s;
  if (statx(folder, "", AT_EMPTY_PATH, STATX_MODE | STATX_UID, &s) != 0) return -errno;
  constexpr unsigned for_all = S_ISVTX | S_IWOTH;
  const bool is_for_all = (s.stx_mode & for_all) == for_all;
  return is_for_all && link.stx_uid != geteuid() && link.stx_uid != s.stx_uid ? -EACCES : 0;
}

// Splits a path into the part before its last name, and that name with the slashes after it.
std::pair<std::string, std::string> split(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return {path.empty() ? "." : "/", ""};
  const std::size_t slash = path.find_last_of('/', end);
  if (slash == std::string::npos) return {".", path};
  return {path.substr(0, slash + 1), path.substr(slash + 1)};
}

}  // namespace

path_opener::path_opener(const std::optional<std::string>& root, const std::string& proc) {
  const auto open_folder = [](const std::string& path) {
    const int fd = ::open(path.c_str(), folder_flags);
    if (fd < 0 || fd > 2) return fd;
    const int higher = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    (void)close(fd);
    return higher;
  };
  if (root) {
    if (root->empty()) throw error(EINVAL, "root: an empty path; to serve all files, give no root");
    root_ = open_folder(*root);
    if (root_ < 0) throw error(errno, "root", *root);
    if (const int itself = find(".", folder_flags); itself >= 0) (void)close(itself);
    else {
      (void)close(root_);
      throw error(-itself, "root: openat2", *root);
    }
  }
  links_ = open_folder(proc + "/self/fd");
}

path_opener::~path_opener() {
  if (root_ >= 0) (void)close(root_);
  if (links_ >= 0) (void)close(links_);
}

// As open(2) of an existing file, below the root. Returns a descriptor, or -errno.
int path_opener::find(const std::string& path, int flags) const {
  if (!has_root())
    return uninterrupted(
        [&] { return descriptor_table::of_this_thread().open(path.c_str(), flags); });
  // As in the kernel's uapi header (openat2, Linux 5.6).
  struct {
    std::uint64_t flags, mode, resolve;
  } const how{static_cast<unsigned>(flags), 0, 0x08 /* RESOLVE_BENEATH */};
  constexpr long openat2_call = 437;
  // EAGAIN: something was renamed meanwhile, so the kernel could not tell whether `..` leads out of
  // the root. All attempts together sleep for 0.1 s.
  constexpr int attempts_at_once = 20, attempts_max = 64;
  for (int attempt = 1;; ++attempt) {
    const int fd = uninterrupted([&] {
      const long result = syscall(openat2_call, root_, path.c_str(), &how, sizeof how);
      return result < 0 ? -errno : static_cast<int>(result);
    });
    if (fd != -EAGAIN || attempt == attempts_max) return fd;
    if (attempt >= attempts_at_once)
      std::this_thread::sleep_for(std::chrono::microseconds(100) *
                                  (attempt - attempts_at_once + 1));
  }
}

int path_opener::open(const std::string& path, const open_how& how, bool& readable) const {
  readable = true;
  std::string at = path;
  for (int links = 0; links < links_max; ++links) {
    if (!how.create || !how.exclusive) {
      const int fd = open_existing(at, how, readable);
      if (fd != -ENOENT || !how.create) return fd;
    }
    const int fd = create(at, how);
    if (fd != -EEXIST || how.exclusive) return fd;
    // Another program has made the name meanwhile, or it is a link to a file that does not exist.
    // What exists is opened by another lookup, because the kernel decides about links.
    if (const int made = open_existing(at, how, readable); made != -ENOENT) return made;
    if (how.no_follow) continue;
    if (const int status = follow(at); status < 0) return status;
  }
  return -ELOOP;
}

int path_opener::open_existing(const std::string& path, const open_how& how, bool& readable) const {
  const path_descriptor found(
      [&] { return find(path, O_PATH | O_CLOEXEC | (how.no_follow ? O_NOFOLLOW : 0)); });
  if (found.number() < 0) return found.number();
  if (!how.write) return reopen(found, path, O_RDONLY, how.no_follow);
  const int fd = reopen(found, path, O_RDWR, how.no_follow);
  // The file may be written but not read. Then its pages cannot be loaded, but a file that is
  // opened only for writing needs no reads.
  if (fd != -EACCES || how.read) return fd;
  readable = false;
  return reopen(found, path, O_WRONLY, how.no_follow);
}

int path_opener::reopen(const path_descriptor& found, const std::string& path, int access,
                        bool no_follow) const {
  // O_NONBLOCK has no effect on a regular file, except that the open does not wait for another
  // program's lease.
  const int flags = access | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  if (const int fd = open_found(found, flags); fd != -ESTALE && fd != no_links) return fd;
  const int fd = find(path, flags | (no_follow ? O_NOFOLLOW : 0));
  if (fd < 0) return fd;
  struct statx s;
  if (const int status = check_file(fd, s); status < 0) {
    descriptor_table::of_this_thread().close(fd);
    return status;
  }
  return fd;
}

// Opens exactly the found file. Returns a descriptor, -errno, or no_links.
int path_opener::open_found(const path_descriptor& found, int flags) const {
  struct statx s;
  if (const int status = check_file(found.number(), s); status < 0) return status;
  descriptor_table& table = descriptor_table::of_this_thread();
  if (const int kept = table.take_kept(kept_name_of(s, flags), found.number()); kept != -ENOENT)
    return kept;
  const int links = table.is_own() ? table.links() : links_;
  if (links < 0) return no_links;
  const std::string link = std::to_string(found.number());
  const int fd = uninterrupted([&] { return table.open(link.c_str(), flags, 0, links); });
  char to = 0;
  return fd >= 0 || readlinkat(links, link.c_str(), &to, 1) > 0 ? fd : no_links;
}

int path_opener::create(const std::string& path, const open_how& how) const {
  const int flags =
      (how.write ? O_RDWR : O_RDONLY) | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  return at_parent(path, [&](int folder, const char* name) {
    return uninterrupted(
        [&] { return descriptor_table::of_this_thread().open(name, flags, how.mode, folder); });
  });
}

// Replaces a link's path by the path that it leads to. Leaves another path as it is. 0, or -errno:
// -EACCES for a link that must not be followed (check_link).
int path_opener::follow(std::string& path) const {
  std::string target(limits::path_bytes_max, '\0');
  const int bytes = at_parent(path, [&](int folder, const char* name) {
    // One descriptor for both, so that the link that is read is the link that was checked.
    descriptor_table& table = descriptor_table::of_this_thread();
    const path_descriptor link(
        [&] { return table.open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0, folder); });
    if (link.number() < 0) return link.number() == -ENOENT ? 0 : link.number();
    struct statx s;
    if (statx(link.number(), "", AT_EMPTY_PATH, STATX_TYPE | STATX_UID, &s) != 0) return -errno;
    if (!S_ISLNK(s.stx_mode)) return 0;
    if (const int status = check_link(s, folder); status < 0) return status;
    const ssize_t n = readlinkat(link.number(), "", target.data(), target.size());
    return n < 0 ? -errno : static_cast<int>(n);
  });
  if (bytes <= 0) return bytes;
  target.resize(static_cast<std::size_t>(bytes));
  path = target.starts_with('/') ? target : split(path).first + "/" + target;
  return 0;
}

// Returns what `act(folder, name)` returns for the last name of a path and its folder, after
// checking that the folder's file system holds data. Otherwise returns -errno.
template <class Act>
int path_opener::at_parent(const std::string& path, const Act& act) const {
  const auto [parent, name] = split(path);
  if (path.empty()) return -ENOENT;
  if (name.empty()) return has_root() ? -EXDEV : -EISDIR;
  const std::string plain = name.substr(0, name.find('/'));
  if (has_root() && (plain == "." || plain == "..")) return -EINVAL;
  const path_descriptor folder([&] { return find(parent, folder_flags); });
  if (folder.number() < 0) return folder.number();
  if (const int status = check_file_system(folder.number()); status < 0) return status;
  return act(folder.number(), name.c_str());
}

int path_opener::unlink(const std::string& path) const {
  return at_parent(path, [](int folder, const char* name) {
    return unlinkat(folder, name, 0) == 0 ? 0 : -errno;
  });
}

int path_opener::rename(const std::string& path, const std::string& new_path) const {
  return at_parent(path, [&](int folder, const char* name) {
    return at_parent(new_path, [&](int new_folder, const char* new_name) {
      return renameat(folder, name, new_folder, new_name) == 0 ? 0 : -errno;
    });
  });
}

int path_opener::sync_folder(const std::string& path) const {
  const path_descriptor found([&] { return find(path, folder_flags); });
  if (found.number() < 0) return found.number();
  if (const int status = check_file_system(found.number()); status < 0) return status;
  struct statx s;
  if (statx(found.number(), "", AT_EMPTY_PATH, STATX_INO, &s) != 0) return -errno;
  descriptor_table& table = descriptor_table::of_this_thread();
  constexpr int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  int folder = table.take_kept(kept_name_of(s, flags), found.number());
  if (folder == -ENOENT)
    folder = uninterrupted([&] { return table.open(".", flags, 0, found.number()); });
  if (folder < 0) return folder;
  const int status = uninterrupted([&] { return fsync(folder) == 0 ? 0 : -errno; });
  table.close(folder);
  return status;
}

}  // namespace gpufs
