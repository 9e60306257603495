/**
 * What clients, commands and the daemon say to each other.
 *
 * Over a SOCK_SEQPACKET socket, so a message arrives whole or not at all. All messages have one
 * form and size; the daemon answers each with one of the same kind. A number that a kind does not
 * use is zero. The other side may be anybody: each field is checked before it is used.
 */
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace gdev {

inline constexpr std::uint32_t protocol_version = 1;

enum class message_kind : std::uint32_t {
  // --- From clients: programs under gdev ---
  hello = 1,  // name: the virtual GPU. numbers: bytes in use, of a client that was connected before
              // answer, with the client's page: numbers: limit in bytes
  want = 2,   // numbers: bytes that must fit beside those in use. Error ENOMEM: the limit
  memory = 3,  // answer: numbers: limit, bytes in use by all clients of the virtual GPU
  // --- From commands ---
  add = 16,     // name; numbers: limit in bytes, owner who may join (all_users: everybody)
  set = 17,     // name; numbers: limit in bytes
  remove = 18,  // name. Error EBUSY: it has clients
  list = 19,    // numbers: index. answer: name; numbers: limit, in use, granted, clients, refusals,
                // owner. Error ENOENT: past the last
  clients = 20,  // numbers: index. answer: name; numbers: process, user, in use, granted, refusals
  stop = 21,     // the daemon ends
};

/** The owner of a virtual GPU that everybody may use. */
inline constexpr std::uint64_t all_users = ~std::uint64_t{0};

struct message {
  std::uint32_t version = protocol_version;
  message_kind kind{};
  std::int32_t error = 0;  // of an answer: an errno, or 0
  std::uint32_t reserved = 0;
  std::array<char, 32> name{};  // ended by a zero
  std::array<std::uint64_t, 6> numbers{};
};

static_assert(std::is_trivially_copyable_v<message>, "it is sent as it is");
static_assert(sizeof(message) == 96, "the Python commands use the same layout (gdev/_daemon.py)");

/** Returns the name in a message, which may lack its end. */
[[nodiscard]] inline std::string_view name_of(const message& said) noexcept {
  const std::string_view all(said.name.data(), said.name.size());
  return all.substr(0, all.find('\0'));  // npos: all of it
}

/** Stores a name. Returns false if it is empty or too long. */
[[nodiscard]] inline bool set_name(message& said, std::string_view name) noexcept {
  said.name = {};
  if (name.empty() || name.size() >= said.name.size()) {
    return false;
  }
  name.copy(said.name.data(), name.size());
  return true;
}

}  // namespace gdev
