// The interpreter of scripts, in device code. The only place of these tests where most calls are
// instantiated.
#include "api/script.hpp"

#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "gpufs/stream.cuh"

namespace gpufs::testing {

template <class Group>
struct script_kernel {
  script_memory memory;

  GPUFS_HD void operator()(const mount_ref& of_launch) const {
    const mount_ref& fs = memory.handle == nullptr ? of_launch : *memory.handle;
    const Group g{};
    for (std::uint64_t rank = g.grid_rank(); rank < memory.group_count; rank += g.grid_size()) {
      std::int64_t* registers = memory.registers + rank * register_count;
      for (std::uint32_t i = memory.first[rank]; i < memory.first[rank + 1]; ++i) {
        const device_call& op = memory.calls[i];
        const outcome mine = perform(g, fs, op, registers);
        g.sync();  // all members have read their registers
        if (g.is_leader()) {
          memory.outcomes[i] = mine;
          if (op.what == action::set) registers[op.to] = op.offset;
          if (op.what == action::open) registers[op.to] = mine.result;
          if (op.what == action::map || op.what == action::map_write) registers[op.to] = mine.value;
        }
        g.sync();
        const outcome leaders = memory.outcomes[i];
        if (leaders.result != mine.result) disagree();
        if (op.what != action::view) {
          if (leaders.value != mine.value) disagree();
        } else if (mine.value != 0) {
          // Members read elements of their own, so they may meet an error alone.
          word_of(memory.outcomes[i].value).store_relaxed(mine.value);
        }
      }
    }
  }

 private:
  template <class T>
  GPUFS_HD static atomic_word<T>& word_of(T& value) {
    return *reinterpret_cast<atomic_word<T>*>(&value);
  }
  GPUFS_HD void disagree() const { (void)word_of(*memory.disagreements).fetch_add_relaxed(1); }

