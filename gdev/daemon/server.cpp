#include "daemon/server.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <new>
#include <system_error>

#include "base/crash_point.hpp"
#include "daemon/connection.hpp"
#include "protocol/envelope.hpp"

namespace gdev {

namespace {

// What an event is about: the low bits; the number of the connection is above them.
constexpr std::uint64_t of_listener = 0;
constexpr std::uint64_t of_signals = 1;
constexpr std::uint64_t of_socket = 2;
constexpr std::uint64_t of_process = 3;
constexpr unsigned kind_bits = 2;

constexpr std::size_t connections_max = 4096;
/** Of these, for root and the daemon's user: others cannot lock them out. */
constexpr std::size_t connections_kept = 64;
// Of a user other than the daemon's and root.
constexpr std::ptrdiff_t connections_of_user_max = 512;
// Connections that are accepted before others are served again.
constexpr int accepted_at_once = 16;

/** Throws if others can put files into the socket's folder, which would be believed. */
void check_folder(const std::string& path) {
  const std::size_t end = path.rfind('/');
  const std::string folder = end == std::string::npos ? "." : path.substr(0, end + 1);
  struct stat status{};
  if (stat(folder.c_str(), &status) != 0) {
    fail(folder);
  }
  if ((status.st_uid != 0 && status.st_uid != geteuid()) || (status.st_mode & 022) != 0) {
    fail(folder + ": others may write in this folder", EPERM);
  }
}

/**
 * Returns the process that has connected, or nothing: it has ended, or its name space is another.
 *
 * Taken when it connects: its number may be another process's when it says hello.
 */
file_descriptor process_of(int socket, pid_t pid) {
  constexpr int so_peerpidfd = 77;  // of the kernel, from 6.5 on
  if (pid <= 0) {
    return file_descriptor();
  }
  int found = -1;
  socklen_t size = sizeof found;
  if (getsockopt(socket, SOL_SOCKET, so_peerpidfd, &found, &size) == 0) {
    return file_descriptor(found);
  }
  return errno == ENOPROTOOPT ? file_descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))
                              : file_descriptor();
}

}  // namespace

