/**
 * Device memory that leaves the GPU with a turn, and keeps its addresses.
 *
 * An allocation is a range of addresses with chunks of physical memory behind it (chunk.hpp).
 * Moving out copies chunks to the host and releases them; the range stays, without access there.
 * As many move as others need; the rest stays on the GPU, and no work runs that could reach it.
 * Moving in makes new chunks in the same places, of all that is out: a kernel may reach any
 * address. Chunks that programs make themselves move with them (handles.hpp).
 *
 * What has a copy on the host and has not been written since is not copied again: if nothing was
 * submitted that writes on the device since it was moved in.
 *
 * Who changes the ranges or chunks holds a submission or a memory_pass (gate.hpp); moves run while
 * none is held. So the two exclude each other, and moves need no lock. `mutex_` is for the threads
 * that allocate and free at the same time; it is not held across calls of the driver.
 */
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "interposer/chunk.hpp"
#include "interposer/client.hpp"
#include "interposer/gpu_facts.hpp"
#include "interposer/host_pool.hpp"
#include "interposer/ledger.hpp"
#include "interposer/swap_file.hpp"

namespace gdev {

/** What a move has done. */
struct move_result {
  int error = 0;  // ENOMEM: the host has no room; EIO: the file cannot be written; all is as it
                  // was. ECANCELED: see move_in()
  std::uint64_t bytes = 0;  // copied
  std::uint64_t ns = 0;     // from its beginning, which is when a move in has its first room
};

class swappable_memory {
 public:
  /** Smaller allocations are the driver's: it places them together. They stay on the GPU. */
  static constexpr std::size_t smallest = (std::size_t{1} << 20) + 1;

  /** Tells whether allocations of the current context could be swapped. */
  [[nodiscard]] bool could_begin();
  /** Before such an allocation: turns are taken on this GPU from now on. Returns false if not. */
  [[nodiscard]] bool begin();
  /** Before an allocation on a device, or the current one: tells whether turns are taken there. */
  [[nodiscard]] memory_place place_on(CUdevice device);
  [[nodiscard]] memory_place place();
  /** Returns what an allocation takes. */
  [[nodiscard]] static std::uint64_t physical(std::uint64_t bytes) noexcept;
  /** Returns the properties of the chunks that gdev makes for allocations. */
  [[nodiscard]] static CUmemAllocationProp properties_on(CUdevice device) noexcept;
  /** Allocates in the current context. Returns CUDA's errors. The caller holds a submission. */
  CUresult allocate(CUdeviceptr* address, std::size_t bytes, std::shared_ptr<holding> held);
  /** Tells whether an allocation begins here. */
  [[nodiscard]] bool begins_at(CUdeviceptr address);
  /**
   * Frees an allocation after the work that may use it. The caller holds a submission.
   *
   * While graphs are captured, it waits for the next call without captures.
   */
  CUresult free(CUdeviceptr address);
  /** Notes a context: drain() waits for its work. */
  void note_context(CUcontext made);
  /**
   * Frees all of a context, which is about to end. The caller holds a submission.
   *
   * Chunks of handles are copied in another context from then on; if there is none, they are wired.
   */
  void free_all(CUcontext context);
  /** Finds the allocation that contains an address. Returns false if it is none of these. */
  [[nodiscard]] bool find(CUdeviceptr address, CUdeviceptr* base, std::size_t* bytes);
  /** Tells whether some of an allocation's memory is in a range of addresses. */
  [[nodiscard]] bool reaches_into(CUdeviceptr address, std::size_t bytes);
  /** Lets another device use the allocations of one, also later ones. Holds a submission. */
  CUresult give_access(CUdevice owner, CUdevice user);
  /** Returns the access to memory of a device: its own, and that of devices it was given to. */
  [[nodiscard]] std::vector<CUmemAccessDesc> access_of(CUdevice device);

  // --- Chunks of handles (handles.hpp). They must not move in memory ---

  /** Makes a chunk, which moves from now on. The caller holds a submission. */
  CUresult add(chunk& made);
  /** Releases a chunk. The caller holds a memory_pass. */
  void remove(chunk& gone);
  /** Keeps a chunk on the GPU. The caller holds a submission. */
  void wire(chunk& wired);
  /** Returns the context in which a chunk is copied: another one after the end of its own. */
  [[nodiscard]] CUcontext context_of(const chunk& one);

  // --- Memory that others know by more than its address (wiring.cpp) ---

  /**
   * Keeps the allocation that contains an address on the GPU until it is freed.
   *
   * For memory that others reach past gdev: a move would leave them the old chunks. From now on it
   * counts as memory that cannot be swapped. The caller holds a submission. Returns false if the
   * address is in none of these allocations.
   */
  bool wire(CUdeviceptr address);
  /** Returns where the chunks of an allocation begin, by any of its addresses. Empty: none. */
  [[nodiscard]] std::vector<std::pair<CUdeviceptr, std::size_t>> chunks_of(CUdeviceptr address);
  /**
   * Keeps an object until the allocation that begins here is freed; of several, only the first.
   * Returns the one that is kept, or null if there is no such allocation. Null asks only.
   */
  std::shared_ptr<void> keep(CUdeviceptr address, std::shared_ptr<void> object);

