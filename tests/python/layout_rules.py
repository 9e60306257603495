"""What the tests of array formats share."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from gpufs import _layouts
from gpufs._layouts import ArrayLayout

Array = np.ndarray[Any, np.dtype[Any]]


class OnlyHeader(io.BytesIO):
    """A file that must not be read past a given byte, and returns at most 7 bytes at a time."""

    def __init__(self, content: bytes, header_bytes: int | None = None) -> None:
        super().__init__(content)
        self.header_bytes = len(content) if header_bytes is None else header_bytes

    def read(self, count: int | None = -1, /) -> bytes:
        assert count is not None
        assert count >= 0
        assert self.tell() + count <= self.header_bytes
        return super().read(min(count, 7))


def items(content: bytes, layout: ArrayLayout) -> Array:
    return np.ndarray(layout.shape, layout.dtype, content, layout.offset, layout.strides)


def check_inside(layout: ArrayLayout, size: int) -> None:
    assert layout.offset >= 0
    assert layout.offset + layout.nbytes <= size
    assert layout.itemsize == layout.dtype.itemsize
    assert len(layout.shape) == len(layout.strides) <= _layouts.DIMENSIONS_MAX
    assert all(length >= 0 for length in layout.shape)
    last = sum(
        (length - 1) * stride for length, stride in zip(layout.shape, layout.strides, strict=True)
    )
    assert layout.nbytes == 0 or last + layout.itemsize == layout.nbytes
