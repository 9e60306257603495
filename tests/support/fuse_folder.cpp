#include "support/fuse_folder.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <new>

#include "support/child_process.hpp"
#include "support/temporary.hpp"
#if GPUFS_TESTS_HAVE_FUSE
#include "support/fuse_server.hpp"
#endif

namespace gpufs::testing {
namespace {

[[noreturn]] void impossible(const char* what) {
  throw not_possible(std::string(what) + ": " + std::strerror(errno));
}

// Ends when the process that started it ends.
[[noreturn]] void be_the_server(pid_t parent, int device, const std::string& served,
                                const fuse_options& options, fuse_folder::control& control) {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
#if GPUFS_TESTS_HAVE_FUSE
  serve_fuse(device, served, options, control);
#else
  (void)device, (void)served, (void)options, (void)control;
  _exit(1);
#endif
}

}  // namespace

fuse_folder::fuse_folder(const std::string& folder, const fuse_options& options) : folder_(folder) {
#if !GPUFS_TESTS_HAVE_FUSE
  throw not_possible("built without libfuse (libfuse3-dev)");
#endif
  const std::string mounted = folder_ + "/mounted", served = folder_ + "/served";
  std::filesystem::create_directory(mounted);
  std::filesystem::create_directory(served);
  void* const shared =
      mmap(nullptr, sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) impossible("mmap");
  control_ = new (shared) control;
  const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) impossible("/dev/fuse");
  const std::string how = "fd=" + std::to_string(device) +
                          ",rootmode=40000,user_id=" + std::to_string(geteuid()) +
                          ",group_id=" + std::to_string(getegid());
  if (::mount("gpufs-test", mounted.c_str(), "fuse.gpufs-test", MS_NODEV | MS_NOSUID,
              how.c_str()) != 0)
    impossible("mounting a FUSE file system");
  const pid_t parent = getpid();
  server_ = fork();
  if (server_ == 0) be_the_server(parent, device, served, options, *control_);
  (void)::close(device);
  if (server_ < 0) impossible("fork");
}

fuse_folder::~fuse_folder() {
  kill_server();
  (void)umount2((folder_ + "/mounted").c_str(), MNT_DETACH);
}

void fuse_folder::fail(fuse_operation on, int error_number, std::uint64_t times) const {
  rule& r = control_->rules[static_cast<int>(on)];
  r.times = times;
  r.error = error_number;
}
void fuse_folder::hang(fuse_operation on) const {
  control_->rules[static_cast<int>(on)].hangs = true;
}
void fuse_folder::mend() const {
  for (rule& r : control_->rules) {
    r.error = 0;
    r.hangs = false;
  }
}
std::uint64_t fuse_folder::calls(fuse_operation on) const {
  return control_->rules[static_cast<int>(on)].calls;
}
std::uint64_t fuse_folder::hanging() const { return control_->hanging; }

void fuse_folder::kill_server() {
  if (server_ <= 0) return;
  (void)::kill(server_, SIGKILL);
  (void)waitpid(server_, nullptr, 0);
  server_ = -1;
}

void in_fuse_folder(const fuse_options& options, const std::function<void(fuse_folder&)>& body) {
  const temporary_folder place;
  in_child([&] {
    enter_own_namespace();
    fuse_folder files(place / "", options);
    body(files);
  });
}

}  // namespace gpufs::testing
