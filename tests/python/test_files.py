"""Files of a mount against Python's own, and against bytes in memory: opening and reading."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest

from .file_cases import CONTENT
from .file_operations import random_operations


def outcome_of(work: Callable[[], object]) -> object:
    try:
        return work()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def write_and_read(
    write: Callable[[bytes, int], object], read: Callable[[int, int], bytes]
) -> list[object]:
    return [
        outcome_of(lambda: read(100, 1)),
        outcome_of(lambda: write(b"new", 2)),
        outcome_of(lambda: write(b"newer", 20)),
        outcome_of(lambda: read(100, 0)),
    ]


def by_gpufs(mount: gpufs.Mount, path: Path, mode: str) -> list[object]:
    with mount.open(path, mode) as opened:
        return write_and_read(opened.write, lambda n, offset: bytes(opened.read(n, offset)))


def by_python(path: Path, mode: str) -> list[object]:
    with path.open(mode if "b" in mode else mode + "b", buffering=0) as opened:
        number = opened.fileno()
        return write_and_read(
            lambda data, offset: os.pwrite(number, data, offset),
            lambda n, offset: os.pread(number, n, offset),
        )


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(
    "mode",
    [plain + rest for plain in "rwax" for rest in ("", "b", "+", "+b", "b+")],
)
def test_modes_are_those_of_open(
    mount: gpufs.Mount, tmp_path: Path, mode: str, exists: bool
) -> None:
    paths = [tmp_path / "ours", tmp_path / "pythons"]
    if exists:
        for path in paths:
            path.write_bytes(b"before")
    ours = outcome_of(lambda: by_gpufs(mount, paths[0], mode))
    assert ours == outcome_of(lambda: by_python(paths[1], mode))
    assert [path.exists() for path in paths] in ([True, True], [False, False])
    if paths[0].exists():
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert paths[0].stat().st_mode == paths[1].stat().st_mode


@pytest.mark.parametrize(
    "mode", ["", "b", "+", "b+", "t", "rt", "w+t", "rw", "wa", "rr", "r++", "rbb", "U", "read"]
)
def test_other_modes_are_value_errors(mount: gpufs.Mount, file: Path, mode: str) -> None:
    with pytest.raises(ValueError, match="mode"):
        mount.open(file, mode)
    assert file.read_bytes() == CONTENT


@pytest.mark.parametrize("mode", [0, None, b"r"])
def test_a_mode_that_is_no_text_is_a_type_error(
    mount: gpufs.Mount, file: Path, mode: object
) -> None:
    with pytest.raises(TypeError, match="mode"):
        mount.open(file, mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["plain", "sp ace", "\N{SNOWMAN}", os.fsdecode(b"\xff")])
def test_paths_are_text_bytes_or_objects(mount: gpufs.Mount, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"content")
    for form in (path, str(path), os.fsencode(path)):
        with mount.open(form) as opened:
            assert opened.name == str(path)
            assert bytes(opened.read()) == b"content"
            assert [found.path for found in mount.file_stats()] == [str(path)]


def test_reads_give_what_is_in_the_file(small: gpufs.Mount, file: Path) -> None:
    size = len(CONTENT)
    with small.open(file) as opened:
        assert opened.size() == size
        for n, offset in [
            (-1, 0),
            (-1, 100_000),
            (10, 0),
            (70_000, 4095),
            (1, size - 1),
            (0, 5),
            (10**30, 7),
        ]:
            part = opened.read(n, offset)
            assert isinstance(part, np.ndarray)
            assert part.dtype == np.uint8
            assert part.tobytes() == CONTENT[offset : size if n < 0 else offset + n]
        assert np.array_equal(opened.read(), opened.read())


@pytest.mark.parametrize("offset", [len(CONTENT), len(CONTENT) + 1, 2**40, 2**63, 2**64, 2**70])
def test_behind_the_end_is_nothing(mount: gpufs.Mount, file: Path, offset: int) -> None:
    with mount.open(file) as opened:
        for n in (-1, 0, 1):
            assert opened.read(n, offset).shape == (0,)
        assert opened.readinto(np.zeros(4, np.uint8), offset) == 0
        assert opened.gather([], 4, offset=offset).shape == (0, 4)
        with pytest.raises(IndexError):
            opened.gather([0], 4, offset=offset)


def test_empty_files_have_nothing(mount: gpufs.Mount, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with mount.open(tmp_path / "empty") as opened:
        assert opened.size() == opened.stat().size == 0
        assert opened.read().shape == (0,)
        assert opened.gather(np.zeros((0, 2), int), 8).shape == (0, 2, 8)
        with pytest.raises(IndexError):
            opened.gather([0], 8)


def test_offsets_are_not_negative(mount: gpufs.Mount, file: Path) -> None:
    with mount.open(file, "r+") as opened:
        for use in (
            lambda: opened.read(1, -1),
            lambda: opened.readinto(np.zeros(1, np.uint8), -1),
            lambda: opened.gather([0], 4, offset=-1),
            lambda: opened.write(b"x", -1),
            lambda: opened.truncate(-1),
        ):
            with pytest.raises(ValueError, match="negative"):
                use()
    assert file.read_bytes() == CONTENT


class Number:
    """An integer of another library."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


