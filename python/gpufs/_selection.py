"""NumPy's index expressions as reads: which bytes of an array's file form the result.

:func:`select` and :func:`take` use shapes, strides and indices, never items. A :class:`Selection`
is small, except for index arrays of the caller. It is made for a kernel: nested loops with fixed
steps, a list of offsets, more loops, and one run of bytes for each combination.

The rules are NumPy's (https://numpy.org/doc/stable/user/basics.indexing.html), with two
differences. A bool that is not an array is refused. Unsigned indices of 2**63 and more, which NumPy
takes as negative, are out of bounds.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, SupportsIndex, TypeAlias, cast

from gpufs._layouts import DIMENSIONS_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gpufs._device import ForeignArray

    Array: TypeAlias = NDArray[Any]  # of integers or bools
    Index: TypeAlias = "int | slice | EllipsisType | Array | _OnDevice | None"

_ALL: Final = slice(None)

_WRONG_KIND: Final = (
    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean "
    "arrays are valid "
    "indices"
)


class Steps(NamedTuple):
    """A loop over a dimension with a fixed step."""

    repeats: int
    stride: int  # bytes; may be 0 or negative


class HostList(NamedTuple):
    """Offsets from index arrays of the host, already checked."""

    offsets: NDArray[np.int64]  # contiguous, one dimension: bytes from the selection's offset


class DeviceList(NamedTuple):
    """Offsets from an integer array in GPU memory, which the host does not read.

    Item i, in C order, means ``items[i] * stride`` bytes, or ``(items[i] + length) * stride`` if it
    is negative. The kernel checks that it is at least ``-length`` and less than ``length``.
    """

    items: ForeignArray
    owner: object  # keeps the memory alive until the kernel is launched
    length: int  # of the indexed dimension; at least 1
    stride: int  # bytes


class Selection(NamedTuple):
    """The bytes of an array that form a result.

    The result is C-contiguous. It consists of runs in the order of nested loops: over ``before``
    (outermost first), over ``list``, over ``behind``. A run is ``run_bytes`` bytes at ``offset``
    plus the loops' steps.

    Invariant: ``run_bytes`` times the product of all counts is the size of the result. If that is
    0, there is one dimension of count 0 and no list, and ``offset`` is 0. All other counts are at
    least 2, but that of a :class:`DeviceList` may be 1. Without a list, all dimensions are in
    ``before``.
    """

    shape: tuple[int, ...]  # of the result
    offset: int  # bytes from the array's first item to the loops' start
    before: tuple[Steps, ...]
    list: HostList | DeviceList | None
    behind: tuple[Steps, ...]
    run_bytes: int  # contiguous bytes in the file and in the result: one or several items


def select(
    shape: Sequence[int],
    strides: Sequence[int],
    itemsize: int,
    key: object,
    *,
    on_device: Callable[[object], ForeignArray | None],
) -> Selection:
    """Returns the selection that ``array[key]`` reads.

    Args:
        shape: the array's shape.
        strides: bytes, one for each dimension. All offsets of the array must be less than 2**62.
        itemsize: bytes of an item.
        key: integers, slices, ``...``, ``None``, arrays (or lists) of integers or bools, or a tuple
            of them. One array of integers may be on the device, if no other index is an array.
        on_device: returns the description of an index array in GPU memory, or None. The caller
            checks that its items are integers.

    Raises:
        IndexError: an index is out of bounds (not checked on the device), or of the wrong type or
            shape; there are too many indices; arrays cannot be broadcast together; an array on the
            device is not the only array; the result has more than 64 dimensions.
        ValueError: the step of a slice is 0, or the rows of a list differ in length.
        TypeError: a slice of something other than integers.
    """
    import numpy as np

    indices = [_classify(index, on_device) for index in (key if isinstance(key, tuple) else (key,))]
    arrays = [index for index in indices if isinstance(index, (np.ndarray, _OnDevice))]
    if len(arrays) > 1 and any(isinstance(array, _OnDevice) for array in arrays):
        raise IndexError("an index array on the device cannot be combined with other index arrays")

    offset = 0
    # Dimensions from slices, None and dimensions without an index, in the result's order.
    dims: list[Steps] = []
    lists: list[tuple[int, Array | _OnDevice]] = []  # each with the dimension that it indexes
    place: int | None = None  # number of `dims` before the first integer or array
    separated = False  # whether another index is between two integers or arrays
    follows = False  # whether the previous index is an integer or array
    axis = 0
    for index in _without_ellipsis(indices, len(shape)):
        if index is _ALL:
            dims.append(Steps(shape[axis], strides[axis]))
            follows = False
            axis += 1
            continue
        advanced = isinstance(index, (int, np.ndarray, _OnDevice))
        if advanced:
            separated = separated or (place is not None and not follows)
            place = len(dims) if place is None else place
        follows = advanced
        if index is None:
            dims.append(Steps(1, 0))
        elif isinstance(index, slice):
            steps = range(*index.indices(shape[axis]))
            dims.append(Steps(len(steps), steps.step * strides[axis]))
            offset += steps.start * strides[axis] if steps else 0
        elif isinstance(index, int):
            offset += _in_bounds(index, axis, shape[axis]) * strides[axis]
        elif isinstance(index, _OnDevice):
            lists.append((axis, index))
        elif isinstance(index, np.ndarray):
            parts = _nonzero(index, axis, shape) if index.dtype.kind == "b" else [index]
            lists.extend((axis + number, part) for number, part in enumerate(parts))
        axis += _consumed(index)

    # If there are arrays, integers count as arrays. If they are not all adjacent, their dimensions
    # come first in the result.
    place = 0 if separated or place is None or not lists else place
    found, list_shape = _list(lists, shape, strides)
    repeats = [step.repeats for step in dims]
    result = (*repeats[:place], *list_shape, *repeats[place:])
    if len(result) > DIMENSIONS_MAX:
        raise IndexError(
            f"number of dimensions must be within [0, {DIMENSIONS_MAX}], indexing result has "
            f"{len(result)}"
        )
    if math.prod(result) == 0:
        return Selection(result, 0, (Steps(0, 0),), None, (), itemsize)
    if isinstance(found, HostList) and found.offsets.size == 1:
        offset += int(found.offsets[0])
        found = None
    if found is None:
        before, run_bytes = _merged(dims, itemsize)
        return Selection(result, offset, before, None, (), run_bytes)
    before, _ = _merged(dims[:place], 0)
    behind, run_bytes = _merged(dims[place:], itemsize)
    return Selection(result, offset, before, found, behind, run_bytes)


def take(
    shape: Sequence[int],
    strides: Sequence[int],
    itemsize: int,
    indices: object,
    axis: int,
    *,
    on_device: Callable[[object], ForeignArray | None],
) -> Selection:
    """Returns the selection that ``numpy.take(array, indices, axis)`` reads.

    Bools count as the integers 0 and 1, as in NumPy.

    Args:
        shape: the array's shape. An array without dimensions counts as an array of one item.
        strides: as for :func:`select`.
        itemsize: bytes of an item.
        indices: an integer, an array or a list of integers, or an array on the device.
        axis: the dimension; a negative number counts from the end.
        on_device: as for :func:`select`.

    Raises:
        IndexError: an index is out of bounds (unlike NumPy, also if the result is empty), or there
            is no such axis (NumPy's ``AxisError``).
        TypeError: the indices or the axis are not integers.
    """
    import numpy as np

    if not shape:
        shape, strides = (1,), (itemsize,)
    number = operator.index(axis)
    if not -len(shape) <= number < len(shape):
        raise np.exceptions.AxisError(number, len(shape))
    if on_device(indices) is None:
        array = np.asarray(indices)
        if array.dtype.kind == "b" or (array.size == 0 and not isinstance(indices, np.ndarray)):
            array = array.astype(np.int64)
        if array.dtype.kind not in "iu":
            raise TypeError(f"indices must be integers, not {array.dtype}")
        indices = array
    key = (*(slice(None),) * (number % len(shape)), indices)
    return select(shape, strides, itemsize, key, on_device=on_device)


class _OnDevice(NamedTuple):
    """An index array in GPU memory."""

    array: ForeignArray
    owner: object  # keeps the memory alive


def _classify(index: object, on_device: Callable[[object], ForeignArray | None]) -> Index:
    """Returns an index as NumPy sees it: arrays are of integers or bools and have dimensions."""
    import numpy as np

    if index is None or type(index) is int or isinstance(index, (EllipsisType, slice)):
        return cast("Index", index)
    if isinstance(index, (bool, np.bool_)):
        raise IndexError("a bool that is no array is not supported as an index")
    found = None if isinstance(index, (np.ndarray, list)) else on_device(index)
    if found is not None:
        return _OnDevice(found, index)
    if not hasattr(index, "shape") and isinstance(index, SupportsIndex):
        return operator.index(index)
    array = np.asarray(index)
    if array.size == 0 and not isinstance(index, np.ndarray):
        return array.astype(np.int64)  # an empty list has no type of items
    if array.dtype.kind == "b" and array.ndim > 0:
        return array
    if array.dtype.kind in "iu":
        return array if array.ndim > 0 else int(array)
    raise IndexError(
        "arrays used as indices must be of integer (or boolean) type"
        if isinstance(index, np.ndarray)
        else _WRONG_KIND
    )


def _consumed(index: Index) -> int:
    """Returns the number of the array's dimensions that an index consumes."""
    if index is None or index is Ellipsis:
        return 0
    if isinstance(index, (int, slice, _OnDevice)):
        return 1
    return index.ndim if index.dtype.kind == "b" else 1


def _without_ellipsis(indices: list[Index], dimensions: int) -> list[Index]:
    """Returns the indices, with :data:`_ALL` for each dimension that has none.

    An ellipsis stays in the list, before the dimensions that it stands for: integers and arrays on
    its two sides are not adjacent, even if it stands for no dimension.
    """
    consumed = 0
    place = len(indices)
    for number, index in enumerate(indices):
        if index is not Ellipsis:
            consumed += _consumed(index)
        elif place == len(indices):
            place = number
        else:
            raise IndexError("an index can only have a single ellipsis ('...')")
    if consumed > dimensions:
        raise IndexError(
            f"too many indices for array: array is {dimensions}-dimensional, but {consumed} were "
            "indexed"
        )
    return [*indices[:place], Ellipsis, *(_ALL,) * (dimensions - consumed), *indices[place + 1 :]]


def _in_bounds(index: int, axis: int, length: int) -> int:
    """Returns an index as a non-negative number."""
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {length}")
    return index + length if index < 0 else index


def _nonzero(mask: Array, axis: int, shape: Sequence[int]) -> Sequence[Array]:
    """Returns the positions that a mask selects: one vector for each dimension from ``axis`` on."""
    for number, length in enumerate(mask.shape):
        # As in NumPy, an empty mask selects nothing of any length.
        if length not in (
            0,
            shape[axis + number],
        ):
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis + number}; size of "
                "axis is "
                f"{shape[axis + number]} but size of corresponding boolean axis is {length}"
            )
    return mask.nonzero()


