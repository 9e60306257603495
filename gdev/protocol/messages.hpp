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

#include "base/fnv.hpp"

namespace gdev {

inline constexpr std::uint32_t protocol_version = 7;

/**
 * The kinds, with the fields that each uses beside its error. `name` is a virtual GPU.
 *
 * From clients, which are programs under gdev:
 *   hello    name, job; of a client that comes back to a daemon: bytes in use, a host_share, number
 *            and bytes of the GPU, what was counted of it (counters.hpp). Answer: limit;
 *            descriptors: the client's page, and a socket of signals. ENOENT: no such virtual GPU;
 *            EACCES: not this user's
 *   want     bytes; as of gpu (number 0: none); a memory_place: the daemon takes them into use.
 *            Answer: as of memory. ENOMEM: the limit, or more than the GPU or the host can have;
 *            EAGAIN: others must leave the GPU first; a signal says when to ask again; EXDEV: they
 *            are taken, but for the host's memory until the client leaves the GPU
 *   memory   number and bytes of a GPU, for a client that uses none yet. Answer: name; limit,
 *            bytes in use by all clients of the virtual GPU, bytes that this client could have on
 *            its GPU if others leave, and if those that are reserved memory do not
 *   gpu      number, bytes, free bytes of a GPU that the client uses
 *   turn     a turn_event; bytes and nanoseconds (below). Answer: name; the page's order. ECANCELED
 *   host     bytes of the host's memory, and in files, that the client wants to hold for what is
 *            swapped out. ENOMEM: it wants more than it holds, and there may not be so much
 *   unknown  index of a driver function that gdev does not know; the other numbers are its name
 *   overhead bytes on GPUs that no allocation holds, 1 if they may be refused, overhead_source.
 *            Answer: as of memory. ENOMEM: the limit has no room for them, and they do not count
 * From commands of root and the daemon's user (others: EPERM):
 *   add      name; limit, owner (all_users: everybody's), reserve, priority, full_policy,
 *            end_after_s. EEXIST; EINVAL, with a setting_fault, and the most that is possible
 *   set      name; as of add; `unchanged` leaves a number as it is. ENOENT; EINVAL
 *   remove   name. ENOENT; EBUSY: it has clients
 *   pause    process, 1 or 0: its clients leave their GPUs until they may go on. ESRCH
 *   stop     the daemon ends
 * From commands of everybody:
 *   settings most of each GPU for clients together, of that only for clients that enter, bytes of
 *            the host's memory, and in files, for what is swapped out; `unchanged`. Answer: the
 *            numbers, bytes of the largest GPU that is known. EPERM: only root and the daemon's
 *            user may change one; EINVAL: as of add
 *   list     index, or number: the first virtual GPU after that number. Answer: name; limit, in
 *            use, granted, clients, refusals, owner, reserve, priority, full_policy, end_after_s,
 *            number, bytes that are shared by keys, overhead. ENOENT: past the last
 *   clients  index, or 0 and the client's id. Answer: name; process, user, in use, granted,
 *            refusals, phase, nanoseconds in it, client_flag bits, errno of a turn that it could
 *            not end, swappable, on the GPU, turns, bytes moved out, in, nanoseconds of moving, of
 *            waiting. ENOENT: past the last
 *   gpus     index. Answer: number, bytes, capacity, rooms together, overhead of its clients, bytes
 *            that are in use and nobody's. ENOENT: past the last
 *   observe  1: clients are asked for their counts, unless they were just now. Answer: how many
 *            have not answered since they were asked last
 *   counts   a client's id: the first one after it is meant. Answer: name; id, process, GPU, how
 *            many unknown functions have a name, the counts (counters.hpp). ENOENT: past the last
 *   totals   name. Answer: the counts of its clients together, also of those that have ended.
 *            ENOENT
 *   unknown_name  a client's id, index. Answer: name; the numbers are the text. ENOENT
 *   overhead_of  a client's id. Answer: name; bytes, overhead_source. ENOENT
 * Memory shared by keys. Errors as of the calls in include/gdev/shared_memory.h. From clients
 * (others: ENOTCONN):
 *   key_get     key, bytes, flags. Answer: id. ENOENT: none has the key, also with IPC_CREAT
 *   key_make    key, bytes, flags, bytes of the chunk, and its descriptor. Answer: id; 1 if the
 *               daemon keeps the chunk and has taken its bytes out of the client's account; 0:
 *               another was sooner. ENOSPC: also if no descriptor came
 *   key_attach  id, rights (key_rights). Answer: bytes, bytes of the chunk, and its descriptor
 *   key_detach  id
 * From everybody:
 *   key_status  id. Answer: name; key, bytes, owner, creator (user, and group << 32), mode and
 *               attachments << 32, process of the creator and the last one << 32
 *   key_set     id, user, group, mode
 *   key_remove  id
 *   key_list    index. Answer: id. ENOENT: past the last that the user may read
 */
enum class message_kind : std::uint32_t {
  hello = 1,
  want = 2,
  memory = 3,
  gpu = 4,
  turn = 5,
  host = 6,
  unknown = 7,
  overhead = 8,
  add = 16,
  set = 17,
  remove = 18,
  list = 19,
  clients = 20,
  stop = 21,
  settings = 22,
  pause = 23,
  gpus = 24,
  observe = 25,
  counts = 26,
  totals = 27,
  unknown_name = 28,
  overhead_of = 29,
  key_get = 32,
  key_make = 33,
  key_attach = 34,
  key_detach = 35,
  key_status = 36,
  key_set = 37,
  key_remove = 38,
  key_list = 39,
};

/** A number that a command does not change. */
inline constexpr std::uint64_t unchanged = ~std::uint64_t{0} - 1;

/** Of a client that comes back: what it holds of the host, in account_unit. In one number. */
struct host_share {
  bool is_off = false;   // its GPU
  bool is_held = false;  // on its GPU, as by order_hold
  std::uint64_t memory = 0;
  std::uint64_t files = 0;

