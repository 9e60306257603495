// Scripts: lists of device calls as data, which groups of a kernel carry out one after the other
// while they record results and bytes. One interpreter for all tests of the API, because each call
// in each kind of group costs seconds of nvcc's time; so a test is a script (or calls of a
// session.hpp) and an expectation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpufs/gpufs.hpp"

namespace gpufs::testing {

enum class group_kind : std::uint32_t { thread, warp, block };

enum class action : std::uint32_t {
  set,    // register `to` = `offset`
  open,   // register `to` = gopen(path at `memory` of the input, `flags`, mode `bytes`)
  close,  // gclose(register `from`)
  read,   // gread(register `from`, `memory` of the output, `bytes`, `offset`)
  map,    // gmmap(register `from`, `offset`, `bytes`); register `to` = the pointer
  // copies `bytes` at register `from` + `offset`, a pointer, to `memory` of the output; -EFAULT if
  // it is 0
  peek,
  // gmunmap of the mapping of `to` + 1 bytes at register `from` + `offset`; with `flags` not 0,
  // gmunmap_unfenced
  unmap,
  read_each,  // the same pieces, read to `memory` by gread_each and gread_uncached_each in turn
  // pieces of `flags` bytes of [`offset`, `offset` + `bytes`), one for each member, by gmmap_each,
  // copied to `memory`
  map_each,
  // of the output and unmapped, every other one without a fence; a block by its warps
  advise,  // gfadvise(register `from`, `offset`, `bytes`, `flags`)
  // gfstat(register `from`); the answer goes to `memory` of the output, which is 8-byte aligned
  status,
  send,       // gsend(sink in register `from`, `memory` of the input, `bytes`)
  write,      // gwrite(register `from`, `memory` of the input, `bytes`, `offset`)
  sync,       // gfsync(register `from`)
  truncate,   // gftruncate(register `from`, `offset`)
  map_write,  // gmmap_write(register `from`, `offset`, `bytes`); register `to` = the pointer
  poke,       // copies `bytes` at `memory` of the input to register `from` + `offset`, a pointer
  msync,      // gmsync(register `from` + `offset`, `bytes`, of the descriptor in register `flags`)
  unmap_write,  // gmunmap of the same
  unlink,       // gunlink(path at `memory` of the input)
  rename,       // grename(path at `memory` of the input, path at `bytes` of it)
  // view<uint64>(register `from`, `offset`)[k] for k < `bytes` to `memory` of the output, 8-byte
  // aligned
  view,
  // The rest make a file_stream of register `from`, with a buffer of `flags` bytes at `memory` of
  // the output, and go to `offset`. all lines, to the output behind the buffer, each with a '$'
  // behind it, or '~' if it was cut; `bytes` at most
  lines,
  tokens,  // the same of tokens between blanks, commas and newlines
  // "%s|%*d|%.3f\n" with text at `bytes` of the input and `to`, as width, number and eighths;
  // misused if `to` is negative
  print,
  // a line, a write of that line over the next bytes, a line, that line again, to the output behind
  edit,
  // the buffer
  seek  // seek(`bytes`, `to`) from there; then reads a byte, to the output behind the buffer
};

inline constexpr std::uint64_t no_memory = ~std::uint64_t{0};  // a null pointer
inline constexpr std::uint32_t register_count =
    16;  // of each group; they keep their values between launches

struct device_call {
  action what = action::set;
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t flags = 0;
  std::int64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t memory = no_memory;
};

struct outcome {
  std::int64_t result =
      0;  // of the (last) call; view: size(); map_each, read_each: bytes copied, by all members
  std::int64_t value =
      // map, map_write: the pointer; view: error(), of any member that has one; map_each,
      // read_each: the error nearest to 0; streams: tell()
      0;
};

// What a launch works on: all in memory of the mount's device.
struct script_memory {
  const device_call* calls;
  const std::uint32_t* first;  // group g makes the calls first[g] up to first[g + 1]
  std::int64_t* registers;     // register_count for each group
  outcome* outcomes;           // one for each call
  const char* input;
  char* output;
  std::uint32_t* disagreements;  // members that got another result than their leader
  std::uint32_t group_count;
  std::uint32_t
      // unless 0: `read` reads into so much of the block's scratch memory, then copies
      scratch_bytes;
  const mount_ref* handle;  // unless null: the calls use it in place of the launch's
};

// Runs the groups' scripts, all groups at the same time as far as the device can. Returns as
// gpufs::launch does.
void launch_scripts(mount& m, group_kind kind, const script_memory& memory, void* stream = nullptr);

}  // namespace gpufs::testing
