/** A message as sendmsg() and recvmsg() take it, with room for one descriptor. */
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstring>

#include "base/file_descriptor.hpp"
#include "protocol/messages.hpp"

namespace gdev {

class envelope {
 public:
  /** has_room: whether a descriptor may be sent or received. Without room the kernel drops all. */
  envelope(message& what, bool has_room) noexcept : data_{&what, sizeof what} {
    header_.msg_iov = &data_;
    header_.msg_iovlen = 1;
    if (has_room) {
      header_.msg_control = control_.data();
      header_.msg_controllen = CMSG_LEN(sizeof(int));  // CMSG_SPACE would have room for two
    }
  }
  envelope(const envelope&) = delete;
  envelope& operator=(const envelope&) = delete;

  [[nodiscard]] msghdr* header() noexcept { return &header_; }

  /** Before it is sent: adds a descriptor, which stays open here. */
  void put(int file) noexcept {
    cmsghdr* const rights = CMSG_FIRSTHDR(&header_);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof file);
    std::memcpy(CMSG_DATA(rights), &file, sizeof file);
  }

  /** After it was received: takes the descriptor out, if one came. */
  [[nodiscard]] file_descriptor take() noexcept {
    const cmsghdr* const rights = CMSG_FIRSTHDR(&header_);
    int file = -1;
    if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
        rights->cmsg_len == CMSG_LEN(sizeof file)) {
      std::memcpy(&file, CMSG_DATA(rights), sizeof file);
    }
    return file_descriptor(file);
  }

 private:
  iovec data_;
  msghdr header_{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_{};
};

}  // namespace gdev
