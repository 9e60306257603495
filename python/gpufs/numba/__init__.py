"""The device calls for kernels that Numba compiles (``numba-cuda``).

:mod:`gpufs.numba.thread`, :mod:`gpufs.numba.warp` and :mod:`gpufs.numba.block` have the same calls,
each for its kind of group. All members of a group call together, with the same arguments. All get
the same result, ``>= 0`` or ``-errno``::

    import numpy
    import gpufs, gpufs.numba
    from gpufs.numba import block
    from numba import cuda

    @cuda.jit
    def read(fs, path, to, result):
        fd = block.gopen(fs, path)
        result[0] = block.gread(fs, fd, to, to.nbytes, 0) if fd >= 0 else fd
        block.gclose(fs, fd)

    with gpufs.mount() as mount:
        to, result = cuda.device_array(1 << 20, numpy.uint8), cuda.device_array(1, numpy.int64)
        read[1, 256](mount.device_ref().address, gpufs.numba.device_path("file"), to, result)
        mount.synchronize()

An argument for memory (a path, a buffer) is an address or a contiguous array, which may be a slice
or in shared memory. ``fs`` is :attr:`gpufs.DeviceRef.address`. docs/api.md describes each call and
its errors. The calls are already compiled: linking them into a kernel takes milliseconds.

Raises:
    ImportError: ``numba-cuda`` is not installed, or gpufs was built without CUDA.
"""

from __future__ import annotations

from gpufs.numba._calls import address_of, device_path

from gpufs.numba import block, thread, warp  # isort: skip

__all__ = ["address_of", "block", "device_path", "thread", "warp"]
