// Opens paths for the POSIX backend: only regular files of file systems that hold data, and only
// below the root if there is one.
//
// An open has two steps. The first finds the file by an O_PATH descriptor, which has no effect on
// the file: no FIFO's writer wakes, no tape moves. The kind of the file and its file system are
// checked on that descriptor. The second step opens the very file that was found, by the
// descriptor's link in /proc. So no rename between the steps can change what is opened.
//
// In two cases the second step opens the path once more instead, with O_NONBLOCK and O_NOCTTY, and
// checks the result again:
//   - /proc is not mounted.
//   - The file is stale (ESTALE). A network file system finds a file by a name that it remembers;
//     the server may have another file there by now. Only an open of the path itself makes the
//     kernel ask the server again.
// A program that puts a FIFO or a device in the file's place between the steps then sees an open of
// it.
//
// A file is created by O_EXCL in a folder whose file system was checked, so that nothing that
// exists is opened by it.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "backend/descriptor_table.hpp"
#include "gpufs/backend.hpp"

namespace gpufs {

// An O_PATH descriptor of the calling thread's table; closed when destroyed. Never 0, 1 or 2. Those
// of them that the program has closed are occupied meanwhile, so that no file that is opened beside
// this gets them: what the program writes to its standard error must not become a file's data.
class path_descriptor {
 public:
  // `number`: of an O_PATH descriptor, or -errno.
  explicit path_descriptor(int number);
  ~path_descriptor();
  path_descriptor(const path_descriptor&) = delete;
  path_descriptor& operator=(const path_descriptor&) = delete;
  int number() const { return number_; }  // or -errno

 private:
  descriptor_table& table_;
  std::array<int, 3> low_{-1, -1, -1};
  int number_;
};

// Thread-safe.
class path_opener {
 public:
  // `root`: a folder, if there is one to keep to; `proc`: where the proc file system is. Throws
  // gpufs::error.
  path_opener(const std::optional<std::string>& root, const std::string& proc);
  ~path_opener();
  path_opener(const path_opener&) = delete;
  path_opener& operator=(const path_opener&) = delete;
  bool has_root() const { return root_ >= 0; }

  // A descriptor of the calling thread's table, or -errno: -EISDIR for a folder, -EINVAL for
  // whatever else is no regular file and for files of the kernel (of /proc, /sys and the like),
  // -ELOOP for a link that must not be followed, -EXDEV for what leads out of the root. `readable`:
  // false for a file that could only be opened to be written. Called to create or write by threads
  // that have the process's descriptors.
  int open(const std::string& path, const open_how& how, bool& readable) const;
  // 0, or -errno: -EINVAL among files of the kernel.
  int unlink(const std::string& path) const;
  int rename(const std::string& path, const std::string& new_path) const;
  // Has what was renamed, created and removed in a folder reach its disk: 0, or -errno.
  int sync_folder(const std::string& path) const;

 private:
  int find(const std::string& path, int flags) const;
  int open_existing(const std::string& path, const open_how& how, bool& readable) const;
  int reopen(const path_descriptor& found, const std::string& path, int access,
             bool no_follow) const;
  int open_found(const path_descriptor& found, int flags) const;
  int create(const std::string& path, const open_how& how) const;
  int follow(std::string& path) const;
  template <class Act>
  int at_parent(const std::string& path, const Act& act) const;

  // In the process's table. Own tables have links of their own (descriptor_table::links).
  int links_ = -1;  // the folder of /proc with links to what is open; negative where there is none
  int root_ = -1;
};

}  // namespace gpufs