  [[nodiscard]] constexpr std::uint64_t packed() const noexcept {
    return std::uint64_t{is_off} | (memory & most) << 1 | (files & most) << 32 |
           std::uint64_t{is_held} << 63;
  }
  [[nodiscard]] static constexpr host_share unpacked(std::uint64_t number) noexcept {
    return {(number & 1) != 0, number >> 63 != 0, number >> 1 & most, number >> 32 & most};
  }

 private:
  static constexpr std::uint64_t most = 0x7FFFFFFF;  // account_units_max
};

/** What happens to a client's turn: the client says it. */
enum class turn_event : std::uint64_t {
  waits = 1,     // it is off the GPU, and has work
  leaves = 2,    // it is idle and others wait: it begins to leave. ECANCELED: it need not any more
  released = 3,  // it is leaving: bytes that are still on the GPU
  left = 4,      // it is off the GPU, with what its page says there still: bytes moved,
                 // nanoseconds of moving
  stays = 5,     // it cannot leave now: an errno (ENOMEM: the host has no room; EIO: its file
                 // cannot be written; EBUSY: work that does not end); 1: it is off, and cannot
                 // release more
  entered = 6,   // it is on the GPU: bytes moved, nanoseconds of moving. EAGAIN: some of its room
                 // was taken back; it waits until it has it again
  held = 7,      // the number of a hold_round: its calls are submitted; if it has none: nothing
                 // runs on the GPU
  paused = 8,    // an earlier daemon had paused it
};

/** Where memory is to be that a client wants. */
enum class memory_place : std::uint64_t {
  here = 0,          // on the GPU on which it takes turns
  elsewhere = 1,     // on another one
  any = 2,           // here; the host's memory will do, which its GPU can use
  not_any_more = 3,  // nowhere: it has got otherwise what it has asked for
};

/** Why settings are impossible; gdev/_daemon.py has a text for each. */
enum class setting_fault : std::uint64_t {
  none,
  name,
  limit,
  reserve,
  reserve_above_limit,
  reserves_above_gpu,  // of all virtual GPUs together
  priority,
  when_full,
  end_after,
  spare,
  host,
};

/** What `clients` answers of a client, as bits. */
namespace client_flag {
inline constexpr std::uint64_t paused = 1;
inline constexpr std::uint64_t waits = 2;  // for room on its GPU
inline constexpr std::uint64_t unfit = 4;  // it is off, and needs more than there is for it
inline constexpr std::uint64_t held = 8;   // it is on its GPU, and waits for the rest of its job
}  // namespace client_flag

/** Tells whether a message is about memory shared by keys. */
[[nodiscard]] constexpr bool is_of_keys(message_kind kind) noexcept {
  return kind >= message_kind::key_get && kind <= message_kind::key_list;
}

/** What a client attaches a segment for. `again`: it is attached; the daemon may have lost that. */
namespace key_rights {
inline constexpr std::uint64_t read = 0;
inline constexpr std::uint64_t write = 1;
inline constexpr std::uint64_t again = 2;
}  // namespace key_rights

/** In the mode that key_status answers, as SHM_DEST: removed, and attached still. */
inline constexpr std::uint64_t key_removed = 01000;

/** The owner of a virtual GPU that everybody may use. */
inline constexpr std::uint64_t all_users = ~std::uint64_t{0};

struct message {
  std::uint32_t version = protocol_version;
  message_kind kind{};
  std::int32_t error = 0;       // of an answer: an errno, or 0
  std::uint32_t job = 0;        // of hello: a job_word
  std::array<char, 32> name{};  // ended by a zero
  std::array<std::uint64_t, 16> numbers{};
};

static_assert(std::is_trivially_copyable_v<message>, "it is sent as it is");
static_assert(sizeof(message) == 176, "the Python commands use the same layout (gdev/_daemon.py)");

/** Returns the name in a message, which may lack its end. */
[[nodiscard]] inline std::string_view name_of(const message& said) noexcept {
  const std::string_view all(said.name.data(), said.name.size());
  return all.substr(0, all.find('\0'));  // npos: all of it
}

/** Of which job a process is. */
struct job_word {
  static constexpr std::uint32_t size_max = 32;  // each look at a job costs its square

  std::uint32_t number = 0;  // the same in all its processes; 0: it has no job
  std::uint32_t size = 0;    // how many they are; 0: not known

  [[nodiscard]] static constexpr job_word of(std::string_view name, std::uint32_t size) noexcept {
    const auto number = static_cast<std::uint32_t>(fnv_1a(name)) >> 8;
    return name.empty() ? job_word{} : job_word{number == 0 ? 1 : number, size};
  }
  [[nodiscard]] static constexpr job_word unpacked(std::uint32_t word) noexcept {
    return {word >> 8, word & 0xFF};
  }
  [[nodiscard]] constexpr std::uint32_t packed() const noexcept {
    return number << 8 | (size <= size_max ? size : 0);
  }
};

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
