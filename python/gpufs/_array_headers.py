"""Headers of open files with arrays: a cache of them, and the layouts that they describe."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO, Final, SupportsIndex, TypeAlias, TypeVar, cast

from gpufs import _formats
from gpufs._file import File
from gpufs._layouts import ArrayLayout, parse_dtype, plain

_Made = TypeVar("_Made")

Entries: TypeAlias = Mapping[str, ArrayLayout | str]


class TensorHeaders:
    """A cache of the headers of the most recently used safetensors files. Thread-safe."""

    COUNT: Final = 8

    def __init__(self) -> None:
        self._latch = threading.Lock()  # guards _kept
        # Keys are identities of files. The most recently used one is last.
        self._kept: dict[tuple[int, ...], Entries] = {}

    def of(self, file: File) -> Entries:
        """Returns what the header of an open file says. Parses it once, until the file changes.

        Raises:
            OSError, ValueError: as :func:`gpufs._formats.read_safetensors_entries`, with the file's
                name in the text.
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
) -> ArrayLayout:
    """Returns the layout of an array in a file; :meth:`gpufs.Mount.array` describes the arguments.

    Errors of the content contain the file's name.
    """
    if dtype is not None:
        if name is not None:
            raise TypeError("a name is for safetensors files, a dtype for raw ones")
        kind = parse_dtype(dtype)
        if operator.index(offset) == 0 and file.name.endswith((".npy", ".safetensors")):
            text = (
                "leave the dtype out, which is for raw files, or give the offset of raw items in it"
            )
            raise TypeError(f"{file.name}: the file says its types itself: {text}")
        return _with_name(file, lambda: plain(kind, shape, offset, file.size()))
    if shape is not None or operator.index(offset) != 0:
        raise TypeError("a shape or an offset is for raw files, which need a dtype")
    if name is not None:
        tensor, entries = name, headers.of(file)
        return _with_name(file, lambda: _formats.find_tensor(entries, tensor))
    if file.name.endswith(".safetensors"):
        raise TypeError(f"{file.name}: say which tensor, name=...; mount.tensors() lists them")
    header = cast(BinaryIO, file.reader())
    return _with_name(file, lambda: _formats.read_npy(header, file.size()))


def layouts_in(file: File) -> dict[str | None, ArrayLayout | str]:
    """Returns the layouts of a file's arrays by name. The array of a ``.npy`` file has no name.

    A tensor of an unsupported type in a ``.safetensors`` file has the type's name instead of a
    layout. Files of other formats have no entries. Errors of the content contain the file's name.
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
