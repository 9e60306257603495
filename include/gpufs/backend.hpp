// The I/O backend: the one interface through which the service reads files. Tests put a memory or a
// fault-injecting one in place of POSIX.
#pragma once

#include <errno.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace gpufs {

// What identifies a file and its state.
struct file_identity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;
  std::uint32_t mode = 0;
  std::int64_t born_ns =
      0;  // 0 where the file system does not tell; tells a reused inode number from its last file
  bool operator==(const file_identity& other) const = default;
};

// A mapped range of a file; unmapped when destroyed.
class file_mapping {
 public:
  virtual ~file_mapping() = default;
  virtual char* data() const = 0;
  virtual std::uint64_t bytes() const = 0;
};

// How a file is opened to be changed; as the flags of open(2) of these names.
struct open_how {
  bool no_follow = false;
  bool read = true;
  bool write = true;
  bool create = false;
  bool exclusive = false;
  std::uint32_t mode = 0;  // of a file that is created, less the umask
};

// One open file. Calls on one object may come from several threads at once.
class backend_file {
 public:
  virtual ~backend_file() = default;
  // 0, or -errno.
  virtual int identify(file_identity& identity) = 0;
  // Makes the file usable by the calling thread. 0, or -errno. Other calls do the same if they have
  // to; asked for before them, so that a lack of descriptors is heard of where something can be
  // done about it.
  virtual int prepare() { return 0; }
  // Bytes read at `offset` (fewer than asked at the end of the file or when interrupted), 0 at the
  // end, or -errno. What lies behind them in `to` is undefined if the file changed meanwhile.
  virtual std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t offset) = 0;
  // This will be read in a moment. Only for speed: does not wait, and need not do anything.
  virtual void expect(std::uint64_t bytes, std::uint64_t offset) { (void)bytes, (void)offset; }
  // A read-only shared mapping, or null where the backend has none. `offset` is a multiple of the
  // host's page size.
  virtual std::unique_ptr<file_mapping> map(std::uint64_t offset, std::uint64_t bytes) = 0;
  // Share of a mapping, which begins at `offset`, that is in the host's page cache, or on its way
  // into it; 0 to 1.
  virtual double cached(const file_mapping& mapping, std::uint64_t offset) = 0;
  // Makes the pages of a mapping that is in the page cache ready for use at once, rather than each
  // when it is touched. Only for speed: nothing is said when it cannot be done.
  virtual void fault_in(const file_mapping&) {}
  // Starts reading the range into the host's page cache. Does not wait.
  virtual void read_ahead(std::uint64_t offset, std::uint64_t bytes) = 0;

  // Of a file opened for writing. Whether it can be read too: it may not, where it was asked to be
  // written only.
  virtual bool readable() const { return true; }
  // Bytes written at `offset` (fewer than asked when interrupted, or when there is no room for
  // more), or -errno.
  virtual std::int64_t write(const char* from, std::uint64_t bytes, std::uint64_t offset) {
    (void)from, (void)bytes, (void)offset;
    return -EROFS;
  }
  // Whether several threads that write it at once are faster than one, as its last writes went.
  virtual bool writes_together() const { return false; }
  // 0, or -errno.
  virtual int truncate(std::uint64_t size) {
    (void)size;
    return -EROFS;
  }
  // As fdatasync(2). 0, or -errno.
  virtual int sync() { return -EROFS; }
  // What close(2) would report now: a file system may keep an error of a write until then, as NFS
  // and FUSE do. Called before the last of those who write the file lets it go; the file stays
  // open. 0, or -errno.
  virtual int report_close() { return 0; }
};

// A thread's time as an opener. Destroyed by the thread that it was made for, when it has no more
// to do with the backend.
class descriptor_table_guard {
 public:
  virtual ~descriptor_table_guard() = default;
};

// Thread-safe.
class backend {
 public:
  virtual ~backend() = default;
  // Opens a file for reading. 0 and `file`, or -errno; never blocks on what is not a regular file:
  // it is refused, with -EISDIR or -EINVAL, or opened, and identify() tells what it is.
  virtual int open(const std::string& path, bool no_follow,
                   std::unique_ptr<backend_file>& file) = 0;
  // Opens a file that is to be changed, or creates it. As open(); called by threads that have the
  // process's descriptors. A file that is asked to be written only is opened for reading too, if it
  // may be.
  virtual int open_to_change(const std::string& path, const open_how& how,
                             std::unique_ptr<backend_file>& file) {
    (void)path, (void)how, (void)file;
    return -EROFS;
  }
  // As unlink(2) and rename(2). 0, or -errno.
  virtual int unlink(const std::string& path) {
    (void)path;
    return -EROFS;
  }
  virtual int rename(const std::string& path, const std::string& new_path) {
    (void)path, (void)new_path;
    return -EROFS;
  }
  // Makes what was created, renamed and removed in a folder durable, as fsync(2) of it. 0, or
  // -errno.
  virtual int sync_folder(const std::string& path) {
    (void)path;
    return -ENOTSUP;
  }
  // Said by a thread that will do nothing with descriptors, as long as the result lives, but by
  // calls of this backend. The backend may give it a descriptor table of its own. Null: it did not.
  // Files that the thread opens can be used, and destroyed, by all threads in either case. A
  // backend that wraps another one hands this on, or keeps the default.
  virtual std::unique_ptr<descriptor_table_guard> enter_opener() { return nullptr; }
  // Closes what other threads let go of and the calling one has to close. The service's threads
  // call it between requests, and at least once a second; and once after their end another thread
  // does.
  virtual void close_handed() {}
  // Descriptors of the process that the backend keeps open though no file needs them: POSIX locks
  // of the program would go with them. They take room as those of open files do.
  virtual std::size_t kept_descriptors() const { return 0; }
};

struct posix_backend_options {
  // Copy what is read often from mappings of the files, instead of asking the kernel each time. For
  // that the process gets a handler of SIGBUS, which hands on whatever is not its own to the
  // handler that was there before; a program that sets its own later should call the one that it
  // found. False: no handler, and half the rate of staged loads.
  bool mapped_reads = true;
  // Copy large writes to what a file has in the page cache already into a mapping of it, where it
  // is on tmpfs: several threads can do that at once, where the kernel lets one write a file at a
  // time. With the same handler of SIGBUS. False: all is written by pwrite.
  bool mapped_writes = true;
  // The service's openers (of mounts with at least four workers) have descriptor tables of their
  // own, because the process's table has one lock, which bounds how many files all threads together
  // open in a second. Their files' descriptors are then not among those of the process, and a file
  // that is read later, rather than with its open, gets a second descriptor, in the process's
  // table. Such a table begins with copies of descriptors 0, 1 and 2, which last as long as the
  // mount. Where a thread cannot have a table of its own (before Linux 5.9), or others could not
  // reach into it (no /proc), the process's is used. False: it always is. So it is with a root.
  bool own_descriptors = true;
  // A folder: what does not lie in it is not served (mount_options::root). Without a value there is
  // no such limit.
  std::optional<std::string> root{};
};
// Throws gpufs::error: EINVAL with an empty root; with a root that cannot be opened, or where the
// system has no openat2 (before Linux 5.6) to keep to it.
std::shared_ptr<backend> make_posix_backend(const posix_backend_options& options = {});

}  // namespace gpufs
