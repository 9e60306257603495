# The options of a build. Include it before project(); nothing here depends on a compiler.

if(DEFINED PROJECT_NAME)  # CMAKE_PROJECT_NAME is in the cache when CMake runs again
  # another project includes gpufs
  set(gpufs_is_top_level OFF)
else()
  set(gpufs_is_top_level ON)
endif()

# The environment sets the default, so that `GPUFS_CUDA=OFF pip install .` needs no build-system
# argument.
if(DEFINED ENV{GPUFS_CUDA})
  set(gpufs_cuda_default "$ENV{GPUFS_CUDA}")
else()
  set(gpufs_cuda_default ON)
endif()

set(GPUFS_SANITIZE "" CACHE STRING "Sanitizers of the CPU device's build: 'thread', 'address,undefined', or what else -fsanitize= takes")
if(GPUFS_SANITIZE)
  set(gpufs_cuda_default OFF)
endif()
set(GPUFS_CUDA "${gpufs_cuda_default}" CACHE STRING "ON: for GPUs and the CPU device; OFF: the CPU device only; AUTO: ON where nvcc is found")
set_property(CACHE GPUFS_CUDA PROPERTY STRINGS AUTO ON OFF)
if(GPUFS_SANITIZE AND GPUFS_CUDA)
  message(FATAL_ERROR "GPUFS_SANITIZE is for the CPU device: set GPUFS_CUDA=OFF (for GPU code there is compute-sanitizer: make test-gpu)")
endif()

# The environment can set this too, so that it works with pip. Code for one processor may not run on
# another, so the default is the compiler's.
set(GPUFS_MARCH "$ENV{GPUFS_MARCH}" CACHE STRING "-march= of host code, the CPU device included: 'native', or a name; empty: the compiler's default")

option(GPUFS_FAST_PTXAS "Compile kernels with ptxas's fast compilation, where it has it and no flags choose another level" ON)
option(GPUFS_BUILD_APPS "Build the engines of the command line" ${gpufs_is_top_level})
option(GPUFS_BUILD_PYTHON "Build the Python extension module" OFF)
option(GDEV_BUILD "Build gdev, which shares a GPU between programs (only with GPUFS_CUDA: it needs cuda.h)" ${gpufs_is_top_level})
option(GPUFS_BUILD_TESTS "Build the C++ tests" OFF)
option(GPUFS_BUILD_FUZZERS "Build the fuzzers too, beside the C++ tests (clang++ only; `make fuzz`)" OFF)
option(GPUFS_INSTALL "Generate the install step" ${gpufs_is_top_level})
option(GPUFS_WERROR "Warnings are errors" OFF)

set(GPUFS_TEST_CUDA_ARCHITECTURES "90" CACHE STRING
  "GPU architectures of the tests, which run only on the developer's GPU")
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  # Machine code for A100 and H100, and PTX that later GPUs translate.
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "GPU architectures of the library and the applications")
endif()

if(gpufs_is_top_level)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel")
  endif()
  find_program(GPUFS_CCACHE ccache)
  if(GPUFS_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${GPUFS_CCACHE}" CACHE STRING "")
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${GPUFS_CCACHE}" CACHE STRING "")
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()
