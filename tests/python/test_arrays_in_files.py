"""The files of arrays: their headers, their changes, and their errors."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any, BinaryIO

import gpufs
import ml_dtypes
import numpy as np
import pytest
from gpufs import _formats
from gpufs._layouts import ArrayLayout

from .array_files import TENSOR_TYPES, filled, npy, safetensors, same


def test_raw_files_say_their_length(mount: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "raw"
    content = filled((103,), "u1")
    path.write_bytes(content.tobytes())
    for dtype, shape, offset, expected in (
        ("<i4", None, 3, (25,)),
        ("<i4", 25, 1, (25,)),
        ("<f8", 5, 3, (5,)),
        ("u1", (-1, 10), 3, (10, 10)),
        ("bfloat16", (5, -1), 3, (5, 10)),
        (np.float16, (), 101, ()),
        (np.dtype("<c16"), (0, 4), 0, (0, 4)),
        ("u1", None, 103, (0,)),
    ):
        with mount.array(path, dtype, shape, offset) as file:
            assert file.shape == expected
            data = content.tobytes()[offset:][: file.nbytes]
            assert same(file[...], np.frombuffer(data, file.dtype).reshape(expected))


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the files whose headers were parsed."""
    found: list[int] = []
    own = _formats.read_safetensors_entries

    def parse(file: BinaryIO, size: int) -> dict[str, ArrayLayout | str]:
        found.append(size)
        return own(file, size)

    monkeypatch.setattr(_formats, "read_safetensors_entries", parse)
    return found


TENSORS = {f"layers.{number}": np.full(3, number, "<i4") for number in range(50)}


def test_a_header_is_parsed_once_for_all_tensors(
    mount: gpufs.Mount, tmp_path: Path, parses: list[int]
) -> None:
    path = safetensors(tmp_path / "model.safetensors", TENSORS)
    other = safetensors(tmp_path / "other.safetensors", {"layers.0": np.zeros(9, "u1")})
    time.sleep(
        2.1
    )  # what changed less than two seconds before may change once more without a trace
    for name, array in TENSORS.items():
        with mount.array(path, name=name) as file:
            assert same(file[...], array)
        with mount.array(other, name="layers.0") as file:
            assert file.shape == (9,)
    assert parses == [path.stat().st_size, other.stat().st_size]
    with pytest.raises(KeyError, match=r"no array 'layers\.x' in the file; close: 'layers\."):
        mount.array(path, name="layers.x")
    os.utime(path)  # changed, for all that one can tell
    mount.array(path, name="layers.0").close()
    assert len(parses) == 3


def test_headers_of_many_files_take_bounded_memory(
    mount: gpufs.Mount, tmp_path: Path, parses: list[int]
) -> None:
    paths = [
        safetensors(tmp_path / f"{number}.safetensors", {"a": np.zeros(9, "u1")})
        for number in range(9)
    ]
    time.sleep(2.1)
    for path in [*paths, paths[-1], paths[0]]:
        mount.array(path, name="a").close()
    assert len(parses) == 10  # the first one's was given up


def test_a_header_that_changes_is_seen(mount: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for number in range(20):  # of one size, at once
        safetensors(path, {f"name{number:02}": np.full(3, number, "<i4")})
        with mount.array(path, name=f"name{number:02}") as file:
            assert same(file[...], np.full(3, number, "<i4"))
        assert list(mount.tensors(path)) == [f"name{number:02}"]
    time.sleep(2.1)
    mount.array(path, name="name19").close()
    with mount.open(path, "r+b") as written:  # as a kernel does
        written.write(path.read_bytes().replace(b"name19", b"name20"))
        with mount.array(path, name="name20") as file:
            assert same(file[...], np.full(3, 19, "<i4"))


def test_tensors_are_listed(mount: gpufs.Mount, tmp_path: Path) -> None:
    content = {
        "b": np.zeros((2, 3), "<f4"),
        "a": np.zeros(5, ml_dtypes.bfloat16),
        "scalar": np.zeros((), "u1"),
    }
    path = safetensors(tmp_path / "model.safetensors", content)
    path.write_bytes(path.read_bytes().replace(b'"U8"', b'"F4"'))
    found = mount.tensors(path)
    begin = path.stat().st_size - 24 - 10 - 1
    assert found == {
        "b": gpufs.ArrayEntry("b", "float32", (2, 3), "C", begin, 24),
        "a": gpufs.ArrayEntry("a", "bfloat16", (5,), "C", begin + 24, 10),
        "scalar": gpufs.ArrayEntry("scalar", "F4", None, None, None, None),
    }
    found.clear()
    assert len(mount.tensors(path)) == 3
    (tmp_path / "text").write_text("no tensors here, but text")
    with pytest.raises(ValueError, match=r"text: not a safetensors file"):
        mount.tensors(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        mount.tensors(tmp_path / "missing")


def test_tensors_of_safetensors_have_names(mount: gpufs.Mount, tmp_path: Path) -> None:
    tensors = {
        f"layer.{number}": filled((number, 3), dtype) for number, dtype in enumerate(TENSOR_TYPES)
    }
    for padding in (0, 1, 10_000):
        path = safetensors(tmp_path / "model.safetensors", tensors, padding)
        for name, expected in tensors.items():
            with mount.array(path, name=name) as file:
                assert same(file[...], expected)
                assert same(file[::-1, 1:], expected[::-1, 1:])
    with pytest.raises(KeyError, match=r"layer\.9"):
        mount.array(path, name="layer.99")
    with pytest.raises(TypeError, match="name"):
        mount.array(path)
    assert mount.file_stats() == []


def test_a_file_that_changed_is_another_array(mount: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    for number in range(1, 6):
        array = filled((number * 100, number), "<f8")
        npy(path, array)
        with mount.array(path) as file:
            assert same(file[...], array)
    array[3] = 7.0
    with mount.open(path, "r+") as opened:
        opened.write(array[3], opened.size() - array.nbytes + 3 * array.strides[0])
    with mount.array(path) as file:
        assert same(file[...], array)
    assert same(np.load(path), array)


GOOD_NPY = (
    b"\x93NUMPY\x01\x00\x76\x00"
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }".ljust(117)
    + b"\n"
)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "truncated"),
        (b"\x93NUM", "truncated"),
        (b"no array at all", "NUMPY"),
        (GOOD_NPY[:40], "truncated"),
        (GOOD_NPY + bytes(7), "truncated"),
        (GOOD_NPY.replace(b"(2,)", b"(-2)") + bytes(8), "shape"),
        (GOOD_NPY.replace(b"<f4", b">f4") + bytes(8), "big-endian"),
        (GOOD_NPY.replace(b"'<f4'", b"'|O' ") + bytes(8), "Python objects"),
        (GOOD_NPY.replace(b"{", b"[") + bytes(8), "damaged"),
        (GOOD_NPY.replace(b"\x01\x00", b"\x09\x00", 1) + bytes(8), "version 9"),
    ],
)
def test_damaged_files_are_value_errors_that_name_them(
    mount: gpufs.Mount, tmp_path: Path, content: bytes, text: str
) -> None:
    path = tmp_path / "array.npy"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path}: .*{text}"):
        mount.array(path)
    assert mount.file_stats() == []