def _list(
    lists: list[tuple[int, Array | _OnDevice]], shape: Sequence[int], strides: Sequence[int]
) -> tuple[HostList | DeviceList | None, tuple[int, ...]]:
    """Returns the list for the index arrays, and its shape in the result."""
    import numpy as np

    if not lists:
        return None, ()
    axis, array = lists[0]
    if isinstance(array, _OnDevice):
        if math.prod(array.array.shape) > 0 and shape[axis] == 0:
            raise IndexError(f"no index is within bounds for axis {axis} with size 0")
        return DeviceList(array.array, array.owner, shape[axis], strides[axis]), array.array.shape
    arrays = [(axis, cast("Array", array)) for axis, array in lists]
    try:
        list_shape = np.broadcast_shapes(*(array.shape for _, array in arrays))
    except ValueError:
        shapes = " ".join(str(array.shape) for _, array in arrays)
        raise IndexError(
            f"shape mismatch: indexing arrays could not be broadcast together with shapes {shapes}"
        ) from None
    if math.prod(list_shape) == 0:  # as in NumPy: no index is used, so none is out of bounds
        return HostList(np.zeros(0, np.int64)), list_shape
    total = functools.reduce(
        np.add, (_offsets(array, axis, shape[axis], strides[axis]) for axis, array in arrays)
    )
    return HostList(np.ascontiguousarray(total.reshape(-1))), list_shape


