// The I/O backend: the only interface through which the service uses files. Tests use a backend in
// memory, or one that injects faults, in place of POSIX.
#pragma once

#include <errno.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace gpufs {

// Identifies a file and its state.
struct file_identity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;
  std::uint32_t mode = 0;
  // Time of creation; 0 if the file system does not report it. Distinguishes a reused inode number
  // from its previous file.
  std::int64_t born_ns = 0;
  bool operator==(const file_identity& other) const = default;
};

// A mapped range of a file. The destructor unmaps it.
class file_mapping {
 public:
  virtual ~file_mapping() = default;
  virtual char* data() const = 0;
  virtual std::uint64_t bytes() const = 0;
};

// Is told of the closes of one file's descriptors. Thread-safe.
class close_listener {
 public:
  virtual ~close_listener() = default;
  // `status`: -errno of close(2). The caller holds no mutex.
  virtual void close_failed(int status) noexcept = 0;
};

// How to open a file for changes; as the flags of open(2) with these names.
struct open_how {
  bool no_follow = false;
  bool read = true;
  bool write = true;
  bool create = false;
  bool exclusive = false;
  std::uint32_t mode = 0;  // permission bits of a created file, less the umask
};

// One open file. Several threads may call one object at the same time.
class backend_file {
 public:
  virtual ~backend_file() = default;
  // Stores the file's current identity. Returns 0, or -errno.
  virtual int identify(file_identity& identity) = 0;
  // Makes the file usable by the calling thread. Returns -errno on failure; any value of 0 or more
  // is success. Other calls do the same if needed. The service calls this first, so that it can
  // close other files and retry after -EMFILE or -ENFILE.
  virtual int prepare() { return 0; }
  // Reads at `offset`. Returns the bytes read (fewer than asked at the end of the file or when
  // interrupted), 0 at the end, or -errno. If the file changes meanwhile, the rest of `to` is
  // undefined.
  virtual std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t offset) = 0;
  // Announces a read of this range in a moment. A hint for speed: does not wait, and may do
  // nothing.
  virtual void expect(std::uint64_t bytes, std::uint64_t offset) { (void)bytes, (void)offset; }
  // A read-only shared mapping, or null if the backend has none. `offset` is a multiple of the
  // host's page size.
  virtual std::unique_ptr<file_mapping> map(std::uint64_t offset, std::uint64_t bytes) = 0;
  // The share of a mapping, which begins at file offset `offset`, that is in the host's page cache
  // or on its way into it; 0 to 1.
  virtual double cached(const file_mapping& mapping, std::uint64_t offset) = 0;
  // Makes all pages of a mapping that is in the page cache usable at once, instead of each at its
  // first access. A hint for speed; failures are not reported.
  virtual void fault_in(const file_mapping&) {}
  // Starts to read the range into the host's page cache. Does not wait.
  virtual void read_ahead(std::uint64_t offset, std::uint64_t bytes) = 0;

  // The calls below are for files opened for writing. Whether the file can be read too: a file that
  // was asked to be opened for writing only may not.
  virtual bool readable() const { return true; }
  // Writes at `offset`. Returns the bytes written (fewer than asked when interrupted, or when there
  // is no room for more), or -errno.
  virtual std::int64_t write(const char* from, std::uint64_t bytes, std::uint64_t offset) {
    (void)from, (void)bytes, (void)offset;
    return -EROFS;
  }
  // Whether several threads that write the file at the same time are faster than one, as measured
  // in its last writes.
  virtual bool writes_together() const { return false; }
  // Sets the size in bytes. Returns 0, or -errno.
  virtual int truncate(std::uint64_t size) {
    (void)size;
    return -EROFS;
  }
  // As fdatasync(2). Returns 0, or -errno. When bytes could not be written, the error is returned
  // once to each object of the file that was open by then, or by the first call that comes.
  virtual int sync() { return -EROFS; }
  // The error that close(2) would return now: a file system may keep an error of a write until
  // then, as NFS and FUSE do. Or that of a write-back that this object was not told of. Called
  // before the object is destroyed, and when another writer lets go of the file; the file stays
  // open. Returns 0, or -errno; could_not_ask() tells which errors say nothing about the bytes.
  // Called by threads that have the process's descriptor table.
  virtual int report_close() { return 0; }
  // Names who is told what closes of this file's descriptors return, also of a file that is only
  // read: a file system may tell a close of bytes that were written through another descriptor. The
  // error may be one that report_close() has returned. Called once, by the thread that opened the
  // file, before another thread uses the object.
  virtual void tell_closes(std::shared_ptr<close_listener> listener) { (void)listener; }
  // Whether a result of report_close() says that it could not ask.
  static bool could_not_ask(int status) {
    return status == -EAGAIN || status == -EMFILE || status == -ENFILE;
  }
};

