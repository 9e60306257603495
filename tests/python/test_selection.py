"""Selections against NumPy: a naive walk over raw bytes gathers what NumPy's indexing gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gpufs import _selection
from gpufs._selection import DeviceList, HostList, Selection, Steps
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from .index_keys import Array, axes, index_arrays, keys, lengths


@dataclass(frozen=True, eq=False)
class FakeDeviceArray:
    """An index array that only the emulated kernel looks into."""

    hidden: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.hidden.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.hidden.dtype

    def __array__(self, *_: object, **__: object) -> Array:
        raise AssertionError("the host looked at an array of the device")


def on_device(index: object) -> Any:
    return index if isinstance(index, FakeDeviceArray) else None


def select(array: Array, key: object) -> Selection:
    return _selection.select(array.shape, array.strides, array.itemsize, key, on_device=on_device)


def take(array: Array, indices: object, axis: int) -> Selection:
    return _selection.take(
        array.shape, array.strides, array.itemsize, indices, axis, on_device=on_device
    )


def list_offsets(places: HostList | DeviceList | None) -> list[int]:
    if places is None:
        return [0]
    if isinstance(places, HostList):
        assert places.offsets.dtype == np.int64
        assert places.offsets.ndim == 1
        assert places.offsets.flags.c_contiguous
        return [int(offset) for offset in places.offsets]
    values = places.items.hidden.reshape(-1)
    assert all(-places.length <= value < places.length for value in values)
    return [(int(value) + (places.length if value < 0 else 0)) * places.stride for value in values]


def walk(selection: Selection) -> Iterator[int]:
    """Yields where each run begins, in bytes from the array's first item, in the result's order."""
    loops = [
        *([step.stride * number for number in range(step.repeats)] for step in selection.before),
        list_offsets(selection.list),
        *([step.stride * number for number in range(step.repeats)] for step in selection.behind),
    ]
    for offsets in itertools.product(*loops):
        yield selection.offset + sum(offsets)


def gather(array: Array, selection: Selection) -> Array:
    """Reads what is selected from the memory that the array is a view of."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    memory = base.reshape(-1, order="A").view(np.uint8).tobytes()
    first = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    pieces = []
    for offset in walk(selection):
        assert 0 <= first + offset <= first + offset + selection.run_bytes <= len(memory)
        pieces.append(memory[first + offset : first + offset + selection.run_bytes])
    return np.frombuffer(b"".join(pieces), array.dtype).reshape(selection.shape)


def check_invariants(selection: Selection, itemsize: int) -> None:
    steps = (*selection.before, *selection.behind)
    if 0 in selection.shape:
        assert (selection.offset, selection.list, selection.behind) == (0, None, ())
        assert [step.repeats for step in selection.before] == [0]
        return
    assert all(step.repeats > 1 for step in steps)
    assert selection.run_bytes >= itemsize
    assert selection.run_bytes % itemsize == 0
    assert selection.list is not None or selection.behind == ()
    for dims in (selection.before, selection.behind):
        for outer, inner in itertools.pairwise(dims):
            assert outer.stride != inner.stride * inner.repeats  # or they were one
    innermost = selection.behind or (selection.before if selection.list is None else ())
    assert not innermost or innermost[-1].stride != selection.run_bytes


def check(array: Array, selection: Selection, expected: Array) -> None:
    check_invariants(selection, array.itemsize)
    assert selection.shape == np.shape(expected)
    assert gather(array, selection).tobytes() == np.asarray(expected).tobytes()