def _offsets(indices: Array, axis: int, length: int, stride: int) -> NDArray[np.int64]:
    """Returns the byte offsets of a dimension's indices."""
    import numpy as np

    if indices.min() < -length or indices.max() >= length:
        outside = (indices < -length) | (indices >= length)
        _in_bounds(int(indices[outside][0]), axis, length)
    offsets = indices.astype(np.int64)
    offsets[offsets < 0] += length
    offsets *= stride
    return offsets


def _merged(dims: Sequence[Steps], run_bytes: int) -> tuple[tuple[Steps, ...], int]:
    """Merges loops. Returns as few dimensions as possible, and the bytes of a run.

    Args:
        dims: loops, outermost first; no count is 0.
        run_bytes: contiguous bytes at each step. 0: the runs are independent of these loops' steps.
    """
    merged: list[Steps] = []  # innermost first
    for steps in reversed(dims):
        if steps.repeats == 1:
            continue
        if not merged and run_bytes > 0 and steps.stride == run_bytes:
            run_bytes *= steps.repeats
        elif merged and steps.stride == merged[-1].stride * merged[-1].repeats:
            merged[-1] = Steps(steps.repeats * merged[-1].repeats, merged[-1].stride)
        else:
            merged.append(steps)
    return tuple(reversed(merged)), run_bytes
