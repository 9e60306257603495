#include "interposer/ipc_exporter.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/crash_point.hpp"
#include "base/endless.hpp"
#include "base/file_descriptor.hpp"
#include "base/own_thread.hpp"
#include "interposer/client.hpp"
#include "interposer/connection.hpp"
#include "interposer/driver.hpp"
#include "interposer/swappable_memory.hpp"

namespace gdev {

namespace {

using steady_clock = std::chrono::steady_clock;

/** How long the thread waits when the process or the system has no descriptors. */
constexpr int full_pause_ms = 10;
/** How long it waits before it tries to listen again. */
constexpr int listen_again_ms = 1000;

class exported_memory;

/** What this process exports. No lock is held across a call of the driver. */
struct export_table {
  std::mutex mutex;  // guards all below
  bool is_started = false;
  std::uint64_t socket = 0;
  std::array<std::uint64_t, 2> token{};
  std::uint64_t next_id = 1;
  std::map<std::uint64_t, std::weak_ptr<exported_memory>> all;
};

endless<export_table> the_table;

export_table& table() noexcept { return the_table.get(); }

/**
 * References to the chunks of an allocation. They are released after the last user: so the chunks
 * are there while the thread exports them, also if the program frees the allocation meanwhile.
 */
class exported_memory {
 public:
  struct chunk {
    CUmemGenericAllocationHandle handle = 0;
    std::uint64_t bytes = 0;
  };

  exported_memory() = default;
  exported_memory(const exported_memory&) = delete;
  exported_memory& operator=(const exported_memory&) = delete;
  ~exported_memory() {
    for (const chunk& one : chunks) {
      static_cast<void>(call_driver<CUresult>(id_cuMemRelease, one.handle));
    }
    const std::lock_guard lock(table().mutex);
    table().all.erase(id);
  }

  std::uint64_t id = 0;  // 0: not in the table
  std::vector<chunk> chunks;
};

// --- The thread ---

own_descriptor listener;

struct peer {
  own_descriptor file;
  steady_clock::time_point deadline;
};
constexpr std::size_t peers_max = 64;
std::array<peer, peers_max> peers;

/** Listens under a name. Returns an errno. */
int listen_as(std::uint64_t name) noexcept {
  file_descriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  socklen_t length = 0;
  const sockaddr_un address = ipc_address(name, length);
  if (!made || bind(made.number(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(made.number(), static_cast<int>(peers_max)) != 0) {
    return errno;
  }
  listener.take(fcntl(made.number(), F_DUPFD_CLOEXEC, 0));
  return listener.is_there() ? 0 : EMFILE;
}

/** Accepts a peer, in place of the most silent one if there are too many. False: there is none. */
bool accept_peer() noexcept {
  file_descriptor made(accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!made) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      poll(nullptr, 0, full_pause_ms);
    }
    return false;
  }
  ucred known{};
  socklen_t size = sizeof known;
  if (getsockopt(made.number(), SOL_SOCKET, SO_PEERCRED, &known, &size) != 0 ||
      (known.uid != geteuid() && known.uid != 0)) {
    return true;  // closed
  }
  peer* place = &peers.front();
  for (peer& one : peers) {
    if (!one.file.is_there()) {
      place = &one;
      break;
    }
    place = one.deadline < place->deadline ? &one : place;
  }
  place->file.close();
  place->file.take(fcntl(made.number(), F_DUPFD_CLOEXEC, 0));
  place->deadline = steady_clock::now() + answer_timeout;
  crash_point("peer_accepted");
  return true;
}

/** Stores some descriptors of the memory in an answer. Returns them. */
std::vector<file_descriptor> collect(const ipc_request& asked, ipc_answer& said) noexcept {
  std::vector<file_descriptor> files;
  std::shared_ptr<exported_memory> found;
  {
    const std::lock_guard lock(table().mutex);
    const auto known = table().all.find(asked.id);
    if (asked.token != table().token) {
      said.error = EACCES;
    } else if (known == table().all.end() || (found = known->second.lock()) == nullptr) {
      said.error = ENOENT;
    }
  }
  if (said.error != 0) {
    return files;
  }
  said.chunks = found->chunks.size();
  for (std::uint64_t i = asked.first; i < said.chunks && files.size() < ipc_answer::most; ++i) {
    int file = -1;
    void* const place = &file;
    if (call_driver<CUresult>(id_cuMemExportToShareableHandle, place, found->chunks[i].handle,
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0ULL) != CUDA_SUCCESS) {
      break;
    }
    said.bytes[files.size()] = found->chunks[i].bytes;
    files.emplace_back(file);
  }
  said.error = files.empty() ? EAGAIN : 0;
  said.count = static_cast<std::uint32_t>(files.size());
  return files;
}

/** Sends an answer, if the peer takes it at once. Returns an errno. */
int send_answer(int to, ipc_answer& said, const std::vector<file_descriptor>& files) noexcept {
  iovec data{&said, sizeof said};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * ipc_answer::most)> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!files.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(sizeof(int) * files.size());
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * files.size());
    for (std::size_t i = 0; i < files.size(); ++i) {
      const int number = files[i].number();
      std::memcpy(CMSG_DATA(rights) + i * sizeof number, &number, sizeof number);
    }
  }
  return sendmsg(to, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof said ? 0 : errno;
}

