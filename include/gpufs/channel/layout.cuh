// The channel's layout in pinned host memory: the one header that both sides use. Every word has
// exactly one writer.
//
//   offset                          written by   contents
//   0                               host         channel_header
//   layout.bells    + 4 * slot device bell: number of the last request posted in the slot (32 bits)
//   layout.withdrawn + 4 * slot device number of the last request that its caller withdrew (32
//   bits)
//   layout.requests + 32 * slot     device       request_record
//   layout.replies  + 128 * slot    host         reply_record; its first word answers the bell
//   layout.staging  + bytes * slot whose turn path of an open (device, before the bell), then bytes
//                   of the file
//                                                (host, before the reply); bytes for a sink or a
//                                                file (device)
//   layout.wide     + ... device of each slot whose number is a multiple of `wide_step`: more room
//                   for bytes
//                                                for a file, as large writes cost the host less
//
// A slot's life (models/channel.pml). Which device group has a slot is written in device memory
// (slot_owner), where read-modify-write exists:
//
//   free --claim--> busy --(request, staging) bell--> posted --(staging, reply) reply word-->
//   answered --> free
//                                                      |
//                                                      +--> abandoned: no group waits (a close, or a waiter that gave
//                                                           up); taken again only once the reply
//                                                           word equals the bell
//
// A bulk request needs the driver, which other threads of the process may keep busy until the very
// kernel ends that waits for the request. The host then writes the request's number to `stalled` of
// the reply: the caller gives up at once, and loads its pages in another way.
//
// A request that changes files must not take effect after its caller has given up and gone on. So a
// worker writes the request's number to `claimed` of the reply before it begins, and then reads
// `withdrawn`; a caller that gives up writes `withdrawn`, and then reads `claimed`. Each side
// orders its store before its load, so at least one of them sees the other: either the worker
// refuses the request (-ECANCELED), or the caller knows that it may still take effect.
//
// An open that is answered after its caller has given up leaves a file open for no group. So the
// worker reads `withdrawn` once more after its answer, and closes the file if it finds the
// request's number. A caller that gives up writes `withdrawn`, reads the reply word, and has the
// file closed if the answer is there. So at least one of them closes it. If both do, the second
// close finds nothing, because a handle is given once. The caller never uses such an answer: it
// cannot know whether the worker has seen its number (models/withdraw.pml).
//
// The host closes a file that is written before it gives an open the same version again: a
// close_written that is posted and not yet taken is carried out by the thread that answers the
// open.
//
//   bell word     31 ........ 0 sequence: 0 never posted, then 1, 2, ... (wraps, skipping nothing:
//                 compared for equality)
//   request word  63 ...... 40 | 39 ....... 0
//                 sequence     | payload (request_record): the sequence's low 24 bits
//   reply word    63 ...... 32 | 31 ....... 0
//                 sequence     | result: >= 0, or -errno
//
// Every word of a request carries its sequence, so the device orders nothing: the bell may arrive
// before them, and the host takes a request when all its words say the bell's number. (A GPU's
// fence of system scope waits for the bus, and those of all warps wait for each other: two a
// request held the whole GPU to a million requests a second.) Only bytes in staging that go to the
// host need a release, on the bell. A word needs few bits of the sequence, because it holds this
// request or the one before: a slot is posted in again only when the host has answered, so has seen
// all words.
//
// Names. A request names an open file by its handle, and a write names the version that it writes
// (node_name). Both are 64 bits, and a mount gives each of them once. So a request that is served
// late reaches its own file or none (-EBADF).
#pragma once

#include "gpufs/base/atomic.cuh"
#include "gpufs/base/limits.hpp"

