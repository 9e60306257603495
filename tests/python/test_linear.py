"""Products of matrices in files against NumPy's, on the CPU device and on a GPU."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any

import gpufs
import ml_dtypes
import numpy as np
import pytest
from gpufs import _core, linear
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import Command, names

SETTINGS = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
DTYPES = {"float32": np.dtype("<f4"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def numbers(seed: int, shape: Any, dtype: str) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(DTYPES[dtype])


def npy_at(path: Path, array: Any, offset: int) -> Path:
    """A .npy file whose numbers begin anywhere, not at a multiple of 64 bytes as NumPy's."""
    header = str({"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}).encode()
    path.write_bytes(
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", offset - 10)
        + header.ljust(offset - 11)
        + b"\n"
        + array.tobytes()
    )
    return path


def save(path: Path, array: Any) -> Path:
    array.tofile(path)
    return path


def product(matrix: Any, vector: Any) -> Any:
    return matrix.astype(np.float64) @ vector.astype(np.float64)


def check(found: Any, matrix: Any, vector: Any) -> None:
    """Within the rounding of float32 sums."""
    assert found.dtype == np.float32
    bound = np.abs(matrix.astype(np.float64)) @ np.abs(vector.astype(np.float64))
    assert np.all(np.abs(found - product(matrix, vector)) <= bound * 1e-5 + 1e-30)


@SETTINGS
@given(
    rows=st.integers(1, 300),
    columns=st.sampled_from([1, 2, 3, 7, 31, 32, 33, 250, 255, 256, 257, 511, 1000, 1024, 4099]),
    dtype=st.sampled_from(sorted(DTYPES)),
    seed=st.integers(0, 100),
)
def test_products_are_numpys(
    fs: gpufs.Mount, tmp_path: Path, rows: int, columns: int, dtype: str, seed: int
) -> None:
    matrix, vector = numbers(seed, (rows, columns), dtype), numbers(seed + 1, columns, dtype)
    a, x = save(tmp_path / "a", matrix), save(tmp_path / "x", vector)
    result = linear.matvec(fs, a, x, tmp_path / "y", dtype=dtype, shape=(rows, columns))
    assert (result.rows, result.columns, result.bytes) == (rows, columns, matrix.nbytes)
    check(np.fromfile(tmp_path / "y", np.float32), matrix, vector)
    assert names(tmp_path) == ["a", "x", "y"]


@pytest.mark.parametrize(
    "shape", [(1, 3_000_000), (3, 1_000_001), (40_000, 100), (400_000, 3), (5, 65_536)]
)
def test_matrices_larger_than_the_cache(
    fs: gpufs.Mount, tmp_path: Path, shape: tuple[int, int]
) -> None:
    matrix, vector = numbers(1, shape, "float32"), numbers(2, shape[1], "float32")
    np.save(tmp_path / "a.npy", matrix)
    np.save(tmp_path / "x.npy", vector)
    with gpufs.mount(device=fs.device, cache="4MiB", page="16KiB") as mount:
        products = []
        for name in ("y.npy", "again.npy"):
            linear.matvec(mount, tmp_path / "a.npy", tmp_path / "x.npy", tmp_path / name)
            products.append(np.load(tmp_path / name))
    check(products[0], matrix, vector)
    assert products[0].tobytes() == products[1].tobytes()  # added up in one order


def test_what_is_wrong_is_told_and_nothing_is_left(fs: gpufs.Mount, tmp_path: Path) -> None:
    matrix, vector = numbers(1, (50, 40), "float32"), numbers(2, 40, "float32")
    for name, array in {
        "a": matrix,
        "x": vector,
        "short": vector[:39],
        "flat": matrix.reshape(-1),
        "double": matrix.astype(np.float64),
        "fortran": np.asfortranarray(matrix),
        "bfloat": numbers(2, 40, "bfloat16").view(np.uint16),
        "none": matrix[:0],
    }.items():
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "text.npy").write_text("no numbers")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    (tmp_path / "old.npy").write_bytes(b"what was there")
    before = names(tmp_path)

    def fails(error: type[Exception], text: str, a: str, x: str, out: str = "old.npy") -> None:
        with pytest.raises(error, match=text):
            linear.matvec(fs, tmp_path / f"{a}.npy", tmp_path / f"{x}.npy", tmp_path / out)
        assert names(tmp_path) == before
        assert (tmp_path / "old.npy").read_bytes() == b"what was there"

    fails(ValueError, "short.npy: 39 numbers, but 40 columns", "a", "short")
    fails(ValueError, "flat.npy: 1 dimensions, but a matrix has 2", "flat", "x")
    fails(ValueError, "a.npy: 2 dimensions, but a vector has 1", "a", "a")
    fails(TypeError, "double.npy: numbers of type float64", "double", "x")
    fails(ValueError, "fortran.npy: in Fortran order", "fortran", "x")
    fails(TypeError, "bfloat.npy: numbers of type uint16", "a", "bfloat")
    fails(ValueError, "none.npy: a matrix without numbers", "none", "x")
    fails(ValueError, "text.npy", "text", "x")
    fails(ValueError, "cut.npy", "cut", "x")
    fails(FileNotFoundError, "absent.npy", "absent", "x")
    fails(FileNotFoundError, "nowhere/y.npy'$", "a", "x", "nowhere/y.npy")
    fails(OSError, "not a regular file", "a", "x", ".")


def test_large_matrices_by_the_command_line(run: Command, tmp_path: Path) -> None:
    """On a GPU by the copy engine, whose kernels wait for the driver."""
    matrix, vector = numbers(1, (16384, 1024), "float32"), numbers(2, 1024, "float32")
    a, x = save(tmp_path / "a", matrix), save(tmp_path / "x", vector)
    done = run("matvec", a, x, "-o", tmp_path / "y", "--shape", "16384x1024", "--cache", "256MiB")
    assert (done.stderr, done.returncode) == (b"", 0)
    check(np.fromfile(tmp_path / "y", np.float32), matrix, vector)


def test_the_command_line(run: Command, tmp_path: Path) -> None:
    matrix, vector = numbers(1, (70, 300), "bfloat16"), numbers(2, 300, "bfloat16")
    a, x, y = save(tmp_path / "a", matrix), save(tmp_path / "x", vector), tmp_path / "y.npy"
    done = run(
        "matvec",
        a,
        x,
        "-o",
        y,
        "--shape",
        "70x300",
        "--dtype",
        "bfloat16",
        "--cache",
        "8MiB",
        "--stats",
    )
    assert (done.stdout, done.returncode) == (b"", 0)
    assert b"matrix    70 x 300" in done.stderr
    check(np.load(y), matrix, vector)
    for arguments, text in (
        (("a", "x", "--shape", "71x300"), b"truncated"),
        (("a", "x", "--shape", "70"), b"a shape is two numbers"),
        (("a", "x", "--shape", "70x300", "--dtype", "int8"), b"int8"),
        (("a", "gone", "--shape", "70x300", "--dtype", "bfloat16"), b"gone"),
        (("a", "x"), b"a: a raw file needs --shape"),
        (("a", "x", "--dtype", "bfloat16"), b"--dtype is for raw files, which need --shape"),
        (("y.npy", "x", "--shape", "70x300"), b"y.npy: a .npy file says its shape itself"),
        (("a", "y.npy", "--shape", "70x300"), b"y.npy: a .npy file says its shape itself"),
    ):
        files = [str(tmp_path / name) for name in arguments[:2]]
        failed = run("matvec", *files, "-o", tmp_path / "z", *arguments[2:])
        assert failed.returncode == 2
        assert failed.stdout == b""
        assert len(failed.stderr.splitlines()) == 1
        assert text in failed.stderr
    assert names(tmp_path) == ["a", "x", "y.npy"]


# A vector in a raw file is a matrix of one column, too.
BOTH = pytest.mark.parametrize("what", ["matvec", "matmul"])


def multiply(what: str, mount: gpufs.Mount, folder: Path, rows: int, depth: int) -> None:
    """Multiplies the raw files a and x there into y."""
    sizes = (rows, depth) if what == "matvec" else (rows, depth, 1)
    getattr(linear, what)(
        mount, folder / "a", folder / "x", folder / "y", dtype="float32", shape=sizes
    )


@BOTH
def test_a_matrix_that_shrinks_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    matrix = numbers(1, (500, 1000), "float32")
    save(Path("a"), matrix), save(Path("x"), matrix[0])
    in_core = getattr(_core, what)

    def shrink_and_multiply(*arguments: Any) -> None:
        os.truncate("a", 100_000)
        in_core(*arguments)

    monkeypatch.setattr(_core, what, shrink_and_multiply)
    with (
        gpufs.mount(device="cpu", cache="1MiB") as mount,
        pytest.raises(OSError, match="shorter") as caught,
    ):
        multiply(what, mount, Path(), 500, 1000)
    assert (caught.value.errno, caught.value.filename) == (errno.ENODATA, "a")
    assert names(tmp_path) == ["a", "x"]


@BOTH
def test_a_mount_that_writes_nothing_is_refused(tmp_path: Path, what: str) -> None:
    (
        save(tmp_path / "a", numbers(1, (5, 4), "float32")),
        save(tmp_path / "x", numbers(1, 4, "float32")),
    )
    with (
        gpufs.mount(device="cpu", cache="1MiB", read_only=True) as mount,
        pytest.raises(OSError) as caught,
    ):
        multiply(what, mount, tmp_path, 5, 4)
    assert (caught.value.errno, caught.value.filename) == (errno.EROFS, str(tmp_path / "y"))
    assert names(tmp_path) == ["a", "x"]


@BOTH
def test_a_full_disk_leaves_nothing(tmp_path: Path, what: str) -> None:
    import resource

    (
        save(tmp_path / "a", numbers(1, (50_000, 4), "float32")),
        save(tmp_path / "x", numbers(1, 4, "float32")),
    )
    with gpufs.mount(device="cpu", cache="1MiB") as mount:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (50_000, hard)
        )  # as a disk that is full after so many bytes
        try:
            with pytest.raises(OSError) as caught:
                multiply(what, mount, tmp_path, 50_000, 4)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "y"))
    assert names(tmp_path) == ["a", "x"]