  GPUFS_HD outcome perform(const Group& g, const mount_ref& fs, const device_call& op,
                           const std::int64_t* registers) const {
    const std::int64_t value = registers[op.from];
    const auto fd = static_cast<std::int32_t>(value);
    const char* pointer = reinterpret_cast<const char*>(static_cast<std::uint64_t>(value) +
                                                        static_cast<std::uint64_t>(op.offset));
    const char* input = op.memory == no_memory ? nullptr : memory.input + op.memory;
    char* output = op.memory == no_memory ? nullptr : memory.output + op.memory;
    switch (op.what) {
      case action::set: return {};
      case action::open:
        return {gopen(g, fs, input, op.flags, static_cast<std::uint32_t>(op.bytes)), 0};
      case action::close: return {gclose(g, fs, fd), 0};
      case action::read:
        if (memory.scratch_bytes != 0) return {read_to_scratch(g, fs, fd, op, output), 0};
        return {gread(g, fs, fd, output, op.bytes, op.offset), 0};
      case action::map: {
        const mapping m = gmmap(g, fs, fd, op.offset, op.bytes);
        return {m.bytes, static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(m.data))};
      }
      case action::peek:
        if (value == 0) return {-EFAULT, 0};
        for (std::uint64_t k = g.rank(); k < op.bytes; k += g.size()) output[k] = pointer[k];
        return {static_cast<std::int64_t>(op.bytes), 0};
      case action::unmap: {
        const mapping m{pointer, op.to + 1};
        return {op.flags == 0 ? gmunmap(g, fs, m) : gmunmap_unfenced(g, fs, m, op.flags), 0};
      }
      case action::read_each: return read_each(g, fs, fd, op, output);
      case action::map_each: return map_each(g, fs, fd, op, output);
      case action::advise: return {gfadvise(g, fs, fd, op.offset, op.bytes, op.flags), 0};
      case action::status: return describe(g, fs, fd, output);
      case action::send: return {gsend(g, fs, fd, input, op.bytes), 0};
      case action::write: return {gwrite(g, fs, fd, input, op.bytes, op.offset), 0};
      case action::sync: return {gfsync(g, fs, fd), 0};
      case action::truncate: return {gftruncate(g, fs, fd, op.offset), 0};
      case action::map_write: {
        const writable_mapping m = gmmap_write(g, fs, fd, op.offset, op.bytes);
        return {m.bytes, static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(m.data))};
      }
      case action::poke:
        if (value == 0) return {-EFAULT, 0};
        // A write-back may read the bytes meanwhile.
        copy_into_page(g, const_cast<char*>(pointer), input, op.bytes);
        return {static_cast<std::int64_t>(op.bytes), 0};
      case action::msync: return {gmsync(g, fs, mapping_at(pointer, op, registers)), 0};
      case action::unmap_write: return {gmunmap(g, fs, mapping_at(pointer, op, registers)), 0};
      case action::unlink: return {gunlink(g, fs, input), 0};
      case action::rename: return {grename(g, fs, input, memory.input + op.bytes), 0};
      case action::view: return look(g, fs, fd, op, output);
      case action::lines:
      case action::tokens:
      case action::print:
      case action::edit:
      case action::seek: return use_stream(g, fs, fd, op, output);
    }
    return {-ENOSYS, 0};
  }

  GPUFS_HD static writable_mapping mapping_at(const char* pointer, const device_call& op,
                                              const std::int64_t* registers) {
    return {const_cast<char*>(pointer), static_cast<std::int64_t>(op.bytes),
            static_cast<std::int32_t>(registers[op.flags]), 0};
  }

  // As aligned as the output.
  GPUFS_HD std::int64_t read_to_scratch(const Group& g, const mount_ref& fs, std::int32_t fd,
                                        const device_call& op, char* output) const {
    char* const scratch = block_group::scratch() +
                          block_group::rank() / g.size() * memory.scratch_bytes + (op.memory & 15);
    const std::int64_t result = gread(g, fs, fd, scratch, op.bytes, op.offset);
    for (std::int64_t k = g.rank(); k < result; k += g.size()) output[k] = scratch[k];
    g.sync();  // before the next one overwrites it
    return result;
  }

  // Those that look up pages together.
  GPUFS_HD static auto part_of(const Group& g) {
    if constexpr (Group::has_warps) return g.warp();
    else return g;
  }

  // Calls `act(part, at, bytes, number)` for each member's pieces, [at, at + bytes) of what is
  // asked for; it returns bytes, or -errno. All members of a part make all calls.
  template <class Act>
  GPUFS_HD outcome each_piece(const Group& g, const device_call& op, const Act& act) const {
    const auto part = part_of(g);
    const auto piece = static_cast<std::uint64_t>(op.flags);
    std::uint64_t copied = 0;
    std::uint64_t error = ~std::uint64_t{0};
    const std::uint64_t before = g.rank() - part.rank();  // members of parts before mine
    for (std::uint64_t first = before * piece; first < op.bytes; first += g.size() * piece) {
      const std::uint64_t at = first + part.rank() * piece;
      const std::uint64_t left = at < op.bytes ? op.bytes - at : 0;
      const std::int64_t got = act(part, at, left < piece ? left : piece, first / piece);
      if (got > 0) copied += static_cast<std::uint64_t>(got);
      else if (got < 0 && static_cast<std::uint64_t>(-got) < error)
        error = static_cast<std::uint64_t>(-got);
    }
    error = g.least(error);
    return {static_cast<std::int64_t>(g.sum(copied)),
            error == ~std::uint64_t{0} ? 0 : -static_cast<std::int64_t>(error)};
  }

  GPUFS_HD outcome read_each(const Group& g, const mount_ref& fs, std::int32_t fd,
                             const device_call& op, char* output) const {
    return each_piece(
        g, op, [&](const auto& part, std::uint64_t at, std::uint64_t bytes, std::uint64_t number) {
          const std::int64_t from = op.offset + static_cast<std::int64_t>(at);
          return number % 2 != 0 ? gread_each(part, fs, fd, output + at, bytes, from)
                                 : gread_uncached_each(part, fs, fd, output + at, bytes, from);
        });
  }

  GPUFS_HD outcome map_each(const Group& g, const mount_ref& fs, std::int32_t fd,
                            const device_call& op, char* output) const {
    return each_piece(
        g, op, [&](const auto& part, std::uint64_t at, std::uint64_t bytes, std::uint64_t number) {
          const mapping m =
              gmmap_each(part, fs, fd, op.offset + static_cast<std::int64_t>(at), bytes);
          unsigned char made = 0;
          for (std::int64_t k = 0; k < m.bytes; ++k) {
            output[at + static_cast<std::uint64_t>(k)] = m.data[k];
            made ^= static_cast<unsigned char>(m.data[k]);
          }
          const bool unfenced = number % 2 != 0;
          if ((unfenced ? gmunmap_each_unfenced(part, fs, m, made) : gmunmap_each(part, fs, m)) !=
              0)
            disagree();
          return m.bytes;
        });
  }

  GPUFS_HD outcome describe(const Group& g, const mount_ref& fs, std::int32_t fd,
                            char* output) const {
    file_status mine{};
    const outcome result{gfstat(g, fs, fd, mine), 0};
    auto* theirs = reinterpret_cast<file_status*>(output);
    if (g.is_leader()) *theirs = mine;
    g.sync();
    if (theirs->size != mine.size || theirs->modified_ns != mine.modified_ns ||
        theirs->inode != mine.inode)
      disagree();
    return result;
  }

  GPUFS_HD outcome look(const Group& g, const mount_ref& fs, std::int32_t fd, const device_call& op,
                        char* output) const {
    const view<std::uint64_t> words(fs, fd, static_cast<std::uint64_t>(op.offset));
    for (std::uint64_t k = g.rank(); k < op.bytes; k += g.size()) {
      reinterpret_cast<std::uint64_t*>(output)[k] = words[k];
    }
    return {static_cast<std::int64_t>(words.size()), words.error()};
  }

  GPUFS_HD outcome use_stream(const Group& g, const mount_ref& fs, std::int32_t fd,
                              const device_call& op, char* buffer) const {
    file_stream<Group> stream(g, fs, fd, buffer, static_cast<std::uint64_t>(op.flags));
    std::int64_t result = stream.seek(op.offset, SEEK_SET);
    if (result < 0) return {result, stream.tell()};
    char* const output = buffer + op.flags;
    switch (op.what) {
      case action::lines:
      case action::tokens: result = copy_pieces(g, stream, op, output); break;
      case action::print: {
        const char* const text = memory.input + op.bytes;
        result = op.to < 0 ? stream.print("%s%d", text)
                           : stream.print("%s|%*d|%.3f\n", text, op.to, op.to, op.to / 8.0);
        break;
      }
      case action::edit: result = edit(g, stream, output); break;
      default:
        result = stream.seek(static_cast<std::int64_t>(op.bytes), op.to);
        if (result >= 0) result = stream.read(output, 1);
    }
    return {result, stream.tell()};
  }

  GPUFS_HD static std::int64_t copy_pieces(const Group& g, file_stream<Group>& stream,
                                           const device_call& op, char* output) {
    for (std::uint64_t copied = 0;;) {
      text_piece piece{};
      const std::int64_t result =
          op.what == action::lines ? stream.read_line(piece) : stream.read_token(" ,\n", piece);
      if (result <= 0) return result;
      const std::uint64_t bytes = piece.text.bytes;
      if (copied + bytes + 1 > op.bytes) return -ENOBUFS;
      for (std::uint64_t k = g.rank(); k < bytes; k += g.size())
        output[copied + k] = piece.text.data[k];
      if (g.is_leader()) output[copied + bytes] = piece.cut ? '~' : '$';
      copied += bytes + 1;
    }
  }

  GPUFS_HD static std::int64_t edit(const Group& g, file_stream<Group>& stream, char* output) {
    text_piece line{};
    std::int64_t result = stream.read_line(line);
    if (result > 0) result = stream.write(line.text.data, line.text.bytes);
    if (result > 0) result = stream.read_line(line);
    if (result > 0 && stream.seek(-result, SEEK_CUR) >= 0) result = stream.read_line(line);
    for (std::uint64_t k = g.rank(); k < line.text.bytes; k += g.size())
      output[k] = line.text.data[k];
    return result;
  }
};

