#include "interposer/client.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>

#include "interposer/ledger.hpp"
#include "interposer/shared_memory.hpp"
#include "protocol/account.hpp"
#include "protocol/envelope.hpp"
#include "protocol/messages.hpp"

namespace gdev {

namespace {

using steady_clock = std::chrono::steady_clock;

/** The connection. A program may close descriptors that it does not know, and get their numbers. */
struct connection {
  int number = -1;
  dev_t device = 0;
  ino_t inode = 0;

  /** Tells whether the number still is this connection. */
  [[nodiscard]] bool is_there() const noexcept {
    struct stat status{};
    return number >= 0 && fstat(number, &status) == 0 && status.st_dev == device &&
           status.st_ino == inode;
  }
};

// Order: asking, then state. Neither is held across a call of the driver.
constinit std::mutex asking;  // guards the connection; held while the daemon answers
connection daemon_socket;
steady_clock::time_point next_try;  // after a daemon that did not answer in time

// Guards what follows. Held for moments, but while a client comes back to a daemon: then it says
// what is in use, and nothing may change until it has its new page.
constinit std::mutex state;
client_page* page = nullptr;
std::uint64_t used_bytes = 0;
memory_facts known;        // as the daemon said last
bool was_refused = false;  // and said so

std::atomic<bool> joined = false;
std::atomic<int> socket_number = -1;  // daemon_socket.number, to look at without waiting

pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/** Keeps pthread_cancel() from unwinding through what must be finished. */
class uncancelled {
 public:
  uncancelled() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  uncancelled(const uncancelled&) = delete;
  uncancelled& operator=(const uncancelled&) = delete;
  ~uncancelled() { pthread_setcancelstate(before_, nullptr); }