@BOTH
def test_raw_files_of_another_size_are_refused(tmp_path: Path, what: str) -> None:
    (
        save(tmp_path / "a", numbers(1, (6, 4), "float32")),
        save(tmp_path / "x", numbers(1, 4, "float32")),
    )
    with gpufs.mount(device="cpu", cache="1MiB") as mount:
        with pytest.raises(ValueError, match="a: 96 bytes, but 5 x 4 numbers are 80"):
            multiply(what, mount, tmp_path, 5, 4)
        with pytest.raises(ValueError, match="a: truncated"):
            multiply(what, mount, tmp_path, 7, 4)
    assert names(tmp_path) == ["a", "x"]


def check_matrix(found: Any, a: Any, b: Any) -> None:
    """Within the rounding of float32: of each product, and of sums in any order."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    assert (found.dtype, found.shape) == (np.float32, (a.shape[0], b.shape[1]))
    bound = np.abs(left) @ np.abs(right) * (2**-21 + min(a.shape[1] * 2**-23, 1.5e-6))
    assert np.all(np.abs(found - left @ right) <= bound + 1e-36)


@SETTINGS
@given(
    sizes=st.tuples(
        *3 * [st.integers(1, 300) | st.sampled_from([1, 31, 32, 33, 127, 128, 129, 256])]
    ),
    dtype=st.sampled_from(sorted(DTYPES)),
    offsets=st.none() | st.tuples(*3 * [st.integers(0, 40)]),
    seed=st.integers(0, 100),
)
def test_products_of_matrices_are_numpys(
    fs: gpufs.Mount,
    tmp_path: Path,
    sizes: tuple[int, int, int],
    dtype: str,
    offsets: Any,
    seed: int,
) -> None:
    rows, depth, columns = sizes
    a, b = numbers(seed, (rows, depth), dtype), numbers(seed + 1, (depth, columns), dtype)
    left, right, out = (tmp_path / name for name in "abc")
    if offsets is None:
        save(left, a), save(right, b)
        result = linear.matmul(fs, left, right, out, dtype=dtype, shape=sizes)
        assert (result.rows, result.depth, result.columns, result.bytes) == (
            *sizes,
            a.nbytes + b.nbytes,
        )
        found = np.fromfile(out, np.float32)
    else:
        at, right_at, out_at = offsets[0] * a.itemsize, offsets[1] * a.itemsize, offsets[2] * 4
        left.write_bytes(bytes(at) + a.tobytes())
        right.write_bytes(bytes(right_at) + b.tobytes())
        out.write_bytes(b"\xff" * out_at)
        places = (os.fsencode(left), at, rows, depth, os.fsencode(right), right_at, columns)
        _core.matmul(fs.core, *places, dtype == "bfloat16", os.fsencode(out), out_at, False)
        assert out.read_bytes()[:out_at] == b"\xff" * out_at
        found = np.fromfile(out, np.float32, offset=out_at)
    found = found.reshape(rows, columns)
    check_matrix(found, a, b)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_long_sums_stay_near(fs: gpufs.Mount, tmp_path: Path, dtype: str) -> None:
    """Numbers of one sign: truncation instead of rounding would err in one direction only."""
    sizes = (100, 50_000, 90)
    random = np.random.default_rng(1)
    a, b = (random.uniform(0.5, 1, shape).astype(DTYPES[dtype]) for shape in (sizes[:2], sizes[1:]))
    left, right = save(tmp_path / "a", a), save(tmp_path / "b", b)
    linear.matmul(fs, left, right, tmp_path / "c", dtype=dtype, shape=sizes)
    found = np.fromfile(tmp_path / "c", np.float32).reshape(100, 90)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.all(np.abs(found - exact) <= exact * 1e-5)


@pytest.mark.parametrize("offset", [96, 100, 128])
def test_products_of_npy_files_are_npy_files(fs: gpufs.Mount, tmp_path: Path, offset: int) -> None:
    a, b = numbers(1, (33, 130), "float32"), numbers(2, (130, 129), "float32")
    left, right = npy_at(tmp_path / "a.npy", a, offset), npy_at(tmp_path / "b.npy", b, 128)
    linear.matmul(fs, left, right, tmp_path / "c.npy")
    check_matrix(np.load(tmp_path / "c.npy"), a, b)
    linear.matmul(fs, left, right, tmp_path / "c")
    assert (
        np.fromfile(tmp_path / "c", np.float32).tobytes() == np.load(tmp_path / "c.npy").tobytes()
    )
    assert names(tmp_path) == ["a.npy", "b.npy", "c", "c.npy"]


# The last: a row of the left one alone is more than the cache.
@pytest.mark.parametrize(
    "sizes", [(700, 1500, 300), (130, 10_001, 5), (70, 4096, 130), (3, 70_000, 2)]
)
def test_matrices_larger_than_the_cache_are_multiplied(
    fs: gpufs.Mount, tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    rows, depth, columns = sizes
    a, b = numbers(1, (rows, depth), "float32"), numbers(2, (depth, columns), "float32")
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    with gpufs.mount(device=fs.device, cache="256KiB", page="4KiB") as mount:
        products = []
        for name in ("c.npy", "again.npy"):
            linear.matmul(mount, tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / name)
            products.append(np.load(tmp_path / name))
    check_matrix(products[0], a, b)
    assert products[0].tobytes() == products[1].tobytes()  # added up in one order


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("skipped", [0, 1, 32, 33, 64, 100, 128])
def test_rows_longer_than_pages_begin_anywhere(
    fs: gpufs.Mount, tmp_path: Path, dtype: str, skipped: int
) -> None:
    a, b = numbers(1, (150, 1024), dtype), numbers(2, (1024, 140), dtype)
    left, right, out = (tmp_path / name for name in "abc")
    at = skipped * a.itemsize
    left.write_bytes(bytes(at) + a.tobytes())
    save(right, b)
    out.write_bytes(b"")
    places = (os.fsencode(left), at, 150, 1024, os.fsencode(right), 0, 140)
    with gpufs.mount(device=fs.device, cache="1MiB", page="512") as mount:
        _core.matmul(mount.core, *places, dtype == "bfloat16", os.fsencode(out), 0, False)
    check_matrix(np.fromfile(out, np.float32).reshape(150, 140), a, b)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_special_numbers_are_multiplied_as_numpy_does(
    fs: gpufs.Mount, tmp_path: Path, dtype: str
) -> None:
    """Results are not finite in the same places, and all others are as close as without them."""
    a, b = numbers(1, (200, 150), dtype), numbers(2, (150, 140), dtype)
    huge = 3.4e38 if dtype == "float32" else 3.38e38
    for row, special in enumerate(
        (np.nan, np.inf, -np.inf, huge, -huge, 1e38, 2e-38, 1e-30, 0.0, 1e-44)
    ):
        a[3 + 7 * row, 5 + row] = special
        b[9 + row, 11 * row] = special
    a[100] = np.float32(1e30) * a[100]
    b[:, 130] = np.float32(1e-30) * b[:, 130]
    a[101], b[:, 131] = huge, 0
    b[7, 131] = 1
    left, right = save(tmp_path / "a", a), save(tmp_path / "b", b)
    linear.matmul(fs, left, right, tmp_path / "c", dtype=dtype, shape=(200, 150, 140))
    found = np.fromfile(tmp_path / "c", np.float32).reshape(200, 140)
    with np.errstate(all="ignore"):
        expected = a.astype(np.float32) @ b.astype(np.float32)
        exact, sizes = (
            a.astype(np.float64) @ b.astype(np.float64),
            np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)),
        )
    assert 1000 < np.count_nonzero(~np.isfinite(expected)) < 5000
    assert not np.any(np.isfinite(found) & ~np.isfinite(expected))
    # Sums that come near the end of float32 may pass it on the way in another order.
    plain = np.isfinite(expected) & (sizes < 2e38)
    assert np.count_nonzero(plain) > 20_000
    assert np.all(np.abs(found[plain] - exact[plain]) <= sizes[plain] * 2e-6 + 1e-36)
    assert found[101, 131] == expected[101, 131] == a[101, 0].astype(np.float32)


def test_what_is_wrong_with_matrices_is_told_and_nothing_is_left(
    fs: gpufs.Mount, tmp_path: Path
) -> None:
    a, b = numbers(1, (50, 40), "float32"), numbers(2, (40, 30), "float32")
    for name, array in {
        "a": a,
        "b": b,
        "short": b[:39],
        "flat": b.reshape(-1),
        "double": b.astype(np.float64),
        "fortran": np.asfortranarray(b),
        "none": b[:, :0],
    }.items():
        np.save(tmp_path / f"{name}.npy", array)
    npy_at(tmp_path / "odd.npy", b, 126)
    (tmp_path / "text.npy").write_text("no numbers")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "b.npy").read_bytes()[:-1])
    (tmp_path / "old.npy").write_bytes(b"what was there")
    before = names(tmp_path)

    def fails(
        error: type[Exception], text: str, left: str, right: str, out: str = "old.npy", **raw: Any
    ) -> None:
        with pytest.raises(error, match=text):
            linear.matmul(
                fs, tmp_path / f"{left}.npy", tmp_path / f"{right}.npy", tmp_path / out, **raw
            )
        assert names(tmp_path) == before
        assert (tmp_path / "old.npy").read_bytes() == b"what was there"

    fails(ValueError, "short.npy: 39 rows, but 40 columns in .*a.npy", "a", "short")
    fails(ValueError, "b.npy: 40 rows, but 30 columns in .*b.npy", "b", "b")
    fails(ValueError, "flat.npy: 1 dimensions, but a matrix has 2", "a", "flat")
    fails(TypeError, "double.npy: numbers of type float64", "a", "double")
    fails(ValueError, "fortran.npy: in Fortran order", "a", "fortran")
    fails(ValueError, "none.npy: a matrix without numbers", "a", "none")
    fails(ValueError, "odd.npy: numbers that do not begin at a multiple", "a", "odd")
    fails(ValueError, "text.npy", "a", "text")
    fails(ValueError, "cut.npy", "a", "cut")
    fails(FileNotFoundError, "absent.npy", "a", "absent")
    fails(FileNotFoundError, "nowhere/c.npy'$", "a", "b", "nowhere/c.npy")
    fails(OSError, "not a regular file", "a", "b", ".")
    fails(TypeError, "both dtype and shape", "a", "b", dtype="float32")
    fails(TypeError, "both dtype and shape", "a", "b", shape=(50, 40, 30))


def test_matrices_by_the_command_line(run: Command, tmp_path: Path) -> None:
    a, b, c = (
        numbers(1, (70, 300), "bfloat16"),
        numbers(2, (300, 90), "bfloat16"),
        tmp_path / "c.npy",
    )
    left, right = save(tmp_path / "a", a), save(tmp_path / "b", b)
    done = run(
        "matmul",
        left,
        right,
        "-o",
        c,
        "--shape",
        "70x300x90",
        "--dtype",
        "bfloat16",
        "--cache",
        "8MiB",
        "--stats",
    )
    assert (done.stdout, done.returncode) == (b"", 0)
    assert b"matrices  70 x 300 x 90, 93.8 KiB" in done.stderr
    assert b"TFLOP/s" in done.stderr
    check_matrix(np.load(c), a, b)
    for arguments, text in (
        (("a", "b", "--shape", "71x300x90"), b"truncated"),
        (("a", "b", "--shape", "70x300"), b"a shape is three numbers"),
        (("a", "b", "--shape", "70x300x9", "--dtype", "bfloat16"), b"b: 54,000 bytes"),
        (("a", "b", "--shape", "70x300x90", "--dtype", "int8"), b"int8"),
        (("a", "gone", "--shape", "70x300x90", "--dtype", "bfloat16"), b"gone"),
        (("a", "b", "--shape", "70x300x90", "--page", "1000"), b"page"),
        (("a", "b"), b"a: a raw file needs --shape"),
    ):
        files = [str(tmp_path / name) for name in arguments[:2]]
        failed = run("matmul", *files, "-o", tmp_path / "z", *arguments[2:])
        assert failed.returncode == 2
        assert failed.stdout == b""
        assert len(failed.stderr.splitlines()) == 1
        assert text in failed.stderr
    assert names(tmp_path) == ["a", "b", "c.npy"]
