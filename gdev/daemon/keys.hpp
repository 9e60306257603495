/**
 * Device memory that programs share by keys: segments, with the rules of shmget().
 *
 * Pure bookkeeping, without I/O, clock or threads. A segment's bytes live in a chunk that a client
 * made; the segment owns a descriptor of it, so the bytes outlive that client.
 *
 * Invariants:
 * 1. At most one segment that is not removed has a key other than private_key.
 * 2. A segment is dropped once it is removed and has no attachment.
 * 3. `attachments` of a segment is the sum over the clients.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/file_descriptor.hpp"
#include "daemon/accounts.hpp"

namespace gdev {

inline constexpr std::int64_t private_key = 0;
inline constexpr std::size_t segments_max = 1024;
inline constexpr std::size_t segments_of_user_max = 256;

using segment_id = std::uint64_t;

/** The user that a request comes from, as the kernel says. */
struct key_user {
  std::uint64_t user = 0;
  std::uint64_t group = 0;
  std::uint64_t process = 0;
  bool may_command = false;  // root, and the daemon's user: they may change and remove all segments
};

struct segment {
  std::int64_t key = private_key;
  std::uint64_t bytes = 0;     // as the creator asked
  std::uint64_t physical = 0;  // of the chunk
  std::uint64_t user = 0;
  std::uint64_t group = 0;
  unsigned mode = 0;  // as of a file, 9 bits
  key_user creator;
  std::uint64_t last_process = 0;  // that attached or detached
  std::string vgpu;                // it is charged for `physical`
  file_descriptor chunk;
  std::uint64_t attachments = 0;
  bool is_removed = false;
};

/** Calls return 0 or an errno; EINVAL: there never was such an id; EIDRM: it was removed. */
class keys {
 public:
  /** first: ids count up from here, at most to INT_MAX, and are not used twice. */
  explicit keys(segment_id first) noexcept : first_(first), next_(first) {}

  /**
   * Finds the segment of a key other than private_key. flags: IPC_CREAT, IPC_EXCL, and the mode
   * bits that the user must have.
   *
   * ENOENT: none has the key; EEXIST: IPC_CREAT and IPC_EXCL; EACCES: its mode; EINVAL: it is
   * smaller than `bytes`, or other flags.
   */
  int get(std::int64_t key, std::uint64_t bytes, int flags, const key_user& who,
          segment_id& found) const;

  /** Moves a segment in; no other has its key. ENOSPC: there are too many; it is not moved. */
  int add(segment& made, segment_id& added);
  /** Takes out a segment that was added just now. */
  segment take(segment_id id);

  /**
   * Attaches a client. rights: key_rights; with `again` it may be removed, if it is still there.
   * EACCES: its mode. The pointer lasts until the next change.
   */
  int attach(client_id client, segment_id id, std::uint64_t rights, const key_user& who,
             const segment** found);
  /** Undoes one attachment of the client. EINVAL: it has none. */
  int detach(client_id client, segment_id id, const key_user& who);
  /** A client is gone: undoes all its attachments. */
  void leave(client_id client);

  /** Finds a segment that the user may read. EACCES. */
  int find(segment_id id, const key_user& who, const segment** found) const;
  /** Changes owner and mode. EPERM: neither owner, nor creator, nor may_command. */
  int set(segment_id id, const key_user& who, std::uint64_t user, std::uint64_t group,
          unsigned mode);
  /** Frees the key; drops the segment with its last attachment. EPERM. */
  int remove(segment_id id, const key_user& who);
  /** Finds one of the segments that the user may read (may_command: of all). ENOENT: no more. */
  int at(std::uint64_t index, const key_user& who, segment_id& found) const;

  /** Takes one of the segments out that were dropped. Returns false if there is none. */
  [[nodiscard]] bool take_dropped(segment& dropped);

 private:
  using segments = std::map<segment_id, segment>;

  /** Finds a segment, removed or not. EINVAL, EIDRM. */
  int look_up(segment_id id, segments::iterator& found);
  /** Returns the error for an id without a segment. */
  [[nodiscard]] int missing(segment_id id) const noexcept;
  void drop_if_unused(segments::iterator which);

  segment_id first_;
  segment_id next_;
  segments segments_;
  segments dropped_;
  std::map<client_id, std::map<segment_id, std::uint64_t>> attached_;
};

}  // namespace gdev
