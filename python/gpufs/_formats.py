"""Layouts of arrays in files: ``.npy``, safetensors, and raw items.

This module reads only a file's header and checks every value before it uses it. A damaged or
hostile file gives a ``ValueError`` with one line. Otherwise all items of the array are inside the
file. Items are little-endian, like the processors that gpufs supports. Their offsets may be no
multiples of their size.

The formats follow NumPy Enhancement Proposal 1 (``.npy`` 1.0, 2.0, 3.0) and
https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import json
import math
import operator
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn, SupportsIndex, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    AnyDtype: TypeAlias = np.dtype[Any]

DIMENSIONS_MAX: Final = 64  # as in NumPy
# All arrays are smaller. Byte offsets, and sums of a few of them, fit into 64 bits.
ARRAY_BYTES_LIMIT: Final = 2**48
# NumPy's own limit for files that it does not trust.
NPY_HEADER_BYTES_MAX: Final = 10_000
SAFETENSORS_HEADER_BYTES_MAX: Final = 100_000_000  # the format's own limit

_NPY_MAGIC: Final = b"\x93NUMPY"
_NPY_KEYS: Final = {"descr", "fortran_order", "shape"}
_NPY_DTYPE: Final = re.compile(r"([<>=|]?)([a-zA-Z?])([0-9]{0,4})", re.ASCII)

# Types that ml_dtypes adds to NumPy.
_EXTENSION_NAMES: Final = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
_NUMPY_NAMES: Final = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
_SAFETENSORS_NAMES: Final = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}

_NAMES_SHOWN: Final = 5
_CLOSE_NAMES_SEARCHED: Final = 10_000  # bounds the time to look for a missing name


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """The layout of an array's items in a file.

    Invariant: item ``(i, j, ...)`` begins at byte ``offset + i * strides[0] + j * strides[1] +
    ...``. The items fill the ``nbytes`` bytes from ``offset`` on, without gaps or overlaps.
    """

    dtype: AnyDtype  # a result of parse_dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    offset: int  # bytes from the start of the file to the first item

    @property
    def itemsize(self) -> int:
        """Bytes of an item."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all items, which are contiguous."""
        return math.prod(self.shape) * self.itemsize


def parse_dtype(dtype: object) -> AnyDtype:
    """Returns the NumPy type of items that kernels can read.

    Args:
        dtype: any argument of ``numpy.dtype``; ``"bfloat16"``, ``"float8_e4m3fn"`` or
            ``"float8_e5m2"``; or a PyTorch type. PyTorch is not imported for this.

    Raises:
        TypeError: the type is big-endian, or none of bool, (u)int8 to 64, float16 to 64, complex64
            and 128, bfloat16, float8_e4m3fn and float8_e5m2.
    """
    import numpy as np

    text = str(dtype)
    name = text.removeprefix("torch.")
    if name in _EXTENSION_NAMES:
        return _named(name)
    if dtype is None or (name != text and name not in _NUMPY_NAMES):
        _refuse_dtype(dtype)
    try:
        with warnings.catch_warnings():
            # Spellings of types that NumPy deprecates are refused.
            warnings.simplefilter("error", DeprecationWarning)
            parsed: AnyDtype = np.dtype(  # type: ignore[call-overload]
                name if name != text else dtype
            )
    except (DeprecationWarning, SyntaxError, TypeError, ValueError):
        _refuse_dtype(dtype)
    if not parsed.isnative:
        raise TypeError(f"items must be little-endian, not {text!r}")
    if parsed.name not in _NUMPY_NAMES | _EXTENSION_NAMES:
        _refuse_dtype(dtype)
    return _named(parsed.name)


