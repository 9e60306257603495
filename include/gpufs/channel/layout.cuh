// The channel's layout in pinned host memory: the one header that both sides use. Every word has
// exactly one writer.
//
//   offset                    written by  contents
//   0                         host        channel_header
//   layout.bells + 4 * slot   device      bell: number of the last request posted in the slot
//   layout.withdrawn +        device      number of the last request that its caller withdrew, or a
//     4 * slot                              number of at least 2^30 requests ago
//   layout.requests +         device      request_record
//     32 * slot
//   layout.replies +          host        reply_record; its first word answers the bell
//     128 * slot
//   layout.staging +          device or   device, before the bell: an open's path, bytes for a sink
//     bytes * slot            host          or a file; host, before the reply: bytes of the file
//   layout.wide + ...         device      for each slot whose number is a multiple of `wide_step`:
//                                           more room for bytes for a file, because large writes
//                                           cost the host less
//
// Life of a slot (models/channel.pml). Device memory says which group has a slot (slot_owner),
// because read-modify-write exists there.
//
//   free --take---> busy --(request, staging) bell--> posted --(staging, reply) reply word-->
//                                                       |                     answered --> free
//                                                       |
//                                                       +--> abandoned: no group waits (a close,
//                                                            or a waiter that gave up); taken
//                                                            again only once the reply word equals
//                                                            the bell
//
// Stalled bulk requests. A bulk request needs the driver. Other threads of the process may keep the
// driver busy until the kernel ends that waits for the request. The host then writes the request's
// number to `stalled` of the reply. The caller gives up at once, and loads its pages in another
// way.
//
// Withdrawn changes. A request that changes files must not take effect after its caller has given
// up and gone on. A worker writes the request's number to `claimed` of the reply before it begins,
// and then reads `withdrawn`. A caller that gives up writes `withdrawn`, and then reads `claimed`.
// Each side orders its store before its load, so at least one sees the other: either the worker
// refuses the request (-ECANCELED), or the caller knows that it may still take effect.
//
// Withdrawn opens. An open that is answered after its caller has given up leaves a file open for no
// group. The worker reads `withdrawn` again after its answer, and closes the file if it finds the
// request's number. A caller that gives up writes `withdrawn`, reads the reply word, and requests
// the close if the answer is there. So at least one of them closes the file. If both do, the second
// close finds nothing, because a handle is given once. The caller never uses such an answer: it
// cannot know whether the worker has seen its number (models/withdraw.pml).
//
// Closes of written files. The host closes a file that is written before it gives the same version
// to another open: the thread that answers the open carries out a close_written that is posted and
// not yet taken.
//
//   bell word     31 ........ 0
//                 sequence: 0 never posted, then 1, 2, ... (wraps, see below)
//   request word  63 ...... 40 | 39 ....... 0
//                 sequence     | payload (request_record): the sequence's low 24 bits
//   reply word    63 ...... 32 | 31 ....... 0
//                 sequence     | result: >= 0, or -errno
//
// Numbers of a slot wrap after 2^32 requests, and are compared for equality. The bell and the reply
// word change with each request, so an old number there is the previous one. `withdrawn`, `claimed`
// and `stalled` keep a number for any time. The slot's owner replaces an old number in `withdrawn`
// every 2^31 requests: no request may count as withdrawn because an earlier one was. An old number
// in `claimed` or `stalled` does no harm.
//
// Order. Every word of a request carries its sequence, so the device needs no order between them:
// the bell may arrive first, and the host takes a request when all its words have the bell's
// number. Only staging bytes that go to the host need a release, on the bell. (Fences of system
// scope would be too slow; docs/decisions/cache.md.) A request word needs few bits of the sequence,
// because it holds this request or the previous one: the slot's next request is posted only after
// the host has answered, and so has seen all words.
//
// Names. A request names an open file by its handle, and a write names the version that it writes
// (node_name). Both are 64 bits, and a mount gives each value once. So a request that is served
// late reaches its own file or none (-EBADF).
#pragma once

#include "gpufs/base/atomic.cuh"
#include "gpufs/base/limits.hpp"

