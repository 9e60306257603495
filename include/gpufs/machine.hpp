// What this machine offers to gpufs: facts for people and tools that ask (`gpufs doctor`). Mounts
// do not use them: each finds out by trying.
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
  bool host_register_read_only =
      false;  // also memory that may only be read, such as mapped files: direct loads
  bool virtual_memory = false;  // cuMemCreate and its family: the arena
  bool unified_addressing = false;
  bool mapped_host_memory = false;      // kernels can reach pinned host memory: the channel
  bool pageable_memory_access = false;  // kernels can reach any host memory (HMM or ATS); not used
  bool host_native_atomics = false;     // system-wide atomics on host memory; not used
  bool prohibited = false;              // the administrator forbids contexts on it (compute mode)
};

struct cuda_facts {
  int built_version =
      0;  // CUDA version that the library was built with, as 13000 for 13.0; 0: without CUDA
  int driver_version = 0;  // newest CUDA version that the driver serves; 0: no driver
  std::string obstacle;    // why there are no GPUs; empty when there are
  std::vector<gpu_facts> gpus;
};

// System calls that gpufs uses where it can. 0: usable; else the errno that they gave.
struct host_facts {
  int process_vm_readv = 0;  // the CPU device's direct loads
  int cachestat =
      0;  // informational: how much of a file is in the host's page cache, without mapping it
  int io_uring = 0;  // informational
};

// The CUDA version that the library was built with, as in cuda_facts. Touches no GPU.
int built_cuda_version() noexcept;

// Starts the driver, but creates no context on any GPU. Throws nothing but std::bad_alloc: a
// missing or broken driver is a fact too. Waits for the driver, up to seconds where it has to wake
// a GPU.
cuda_facts examine_cuda();

// Tries the system calls once, without a trace. Does not wait.
host_facts examine_host() noexcept;

}  // namespace gpufs