  /** In a forked child: closes the swap file. */
  void close_file() noexcept { files_.close(); }
  /** No further allocation can be swapped: the program may submit work past the gate. */
  static void stop() noexcept;
  /** Returns the bytes that a move takes. */
  [[nodiscard]] std::uint64_t size();
  /** Returns the bytes of these that are on the GPU. */
  [[nodiscard]] std::uint64_t resident();
  /** Makes a part of what move_out(kept) will need of the host. Returns whether more lacks. */
  bool prepare_host(std::uint64_t kept);
  /** Tells the daemon what is free on the GPU: what look() returns there. */
  void report_gpu(const std::function<gpu_facts()>& look = look_at_gpu);
  /** Waits until the GPU has done all work of this process. Returns false if the time is up. */
  [[nodiscard]] bool drain(std::chrono::steady_clock::time_point deadline);
  /** Tells whether the GPU has nothing to do. Waits for nothing. */
  [[nodiscard]] bool is_drained();
  /**
   * Moves out until at most `kept` bytes are on the GPU, and all that is in the host's memory for
   * now. progress: is told what is still on the GPU, in bytes.
   */
  [[nodiscard]] move_result move_out(std::uint64_t kept,
                                     const std::function<void(std::uint64_t)>& progress);
  /**
   * Moves everything in.
   *
   * may_have: is asked with what must be on the GPU next, in bytes, until it returns true; false:
   * the move ends with ECANCELED. is_full: the GPU refuses so many bytes though there is room; the
   * same.
   */
  [[nodiscard]] move_result move_in(const std::function<bool(std::uint64_t)>& may_have,
                                    const std::function<bool(std::uint64_t)>& is_full);

 private:
  /** Whether memory of the current context takes turns, could, or never does. */
  enum class prospects : std::uint8_t { never, possible, begun };
  /** device: is set to the current one, unless the answer is `never`. */
  [[nodiscard]] prospects look_ahead(CUdevice& device);

  struct range {
    std::size_t bytes = 0;      // as asked for
    std::size_t size = 0;       // of the addresses
    std::vector<chunk> chunks;  // not empty; all of one context
    std::shared_ptr<holding> held;
    std::shared_ptr<void> kept;
  };

  /** A part of a chunk, for a move. */
  struct moving {
    chunk* of = nullptr;
    host_place* part = nullptr;
    bool is_kept = false;  // the host has these bytes already

    [[nodiscard]] CUdeviceptr address() const noexcept { return of->address() + part->offset; }
    [[nodiscard]] bool is_last() const noexcept { return part == &of->places.back(); }
  };

  [[nodiscard]] bool find_places(std::vector<moving>& all);
  [[nodiscard]] int write_files(const std::vector<moving>& all, std::uint64_t& copied);
  /** Copies a part to the GPU; those in the host's memory in the stream of their context. */
  [[nodiscard]] bool copy_in(const moving& one);
  /** Gives back the part's place on the host, if it has one. */
  void give_place(host_place& one);
  /** Copies a part to the host, and waits for that. Returns false if it fails. */
  [[nodiscard]] bool copy_now(std::byte* to, const moving& one);
  void copy_out(std::vector<moving>& all, std::uint64_t& copied,
                const std::function<void(std::uint64_t)>& progress);
  void copy_again(const std::vector<moving>& all, std::size_t begin, std::size_t end);
  void note_failure(CUcontext context);
  [[nodiscard]] bool synchronize(CUcontext context);
  [[nodiscard]] std::vector<CUcontext> all_contexts();
  /** Gives back all that a range has, but for what it holds of the account. */
  void unmake(CUdeviceptr address, range& gone);
  void free_deferred();
  /** Counts a chunk as one that stays on the GPU, and takes out what the host has of it.
   * `mutex_` is held. */
  void stay(chunk& wired, std::vector<host_place>& places);
  /** Gives back what the host has of chunks that stay. */
  void give_places(std::vector<host_place> places);
  /** Counts a chunk that was made. */
  void count(const chunk& made);
  /** What was in the host's memory is off the GPU with the rest, and comes to it with that. */
  void bring_home(const std::vector<chunk*>& moved);
  /** Releases a chunk, and counts it no more. */
  void release_counted(chunk& gone);
  void find_new_context(CUcontext ended);
  /** Returns the allocation that contains an address, or null. `mutex_` is held. */
  [[nodiscard]] range* range_at(CUdeviceptr address, CUdeviceptr* begin);
  /** Returns all that moves. */
  [[nodiscard]] std::vector<chunk*> all_chunks();
  /** Returns what moves out so that at most `kept` bytes stay on the GPU. */
  [[nodiscard]] std::vector<chunk*> chunks_to_move(std::uint64_t kept);
  [[nodiscard]] std::uint64_t writes() const;
  CUstream stream_of(CUcontext context);

  std::mutex mutex_;  // guards what follows, but for moves
  std::map<CUdeviceptr, range> ranges_;
  std::map<CUdeviceptr, range> deferred_;  // freed while graphs were captured
  std::set<chunk*> others_;                // of handles
  std::map<CUdevice, std::set<CUdevice>> peers_;
  std::set<CUcontext> contexts_;
  std::map<CUcontext, CUstream> streams_;  // for moves
  std::uint64_t size_ = 0;         // of what is not wired, but for what is in the host's memory now
  std::uint64_t resident_ = 0;     // of that
  std::uint64_t writes_then_ = 0;  // when `is_clean` of all chunks was right
  CUdevice home_ = -1;             // on which turns are taken: that of the first allocation
  bool has_begun_ = false;         // there is memory that takes turns, or is about to be
  host_pool pool_;
  swap_file files_;
  std::byte* staging_ = nullptr;  // between the GPU and the file
  std::set<CUcontext> broken_;    // contexts with an error that stays: the program sees it itself
};

/** Tells whether chunks may be made in the host's memory, for the current device. */
[[nodiscard]] bool can_be_on_host() noexcept;

/** The memory of this process. */
[[nodiscard]] swappable_memory& swappable() noexcept;

/** In a forked child. */
void forget_swappable() noexcept;

}  // namespace gdev
