"""Calls by all threads of a block together, which wait for each other there."""

from gpufs.numba._calls import calls_of

gopen, gclose, gread, gwrite, gfsize, gfsync, gftruncate, gfadvise, gunlink, grename = calls_of(
    "block"
)

__all__ = [
    "gclose",
    "gfadvise",
    "gfsize",
    "gfsync",
    "gftruncate",
    "gopen",
    "gread",
    "grename",
    "gunlink",
    "gwrite",
]
