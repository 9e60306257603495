"""Products of matrices in files, computed by kernels that read and write the files themselves (TOCS 6.1.4).

>>> import gpufs, numpy as np, tempfile, os
>>> from gpufs import linear
>>> folder = tempfile.mkdtemp()
>>> for name, array in (("a.npy", np.eye(3, dtype="f4") * 2), ("x.npy", np.arange(3, dtype="f4"))):
...     np.save(os.path.join(folder, name), array)
>>> with gpufs.mount(device="cpu", cache="16MiB") as mount:
...     done = linear.matvec(mount, *(os.path.join(folder, name) for name in ("a.npy", "x.npy", "y.npy")))
>>> np.load(os.path.join(folder, "y.npy")).tolist()
[0.0, 2.0, 4.0]
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpufs import _core
from gpufs._array import FileArray
from gpufs._given_names import told_as_given
from gpufs._mount import AnyPath, Mount
from gpufs._output import replacing

if TYPE_CHECKING:
    import numpy.typing as npt

PAGE: Final = "64KiB"
"""A good page of a mount that matrices are read through: whole runs of them are brought by the copy engine."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was done."""

    rows: int
    columns: int
    bytes: int  # of the matrix
    seconds: float  # from the files' opening to the result's last byte


def matvec(
    mount: Mount,
    matrix: AnyPath,
    vector: AnyPath,
    out: AnyPath,
    *,
    dtype: npt.DTypeLike | object = None,
    shape: tuple[int, int] | None = None,
    alone: bool = False,
) -> Result:
    """Multiplies a matrix with a vector: ``out[i] = sum(matrix[i, k] * vector[k])``, in float32. Waits for the end.

    Args:
        mount: one that may write.
        matrix: two dimensions, float32 or bfloat16, in C order: a ``.npy`` file; or with ``dtype`` and ``shape`` a raw
            one. It may be larger than the GPU's memory.
        vector: as many numbers as the matrix has columns, of the same type, in a file of the same kind.
        out: where the product goes, float32: in a ``.npy`` file if its name ends so, else in a raw one. It is there
            when it is whole; until then what was there before.
        dtype: of raw files.
        shape: of a raw matrix: rows and columns.
        alone: nothing else in this process uses the GPU meanwhile. Then the copy engine brings what is read, which is
            the fastest way; a call of the CUDA driver by another thread could keep it waiting.

    Raises:
        OSError: a file cannot be opened, read or written, or is shorter than it says; the disk is full.
        ValueError: it is not what it should be, or the sizes do not fit.
        TypeError: numbers of another type.
    """
    import numpy as np

    start = time.perf_counter()
    with _array(mount, matrix, dtype, shape) as a, _array(mount, vector, dtype, None) as x:
        _check(a, 2, "matrix")
        _check(x, 1, "vector")
        rows, columns = a.shape
        if x.dtype != a.dtype:
            raise TypeError(f"{x.file.name}: numbers of type {x.dtype}, but {a.dtype} in {a.file.name}")
        if x.shape != (columns,):
            text = f"{x.shape[0]:,} numbers, but {columns:,} columns in {a.file.name}"
            raise ValueError(f"{x.file.name}: {text}")
        with told_as_given(a.file, x.file), replacing(os.fsdecode(out)) as part:
            header = 0
            if os.fsdecode(out).endswith(".npy"):
                with Path(part).open("wb") as file:
                    description = {"descr": "<f4", "fortran_order": False, "shape": (rows,)}
                    np.lib.format.write_array_header_1_0(file, description)
                    header = file.tell()
            _core.matvec(
                mount.core,
                a.file.opened_path,
                a.offset,
                rows,
                columns,
                x.file.opened_path,
                x.offset,
                a.dtype.name == "bfloat16",
                os.fsencode(part),
                header,
                alone,
            )
        return Result(rows, columns, a.nbytes, time.perf_counter() - start)


def _array(mount: Mount, path: AnyPath, dtype: object, shape: tuple[int, int] | None) -> FileArray:
    return mount.array(path) if dtype is None else mount.array(path, dtype, shape)


def _check(array: FileArray, ndim: int, what: str) -> None:
    if array.ndim != ndim:
        raise ValueError(f"{array.file.name}: {array.ndim} dimensions, but a {what} has {ndim}")
    if array.dtype.name not in ("float32", "bfloat16"):
        raise TypeError(f"{array.file.name}: numbers of type {array.dtype}; a {what} may have float32 and bfloat16")
    if array.size == 0:
        raise ValueError(f"{array.file.name}: a {what} without numbers")
    if ndim == 2 and array.shape[0] > 1 and array.strides[1] != array.itemsize:
        raise ValueError(f"{array.file.name}: in Fortran order, but a {what} must be in C order")
