// The kernels of gdev's tests, as PTX. simulated/kernels.cpp does the same on the simulated GPU.
#include <cstdint>

extern "C" __global__ void gdev_fill(std::uint32_t* values, std::uint64_t count,
                                     std::uint32_t value) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    values[i] = value;
  }
}

extern "C" __global__ void gdev_add(std::uint32_t* values, std::uint64_t count,
                                    std::uint32_t increment) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    values[i] += increment;
  }
}

/** result must be zero before. */
extern "C" __global__ void gdev_sum(const std::uint32_t* values, std::uint64_t count,
                                    unsigned long long* result) {
  unsigned long long sum = 0;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    sum += values[i];
  }
  atomicAdd(result, sum);
}

/** Adds matrices of rows x columns, row by row in memory. A vector is a matrix of one row. */
extern "C" __global__ void gdev_add_matrices(std::uint32_t* sum, const std::uint32_t* left,
                                             const std::uint32_t* right, std::uint32_t rows,
                                             std::uint32_t columns) {
  const std::uint32_t row = blockIdx.y * blockDim.y + threadIdx.y;
  const std::uint32_t column = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows && column < columns) {
    const std::uint64_t at = std::uint64_t{row} * columns + column;
    sum[at] = left[at] + right[at];
  }
}

extern "C" __global__ void gdev_spin(std::uint64_t nanoseconds) {
  std::uint64_t begin;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  std::uint64_t now = begin;
  while (now - begin < nanoseconds) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  }
}

/** Waits until each rank has come to this number, or for 100 s. */
extern "C" __global__ void gdev_meet(volatile std::uint64_t* arrivals, std::uint32_t rank,
                                     std::uint32_t ranks, std::uint64_t number) {
  constexpr std::uint64_t longest = 100'000'000'000;
  std::uint64_t begin;
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  arrivals[rank] = number;
  __threadfence_system();
  for (std::uint32_t i = 0; i < ranks; ++i) {
    do {
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (arrivals[i] < number && now - begin < longest);
  }
}
