#include "interposer/client.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "protocol/account.hpp"
#include "protocol/messages.hpp"

namespace gdev {

namespace {

// Guards all below, but for `joined`. Held while the daemon answers, never across a driver call.
constinit std::mutex mutex;
int socket_file = -1;
client_page* page = nullptr;
std::uint64_t used_bytes = 0;
std::uint64_t limit_bytes = 0;
bool was_refused = false;  // and said so
std::atomic<bool> joined = false;

pthread_once_t fork_once = PTHREAD_ONCE_INIT;

const char* variable(const char* name) noexcept {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

const char* vgpu_name() noexcept {
  const char* const name = variable("GDEV_VGPU");
  return *name == '\0' ? "default" : name;
}

void disconnect() noexcept {
  if (socket_file >= 0) {
    close(socket_file);
    socket_file = -1;
  }
}

void before_fork() noexcept { mutex.lock(); }

void in_parent() noexcept { mutex.unlock(); }

void in_child() noexcept {
  // The parent goes on with the page and the connection. CUDA does not work here before cuInit().
  disconnect();
  if (page != nullptr) {
    munmap(page, client_page_bytes);
    page = nullptr;
  }
  used_bytes = 0;
  joined.store(false, std::memory_order_relaxed);
  mutex.unlock();
}

void watch_forks() noexcept { pthread_atfork(before_fork, in_parent, in_child); }

/** Sends a message and receives the answer, and a descriptor if one comes. Returns an errno. */
int exchange(message& said, int* file) noexcept {
  if (send(socket_file, &said, sizeof said, MSG_NOSIGNAL) != sizeof said) {
    return errno;
  }
  iovec data{&said, sizeof said};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t size = 0;
  do {
    size = recvmsg(socket_file, &header, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size != sizeof said) {
    return size < 0 ? errno : ECONNRESET;
  }
  const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(rights), sizeof received);
    if (file != nullptr) {
      *file = received;
    } else {
      close(received);
    }
  }
  return 0;
}

/** Connects, and says hello with what is in use. Returns an errno. */
int connect_to_daemon() noexcept {
  disconnect();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string_view path = variable("GDEV_SOCKET");
  if (path.size() >= sizeof address.sun_path) {
    return ENAMETOOLONG;
  }
  path.copy(address.sun_path, path.size());
  socket_file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (socket_file < 0) {
    return errno;
  }
  const timeval timeout{answer_timeout.count(), 0};
  setsockopt(socket_file, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  setsockopt(socket_file, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  if (connect(socket_file, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    disconnect();
    return error;
  }
  message said;
  said.kind = message_kind::hello;
  said.numbers[0] = used_bytes;
  if (!set_name(said, vgpu_name())) {
    return EINVAL;
  }
  int file = -1;
  int error = exchange(said, &file);
  if (error == 0) {
    error = said.error != 0 ? said.error : file < 0 ? EPROTO : 0;
  }
  if (error == 0) {
    void* const made =
        mmap(nullptr, client_page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (made == MAP_FAILED) {
      error = errno;
    } else {
      if (page != nullptr) {
        munmap(page, client_page_bytes);
      }
      page = static_cast<client_page*>(made);
      limit_bytes = said.numbers[0];
    }
  }
  if (file >= 0) {
    close(file);
  }
  if (error != 0) {
    disconnect();
  }
  return error;
}

/** Asks the daemon; connects again, once, if it is gone. Returns an errno of the exchange. */
int ask(message& said) noexcept {
  const message asked = said;
  int error = socket_file < 0 ? ENOTCONN : exchange(said, nullptr);
  if (error != 0) {
    error = connect_to_daemon();
    if (error == 0) {
      said = asked;
      error = exchange(said, nullptr);
    }
  }
  if (error != 0) {
    disconnect();
  }
  return error;
}

}  // namespace

int join_vgpu() noexcept {
  if (*variable("GDEV_SOCKET") == '\0') {
    return 0;
  }
  pthread_once(&fork_once, watch_forks);
  const std::lock_guard lock(mutex);
  if (joined.load(std::memory_order_relaxed)) {
    return 0;
  }
  const int error = connect_to_daemon();
  if (error != 0) {
    std::fprintf(
        stderr, "gdev: cannot join the virtual GPU %s: %s\n", vgpu_name(),
        error == ENOENT ? "there is no such virtual GPU, or no daemon" : std::strerror(error));
    return error;
  }
  joined.store(true, std::memory_order_relaxed);
  return 0;
}

bool has_joined() noexcept { return joined.load(std::memory_order_relaxed); }

int use_memory(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex);
  if (page == nullptr) {
    return ENOTCONN;
  }
  const std::uint64_t after = used_bytes + bytes;
  if (after < used_bytes) {
    return ENOMEM;
  }
  const std::uint64_t units = units_of(after) - units_of(used_bytes);
  int error = 0;
  if (!page->account.use(units)) {
    message said;
    said.kind = message_kind::want;
    said.numbers[0] = units * account_unit;
    error = ask(said) != 0 ? ENOTCONN : said.error;
    if (error == 0 && !page->account.use(units)) {
      error = ENOMEM;
    }
  }
  if (error == 0) {
    used_bytes = after;
  } else if (!was_refused) {
    was_refused = true;
    std::fprintf(stderr,
                 "gdev: process %d, virtual GPU %s: %llu bytes refused: %s (%llu bytes in use by "
                 "this process, limit %llu). Said once.\n",
                 getpid(), vgpu_name(), static_cast<unsigned long long>(bytes),
                 error == ENOMEM ? "the limit is reached" : "the daemon does not answer",
                 static_cast<unsigned long long>(used_bytes),
                 static_cast<unsigned long long>(limit_bytes));
  }
  return error;
}

void free_memory(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex);
  if (page == nullptr || bytes > used_bytes) {
    return;  // of the parent, before a fork
  }
  const std::uint64_t before = units_of(used_bytes);
  used_bytes -= bytes;
  page->account.free(before - units_of(used_bytes));
}

bool ask_memory(memory_facts& facts) noexcept {
  const std::lock_guard lock(mutex);
  message said;
  said.kind = message_kind::memory;
  if (page == nullptr || ask(said) != 0 || said.error != 0) {
    return false;
  }
  facts = {said.numbers[0], said.numbers[1]};
  return true;
}

}  // namespace gdev
