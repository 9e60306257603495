// A folder that a FUSE server serves from another folder, and that fails on command: as a network
// file system whose server, or whose wire, goes wrong. What the test does in the other folder is
// what other clients do on the server.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace gpufs::testing {

// What the kernel asks the server for. Each close(2) of a descriptor asks for a flush, and the
// error of the flush is the error of close(2). An error of a release reaches nobody.
enum class fuse_operation {
  lookup,
  getattr,
  setattr,
  open,
  create,
  read,
  write,
  flush,
  release,
  fsync,
  fsyncdir,
  count
};

struct fuse_options {
  // So long the kernel trusts names, and attributes, without asking.
  double trusts_names_s = 0;
  double trusts_attributes_s = 0;
  // The kernel keeps what is written, and writes it later, as clients of NFS do: errors come with
  // fsync(2) and close(2).
  bool writes_back = false;
};

class fuse_folder {
 public:
  // Starts a server, as a child process, and mounts it on `folder`/mounted; `folder`/served is what
  // it serves. By a process in a namespace of its own. Throws not_possible.
  fuse_folder(const std::string& folder, const fuse_options& options);
  ~fuse_folder();
  fuse_folder(const fuse_folder&) = delete;
  fuse_folder& operator=(const fuse_folder&) = delete;

  std::string operator/(const std::string& name) const { return folder_ + "/mounted/" + name; }
  // The same file where the server has it.
  std::string on_server(const std::string& name) const { return folder_ + "/served/" + name; }

  // The next `times` requests of this kind fail with this error; all of them by default. Of
  // requests about files only, not about the folder itself (but for fsyncdir).
  void fail(fuse_operation on, int error_number, std::uint64_t times = ~std::uint64_t{0}) const;
  // They wait until mend().
  void hang(fuse_operation on) const;
  // No more of either.
  void mend() const;
  // How many have come.
  std::uint64_t calls(fuse_operation on) const;
  // How many wait now.
  std::uint64_t hanging() const;
  // The server dies.
  void kill_server();

  // Of one kind of operation. In memory that the server shares.
  struct rule {
    std::atomic<int> error{0};
    std::atomic<std::uint64_t> times{0};
    std::atomic<bool> hangs{false};
    std::atomic<std::uint64_t> calls{0};
  };
  struct control {
    rule rules[static_cast<int>(fuse_operation::count)];
    std::atomic<std::uint64_t> hanging{0};
    std::atomic<bool> writes_back{false};  // whether the kernel does
  };

 private:
  const std::string folder_;
  control* control_;
  pid_t server_ = -1;
};

// Runs `body` in a child process with such a folder; see in_child(). Skips the calling test where
// there is no FUSE, or the tests were built without libfuse. The last thing that a test does.
void in_fuse_folder(const fuse_options& options, const std::function<void(fuse_folder&)>& body);

}  // namespace gpufs::testing
