// Opens paths for the POSIX backend. It opens only regular files of file systems that hold data,
// and only below the root if there is one.
//
// An open has two steps. The first step finds the file with an O_PATH descriptor, which has no
// effect on the file: no FIFO's writer wakes, and no tape moves. Then it checks the kind of the
// file and its file system on that descriptor. The second step opens exactly the found file,
// through the descriptor's link in /proc. So a rename between the steps cannot change what is
// opened.
//
// In two cases the second step opens the path again instead, with O_NONBLOCK and O_NOCTTY, and
// checks the result again:
//   - /proc is not mounted.
//   - The file is stale (ESTALE). A network file system finds a file by a name that it remembers,
//     and the server may have another file there by now. Only an open of the path makes the kernel
//     ask the server again.
//
// In these cases, a program that puts a FIFO or a device in the file's place between the steps sees
// an open of it.
//
// A file is created with O_EXCL, in a folder whose file system was checked, so a creation never
// opens an existing file.
//
// O_EXCL refuses a link to a file that does not exist. The path_opener itself follows such a link
// and creates its target. It always applies the rule of fs.protected_symlinks (proc(5)), whatever
// the system's setting is. The kernel follows all other links.
//
// Any thread may call a path_opener, and it has no locks: its members are constant after the
// constructor.
#pragma once

#include <optional>
#include <string>

#include "backend/descriptor_table.hpp"
#include "gpufs/backend.hpp"

namespace gpufs {

// Thread-safe. Calls wait for the file system.
class path_opener {
 public:
  // `root`: the folder that bounds all paths, if any. `proc`: where the proc file system is
  // mounted. Throws gpufs::error.
  path_opener(const std::optional<std::string>& root, const std::string& proc);
  ~path_opener();
  path_opener(const path_opener&) = delete;
  path_opener& operator=(const path_opener&) = delete;
  bool has_root() const { return root_ >= 0; }

  // Opens a regular file. Returns a descriptor of the calling thread's table, or -errno:
  //   - -EISDIR for a folder.
  //   - -EINVAL for anything else that is not a regular file, and for files of the kernel (in
  //     /proc, /sys and the like).
  //   - -ELOOP for a link, with `no_follow`, and for too many links.
  //   - -EACCES also for a link to a file that does not exist (fs.protected_symlinks).
  //   - -EXDEV for a path that leads out of the root.
  //   - -EAGAIN for a path with `..` below the root, if other programs rename files all the time.
  //
  // Sets `readable` to false if the file could only be opened for writing. A call that creates or
  // writes comes from a thread with the process's descriptor table.
  int open(const std::string& path, const open_how& how, bool& readable) const;
  // 0, or -errno: -EINVAL among files of the kernel.
  int unlink(const std::string& path) const;
  int rename(const std::string& path, const std::string& new_path) const;
  // Makes renames, creations and removals in a folder durable. 0, or -errno.
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

  // Descriptors of the process's table. An own table has its own links (descriptor_table::links).
  int links_ = -1;  // the /proc folder with links to open files; negative: none
  int root_ = -1;
};

}  // namespace gpufs