def test_arrays_of_objects_are_refused(mount: gpufs.Mount, tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([None, "text"]), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        mount.array(tmp_path / "objects.npy")


def test_the_good_header_is_good(mount: gpufs.Mount, tmp_path: Path) -> None:
    (tmp_path / "array.npy").write_bytes(GOOD_NPY + bytes(8))
    with mount.array(tmp_path / "array.npy") as file:
        assert same(file[:], np.zeros(2, "<f4"))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"dtype": "object"}, TypeError),
        ({"dtype": "U4"}, TypeError),
        ({"dtype": ">i4"}, TypeError),
        ({"dtype": "no type"}, TypeError),
        ({"dtype": "u1", "name": "tensor"}, TypeError),
        ({"shape": 3}, TypeError),
        ({"offset": 3}, TypeError),
        ({"dtype": "u1", "shape": 1.5}, TypeError),
        ({"dtype": "u1", "shape": (101,)}, ValueError),
        ({"dtype": "<f4", "shape": (25,), "offset": 1}, ValueError),
        ({"dtype": "u1", "shape": (-1, -1)}, ValueError),
        ({"dtype": "u1", "shape": (-2,)}, ValueError),
        ({"dtype": "u1", "shape": (2**50,)}, ValueError),
        ({"dtype": "u1", "offset": -1}, ValueError),
        ({"dtype": "u1", "offset": 101}, ValueError),
        ({"name": "tensor"}, ValueError),
    ],
)
def test_arrays_that_cannot_be_are_refused(
    mount: gpufs.Mount, tmp_path: Path, arguments: dict[str, Any], error: type[Exception]
) -> None:
    (tmp_path / "raw").write_bytes(bytes(100))
    with pytest.raises(error):
        mount.array(tmp_path / "raw", **arguments)
    assert mount.file_stats() == []


def test_errors_of_opens_name_the_file(mount: gpufs.Mount, tmp_path: Path) -> None:
    for path, kind in ((tmp_path / "none.npy", FileNotFoundError), (tmp_path, IsADirectoryError)):
        for arguments in ({}, {"dtype": "u1"}, {"name": "tensor"}):
            with pytest.raises(kind) as caught:
                mount.array(path, **arguments)
            assert caught.value.filename == str(path)


def test_closed_arrays_refuse_work(mount: gpufs.Mount, tmp_path: Path) -> None:
    with mount.array(npy(tmp_path / "array.npy", np.arange(3))) as file:
        pass
    file.close()
    assert file.file.closed
    assert (file.shape, len(file)) == ((3,), 3)
    for use in (
        lambda: file[...],
        lambda: file[:0],
        lambda: file.take([0]),
        lambda: list(file.batches(1)),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    path = npy(tmp_path / "array.npy", filled((1000, 1000), "<i4"))
    with (
        gpufs.mount(device="cpu", cache="512KiB", workers=1, cpu_threads=2) as mount,
        mount.array(path) as file,
    ):
        os.truncate(path, 5000)
        for key in (
            ...,
            500,
            (slice(None, None, 300), 3),
            (slice(900, 1000), slice(100, 200)),
            [700, 900],
        ):
            for keep in ("auto", "never"):
                with pytest.raises(OSError, match="the file ends at byte") as caught:
                    file.read(key, keep=keep)  # type: ignore[arg-type]
                assert (caught.value.errno, caught.value.filename) == (errno.ENODATA, str(path))
        assert file[0].nbytes == 4000


def test_files_that_say_their_types_are_not_raw(mount: gpufs.Mount, tmp_path: Path) -> None:
    path = npy(tmp_path / "array.npy", filled((4, 8), "<f4"))
    with pytest.raises(TypeError, match="the file says its types itself"):
        mount.array(path, "<f4")
    with mount.array(path, "<f4", 32, path.stat().st_size - 128) as items:
        assert items.shape == (32,)
