// Compiles a function for each kind of processor. The right version is selected when the program
// starts.
#pragma once

#if defined(__x86_64__)
#define GPUFS_FOR_EACH_PROCESSOR \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GPUFS_FOR_EACH_PROCESSOR
#endif