namespace gpufs {

enum class request_code : std::uint32_t {
  open =
      // staging: path; length: its bytes without the zero; offset: bytes of data wanted with the
  // answer
  1,
  read = 2,   // handle, offset, length <= staging bytes -> staging
  close = 3,  // handle; of a file without a node, for which nobody waits
  send = 4,   // handle: sink; length; staging: bytes
  bulk =
      // handle, offset, length: into the frames that staging (bulk_target) names; answered when
  // they are filled
  5,
  // Writing:
  open_write = 6,  // as open; handle: open_bits; offset: mode of a file that is created
  // handle: node_name() of a file that is open for writing; offset, length (with masked_flag) <=
  // write bytes: write_staging -> file, all of it
  write = 7,
  truncate = 8,  // handle; offset: the new size; length: truncated_node(), for the device only
  sync = 9,      // handle; offset: closings of its node (inode_state)
  unlink = 10,   // staging: path; length
  rename = 11,   // staging: path, zero, path; length: of all
  emptied =
      // handle; offset: the launch that has emptied the file, as O_TRUNC asks (file/open_files.cuh)
  12,
  // handle of a file that is open for writing: what its close will report. Not by the close itself,
  // whose thread may not have the file's descriptor.
  report_close = 13,
  // As close, of a file with a node. By workers, so that it does not wait for opens that hang:
  // until it is done, an open gets the version that was written here, and does not look whether the
  // file changed.
  close_written = 14
};

// How a file is opened; in `handle` of a request to open.
enum open_bits : std::uint32_t {
  open_no_follow = 1,
  open_reads = 2,  // the other bits are for open_write only
  open_writes = 4,
  open_creates = 8,
  open_exclusive = 16
};

// In the length of a request to write: only some bytes are to be written. Behind the data, from the
// next multiple of 8 on, a bit for each of them says which: bit b of 64-bit word w for byte 64 w +
// b.
inline constexpr std::uint32_t masked_flag = 1u << 25;
GPUFS_HD constexpr std::uint64_t mask_words(std::uint64_t bytes) { return (bytes + 63) / 64; }
GPUFS_HD constexpr std::uint64_t mask_offset(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// Of a bulk request, in staging.
struct bulk_target {
  std::uint32_t frame;  // the first; the others follow
};

// The service's threads are of three kinds: openers open and close files to read, copiers call the
// driver for bulk requests,
// workers do everything else. A mount may lack openers and copiers; workers then do their work.
enum class service_duty : std::uint32_t { work = 0, open = 1, copy = 2 };
inline constexpr std::uint32_t service_duties = 3;

// The kind of threads that should answer a request. Workers refuse a code that does not exist.
GPUFS_HD inline service_duty duty_of(request_code code) {
  switch (code) {
    case request_code::open:
    case request_code::close: return service_duty::open;
    case request_code::bulk: return service_duty::copy;
    default: return service_duty::work;
  }
}

enum class service_phase : std::uint32_t { starting = 0, running = 1, dead = 2 };

struct alignas(128) channel_header {
  // For the host side only: how a CPU device's thread wakes sleeping threads of the service at once (a
  // futex). A GPU has no way to wake a host thread; there the threads' back-off finds the bell. One
  // for each kind, in its own line. A kernel can write here all the same: so the service follows
  // none of it, and sleeps a second at most.
  struct alignas(64) cpu_bed {
    std::uint32_t wake;
    std::uint32_t sleepers;
    service_duty answered_by;  // the kind of threads that does this kind's work; fixed at mount
  };
  cpu_bed beds[service_duties];

  GPUFS_HD service_duty answered_by(service_duty duty) const {
    return beds[static_cast<std::uint32_t>(duty)].answered_by;
  }
  GPUFS_HD cpu_bed& bed(service_duty duty) {
    return beds[static_cast<std::uint32_t>(answered_by(duty))];
  }
};
static_assert(sizeof(channel_header) == 256, "header keeps its own lines");

// A request, as both sides handle it.
struct request {
  request_code code;
  std::uint64_t handle;
  std::uint32_t length;  // at most request_record::length_max
  std::uint64_t offset;

  GPUFS_HD bool sends_staging() const {
    return code == request_code::open || code == request_code::send || code == request_code::bulk ||
           code == request_code::open_write || code == request_code::write ||
           code == request_code::unlink || code == request_code::rename;
  }
  // Whether it changes files or names: then a caller that gives up withdraws it.
  GPUFS_HD bool changes_files() const {
    return code == request_code::open_write || code == request_code::write ||
           code == request_code::truncate || code == request_code::unlink ||
           code == request_code::rename;
  }
  // Whether its answer leaves a file open: a caller that gives up withdraws it, too.
  GPUFS_HD bool opens() const {
    return code == request_code::open || code == request_code::open_write;
  }
};

// The same in the channel's memory: 160 bits of payload (code and length, handle, offset), 40 in
// each word, the lowest first. So a handle of 64 bits costs no word more, and a post is still one
// sector over the bus.
struct alignas(32) request_record {
  static constexpr std::uint32_t length_bits = 26;
  static constexpr std::uint32_t length_max = (1u << length_bits) - 1;
  static constexpr std::uint32_t codes = 1u << (32 - length_bits);  // those that exist, and more

  static constexpr std::uint32_t payload_bits = 40;  // of a word

  channel_word<std::uint64_t> words[4];

  GPUFS_HD void store(const request& r, std::uint32_t sequence) {
    const std::uint64_t what =
        (static_cast<std::uint32_t>(r.code) << length_bits) | (r.length & length_max);
    const std::uint64_t payloads[4] = {what | r.handle << 32, r.handle >> 8 & 0xff'ffff'ffff,
                                       r.handle >> 48 | r.offset << 16, r.offset >> 24};
    GPUFS_UNROLL
    for (int i = 0; i < 4; ++i)
      words[i].store_relaxed(std::uint64_t{sequence} << payload_bits |
                             (payloads[i] & payload_mask));
  }
  // False when not all of the request with this number is there.
  GPUFS_HD bool load(std::uint32_t sequence, request& r) const {
    std::uint64_t payloads[4];
    bool there = true;
    GPUFS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t word = words[i].load_relaxed();
      there = there && word >> payload_bits == (sequence & sequence_mask);
      payloads[i] = word & payload_mask;
    }
    const auto what = static_cast<std::uint32_t>(payloads[0]);
    r = {static_cast<request_code>(what >> length_bits),
         payloads[0] >> 32 | payloads[1] << 8 | payloads[2] << 48, what & length_max,
         payloads[2] >> 16 | payloads[3] << 24};
    return there;
  }

 private:
  static constexpr std::uint64_t payload_mask = (std::uint64_t{1} << payload_bits) - 1;
  static constexpr std::uint32_t sequence_mask = (1u << (64 - payload_bits)) - 1;
};
static_assert(sizeof(request_record) == 32, "one sector, one write burst");
static_assert(4 * request_record::payload_bits == 32 + 2 * 64,
              "code and length, handle, offset: no bit is left out");
static_assert(static_cast<std::uint32_t>(request_code::close_written) < request_record::codes,
              "the last code fits");
static_assert((masked_flag & request_record::length_max) == masked_flag,
              "a length has room for the flag");
static_assert(limits::bulk_bytes_max < masked_flag && limits::staging_bytes_max < masked_flag &&
                  limits::write_bytes_max < masked_flag && 2 * limits::path_bytes_max < masked_flag,
              "the longest requests fit, also the one that brings two paths, and none seems to "
              "have the flag");

struct alignas(128) reply_record {
  channel_word<std::uint64_t>
      word;  // {sequence, result}: one read over the bus answers the most common question
  // Of an open:
  channel_word<std::uint64_t>
      version;  // number of this version of the file, never used again by the mount
  channel_word<std::uint64_t> size;
  channel_word<std::int64_t> modified_ns;
  channel_word<std::int64_t> changed_ns;
  channel_word<std::uint64_t> inode;
  channel_word<std::uint64_t> device;
  channel_word<std::uint32_t> mode;
  channel_word<std::uint32_t>
      node;  // of a file that somebody writes: its inode_state; else no_node
  channel_word<std::uint64_t> handle;
  channel_word<std::uint64_t>
      emptied_by;  // with a node: the launch that emptied the file last; 0: none
  // Of a read whose result has `hint_flag`: the extent that now serves this part of the file
  // directly.
  channel_word<std::uint64_t> extent_number;
  channel_word<std::uint64_t> extent_address;
  channel_word<std::uint64_t> extent_bytes;
  // Signs of life, the same in all slots: a GPU reads one address of the host's memory only once at
  // a time, so that all who wait would queue for a single copy, a microsecond each.
  channel_word<std::uint32_t> service;    // service_phase
  channel_word<std::uint32_t> heartbeat;  // changes while the service lives
  channel_word<std::uint32_t>
      stalled;  // number of the last request whose caller should not wait for the answer
  channel_word<std::uint32_t>
      claimed;  // number of the last request that changes files and was begun
};
static_assert(sizeof(reply_record) == 128, "answers to different slots share no line");

inline constexpr std::uint32_t no_node = ~0u;

// A node and the version that it is of. A write that comes late, when the file is closed and its
// node is another file's, reaches neither, as no version comes again.
inline constexpr std::uint32_t node_bits = 18;
static_assert(2 * limits::open_files_max <= 1u << node_bits,
              "a node for each file that is open here or still there");
inline constexpr std::uint64_t versions_end =
    std::uint64_t{1} << (64 - node_bits);  // all version numbers are below it
GPUFS_HD constexpr std::uint64_t node_name(std::uint32_t node, std::uint64_t version) {
  return node | version << node_bits;
}
// What a request to truncate says of the node: as much of its name as fits into the length.
GPUFS_HD constexpr std::uint32_t truncated_node(std::uint64_t name) {
  return static_cast<std::uint32_t>(name) & request_record::length_max;
}
static_assert(node_bits < request_record::length_bits,
              "all of the node's number, and some of its version");
GPUFS_HD constexpr std::uint32_t node_of(std::uint64_t name) {
  return static_cast<std::uint32_t>(name) & ((1u << node_bits) - 1);
}
// In `mode` of a reply to open_write: the file may be written, but not read.
inline constexpr std::uint32_t unreadable_flag = 1u << 31;
// In the same place: this open has made the version, so the size is that which the file has now.
inline constexpr std::uint32_t fresh_flag = 1u << 30;

// In the result of a read: the reply says something of an extent too. Otherwise the device need not
// look, a trip over the bus that most reads save.
inline constexpr std::int32_t hint_flag = 1 << 30;
// In the result of a bulk request: a worker has read the bytes; otherwise they come from registered
// pages.
inline constexpr std::int32_t staged_flag = 1 << 29;
inline constexpr std::int32_t bulk_bytes_mask = staged_flag - 1;
static_assert(limits::staging_bytes_max < staged_flag && limits::bulk_bytes_max < staged_flag,
              "bytes and flags are apart");

GPUFS_HD inline std::uint64_t make_reply_word(std::uint32_t sequence, std::int32_t result) {
  return (std::uint64_t{sequence} << 32) | static_cast<std::uint32_t>(result);
}
GPUFS_HD inline std::uint32_t reply_sequence(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}
GPUFS_HD inline std::int32_t reply_result(std::uint64_t word) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(word));
}

