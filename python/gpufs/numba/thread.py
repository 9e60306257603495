"""Device calls of single threads: any threads of a warp may call, anywhere in a kernel."""

from gpufs.numba._calls import Calls, calls_of

gopen, gclose, gread, gwrite, gfsize, gfsync, gftruncate, gfadvise, gunlink, grename = calls_of(
    "thread"
)

__all__ = list(Calls._fields)
