/**
 * The memory of a simulated GPU: a file of blocks that all processes share.
 *
 * A block is allocated while an open file description holds a lock on its bytes (F_OFD_SETLK). The
 * kernel releases the lock with the last descriptor and the last mapping of that description, also
 * when a process is killed. So memory is freed as a GPU frees it, and nobody has to clean up. A
 * descriptor that another process received keeps a chunk alive, as an exported handle does.
 *
 * Layout of the file: a page, whose first byte is the lock of allocations; the table `next`, and
 * beside it `owner`; and from `blocks_begin` on the blocks.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"

namespace gdev::simulated {

/** What physical memory is counted in; CUDA's granularity of chunks. */
inline constexpr std::size_t block_bytes = std::size_t{2} << 20;

/** Physical memory: some blocks, anywhere in the file. Lives as long as its locks (above). */
struct chunk {
  file_descriptor file;
  std::vector<std::uint32_t> blocks;
};

/** The memory of one GPU, as one process sees it. Thread-safe. */
class gpu_memory {
 public:
  /**
   * Opens the memory, or makes it.
   *
   * path: the file, best on a tmpfs. bytes: its size if it is new, a multiple of block_bytes.
   * Throws std::system_error.
   */
  gpu_memory(const char* path, std::size_t bytes);
  gpu_memory(const gpu_memory&) = delete;
  gpu_memory& operator=(const gpu_memory&) = delete;
  ~gpu_memory();

  [[nodiscard]] std::size_t total_bytes() const noexcept { return count_ * block_bytes; }

  /** Returns a number that no other GPU has at the same time. */
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

  /** Returns what no process has allocated. */
  [[nodiscard]] std::size_t free_bytes() const;

  /** Returns what each process has allocated, by its number. */
  [[nodiscard]] std::map<std::uint32_t, std::uint64_t> owners() const;

  /** Takes blocks, which are zero. Returns a chunk without blocks if there are not enough. */
  [[nodiscard]] chunk allocate(std::size_t blocks);

  /** Returns the chunk of a descriptor from another process, or none if it is not of this GPU. */
  [[nodiscard]] chunk import(file_descriptor file) const;

  /** Returns the chunk that begins with a block. It does not keep the chunk allocated. */
  [[nodiscard]] chunk begins_with(std::uint32_t block) const;

  /** Maps a chunk at a reserved address, without access; mprotect() gives it. Throws. */
  void map(const chunk& memory, std::byte* address) const;

 private:
  [[nodiscard]] bool is_free(std::uint32_t block) const;
  [[nodiscard]] std::size_t offset_of(std::uint32_t block) const noexcept {
    return blocks_begin_ + block * block_bytes;
  }

  char path_[4096];
  file_descriptor probe_;     // holds no locks: sees those of all others
  std::uint64_t number_ = 0;  // of the file
  std::size_t count_ = 0;
  std::size_t blocks_begin_ = 0;
  // For each block the next one of its chunk, or `last`. Only the holder of a block writes its own.
  std::span<std::uint32_t> next_;
  std::span<std::uint32_t> owner_;  // for each block the process that allocated it last
};

/** Returns the files of the GPUs: GDEV_SIMULATED_GPU names them, with colons between. */
[[nodiscard]] std::vector<std::string> gpu_files();

/** Opens or makes the memory of all GPUs. GDEV_SIMULATED_MEMORY: the bytes of each. Throws. */
[[nodiscard]] std::vector<std::unique_ptr<gpu_memory>> open_gpus();

}  // namespace gdev::simulated