// Where things are in the channel's memory. Fixed at mount.
struct channel_layout {
  std::uint32_t slot_count;
  std::uint32_t staging_bytes;  // per slot
  std::uint32_t wide_bytes;     // per wide slot; 0: there are none
  std::uint32_t wide_step;      // Invariant: a power of two
  std::uint64_t bells, withdrawn, requests, replies, staging, wide, total_bytes;

  // `write_bytes`: of the largest write. Where that is more than `staging_bytes` some slots are
  // wide, spread among the others, so that each worker meets as many.
  GPUFS_HD static channel_layout make(std::uint32_t slots, std::uint32_t staging_bytes,
                                      std::uint32_t write_bytes = 0) {
    channel_layout l{};
    l.slot_count = slots;
    l.staging_bytes = staging_bytes;
    l.wide_bytes = write_bytes > staging_bytes ? write_bytes : 0;
    l.wide_step = 8;
    const auto up = [](std::uint64_t x) { return (x + 4095) / 4096 * 4096; };
    l.bells = sizeof(channel_header);
    l.withdrawn = l.bells + (std::uint64_t{4} * slots + 63) / 64 * 64;
    l.requests = up(l.withdrawn + std::uint64_t{4} * slots);
    l.replies = up(l.requests + sizeof(request_record) * slots);
    l.staging = up(l.replies + sizeof(reply_record) * slots);
    l.wide = l.staging + std::uint64_t{staging_bytes} * slots;
    l.total_bytes =
        l.wide + std::uint64_t{l.wide_bytes} * ((slots + l.wide_step - 1) / l.wide_step);
    return l;
  }

