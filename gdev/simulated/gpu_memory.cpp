#include "simulated/gpu_memory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <system_error>
#include <utility>

namespace gdev::simulated {

namespace {

constexpr std::size_t page_bytes = 4096;
constexpr std::uint32_t last = 0xFFFFFFFF;
// Whoever holds this byte of the first page may allocate: so of two processes that ask for the
// last block one gets it.
constexpr off_t allocation_lock = 0;

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

file_descriptor open_file(const char* path) {
  file_descriptor file(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (file.number() < 0) {
    fail(path);
  }
  return file;
}

struct flock range(short type, std::size_t begin, std::size_t bytes) noexcept {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(begin);
  lock.l_len = static_cast<off_t>(bytes);
  return lock;
}

std::size_t table_bytes(std::size_t count) noexcept {
  return (2 * count * sizeof(std::uint32_t) + page_bytes - 1) / page_bytes * page_bytes;
}

/** Returns how many blocks a file of this size has. */
std::size_t blocks_in(std::size_t file_bytes) noexcept {
  std::size_t count = file_bytes / block_bytes;
  while (count > 0 && page_bytes + table_bytes(count) + count * block_bytes > file_bytes) {
    --count;
  }
  return count;
}

/** Returns what is counted as free, and never given: a driver may keep memory for itself. */
std::size_t withheld_bytes() {
  const char* const given = std::getenv("GDEV_SIMULATED_WITHHELD");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 0;
}

}  // namespace

gpu_memory::gpu_memory(const char* path, std::size_t bytes) {
  if (std::strlen(path) >= sizeof path_) {
    errno = ENAMETOOLONG;
    fail(path);
  }
  std::strcpy(path_, path);
  probe_ = open_file(path_);
  if (flock(probe_.number(), LOCK_EX) != 0) {
    fail(path_);
  }
  struct stat status{};
  if (fstat(probe_.number(), &status) != 0) {
    fail(path_);
  }
  number_ = status.st_ino;
  if (status.st_size == 0) {
    count_ = bytes / block_bytes;
    const std::size_t size = page_bytes + table_bytes(count_) + count_ * block_bytes;
    if (ftruncate(probe_.number(), static_cast<off_t>(size)) != 0) {
      fail(path_);
    }
  } else {
    count_ = blocks_in(static_cast<std::size_t>(status.st_size));
  }
  flock(probe_.number(), LOCK_UN);
  blocks_begin_ = page_bytes + table_bytes(count_);
  void* const table = mmap(nullptr, table_bytes(count_), PROT_READ | PROT_WRITE, MAP_SHARED,
                           probe_.number(), page_bytes);
  if (table == MAP_FAILED) {
    fail(path_);
  }
  next_ = {static_cast<std::uint32_t*>(table), count_};
  owner_ = {static_cast<std::uint32_t*>(table) + count_, count_};
}

gpu_memory::~gpu_memory() { munmap(next_.data(), table_bytes(count_)); }

bool gpu_memory::is_free(std::uint32_t block) const {
  struct flock lock = range(F_WRLCK, offset_of(block), block_bytes);
  if (fcntl(probe_.number(), F_OFD_GETLK, &lock) != 0) {
    fail(path_);
  }
  return lock.l_type == F_UNLCK;
}

std::size_t gpu_memory::free_bytes() const {
  std::size_t free = 0;
  for (std::uint32_t block = 0; block < count_; ++block) {
    free += is_free(block) ? block_bytes : 0;
  }
  return free;
}

std::map<std::uint32_t, std::uint64_t> gpu_memory::owners() const {
  std::map<std::uint32_t, std::uint64_t> all;
  for (std::uint32_t block = 0; block < count_; ++block) {
    if (!is_free(block)) {
      all[std::atomic_ref(owner_[block]).load(std::memory_order_relaxed)] += block_bytes;
    }
  }
  return all;
}

chunk gpu_memory::allocate(std::size_t blocks) {
  chunk taken{open_file(path_), {}};
  const file_descriptor turn = open_file(path_);
  struct flock lock = range(F_WRLCK, allocation_lock, 1);
  while (fcntl(turn.number(), F_OFD_SETLKW, &lock) != 0) {
    if (errno != EINTR) {
      fail(path_);
    }
  }
  if (const std::size_t withheld = withheld_bytes();
      withheld != 0 && free_bytes() < blocks * block_bytes + withheld) {
    return {};
  }
  for (std::uint32_t block = 0; block < count_ && taken.blocks.size() < blocks; ++block) {
    lock = range(F_WRLCK, offset_of(block), block_bytes);
    if (fcntl(taken.file.number(), F_OFD_SETLK, &lock) == 0) {
      taken.blocks.push_back(block);
    } else if (errno != EAGAIN && errno != EACCES) {
      fail(path_);
    }
  }
  if (taken.blocks.size() < blocks || blocks == 0) {
    return {};
  }
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::uint32_t block = taken.blocks[i];
    // Another process may have left data in it.
    if (fallocate(taken.file.number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(offset_of(block)), block_bytes) != 0) {
      fail(path_);
    }
    std::atomic_ref(next_[block])
        .store(i + 1 < blocks ? taken.blocks[i + 1] : last, std::memory_order_relaxed);
    std::atomic_ref(owner_[block])
        .store(static_cast<std::uint32_t>(getpid()), std::memory_order_relaxed);
  }
  // The position belongs to the open file description: who receives a descriptor learns from it
  // where the chunk begins.
  if (lseek(taken.file.number(), taken.blocks.front(), SEEK_SET) < 0) {
    fail(path_);
  }
  return taken;
}

chunk gpu_memory::import(file_descriptor file) const {
  struct stat own{};
  struct stat other{};
  if (fstat(probe_.number(), &own) != 0 || fstat(file.number(), &other) != 0 ||
      own.st_dev != other.st_dev || own.st_ino != other.st_ino) {
    return {};
  }
  const off_t first = lseek(file.number(), 0, SEEK_CUR);
  chunk found{std::move(file), {}};
  for (std::size_t block = static_cast<std::size_t>(first);
       block < count_ && found.blocks.size() < count_;
       block = std::atomic_ref(next_[block]).load(std::memory_order_relaxed)) {
    found.blocks.push_back(static_cast<std::uint32_t>(block));
  }
  return found;
}

chunk gpu_memory::begins_with(std::uint32_t block) const {
  file_descriptor file = open_file(path_);
  return lseek(file.number(), block, SEEK_SET) < 0 ? chunk{} : import(std::move(file));
}

void gpu_memory::map(const chunk& memory, std::byte* address) const {
  for (const std::uint32_t block : memory.blocks) {
    if (mmap(address, block_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory.file.number(),
             static_cast<off_t>(offset_of(block))) == MAP_FAILED) {
      fail(path_);
    }
    address += block_bytes;
  }
}

std::vector<std::string> gpu_files() {
  const char* const given = std::getenv("GDEV_SIMULATED_GPU");
  std::istringstream names(given != nullptr ? given : "/dev/shm/gdev-simulated-gpu");
  std::vector<std::string> files;
  for (std::string name; std::getline(names, name, ':');) {
    files.push_back(name);
  }
  return files;
}

std::vector<std::unique_ptr<gpu_memory>> open_gpus() {
  const char* const given = std::getenv("GDEV_SIMULATED_MEMORY");
  const std::size_t bytes =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::size_t{256} << 20;
  std::vector<std::unique_ptr<gpu_memory>> all;
  for (const std::string& file : gpu_files()) {
    all.push_back(std::make_unique<gpu_memory>(file.c_str(), bytes));
  }
  return all;
}

}  // namespace gdev::simulated
