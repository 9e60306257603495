#include "daemon/keys.hpp"

#include <sys/ipc.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "protocol/messages.hpp"

namespace gdev {

namespace {

constexpr unsigned may_read = 04;
constexpr unsigned may_write = 02;
constexpr int mode_bits = 0777;

/** Tells whether a segment's mode gives the user these rights. Root has all. */
bool allows(const segment& one, const key_user& who, unsigned wanted) noexcept {
  unsigned granted = one.mode;
  if (who.user == one.user || who.user == one.creator.user) {
    granted >>= 6;
  } else if (who.group == one.group || who.group == one.creator.group) {
    granted >>= 3;
  }
  return who.user == 0 || (wanted & ~granted & 07) == 0;
}

bool may_change(const segment& one, const key_user& who) noexcept {
  return who.may_command || who.user == one.user || who.user == one.creator.user;
}

bool is_visible(const segment& one, const key_user& who) noexcept {
  return who.may_command || allows(one, who, may_read);
}

}  // namespace

int keys::missing(segment_id id) const noexcept {
  return id >= first_ && id < next_ ? EIDRM : EINVAL;
}

int keys::look_up(segment_id id, segments::iterator& found) {
  found = segments_.find(id);
  return found != segments_.end() ? 0 : missing(id);
}

int keys::get(std::int64_t key, std::uint64_t bytes, int flags, const key_user& who,
              segment_id& found) const {
  if ((flags & ~(IPC_CREAT | IPC_EXCL | mode_bits)) != 0) {
    return EINVAL;
  }
  const auto one = std::find_if(segments_.begin(), segments_.end(), [&](const auto& other) {
    return key != private_key && other.second.key == key && !other.second.is_removed;
  });
  if (one == segments_.end()) {
    return ENOENT;
  }
  if ((flags & IPC_CREAT) != 0 && (flags & IPC_EXCL) != 0) {
    return EEXIST;
  }
  // As of shmget(): each of the three digits of the mode asks for rights of the caller.
  const auto wanted = static_cast<unsigned>(flags & mode_bits);
  if (!allows(one->second, who, (wanted >> 6 | wanted >> 3 | wanted) & 07)) {
    return EACCES;
  }
  if (bytes > one->second.bytes) {
    return EINVAL;
  }
  found = one->first;
  return 0;
}

int keys::add(segment& made, segment_id& added) {
  const auto of_user = std::count_if(segments_.begin(), segments_.end(), [&](const auto& one) {
    return one.second.creator.user == made.creator.user;
  });
  if (segments_.size() >= segments_max ||
      static_cast<std::size_t>(of_user) >= segments_of_user_max || next_ > INT_MAX) {
    return ENOSPC;
  }
  segments_.emplace(next_, std::move(made));
  added = next_++;
  return 0;
}

segment keys::take(segment_id id) { return std::move(segments_.extract(id).mapped()); }

int keys::attach(client_id client, segment_id id, std::uint64_t rights, const key_user& who,
                 const segment** found) {
  segments::iterator one;
  if (const int error = look_up(id, one); error != 0) {
    return error;
  }
  if (one->second.is_removed && (rights & key_rights::again) == 0) {
    return EIDRM;
  }
  const bool is_to_write = (rights & key_rights::write) != 0;
  if (!allows(one->second, who, is_to_write ? may_read | may_write : may_read)) {
    return EACCES;
  }
  ++attached_[client][id];
  ++one->second.attachments;
  one->second.last_process = who.process;
  *found = &one->second;
  return 0;
}

int keys::detach(client_id client, segment_id id, const key_user& who) {
  segments::iterator one;
  if (const int error = look_up(id, one); error != 0) {
    return error;
  }
  const auto of_client = attached_.find(client);
  if (of_client == attached_.end()) {
    return EINVAL;
  }
  const auto count = of_client->second.find(id);
  if (count == of_client->second.end()) {
    return EINVAL;
  }
  if (--count->second == 0) {
    of_client->second.erase(count);
  }
  --one->second.attachments;
  one->second.last_process = who.process;
  drop_if_unused(one);
  return 0;
}

void keys::leave(client_id client) {
  const auto of_client = attached_.find(client);
  if (of_client == attached_.end()) {
    return;
  }
  for (const auto& [id, count] : of_client->second) {
    const auto one = segments_.find(id);
    one->second.attachments -= count;
    drop_if_unused(one);
  }
  attached_.erase(of_client);
}

int keys::find(segment_id id, const key_user& who, const segment** found) const {
  const auto one = segments_.find(id);
  if (one == segments_.end()) {
    return missing(id);
  }
  if (!is_visible(one->second, who)) {
    return EACCES;
  }
  *found = &one->second;
  return 0;
}

int keys::set(segment_id id, const key_user& who, std::uint64_t user, std::uint64_t group,
              unsigned mode) {
  segments::iterator one;
  if (const int error = look_up(id, one); error != 0) {
    return error;
  }
  if (!may_change(one->second, who)) {
    return EPERM;
  }
  one->second.user = user;
  one->second.group = group;
  one->second.mode = mode & mode_bits;
  return 0;
}

int keys::remove(segment_id id, const key_user& who) {
  segments::iterator one;
  if (const int error = look_up(id, one); error != 0) {
    return error;
  }
  if (!may_change(one->second, who)) {
    return EPERM;
  }
  if (one->second.is_removed) {
    return EIDRM;
  }
  one->second.is_removed = true;
  drop_if_unused(one);
  return 0;
}

int keys::at(std::uint64_t index, const key_user& who, segment_id& found) const {
  for (const auto& [id, one] : segments_) {
    if (is_visible(one, who) && index-- == 0) {
      found = id;
      return 0;
    }
  }
  return ENOENT;
}

void keys::drop_if_unused(segments::iterator which) {
  if (which->second.is_removed && which->second.attachments == 0) {
    dropped_.insert(segments_.extract(which));  // allocates nothing
  }
}

bool keys::take_dropped(segment& dropped) {
  if (dropped_.empty()) {
    return false;
  }
  dropped = std::move(dropped_.extract(dropped_.begin()).mapped());
  return true;
}

}  // namespace gdev
