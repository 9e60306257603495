#include "interposer/connection.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/crash_point.hpp"
#include "interposer/client.hpp"
#include "interposer/deadline.hpp"
#include "protocol/envelope.hpp"

namespace gdev {

namespace {

using steady_clock = std::chrono::steady_clock;

/** Sends a message, and the descriptor `sent` if it is one. Returns an errno. */
int send_message(int file, message& said, int sent, steady_clock::time_point deadline) noexcept {
  envelope<1> with_file(said, {sent});
  envelope<0> alone(said);
  const msghdr* const letter = sent >= 0 ? with_file.header() : alone.header();
  for (;;) {
    if (sendmsg(file, letter, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof said) {
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

/** Receives a message, and the descriptors that come with it. Returns an errno. */
int receive_message(int file, message& said, daemon_connection::descriptors& received,
                    steady_clock::time_point deadline) noexcept {
  for (;;) {
    iovec data{&said, sizeof said};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof received)> control{};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t size = recvmsg(file, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (const int error = wait_for(file, POLLIN, deadline); error != 0) {
        return error;
      }
      continue;
    }
    if (size != sizeof said) {
      return size < 0 ? errno : ECONNRESET;
    }
    const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
      std::memcpy(received.data(), CMSG_DATA(rights),
                  std::min<std::size_t>(sizeof received, rights->cmsg_len - CMSG_LEN(0)));
    }
    return 0;
  }
}

}  // namespace

void own_descriptor::take(int number) noexcept {
  constexpr int high_numbers = 900;
  const int high = is_there() ? dup3(number, this->number(), O_CLOEXEC)
                              : fcntl(number, F_DUPFD_CLOEXEC, high_numbers);
  if (high >= 0) {
    ::close(number);
    number = high;
  }
  struct stat status{};
  fstat(number, &status);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  number_.store(number, std::memory_order_relaxed);
}

bool own_descriptor::is_there() const noexcept {
  struct stat status{};
  return number() >= 0 && fstat(number(), &status) == 0 && status.st_dev == device_ &&
         status.st_ino == inode_;
}

void own_descriptor::close() noexcept {
  if (is_there()) {
    ::close(number());
  }
  number_.store(-1, std::memory_order_relaxed);
}

int daemon_connection::open(const char* path) noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string_view given = path;
  if (given.size() >= sizeof address.sun_path) {
    return ENAMETOOLONG;
  }
  given.copy(address.sun_path, given.size());
  const int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) {
    return errno;
  }
  socket_.take(made);
  const steady_clock::time_point deadline = steady_clock::now() + answer_timeout;
  while (connect(socket_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
         0) {
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

int daemon_connection::exchange(message& said, int sent, descriptors& received) noexcept {
  const steady_clock::time_point deadline = steady_clock::now() + answer_timeout;
  received = {-1, -1};
  if (!socket_.is_there()) {
    return ENOTCONN;
  }
  int error = send_message(socket_.number(), said, sent, deadline);
  crash_point("message_sent");
  error = error != 0 ? error : receive_message(socket_.number(), said, received, deadline);
  if (error != 0) {
    close();  // an answer that comes late would be taken for that of the next message
  }
  return error;
}

bool daemon_connection::is_hung_up() const noexcept {
  pollfd connection{socket_.number(), 0, 0};
  return connection.fd < 0 ||
         (poll(&connection, 1, 0) == 1 && (connection.revents & (POLLHUP | POLLERR)) != 0);
}

}  // namespace gdev
