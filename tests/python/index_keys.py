"""Strategies of Hypothesis for shapes and index expressions, which several test files use."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

Array = np.ndarray[Any, np.dtype[Any]]


def lengths(largest: int) -> st.SearchStrategy[int]:
    """Lengths of dimensions; 0 now and then, since nothing can be seen of an empty array."""
    return st.integers(0, 12).flatmap(
        lambda number: st.just(0) if number == 0 else st.integers(1, largest)
    )


def integers(length: int) -> st.SearchStrategy[int]:
    """Indices of a dimension; now and then one that is out of bounds."""
    within = st.integers(-length, length - 1) if length else st.integers(-1, 0)
    return st.integers(0, 24).flatmap(
        lambda number: st.integers(-length - 1, length) if number == 0 else within
    )


@st.composite
def index_arrays(draw: st.DrawFn, length: int, shape: tuple[int, ...]) -> Array:
    dtype = draw(st.sampled_from(["i1", "<i8", ">i4"]))
    # Some dimensions of length 1, or none, for broadcasting.
    dropped = draw(st.integers(0, len(shape) - 1)) if len(shape) > 1 else 0
    own = tuple(1 if draw(st.integers(0, 3)) == 0 else size for size in shape[dropped:])
    values = [draw(integers(length)) for _ in range(int(np.prod(own, dtype=int)))]
    return np.array(values, dtype).reshape(own, order="C")


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> object:
    """Index expressions: most are within bounds."""
    broadcast = tuple(draw(st.lists(lengths(3), min_size=1, max_size=2)))
    key: list[object] = []
    axis = 0
    end = len(shape) - (draw(st.integers(0, len(shape))) if draw(st.integers(0, 2)) == 0 else 0)
    kinds = draw(
        st.sampled_from(
            [["slice", "integer"], ["slice", "array"], ["slice", "integer", "array", "mask"]]
        )
    )
    while axis < end:
        if draw(st.integers(0, 6)) == 0:
            key.append(None)
        if draw(st.integers(0, 5)) == 0 and Ellipsis not in [
            item if item is Ellipsis else None for item in key
        ]:
            key.append(Ellipsis)
            skipped = draw(st.integers(0, len(shape) - end))
            axis, end = axis + skipped, end + skipped
        kind = draw(st.sampled_from(kinds))
        if kind == "slice":
            key.append(draw(st.slices(shape[axis])))
        elif kind == "integer":
            number = draw(integers(shape[axis]))
            key.append(draw(st.sampled_from([number, np.int16(number), np.array(number)])))
        elif kind == "array":
            indices = draw(index_arrays(shape[axis], broadcast))
            key.append(indices.tolist() if draw(st.booleans()) else indices)
        else:
            dims = draw(st.integers(1, min(2, end - axis)))
            masked = shape[axis : axis + dims]
            if draw(st.integers(0, 24)) == 0:
                masked = (*masked[:-1], max(masked[-1] + draw(st.sampled_from([-1, 1])), 0))
            mask = draw(npst.arrays(bool, masked))
            key.append(mask.tolist() if mask.size and draw(st.booleans()) else mask)
            axis += dims - 1
        axis += 1
    if draw(st.integers(0, 24)) == 0:
        key.extend([0] * (len(shape) + 1 - end))
    if Ellipsis in [item if item is Ellipsis else None for item in key]:
        event("ellipsis")
    return key[0] if len(key) == 1 and draw(st.booleans()) else tuple(key)


def axes(dimensions: int) -> st.SearchStrategy[int]:
    return st.integers(-max(dimensions, 1), max(dimensions, 1) - 1)
