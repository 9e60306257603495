/** A message as sendmsg() and recvmsg() take it, with descriptors. */
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstring>

#include "base/file_descriptor.hpp"
#include "protocol/messages.hpp"

namespace gdev {

/** Count: the descriptors that it is sent with, or has room for. The kernel drops others. */
template <std::size_t Count>
class envelope {
 public:
  using descriptors = std::array<int, Count>;

  /** To receive a message, or to send one without descriptors. */
  explicit envelope(message& what) noexcept : data_{&what, sizeof what} {
    header_.msg_iov = &data_;
    header_.msg_iovlen = 1;
    if constexpr (Count > 0) {
      header_.msg_control = control_.data();
      header_.msg_controllen = CMSG_LEN(sizeof(descriptors));  // CMSG_SPACE may have room for more
    }
  }
  /** To send a message with descriptors, which stay open here. */
  envelope(message& what, const descriptors& files) noexcept : envelope(what) {
    cmsghdr* const rights = CMSG_FIRSTHDR(&header_);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof files);
    std::memcpy(CMSG_DATA(rights), files.data(), sizeof files);
  }
  envelope(const envelope&) = delete;
  envelope& operator=(const envelope&) = delete;

  [[nodiscard]] msghdr* header() noexcept { return &header_; }

  /** After it was received: takes the descriptor out, if one came. */
  [[nodiscard]] file_descriptor take() noexcept
    requires(Count == 1)
  {
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
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * Count)> control_{};
};

}  // namespace gdev
