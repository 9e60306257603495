# Static libraries above the library: gpufs_<name>. Those of the applications (apps/) and of the
# benchmarks (benchmarks/) are built alike. Sources under KERNELS and OPTIMIZED_KERNELS instantiate
# kernels. They are compiled as CUDA if there is nvcc, otherwise as C++ for the CPU device only. A
# library has one of the two kinds: ptxas compiles those under KERNELS fast (GPUFS_PTXAS_OPTIONS). That
# is for kernels that spend their time in gpufs, not for those that compute, nor for programs without
# gpufs.

function(gpufs_engine_library target library options)
  target_sources(${target} PRIVATE ${ARGN})
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${options}>")
  target_include_directories(${target} PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(${target} PUBLIC ${library})
  if(GPUFS_WITH_CUDA)
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  endif()
  gpufs_own_target(${target})
endfunction()

# TESTED: also makes gpufs_<name>_checked for tests, over the checked library (src/CMakeLists.txt
# gives the reason).
function(gpufs_engine name)
  cmake_parse_arguments(PARSE_ARGV 1 engine "TESTED" "" "SOURCES;KERNELS;OPTIMIZED_KERNELS")
  if(GPUFS_WITH_CUDA)
    set_source_files_properties(${engine_KERNELS} ${engine_OPTIMIZED_KERNELS} PROPERTIES LANGUAGE CUDA)
  endif()
  # Several processors should make machine code. To PTX alone most of the time goes into headers.
  if(NOT CMAKE_CUDA_ARCHITECTURES MATCHES "^[0-9]+-virtual$")
    set_source_files_properties(${engine_KERNELS} ${engine_OPTIMIZED_KERNELS} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  set(sources ${engine_SOURCES} ${engine_KERNELS} ${engine_OPTIMIZED_KERNELS})
  # Not as options of sources: those with options of their own are compiled alone.
  set(options "")
  if(engine_KERNELS AND engine_OPTIMIZED_KERNELS)
    message(FATAL_ERROR "gpufs_${name}: KERNELS and OPTIMIZED_KERNELS need libraries of their own")
  elseif(engine_KERNELS)
    set(options "${GPUFS_PTXAS_OPTIONS}")
  endif()
  add_library(gpufs_${name} STATIC)
  gpufs_engine_library(gpufs_${name} gpufs "${options}" ${sources})
  if(engine_TESTED AND GPUFS_BUILD_TESTS)
    add_library(gpufs_${name}_checked STATIC EXCLUDE_FROM_ALL)
    gpufs_engine_library(gpufs_${name}_checked gpufs_checked "${options}" ${sources})
    set_target_properties(gpufs_${name}_checked PROPERTIES
      CUDA_ARCHITECTURES "${GPUFS_TEST_CUDA_ARCHITECTURES}")
  endif()
endfunction()

# The matrix units of compute capability 9.0 have instructions that no other GPU has
# (apps/tile/product_wgmma.cuh): machine code for them needs "90a". PTX stays as it is, for later
# GPUs.
function(gpufs_own_matrix_units target)
  if(NOT GPUFS_WITH_CUDA)
    return()
  endif()
  get_target_property(architectures ${target} CUDA_ARCHITECTURES)
  # Without a GPU the list is a message.
  if(architectures STREQUAL "native" AND CMAKE_CUDA_ARCHITECTURES_NATIVE MATCHES "^[0-9]")
    set(architectures ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
  elseif(architectures STREQUAL "all")
    set(architectures ${CMAKE_CUDA_ARCHITECTURES_ALL})
  elseif(architectures STREQUAL "all-major")
    set(architectures ${CMAKE_CUDA_ARCHITECTURES_ALL_MAJOR})
  endif()
  list(TRANSFORM architectures REPLACE "^90$" "90a-real;90-virtual")
  list(TRANSFORM architectures REPLACE "^90-real$" "90a-real")
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${architectures}")
endfunction()
