"""Products of matrices in files against NumPy's, on the CPU twin and on a GPU."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpufs
import ml_dtypes
import numpy as np
import pytest
from gpufs import _core, linear
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import Command

SETTINGS = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
DTYPES = {"float32": np.dtype("<f4"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def fs(request: pytest.FixtureRequest) -> Iterator[gpufs.Mount]:
    if request.param == "cuda" and not _core.examine_cuda()["gpus"]:
        pytest.skip("no GPU here")
    with gpufs.mount(device=request.param, cache="16MiB", page="4KiB") as made:
        yield made


def numbers(seed: int, shape: Any, dtype: str) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(DTYPES[dtype])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
def test_products_are_numpys(fs: gpufs.Mount, tmp_path: Path, rows: int, columns: int, dtype: str, seed: int) -> None:
    matrix, vector = numbers(seed, (rows, columns), dtype), numbers(seed + 1, columns, dtype)
    a, x = save(tmp_path / "a", matrix), save(tmp_path / "x", vector)
    result = linear.matvec(fs, a, x, tmp_path / "y", dtype=dtype, shape=(rows, columns))
    assert (result.rows, result.columns, result.bytes) == (rows, columns, matrix.nbytes)
    check(np.fromfile(tmp_path / "y", np.float32), matrix, vector)
    assert names(tmp_path) == ["a", "x", "y"]


@pytest.mark.parametrize("shape", [(1, 3_000_000), (3, 1_000_001), (40_000, 100), (5, 65_536)])
def test_matrices_larger_than_the_cache(fs: gpufs.Mount, tmp_path: Path, shape: tuple[int, int]) -> None:
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


def test_a_matrix_that_shrinks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matrix = numbers(1, (500, 1000), "float32")
    save(Path("a"), matrix), save(Path("x"), matrix[0])
    multiply = _core.matvec

    def shrink_and_multiply(*arguments: Any) -> None:
        os.truncate("a", 100_000)
        multiply(*arguments)

    monkeypatch.setattr(_core, "matvec", shrink_and_multiply)
    with gpufs.mount(device="cpu", cache="1MiB") as mount, pytest.raises(OSError, match="shorter") as caught:
        linear.matvec(mount, "a", "x", "y", dtype="float32", shape=(500, 1000))
    assert (caught.value.errno, caught.value.filename) == (errno.ENODATA, "a")
    assert names(tmp_path) == ["a", "x"]


def test_large_matrices_by_the_command_line(run: Command, tmp_path: Path) -> None:
    """On a GPU by the copy engine, whose kernels wait for the driver."""
    matrix, vector = numbers(1, (16384, 1024), "float32"), numbers(2, 1024, "float32")
    a, x = save(tmp_path / "a", matrix), save(tmp_path / "x", vector)
    done = run("matvec", a, x, "-o", tmp_path / "y", "--shape", "16384x1024", "--cache", "256MiB")
    assert (done.stderr, done.returncode) == (b"", 0)
    check(np.fromfile(tmp_path / "y", np.float32), matrix, vector)


def test_a_mount_that_writes_nothing_is_refused(tmp_path: Path) -> None:
    a, x = save(tmp_path / "a", numbers(1, (5, 4), "float32")), save(tmp_path / "x", numbers(1, 4, "float32"))
    with gpufs.mount(device="cpu", cache="1MiB", read_only=True) as mount, pytest.raises(OSError) as caught:
        linear.matvec(mount, a, x, tmp_path / "y", dtype="float32", shape=(5, 4))
    assert (caught.value.errno, caught.value.filename) == (errno.EROFS, str(tmp_path / "y"))
    assert names(tmp_path) == ["a", "x"]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    import resource

    a, x = save(tmp_path / "a", numbers(1, (50_000, 4), "float32")), save(tmp_path / "x", numbers(1, 4, "float32"))
    with gpufs.mount(device="cpu", cache="1MiB") as mount:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))  # as a disk that is full after so many bytes
        try:
            with pytest.raises(OSError) as caught:
                linear.matvec(mount, a, x, tmp_path / "y", dtype="float32", shape=(50_000, 4))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "y"))
    assert names(tmp_path) == ["a", "x"]


def test_the_command_line(run: Command, tmp_path: Path) -> None:
    matrix, vector = numbers(1, (70, 300), "bfloat16"), numbers(2, 300, "bfloat16")
    a, x, y = save(tmp_path / "a", matrix), save(tmp_path / "x", vector), tmp_path / "y.npy"
    done = run("matvec", a, x, "-o", y, "--shape", "70x300", "--dtype", "bfloat16", "--cache", "8MiB", "--stats")
    assert (done.stdout, done.returncode) == (b"", 0)
    assert b"matrix    70 x 300" in done.stderr
    check(np.load(y), matrix, vector)
    for arguments, text in (
        (("a", "x", "--shape", "71x300"), b"truncated"),
        (("a", "x", "--shape", "70"), b"a shape is two numbers"),
        (("a", "x", "--shape", "70x300", "--dtype", "int8"), b"int8"),
        (("a", "gone", "--shape", "70x300", "--dtype", "bfloat16"), b"gone"),
        (("a", "x"), b"a: "),
    ):
        files = [str(tmp_path / name) for name in arguments[:2]]
        failed = run("matvec", *files, "-o", tmp_path / "z", *arguments[2:])
        assert failed.returncode == 2
        assert failed.stdout == b""
        assert len(failed.stderr.splitlines()) == 1
        assert text in failed.stderr
    assert names(tmp_path) == ["a", "x", "y.npy"]
