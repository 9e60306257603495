# Settings that all of gpufs's own targets share.

# Sets the compile options of a target built from gpufs's sources. The macro GPUFS_WITH_CUDA says
# whether sources may call CUDA.
function(gpufs_own_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CUDA_EXTENSIONS OFF
    POSITION_INDEPENDENT_CODE ON
    CUDA_RUNTIME_LIBRARY Static
    COMPILE_WARNING_AS_ERROR "${GPUFS_WERROR}")
  # -Wpedantic is only for g++, because the host code that nvcc generates is not pedantic.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic>
    $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-Wall,-Wextra -Xcudafe=--display_error_number>
    # A kernel that calls a host function gets only a warning, and then garbage. Make it an error.
    $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Werror=cross-execution-space-call>)
  # g++ 12 warns about overlapping copies inside std::string concatenation (GCC bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>
      $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-Wno-restrict>)
  endif()
  # Views are passed by value and return references into memory that outlives them. Newer g++
  # versions report these as dangling.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wno-dangling-reference>
      $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-Wno-dangling-reference>)
  endif()
  if(GPUFS_MARCH)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-march=${GPUFS_MARCH}>
      $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-march=${GPUFS_MARCH}>)
  endif()
  if(GPUFS_WITH_CUDA)
    target_compile_definitions(${target} PRIVATE GPUFS_WITH_CUDA=1)
  endif()
  if(GPUFS_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=${GPUFS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC $<BUILD_INTERFACE:-fsanitize=${GPUFS_SANITIZE}>)
  endif()
endfunction()