def plain(
    dtype: object,
    shape: Iterable[SupportsIndex] | SupportsIndex | None,
    offset: SupportsIndex,
    size: int,
) -> ArrayLayout:
    """Returns the layout of a file without a header, in C order.

    Args:
        dtype: as for :func:`parse_dtype`.
        shape: the array's shape; a number means one dimension. ``None``: one dimension with all
            items of the file. One entry may be -1: it becomes the number that uses the whole file,
            without a rest. If no entry is -1, the file may continue after the array.
        offset: bytes from the start of the file to the first item.
        size: bytes of the file.

    Raises:
        ValueError: the file is too short; a dimension is negative; the array is larger than 2**48
            bytes; more than one dimension is -1, or one that cannot be computed; or ``offset`` is
            negative.
        TypeError: ``dtype`` is not supported, or ``shape`` or ``offset`` are not integers.
    """
    item = parse_dtype(dtype)
    first = operator.index(offset)
    if not 0 <= first <= size:
        raise ValueError(
            f"the offset of the first item must be from 0 to the file's size, {size}: {first}"
        )
    wanted: tuple[int, ...]
    if shape is None:
        wanted = (-1,)
    elif isinstance(shape, Iterable):
        wanted = tuple(map(operator.index, shape))
    else:
        wanted = (operator.index(shape),)
    if -1 in wanted:
        place = wanted.index(-1)
        others = wanted[:place] + wanted[place + 1 :]
        if -1 in others:
            raise ValueError(f"only one dimension can be -1: {wanted}")
        slice_bytes = _array_bytes(others, item.itemsize)
        if slice_bytes == 0:
            raise ValueError(f"the file's size does not tell what -1 means in {wanted}")
        count, rest = divmod(size - first, slice_bytes)
        if rest != 0:
            raise ValueError(
                f"{size - first} bytes are no whole number of {slice_bytes}: say how many in the "
                "shape, if the rest is "
                "not part of the array"
            )
        wanted = (*wanted[:place], count, *wanted[place + 1 :])
    return _layout(item, wanted, first, size)


def read_npy(file: BinaryIO, size: int) -> ArrayLayout:
    """Returns the layout of the array in an ``.npy`` file.

    Args:
        file: the file; only its header is read.
        size: bytes of the file.

    Raises:
        ValueError: the file is not an ``.npy`` file of version 1.0, 2.0 or 3.0, or is truncated;
            the header is damaged, or longer than 10,000 bytes; the items are Python objects,
            structures, big-endian, or of a type that kernels cannot read; or the array is larger
            than 2**48 bytes.
        OSError: the file cannot be read.
    """
    file.seek(0)
    start = _read(file, len(_NPY_MAGIC) + 2, size)
    if not start.startswith(_NPY_MAGIC):
        raise ValueError("not an .npy file: it does not begin with \\x93NUMPY")
    version = (start[-2], start[-1])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(
            f"an .npy file of version {version[0]}.{version[1]}; 1.0, 2.0 and 3.0 are known"
        )
    length_bytes = 2 if version == (1, 0) else 4
    length = int.from_bytes(_read(file, length_bytes, size), "little")
    if length > NPY_HEADER_BYTES_MAX:
        raise ValueError(
            f"the .npy header has {length} bytes; at most {NPY_HEADER_BYTES_MAX} are read"
        )
    dtype, fortran_order, shape = _parse_npy_header(
        _read(file, length, size), is_utf8=version == (3, 0)
    )
    layout = _layout(dtype, shape, len(start) + length_bytes + length, size)
    if fortran_order:
        backwards = _strides(shape[::-1], dtype.itemsize)
        return ArrayLayout(dtype, shape, backwards[::-1], layout.offset)
    return layout


def safetensors_names(file: BinaryIO, size: int) -> dict[str, ArrayLayout]:
    """Returns the arrays in a safetensors file, in the order of its header.

    Leaves out arrays of unsupported types; :func:`read_safetensors` raises an error for them.

    Args:
        file: the file; only its header is read.
        size: bytes of the file.

    Raises:
        ValueError: the file is not a safetensors file, or is truncated; the header is damaged, or
            larger than 100 MB; an array is outside of the file, contradicts its shape, or is larger
            than 2**48 bytes.
        OSError: the file cannot be read.
    """
    entries = read_safetensors_entries(file, size)
    return {name: entry for name, entry in entries.items() if isinstance(entry, ArrayLayout)}


def read_safetensors(file: BinaryIO, size: int, name: str) -> ArrayLayout:
    """Returns the layout of an array in a safetensors file.

    Args:
        file: the file; only its header is read.
        size: bytes of the file.
        name: the array's name.

    Raises:
        KeyError: there is no array of this name; the text contains similar names.
        ValueError: as for :func:`safetensors_names`; or the type of the array is not supported.
        OSError: the file cannot be read.
    """
    return find_tensor(read_safetensors_entries(file, size), name)


