// A folder that a FUSE server serves from another folder, and that fails on command, like a network
// file system with a failing server or network. What the test does in the other folder is what
// other clients do on the server.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace gpufs::testing {

// The kernel's requests to the server. Each close(2) of a descriptor sends a flush, and the error
// of the flush is the error of close(2). No caller gets the error of a release.
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
  // How long the kernel trusts names and attributes without asking the server.
  double trusts_names_s = 0;
  double trusts_attributes_s = 0;
  // The kernel buffers writes, as clients of NFS do: errors appear at fsync(2) and close(2).
  bool writes_back = false;
};

class fuse_folder {
 public:
  // Starts a server as a child process, and mounts it on `folder`/mounted. It serves
  // `folder`/served. Call it in a process with its own namespace. Throws not_possible.
  fuse_folder(const std::string& folder, const fuse_options& options);
  ~fuse_folder();
  fuse_folder(const fuse_folder&) = delete;
  fuse_folder& operator=(const fuse_folder&) = delete;

  std::string operator/(const std::string& name) const { return folder_ + "/mounted/" + name; }
  // The path of the same file on the server.
  std::string on_server(const std::string& name) const { return folder_ + "/served/" + name; }

  // The next `times` requests of this kind fail with this error; all by default. Applies to
  // requests about files, not about the folder itself (except fsyncdir).
  void fail(fuse_operation on, int error_number, std::uint64_t times = ~std::uint64_t{0}) const;
  // Requests of this kind wait until mend().
  void hang(fuse_operation on) const;
  // Ends all failing and hanging.
  void mend() const;
  // How many requests of this kind have come.
  std::uint64_t calls(fuse_operation on) const;
  // How many requests wait now.
  std::uint64_t hanging() const;
  // The server dies.
  void kill_server();

  // For one kind of operation. In memory shared with the server.
  struct rule {
    std::atomic<int> error{0};
    std::atomic<std::uint64_t> times{0};
    std::atomic<bool> hangs{false};
    std::atomic<std::uint64_t> calls{0};
  };
  struct control {
    rule rules[static_cast<int>(fuse_operation::count)];
    std::atomic<std::uint64_t> hanging{0};
    std::atomic<bool> writes_back{false};  // whether the kernel buffers writes
  };

 private:
  const std::string folder_;
  control* control_;
  pid_t server_ = -1;
};

// Runs `body` in a child process with such a folder; see in_child(). Skips the calling test if
// there is no FUSE, or if the tests were built without libfuse. Must be the last statement of a
// test.
void in_fuse_folder(const fuse_options& options, const std::function<void(fuse_folder&)>& body);

}  // namespace gpufs::testing
