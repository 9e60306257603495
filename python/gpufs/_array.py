"""Arrays in files, indexed as NumPy's and read by kernels: the class behind :meth:`gpufs.Mount.array`."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Final,
    Literal,
    Self,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    cast,
)

from gpufs import _formats, _selection
from gpufs._device import Array, Stream, foreign_array
from gpufs._file import File, Keep

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_Made = TypeVar("_Made")


class FileArray:
    """An array that lies in a file. Nothing of it is read before it is indexed.

    Indexing is NumPy's: integers, slices with steps, ``...``, ``None``, arrays of integers and of
    booleans. An array of integers may be on the device, where the host never looks at it. What it
    gives is a new array on the device, or NumPy's on the CPU device; errors and streams are as for
    :class:`gpufs.File`.

    A context manager; it closes its file.
    """

    __slots__ = ("_file", "_layout")

    def __init__(self, file: File, layout: _formats.ArrayLayout) -> None:
        """See :meth:`gpufs.Mount.array`."""
        self._file = file
        self._layout = layout

    @property
    def file(self) -> File:
        """The file it lies in."""
        return self._file

    @property
    def offset(self) -> int:
        """Bytes of the file in front of the first item."""
        return self._layout.offset

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an item; bfloat16 and fp8 are those of ``ml_dtypes``."""
        return self._layout.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Items along each dimension."""
        return self._layout.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from an item to the next, along each dimension."""
        return self._layout.strides

    @property
    def ndim(self) -> int:
        """How many dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many items."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an item."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return self.size * self.itemsize

    def __len__(self) -> int:
        """Items along the first dimension."""
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        """Says its shape, type and file."""
        return f"<gpufs.FileArray {self.shape} of {self.dtype} in {self._file.name!r}>"

    def __reduce__(self) -> tuple[type[FileArray], tuple[File, _formats.ArrayLayout]]:
        """Pickled, it is its file, which is opened anew; see :class:`gpufs.File`."""
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
        """Reads what NumPy's indexing with ``key`` gives.

        Raises:
            IndexError: as NumPy; for an index on the device later, as errors of reads are.
            OSError: now or later, as :class:`gpufs.File` says.
        """
        return self.read(key)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """All of it in host memory, for NumPy's functions, by one read."""
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
        """As indexing, into ``out``, on ``stream``; :meth:`gpufs.File.gather` says what ``keep`` is.

        Raises:
            TypeError: ``out`` is of another type or byte order than the array, and not of
            ``uint8``. ValueError: ``out`` has not the result's size, or another shape.
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
        """Reads the items ``indices`` of dimension ``axis``, as ``numpy.take``."""
        return self.read_selection(self.taking(indices, axis), out=out, stream=stream, keep=keep)

    def submit(
        self,
        key: object = ...,
        *,
        out: object | None = None,
        stream: Stream = None,
        keep: Keep = "auto",
    ) -> Future[Array]:
        """Begins to read as :meth:`read`; returns a future of what that returns, as :meth:`gpufs.File.submit_read`.

        Raises:
            IndexError: as NumPy, for an index on the host.
            ValueError: the file is closed; all else is the future's.
        """
        layout = self._layout
        selection = self.selection(key)
        return self._file.submit_selection(
            selection, layout.offset, layout.dtype, out=out, stream=stream, keep=keep
        )

    # ---- For gpufs.torch: what is read, before there is memory for it.

    def selection(self, key: object) -> _selection.Selection:
        """What indexing with ``key`` reads."""
        layout = self._layout
        return _selection.select(
            layout.shape, layout.strides, layout.itemsize, key, on_device=foreign_array
        )

    def taking(self, indices: object, axis: int) -> _selection.Selection:
        """What :meth:`take` reads."""
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
        """Reads it."""
        layout = self._layout
        return self._file.read_selection(
            selection, layout.offset, layout.dtype, out=out, stream=stream, keep=keep
        )

    # ----

    def batches(
        self, count: SupportsIndex, *, drop_last: bool = False, stream: Stream = None
    ) -> Iterator[Array]:
        """Reads ``count`` items of the first dimension at a time, and what is left at last, unless ``drop_last``."""
        step = operator.index(count)
        if step < 1:
            raise ValueError(f"batches of {step} items")
        end = len(self) - step + 1 if drop_last else len(self)
        return (
            self.read(slice(first, first + step), stream=stream) for first in range(0, end, step)
        )


@dataclass(frozen=True, slots=True)
class ArrayEntry:
    """An array in a file."""

    name: str | None  # None: the file is this array
    # NumPy's name of it; the file's, if arrays here do not have it: then nothing else is known
    dtype: str
    shape: tuple[int, ...] | None
    order: Literal["C", "F"] | None  # which of the dimensions lies together: the last, or the first
    offset: int | None  # bytes of the file in front of the first item
    nbytes: int | None


def entry_of(name: str | None, layout: _formats.ArrayLayout | str) -> ArrayEntry:
    """Describes what a header says."""
    if isinstance(layout, str):
        return ArrayEntry(name, layout, None, None, None, None)
    in_c_order = all(
        stride == layout.itemsize * _items(layout.shape[axis + 1 :])
        for axis, stride in enumerate(layout.strides)
    )
    return ArrayEntry(
        name,
        layout.dtype.name,
        layout.shape,
        "C" if in_c_order else "F",
        layout.offset,
        layout.nbytes,
    )


def _items(shape: tuple[int, ...]) -> int:
    """How many items, where an empty dimension counts as one: strides are so."""
    count = 1
    for length in shape:
        count *= max(length, 1)
    return count


Entries: TypeAlias = Mapping[str, _formats.ArrayLayout | str]


class TensorHeaders:
    """Headers of safetensors files, those that were asked for last. Thread-safe."""

    COUNT: Final = 8

    def __init__(self) -> None:
        self._latch = threading.Lock()  # guards _kept
        self._kept: dict[
            tuple[int, ...], Entries
        ] = {}  # by the files' identity; who was asked for last is last

    def of(self, file: File) -> Entries:
        """What the header of an open file says; it is parsed once, as long as the file does not change.

        Raises:
            OSError, ValueError: as :func:`gpufs._formats.safetensors_names`, with the file's name.
        """
        identity = file.identity()
        with self._latch:
            entries = None if identity is None else self._kept.pop(identity, None)
            if entries is not None and identity is not None:
                self._kept[identity] = entries
                return entries
        header = cast(BinaryIO, file.reader())
        entries = _with_name(file, lambda: _formats.read_safetensors_entries(header, file.size()))
        if identity is not None:
            with self._latch:
                self._kept[identity] = entries
                while len(self._kept) > self.COUNT:
                    del self._kept[next(iter(self._kept))]
        return entries


def layout_of(
    file: File,
    headers: TensorHeaders,
    dtype: object,
    shape: SupportsIndex | Iterable[SupportsIndex] | None,
    offset: SupportsIndex,
    name: str | None,
) -> _formats.ArrayLayout:
    """How an array lies in a file; :meth:`gpufs.Mount.array` says what the arguments are.

    Errors of the content have the file's name.
    """
    if dtype is not None:
        if name is not None:
            raise TypeError("a name is for safetensors files, a dtype for raw ones")
        kind = _formats.parse_dtype(dtype)
        if operator.index(offset) == 0 and file.name.endswith((".npy", ".safetensors")):
            text = (
                "leave the dtype out, which is for raw files, or give the offset of raw items in it"
            )
            raise TypeError(f"{file.name}: the file says its types itself: {text}")
        return _with_name(file, lambda: _formats.plain(kind, shape, offset, file.size()))
    if shape is not None or operator.index(offset) != 0:
        raise TypeError("a shape or an offset is for raw files, which need a dtype")
    if name is not None:
        tensor, entries = name, headers.of(file)
        return _with_name(file, lambda: _formats.find_tensor(entries, tensor))
    if file.name.endswith(".safetensors"):
        raise TypeError(f"{file.name}: say which tensor, name=...; mount.tensors() lists them")
    header = cast(BinaryIO, file.reader())
    return _with_name(file, lambda: _formats.read_npy(header, file.size()))


def layouts_in(file: File) -> dict[str | None, _formats.ArrayLayout | str]:
    """How the arrays lie in a file that says so: the one of a ``.npy`` file has the name ``None``.

    Of a ``.safetensors`` file all are told; those of a type that arrays here do not have by that
    type's name. Other files have none. Errors of the content have the file's name.
    """
    header = cast(BinaryIO, file.reader())
    if file.name.endswith(".npy"):
        return {None: _with_name(file, lambda: _formats.read_npy(header, file.size()))}
    if file.name.endswith(".safetensors"):
        entries = _with_name(file, lambda: _formats.read_safetensors_entries(header, file.size()))
        return dict(entries.items())
    return {}


def _with_name(file: File, read: Callable[[], _Made]) -> _Made:
    try:
        return read()
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from None
    except KeyError as error:
        raise KeyError(f"{file.name}: {error.args[0]}") from None
