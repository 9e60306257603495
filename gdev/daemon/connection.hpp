/** What the server has of each client, command and other peer; for server.cpp and answers.cpp. */
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <system_error>

#include "base/file_descriptor.hpp"
#include "daemon/server.hpp"
#include "protocol/account.hpp"
#include "protocol/messages.hpp"

namespace gdev {

[[noreturn]] inline void fail(const std::string& what, int error = errno) {
  throw std::system_error(error, std::generic_category(), what);
}

inline file_descriptor take(int number, const std::string& what) {
  if (number < 0) {
    fail(what);
  }
  return file_descriptor(number);
}

/** A client's page: a file that cannot shrink under the daemon. */
class shared_page {
 public:
  /** Throws std::system_error. */
  shared_page()
      : file_(take(memfd_create("gdev client", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create")),
        signals_(make_pair()) {
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
  /** Returns the end of the signals' socket that the client gets. */
  [[nodiscard]] int signal_file() const noexcept { return signals_[1].number(); }
  [[nodiscard]] client_page& words() const noexcept { return *page_; }

  /**
   * Wakes the client: its page has changed.
   *
   * A socket, because no client can make this wait: if it is full, the client has a signal to read.
   */
  void signal() const noexcept {
    const char one = 1;
    static_cast<void>(send(signals_[0].number(), &one, sizeof one, MSG_DONTWAIT | MSG_NOSIGNAL));
  }

 private:
  static std::array<file_descriptor, 2> make_pair() {
    std::array<int, 2> made{};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, made.data()) != 0) {
      fail("socketpair");
    }
    return {file_descriptor(made[0]), file_descriptor(made[1])};
  }

  file_descriptor file_;
  std::array<file_descriptor, 2> signals_;
  client_page* page_ = nullptr;
};

struct server::connection {
  std::uint64_t id = 0;
  ucred peer{};
  std::unique_ptr<shared_page> page;  // of a client
  bool has_joined = false;
  file_descriptor process;
  file_descriptor socket;
};

}  // namespace gdev
