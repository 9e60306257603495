#include "daemon/server.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
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
#include <fstream>
#include <new>
#include <sstream>
#include <system_error>

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
// Of a user other than the daemon's and root.
constexpr std::ptrdiff_t connections_of_user_max = 512;
// Connections that are accepted before others are served again.
constexpr int accepted_at_once = 16;

[[noreturn]] void fail(const std::string& what, int error = errno) {
  throw std::system_error(error, std::generic_category(), what);
}

file_descriptor take(int number, const std::string& what) {
  if (number < 0) {
    fail(what);
  }
  return file_descriptor(number);
}

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

/** A client's page: a file that cannot shrink under the daemon. */
class shared_page {
 public:
  /** Throws std::system_error. */
  shared_page()
      : file_(take(memfd_create("gdev client", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create")) {
    if (ftruncate(file_.number(), client_page_bytes) != 0 ||
        fcntl(file_.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      fail("a client's page");
    }
    void* const address =
        mmap(nullptr, client_page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.number(), 0);
    if (address == MAP_FAILED) {
      fail("a client's page");
    }
    page_ = new (address) client_page;
    page_->version = protocol_version;
  }
  shared_page(const shared_page&) = delete;
  shared_page& operator=(const shared_page&) = delete;
  ~shared_page() { munmap(page_, client_page_bytes); }

  [[nodiscard]] int file() const noexcept { return file_.number(); }
  [[nodiscard]] account_word& account() const noexcept { return page_->account; }

 private:
  file_descriptor file_;
  client_page* page_ = nullptr;
};

}  // namespace

struct server::connection {
  std::uint64_t id = 0;
  ucred peer{};
  std::unique_ptr<shared_page> page;  // of a client
  bool has_joined = false;
  file_descriptor process;
  file_descriptor socket;
};

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
  struct stat left{};
  if (lstat(path_.c_str(), &left) == 0) {
    // Of an earlier daemon; the lock says that it is gone. Nothing else is removed.
    if (!S_ISSOCK(left.st_mode)) {
      fail(path_, EEXIST);
    }
    unlink(path_.c_str());
  }
  listener_ = take(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket");
  load();
  if (bind(listener_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      chmod(path_.c_str(), 0666) != 0 ||  // rights are decided by who asks
      listen(listener_.number(), SOMAXCONN) != 0) {
    fail(path_);
  }
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
    const int count =
        epoll_wait(events_.number(), events.data(), static_cast<int>(events.size()), -1);
    if (count < 0 && errno != EINTR) {
      fail("epoll");
    }
    for (int i = 0; i < count && !is_stopped_; ++i) {
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
    if (connections_.size() >= connections_max) {
      continue;
    }
    auto made = std::make_unique<connection>();
    socklen_t size = sizeof made->peer;
    if (getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &made->peer, &size) != 0) {
      continue;
    }
    if (!may_command(*made) &&
        std::count_if(connections_.begin(), connections_.end(), [&](const auto& one) {
          return one.second->peer.uid == made->peer.uid;
        }) >= connections_of_user_max) {
      continue;
    }
    made->id = next_id_++;
    made->socket = std::move(socket);
    try {
      watch(made->socket.number(), made->id << kind_bits | of_socket);
    } catch (const std::system_error&) {
      continue;  // the kernel has no memory for it
    }
    connections_[made->id] = std::move(made);
  }
}

void server::close(std::uint64_t id) {
  accounts_.leave(id);
  keys_.leave(id);
  connections_.erase(id);  // closes what epoll watched
}

void server::receive(connection& from) {
  message asked;
  const auto size_of = [&](int flags) {
    return recv(from.socket.number(), &asked, sizeof asked, flags | MSG_DONTWAIT | MSG_TRUNC);
  };
  // A message is looked at first: the kernel drops descriptors that are not expected.
  const bool has_room = size_of(MSG_PEEK) == sizeof asked && keys_.takes_descriptor(asked);
  envelope letter(asked, has_room);
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
  message said;
  int file = -1;  // to be sent
  if (asked.version != protocol_version) {
    said.kind = asked.kind;
    said.error = EPROTO;  // the answer has the daemon's version
  } else if (is_of_keys(asked.kind)) {
    said = keys_.answer(caller(from), asked, std::move(given), file);
  } else {
    said = answer(from, asked);
    file = said.kind == message_kind::hello && said.error == 0 ? from.page->file() : -1;
  }
  envelope reply(said, file >= 0);
  if (file >= 0) {
    reply.put(file);
  }
  if (sendmsg(from.socket.number(), reply.header(), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof said) {
    close(from.id);
  }
}

bool server::may_command(const connection& from) const noexcept {
  return from.peer.uid == 0 || from.peer.uid == geteuid();
}

key_caller server::caller(const connection& from) const noexcept {
  return {
      from.id,
      from.has_joined,
      {from.peer.uid, from.peer.gid, static_cast<std::uint64_t>(from.peer.pid), may_command(from)}};
}

message server::join(connection& from, const message& asked) {
  message said;
  said.kind = asked.kind;
  if (from.has_joined) {
    said.error = EALREADY;
    return said;
  }
  try {
    from.page = std::make_unique<shared_page>();
    // Where the process is in another name space, only the connection tells of its end.
    from.process = file_descriptor(
        from.peer.pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, from.peer.pid, 0)) : -1);
    if (from.process) {
      watch(from.process.number(), from.id << kind_bits | of_process);
    }
  } catch (const std::system_error& error) {
    said.error = error.code().value();
    return said;
  }
  said.error = accounts_.join(from.id, name_of(asked), static_cast<std::uint64_t>(from.peer.pid),
                              from.peer.uid, from.page->account(), units_of(asked.numbers[0]));
  from.has_joined = said.error == 0;
  said.numbers[0] = accounts_.report(from.id).limit * account_unit;
  return said;
}

message server::answer(connection& from, const message& asked) {
  const auto put = [](message& said, std::string_view name,
                      std::initializer_list<std::uint64_t> numbers) {
    static_cast<void>(set_name(said, name));
    std::copy(numbers.begin(), numbers.end(), said.numbers.begin());
  };
  const auto put_memory = [&](message& into) {
    const vgpu_report found = accounts_.report(from.id);
    put(into, found.name, {found.limit * account_unit, found.used * account_unit});
  };
  message said;
  said.kind = asked.kind;
  switch (asked.kind) {
    case message_kind::hello: return join(from, asked);
    case message_kind::want:
      said.error = accounts_.want(from.id, units_of(asked.numbers[0]));
      put_memory(said);
      return said;
    case message_kind::memory:
      said.error = from.has_joined ? 0 : ENOENT;
      put_memory(said);
      return said;
    case message_kind::list: {
      const auto all = accounts_.vgpus();
      if (asked.numbers[0] >= all.size()) {
        said.error = ENOENT;
        return said;
      }
      const vgpu_report& one = all[asked.numbers[0]];
      put(said, one.name,
          {one.limit * account_unit, one.used * account_unit, one.granted * account_unit,
           one.clients, one.refusals, one.owner});
      return said;
    }
    case message_kind::clients: {
      const auto all = accounts_.clients();
      if (asked.numbers[0] >= all.size()) {
        said.error = ENOENT;
        return said;
      }
      const client_report& one = all[asked.numbers[0]];
      put(said, one.vgpu,
          {one.process, one.user, one.used * account_unit, one.granted * account_unit,
           one.refusals});
      return said;
    }
    case message_kind::add:
    case message_kind::set:
    case message_kind::remove:
    case message_kind::stop: break;
    default: said.error = EINVAL; return said;
  }
  if (!may_command(from)) {
    said.error = EPERM;
    return said;
  }
  const std::string_view name = name_of(asked);
  if (asked.kind == message_kind::stop) {
    is_stopped_ = true;
    return said;
  }
  if (asked.kind == message_kind::add) {
    // A name is a word of the state file and of tables.
    const bool is_word = !name.empty() && name.size() < asked.name.size() &&
                         name.find_first_not_of(
                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"
                             "XYZ0123456789_.-") == std::string_view::npos;
    said.error =
        is_word ? accounts_.add(name, units_of(asked.numbers[0]), asked.numbers[1]) : EINVAL;
  } else if (asked.kind == message_kind::set) {
    said.error = accounts_.set(name, units_of(asked.numbers[0]));
  } else {
    said.error = accounts_.remove(name);
  }
  if (said.error == 0) {
    said.error = save();
  }
  return said;
}

void server::load() {
  const std::string name = path_ + ".state";
  std::ifstream file(name);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line);
    std::string vgpu;
    std::uint64_t limit = 0;
    std::uint64_t owner = 0;
    if (!(words >> vgpu >> limit >> owner) || accounts_.add(vgpu, limit, owner) != 0) {
      fail(name + ", line " + std::to_string(number), EINVAL);
    }
  }
}

int server::save() const {
  const std::string name = path_ + ".state";
  const std::string made = name + ".new";
  std::string text;
  for (const vgpu_report& one : accounts_.vgpus()) {
    text += one.name + ' ' + std::to_string(one.limit) + ' ' + std::to_string(one.owner) + '\n';
  }
  const file_descriptor file(
      open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file ||
      write(file.number(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      fsync(file.number()) != 0 || rename(made.c_str(), name.c_str()) != 0) {
    return errno != 0 ? errno : ENOSPC;
  }
  return 0;
}

}  // namespace gdev
