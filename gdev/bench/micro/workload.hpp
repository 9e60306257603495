/** What a microprogram is, and which there are. */
#pragma once

#include <cstddef>
#include <memory>

namespace gdev_bench {

/**
 * A problem of one size with its inputs in host memory.
 *
 * The constructor makes the inputs. They depend on the size alone.
 */
class workload {
 public:
  workload() = default;
  workload(const workload&) = delete;
  workload& operator=(const workload&) = delete;
  virtual ~workload() = default;

  /**
   * Does one repeat: allocates device memory, copies the inputs in, computes, copies the results
   * out, frees. Returns after all of it.
   */
  virtual void run() = 0;
  /** Overwrites the results in host memory, so that only a later repeat can make them right. */
  virtual void forget() = 0;
  /** Compares the results of the last repeat with what they must be. */
  [[nodiscard]] virtual bool is_right() const = 0;
  /** Returns the bytes that a repeat copies, both directions together. */
  [[nodiscard]] virtual std::size_t bytes() const = 0;
};

/** A microprogram. */
struct microprogram {
  const char* name;
  /** The size if none is asked for. */
  std::size_t size;
  /** Sizes are multiples of this. */
  std::size_t multiple;
  /** What the size counts. */
  const char* unit;
  std::unique_ptr<workload> (*make)(std::size_t size);
};

// What makes the workloads. The unit of each size is the parameter's name.
std::unique_ptr<workload> make_loop(std::size_t iterations);
std::unique_ptr<workload> make_matrix_add(std::size_t side);
std::unique_ptr<workload> make_matrix_multiply(std::size_t side);
std::unique_ptr<workload> make_copy(std::size_t mebibytes);
std::unique_ptr<workload> make_pinned_copy(std::size_t mebibytes);
std::unique_ptr<workload> make_back_propagation(std::size_t inputs);
std::unique_ptr<workload> make_breadth_first_search(std::size_t nodes);
std::unique_ptr<workload> make_heart_wall(std::size_t frames);
std::unique_ptr<workload> make_hotspot(std::size_t side);
std::unique_ptr<workload> make_lu_decomposition(std::size_t side);
std::unique_ptr<workload> make_nearest_neighbors(std::size_t records);
std::unique_ptr<workload> make_needleman_wunsch(std::size_t length);
std::unique_ptr<workload> make_srad_image(std::size_t side);
std::unique_ptr<workload> make_srad_random(std::size_t side);
std::unique_ptr<workload> make_allocations(std::size_t mebibytes);
std::unique_ptr<workload> make_launches(std::size_t count);

}  // namespace gdev_bench