 private:
  int before_ = 0;
};

const char* variable(const char* name) noexcept {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

const char* vgpu_name() noexcept {
  const char* const name = variable("GDEV_VGPU");
  return *name == '\0' ? "default" : name;
}

void disconnect() noexcept {
  if (daemon_socket.is_there()) {
    close(daemon_socket.number);
  }
  daemon_socket = {};
  socket_number.store(-1, std::memory_order_relaxed);
}

/** Writes a line on standard error, if that takes it at once. */
void say(const char* line) noexcept {
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if (poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) != 0) {
    static_cast<void>(!write(STDERR_FILENO, line, std::strlen(line)));
  }
}

/**
 * In a forked child: forgets all. The parent goes on with the page and the connection.
 *
 * A thread that is not here any more may have held the locks, and a signal handler may fork while
 * its own thread holds them. So they are made anew; nothing was taken before the fork.
 */
void in_child() noexcept {
  new (&asking) std::mutex;
  new (&state) std::mutex;
  forget_ledgers();
  forget_attachments();
  disconnect();
  if (page != nullptr) {
    munmap(page, client_page_bytes);
    page = nullptr;
  }
  used_bytes = 0;
  known = {};
  was_refused = false;
  next_try = {};
  joined.store(false, std::memory_order_relaxed);
}

void watch_forks() noexcept { pthread_atfork(nullptr, nullptr, in_child); }

/** Waits until the socket is ready. Returns 0; ETIMEDOUT. Signals do not make it longer. */
int wait_for(int file, short what, steady_clock::time_point deadline) noexcept {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    if (left <= 0) {
      return ETIMEDOUT;
    }
    pollfd ready{file, what, 0};
    const int count = poll(&ready, 1, static_cast<int>(left));
    if (count > 0) {
      return 0;
    }
    if (count < 0 && errno != EINTR) {
      return errno;
    }
  }
}

/** Sends a message, and a descriptor if `sent` is one. Returns an errno. */
int send_message(int file, message& said, int sent, steady_clock::time_point deadline) noexcept {
  envelope letter(said, sent >= 0);
  if (sent >= 0) {
    letter.put(sent);
  }
  for (;;) {
    if (sendmsg(file, letter.header(), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof said) {
      return 0;
    }
    if (errno != EAGAIN && errno != EINTR) {
      return errno;
    }
    if (const int error = wait_for(file, POLLOUT, deadline); error != 0) {
      return error;
    }
  }
}

/** Receives a message, and stores a descriptor that comes with it. Returns an errno. */
int receive_message(int file, message& said, file_descriptor& received,
                    steady_clock::time_point deadline) noexcept {
  for (;;) {
    envelope letter(said, true);
    const ssize_t size = recvmsg(file, letter.header(), MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (const int error = wait_for(file, POLLIN, deadline); error != 0) {
        return error;
      }
      continue;
    }
    if (size < 0) {
      return errno;
    }
    received = letter.take();
    return size == sizeof said ? 0 : ECONNRESET;
  }
}

/** Sends a message, and receives the answer, each with a descriptor if there is one. */
int exchange(message& said, int sent, file_descriptor& received) noexcept {
  const steady_clock::time_point deadline = steady_clock::now() + answer_timeout;
  if (!daemon_socket.is_there()) {
    return ENOTCONN;
  }
  const int error = send_message(daemon_socket.number, said, sent, deadline);
  return error != 0 ? error : receive_message(daemon_socket.number, said, received, deadline);
}

/** Opens the connection. Returns an errno. */
int open_connection() noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string_view path = variable("GDEV_SOCKET");
  if (path.size() >= sizeof address.sun_path) {
    return ENAMETOOLONG;
  }
  path.copy(address.sun_path, path.size());
  const int low = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (low < 0) {
    return errno;
  }
  // A high number: programs expect low ones of the files that they open.
  constexpr int high_numbers = 900;
  const int high = fcntl(low, F_DUPFD_CLOEXEC, high_numbers);
  const int number = high >= 0 ? high : low;
  if (high >= 0) {
    close(low);
  }
  struct stat status{};
  fstat(number, &status);
  daemon_socket = {number, status.st_dev, status.st_ino};
  socket_number.store(number, std::memory_order_relaxed);
  const steady_clock::time_point deadline = steady_clock::now() + answer_timeout;
  while (connect(number, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EISCONN) {
      break;
    }
    if (errno != EAGAIN && errno != EINTR) {
      return errno;
    }
    if (steady_clock::now() >= deadline) {  // the queue of the daemon is full
      return ETIMEDOUT;
    }
    poll(nullptr, 0, 10);
  }
  return 0;
}

/** Connects, and says hello with what is in use. Returns an errno. `asking` is held. */
int connect_to_daemon() noexcept {
  const std::lock_guard lock(state);
  disconnect();
  message said;
  said.kind = message_kind::hello;
  said.numbers[0] = used_bytes;
  if (!set_name(said, vgpu_name())) {
    return EINVAL;
  }
  file_descriptor file;
  int error = open_connection();
  if (error == 0) {
    error = exchange(said, -1, file);
  }
  if (error == 0) {
    error = said.error != 0 ? said.error : !file ? EPROTO : 0;
  }
  if (error == 0) {
    void* const made =
        mmap(nullptr, client_page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
    if (made == MAP_FAILED) {
      error = errno;
    } else {
      if (page != nullptr) {
        munmap(page, client_page_bytes);
      }
      page = static_cast<client_page*>(made);
      error = page->version == protocol_version ? 0 : EPROTO;
      known = {said.numbers[0], used_bytes};
    }
  }
  if (error != 0) {
    disconnect();
    return error;
  }
  attach_again([](message& asked) noexcept {
    file_descriptor none;
    return exchange(asked, -1, none);
  });
  return 0;
}

/** Notes how an exchange ended: a daemon that does not answer in time is left alone for a while. */
int note(int error) noexcept {
  if (error != 0) {
    disconnect();
  }
  if (error == ETIMEDOUT) {
    next_try = steady_clock::now() + retry_interval;
  }
  return error;
}

/**
 * Asks the daemon; connects again, once, if it is gone. `asking` is held.
 *
 * sent: a descriptor that goes with the message, or -1. Returns an errno.
 */
int ask(message& said, int sent, file_descriptor& received) noexcept {
  if (steady_clock::now() < next_try) {
    return ENOTCONN;
  }
  const message asked = said;
  int error = exchange(said, sent, received);
  if (error != 0 && error != ETIMEDOUT) {
    error = connect_to_daemon();
    if (error == 0) {
      said = asked;
      error = exchange(said, sent, received);
    }
  }
  return note(error);
}

/** The same, without descriptors. */
int ask(message& said) noexcept {
  file_descriptor none;
  return ask(said, -1, none);
}

/** Tells whether the daemon has closed the connection. Waits for nothing. */
bool is_hung_up() noexcept {
  pollfd connection{socket_number.load(std::memory_order_relaxed), 0, 0};
  return connection.fd < 0 ||
         (poll(&connection, 1, 0) == 1 && (connection.revents & (POLLHUP | POLLERR)) != 0);
}

/** Takes bytes of the grant. Returns false if they are more than is left. `state` is held. */
bool use_grant(std::uint64_t bytes) noexcept {
  const std::uint64_t after = used_bytes + bytes;
  if (page == nullptr || after < used_bytes ||
      !page->account.use(units_of(after) - units_of(used_bytes))) {
    return false;
  }
  used_bytes = after;
  return true;
}

double mebibytes(std::uint64_t bytes) noexcept { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

int join_vgpu() noexcept {
  if (*variable("GDEV_SOCKET") == '\0') {
    return 0;
  }
  pthread_once(&fork_once, watch_forks);
  const uncancelled whole;
  const std::lock_guard lock(asking);
  if (joined.load(std::memory_order_relaxed)) {
    return 0;
  }
  const int error = connect_to_daemon();
  if (error == 0) {
    joined.store(true, std::memory_order_relaxed);
    return 0;
  }
  std::array<char, 256> line{};
  const char* const why =
      error == ENOENT || error == ECONNREFUSED
          ? "there is no such virtual GPU (gdev vgpu list), or no daemon (gdev run starts it)"
          : std::strerror(error);
  std::snprintf(line.data(), line.size(), "gdev: cannot join the virtual GPU %s: %s\n", vgpu_name(),
                why);
  say(line.data());
  return error;
}

bool has_joined() noexcept { return joined.load(std::memory_order_relaxed); }

int use_memory(std::uint64_t bytes) noexcept {
  const uncancelled whole;
  // A grant of a daemon that is gone may not be what a new one knows.
  if (!is_hung_up()) {
    const std::lock_guard lock(state);
    if (use_grant(bytes)) {
      return 0;
    }
  }
  std::array<char, 320> line{};
  int error = 0;
  {
    const std::lock_guard lock(asking);
    message said;
    said.kind = message_kind::want;
    said.numbers[0] = bytes;
    const int unanswered = ask(said);
    const std::lock_guard state_lock(state);
    if (unanswered == 0) {
      known = {said.numbers[0], said.numbers[1]};
    }
    if (unanswered == 0 && said.error == 0) {
      // The daemon has taken so many units; together with the rest of a unit in use it may be less.
      const std::uint64_t before = units_of(used_bytes);
      used_bytes += bytes;
      page->account.free(units_of(bytes) - (units_of(used_bytes) - before));
      return 0;
    }
    // What was granted may be used without an answer, and others may have freed.
    if (use_grant(bytes)) {
      return 0;
    }
    error = unanswered != 0 ? ENOTCONN : ENOMEM;
    if (!was_refused) {
      was_refused = true;
      std::snprintf(line.data(), line.size(),
                    "gdev: process %d, virtual GPU %s: no memory for %.1f MiB: %s (limit %.1f MiB; "
                    "in use %.1f MiB, %.1f MiB by this process). This is said once.\n",
                    getpid(), vgpu_name(), mebibytes(bytes),
                    error == ENOMEM ? "the limit is reached" : "the daemon does not answer",
                    mebibytes(known.limit), mebibytes(std::max(known.used, used_bytes)),
                    mebibytes(used_bytes));
    }
  }
  say(line.data());
  return error;
}

void free_memory(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(state);
  if (page == nullptr || bytes > used_bytes) {
    return;  // of the parent, before a fork
  }
  const std::uint64_t before = units_of(used_bytes);
  used_bytes -= bytes;
  page->account.free(before - units_of(used_bytes));
}

int ask_for_segment(message& said, int sent, file_descriptor& received) noexcept {
  if (*variable("GDEV_SOCKET") == '\0') {
    return ENOSYS;
  }
  if (!has_joined()) {
    return ENODEV;
  }
  const uncancelled whole;
  const std::lock_guard lock(asking);
  const bool is_made = said.kind == message_kind::key_make;
  const std::uint64_t bytes = said.numbers[3];
  if (ask(said, sent, received) != 0) {
    return ENOTCONN;
  }
  if (is_made && said.error == 0 && said.numbers[1] == 1) {
    // The daemon has taken them out of the page.
    const std::lock_guard state_lock(state);
    used_bytes -= std::min(bytes, used_bytes);
  }
  return said.error;
}

bool ask_memory(memory_facts& facts) noexcept {
  if (!has_joined()) {
    return false;
  }
  const uncancelled whole;
  const std::lock_guard lock(asking);
  message said;
  said.kind = message_kind::memory;
  const bool is_answered = ask(said) == 0 && said.error == 0;
  const std::lock_guard state_lock(state);
  if (is_answered) {
    known = {said.numbers[0], said.numbers[1]};
  } else {
    known.used = std::max(known.used, used_bytes);
  }
  facts = known;
  return true;
}

}  // namespace gdev
