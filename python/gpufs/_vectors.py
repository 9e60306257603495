"""Files of float32 vectors: ``.npy``, ``.fvecs``, and raw numbers."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from gpufs._array import FileArray
from gpufs._device import on_host
from gpufs._file import File
from gpufs._mount import Mount
from gpufs._options import AnyPath

NUMBER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Vectors:
    """The layout of the vectors in an open file."""

    file: File
    offset: int  # bytes before the first vector
    stride: int  # bytes from a vector to the next
    count: int
    dimensions: int

    @property
    def nbytes(self) -> int:
        """Bytes of all numbers."""
        return self.count * self.dimensions * NUMBER_BYTES

    def place(self) -> tuple[bytes, int, int, int]:
        """Returns the file's description for the extension module."""
        return self.file.opened_path, self.offset, self.stride, self.count


def open_vectors(mount: Mount, path: AnyPath, dimensions: int | None, files: ExitStack) -> Vectors:
    """Opens a file of vectors. Reads only its header, if its format has one.

    Args:
        mount: the mount that opens the file.
        path: the path; its suffix names the format. ``.npy``: two dimensions, float32, in C order.
            ``.fvecs``: each vector follows its number of components, as int32. Other files contain
            only numbers.
        dimensions: components of a vector, if known; raw files do not contain it.
        files: the stack that closes the file.

    Raises:
        OSError: the file cannot be opened or read.
        ValueError: the file is not of its format.
    """
    name = os.fsdecode(path)
    if name.endswith(".npy"):
        found = _in_npy(files.enter_context(mount.array(path)))
    else:
        file = files.enter_context(mount.open(path))
        found = (
            _in_fvecs(file, dimensions) if name.endswith(".fvecs") else _in_raw(file, dimensions)
        )
    if dimensions is not None and found.dimensions != dimensions:
        raise ValueError(
            f"{name}: vectors of {found.dimensions:,} numbers, but {dimensions:,} are looked for"
        )
    return found


def _in_npy(array: FileArray) -> Vectors:
    name = array.file.name
    if array.dtype.name != "float32":
        raise ValueError(f"{name}: numbers of type {array.dtype}, but vectors have float32")
    if array.ndim != 2:
        raise ValueError(
            f"{name}: {array.ndim} dimensions, but vectors are in an array of 2, one in each row"
        )
    count, dimensions = array.shape
    if dimensions == 0:
        raise ValueError(f"{name}: vectors without numbers")
    if array.offset % NUMBER_BYTES != 0:
        raise ValueError(f"{name}: numbers at places that are no multiples of their size")
    if count > 1 and array.strides[1] != array.itemsize:
        raise ValueError(f"{name}: in Fortran order, but vectors must be in C order")
    return Vectors(array.file, array.offset, dimensions * NUMBER_BYTES, count, dimensions)


def _in_fvecs(file: File, dimensions: int | None) -> Vectors:
    """Checks the component counts of the first and the last vector."""
    size = file.size()
    if size == 0 and dimensions is not None:
        return Vectors(file, 0, dimensions * NUMBER_BYTES, 0, dimensions)
    if size < NUMBER_BYTES:
        raise ValueError(f"{file.name}: truncated: {size} bytes")
    found = _number_at(file, 0)
    if found < 1:
        raise ValueError(f"{file.name}: not an .fvecs file: a vector of {found:,} numbers")
    stride = NUMBER_BYTES * (1 + found)
    if size % stride != 0:
        raise ValueError(
            f"{file.name}: truncated: {size:,} bytes, but vectors of {found:,} numbers take "
            f"{stride:,}"
        )
    last = _number_at(file, size - stride)
    if last != found:
        text = f"the first vector has {found:,} numbers, the last {last:,}"
        raise ValueError(f"{file.name}: not an .fvecs file, or vectors of several lengths: {text}")
    return Vectors(file, NUMBER_BYTES, stride, size // stride, found)


def _in_raw(file: File, dimensions: int | None) -> Vectors:
    if dimensions is None:
        raise ValueError(
            f"{file.name}: a raw file does not say how many numbers a vector has: say the "
            "dimensions"
        )
    size, stride = file.size(), dimensions * NUMBER_BYTES
    if size % stride != 0:
        raise ValueError(
            f"{file.name}: truncated: {size:,} bytes, but vectors of {dimensions:,} numbers take "
            f"{stride:,}"
        )
    return Vectors(file, 0, stride, size // stride, dimensions)


def _number_at(file: File, offset: int) -> int:
    number = on_host(file.read(NUMBER_BYTES, offset))
    return int.from_bytes(number.tobytes(), "little", signed=True)