namespace {

// Enough groups in one block that they share a multiprocessor, enough blocks that they use several.
launch_shape shape_of(mount& m, group_kind kind, std::uint32_t groups) {
  constexpr std::uint32_t threads = 128;
  if (m.device() == device_kind::cpu) return {groups};
  switch (kind) {
    case group_kind::thread:
      return {(groups + threads - 1) / threads, groups < threads ? groups : threads};
    case group_kind::warp:
      return {(groups + threads / 32 - 1) / (threads / 32), groups < 4 ? groups * 32 : threads};
    // Whole warps, or a last one that lacks members.
    case group_kind::block: return {groups, groups % 2 == 0 ? threads : threads - 28};
  }
  return {};
}

}  // namespace

void launch_scripts(mount& m, group_kind kind, const script_memory& memory, void* stream) {
  launch_shape shape = shape_of(m, kind, memory.group_count);
  shape.stream = stream;
  const bool one_a_block = m.device() == device_kind::cpu || kind == group_kind::block;
  shape.scratch_bytes = memory.scratch_bytes *
                        (one_a_block ? 1 : shape.threads / (kind == group_kind::thread ? 1 : 32));
  switch (kind) {
    case group_kind::thread: return launch(m, shape, script_kernel<thread_group>{memory});
    case group_kind::warp: return launch(m, shape, script_kernel<warp_group>{memory});
    case group_kind::block: return launch(m, shape, script_kernel<block_group>{memory});
  }
}

}  // namespace gpufs::testing
