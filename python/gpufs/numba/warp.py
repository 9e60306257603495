"""Device calls of a warp: all threads call together. Warps copy fastest."""

from gpufs.numba._calls import Calls, calls_of

gopen, gclose, gread, gwrite, gfsize, gfsync, gftruncate, gfadvise, gunlink, grename = calls_of(
    "warp"
)

__all__ = list(Calls._fields)