def find_tensor(entries: Mapping[str, ArrayLayout | str], name: str) -> ArrayLayout:
    """Returns the layout of an array by its name in :func:`read_safetensors_entries`' result.

    Raises:
        KeyError, ValueError: as for :func:`read_safetensors`.
    """
    entry = entries.get(name)
    if entry is None:
        close = difflib.get_close_matches(name, itertools.islice(entries, _CLOSE_NAMES_SEARCHED))
        first = ", ".join(map(repr, itertools.islice(entries, _NAMES_SHOWN)))
        hint = (
            f"; close: {', '.join(map(repr, close))}"
            if close
            else f", which has {len(entries)}: {first}"
        )
        raise KeyError(
            f"no array {name!r} in the "
            f"file{hint}{'' if close or len(entries) <= _NAMES_SHOWN else ' ...'}"
        )
    if isinstance(entry, str):
        raise ValueError(f"the items of {name!r} are {_shown(entry)}, which is not supported")
    return entry


def _refuse_dtype(dtype: object) -> NoReturn:
    raise TypeError(
        f"not a type of items that kernels read: {dtype!r} (a tensor of a safetensors file: "
        "name=...)"
    )


def _named(name: str) -> AnyDtype:
    """Returns the type of a name in ``_EXTENSION_NAMES`` or ``_NUMPY_NAMES``."""
    import numpy as np

    if name in _EXTENSION_NAMES:
        import ml_dtypes

        extension: AnyDtype = np.dtype(getattr(ml_dtypes, name))
        return extension
    return np.dtype(name)


def _array_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """Returns the bytes of an array. Checks that its strides and offsets can be computed."""
    if len(shape) > DIMENSIONS_MAX:
        raise ValueError(
            f"an array of {len(shape)} dimensions; at most {DIMENSIONS_MAX} are supported"
        )
    if any(length < 0 for length in shape):
        raise ValueError(f"a shape with a negative dimension: {_shown(shape)}")
    if any(length >= ARRAY_BYTES_LIMIT for length in shape) or (
        math.prod(max(length, 1) for length in shape) * itemsize >= ARRAY_BYTES_LIMIT
    ):
        raise ValueError(
            f"an array of 2**48 bytes or more: shape {_shown(shape)}, items of {itemsize} bytes"
        )
    return math.prod(shape) * itemsize


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Returns the strides in C order. An empty dimension counts as 1, so no stride is 0."""
    strides = []
    stride = itemsize
    for length in reversed(shape):
        strides.append(stride)
        stride *= max(length, 1)
    return tuple(reversed(strides))


def _layout(dtype: AnyDtype, shape: tuple[int, ...], offset: int, size: int) -> ArrayLayout:
    """Returns the layout of an array in C order. Checks that the file contains all items."""
    end = offset + _array_bytes(shape, dtype.itemsize)
    if end > size:
        raise ValueError(
            f"truncated: {size} bytes, an array of shape {_shown(shape)} asks for {end}"
        )
    return ArrayLayout(dtype, shape, _strides(shape, dtype.itemsize), offset)


def _read(file: BinaryIO, count: int, size: int) -> bytes:
    """Reads exactly ``count`` bytes of a header."""
    if file.tell() + count > size:
        raise ValueError(
            f"truncated: {size} bytes, the header alone asks for {file.tell() + count}"
        )
    pieces = []
    missing = count
    while missing > 0:
        piece = file.read(missing)
        if not piece:
            raise ValueError(f"truncated: it ends in the header, {missing} bytes early")
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _shown(value: object) -> str:
    """Returns a part of a header as text for an error."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply; or an integer of thousands of digits
        return "(too large to show)"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _parse_npy_header(encoded: bytes, *, is_utf8: bool) -> tuple[AnyDtype, bool, tuple[int, ...]]:
    """Returns the type, whether the order is Fortran's, and the shape.

    The header is a Python literal, as ``repr`` of a dict gives.
    """
    text = encoded.decode("utf-8" if is_utf8 else "latin1", errors="replace")
    if "\\" in text:  # no known type contains one, and Python warns of some
        raise ValueError("the .npy header is damaged: it has a backslash")
    try:
        # NumPy in Python 2 wrote long integers as 3L.
        header = ast.literal_eval(re.sub(r"\b([0-9]+)L\b", r"\1", text).strip())
    # MemoryError and RecursionError: the literal is nested too deeply.
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        raise ValueError(f"the .npy header is damaged: {_shown(text.strip())}") from None
    if not isinstance(header, dict) or set(header) != _NPY_KEYS:
        raise ValueError(
            f"the .npy header must have descr, fortran_order and shape: {_shown(header)}"
        )
    fortran_order, shape = header["fortran_order"], header["shape"]
    if type(fortran_order) is not bool:
        raise ValueError(
            f"fortran_order in the .npy header must be True or False: {_shown(fortran_order)}"
        )
    if not isinstance(shape, tuple) or any(type(length) is not int for length in shape):
        raise ValueError(f"shape in the .npy header must be a tuple of integers: {_shown(shape)}")
    return _parse_npy_dtype(header["descr"]), fortran_order, shape