server::server(std::string path) : path_(std::move(path)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.empty() || path_.size() >= sizeof address.sun_path) {
    fail(path_, ENAMETOOLONG);
  }
  path_.copy(address.sun_path, path_.size());
  check_folder(path_);
  lock_ =
      take(open((path_ + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), path_);
  if (flock(lock_.number(), LOCK_EX | LOCK_NB) != 0) {
    fail(path_, errno == EWOULDBLOCK ? EBUSY : errno);
  }
  crash_point("lock_taken");
  struct stat left{};
  if (lstat(path_.c_str(), &left) == 0) {
    // Of an earlier daemon; the lock says that it is gone. Nothing else is removed.
    if (!S_ISSOCK(left.st_mode)) {
      fail(path_, EEXIST);
    }
    unlink(path_.c_str());
  }
  listener_ = take(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket");
  crash_point("old_socket_removed");
  load();
  crash_point("state_loaded");
  if (bind(listener_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      chmod(path_.c_str(), 0666) != 0 ||  // rights are decided by who asks
      listen(listener_.number(), SOMAXCONN) != 0) {
    fail(path_);
  }
  crash_point("listening");
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  signals_ = take(signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd");
  spare_ = take(open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null");
  events_ = take(epoll_create1(EPOLL_CLOEXEC), "epoll");
  watch(listener_.number(), of_listener);
  watch(signals_.number(), of_signals);
}

server::~server() { unlink(path_.c_str()); }

void server::watch(int file, std::uint64_t what) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = what;
  if (epoll_ctl(events_.number(), EPOLL_CTL_ADD, file, &event) != 0) {
    fail("epoll");
  }
}

void server::run() {
  while (!is_stopped_) {
    std::array<epoll_event, 64> events{};
    const std::uint64_t next = turns_.tick(now());
    end_clients();
    send_signals();
    const std::uint64_t left = next == turns::never ? next : next - std::min(next, now());
    // Rounded up: else the daemon would wake for nothing until the time has come.
    const int wait_ms =
        next == turns::never
            ? -1
            : static_cast<int>(std::min<std::uint64_t>(left / 1'000'000 + 1, 60'000));
    const int count =
        epoll_wait(events_.number(), events.data(), static_cast<int>(events.size()), wait_ms);
    if (count < 0 && errno != EINTR) {
      fail("epoll");
    }
    for (int i = 0; i < count && !is_stopped_; ++i, send_signals()) {
      const std::uint64_t what = events[i].data.u64 & ((1U << kind_bits) - 1);
      const std::uint64_t id = events[i].data.u64 >> kind_bits;
      if (what == of_listener) {
        accept_some();
      } else if (what == of_signals) {
        is_stopped_ = true;
      } else if (what == of_process) {
        close(id);
      } else if (const auto found = connections_.find(id); found != connections_.end()) {
        try {
          receive(*found->second);
        } catch (const std::bad_alloc&) {
          close(id);  // this one goes without an answer, and the others go on
        }
      }
    }
  }
  accounts_.stop();
}

void server::accept_some() {
  for (int i = 0; i < accepted_at_once; ++i) {
    file_descriptor socket(
        accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EMFILE || errno == ENFILE) && spare_) {
      // Else it would stay in the queue and wake the daemon for ever: it is accepted and closed.
      spare_ = file_descriptor();
      socket = file_descriptor(accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC));
      const bool was_there = static_cast<bool>(socket);
      socket = file_descriptor();
      spare_ = file_descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (was_there) {
        continue;
      }
    }
    if (!socket) {
      return;  // none is left, or it is gone already
    }
    auto made = std::make_unique<connection>();
    socklen_t size = sizeof made->peer;
    if (getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &made->peer, &size) != 0 ||
        connections_.size() >= connections_max - (may_command(*made) ? 0 : connections_kept)) {
      continue;
    }
    if (!may_command(*made) &&
        std::count_if(connections_.begin(), connections_.end(), [&](const auto& one) {
          return one.second->peer.uid == made->peer.uid;
        }) >= connections_of_user_max) {
      continue;
    }
    made->process = process_of(socket.number(), made->peer.pid);
    made->id = next_id_++;
    made->socket = std::move(socket);
    try {
      watch(made->socket.number(), made->id << kind_bits | of_socket);
    } catch (const std::system_error&) {
      continue;  // the kernel has no memory for it
    }
    connections_[made->id] = std::move(made);
    crash_point("accepted");
  }
}

void server::watch_process(const connection& of) const {
  watch(of.process.number(), of.id << kind_bits | of_process);
}

void server::end_clients() {
  for (const client_id id : turns_.take_ended()) {
    // The pidfd is of the process that joined, whatever has its number now.
    if (const auto found = connections_.find(id);
        found != connections_.end() && found->second->process) {
      std::fprintf(stderr, "gdevd: process %d kept others waiting for too long: killed\n",
                   static_cast<int>(found->second->peer.pid));
      syscall(SYS_pidfd_send_signal, found->second->process.number(), SIGKILL, nullptr, 0);
    }
  }
}

void server::send_signals() {
  for (const client_id id : turns_.take_signals()) {
    if (const auto found = connections_.find(id);
        found != connections_.end() && found->second->page != nullptr) {
      found->second->page->signal();
      crash_point("signalled");
    }
  }
}

void server::close(std::uint64_t id) {
  const bool was_client = !accounts_.clients().empty();
  if (const auto found = connections_.find(id);
      found != connections_.end() && found->second->has_joined) {
    observations_.leave(id, daemon_counts(id));
  }
  turns_.leave(id, now());
  crash_point("turns_left");
  accounts_.leave(id);
  crash_point("accounts_left");
  keys_.leave(id);
  crash_point("keys_left");
  if (was_client) {
    note_clients(!accounts_.clients().empty());
  }
  connections_.erase(id);  // closes what epoll watched
  crash_point("client_removed");
}

void server::receive(connection& from) {
  message asked;
  const auto size_of = [&](int flags) {
    return recv(from.socket.number(), &asked, sizeof asked, flags | MSG_DONTWAIT | MSG_TRUNC);
  };
  // A message is looked at first: the kernel drops descriptors that are not expected.
  const bool has_room =
      size_of(MSG_PEEK) == sizeof asked && keys_.takes_descriptor(asked, caller(from));
  envelope<1> letter(asked);
  const ssize_t size = has_room ? recvmsg(from.socket.number(), letter.header(),
                                          MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC)
                                : size_of(0);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (size != sizeof asked) {
    close(from.id);  // the end, or something else than a message
    return;
  }
  file_descriptor given = letter.take();
  crash_point("message_received");
  message said;
  int file = -1;  // that is sent with the answer
  if (asked.version != protocol_version) {
    said.kind = asked.kind;
    said.error = EPROTO;  // the answer has the daemon's version
  } else if (is_of_keys(asked.kind)) {
    said = keys_.answer(caller(from), asked, std::move(given), file);
  } else {
    said = answer(from, asked);
  }
  const auto send = [&](msghdr* what) {
    return sendmsg(from.socket.number(), what, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof said;
  };
  bool is_sent = false;
  if (said.kind == message_kind::hello && said.error == 0) {
    is_sent = send(envelope<2>(said, {from.page->file(), from.page->signal_file()}).header());
  } else if (file >= 0) {
    is_sent = send(envelope<1>(said, {file}).header());
  } else {
    is_sent = send(envelope<0>(said).header());
  }
  crash_point("answer_sent");
  if (!is_sent) {
    close(from.id);
  }
}

key_caller server::caller(const connection& from) const noexcept {
  return {
      from.id,
      from.has_joined,
      {from.peer.uid, from.peer.gid, static_cast<std::uint64_t>(from.peer.pid), may_command(from)}};
}

}  // namespace gdev
