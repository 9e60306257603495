# Chooses the CUDA compiler. Include it before project(), because CMake's own search fails on the
# layout of a toolkit from PyPI.
#
# The compiler is CMAKE_CUDA_COMPILER if it is set, else the result of build_backend/find_nvcc.py.
# That script tries CUDACXX, PATH, CUDA_HOME or CUDA_PATH, the default location, then the
# cuda-toolkit package of the Python environment. Sets GPUFS_WITH_CUDA and GPUFS_LANGUAGES.

include(GpufsCudaWheel)

set(GPUFS_NVCC_MINIMUM 12.8)
set(GPUFS_LANGUAGES CXX)
set(GPUFS_WITH_CUDA OFF)

# Sets `result` to the path of nvcc, or to an empty string if there is no Python or no nvcc.
function(gpufs_find_nvcc result)
  set(pythons "${Python_EXECUTABLE}" "${PYTHON_EXECUTABLE}" "$ENV{VIRTUAL_ENV}/bin/python3"
    "${CMAKE_CURRENT_SOURCE_DIR}/.venv/bin/python3")
  find_program(GPUFS_PYTHON3 NAMES python3)
  mark_as_advanced(GPUFS_PYTHON3)
  list(APPEND pythons "${GPUFS_PYTHON3}")
  foreach(python IN LISTS pythons)
    if(EXISTS "${python}")
      execute_process(
        COMMAND "${python}" "${CMAKE_CURRENT_SOURCE_DIR}/build_backend/find_nvcc.py"
        OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      if(found)
        break()
      endif()
    endif()
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

macro(gpufs_check_cuda_compiler)
  if(CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA" AND CMAKE_CUDA_COMPILER_VERSION VERSION_LESS GPUFS_NVCC_MINIMUM)
    message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} is version ${CMAKE_CUDA_COMPILER_VERSION}; gpufs needs ${GPUFS_NVCC_MINIMUM} "
      "(its device code uses the atomic operations that came with it)")
  endif()
endmacro()

# Sets `result` to the options of ptxas for gpufs's own kernels: its fast compilation, which takes
# half of the time. Only misses in pages of 512 B are slower (docs/decisions/build.md). Empty if the
# flags of the project choose how to optimize, because ptxas accepts only one such choice.
function(gpufs_ptxas_options result)
  set(${result} "" PARENT_SCOPE)
  include(CheckCompilerFlag)
  check_compiler_flag(CUDA -Xptxas=-Ofc=min GPUFS_PTXAS_HAS_OFC)
  get_directory_property(flags COMPILE_OPTIONS)
  string(APPEND flags " ${CMAKE_CUDA_FLAGS}")
  foreach(config IN ITEMS DEBUG RELEASE RELWITHDEBINFO MINSIZEREL)
    string(APPEND flags " ${CMAKE_CUDA_FLAGS_${config}}")
  endforeach()
  if(GPUFS_PTXAS_HAS_OFC AND GPUFS_FAST_PTXAS AND NOT flags MATCHES
      "-Xptxas|--ptxas-options|-Ofc|--Ofast-compile|--device-debug|(^|[ ;])-G($|[ ;])")
    set(${result} -Xptxas=-Ofc=min PARENT_SCOPE)
  endif()
endfunction()

if(GPUFS_CUDA)  # ON and AUTO
  if(NOT CMAKE_CUDA_COMPILER)
    gpufs_find_nvcc(gpufs_nvcc)
    if(gpufs_nvcc)
      set(CMAKE_CUDA_COMPILER "${gpufs_nvcc}" CACHE FILEPATH "CUDA compiler")
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    gpufs_cuda_root(gpufs_cuda_root "${CMAKE_CUDA_COMPILER}")
    gpufs_adapt_to_cuda_wheel(gpufs_cuda_is_wheel "${gpufs_cuda_root}")
    if(gpufs_cuda_is_wheel)
      string(APPEND CMAKE_CUDA_FLAGS_INIT " -L${gpufs_cuda_root}/lib")
      set(CUDAToolkit_ROOT "${gpufs_cuda_root}" CACHE PATH "The CUDA toolkit from PyPI")
    endif()
    set(GPUFS_WITH_CUDA ON)
    list(APPEND GPUFS_LANGUAGES CUDA)
  elseif(GPUFS_CUDA STREQUAL "AUTO")
    message(STATUS "gpufs: no nvcc (>= ${GPUFS_NVCC_MINIMUM}) found, building the CPU device only")
  else()
    message(FATAL_ERROR "No nvcc (>= ${GPUFS_NVCC_MINIMUM}) found. `make setup` installs one from PyPI into .venv; or set "
      "CMAKE_CUDA_COMPILER or CUDA_HOME; or build the CPU device only with -DGPUFS_CUDA=OFF.")
  endif()
endif()