/** Answers one request. Returns false if the connection ends. */
bool answer(int file) noexcept {
  ipc_request asked;
  const ssize_t size = recv(file, &asked, sizeof asked, MSG_DONTWAIT | MSG_TRUNC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
    return true;
  }
  if (size != sizeof asked || asked.magic != ipc_handle::magic_value) {
    return false;
  }
  ipc_answer said;
  const std::vector<file_descriptor> files = collect(asked, said);
  crash_point("chunks_exported");
  int error = send_answer(file, said, files);
  crash_point("chunks_sent");
  if (error == ETOOMANYREFS) {  // too many are on their way already
    said = {};
    said.error = EAGAIN;
    error = send_answer(file, said, {});
  }
  return error == 0 && said.error != EACCES;
}

/** Waits until there is something to do. Stores which peers have sent something. */
void wait_for_peers(std::vector<peer*>& ready, bool& has_new) noexcept {
  std::vector<pollfd> files{{listener.is_there() ? listener.number() : -1, POLLIN, 0}};
  std::vector<peer*> polled{nullptr};
  std::chrono::milliseconds most{files.front().fd < 0 ? listen_again_ms : -1};
  for (peer& one : peers) {
    if (one.file.is_there()) {
      const auto left =
          std::max(std::chrono::ceil<std::chrono::milliseconds>(one.deadline - steady_clock::now()),
                   std::chrono::milliseconds{0});
      most = most.count() < 0 ? left : std::min(most, left);
      files.push_back({one.file.number(), POLLIN, 0});
      polled.push_back(&one);
    }
  }
  ready.clear();
  if (poll(files.data(), files.size(), static_cast<int>(most.count())) < 0) {
    return;
  }
  has_new = files.front().revents != 0;
  for (std::size_t i = 1; i < files.size(); ++i) {
    if (files[i].revents != 0) {
      ready.push_back(polled[i]);
    }
  }
}

void* serve(void* /*unused*/) {
  std::vector<peer*> ready;
  for (;;) {
    bool has_new = false;
    wait_for_peers(ready, has_new);
    for (peer* const one : ready) {
      if (!answer(one->file.number())) {
        one->file.close();
      } else {
        one->deadline = steady_clock::now() + answer_timeout;
      }
    }
    for (peer& one : peers) {
      if (steady_clock::now() >= one.deadline) {
        one.file.close();
      }
    }
    for (std::size_t i = 0; has_new && i < peers_max && accept_peer(); ++i) {
    }
    if (!listener.is_there()) {  // the program has closed it
      std::uint64_t name = 0;
      {
        const std::lock_guard lock(table().mutex);
        name = table().socket;
      }
      static_cast<void>(listen_as(name));  // or the next time
    }
  }
}

bool fill_randomly(void* place, std::size_t bytes) noexcept {
  return getrandom(place, bytes, 0) == static_cast<ssize_t>(bytes);
}

/** Starts the thread once. The table's lock is held. */
bool start() noexcept {
  export_table& own = table();
  if (own.is_started) {
    return true;
  }
  if (!fill_randomly(&own.socket, sizeof own.socket) ||
      !fill_randomly(own.token.data(), sizeof own.token) || listen_as(own.socket) != 0) {
    return false;
  }
  if (start_own_thread("gdev-ipc", serve)) {
    own.is_started = true;
    crash_point("exporter_started");
  } else {
    listener.close();
  }
  return own.is_started;
}

}  // namespace

sockaddr_un ipc_address(std::uint64_t name, socklen_t& length) noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // The first byte is 0: the name is in no folder.
  const int size = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                                 "gdev-ipc-%016llx", static_cast<unsigned long long>(name));
  length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(size));
  return address;
}

CUresult export_memory(CUdeviceptr base, std::size_t bytes, ipc_handle& made) noexcept {
  {
    const std::lock_guard lock(table().mutex);
    if (!start()) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
  }
  std::shared_ptr<void> kept = swappable().keep(base, nullptr);
  if (kept == nullptr) {
    const auto added = std::make_shared<exported_memory>();
    for (const auto& [address, size] : swappable().chunks_of(base)) {
      CUmemGenericAllocationHandle handle = 0;
      void* const place = reinterpret_cast<void*>(address);
      const CUresult result = call_driver<CUresult>(id_cuMemRetainAllocationHandle, &handle, place);
      if (result != CUDA_SUCCESS) {
        return result;
      }
      added->chunks.push_back({handle, size});
    }
    {
      const std::lock_guard lock(table().mutex);
      added->id = table().next_id++;
      table().all[added->id] = added;
    }
    crash_point("chunks_retained");
    kept = swappable().keep(base, added);
  }
  if (kept == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;  // freed by another thread
  }
  crash_point("export_kept");
  made = {};
  made.id = static_cast<const exported_memory*>(kept.get())->id;
  made.bytes = bytes;
  made.pid = static_cast<std::uint64_t>(getpid());
  const std::lock_guard lock(table().mutex);
  made.socket = table().socket;
  made.token = table().token;
  return CUDA_SUCCESS;
}

bool is_own_handle(const ipc_handle& which) noexcept {
  const std::lock_guard lock(table().mutex);
  return table().is_started && which.socket == table().socket && which.token == table().token;
}

void forget_exports() noexcept {
  the_table.forget();
  listener.close();
  for (peer& one : peers) {
    one.file.close();
  }
}

}  // namespace gdev
