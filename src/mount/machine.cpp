// Facts about this machine, from the CUDA runtime and the kernel.
#include "gpufs/machine.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#if GPUFS_WITH_CUDA
#include <cuda.h>
#include <cuda_runtime_api.h>
#endif

namespace gpufs {
namespace {

// Debian 12's headers lack it. The number is the same on all architectures except alpha.
constexpr long cachestat_number = 451;

int try_process_vm_readv() noexcept {
  char from = 1;
  char to = 0;
  const iovec local{&to, 1};
  const iovec remote{&from, 1};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1 ? 0 : errno;
}

int try_cachestat() noexcept {
  struct range {
    std::uint64_t offset, bytes;
  } everything{0, 0};
  std::array<std::uint64_t, 5> counts{};  // cached, dirty, write-back, evicted, recently evicted
  const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const int result = syscall(cachestat_number, fd, &everything, counts.data(), 0) == 0 ? 0 : errno;
  (void)close(fd);
  return result;
}

int try_io_uring() noexcept {
  // struct io_uring_params, 120 bytes, which old headers lack
  std::array<std::uint32_t, 30> parameters{};
  const long fd = syscall(SYS_io_uring_setup, 1, parameters.data());
  if (fd < 0) return errno;
  (void)close(static_cast<int>(fd));
  return 0;
}

#if GPUFS_WITH_CUDA

bool has(cudaDeviceAttr attribute, int ordinal) {
  int value = 0;
  const bool known = cudaDeviceGetAttribute(&value, attribute, ordinal) == cudaSuccess;
  return known && value != 0;
}

// The runtime has no name for this attribute, so the driver is asked.
bool has_virtual_memory(int ordinal) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion("cuDeviceGetAttribute", &address, 2000, cudaEnableDefault,
                                       &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    return false;
  }
  const auto get_attribute = reinterpret_cast<decltype(&cuDeviceGetAttribute)>(address);
  int value = 0;
  return get_attribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal) ==
             CUDA_SUCCESS &&
         value != 0;
}

std::string lower_case(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

gpu_facts examine_gpu(int ordinal) {
  gpu_facts facts;
  facts.ordinal = ordinal;
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, ordinal) == cudaSuccess) {
    facts.name = properties.name;
    facts.capability_major = properties.major;
    facts.capability_minor = properties.minor;
    facts.multiprocessors = static_cast<unsigned>(properties.multiProcessorCount);
    facts.memory_bytes = properties.totalGlobalMem;
  }
  std::array<char, 32> address{};
  if (cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), ordinal) ==
      cudaSuccess) {
    facts.pci_address = lower_case(address.data());
  }
  facts.host_register = has(cudaDevAttrHostRegisterSupported, ordinal);
  facts.host_register_read_only = has(cudaDevAttrHostRegisterReadOnlySupported, ordinal);
  facts.virtual_memory = has_virtual_memory(ordinal);
  facts.unified_addressing = has(cudaDevAttrUnifiedAddressing, ordinal);
  facts.mapped_host_memory = has(cudaDevAttrCanMapHostMemory, ordinal);
  facts.pageable_memory_access = has(cudaDevAttrPageableMemoryAccess, ordinal);
  facts.host_native_atomics = has(cudaDevAttrHostNativeAtomicSupported, ordinal);
  int mode = cudaComputeModeDefault;
  facts.prohibited =
      cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, ordinal) == cudaSuccess &&
      mode == cudaComputeModeProhibited;
  // A failed query must not surface as an error in the caller's next CUDA call.
  (void)cudaGetLastError();
  return facts;
}

#endif

}  // namespace

int built_cuda_version() noexcept {
#if GPUFS_WITH_CUDA
  return CUDART_VERSION;
#else
  return 0;
#endif
}

cuda_facts examine_cuda() {
  cuda_facts facts;
  facts.built_version = built_cuda_version();
#if GPUFS_WITH_CUDA
  if (cudaDriverGetVersion(&facts.driver_version) != cudaSuccess) facts.driver_version = 0;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    facts.obstacle = facts.driver_version == 0 ? "no NVIDIA driver" : cudaGetErrorString(status);
    (void)cudaGetLastError();
  } else if (count == 0) {
    facts.obstacle = "the driver shows no GPU";
  } else {
    for (int ordinal = 0; ordinal < count; ++ordinal) facts.gpus.push_back(examine_gpu(ordinal));
  }
#else
  facts.obstacle = "built without CUDA";
#endif
  return facts;
}

host_facts examine_host() noexcept {
  return {try_process_vm_readv(), try_cachestat(), try_io_uring()};
}

}  // namespace gpufs