def _parse_npy_dtype(description: object) -> AnyDtype:
    """Returns the type that an ``.npy`` header's ``descr`` names."""
    if isinstance(description, list):
        raise ValueError(
            f"the .npy file has structured items, which are not supported: {_shown(description)}"
        )
    match = _NPY_DTYPE.fullmatch(description) if isinstance(description, str) else None
    if match is None:
        raise ValueError(
            f"descr in the .npy header is no type that arrays here have: {_shown(description)}"
        )
    order, kind, digits = match.groups()
    if kind == "O":
        raise ValueError("the .npy file has Python objects, which are not supported")
    if kind == "V" or (kind, digits) == ("f", "1"):
        raise ValueError(
            f"the .npy file does not say what its items of type {description!r} mean (NumPy writes "
            "so what it does not "
            "know, bfloat16 and float8 among them)"
        )
    bits = 8 * int(digits or 0)
    words = {"b": "bool" if bits == 8 else "", "?": "bool" if bits in (0, 8) else ""}
    name = words.get(
        kind, {"i": "int", "u": "uint", "f": "float", "c": "complex"}.get(kind, "") + str(bits)
    )
    if name not in _NUMPY_NAMES:
        raise ValueError(
            f"the .npy file has items of type {description!r}, which are not supported"
        )
    if order == ">" and bits > 8:
        text = (
            f"the .npy file has big-endian items, {description!r}, which kernels would have to swap"
        )
        raise ValueError(f"{text}: save what numpy.load gives .astype('<{kind}{digits}')")
    return _named(name)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the dict of a JSON object. The format forbids repeated names."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name occurs twice")
    return made


def read_safetensors_entries(file: BinaryIO, size: int) -> dict[str, ArrayLayout | str]:
    """Returns the layout of each array, or the name of its type if that is not supported.

    Arguments and errors are those of :func:`safetensors_names`.
    """
    file.seek(0)
    length = int.from_bytes(_read(file, 8, size), "little")
    if length > SAFETENSORS_HEADER_BYTES_MAX:
        raise ValueError(
            f"not a safetensors file, or a header of {length} bytes; at most "
            f"{SAFETENSORS_HEADER_BYTES_MAX} are allowed"
        )
    text = _read(file, length, size)
    if not text.startswith(b"{"):
        raise ValueError("not a safetensors file: the header does not begin with {")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_distinct)
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"the safetensors header is damaged: {reason}") from None
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise ValueError("__metadata__ in the safetensors header must map text to text")
    dtypes = {key: _named(name) for key, name in _SAFETENSORS_NAMES.items()}
    return {
        name: _safetensors_entry(name, value, dtypes, 8 + length, size)
        for name, value in header.items()
    }


def _safetensors_entry(
    name: str, value: object, dtypes: dict[str, AnyDtype], begin: int, size: int
) -> ArrayLayout | str:
    """Checks an array of a header and returns its entry.

    ``begin`` is the file offset at which the header's offsets start.
    """
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(
            f"array {_shown(name)} in the safetensors header must have dtype, shape and "
            "data_offsets"
        )
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str):
        raise ValueError(f"dtype of {_shown(name)} must be text: {_shown(dtype)}")
    if not isinstance(shape, list) or any(
        type(length) is not int or length < 0 for length in shape
    ):
        raise ValueError(
            f"shape of {_shown(name)} must be a list of integers, none negative: {_shown(shape)}"
        )
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or any(type(offset) is not int for offset in offsets)
    ):
        raise ValueError(f"data_offsets of {_shown(name)} must be two integers: {_shown(offsets)}")
    first, last = offsets
    if not 0 <= first <= last:
        raise ValueError(
            f"data_offsets of {_shown(name)} must not fall or be negative: {_shown(offsets)}"
        )
    if begin + last > size:
        raise ValueError(
            f"truncated: {size} bytes, array {_shown(name)} asks for {_shown(begin + last)}"
        )
    if dtype not in dtypes:
        return dtype
    item = dtypes[dtype]
    expected = _array_bytes(tuple(shape), item.itemsize)
    if last - first != expected:
        raise ValueError(
            f"data_offsets of {_shown(name)} span {last - first} bytes; "
            f"shape {_shown(tuple(shape))} of {dtype} has {expected}"
        )
    return _layout(item, tuple(shape), begin + first, size)
