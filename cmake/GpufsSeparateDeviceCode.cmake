# Part of the package that is installed, too.

# Compiles the device functions of a target once, in separate compilation (nvcc -rdc=true). Without
# it, ptxas compiles each kernel as a program of its own, with its own copy of each function of
# gpufs that it calls, which takes several times as long. docs/decisions/build.md has the figures.
#
# A kernel can call a separate function only if the function needs no more registers than the kernel
# may use. 64 is what a block of 1,024 threads leaves, so any launch bounds are possible.
function(gpufs_separate_device_code target)
  set_target_properties(${target} PROPERTIES
    CUDA_SEPARABLE_COMPILATION ON
    CUDA_RESOLVE_DEVICE_SYMBOLS ON)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xptxas=--device-function-maxrregcount=64>")
endfunction()
