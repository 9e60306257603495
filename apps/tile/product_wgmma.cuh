// The product of two tiles (product.cuh) with instructions that four warps issue together, and that
// read both slices from shared memory. For compute capability 9.0 (PTX ISA 8.0, "wgmma"). Four
// warps make 64 x 128 sums.
//
// The units work while the warps continue. Therefore threads that store into slices must make the
// stores visible to the units (stored()), and must wait for the units before they overwrite a slice
// (finish()).
#pragma once

#include "tile/slice.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace gpufs::tile {

class wgmma_product {
 public:
  static constexpr bool is_inlined = true;
  GPUFS_HD explicit wgmma_product(char*) {}

  template <int Parts>
  GPUFS_HD void start(const char* a, const char* b) {
    const std::uint64_t left =
        described(a + threadIdx.x / group_threads * (group_rows * row_bytes));
    const std::uint64_t right = described(b);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    GPUFS_UNROLL
    for (int q = 0; q < Parts; ++q) {
      GPUFS_UNROLL
      for (int p = 0; p + q < Parts; ++p) {
        GPUFS_UNROLL
        for (std::uint32_t byte = 0; byte < row_bytes; byte += instruction_row_bytes)
          multiply(sums_, left + (p * slice_bytes + byte) / unit,
                   right + (q * slice_bytes + byte) / unit);
      }
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }
  GPUFS_HD void finish() {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    // The compiler does not know that the sums arrive only here.
    GPUFS_UNROLL
    for (float& sum : sums_) asm volatile("" : "+f"(sum)::"memory");
  }
  GPUFS_HD void clear() {
    GPUFS_UNROLL
    for (float& sum : sums_) sum = 0;
  }
  GPUFS_HD void add(const wgmma_product& part) {
    GPUFS_UNROLL
    for (std::uint32_t i = 0; i < side * side / threads; ++i) sums_[i] += part.sums_[i];
  }
  GPUFS_HD static void stored() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

  template <class Take>
  GPUFS_HD void each(const Take& take) const {
    const std::uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4,
                        column = lane % 4 * 2;
    GPUFS_UNROLL
    for (std::uint32_t n = 0; n < side / 8; ++n) {
      GPUFS_UNROLL
      for (std::uint32_t i = 0; i < 4; ++i)
        take(row + i / 2 * 8, column + n * 8 + i % 2, sums_[n * 4 + i]);
    }
  }

 private:
  static constexpr std::uint32_t group_threads = 128, group_rows = 64, instruction_row_bytes = 32;
  static constexpr std::uint32_t unit = 16;  // unit of addresses and distances in descriptors

  // Returns a matrix descriptor: where the rows begin; the distance from eight rows to the next
  // eight; and the layout, rows of 64 bytes with their quarters in place_in_slice()'s order. This
  // layout does not use the distance in the other direction (bits 16 to 29).
  GPUFS_HD static std::uint64_t described(const char* rows) {
    const std::uint64_t at = static_cast<std::uint32_t>(__cvta_generic_to_shared(rows));
    return at / unit | std::uint64_t{1} << 16 | std::uint64_t{8 * row_bytes / unit} << 32 |
           std::uint64_t{2} << 62;
  }
  GPUFS_HD static void multiply(float (&d)[64], std::uint64_t a, std::uint64_t b) {
    // clang-format off
    asm volatile(
        "{.reg .pred adds; setp.eq.u32 adds, 0, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, adds, 1, 1, 0, 0;}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
          "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
          "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b));
    // clang-format on
  }

  float sums_[side * side / threads] = {};
};

}  // namespace gpufs::tile
#endif
