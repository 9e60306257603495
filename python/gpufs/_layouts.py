"""The layout of an array's items in a file, and the types of items that kernels read."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, SupportsIndex, TypeAlias

from gpufs._visible import shown

if TYPE_CHECKING:
    import numpy as np

    AnyDtype: TypeAlias = np.dtype[Any]

DIMENSIONS_MAX: Final = 64  # as in NumPy
# All arrays are smaller. Byte offsets, and sums of a few of them, fit into 64 bits.
ARRAY_BYTES_LIMIT: Final = 2**48

# Types that ml_dtypes adds to NumPy.
_EXTENSION_NAMES: Final = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
NUMPY_NAMES: Final = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


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
        return named_dtype(name)
    if dtype is None or (name != text and name not in NUMPY_NAMES):
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
    if parsed.name not in NUMPY_NAMES | _EXTENSION_NAMES:
        _refuse_dtype(dtype)
    return named_dtype(parsed.name)


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
        slice_bytes = array_bytes(others, item.itemsize)
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
    return layout_in_c_order(item, wanted, first, size)


def _refuse_dtype(dtype: object) -> NoReturn:
    raise TypeError(
        f"not a type of items that kernels read: {dtype!r} (a tensor of a safetensors file: "
        "name=...)"
    )


def named_dtype(name: str) -> AnyDtype:
    """Returns the type of a name in ``_EXTENSION_NAMES`` or ``NUMPY_NAMES``."""
    import numpy as np

    if name in _EXTENSION_NAMES:
        import ml_dtypes

        extension: AnyDtype = np.dtype(getattr(ml_dtypes, name))
        return extension
    return np.dtype(name)


def array_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """Returns the bytes of an array. Checks that its strides and offsets can be computed."""
    if len(shape) > DIMENSIONS_MAX:
        raise ValueError(
            f"an array of {len(shape)} dimensions; at most {DIMENSIONS_MAX} are supported"
        )
    if any(length < 0 for length in shape):
        raise ValueError(f"a shape with a negative dimension: {shown(shape)}")
    if any(length >= ARRAY_BYTES_LIMIT for length in shape) or (
        math.prod(max(length, 1) for length in shape) * itemsize >= ARRAY_BYTES_LIMIT
    ):
        raise ValueError(
            f"an array of 2**48 bytes or more: shape {shown(shape)}, items of {itemsize} bytes"
        )
    return math.prod(shape) * itemsize


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Returns the strides in C order. An empty dimension counts as 1, so no stride is 0."""
    strides = []
    stride = itemsize
    for length in reversed(shape):
        strides.append(stride)
        stride *= max(length, 1)
    return tuple(reversed(strides))


def layout_in_c_order(
    dtype: AnyDtype, shape: tuple[int, ...], offset: int, size: int
) -> ArrayLayout:
    """Returns the layout of an array in C order. Checks that the file contains all items."""
    end = offset + array_bytes(shape, dtype.itemsize)
    if end > size:
        raise ValueError(
            f"truncated: {size} bytes, an array of shape {shown(shape)} asks for {end}"
        )
    return ArrayLayout(dtype, shape, c_strides(shape, dtype.itemsize), offset)
