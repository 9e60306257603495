"""Arrays in files against NumPy's view of the same bytes."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpufs
import ml_dtypes
import numpy as np
import pytest
from gpufs._layouts import parse_dtype
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from .array_files import DTYPES, cases, filled, npy, same
from .conftest import run_program
from .index_keys import axes, index_arrays, keys

# Each example writes files of its own.
SHARED_FIXTURES = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=[(512, "32KiB"), (4096, "128KiB")], ids=lambda shape: f"pages of {shape[0]}")
def small(request: pytest.FixtureRequest) -> Iterator[gpufs.Mount]:
    page, cache = request.param
    with gpufs.mount(device="cpu", page=page, cache=cache, cpu_threads=2, workers=1) as made:
        yield made


KEEPS = st.sampled_from(["auto", "always", "never"])


@settings(SHARED_FIXTURES, max_examples=60)
@given(st.data())
def test_keys_read_what_numpy_reads(
    small: gpufs.Mount, tmp_path: Path, data: st.DataObject
) -> None:
    case = data.draw(cases(small, tmp_path))
    with case.file as file:
        assert (file.shape, file.dtype, file.ndim) == (
            case.array.shape,
            case.array.dtype,
            case.array.ndim,
        )
        assert (file.size, file.itemsize, file.nbytes) == (
            case.array.size,
            case.array.itemsize,
            case.array.nbytes,
        )
        if file.size:  # a step along a dimension of one item means nothing
            assert [s for s, n in zip(file.strides, file.shape, strict=True) if n > 1] == [
                s for s, n in zip(case.array.strides, file.shape, strict=True) if n > 1
            ]
        assert same(file[...], case.array)
        for _ in range(4):
            key = data.draw(keys(case.array.shape))
            try:
                expected = np.asarray(case.array[key])  # type: ignore[index]
            except IndexError:
                event("IndexError")
                with pytest.raises(IndexError):
                    file[key]
                continue
            assert same(file[key], expected)
            out = np.empty(expected.shape, expected.dtype)
            assert file.read(key, out=out, keep=data.draw(KEEPS)) is out
            assert same(out, expected)


@settings(SHARED_FIXTURES, max_examples=30)
@given(st.data())
def test_take_reads_what_numpy_takes(
    small: gpufs.Mount, tmp_path: Path, data: st.DataObject
) -> None:
    case = data.draw(cases(small, tmp_path))
    axis = data.draw(axes(case.array.ndim))
    length = case.array.shape[axis] if case.array.ndim else 1
    indices = data.draw(
        index_arrays(length, tuple(data.draw(st.lists(st.integers(0, 3), max_size=2))))
    )
    with case.file as file:
        if any(not -length <= index < length for index in indices.reshape(-1)):
            with pytest.raises(IndexError):
                file.take(indices, axis)
            return
        expected = np.asarray(case.array.take(indices.astype(np.int64), axis))
        assert same(file.take(indices, axis, keep=data.draw(KEEPS)), expected)
        out = np.empty_like(expected, order="C")
        assert file.take(indices, axis, out=out) is out
        assert same(out, expected)


# ---- Large arrays: runs of all lengths, much more than the cache


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<f4"])
def test_arrays_larger_than_the_cache(
    small: gpufs.Mount, tmp_path: Path, order: Any, dtype: str
) -> None:
    shape = (100, 41, 37)
    array = filled(shape, dtype, order)
    assert small.cache_bytes < array.nbytes
    rng = np.random.default_rng(5)
    rows = rng.integers(-100, 100, 70)
    with small.array(npy(tmp_path / "array.npy", array)) as file:
        for key in (
            ...,
            7,
            -1,
            slice(10, 90, 7),
            (..., 5),
            (slice(None, None, -60), 3, slice(None, None, -1)),
            (slice(None), [4, -1]),
            (rows, 3),
            (rows[:8], slice(None, None, 20), rng.integers(0, 37, 8)),
            (rng.integers(0, 2, shape[:2]).astype(bool), 0),
        ):
            assert same(file[key], np.asarray(array[key]))
        for axis in range(3):
            indices = rng.integers(-37, 37, (3, 4))
            assert same(file.take(indices, axis), array.take(indices, axis))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0, 1, 4097])
def test_items_of_every_type_at_every_offset(
    mount: gpufs.Mount, tmp_path: Path, dtype: Any, offset: int
) -> None:
    array = filled((30, 50), dtype)
    (tmp_path / "raw").write_bytes(bytes(offset) + array.tobytes())
    with mount.array(tmp_path / "raw", dtype, array.shape, offset) as file:
        for key in (..., (slice(None), 7), [3, -1, 3], (slice(None, None, -2), slice(5, 40, 3))):
            assert same(file[key], array[key])


def test_runs_of_every_length(mount: gpufs.Mount, tmp_path: Path) -> None:
    content = filled((3_000_000,), "u1")
    (tmp_path / "raw").write_bytes(content.tobytes())
    for run, offset in itertools.product(
        [1, 2, 63, 64, 65, 2047, 2048, 4096, 32769, 2**20 - 1, 2**20 + 1], [0, 3]
    ):
        count = (len(content) - offset) // (run + 1)
        array = content[offset : offset + count * (run + 1)].reshape(count, run + 1)
        with mount.array(tmp_path / "raw", "u1", array.shape, offset) as file:
            for key in ((slice(-400, None), slice(run)), ([0, -1, count // 2], slice(1, None))):
                assert same(file[key], array[key])


def test_8_dimensions_may_lie_apart(mount: gpufs.Mount, tmp_path: Path) -> None:
    array = filled((3,) * 10, "u1")
    with mount.array(npy(tmp_path / "array.npy", array)) as file:
        for key in (
            (slice(None, None, 2),) * 8,
            (slice(None, None, -1),) * 7 + (1, slice(None), 1),
        ):
            assert same(file[key], array[key])


@pytest.mark.parametrize("dimensions", [9, 10])
def test_more_than_8_dimensions_that_lie_apart_are_refused(
    mount: gpufs.Mount, tmp_path: Path, dimensions: int
) -> None:
    array = filled((3,) * 10, "u1")
    with mount.array(npy(tmp_path / "array.npy", array)) as file:
        key = (slice(None, None, 2),) * dimensions
        with pytest.raises(ValueError, match="more than 8 dimensions that lie apart"):
            file[key]
        key = (*key[:4], [1, 0], *key[5:])
        assert same(file[key], array[key])


# ---- What sequences do


def test_arrays_are_sequences_of_their_first_dimension(mount: gpufs.Mount, tmp_path: Path) -> None:
    array = filled((5, 3), "<i4")
    with mount.array(npy(tmp_path / "array.npy", array)) as file:
        assert len(file) == 5
        rows = list(file)
        assert len(rows) == 5
        assert all(same(row, expected) for row, expected in zip(rows, array, strict=True))
        assert repr(file) == f"<gpufs.FileArray (5, 3) of int32 in {str(tmp_path / 'array.npy')!r}>"
        assert file.file.name == str(tmp_path / "array.npy")
        assert [batch.shape for batch in file.batches(2)] == [(2, 3), (2, 3), (1, 3)]
        assert [batch.shape for batch in file.batches(2, drop_last=True)] == [(2, 3), (2, 3)]
        assert [batch.shape for batch in file.batches(5, drop_last=True)] == [(5, 3)]
        assert list(file.batches(6, drop_last=True)) == []
        assert same(np.concatenate(list(file.batches(2))), array)
        for count in (0, -1):
            with pytest.raises(ValueError, match="batches"):
                file.batches(count)


def test_arrays_without_dimensions_or_items(mount: gpufs.Mount, tmp_path: Path) -> None:
    with mount.array(npy(tmp_path / "scalar.npy", np.array(1.5))) as file:
        assert (file.shape, file.size, file.nbytes) == ((), 1, 8)
        assert same(file[()], np.array(1.5))
        assert same(file[None, ...], np.array([1.5]))
        for use in (lambda: len(file), lambda: iter(file), lambda: file.batches(1)):
            with pytest.raises(TypeError, match="without dimensions"):
                use()
    with mount.array(npy(tmp_path / "empty.npy", np.zeros((0, 3)))) as file:
        assert (len(file), file.size) == (0, 0)
        assert list(file) == list(file.batches(4)) == []
        assert same(file[...], np.zeros((0, 3)))
        with pytest.raises(IndexError):
            file[0]


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (5, IndexError),
        (-6, IndexError),
        ((0, 3), IndexError),
        ((0, 0, 0), IndexError),
        ([0, 5], IndexError),
        ([True] * 4, IndexError),
        (1.5, IndexError),
        ("name", IndexError),
        (True, IndexError),
        ((..., ...), IndexError),
        (np.array([0.5]), IndexError),
        (slice(None, None, 0), ValueError),
        (slice("a"), TypeError),
    ],
)
def test_keys_that_cannot_be_are_refused(
    mount: gpufs.Mount, tmp_path: Path, key: Any, error: type[Exception]
) -> None:
    with (
        mount.array(npy(tmp_path / "array.npy", filled((5, 3), "<i4"))) as file,
        pytest.raises(error),
    ):
        file[key]


def test_arrays_that_cannot_be_filled_are_refused(mount: gpufs.Mount, tmp_path: Path) -> None:
    array = filled((5, 3), "<i4")
    read_only = np.zeros((5, 3), "<i4")
    read_only.flags.writeable = False
    with mount.array(npy(tmp_path / "array.npy", array)) as file:
        for out, error, text in (
            (np.zeros((5, 2), "<i4"), ValueError, "40 bytes, the result 60"),
            (np.zeros((6, 3), "<i4"), ValueError, "72 bytes, the result 60"),
            (np.zeros((5, 3), "<i4", order="F"), ValueError, "C-contiguous"),
            (np.zeros((5, 6), "<i4")[:, ::2], ValueError, "C-contiguous"),
            (read_only, ValueError, "cannot be written"),
            (np.zeros((5, 3), object), TypeError, "objects"),
            (bytearray(60), TypeError, "NumPy"),
        ):
            for use in (
                lambda out=out: file.read(out=out),
                lambda out=out: file.take(range(5), out=out),
            ):
                with pytest.raises(error, match=text):
                    use()
        with pytest.raises(ValueError, match="'maybe'"):
            file.read(keep="maybe")  # type: ignore[arg-type]
        with pytest.raises(np.exceptions.AxisError):
            file.take([0], 2)


def test_random_writes_are_seen_by_arrays(mount: gpufs.Mount, tmp_path: Path) -> None:
    array = filled((200, 300), "<i4")
    path = npy(tmp_path / "array.npy", array)
    rng = random.Random(3)
    with mount.open(path, "r+") as opened, mount.array(path) as file:
        for _ in range(50):
            row, value = rng.randrange(200), rng.randrange(1 << 30)
            array[row] = value
            opened.write(array[row], file.offset + row * file.strides[0])
            assert same(file[row], array[row])
            assert same(file[:, 7], array[:, 7])
    assert same(np.load(path), array)


# ---- References


# Some of all that there is; the arguments are a folder and what becomes of it.
USES = """
import ctypes, gc, pathlib, sys
import gpufs
import numpy as np