DTYPES = [np.dtype(name) for name in ("u1", "<u2", "<f4", "<i8", "<c16")]


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Arrays in C and Fortran order, and views of them: permuted, sliced, with strides of 0."""
    shape = tuple(draw(st.lists(lengths(4), max_size=4)))
    dtype = draw(st.sampled_from(DTYPES))
    count = int(np.prod(shape, dtype=int))
    raw = np.random.default_rng(count).integers(1, 256, max(count, 1) * dtype.itemsize, np.uint8)
    # A buffer of its own that nothing is a view of, so that `gather` finds it as the base.
    array = raw.view(dtype)[:count].reshape(shape, order=draw(st.sampled_from("CF")))
    form = draw(st.sampled_from(["plain", "plain", "permuted", "sliced", "broadcast"]))
    if form == "permuted":
        array = array.transpose(draw(st.permutations(range(len(shape)))))
    elif form == "sliced" and shape:
        array = array[tuple(slice(None, None, draw(st.sampled_from([-2, -1, 2]))) for _ in shape)]
    elif form == "broadcast" and len(shape) < 4:
        array = np.broadcast_to(array, (draw(st.integers(0, 3)), *shape))
    return array


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_every_key_selects_what_numpy_selects(data: st.DataObject) -> None:
    array = data.draw(arrays())
    key = data.draw(keys(array.shape))
    try:
        expected = array[key]  # type: ignore[index]
    except IndexError:
        event("IndexError")
        with pytest.raises(IndexError):
            select(array, key)
        return
    check(array, select(array, key), expected)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_take_reads_what_numpy_takes(data: st.DataObject) -> None:
    array = data.draw(arrays())
    axis = data.draw(
        st.integers(-array.ndim - 1, array.ndim)
        if data.draw(st.integers(0, 9)) == 0
        else axes(array.ndim)
    )
    length = array.shape[axis] if -array.ndim <= axis < array.ndim else 1
    indices: object = data.draw(
        index_arrays(length, tuple(data.draw(st.lists(st.integers(0, 3), max_size=2))))
    )
    if data.draw(st.booleans()):
        indices = np.asarray(indices).tolist()
    try:
        expected = np.take(array, indices, axis=axis)  # type: ignore[arg-type]
    except IndexError:
        event("IndexError")
        with pytest.raises(IndexError):
            take(array, indices, axis)
        return
    flat = np.asarray(indices).reshape(-1)
    if any(
        not -length <= index < length for index in flat
    ):  # NumPy does not look where the result is empty
        assert expected.size == 0
        with pytest.raises(IndexError):
            take(array, indices, axis)
        return
    check(array, take(array, indices, axis), expected)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_an_index_array_on_the_device_selects_what_one_of_the_host_does(
    data: st.DataObject,
) -> None:
    array = data.draw(arrays().filter(lambda array: array.ndim > 0))
    axis = data.draw(st.integers(0, array.ndim - 1))
    length = array.shape[axis]
    shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=2)))
    indices = data.draw(
        npst.arrays(np.int64, shape, elements=st.integers(-length, max(length - 1, 0)))
    )
    key: list[object] = []
    for number, size in enumerate(array.shape):
        if data.draw(st.integers(0, 4)) == 0:
            key.append(None)
        if number == axis:
            key.append(indices)
        elif data.draw(st.booleans()) or size == 0:
            key.append(data.draw(st.slices(size)))
        else:
            key.append(data.draw(st.integers(-size, size - 1)))
    if data.draw(st.integers(0, 2)) == 0:
        key.insert(data.draw(st.integers(0, len(key))), ...)
    # As an array of one dimension more, so that NumPy does not take an array without dimensions for
    # an integer.
    on_device = tuple(FakeDeviceArray(indices) if item is indices else item for item in key)
    if length == 0 and indices.size:
        with pytest.raises(IndexError, match=r"axis \d with size 0"):
            select(array, on_device)
        return
    widened = indices.reshape(indices.shape or (1,))
    expected = array[tuple(widened if item is indices else item for item in key)]
    selection = select(array, on_device)
    check_invariants(selection, array.itemsize)
    assert gather(array, selection).tobytes() == expected.tobytes()
    if indices.ndim > 0:
        assert selection.shape == expected.shape
        assert (
            gather(array, take(array, FakeDeviceArray(indices), axis)).tobytes()
            == array.take(indices, axis).tobytes()
        )
    if 0 not in selection.shape:
        assert isinstance(selection.list, DeviceList)
        assert selection.list.items is next(
            item for item in on_device if isinstance(item, FakeDeviceArray)
        )
        assert (selection.list.length, selection.list.stride) == (length, array.strides[axis])


C = np.arange(2 * 3 * 4, dtype="<i4").reshape(2, 3, 4)
F = np.asfortranarray(C)


@pytest.mark.parametrize(
    ("array", "key", "before", "behind", "run_bytes"),
    [
        (C, ..., (), (), 96),
        (C, (), (), (), 96),
        (C, 1, (), (), 48),
        (C, (slice(None), 1), (Steps(2, 48),), (), 16),
        (C, (slice(None), slice(1, 3)), (Steps(2, 48),), (), 32),
        (C, (slice(None), slice(None), slice(1, 3)), (Steps(6, 16),), (), 8),
        (C, (..., slice(None, None, 2)), (Steps(12, 8),), (), 4),
        (C, (..., slice(None, None, -1)), (Steps(6, 16), Steps(4, -4)), (), 4),
        (C, (None, slice(None), None), (), (), 96),
        (F, ..., (Steps(2, 4), Steps(3, 8), Steps(4, 24)), (), 4),
        (F.T, ..., (), (), 96),
        (np.broadcast_to(np.int32(1), (3, 4)), ..., (Steps(12, 0),), (), 4),
        (C[:0], ..., (Steps(0, 0),), (), 4),
        (C[:0], (slice(None), [0, 1]), (Steps(0, 0),), (), 4),
        (np.int32(7), ..., (), (), 4),
    ],
)
def test_dimensions_are_merged(
    array: Array, key: object, before: tuple[Steps, ...], behind: tuple[Steps, ...], run_bytes: int
) -> None:
    selection = select(array, key)
    assert (selection.before, selection.list, selection.behind, selection.run_bytes) == (
        before,
        None,
        behind,
        run_bytes,
    )


def test_rows_are_runs() -> None:
    selection = select(C, (slice(None), [2, 0, -1]))
    assert isinstance(selection.list, HostList)
    assert selection.list.offsets.tolist() == [32, 0, 32]
    assert (selection.before, selection.behind, selection.run_bytes) == ((Steps(2, 48),), (), 16)


def test_separated_arrays_come_first() -> None:
    selection = select(C, ([1, 0, 1], slice(None), 2))
    assert selection.shape == (3, 3)
    assert isinstance(selection.list, HostList)
    assert (selection.before, selection.behind) == ((), (Steps(3, 16),))
    assert selection.offset + selection.list.offsets[1] == 8


def test_an_array_of_one_index_is_no_list() -> None:
    assert select(C, [1]) == Selection((1, 3, 4), 48, (), None, (), 48)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (7, "index 7 is out of bounds for axis 0 with size 2"),
        ((0, -4), "index -4 is out of bounds for axis 1 with size 3"),
        ((..., [0, 4, 9]), "index 4 is out of bounds for axis 2 with size 4"),
        (2**70, f"index {2**70} is out of bounds for axis 0 with size 2"),
        ((0, 0, 0, 0), "too many indices for array: array is 3-dimensional, but 4 were indexed"),
        (
            np.ones((2, 3, 4, 1), bool),
            "too many indices for array: array is 3-dimensional, but 4 were indexed",
        ),
        ((..., ...), r"an index can only have a single ellipsis \('...'\)"),
        (1.0, "only integers, slices"),
        (np.float32(1), "only integers, slices"),
        ("f", "only integers, slices"),
        ([1.0], "only integers, slices"),
        (np.array([1.0]), "arrays used as indices must be of integer"),
        (np.array([]), "arrays used as indices must be of integer"),
        (([0, 1], [0, 1, 2]), r"shape mismatch: indexing arrays .* with shapes \(2,\) \(3,\)"),
        (
            [True, False, True],
            "boolean index did not match indexed array along axis 0; size of axis is 2 but .* is 3",
        ),
        (
            [True],
            "boolean index did not match indexed array along axis 0; size of axis is 2 but .* is 1",
        ),
        (
            (0, np.ones((3, 5), bool)),
            "boolean index did not match .* axis 2; size of axis is 4 but .* is 5",
        ),
        ((None,) * 62, r"number of dimensions must be within \[0, 64\], indexing result has 65"),
    ],
)
def test_errors_read_like_numpys(key: object, text: str) -> None:
    with pytest.raises(IndexError, match=f"^{text}"):
        select(C, key)
    with pytest.raises((IndexError, OverflowError)):
        C[key]  # type: ignore[index]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_empty_masks_fit_dimensions_of_any_length(shape: tuple[int, ...]) -> None:
    mask = np.zeros(shape, bool)
    check(C, select(C, mask), C[mask])


def test_large_unsigned_indices_are_not_negative_ones() -> None:
    with pytest.raises(
        IndexError, match=f"index {2**64 - 1} is out of bounds for axis 0 with size 2"
    ):
        select(C, np.array([2**64 - 1], np.uint64))


@pytest.mark.parametrize("key", [True, False, np.True_, (0, True), np.array(True)])
def test_bools_that_are_no_arrays_are_refused(key: object) -> None:
    with pytest.raises(IndexError):
        select(C, key)


@pytest.mark.parametrize(
    ("key", "error"),
    [(slice(None, None, 0), ValueError), (slice(1.0), TypeError), ([[0, 1], [0]], ValueError)],
)
def test_other_errors_are_numpys(key: object, error: type[Exception]) -> None:
    for index in (lambda: select(C, key), lambda: C[key]):  # type: ignore[index]
        with pytest.raises(error):
            index()


@pytest.mark.parametrize(
    "other", [[0], np.array([0, 1]), [True, False, True], FakeDeviceArray(np.array([0]))]
)
def test_an_array_on_the_device_must_be_alone(other: object) -> None:
    indices = FakeDeviceArray(np.array([0, 1]))
    for key in ((indices, other), (other, slice(None), indices)):
        array = C if key[0] is indices else C.transpose(1, 0, 2)
        with pytest.raises(IndexError, match="on the device cannot be combined"):
            select(array, key)


def test_take_refuses_what_is_no_integer() -> None:
    with pytest.raises(TypeError, match="must be integers, not float"):
        take(C, np.array([1.0]), 0)
    with pytest.raises(TypeError):
        take(C, [1], 0.5)  # type: ignore[arg-type]


def test_take_counts_bools_as_integers() -> None:
    check(C, take(C, [True, False], 1), C.take([True, False], 1))


def test_large_arrays_cost_no_memory() -> None:
    shape = (2**20, 2**24)
    selection = _selection.select(
        shape, (2**24, 1), 1, (slice(None, None, -3), slice(5, -5)), on_device=on_device
    )
    assert selection == Selection(
        (349526, 2**24 - 10),
        (2**20 - 1) * 2**24 + 5,
        (Steps(349526, -3 * 2**24),),
        None,
        (),
        2**24 - 10,
    )