// Marks a thread as an opener (backend::enter_opener). The same thread destroys the guard, when it
// needs the backend no more.
class descriptor_table_guard {
 public:
  virtual ~descriptor_table_guard() = default;
};

// Opens files. Thread-safe.
class backend {
 public:
  virtual ~backend() = default;
  // Opens a file for reading. Returns 0 and stores `file`, or returns -errno. Never blocks on a
  // file that is not regular: it either fails with -EISDIR or -EINVAL, or opens the file, and
  // identify() returns its type.
  virtual int open(const std::string& path, bool no_follow,
                   std::unique_ptr<backend_file>& file) = 0;
  // Opens a file for changes, or creates it. As open(), but called by threads that have the
  // process's descriptor table. A file to be opened for writing only is opened for reading too, if
  // possible.
  virtual int open_to_change(const std::string& path, const open_how& how,
                             std::unique_ptr<backend_file>& file) {
    (void)path, (void)how, (void)file;
    return -EROFS;
  }
  // As unlink(2) and rename(2). Return 0, or -errno.
  virtual int unlink(const std::string& path) {
    (void)path;
    return -EROFS;
  }
  virtual int rename(const std::string& path, const std::string& new_path) {
    (void)path, (void)new_path;
    return -EROFS;
  }
  // Makes the creations, renames and removals in a folder durable, as fsync(2) of the folder.
  // Returns 0, or -errno.
  virtual int sync_folder(const std::string& path) {
    (void)path;
    return -ENOTSUP;
  }
  // Called by a thread that uses descriptors only through this backend while the result lives. The
  // backend may give the thread a descriptor table of its own; null: it did not. In either case all
  // threads can use and destroy the files that the thread opens. A backend that wraps another one
  // forwards this call, or keeps the default.
  virtual std::unique_ptr<descriptor_table_guard> enter_opener() { return nullptr; }
  // Closes the files that other threads have handed to the calling thread to close. The service's
  // threads call it between requests, at least once a second; after they have ended, another thread
  // calls it once.
  virtual void close_handed() {}
  // Number of descriptors of the process that the backend keeps open although no file needs them:
  // closing one would release POSIX locks of the program. They take room as those of open files do.
  virtual std::size_t kept_descriptors() const { return 0; }
};

struct posix_backend_options {
  // Copies often-read data from mappings of the files, instead of asking the kernel each time. For
  // this the process gets a handler of SIGBUS, which forwards signals that are not its own to the
  // previous handler. A program that installs its own handler later should call the one that it
  // found. False: no handler, and half the rate of staged loads.
  bool mapped_reads = true;
  // Copies large writes into a mapping of the file, if the file is on tmpfs and has those pages in
  // the page cache. Several threads can do that at once, while the kernel allows one writer per
  // file. Uses the same handler of SIGBUS. False: all writes use pwrite.
  bool mapped_writes = true;
  // Gives each opener of the service (in mounts with at least four workers) a descriptor table of
  // its own. The process's table has one lock, which limits how many files all threads together
  // open in a second.
  //
  // The descriptors of these files are then not in the process's table. A file that is read later,
  // instead of with its open, gets a second descriptor in the process's table. An own table starts
  // with copies of descriptors 0, 1 and 2, which stay open as long as the mount.
  // The process's table is used if a thread cannot have an own table (before Linux 5.9), if other
  // threads could not reach into it (no /proc), or with a root. False: always.
  bool own_descriptors = true;
  // The folder that files must lie in (mount_options::root). No value: no limit.
  std::optional<std::string> root{};
  // Opens no file for changes (-EROFS). Then it needs no thread that asks for the errors of
  // close(2) of locked files.
  bool read_only = false;
};
// Creates the backend for POSIX file systems. Throws gpufs::error: EINVAL for an empty root; also
// if the root cannot be opened, or if the system has no openat2 (before Linux 5.6) to enforce the
// root.
std::shared_ptr<backend> make_posix_backend(const posix_backend_options& options = {});

}  // namespace gpufs