folder = pathlib.Path(sys.argv[1])
np.save(folder / "array.npy", np.arange(1000).reshape(10, 100))
with gpufs.mount(device="cpu", cache="1MiB", workers=1, cpu_threads=2) as mount:
    with mount.open(folder / "new", "w+") as file:
        file.write(b"alpha beta")
        assert bytes(file.read()) == b"alpha beta"
        file.gather([0, 1], 5)
    for use in (lambda: mount.open(folder / "none"), file.read, lambda: mount.open(folder)):
        try:
            use()
        except (OSError, ValueError):
            pass
    array = mount.array(folder / "array.npy")
    rows = [*array, array[[1, 2]], array.take([3], 1), *array.batches(3)]
    found = gpufs.grep.search(mount, gpufs.grep.Dictionary(["alpha"]), [folder / "new"])
    assert [match.count for match in found] == [1]
    mount.stats(), mount.file_stats()
left = gpufs.mount(device="cpu", cache="1MiB", workers=1, cpu_threads=2)
left_file = left.open(folder / "new")
if sys.argv[2] == "forgotten":
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(left_file))
elif sys.argv[2] == "deleted":
    left.close()
    del array, file, found, left, left_file, mount, rows, use
    gc.collect()
"""


@pytest.mark.parametrize("end", ["deleted", "left"])
def test_no_object_of_the_extension_is_left_over(tmp_path: Path, end: str) -> None:
    assert run_program(USES, tmp_path, end, GPUFS_CHECK_LEAKS="1") == ""


def test_an_object_that_is_left_over_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="leaked"):
        run_program(USES, tmp_path, "forgotten", GPUFS_CHECK_LEAKS="1")
    assert run_program(USES, tmp_path, "forgotten") == ""


def test_numpy_reads_all_at_once(mount: gpufs.Mount, tmp_path: Path) -> None:
    array = filled((3000, 5), "<f8", "C")
    with mount.array(npy(tmp_path / "array.npy", array)) as file:
        before = mount.stats()["read_bytes"]
        assert same(np.asarray(file), array)
        assert mount.stats()["read_bytes"] - before <= 2 * array.nbytes
        assert np.asarray(file, "V8").dtype == "V8"


def test_out_of_another_type_is_refused(mount: gpufs.Mount, tmp_path: Path) -> None:
    array = filled((30, 5), "<f8", "C")
    with mount.array(npy(tmp_path / "array.npy", array)) as file:
        for dtype in ("<i8", "<f4", "<c16"):
            with pytest.raises((TypeError, ValueError), match="out has"):
                file.read(out=np.empty(array.nbytes // np.dtype(dtype).itemsize, dtype))
        for flat in (
            np.empty(array.nbytes, np.uint8),
            np.empty((30, 5), "V8"),
        ):  # bytes, whatever they mean
            file.read(out=flat)
            assert flat.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("dtype", "others"),
    [
        ("float32", [">f4", "int32", "uint32", [("a", "<f4")], "<U1"]),
        ("float16", [">f2", "bfloat16", "int16"]),
        ("bfloat16", ["float16", ">u2", "uint16", "int16"]),
        ("int64", ["uint64", ">i8", "datetime64[ns]", "float64", "complex64"]),
        ("float8_e4m3fn", ["int8", "bool", "float8_e5m2"]),
        ("int8", ["bool", "S1", "float8_e5m2"]),
    ],
)
def test_out_of_a_type_of_the_same_size_is_refused(
    mount: gpufs.Mount, tmp_path: Path, dtype: str, others: list[Any]
) -> None:
    wanted = parse_dtype(dtype)
    (tmp_path / "raw").write_bytes(bytes(range(1, 13)) * wanted.itemsize)
    with mount.array(tmp_path / "raw", dtype, (4, 3)) as file:
        for other in others:
            wrong = (
                np.dtype(getattr(ml_dtypes, other))
                if str(other).startswith(("bf", "float8"))
                else np.dtype(other)
            )
            out = np.zeros((4, 3), wrong)
            assert out.itemsize == wanted.itemsize
            said = str(wrong) if wrong.names or not wrong.isnative else wrong.name
            text = f"out has items of type {said}, the result of type {dtype}"
            for use in (
                lambda out=out: file.read(out=out),
                lambda out=out: file.take(range(4), out=out),
            ):
                with pytest.raises(TypeError, match=re.escape(text)):
                    use()
            assert out.tobytes() == bytes(out.nbytes)
        right = np.zeros((4, 3), wanted)
        assert file.read(out=right) is right
        assert same(right, file[...])


def test_results_go_only_where_they_fit(mount: gpufs.Mount, tmp_path: Path) -> None:
    with mount.array(npy(tmp_path / "array.npy", filled((8, 2), "<f4"))) as file:
        with pytest.raises(ValueError, match=r"out has shape \(2, 3\), the result \(3, 2\)"):
            file.read([1, 2, 3], out=np.zeros((2, 3), np.float32))
        for shape in ((3, 2), (6,)):
            out = np.zeros(shape, np.float32)
            assert file.read([1, 2, 3], out=out) is out
            assert same(out.reshape(3, 2), file[1:4])