# 200 + 200 does not fit into uint8.
@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int64, np.uint64, Number])
def test_integers_of_other_libraries_are_taken(
    mount: gpufs.Mount, file: Path, kind: Callable[[int], Any]
) -> None:
    with mount.open(file, "r+") as opened:
        assert opened.read(kind(200), kind(200)).tobytes() == CONTENT[200:400]
        assert opened.read(kind(0)).shape == (0,)
        out = np.zeros(100, np.uint8)
        assert opened.readinto(out, kind(200)) == 100
        assert out.tobytes() == CONTENT[200:300]
        assert opened.gather([1], kind(100), offset=kind(200)).tobytes() == CONTENT[300:400]
        assert opened.write(bytes(100), kind(200)) == 100
        assert opened.read(100, 200).tobytes() == bytes(100)
        opened.truncate(kind(120))
    assert file.read_bytes() == CONTENT[:120]
    with mount.array(file, "u1", kind(100), kind(10)) as array:
        assert [len(batch) for batch in array.batches(kind(60))] == [60, 40]


@pytest.mark.parametrize("wrong", [1.0, "1", None, np.float32(1), [1]])
def test_what_is_no_integer_is_a_type_error(mount: gpufs.Mount, file: Path, wrong: Any) -> None:
    with mount.open(file, "r+") as opened:
        for use in (
            lambda: opened.read(wrong),
            lambda: opened.read(1, wrong),
            lambda: opened.readinto(np.zeros(1, np.uint8), wrong),
            lambda: opened.gather([0], wrong),
            lambda: opened.gather([0], 1, offset=wrong),
            lambda: opened.write(b"x", wrong),
            lambda: opened.truncate(wrong),
        ):
            with pytest.raises(TypeError):
                use()
    assert file.read_bytes() == CONTENT


def test_reads_fill_arrays_that_are_given(mount: gpufs.Mount, file: Path) -> None:
    with mount.open(file) as opened:
        larger = np.full(20, 7, np.uint8)
        assert opened.read(10, 3, out=larger) is larger
        assert larger.tobytes() == CONTENT[3:13] + b"\x07" * 10
        wide = np.zeros((3, 5), "<f8")
        assert opened.readinto(wide, 11) == wide.nbytes
        assert wide.tobytes() == CONTENT[11:131]
        assert opened.readinto(larger, len(CONTENT) - 4) == 4
        assert larger.tobytes()[:4] == CONTENT[-4:]
        records = np.zeros((2, 6), np.uint8)
        assert opened.gather([1, 0], 6, out=records) is records
        assert records.tobytes() == CONTENT[6:12] + CONTENT[:6]


def read_only() -> np.ndarray:
    array = np.zeros(12, np.uint8)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        (np.zeros(11, np.uint8), ValueError, "11 bytes"),
        (np.zeros(24, np.uint8)[::2], ValueError, "C-contiguous"),
        (np.zeros((2, 6), np.uint8, order="F"), ValueError, "C-contiguous"),
        (read_only(), ValueError, "cannot be written"),
        (np.zeros(12, object), TypeError, "Python objects"),
        (np.zeros(12, [("a", object)]), TypeError, "Python objects"),
        (bytearray(12), TypeError, "NumPy array"),
        ([0] * 12, TypeError, "NumPy array"),
    ],
)
def test_arrays_that_cannot_be_filled_are_refused(
    mount: gpufs.Mount, file: Path, out: object, error: type[Exception], text: str
) -> None:
    with mount.open(file) as opened:
        for use in (lambda: opened.read(12, out=out), lambda: opened.gather([0, 1], 6, out=out)):
            with pytest.raises(error, match=text):
                use()
        if "11" not in text:
            with pytest.raises(error, match=text):
                opened.readinto(out)


class OnAGpu:
    """What says that it is an array in GPU memory, at an address that nobody may touch."""

    shape = (2,)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": "<i8",
            "data": (8, False),
            "strides": None,
        }


def test_arrays_of_a_gpu_are_not_for_the_cpu(mount: gpufs.Mount, file: Path) -> None:
    with mount.open(file, "r+") as opened, mount.array(file, "u1") as array:
        for use in (
            lambda: opened.read(16, out=OnAGpu()),
            lambda: opened.write(OnAGpu()),
            lambda: opened.gather(OnAGpu(), 4),
            lambda: array[OnAGpu()],
            lambda: array.take(OnAGpu()),
        ):
            with pytest.raises(TypeError, match=r"GPU|NumPy array"):
                use()


