"""Arrays in files, indexed as in NumPy: the class of :meth:`gpufs.Mount.array`."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex

from gpufs import _selection
from gpufs._device import Array, foreign_array
from gpufs._file import File
from gpufs._layouts import ArrayLayout, c_strides
from gpufs._shapes import Shaped
from gpufs._streams import Stream
from gpufs._transfers import Keep

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class FileArray(Shaped):
    """An array in a file. Its items are read when it is indexed.

    Indexing follows NumPy: integers, slices with steps, ``...``, ``None``, arrays of integers and
    of booleans. An array of integers may be on the device; the host does not read it. The result is
    a new array on the device, or NumPy's on the CPU device. Errors and streams are as for
    :class:`gpufs.File`.

    The array is a context manager, which closes the file.
    """

    __slots__ = ("_file", "_layout")

    def __init__(self, file: File, layout: ArrayLayout) -> None:
        """See :meth:`gpufs.Mount.array`."""
        self._file = file
        self._layout = layout

    @property
    def file(self) -> File:
        """The file that contains the array."""
        return self._file

    @property
    def offset(self) -> int:
        """Bytes of the file before the first item."""
        return self._layout.offset

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an item; bfloat16 and fp8 types are those of ``ml_dtypes``."""
        return self._layout.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of items along each dimension."""
        return self._layout.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from an item to the next, along each dimension."""
        return self._layout.strides

    def __repr__(self) -> str:
        """Returns a text with the shape, the type and the file."""
        return f"<gpufs.FileArray {self.shape} of {self.dtype} in {self._file.name!r}>"

    def __reduce__(self) -> tuple[type[FileArray], tuple[File, ArrayLayout]]:
        """Pickles the file, which unpickling opens anew; see :class:`gpufs.File`."""
        return FileArray, (self._file, self._layout)

    def __enter__(self) -> Self:
        """Returns the array."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the file."""
        self.close()

    def close(self) -> None:
        """Closes the file; see :meth:`gpufs.File.close`."""
        self._file.close()

    def __getitem__(self, key: object) -> Array:
        """Reads the items that NumPy's indexing with ``key`` selects.

        Raises:
            IndexError: as NumPy. For an index on the device it comes later, as errors of reads do.
            OSError: now or later, as :class:`gpufs.File` says.
        """
        return self.read(key)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Reads all items into host memory, for NumPy's functions, with one read. Waits."""
        if copy is False:
            raise ValueError("an array in a file cannot be had by NumPy without a copy")
        import numpy as np

        return np.asarray(self[...], dtype)

    def __iter__(self) -> Iterator[Array]:
        """Reads the items of the first dimension one by one; :meth:`batches` is faster."""
        return (self[i] for i in range(len(self)))

    def read(
        self,
        key: object = ...,
        *,
        out: object | None = None,
        stream: Stream = None,
        keep: Keep = "auto",
    ) -> Array:
        """Reads the items that indexing with ``key`` selects.

        On a GPU it returns before the read is done, on the CPU device after it.

        Args:
            key: an index, as in ``array[key]``.
            out: a writable C-contiguous array on the device, of the result's size and of the
                array's type or ``uint8``. ``None``: a new array.
            stream: the CUDA stream. ``None``: the current one.
            keep: whether the loaded pages stay in the cache; see :meth:`gpufs.File.gather`.

        Returns:
            A new array of the selection's shape, or ``out``.

        Raises:
            IndexError: as for indexing.
            TypeError: ``out`` has another type or byte order than the array, and not ``uint8``.
            ValueError: ``out`` has another size or shape than the result.
            OSError: now or later, as :class:`gpufs.File` says.
        """
        return self.read_selection(self.selection(key), out=out, stream=stream, keep=keep)

    def take(
        self,
        indices: object,
        axis: int = 0,
        *,
        out: object | None = None,
        stream: Stream = None,
        keep: Keep = "auto",
    ) -> Array:
        """Reads the items ``indices`` of an axis, as ``numpy.take``; see :meth:`read`."""
        return self.read_selection(self.taking(indices, axis), out=out, stream=stream, keep=keep)

    def submit(
        self,
        key: object = ...,
        *,
        out: object | None = None,
        stream: Stream = None,
        keep: Keep = "auto",
    ) -> Future[Array]:
        """Submits a :meth:`read`; returns a future. See :meth:`gpufs.File.submit_read`.

        Raises:
            IndexError: as NumPy, for an index on the host.
            ValueError: the file is closed. The future has all other errors.
        """
        layout = self._layout
        selection = self.selection(key)
        return self._file.submit_selection(
            selection, layout.offset, layout.dtype, out=out, stream=stream, keep=keep
        )

    # ---- For gpufs.torch, which needs the selection before it allocates memory

    def selection(self, key: object) -> _selection.Selection:
        """Returns the selection that indexing with ``key`` reads."""
        layout = self._layout
        return _selection.select(
            layout.shape, layout.strides, layout.itemsize, key, on_device=foreign_array
        )

    def taking(self, indices: object, axis: int) -> _selection.Selection:
        """Returns the selection that :meth:`take` reads."""
        layout = self._layout
        return _selection.take(
            layout.shape, layout.strides, layout.itemsize, indices, axis, on_device=foreign_array
        )

    def read_selection(
        self,
        selection: _selection.Selection,
        *,
        out: object | None,
        stream: Stream = None,
        keep: Keep = "auto",
    ) -> Array:
        """Reads a selection; else as :meth:`read`."""
        layout = self._layout
        return self._file.read_selection(
            selection, layout.offset, layout.dtype, out=out, stream=stream, keep=keep
        )

    # ----

    def batches(
        self, count: SupportsIndex, *, drop_last: bool = False, stream: Stream = None
    ) -> Iterator[Array]:
        """Yields batches of ``count`` items of the first dimension.

        The last batch may be shorter; ``drop_last`` leaves a shorter one out.

        Raises:
            ValueError: ``count`` is less than 1.
        """
        step = operator.index(count)
        if step < 1:
            raise ValueError(f"batches of {step} items")
        end = len(self) - step + 1 if drop_last else len(self)
        return (
            self.read(slice(first, first + step), stream=stream) for first in range(0, end, step)
        )


@dataclass(frozen=True, slots=True)
class ArrayEntry:
    """Describes an array in a file."""

    name: str | None  # None: the file contains only this array
    # NumPy's name of the type. For an unsupported type the file's name, and all other fields are
    # None.
    dtype: str
    shape: tuple[int, ...] | None
    # The dimension whose items are contiguous: the last ("C") or the first ("F").
    order: Literal["C", "F"] | None
    offset: int | None  # bytes of the file before the first item
    nbytes: int | None


def entry_of(name: str | None, layout: ArrayLayout | str) -> ArrayEntry:
    """Returns the description of an array from its header."""
    if isinstance(layout, str):
        return ArrayEntry(name, layout, None, None, None, None)
    in_c_order = layout.strides == c_strides(layout.shape, layout.itemsize)
    return ArrayEntry(
        name,
        layout.dtype.name,
        layout.shape,
        "C" if in_c_order else "F",
        layout.offset,
        layout.nbytes,
    )
