#include "service/request_server.hpp"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "base/uninterrupted.hpp"

namespace gpufs {

namespace {

// With this many copiers, reading runs is faster than registering them.
constexpr unsigned stage_first_copiers = 6;

// Whether the request may change files of the host.
bool may_change(request_code code) {
  switch (code) {
    case request_code::open_write:
    case request_code::write:
    case request_code::truncate:
    case request_code::sync:
    case request_code::unlink:
    case request_code::rename:
    case request_code::emptied:
    case request_code::report_close: return true;
    case request_code::open:
    case request_code::read:
    case request_code::bulk:
    case request_code::close:
    case request_code::close_written:
    case request_code::send: return false;
  }
  return false;
}

}  // namespace

request_server::request_server(device& d, const channel_view& channel,
                               const channel_view& device_view, const bulk_frames& frames,
                               file_table& files, extent_registrar& extents, unsigned copiers,
                               const std::atomic<bool>& stopping)
    : device_(d), channel_(channel), device_view_(device_view), frames_(frames), files_(files),
      extents_(extents), stopping_(stopping), in_round_(channel.layout.slot_count),
      gate_(copiers, channel.layout.slot_count, {d.limits_of_bulk(), d.bulk_copies_exclude()}) {
  stalled_.reserve(copiers +
                   channel.layout.slot_count);  // so that find_stalled() does not allocate
  for (unsigned c = 0; c < copiers; ++c) stagers_.emplace_back(d, gate_, c, stopping);
}

bool request_server::report_stalled() {
  stalled_.clear();
  const bool any = gate_.find_stalled(stalled_, [this](const driver_gate::request_name& r) {
    // The slot may have served other requests since.
    const std::uint32_t answered = reply_sequence(channel_.reply(r.slot).word.load_relaxed());
    return static_cast<std::int32_t>(answered - r.sequence) >= 0;
  });
  for (const driver_gate::request_name& late : stalled_) report_stalled(late.slot, late.sequence);
  return any;
}

std::int32_t request_server::serve(const request& r, std::uint32_t slot, std::uint32_t sequence,
                                   unsigned worker, file_table::lookups& known,
                                   opened_file& opened) {
  // Device code posts no such request in a read-only mount, but a faulty kernel may.
  if (files_.is_read_only() && may_change(r.code)) return -EROFS;
  switch (r.code) {
    case request_code::open:
    case request_code::open_write: return serve_open(r, slot, sequence, worker, opened);
    case request_code::read: return serve_read(r, slot, known);
    case request_code::bulk: return serve_bulk(r, slot, sequence, worker, known);
    case request_code::close:
    case request_code::close_written: return serve_close(r, known);
    case request_code::send:
    case request_code::sync:
    case request_code::report_close: break;  // the service calls other functions for them
    case request_code::write: return serve_write(r, slot, known);
    case request_code::truncate: return serve_truncate(r, known);
    case request_code::emptied: return serve_emptied(r, known);
    case request_code::unlink:
    case request_code::rename: return serve_paths(r, slot, sequence);
  }
  return -ENOSYS;
}

void request_server::log_error(const request& r, std::int32_t status) noexcept {
  const bool writes = r.code == request_code::write;
  if (!writes && r.code != request_code::sync) return;
  // An invalid request is an error of the kernel, not of a file.
  if (status == -EBADF || (writes && status == -EINVAL)) return;
  const std::shared_ptr<host_file> file =
      writes ? files_.find_writer(r.handle) : files_.find(r.handle);
  // A file that is only read, as each file of a read-only mount, has no bytes to lose.
  if (file == nullptr || !file->writes()) return;
  files_.errors().add(file->path(), status,
                      writes ? file_operation::write_back : file_operation::sync);
}

std::int32_t request_server::serve_open(const request& r, std::uint32_t slot,
                                        std::uint32_t sequence, unsigned opener,
                                        opened_file& opened) {
  if (r.length == 0 || r.length >= limits::path_bytes_max) return -ENAMETOOLONG;
  std::string path(channel_.staging(slot), r.length);
  if (path.find('\0') != std::string::npos) return -EINVAL;
  std::uint64_t handle = 0;
  std::shared_ptr<host_file> file;
  const bool changes = r.code == request_code::open_write;
  const open_how how{
      (r.handle & open_no_follow) != 0, (r.handle & open_reads) != 0,
      (r.handle & open_writes) != 0,    (r.handle & open_creates) != 0,
      (r.handle & open_exclusive) != 0, static_cast<std::uint32_t>(r.offset) & 0777u};
  open_in_hand* const in_hand = changes ? &opens_[opener] : nullptr;  // a worker answers it
  const auto open_to_change = [&] {
    in_hand->request.store(open_in_hand::name_of(slot, sequence));
    using kind = path_operation::kind;
    const kind what = !how.create     ? kind::opens
                      : how.exclusive ? kind::creates_exclusively
                                      : kind::creates;
    return paths_.run({what, {path}, slot, sequence}, given_up(), [&] {
      return files_.open_to_change(std::move(path), how, handle, file, &in_hand->joined);
    });
  };
  int status = 0;
  if (opened.file != nullptr) {
    handle = opened.handle;
    file = std::move(opened.file);
    opened = {};
    status = files_.open_again(handle, file, changes ? &in_hand->joined : nullptr);
    // A file that is only read may have lost its descriptor, and its path may lead elsewhere.
    if (status == -ESTALE) {
      status = changes ? open_to_change()
                       : files_.open(std::move(path), how.no_follow, handle, file, opener);
    }
  } else if (changes) {
    status = open_to_change();
  } else {
    status = files_.open(std::move(path), how.no_follow, handle, file, opener);
  }
  if (status < 0) return status;
  const file_identity& identity = file->version().identity;
  std::int32_t delivered = 0;
  bool unreadable = false;
  try {
    if (!changes && file->node() == no_node) delivered = deliver(*file, r.offset, slot);
    unreadable = changes && how.write && !files_.is_readable(*file);
  } catch (...) {
    (void)files_.close(handle);  // opened above; the caller gets no handle
    throw;
  }
  reply_record& reply = channel_.reply(slot);
  reply.version.store_relaxed(file->version().number);
  reply.size.store_relaxed(identity.size);
  reply.modified_ns.store_relaxed(identity.modified_ns);
  reply.changed_ns.store_relaxed(identity.changed_ns);
  reply.inode.store_relaxed(identity.inode);
  reply.device.store_relaxed(identity.device);
  reply.mode.store_relaxed(identity.mode | (unreadable ? unreadable_flag : 0) |
                           (changes && file->is_fresh() ? fresh_flag : 0));
  reply.node.store_relaxed(file->node());
  reply.emptied_by.store_relaxed(file->version().emptied_by.load());
  reply.handle.store_relaxed(handle);
  opened = {handle, file->joined() ? file : nullptr};
  return delivered;
}

// Adds a small file's bytes to the reply of its open, once for each version. After that, its pages
// are cached, or are loaded one by one. Returns the number of bytes, which are in the slot's
// staging memory, or 0.
std::int32_t request_server::deliver(host_file& file, std::uint64_t wanted, std::uint32_t slot) {
  file_version& version = file.version();
  const std::uint64_t size = version.identity.size;
  if (size == 0 || size > wanted || size > channel_.layout.staging_bytes ||
      version.delivered.load())
    return 0;
  std::shared_ptr<backend_file> reached;
  if (files_.reach(file, reached) < 0) return 0;
  // A later read meets the same error or size, and reports it.
  if (file_table::read(*reached, channel_.staging(slot), size, 0) !=
      static_cast<std::int64_t>(size))
    return 0;
  version.delivered = true;
  return static_cast<std::int32_t>(size);
}

std::int32_t request_server::serve_read(const request& r, std::uint32_t slot,
                                        file_table::lookups& known) {
  if (r.length > channel_.layout.staging_bytes || r.offset >= limits::file_bytes_max)
    return -EINVAL;
  file_table::lookups::entry* file = nullptr;
  if (const int status = files_.look_up(r.handle, known, file); status < 0) return status;
  const std::uint64_t length = readable_bytes(*file, r.offset, r.length);
  const std::int64_t n = file_table::read(*file->reached, channel_.staging(slot), length, r.offset);
  if (n <= 0) return static_cast<std::int32_t>(n);
  return static_cast<std::int32_t>(n) | tell_extent(slot, extents_.touch(file->file, r.offset));
}

// How many of these bytes the file has, by the size that the host knows. Some files return bytes
// past their size that are not data. For an offset past that size the host asks again, because the
// file may have grown since its open. A file that was open for writing in this mount, as its node
// tells, has grown by any part, and while it is, it may grow at any time: then the size is not
// checked.
std::uint64_t request_server::readable_bytes(const file_table::lookups::entry& file,
                                             std::uint64_t offset, std::uint64_t length) const {
  const bool has_node = file.file->node() != no_node;
  std::uint64_t size = file.file->version().identity.size;
  if (offset + length <= size) return length;
  if (has_node && files_.is_written(file.file->version())) return length;
  if (offset >= size || has_node) {
    file_identity now;
    if (file.reached->identify(now) == 0) size = now.size;
    else if (has_node) return length;
  }
  return offset >= size ? 0 : std::min(length, size - offset);
}

int request_server::reach_to_write(std::uint64_t handle, file_table::lookups& known,
                                   file_table::lookups::entry*& file) {
  const int status = files_.look_up(handle, known, file);
  return status < 0 ? status : file->file->writes() ? 0 : -EBADF;
}

std::int32_t request_server::serve_write(const request& r, std::uint32_t slot,
                                         file_table::lookups& known) {
  const bool masked = (r.length & masked_flag) != 0;
  const std::uint64_t bytes = r.length & ~masked_flag;
  const std::uint64_t room = channel_.layout.write_bytes(slot);
  // A file has less than file_bytes_max bytes.
  if (bytes > room || r.offset >= limits::file_bytes_max - bytes) return -EINVAL;
  if (masked && mask_offset(bytes) + mask_words(bytes) * sizeof(std::uint64_t) > room)
    return -EINVAL;
  file_table::lookups::entry* file = nullptr;
  if (const int status = files_.look_up_writer(r.handle, known, file); status < 0) return status;
  const char* const data = channel_.write_staging(slot);
  // Copied once, so that a kernel that keeps writing cannot change a mask that is in use.
  std::vector<std::uint64_t> mask;
  if (masked && bytes != 0) {
    mask.resize(mask_words(bytes));
    std::memcpy(mask.data(), data + mask_offset(bytes), mask.size() * sizeof(std::uint64_t));
  }
  GPUFS_SCHEDULE_POINT("service.change");
  const change_under_way change(file->file->version());
  if (!files_.is_written_through(r.handle, known)) return -EBADF;
  const std::int64_t written =
      file_table::write(*file->reached, data, bytes, r.offset, masked ? mask.data() : nullptr,
                        [&] { return !stopping_; });
  file->file->writing()->permits.write_together(file->reached->writes_together());
  if (const int lost = files_.note_write(*file, known); lost < 0) return lost;
  return static_cast<std::int32_t>(written);
}

void request_server::prefetch(const request& r, std::uint32_t slot) const {
  const std::uint64_t bytes =
      std::min<std::uint64_t>(r.length & ~masked_flag, channel_.layout.write_bytes(slot));
  const char* const data = channel_.write_staging(slot);
  constexpr std::uint64_t cache_line = 64;
  for (std::uint64_t at = 0; at < bytes; at += cache_line)
    (void)*static_cast<const volatile char*>(data + at);
}

std::int32_t request_server::serve_truncate(const request& r, file_table::lookups& known) {
  if (r.offset >= limits::file_bytes_max) return -EINVAL;
  file_table::lookups::entry* file = nullptr;
  if (const int status = reach_to_write(r.handle, known, file); status < 0) return status;
  GPUFS_SCHEDULE_POINT("service.change");
  const change_under_way change(file->file->version());
  if (!files_.is_open(r.handle, known)) return -EBADF;
  return uninterrupted([&] { return file->reached->truncate(r.offset); });
}

std::int32_t request_server::serve_emptied(const request& r, file_table::lookups& known) {
  file_table::lookups::entry* file = nullptr;
  if (const int status = reach_to_write(r.handle, known, file); status < 0) return status;
  file->file->version().emptied_by = r.offset;
  return 0;
}

int request_server::ask(const request& r, std::uint32_t slot, file_table::lookups& known,
                        sync_rounds::answer done, std::shared_ptr<void> place, bool& is_added) {
  if (files_.is_read_only()) return -EROFS;
  file_table::lookups::entry* file = nullptr;
  if (const int status = reach_to_write(r.handle, known, file); status < 0) return status;
  const std::shared_ptr<host_file> one = file->file;  // `known` may change
  const bool syncs = r.code == request_code::sync;
  const auto told = [this, slot, syncs, handle = r.handle, one,
                     done = std::move(done)](int status) {
    // Not answered: the kernel learns that the service has ended, which says nothing about bytes.
    if (status == -ECANCELED && stopping_) return;
    if (syncs && files_.find(handle) == nullptr) {
      // A round makes no sync through a file that was closed meanwhile, and log_error() finds none.
      if (status == 0) status = -EBADF;
      else files_.errors().add(one->path(), status, file_operation::sync);
    }
    in_round_[slot] = false;
    done(status);
  };
  if (!syncs) files_.note_close(*one);
  if (in_round_[slot].exchange(true)) return -EBUSY;
  try {
    (void)files_.ask(
        one->writing(),
        {syncs ? sync_rounds::kind::sync : sync_rounds::kind::close, told, std::move(place)},
        is_added);
  } catch (...) {
    if (!is_added) in_round_[slot] = false;
    throw;
  }
  return 0;
}

// For a file opened for writing, `offset` is the errno of discarded bytes, or 0.
std::int32_t request_server::serve_close(const request& r, const file_table::lookups& known) {
  GPUFS_SCHEDULE_POINT("service.close");
  return files_.close(r.handle, r.offset <= 4095 ? -static_cast<int>(r.offset) : -EIO,
                      known.asks ? file_table::closing::asks : file_table::closing::leaves_asking);
}

std::int32_t request_server::serve_paths(const request& r, std::uint32_t slot,
                                         std::uint32_t sequence) {
  if (r.length == 0 || r.length > limits::staging_bytes_min) return -ENAMETOOLONG;
  const std::string both(channel_.staging(slot), r.length);
  const std::size_t end = both.find('\0');
  const bool renames = r.code == request_code::rename;
  // An unlink has one path, without zeros. A rename has two, with one zero between them.
  if (renames != (end != std::string::npos)) return -EINVAL;
  using kind = path_operation::kind;
  if (!renames) {
    return paths_.run({kind::changes_names, {both}, slot, sequence}, given_up(),
                      [&] { return files_.unlink(both); });
  }
  const std::string path = both.substr(0, end), new_path = both.substr(end + 1);
  if (path.empty() || new_path.empty()) return -ENOENT;
  if (new_path.find('\0') != std::string::npos) return -EINVAL;
  return paths_.run({kind::changes_names, {path, new_path}, slot, sequence}, given_up(),
                    [&] { return files_.rename(path, new_path); });
}

// Stores a registered extent's address in the reply. Returns the flag to add to the result, or 0.
std::int32_t request_server::tell_extent(std::uint32_t slot, const extent_location& location) {
  if (location.bytes == 0) return 0;
  reply_record& reply = channel_.reply(slot);
  reply.extent_number.store_relaxed(location.number);
  reply.extent_address.store_relaxed(location.address);
  reply.extent_bytes.store_relaxed(location.bytes);
  return hint_flag;
}

// Copies from the file's pages if their extent is registered. Otherwise it reads the run.
// Meanwhile, few copiers request an immediate registration, so that both bring a cold file into the
// host's page cache; many copiers request one for a quiet moment. An error leaves the pages to
// single-page loads, which report it.
std::int32_t request_server::serve_bulk(const request& r, std::uint32_t slot,
                                        std::uint32_t sequence, unsigned copier,
                                        file_table::lookups& known) {
  bulk_target to{};
  std::memcpy(&to, channel_.staging(slot), sizeof to);
  const std::uint64_t page_bytes = std::uint64_t{1} << frames_.page_shift;
  const std::uint64_t pages = (r.length + page_bytes - 1) >> frames_.page_shift;
  if (r.length == 0 || r.length > frames_.run_bytes_max || r.offset >= limits::file_bytes_max)
    return -EINVAL;
  if (to.frame >= frames_.count || pages > frames_.count - to.frame) return -EINVAL;
  file_table::lookups::entry* file = nullptr;
  if (const int status = files_.look_up(r.handle, known, file); status < 0) return status;
  const std::uint64_t length = readable_bytes(*file, r.offset, r.length);
  if (length == 0) return 0;
  const auto when = stagers_.size() < stage_first_copiers ? extent_registrar::urgency::now
                                                          : extent_registrar::urgency::when_quiet;
  // Taken only by drop_extents(). The pages are then loaded one by one.
  std::shared_lock copies(extents_.copies(), std::try_to_lock);
  if (!copies) return -EAGAIN;
  const extent_location location = extents_.touch(file->file, r.offset, when);
  const std::uint64_t extent_begin = location.number * extents_.extent_bytes();
  // Registered pages end where the file ended at its open. A longer run is read.
  char* const frames = frames_.pages + (std::uint64_t{to.frame} << frames_.page_shift);
  const run_stager::reply_place reply{
      &channel_.reply(slot).word, &device_view_.reply(slot).word, {slot, sequence}};
  if (r.offset + r.length > extent_begin + location.bytes || length < device_.bulk_bytes_min()) {
    copies.unlock();
    return stagers_[copier].read(*file->reached, r.offset, frames, length, reply,
                                 staged_flag | tell_extent(slot, location));
  }
  const std::int32_t result = static_cast<std::int32_t>(length) | tell_extent(slot, location);
  const std::int64_t copied = stagers_[copier].copy_and_answer(
      frames, location.address + (r.offset - extent_begin), length, reply, result);
  if (copied == -EINPROGRESS) return run_stager::device_answers;
  return copied < 0 ? static_cast<std::int32_t>(copied)
                    : static_cast<std::int32_t>(copied) | (result & hint_flag);
}

}  // namespace gpufs