@pytest.mark.parametrize("record_bytes", [1, 7, 64, 4096, 5000, 70_000])
@pytest.mark.parametrize("offset", [0, 13])
def test_gather_reads_records(
    small: gpufs.Mount, file: Path, record_bytes: int, offset: int
) -> None:
    count = (len(CONTENT) - offset) // record_bytes
    records = np.frombuffer(CONTENT, np.uint8)[offset : offset + count * record_bytes].reshape(
        count, record_bytes
    )
    rng = np.random.default_rng(record_bytes)
    with small.open(file) as opened:
        for keep in ("auto", "always", "never"):
            for index in (
                rng.integers(-count, count, 50),
                rng.integers(0, min(count, 100), (3, 4), np.uint8),
                [0, -1, count - 1],
                [[0], [-count]],
                -1,
                [],
            ):
                expected = records[np.asarray(index, np.int64)]
                # type: ignore[arg-type]
                found = opened.gather(index, record_bytes, offset=offset, keep=keep)
                assert found.shape == expected.shape
                assert np.array_equal(found, expected)
        for wrong in (count, -count - 1, [0, count], 2**63 - 1, -(2**63)):
            with pytest.raises(IndexError):
                opened.gather(wrong, record_bytes, offset=offset)


def test_gather_refuses_what_it_cannot_do(mount: gpufs.Mount, file: Path) -> None:
    with mount.open(file) as opened:
        for record_bytes in (0, -1):
            with pytest.raises(ValueError, match="records"):
                opened.gather([0], record_bytes)
        with pytest.raises(ValueError, match="'sometimes'"):
            opened.gather([0], 4, keep="sometimes")  # type: ignore[arg-type]
        for index in ([0.5], "a", None, slice(2), [[0, 1], [2]]):
            with pytest.raises((IndexError, ValueError)):
                opened.gather(index, 4)
        with pytest.raises(ValueError, match="24 bytes, the result 8"):
            opened.gather([0, 1], 4, out=np.zeros(24, np.uint8))


def test_pages_stay_as_keep_says(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    time.sleep(2.1)  # what has changed less than two seconds ago gets a new version at each open
    # Without direct loads a page must come to the cache.
    with gpufs.mount(device="cpu", cache="1MiB", workers=1, cpu_threads=2) as mount:
        mount.register_file(tmp_path / "file")
        opened = mount.open(tmp_path / "file")
        for keep in ("never", "always"):
            opened.gather(np.arange(73), 4096, keep=keep)  # type: ignore[arg-type]
            before = mount.stats()["hits"]
            opened.gather(np.arange(73), 4096, keep=keep)  # type: ignore[arg-type]
            hits = mount.stats()["hits"] - before
            assert (hits >= 73) if keep == "always" or mount.direct_path != "on" else (hits < 73)


def test_status_is_the_hosts(mount: gpufs.Mount, file: Path) -> None:
    with mount.open(file) as opened:
        found, expected = opened.stat(), file.stat()
    assert found == gpufs.FileStatus(
        expected.st_size,
        expected.st_mtime_ns,
        expected.st_ctime_ns,
        expected.st_ino,
        expected.st_dev,
        expected.st_mode,
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_do_what_they_do_to_bytes(
    small: gpufs.Mount, tmp_path: Path, seed: int
) -> None:
    random_operations(small, tmp_path / "file", seed, 60)


def test_reads_into_new_memory_end_with_their_error(mount: gpufs.Mount, tmp_path: Path) -> None:
    """What :meth:`gpufs.File.read` does on a GPU."""
    (tmp_path / "file").write_bytes(bytes(range(200)))
    memory = mount.device_memory()
    with mount.open(tmp_path / "file") as file:
        core = file._core
        buffer = core.read_new(memory, 100, 50, 0)
        found = np.zeros(100, np.uint8)
        buffer.copy_to_host(found.ctypes.data, 100, found)
        assert found.tobytes() == bytes(range(50, 150))
        core.read_new(
            memory, 100, 150, 0
        )  # beyond the end, which the next call tells, before it reads
        with pytest.raises(OSError, match="the file ends at byte 200") as caught:
            core.read_new(memory, 100, 50, 0)
        assert caught.value.errno == errno.ENODATA
    with pytest.raises(ValueError, match="closed"):
        core.read_new(memory, 100, 50, 0)


def test_relative_paths_are_those_of_now(
    mount: gpufs.Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        Path("file").write_text(name)
        files.append(mount.open("file"))
        assert files[-1].read().tobytes() == name.encode()
        assert files[-1].name == "file"
        with pytest.raises(FileNotFoundError) as caught:
            mount.open("absent")
        assert caught.value.filename == "absent"
    for file in files:
        file.close()