namespace gpufs {

enum class request_code : std::uint32_t {
  // staging: path; length: its bytes without the zero; offset: bytes of data that the answer should
  // bring.
  open = 1,
  // handle, offset, length <= staging bytes. The host fills staging.
  read = 2,
  // handle: a file without an inode state; no caller waits for the answer.
  close = 3,
  // handle: sink; staging: bytes; length.
  send = 4,
  // handle, offset, length; staging: the frames to fill (bulk_target). Answered when they are
  // filled.
  bulk = 5,
  // Writing:
  // An open that may change something: for writing, or with O_CREAT. As open. handle: open_bits;
  // offset: mode of a file that is created.
  open_write = 6,
  // handle: node_name() of a file that is open for writing; offset; length (with masked_flag) <=
  // write bytes. The host writes all of write_staging to the file.
  write = 7,
  // handle; offset: the new size; length: truncated_node(), which only the device reads.
  truncate = 8,
  // handle: a file that is open for writing.
  sync = 9,
  // staging: path; length.
  unlink = 10,
  // staging: path, zero, path; length: of all three.
  rename = 11,
  // handle; offset: the launch that emptied the file for O_TRUNC (file/opener.cuh).
  emptied = 12,
  // handle: a file that is open for writing. Returns what its close will report. A separate
  // request, because the thread that closes may not have the file's descriptor.
  report_close = 13,
  // As close, for a file with an inode state. Workers serve it, so it does not wait for opens that
  // hang. Until it is done, an open gets the version that was written here, and does not check
  // whether the file changed. offset: errno of discarded bytes, or 0. Also the close of an
  // open that was withdrawn.
  close_written = 14
};
inline constexpr std::uint32_t request_code_max =
    static_cast<std::uint32_t>(request_code::close_written);

// How a file is opened; in `handle` of open and open_write.
enum open_bits : std::uint32_t {
  open_no_follow = 1,
  open_reads = 2,  // The other bits are for open_write only.
  open_writes = 4,
  open_creates = 8,
  open_exclusive = 16
};

// In the length of a write: write only some of the bytes. After the data, from the next multiple of
// 8 on, one bit per byte selects them: bit b of 64-bit word w selects byte 64 w + b.
inline constexpr std::uint32_t masked_flag = 1u << 25;
GPUFS_HD constexpr std::uint64_t mask_words(std::uint64_t bytes) { return (bytes + 63) / 64; }
GPUFS_HD constexpr std::uint64_t mask_offset(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// The staging contents of a bulk request.
struct bulk_target {
  std::uint32_t frame;  // The first; the others follow.
};

// The kinds of service threads. Openers open files for reading and close them. Copiers call the
// driver for bulk requests. Workers do everything else. Without openers, workers do their work.
// Without copiers there are no bulk requests, and workers refuse forged ones.
enum class service_duty : std::uint32_t { work = 0, open = 1, copy = 2 };
inline constexpr std::uint32_t service_duties = 3;

// The kind of thread that should serve a request. Workers refuse unknown codes.
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
  // Host side only: a CPU device's thread wakes sleeping service threads by the futex `wake`. A GPU
  // cannot wake a host thread; there the service threads poll, and their back-off finds the bell.
  // One per kind, in its own line. A kernel can write here too, so the service trusts no value and
  // sleeps for one second at most.
  struct alignas(64) sleep_words {
    std::uint32_t wake;
    std::uint32_t sleepers;
    // The kind of thread that does this kind's work; fixed at mount.
    service_duty answered_by;
  };
  sleep_words sleep[service_duties];

  GPUFS_HD service_duty answered_by(service_duty duty) const {
    return sleep[static_cast<std::uint32_t>(duty)].answered_by;
  }
  GPUFS_HD sleep_words& sleep_of(service_duty duty) {
    return sleep[static_cast<std::uint32_t>(answered_by(duty))];
  }
};
static_assert(sizeof(channel_header) == 256, "header keeps its own lines");

// A request, as both sides use it.
struct request {
  request_code code;
  std::uint64_t handle;
  std::uint32_t length;  // At most request_record::length_max.
  std::uint64_t offset;

  GPUFS_HD bool sends_staging() const {
    return code == request_code::open || code == request_code::send || code == request_code::bulk ||
           code == request_code::open_write || code == request_code::write ||
           code == request_code::unlink || code == request_code::rename;
  }
  // Whether the request changes files or names, or what is known of their bytes. A caller that
  // gives up must withdraw it.
  GPUFS_HD bool changes_files() const {
    return code == request_code::open_write || code == request_code::write ||
           code == request_code::truncate || code == request_code::sync ||
           code == request_code::unlink || code == request_code::rename;
  }
  // Whether the answer leaves a file open. A caller that gives up must withdraw it.
  GPUFS_HD bool opens() const {
    return code == request_code::open || code == request_code::open_write;
  }
};

// A request in the channel's memory. The payload is 160 bits (code and length, handle, offset), 40
// in each word, lowest first. So a 64-bit handle needs no fifth word, and a post is one sector over
// the bus.
struct alignas(32) request_record {
  static constexpr std::uint32_t length_bits = 26;
  static constexpr std::uint32_t length_max = (1u << length_bits) - 1;
  static constexpr std::uint32_t codes = 1u << (32 - length_bits);  // More than exist.

