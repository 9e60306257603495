"""Products of matrices in files; kernels read and write the files (TOCS 6.1.4, 6.1.5).

>>> import gpufs, numpy as np, tempfile, os
>>> from gpufs import linear
>>> folder = tempfile.mkdtemp()
>>> a, x, y, c = (os.path.join(folder, name) for name in ("a.npy", "x.npy", "y.npy", "c.npy"))
>>> np.save(a, np.eye(3, dtype="f4") * 2)
>>> np.save(x, np.arange(3, dtype="f4"))
>>> with gpufs.mount(device="cpu", cache="16MiB") as mount:
...     done = linear.matvec(mount, a, x, y)
>>> np.load(y).tolist()
[0.0, 2.0, 4.0]
>>> with gpufs.mount(device="cpu", cache="16MiB") as mount:
...     done = linear.matmul(mount, a, a, c)
>>> np.load(c)[0].tolist()
[4.0, 0.0, 0.0]
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpufs import _core
from gpufs._array import FileArray
from gpufs._given_names import told_as_given
from gpufs._mount import Mount
from gpufs._options import AnyPath
from gpufs._output import replacing

if TYPE_CHECKING:
    import numpy.typing as npt

PAGE: Final = "64KiB"
"""A good page size for a mount that reads matrices: the copy engine loads whole runs of pages."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of :func:`matvec`."""

    rows: int
    columns: int
    bytes: int  # of the matrix
    seconds: float  # from the open of the files to the result's last byte


@dataclass(frozen=True, slots=True)
class MatmulResult:
    """The result of :func:`matmul`."""

    rows: int
    depth: int
    columns: int
    bytes: int  # of both matrices
    seconds: float  # from the open of the files to the result's last byte

    @property
    def operations(self) -> int:
        """The number of multiplications and additions."""
        return 2 * self.rows * self.depth * self.columns


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
    """Multiplies a matrix with a vector in float32. Waits for the end.

    Computes ``out[i] = sum(matrix[i, k] * vector[k])``.

    Args:
        mount: a mount that may write.
        matrix: a ``.npy`` file with two dimensions, float32 or bfloat16, in C order; or a raw file,
            with ``dtype`` and ``shape``. It may be larger than the GPU's memory.
        vector: a file of the same format and type, with one number for each column of the matrix.
        out: the path of the float32 product: a ``.npy`` file if it has this suffix, else a raw
            file. An existing file is replaced when the product is complete.
        dtype: the type of raw files.
        shape: rows and columns of a raw matrix.
        alone: whether nothing else in this process uses the GPU during the call. Then the copy
            engine loads the files, which is the fastest way. A call of the CUDA driver by another
            thread could make it wait.

    Raises:
        OSError: a file cannot be opened, read or written, or is shorter than its header says;
            ``out`` is one of the files that are read; the disk is full.
        ValueError: a file is not of its format, or the sizes do not match.
        TypeError: the numbers are of another type.
    """
    start = time.perf_counter()
    with _array(mount, matrix, dtype, shape) as a, _array(mount, vector, dtype, None) as x:
        _check(a, 2, "matrix")
        _check(x, 1, "vector")
        _check_types(a, x)
        rows, columns = a.shape
        if x.shape != (columns,):
            text = f"{x.shape[0]:,} numbers, but {columns:,} columns in {a.file.name}"
            raise ValueError(f"{x.file.name}: {text}")
        with told_as_given(a.file, x.file), _product_file(out, (rows,), a, x) as (part, header):
            _core.matvec(
                mount.core,
                a.file.opened_path,
                a.offset,
                rows,
                columns,
                x.file.opened_path,
                x.offset,
                a.dtype.name == "bfloat16",
                part,
                header,
                alone,
            )
            seconds = time.perf_counter() - start
        return Result(rows, columns, a.nbytes, seconds)


