"""gdev shares a GPU between unmodified CUDA programs: its commands, and memory shared by keys.

``gdev.shm(key, nbytes)`` returns device memory that other programs under gdev attach by its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdev._shm import SharedMemory, key_of, shm

__all__ = ["SharedMemory", "key_of", "shm"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from gdev import _shm

        return getattr(_shm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
