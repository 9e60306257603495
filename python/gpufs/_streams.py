"""CUDA streams of other libraries: which one orders a call."""

from __future__ import annotations

import operator
import sys
from typing import Any, Final, NamedTuple, Protocol, SupportsIndex, TypeAlias, runtime_checkable

LEGACY_STREAM: Final = 1  # in the array interfaces; 0 means nothing there


@runtime_checkable
class CudaStream(Protocol):
    """An object with the stream protocol of CUDA's Python libraries: version and handle."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


Stream: TypeAlias = object
"""A CUDA stream, or an object that has one.

Accepted are streams of PyTorch, CuPy, Numba and ``cuda.core``, any object with ``__cuda_stream__``,
and a handle as a number.

``None``: PyTorch's current stream, if PyTorch uses the GPU already; else CuPy's; else the legacy
default stream.
"""


class ChosenStream(NamedTuple):
    """A stream to launch work on."""

    handle: int  # cudaStream_t
    owner: object  # the object that owns the stream; kept alive while the handle is used


NO_STREAM: Final = ChosenStream(0, None)
_STREAM_OF_EACH_THREAD: Final = 2


def chosen_stream(stream: Stream, ordinal: int) -> ChosenStream:
    """Returns the stream that a user's argument means.

    Raises:
        TypeError: the argument is not a stream.
        ValueError: the argument is the per-thread default stream, which differs between threads.
    """
    if stream is None:
        return _current_stream(ordinal)
    handle = _handle_of(stream)
    if handle == LEGACY_STREAM:
        handle = 0
    if handle == _STREAM_OF_EACH_THREAD:
        raise ValueError(
            "the per-thread default stream is another one in each thread: give a stream"
        )
    return ChosenStream(handle, stream)


def _current_stream(ordinal: int) -> ChosenStream:
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        # Compilers for PyTorch use this private function, too. The public one creates an object,
        # which is slow for small calls. PyTorch never destroys its streams.
        handle = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
        if handle is not None:
            number = handle(ordinal)
            return (
                ChosenStream(number, None)
                if number > _STREAM_OF_EACH_THREAD
                else chosen_stream(number, ordinal)
            )
        return chosen_stream(torch.cuda.current_stream(ordinal), ordinal)
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None and hasattr(cupy, "cuda"):
        return chosen_stream(cupy.cuda.get_current_stream(), ordinal)
    return NO_STREAM


def _handle_of(stream: object) -> int:
    if isinstance(stream, SupportsIndex):
        number = operator.index(stream)
        if number < 0:
            raise ValueError(f"no CUDA stream: {number}")
        return number
    for name in ("cuda_stream", "ptr"):  # PyTorch, CuPy
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    if isinstance(stream, CudaStream):
        return int(stream.__cuda_stream__()[1])
    handle = getattr(stream, "handle", None)  # Numba
    if handle is not None:
        return int(getattr(handle, "value", handle) or 0)
    raise TypeError(f"not a CUDA stream: {type(stream).__name__}")