def matmul(
    mount: Mount,
    a: AnyPath,
    b: AnyPath,
    out: AnyPath,
    *,
    dtype: npt.DTypeLike | object = None,
    shape: tuple[int, int, int] | None = None,
    alone: bool = False,
) -> MatmulResult:
    """Multiplies two matrices in float32. Waits for the end.

    Computes ``out[i, j] = sum(a[i, k] * b[k, j])``. On a GPU the matrix units compute it. They
    split float32 numbers into three bfloat16 parts each, and add the products up in float32, which
    is as accurate as products of float32.

    Args:
        mount: a mount that may write.
        a: a ``.npy`` file with two dimensions, float32, in C order; or a raw file, with ``dtype``
            (float32 or bfloat16) and ``shape``. It may be larger than the GPU's memory.
        b: a file of the same format and type, with one row for each column of ``a``. It must fit
            into the GPU's memory beside the cache; for float32, one and a half times its size must
            fit.
        out: the path of the float32 product: a ``.npy`` file if it has this suffix, else a raw
            file. An existing file is replaced when the product is complete. It may be larger than
            the GPU's memory.
        dtype: the type of raw files.
        shape: of raw matrices: the rows of ``a``, the columns of ``a`` (the rows of ``b``), and the
            columns of ``b``.
        alone: as for :func:`matvec`.

    Raises:
        OSError: as for :func:`matvec`; ``ENOMEM``: ``b`` does not fit.
        ValueError: a file is not of its format, or the sizes do not match.
        TypeError: the numbers are of another type; or only one of ``dtype`` and ``shape`` is given.
    """
    start = time.perf_counter()
    if (dtype is None) != (shape is None):
        raise TypeError("raw matrices need both dtype and shape, and .npy files neither")
    a_shape, b_shape = (None, None) if shape is None else (shape[:2], shape[1:])
    with _array(mount, a, dtype, a_shape) as left, _array(mount, b, dtype, b_shape) as right:
        for array in (left, right):
            _check(array, 2, "matrix")
        _check_types(left, right)
        rows, depth = left.shape
        columns = right.shape[1]
        if right.shape[0] != depth:
            text = f"{right.shape[0]:,} rows, but {depth:,} columns in {left.file.name}"
            raise ValueError(f"{right.file.name}: {text}")
        with (
            told_as_given(left.file, right.file),
            _product_file(out, (rows, columns), left, right) as (part, header),
        ):
            _core.matmul(
                mount.core,
                left.file.opened_path,
                left.offset,
                rows,
                depth,
                right.file.opened_path,
                right.offset,
                columns,
                left.dtype.name == "bfloat16",
                part,
                header,
                alone,
            )
            seconds = time.perf_counter() - start
        return MatmulResult(rows, depth, columns, left.nbytes + right.nbytes, seconds)


@contextlib.contextmanager
def _product_file(
    out: AnyPath, shape: tuple[int, ...], *factors: FileArray
) -> Iterator[tuple[bytes, int]]:
    """Yields the temporary path of a product's file and its header's bytes.

    At the end of the block the file gets its own name.
    """
    import numpy as np

    with replacing(os.fsdecode(out), [factor.file.opened_path for factor in factors]) as part:
        header = 0
        if os.fsdecode(out).endswith(".npy"):
            with Path(part).open("wb") as file:
                description = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, description)
                header = file.tell()
        with factors[0].file.mount.losses.raised_of(os.fsencode(part)):
            yield os.fsencode(part), header


def _array(mount: Mount, path: AnyPath, dtype: object, shape: tuple[int, ...] | None) -> FileArray:
    """Opens an array. A raw file whose size differs from the shape's raises ``ValueError``."""
    array = mount.array(path) if dtype is None else mount.array(path, dtype, shape)
    size = array.file.size()
    if shape is not None and size != array.nbytes:
        array.close()
        text = " x ".join(f"{length:,}" for length in shape)
        raise ValueError(
            f"{array.file.name}: {size:,} bytes, but {text} numbers are {array.nbytes:,}"
        )
    return array


def _check(array: FileArray, ndim: int, what: str) -> None:
    if array.ndim != ndim:
        raise ValueError(f"{array.file.name}: {array.ndim} dimensions, but a {what} has {ndim}")
    if array.dtype.name not in ("float32", "bfloat16"):
        raise TypeError(
            f"{array.file.name}: numbers of type {array.dtype}; a {what} may have float32 and "
            "bfloat16"
        )
    if array.size == 0:
        raise ValueError(f"{array.file.name}: a {what} without numbers")
    if ndim == 2 and array.shape[0] > 1 and array.strides[1] != array.itemsize:
        raise ValueError(f"{array.file.name}: in Fortran order, but a {what} must be in C order")
    if array.offset % array.itemsize != 0:
        raise ValueError(
            f"{array.file.name}: numbers that do not begin at a multiple of their size"
        )


def _check_types(first: FileArray, second: FileArray) -> None:
    if second.dtype != first.dtype:
        raise TypeError(
            f"{second.file.name}: numbers of type {second.dtype}, but {first.dtype} in "
            f"{first.file.name}"
        )