  static constexpr std::uint32_t payload_bits = 40;  // Of a word.

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
  // Returns false when a word of the request with this number has not arrived.
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
static_assert(request_code_max < request_record::codes, "the last code fits");
static_assert((masked_flag & request_record::length_max) == masked_flag,
              "a length has room for the flag");
static_assert(limits::bulk_bytes_max < masked_flag && limits::staging_bytes_max < masked_flag &&
                  limits::write_bytes_max < masked_flag && 2 * limits::path_bytes_max < masked_flag,
              "the longest requests fit, also the one that brings two paths, and none seems to "
              "have the flag");

struct alignas(128) reply_record {
  // {sequence, result}: one read over the bus answers the most common question.
  channel_word<std::uint64_t> word;
  // For an open:
  // Number of this version of the file; the mount never uses it again.
  channel_word<std::uint64_t> version;
  channel_word<std::uint64_t> size;
  channel_word<std::int64_t> modified_ns;
  channel_word<std::int64_t> changed_ns;
  channel_word<std::uint64_t> inode;
  channel_word<std::uint64_t> device;
  channel_word<std::uint32_t> mode;
  // The file's inode_state if the file is open for writing; otherwise no_node.
  channel_word<std::uint32_t> node;
  channel_word<std::uint64_t> handle;
  // With a node: the launch that last emptied the file; 0: none.
  channel_word<std::uint64_t> emptied_by;
  // For a read whose result has `hint_flag`: the extent that now serves this part of the file
  // directly.
  channel_word<std::uint64_t> extent_number;
  channel_word<std::uint64_t> extent_address;
  channel_word<std::uint64_t> extent_bytes;
  // Signs of life, the same in all slots. A GPU reads one address of host memory only once at a
  // time, so all waiters would queue for a single copy.
  channel_word<std::uint32_t> service;    // A service_phase.
  channel_word<std::uint32_t> heartbeat;  // Changes while the service lives.
  // Number of the last request whose caller should not wait for the answer.
  channel_word<std::uint32_t> stalled;
  // Number of the last begun request that changes files.
  channel_word<std::uint32_t> claimed;
};
static_assert(sizeof(reply_record) == 128, "answers to different slots share no line");

inline constexpr std::uint32_t no_node = ~0u;

// Name of an inode state together with its version. A late write, sent when the file is closed and
// the inode state is another file's, reaches neither, because each version number is used once.
inline constexpr std::uint32_t node_bits = 18;
static_assert(2 * limits::open_files_max <= 1u << node_bits,
              "a node for each file that is open here or still there");
// All version numbers are below this.
inline constexpr std::uint64_t versions_end = std::uint64_t{1} << (64 - node_bits);
GPUFS_HD constexpr std::uint64_t node_name(std::uint32_t node, std::uint64_t version) {
  return node | version << node_bits;
}
// The part of a node_name() that fits into the length of a truncate request.
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
// In `mode` of a reply to open_write: this open created the version, so `size` is the file's
// current size.
inline constexpr std::uint32_t fresh_flag = 1u << 30;

// In the result of a read: the reply has extent data too. Without the flag the device need not read
// them, which saves most reads a trip over the bus.
inline constexpr std::int32_t hint_flag = 1 << 30;
// In the result of a bulk request: a copier read the bytes. Without the flag they came from
// registered pages.
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

// Offsets and sizes in the channel's memory. Fixed at mount.
struct channel_layout {
  std::uint32_t slot_count;
  std::uint32_t staging_bytes;  // Per slot.
  std::uint32_t wide_bytes;     // Per wide slot; 0: no wide slots.
  std::uint32_t wide_step;      // Invariant: a power of two.
  std::uint64_t bells, withdrawn, requests, replies, staging, wide, total_bytes;

  // `write_bytes`: size of the largest write. If it is above `staging_bytes`, some slots are wide.
  // They are spread among the others, so that each worker meets equally many.
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
  // The largest write in this slot, and in any slot.
  GPUFS_HD std::uint32_t write_bytes(std::uint32_t slot) const {
    return is_wide(slot) ? wide_bytes : staging_bytes;
  }
  GPUFS_HD std::uint32_t write_bytes_max() const {
    return wide_bytes != 0 ? wide_bytes : staging_bytes;
  }
};

// The channel as one side sees it. `base`: the memory's address on the device, or on the host.
struct channel_view {
  char* base;
  channel_layout layout;

  GPUFS_HD channel_header& header() const { return *reinterpret_cast<channel_header*>(base); }
  // Called by the host.
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
