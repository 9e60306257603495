// Finds the files below directories. Uses several threads, because most of the time is spent in the
// kernel's stat.
#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>

#include "gpufs/base/kernel_file_systems.hpp"
#include "grep.hpp"
#include "job/in_threads.hpp"

namespace gpufs::grep {

namespace {

constexpr unsigned walkers_max = 8;
constexpr const char* of_pseudo_file_system =
    "is of a pseudo file system, whose files cannot be searched";

// autofs mounts other file systems in its folders, so it is no pseudo file system here.
bool is_pseudo(const struct statfs& s) {
  const auto type = static_cast<std::uint32_t>(s.f_type);
  return type != AUTOFS_SUPER_MAGIC && is_kernel_file_system(type);
}

// Neither a regular file nor a directory.
const char* reason_to_refuse_type(mode_t mode) {
  if (S_ISFIFO(mode)) return "is a FIFO, neither a regular file nor a folder";
  if (S_ISSOCK(mode)) return "is a socket, neither a regular file nor a folder";
  return "is a device, neither a regular file nor a folder";
}

struct found {
  std::vector<file_item> files;
  std::vector<path_failure> failures;
};

struct close_directory {
  void operator()(DIR* d) const { closedir(d); }
};

struct directory {
  std::string path;
  bool is_root;
};

// The directories that are not listed yet, shared by the threads.
class pending_directories {
 public:
  void add(std::vector<directory>&& more) {
    if (more.empty()) return;
    {
      const std::lock_guard lock(mutex_);
      std::move(more.begin(), more.end(), std::back_inserter(stack_));
    }
    wake_.notify_all();
  }

  // Waits for a directory. Returns false if there is none and no thread lists one that could add
  // more.
  bool take(directory& d) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return !stack_.empty() || listing_ == 0; });
    if (stack_.empty()) return false;
    d = std::move(stack_.back());
    stack_.pop_back();
    ++listing_;
    return true;
  }

  void listed() {
    bool last = false;
    {
      const std::lock_guard lock(mutex_);
      last = --listing_ == 0;
    }
    if (last) wake_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<directory> stack_;  // guarded by mutex_
  // directories that were taken and are not fully listed yet; guarded by mutex_
  unsigned listing_ = 0;
};

void list(const directory& d, found& out, std::vector<directory>& below) {
  const int fd =
      open(d.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | (d.is_root ? 0 : O_NOFOLLOW));
  const std::unique_ptr<DIR, close_directory> stream(fd < 0 ? nullptr : fdopendir(fd));
  if (stream == nullptr) {
    out.failures.push_back({d.path, errno});
    if (fd >= 0) close(fd);
    return;
  }
  struct statfs file_system;
  if (fstatfs(fd, &file_system) == 0 && is_pseudo(file_system)) {
    out.failures.push_back({d.path, EINVAL, of_pseudo_file_system});
    return;
  }
  const std::string prefix = d.path.ends_with('/') ? d.path : d.path + '/';
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(stream.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (entry->d_type != DT_REG && entry->d_type != DT_DIR && entry->d_type != DT_UNKNOWN) continue;
    struct stat status;
    if (entry->d_type == DT_DIR) {
      below.push_back({prefix + name, false});
    } else if (fstatat(fd, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      out.failures.push_back({prefix + name, errno});
    } else if (S_ISREG(status.st_mode)) {
      out.files.push_back({prefix + name, static_cast<std::uint64_t>(status.st_size)});
    } else if (S_ISDIR(status.st_mode)) {
      below.push_back({prefix + name, false});
    }
  }
  if (errno != 0) out.failures.push_back({d.path, errno});
}

void list_all(pending_directories& pending, found& out) {
  directory d;
  while (pending.take(d)) {
    std::vector<directory> below;
    try {
      list(d, out, below);
      pending.add(std::move(below));
    } catch (...) {
      pending.listed();
      throw;
    }
    pending.listed();
  }
}

bool by_path(const file_item& a, const file_item& b) { return a.path < b.path; }

// Sorts the files by path: the order of the threads is arbitrary, and neighbours in a sorted list
// are neighbours on the disk.
void list_all_with_threads(pending_directories& pending, found& out) {
  const std::size_t threads = std::clamp(std::thread::hardware_concurrency(), 1u, walkers_max);
  std::vector<found> parts(threads);
  job::in_threads(threads, [&](std::size_t t) {
    list_all(pending, parts[t]);
    std::sort(parts[t].files.begin(), parts[t].files.end(), by_path);
  });
  std::vector<std::size_t> begin{out.files.size()};  // of each sorted part
  for (found& part : parts) {
    std::move(part.files.begin(), part.files.end(), std::back_inserter(out.files));
    std::move(part.failures.begin(), part.failures.end(), std::back_inserter(out.failures));
    begin.push_back(out.files.size());
  }
  const auto at = [&](std::size_t part) {
    return out.files.begin() + static_cast<std::ptrdiff_t>(begin[std::min(part, threads)]);
  };
  for (std::size_t merged = 1; merged < threads; merged *= 2) {
    job::in_threads((threads + 2 * merged - 1) / (2 * merged), [&](std::size_t pair) {
      const std::size_t first = pair * 2 * merged;
      std::inplace_merge(at(first), at(first + merged), at(first + 2 * merged), by_path);
    });
  }
}

}  // namespace

std::vector<file_item> walk(const std::vector<std::string>& roots,
                            std::vector<path_failure>& failures) {
  found out;
  std::vector<directory> directories;
  for (const std::string& root : roots) {
    struct stat status;
    struct statfs file_system;
    if (stat(root.c_str(), &status) != 0) {
      out.failures.push_back({root, errno});
    } else if (S_ISREG(status.st_mode) && statfs(root.c_str(), &file_system) == 0 &&
               is_pseudo(file_system)) {
      out.failures.push_back({root, EINVAL, of_pseudo_file_system});
    } else if (S_ISREG(status.st_mode)) {
      out.files.push_back({root, static_cast<std::uint64_t>(status.st_size)});
    } else if (S_ISDIR(status.st_mode)) {
      std::string path = root;
      while (path.size() > 1 && path.ends_with('/')) path.pop_back();
      directories.push_back({std::move(path), true});
    } else {
      out.failures.push_back({root, EINVAL, reason_to_refuse_type(status.st_mode)});
    }
  }
  const std::size_t named_files = out.files.size();
  if (!directories.empty()) {
    pending_directories pending;
    pending.add(std::move(directories));
    list_all_with_threads(pending, out);
  }
  const auto named = out.files.begin() + static_cast<std::ptrdiff_t>(named_files);
  std::sort(out.files.begin(), named, by_path);
  std::inplace_merge(out.files.begin(), named, out.files.end(), by_path);
  std::sort(out.failures.begin(), out.failures.end(),
            [](const path_failure& a, const path_failure& b) { return a.path < b.path; });
  std::move(out.failures.begin(), out.failures.end(), std::back_inserter(failures));
  return std::move(out.files);
}

bool is_searched(const std::vector<std::string>& roots, const std::string& path) {
  struct stat wanted;
  if (stat(path.c_str(), &wanted) != 0) return false;
  std::vector<path_failure> ignored;  // what cannot be read is not searched
  const std::vector<file_item> files = walk(roots, ignored);
  return std::any_of(files.begin(), files.end(), [&](const file_item& file) {
    struct stat status;
    return stat(file.path.c_str(), &status) == 0 && status.st_dev == wanted.st_dev &&
           status.st_ino == wanted.st_ino;
  });
}

}  // namespace gpufs::grep
