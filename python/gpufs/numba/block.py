"""Device calls of a block: all threads call together, and wait for each other in the call."""

from gpufs.numba._calls import Calls, calls_of

gopen, gclose, gread, gwrite, gfsize, gfsync, gftruncate, gfadvise, gunlink, grename = calls_of(
    "block"
)

__all__ = list(Calls._fields)