  GPUFS_HD bool is_wide(std::uint32_t slot) const {
    return wide_bytes != 0 && slot % wide_step == 0;
  }
  // The most that a write in the slot brings, and any write.
  GPUFS_HD std::uint32_t write_bytes(std::uint32_t slot) const {
    return is_wide(slot) ? wide_bytes : staging_bytes;
  }
  GPUFS_HD std::uint32_t write_bytes_max() const {
    return wide_bytes != 0 ? wide_bytes : staging_bytes;
  }
};

// The channel as one side sees it: base is the device's address of the memory, or the host's.
struct channel_view {
  char* base;
  channel_layout layout;

  GPUFS_HD channel_header& header() const { return *reinterpret_cast<channel_header*>(base); }
  // By the host.
  GPUFS_HD void announce(service_phase phase) const {
    for (std::uint32_t slot = 0; slot < layout.slot_count; ++slot)
      reply(slot).service.store_release(static_cast<std::uint32_t>(phase));
  }
  GPUFS_HD void beat(std::uint32_t count) const {
    for (std::uint32_t slot = 0; slot < layout.slot_count; ++slot)
      reply(slot).heartbeat.store_relaxed(count);
  }
  GPUFS_HD channel_word<std::uint32_t>& bell(std::uint32_t slot) const {
    return reinterpret_cast<channel_word<std::uint32_t>*>(base + layout.bells)[slot];
  }
  GPUFS_HD channel_word<std::uint32_t>& withdrawn(std::uint32_t slot) const {
    return reinterpret_cast<channel_word<std::uint32_t>*>(base + layout.withdrawn)[slot];
  }
  GPUFS_HD request_record& request(std::uint32_t slot) const {
    return reinterpret_cast<request_record*>(base + layout.requests)[slot];
  }
  GPUFS_HD reply_record& reply(std::uint32_t slot) const {
    return reinterpret_cast<reply_record*>(base + layout.replies)[slot];
  }
  GPUFS_HD char* staging(std::uint32_t slot) const {
    return base + layout.staging + std::uint64_t{layout.staging_bytes} * slot;
  }
  // Where the bytes of a write lie.
  GPUFS_HD char* write_staging(std::uint32_t slot) const {
    return layout.is_wide(slot)
               ? base + layout.wide + std::uint64_t{layout.wide_bytes} * (slot / layout.wide_step)
               : staging(slot);
  }
};

}  // namespace gpufs
