"""Headers of files with arrays: ``.npy`` and safetensors.

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
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from gpufs._layouts import (
    NUMPY_NAMES,
    ArrayLayout,
    array_bytes,
    c_strides,
    layout_in_c_order,
    named_dtype,
)
from gpufs._visible import shown

if TYPE_CHECKING:
    from gpufs._layouts import AnyDtype

# NumPy's own limit for files that it does not trust.
NPY_HEADER_BYTES_MAX: Final = 10_000
SAFETENSORS_HEADER_BYTES_MAX: Final = 100_000_000  # the format's own limit

_NPY_MAGIC: Final = b"\x93NUMPY"
_NPY_KEYS: Final = {"descr", "fortran_order", "shape"}
_NPY_DTYPE: Final = re.compile(r"([<>=|]?)([a-zA-Z?])([0-9]{0,4})", re.ASCII)

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
    layout = layout_in_c_order(dtype, shape, len(start) + length_bytes + length, size)
    if fortran_order:
        backwards = c_strides(shape[::-1], dtype.itemsize)
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
        raise ValueError(f"the items of {name!r} are {shown(entry)}, which is not supported")
    return entry


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
        raise ValueError(f"the .npy header is damaged: {shown(text.strip())}") from None
    if not isinstance(header, dict) or set(header) != _NPY_KEYS:
        raise ValueError(
            f"the .npy header must have descr, fortran_order and shape: {shown(header)}"
        )
    fortran_order, shape = header["fortran_order"], header["shape"]
    if type(fortran_order) is not bool:
        raise ValueError(
            f"fortran_order in the .npy header must be True or False: {shown(fortran_order)}"
        )
    if not isinstance(shape, tuple) or any(type(length) is not int for length in shape):
        raise ValueError(f"shape in the .npy header must be a tuple of integers: {shown(shape)}")
    return _parse_npy_dtype(header["descr"]), fortran_order, shape


def _parse_npy_dtype(description: object) -> AnyDtype:
    """Returns the type that an ``.npy`` header's ``descr`` names."""
    if isinstance(description, list):
        raise ValueError(
            f"the .npy file has structured items, which are not supported: {shown(description)}"
        )
    match = _NPY_DTYPE.fullmatch(description) if isinstance(description, str) else None
    if match is None:
        raise ValueError(
            f"descr in the .npy header is no type that arrays here have: {shown(description)}"
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
    if name not in NUMPY_NAMES:
        raise ValueError(
            f"the .npy file has items of type {description!r}, which are not supported"
        )
    if order == ">" and bits > 8:
        text = (
            f"the .npy file has big-endian items, {description!r}, which kernels would have to swap"
        )
        raise ValueError(f"{text}: save what numpy.load gives .astype('<{kind}{digits}')")
    return named_dtype(name)


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
    dtypes = {key: named_dtype(name) for key, name in _SAFETENSORS_NAMES.items()}
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
            f"array {shown(name)} in the safetensors header must have dtype, shape and data_offsets"
        )
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str):
        raise ValueError(f"dtype of {shown(name)} must be text: {shown(dtype)}")
    if not isinstance(shape, list) or any(
        type(length) is not int or length < 0 for length in shape
    ):
        raise ValueError(
            f"shape of {shown(name)} must be a list of integers, none negative: {shown(shape)}"
        )
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or any(type(offset) is not int for offset in offsets)
    ):
        raise ValueError(f"data_offsets of {shown(name)} must be two integers: {shown(offsets)}")
    first, last = offsets
    if not 0 <= first <= last:
        raise ValueError(
            f"data_offsets of {shown(name)} must not fall or be negative: {shown(offsets)}"
        )
    if begin + last > size:
        raise ValueError(
            f"truncated: {size} bytes, array {shown(name)} asks for {shown(begin + last)}"
        )
    if dtype not in dtypes:
        return dtype
    item = dtypes[dtype]
    expected = array_bytes(tuple(shape), item.itemsize)
    if last - first != expected:
        raise ValueError(
            f"data_offsets of {shown(name)} span {last - first} bytes; "
            f"shape {shown(tuple(shape))} of {dtype} has {expected}"
        )
    return layout_in_c_order(item, tuple(shape), begin + first, size)
