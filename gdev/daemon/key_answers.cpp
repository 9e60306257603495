#include "daemon/key_answers.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <initializer_list>
#include <limits>
#include <utility>

#include "base/crash_point.hpp"
#include "protocol/account.hpp"

namespace gdev {

namespace {

/** Returns where ids begin: those of an earlier daemon, which clients still know, do not recur. */
segment_id random_id() noexcept {
  std::uint32_t number = 0;
  static_cast<void>(!getrandom(&number, sizeof number, GRND_NONBLOCK));
  return number >> 2;  // of 2^31 ids a half is left
}

void put(message& said, std::initializer_list<std::uint64_t> numbers) noexcept {
  std::copy(numbers.begin(), numbers.end(), said.numbers.begin());
}

constexpr std::uint64_t pair(std::uint64_t low, std::uint64_t high) noexcept {
  return (low & 0xFFFFFFFF) | high << 32;
}

/** Returns the flags of a message; numbers that are none become flags that are refused. */
int flags_of(std::uint64_t number) noexcept {
  return number <= std::numeric_limits<int>::max() ? static_cast<int>(number) : -1;
}

}  // namespace

key_answers::key_answers(accounts& charged) : charged_(charged), keys_(random_id()) {}

bool key_answers::takes_descriptor(const message& asked, const key_caller& from) const noexcept {
  return from.is_client && asked.version == protocol_version &&
         asked.kind == message_kind::key_make && !closer_.is_full(from.who.user);
}

message key_answers::answer(const key_caller& from, const message& asked, file_descriptor given,
                            int& sent) {
  message said;
  said.kind = asked.kind;
  if (!from.is_client && asked.kind <= message_kind::key_detach) {
    said.error = ENOTCONN;  // no descriptor was taken from it: takes_descriptor()
    return said;
  }
  const segment_id id = asked.numbers[0];
  segment_id found = 0;
  switch (asked.kind) {
    case message_kind::key_get:
      said.error = keys_.get(static_cast<std::int64_t>(asked.numbers[0]), asked.numbers[1],
                             flags_of(asked.numbers[2]), from.who, found);
      put(said, {found});
      break;
    case message_kind::key_make: said.error = make(from, asked, std::move(given), said); break;
    case message_kind::key_attach: said.error = attach(from, asked, said, sent); break;
    case message_kind::key_detach:
      said.error = keys_.detach(from.id, id, from.who);
      crash_point("key_detached");
      break;
    case message_kind::key_status: said.error = describe(from, asked, said); break;
    case message_kind::key_set: {
      constexpr std::uint64_t id_max = 0xFFFFFFFE;  // the last one means "unchanged" to chown()
      const bool is_right =
          asked.numbers[1] <= id_max && asked.numbers[2] <= id_max && asked.numbers[3] <= 0777;
      said.error = is_right ? keys_.set(id, from.who, asked.numbers[1], asked.numbers[2],
                                        static_cast<unsigned>(asked.numbers[3]))
                            : EINVAL;
      break;
    }
    case message_kind::key_remove:
      said.error = keys_.remove(id, from.who);
      crash_point("key_removed");
      break;
    case message_kind::key_list:
      said.error = keys_.at(asked.numbers[0], from.who, found);
      put(said, {found});
      break;
    default: said.error = EINVAL; break;
  }
  settle();
  return said;
}

int key_answers::make(const key_caller& from, const message& asked, file_descriptor given,
                      message& said) {
  segment made;
  made.key = static_cast<std::int64_t>(asked.numbers[0]);
  made.bytes = asked.numbers[1];
  made.physical = asked.numbers[3];
  made.chunk = std::move(given);
  const int flags = flags_of(asked.numbers[2]);
  segment_id id = 0;
  int error = keys_.get(made.key, made.bytes, flags, from.who, id);
  if (error != ENOENT) {
    closer_.close(std::move(made.chunk), from.who.user);  // another was sooner
    put(said, {id, 0});
    return error;
  }
  const std::uint64_t units = made.physical / account_unit;
  if (made.bytes == 0 || made.bytes > made.physical || made.physical % account_unit != 0 ||
      units > account_units_max) {
    error = EINVAL;
  } else if (!made.chunk) {
    error = ENOSPC;  // none was sent, or there is no room for one
  } else {
    made.mode = static_cast<unsigned>(flags) & 0777;
    made.user = from.who.user;
    made.group = from.who.group;
    made.creator = from.who;
    made.vgpu = charged_.report(from.id).name;
    error = keys_.add(made, id);
    crash_point("key_added");
  }
  if (error == 0) {
    // Last, because it allocates nothing: what was charged has a segment.
    error = charged_.hand_over(from.id, units);
    crash_point("key_charged");
    if (error != 0) {
      made = keys_.take(id);
    }
  }
  closer_.close(std::move(made.chunk), from.who.user);
  put(said, {id, error == 0 ? std::uint64_t{1} : 0});
  return error;
}

int key_answers::attach(const key_caller& from, const message& asked, message& said, int& sent) {
  const std::uint64_t rights = asked.numbers[1];
  if ((rights & ~(key_rights::write | key_rights::again)) != 0) {
    return EINVAL;
  }
  const segment* found = nullptr;
  const int error = keys_.attach(from.id, asked.numbers[0], rights, from.who, &found);
  if (error == 0) {
    crash_point("key_attached");
    put(said, {found->bytes, found->physical});
    sent = (rights & key_rights::again) == 0 ? found->chunk.number() : -1;
  }
  return error;
}

int key_answers::describe(const key_caller& from, const message& asked, message& said) const {
  const segment* found = nullptr;
  const int error = keys_.find(asked.numbers[0], from.who, &found);
  if (error != 0) {
    return error;
  }
  static_cast<void>(set_name(said, found->vgpu));
  put(said, {static_cast<std::uint64_t>(found->key), found->bytes, pair(found->user, found->group),
             pair(found->creator.user, found->creator.group),
             pair(found->mode | (found->is_removed ? key_removed : 0), found->attachments),
             pair(found->creator.process, found->last_process)});
  return 0;
}

void key_answers::leave(client_id client) noexcept {
  keys_.leave(client);
  settle();
}

void key_answers::settle() noexcept {
  for (segment dropped; keys_.take_dropped(dropped); dropped = segment()) {
    charged_.give_back(dropped.vgpu, dropped.physical / account_unit);
    crash_point("key_given_back");
    closer_.close(std::move(dropped.chunk), dropped.creator.user);
  }
}

}  // namespace gdev
