# Adapts CMake to a CUDA toolkit from PyPI. Such a toolkit keeps its libraries in lib, while nvcc
# links from lib64. It has libcudart.so only with a version number, while CMake looks for the bare
# name. The installed package contains this file too.

# Sets `result` to the root folder of the toolkit that contains `compiler`.
function(gpufs_cuda_root result compiler)
  get_filename_component(root "${compiler}" REALPATH)
  get_filename_component(root "${root}" DIRECTORY)
  get_filename_component(root "${root}" DIRECTORY)
  set(${result} "${root}" PARENT_SCOPE)
endfunction()

# For a toolkit from PyPI, passes the runtime's path to FindCUDAToolkit and sets `is_wheel` to ON.
function(gpufs_adapt_to_cuda_wheel is_wheel root)
  set(${is_wheel} OFF PARENT_SCOPE)
  if(NOT EXISTS "${root}/lib64" AND EXISTS "${root}/lib/libcudart_static.a")
    set(${is_wheel} ON PARENT_SCOPE)
    file(GLOB cudart LIST_DIRECTORIES OFF "${root}/lib/libcudart.so.*")
    if(cudart)
      list(GET cudart 0 cudart)
      set(CUDA_CUDART "${cudart}" CACHE FILEPATH "The CUDA runtime from PyPI")
    endif()
  endif()
endfunction()
