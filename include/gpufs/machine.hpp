// What gpufs can use on this machine: facts for people and tools (`gpufs doctor`). Mounts do not
// use these facts; each mount tries for itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpufs {

struct gpu_facts {
  int ordinal = 0;
  std::string name;
  std::string pci_address;  // as in /sys/bus/pci/devices: "0000:1b:00.0"
  int capability_major = 0;
  int capability_minor = 0;
  unsigned multiprocessors = 0;
  std::uint64_t memory_bytes = 0;
  bool host_register = false;  // can pin host memory that was allocated elsewhere
  // Can also pin memory that may only be read, such as mapped files: direct loads.
  bool host_register_read_only = false;
  bool virtual_memory = false;  // cuMemCreate and its family: the arena
  bool unified_addressing = false;
  bool mapped_host_memory = false;      // kernels can reach pinned host memory: the channel
  bool pageable_memory_access = false;  // kernels can reach any host memory (HMM or ATS); not used
  bool host_native_atomics = false;     // system-wide atomics on host memory; not used
  bool prohibited = false;              // the administrator forbids contexts on it (compute mode)
};

struct cuda_facts {
  // CUDA version that the library was built with, such as 13000 for 13.0; 0: without CUDA.
  int built_version = 0;
  int driver_version = 0;  // newest CUDA version that the driver supports; 0: no driver
  std::string obstacle;    // why there are no GPUs; empty if there are
  std::vector<gpu_facts> gpus;
};

// System calls that gpufs uses if possible. 0: usable; otherwise the errno of the call.
struct host_facts {
  int process_vm_readv = 0;  // the CPU device's direct loads
  // Informational: reports how much of a file is in the host's page cache, without a mapping.
  int cachestat = 0;
  int io_uring = 0;  // informational
};

// The CUDA version that the library was built with, as in cuda_facts. Touches no GPU.
int built_cuda_version() noexcept;

// Starts the driver, but creates no context on a GPU. Throws only std::bad_alloc; a missing or
// broken driver is reported as a fact. Waits for the driver: up to seconds if it must wake a GPU.
cuda_facts examine_cuda();

// Tries the system calls once, and leaves no trace. Does not wait.
host_facts examine_host() noexcept;

}  // namespace gpufs
