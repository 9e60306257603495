"""Files of a mount against Python's own, and against bytes in memory."""

from __future__ import annotations

import errno
import functools
import gc
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest

from .conftest import FORKS, file_size_limit, in_child, run_program
from .file_operations import random_operations

CONTENT = np.random.default_rng(1).integers(0, 256, 700_001, np.uint8).tobytes()

# With a cache that is smaller than CONTENT.
SHAPES = [(512, "64KiB"), (4096, "128KiB"), (65536, "512KiB")]


@pytest.fixture(params=SHAPES, ids=lambda shape: f"pages of {shape[0]}")
def small(request: pytest.FixtureRequest) -> Iterator[gpufs.Mount]:
    page, cache = request.param
    with gpufs.mount(device="cpu", page=page, cache=cache, cpu_threads=2, workers=1) as made:
        assert made.cache_bytes < len(CONTENT)
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


def mount_of_cpu(**options: object) -> gpufs.Mount:
    return gpufs.mount(
        **({"device": "cpu", "cache": "4MiB", "workers": 1, "cpu_threads": 2} | options)
    )  # type: ignore[arg-type]


def errno_of(error: type[OSError], use: Callable[[], object], path: Path | None) -> int | None:
    with pytest.raises(error) as caught:
        use()
    assert caught.value.filename == (path if path is None else str(path))
    return caught.value.errno


def run_threads(*works: Callable[[], object]) -> list[BaseException]:
    errors: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


# ---- Modes


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


# ---- Reading


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


# ---- Gathering


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


# ---- Writing


def test_readers_see_what_is_written_in_their_mount(mount: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "shared"
    with mount.open(path, "w+b") as writes, mount.open(path) as reads:
        assert reads.read().nbytes == 0
        for end in (30, 5000, 5010):
            writes.write(b"x" * end)
            assert (reads.size(), reads.read().nbytes) == (end, end)
        writes.truncate(7)
        assert reads.read().tobytes() == b"x" * 7


def test_opening_anew_empties_a_file_that_is_open(mount: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "output"
    with mount.open(path, "wb") as first:
        first.write(b"what was there before")
        with mount.open(path, "wb") as second:
            second.write(b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("mode", ["wb", "w+b", "ab", "xb"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_path_that_stands_for_another_file_by_now_is_opened_as_that(
    mount: gpufs.Mount, tmp_path: Path, mode: str, is_kept: bool
) -> None:
    path, final = tmp_path / "new", tmp_path / "final"
    first = mount.open(path, "wb")
    for number in range(3):
        first.write(b"good %d" % number)
        first.fsync()
        if is_kept:
            path.replace(final)
        else:
            path.unlink()
        second = mount.open(path, "wb" if mode == "xb" and number == 2 else mode)
        second.write(b"the next")
        if is_kept:
            assert final.read_bytes() == b"good %d" % number
        second.fsync()
        assert path.read_bytes() == b"the next"
        first.close()
        if is_kept:
            assert final.read_bytes() == b"good %d" % number
        second.truncate(0)
        first = second if mode != "ab" else mount.open(path, "wb")
    first.close()


def test_other_programs_read_what_was_written(small: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "new"
    with small.open(path, "x") as opened:
        assert opened.write(CONTENT) == len(CONTENT)
        opened.fsync()
        assert subprocess.run(["cat", path], capture_output=True, check=True).stdout == CONTENT
        assert opened.write(b"other", 100_000) == 5
    assert subprocess.run(["cat", path], capture_output=True, check=True).stdout == (
        CONTENT[:100_000] + b"other" + CONTENT[100_005:]
    )


def test_what_other_programs_wrote_is_read_at_the_next_open(mount: gpufs.Mount, file: Path) -> None:
    for number in range(5):
        content = bytes([number]) * (5000 + number)
        file.write_bytes(content)
        with mount.open(file) as opened:
            assert opened.size() == len(content)
            assert opened.read().tobytes() == content


@pytest.mark.parametrize(
    "data",
    [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"memory")[2:],
        b"",
        np.arange(10, dtype="<u2"),
        np.arange(10, dtype="<u2")[::-3],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.float32(1.5),
        np.zeros((0, 3)),
    ],
)
def test_bytes_of_buffers_and_arrays_are_written(
    mount: gpufs.Mount, tmp_path: Path, data: object
) -> None:
    # type: ignore[call-overload]
    expected = data.tobytes() if isinstance(data, (np.ndarray, np.generic)) else bytes(data)
    with mount.open(tmp_path / "new", "w") as opened:
        assert opened.write(data, 3) == len(expected)
    assert (tmp_path / "new").read_bytes() == (b"\0\0\0" + expected if expected else b"")


@pytest.mark.parametrize("data", ["text", None, 5, [1, 2], np.array([None]), object()])
def test_what_has_no_bytes_is_not_written(mount: gpufs.Mount, tmp_path: Path, data: object) -> None:
    with mount.open(tmp_path / "new", "w") as opened, pytest.raises(TypeError):
        opened.write(data)
    assert (tmp_path / "new").read_bytes() == b""


def test_appends_go_to_the_end(mount: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0\n")
    with mount.open(path, "a+") as opened:
        assert opened.write(b"1\n") == 2
        assert opened.write(b"2\n", 1000) == 2
        assert opened.size() == 6
        assert bytes(opened.read()) == b"0\n1\n2\n"
    assert path.read_bytes() == b"0\n1\n2\n"


def test_appends_of_threads_are_in_one_piece_each(mount: gpufs.Mount, tmp_path: Path) -> None:
    path, count = tmp_path / "log", 300_000

    def work(number: int) -> None:
        with mount.open(path, "a") as opened:
            for _ in range(5):
                opened.write(np.full(count, number, np.uint8))

    assert run_threads(*(functools.partial(work, number) for number in range(3))) == []
    found = np.frombuffer(path.read_bytes(), np.uint8).reshape(15, count)
    assert (found == found[:, :1]).all()
    assert sorted(found[:, 0]) == sorted([0, 1, 2] * 5)


def test_truncating_cuts_and_extends(mount: gpufs.Mount, file: Path) -> None:
    with mount.open(file, "r+") as opened:
        opened.truncate(5000)
        assert opened.size() == 5000
        assert bytes(opened.read()) == CONTENT[:5000]
        opened.truncate(9000)
        assert opened.stat().size == 9000
        assert bytes(opened.read(-1, 4990)) == CONTENT[4990:5000] + bytes(4000)
        opened.fsync()
        assert file.stat().st_size == 9000
        opened.truncate(0)
        assert opened.read().shape == (0,)
    assert file.read_bytes() == b""


def test_sizes_and_offsets_have_an_end(mount: gpufs.Mount, file: Path) -> None:
    with mount.open(file, "r+") as opened:
        for size in (2**63 - 1, 2**63, 2**64, 2**80):
            for use in (
                lambda end=size: opened.write(b"x", end),
                lambda end=size: opened.truncate(end),
            ):
                assert errno_of(OSError, use, file) == errno.EFBIG
        opened.write(b"still", 1)
    assert file.read_bytes()[1:6] == b"still"


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


# ---- Errors


def test_errors_of_opens_name_the_file(mount: gpufs.Mount, tmp_path: Path, file: Path) -> None:
    missing = tmp_path / "none"
    assert errno_of(FileNotFoundError, lambda: mount.open(missing), missing) == errno.ENOENT
    assert errno_of(FileNotFoundError, lambda: mount.open(missing, "r+"), missing) == errno.ENOENT
    assert (
        errno_of(FileNotFoundError, lambda: mount.open(missing / "x", "w"), missing / "x")
        == errno.ENOENT
    )
    assert errno_of(NotADirectoryError, lambda: mount.open(file / "x"), file / "x") == errno.ENOTDIR
    assert errno_of(FileExistsError, lambda: mount.open(file, "x"), file) == errno.EEXIST
    for mode in ("r", "r+", "w", "a"):
        assert (
            errno_of(IsADirectoryError, lambda mode=mode: mount.open(tmp_path, mode), tmp_path)
            == errno.EISDIR
        )
    long = tmp_path / ("n" * 5000)
    assert errno_of(OSError, lambda: mount.open(long), long) == errno.ENAMETOOLONG
    assert errno_of(OSError, lambda: mount.open("/dev/null"), Path("/dev/null")) == errno.EINVAL
    with pytest.raises(FileNotFoundError) as caught:
        mount.open("")
    assert caught.value.filename == ""
    assert mount.file_stats() == []
    assert not missing.exists()


def test_files_of_others_are_refused(mount: gpufs.Mount, file: Path) -> None:
    file.parent.chmod(0o711)
    file.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # of all threads
    try:
        for mode in ("r", "r+", "w", "a"):
            assert (
                errno_of(PermissionError, lambda mode=mode: mount.open(file, mode), file)
                == errno.EACCES
            )
    finally:
        os.seteuid(user)


def test_what_a_file_was_not_opened_for_it_refuses(mount: gpufs.Mount, file: Path) -> None:
    with mount.open(file) as opened:
        for use in (
            lambda: opened.write(b""),
            lambda: opened.write(b"x"),
            lambda: opened.truncate(0),
            opened.fsync,
        ):
            assert errno_of(OSError, use, file) == errno.EBADF
    with mount.open(file, "a") as opened:
        for use in (
            opened.read,
            lambda: opened.read(0),
            lambda: opened.readinto(np.zeros(1, np.uint8)),
            lambda: opened.gather([0], 1),
        ):
            assert errno_of(OSError, use, file) == errno.EBADF
        assert opened.size() == len(CONTENT)
    assert file.read_bytes() == CONTENT


def test_mounts_that_are_read_only_change_nothing(file: Path) -> None:
    with gpufs.mount(device="cpu", cache="1MiB", workers=1, read_only=True) as mount:
        for mode in ("r+", "w", "a", "w+", "a+"):
            assert errno_of(OSError, lambda mode=mode: mount.open(file, mode), file) == errno.EROFS
        new = file.with_name("new")
        assert errno_of(OSError, lambda: mount.open(new, "x"), new) == errno.EROFS
        assert not new.exists()
        with mount.open(file) as opened:
            assert opened.read().tobytes() == CONTENT


def test_mounts_of_a_folder_stay_in_it(tmp_path: Path, file: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(file)
    with gpufs.mount(device="cpu", cache="1MiB", workers=1, root=inside) as mount:
        with mount.open("new", "w+") as opened:
            opened.write(b"content")
        with mount.open(b"new") as opened:
            assert (opened.name, bytes(opened.read())) == ("new", b"content")
        for path in ("../file", "link", str(file)):
            with pytest.raises(OSError, match=r"file|link") as caught:
                mount.open(path)
            assert caught.value.filename == path
            assert caught.value.errno in (errno.EXDEV, errno.ENOENT)
    assert (inside / "new").read_bytes() == b"content"


@pytest.mark.parametrize("pinned", [None, 0])
def test_a_file_that_shrinks_is_an_error(tmp_path: Path, pinned: int | None) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT * 10)
    with (
        gpufs.mount(device="cpu", cache="512KiB", workers=1, cpu_threads=2, pinned=pinned) as mount,
        mount.open(path) as opened,
    ):
        assert opened.read(10, 5).tobytes() == CONTENT[5:15]
        os.truncate(path, 10_000)
        for use in (
            lambda: opened.read(100_000, 2_000_000),
            lambda: opened.gather([2_000_000, 2_500_000], 1),
            lambda: opened.gather([600], 4096),
            lambda: opened.gather([600], 4096, keep="never"),
        ):
            assert errno_of(OSError, use, path) == errno.ENODATA
        assert opened.read(100, 9000).tobytes() == CONTENT[9000:9100]  # an error is told once
    with mount_of_cpu() as mount, mount.open(path) as opened:
        assert opened.size() == 10_000


def test_each_read_raises_its_own_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    os.truncate(path, 64 << 20)
    with mount_of_cpu(pinned=0) as mount, mount.open(path) as opened:
        os.truncate(path, 32 << 20)  # of which the mount has heard nothing
        index = np.arange(1_000_000) % 1000
        index[0] = 40 << 20
        errors: list[BaseException] = []

        def read_past_the_end() -> None:
            errors.extend(run_threads(lambda: opened.gather(index, 1)))

        long = threading.Thread(target=read_past_the_end)
        long.start()
        while long.is_alive():
            assert opened.read(10, 5).tobytes() == CONTENT[5:15]
        long.join()
        assert [getattr(error, "errno", error) for error in errors] == [errno.ENODATA]


def test_each_write_raises_its_own_error(mount: gpufs.Mount, file: Path) -> None:
    with mount.open(file, "r+") as opened:
        begun = threading.Barrier(4)

        def write_past_the_end() -> None:
            begun.wait()
            for _ in range(1000):
                with pytest.raises(OSError, match="too large"):
                    opened.write(b"zz", 1 << 48)

        def read() -> None:
            begun.wait()
            for _ in range(3000):
                assert opened.read(10, 5).tobytes() == CONTENT[5:15]

        assert run_threads(write_past_the_end, write_past_the_end, read, read) == []
        opened.fsync()


def test_what_does_not_fit_is_told_by_fsync(mount: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "new"
    with mount.open(path, "w+") as opened:
        with file_size_limit(100_000):
            opened.write(CONTENT)
            assert errno_of(OSError, opened.fsync, path) == errno.EFBIG
        opened.fsync()  # what could not be written back was kept
    assert path.read_bytes() == CONTENT


def test_what_does_not_fit_is_told_by_close(mount: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "new"
    opened = mount.open(path, "w+")
    with file_size_limit(100_000):
        opened.write(CONTENT)
        assert errno_of(OSError, opened.close, path) == errno.EFBIG
    assert opened.closed
    opened.close()
    assert mount.file_stats() == []
    assert path.read_bytes() == CONTENT[: path.stat().st_size]


# On the CPU device, Python checks each call at its end. These tests use the core directly, as on a
# GPU, where the check comes later.


def begin_to_read(opened: gpufs.File, offset: int) -> None:
    to = np.empty(10, np.uint8)
    opened._core.read(to.ctypes.data, to.nbytes, offset, 0, to, None)


def test_what_is_lost_is_told_before_a_read_that_failed(mount: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "new"
    opened = mount.open(path, "w+")
    with file_size_limit(100_000):
        opened.write(CONTENT)
        begin_to_read(opened, 2_000_000)  # past the end
        with pytest.raises(
            OSError, match="File too large; before that: the file ends at byte"
        ) as caught:
            opened.close()
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))


def test_unmounting_tells_what_is_lost_before_a_read_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "new"
    mount = mount_of_cpu()
    opened = mount.open(path, "w+")
    with file_size_limit(100_000):
        opened.write(CONTENT)
        begin_to_read(opened, 2_000_000)
        del opened  # nobody closed it
        gc.collect()
        with pytest.raises(OSError, match="File too large; before that: ") as caught:
            mount.close()
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))


def test_a_read_that_fails_later_hides_no_write_that_failed(
    mount: gpufs.Mount, tmp_path: Path
) -> None:
    path, size = tmp_path / "long", 64 << 20
    path.touch()
    os.truncate(path, size)
    with mount.open(path, "r+") as opened:
        before = mount.stats()["read_bytes"]
        to, data = np.empty(size + 10, np.uint8), np.zeros(10, np.uint8)
        read = functools.partial(
            opened._core.read, to.ctypes.data, to.nbytes, 0, 0, to, None
        )  # past the end
        reading = threading.Thread(target=read)
        reading.start()
        while mount.stats()["read_bytes"] == before and reading.is_alive():
            time.sleep(0.001)
        told = []

        def ask(call: Callable[[], object]) -> None:
            try:
                call()
            except OSError as error:
                told.append(error.errno)

        for _ in range(2):  # the first call may tell of the read
            ask(
                lambda: opened._core.write(
                    data.ctypes.data, data.nbytes, 1 << 48, False, 0, data, None
                )
            )
            if told != [errno.ENODATA]:
                break
        reading.join()
        ask(opened.check)
        ask(opened.check)
        assert sorted(told) == sorted([errno.EFBIG, errno.ENODATA])


def test_unmounting_closes_files_and_raises_their_first_error(tmp_path: Path) -> None:
    mount = mount_of_cpu()
    files = [mount.open(tmp_path / str(number), "w+") for number in range(3)]
    with file_size_limit(100_000):
        for opened in files:
            opened.write(CONTENT)
        with pytest.raises(OSError, match="too large") as caught:
            mount.close()
    assert caught.value.errno == errno.EFBIG
    assert Path(caught.value.filename).parent == tmp_path
    assert all(opened.closed for opened in files)
    assert mount.closed
    mount.close()


def test_unmounting_writes_back_what_open_files_have(tmp_path: Path) -> None:
    with mount_of_cpu() as mount:
        opened = mount.open(tmp_path / "new", "w")
        opened.write(CONTENT)
    assert opened.closed
    assert (tmp_path / "new").read_bytes() == CONTENT


# ---- Closing


def uses(opened: gpufs.File) -> list[Callable[[], object]]:
    return [
        opened.size,
        opened.stat,
        opened.read,
        lambda: opened.read(0),
        lambda: opened.read(1, 10**9),
        lambda: opened.readinto(np.zeros(4, np.uint8)),
        lambda: opened.gather([0], 4),
        lambda: opened.gather([], 4),
        lambda: opened.write(b"x"),
        lambda: opened.write(b""),
        lambda: opened.truncate(1),
        opened.fsync,
        opened.wait,
        lambda: opened.descriptor,
    ]


@pytest.mark.parametrize("mode", ["r", "r+", "a"])
def test_closed_files_refuse_work_but_not_closing(
    mount: gpufs.Mount, file: Path, mode: str
) -> None:
    with mount.open(file, mode) as opened:
        assert not opened.closed
        assert repr(opened) == f"<gpufs.File {str(file)!r}>"
        opened.size()
    assert opened.closed
    assert repr(opened) == f"<gpufs.File {str(file)!r} closed>"
    opened.close()
    opened.check()
    for use in uses(opened):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert file.read_bytes() == CONTENT


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_files_are_closed_with_their_mount(file: Path, mode: str) -> None:
    with mount_of_cpu() as mount:
        opened = mount.open(file, mode)
        opened.size()
    assert opened.closed
    assert opened.mount is mount
    opened.close()
    for use in [*uses(opened), lambda: mount.open(file), lambda: mount.array(file, "u1")]:
        with pytest.raises(ValueError, match="closed"):
            use()


def test_an_exception_leaves_the_block_with_the_file_closed(mount: gpufs.Mount, file: Path) -> None:
    with pytest.raises(ZeroDivisionError), mount.open(file) as opened:
        raise ZeroDivisionError
    assert opened.closed


def test_files_that_are_garbage_are_closed(mount: gpufs.Mount, file: Path) -> None:
    opened = mount.open(file)
    array = mount.array(file, "u1")
    (found,) = mount.file_stats()
    assert (found.path, found.size, found.holders) == (str(file), len(CONTENT), 2)
    part = array[:10]
    del opened, array
    gc.collect()
    assert mount.file_stats() == []
    assert part.tobytes() == CONTENT[:10]


def test_garbage_is_written_back(mount: gpufs.Mount, tmp_path: Path) -> None:
    opened = mount.open(tmp_path / "new", "w")
    opened.write(CONTENT)
    del opened
    gc.collect()
    assert (tmp_path / "new").read_bytes() == CONTENT


def test_a_file_keeps_its_mount(file: Path) -> None:
    opened = mount_of_cpu().open(file)
    gc.collect()
    assert opened.read().tobytes() == CONTENT
    opened.mount.close()


# ---- Threads and processes


def test_threads_share_a_file(small: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.write_bytes(bytes(200_000))
    with small.open(path, "r+") as opened:

        def work(number: int) -> None:
            rng = random.Random(number)
            first, model = number * 49_999, bytearray(49_000)
            for _ in range(30):
                offset, count = rng.randrange(40_000), rng.randrange(9000)
                data = rng.randbytes(count)
                opened.write(data, first + offset)
                model[offset : offset + count] = data
                assert opened.read(49_000, first).tobytes() == model

        assert run_threads(*(functools.partial(work, number) for number in range(4))) == []


def test_threads_share_a_mount(mount: gpufs.Mount, tmp_path: Path) -> None:
    works = [
        functools.partial(random_operations, mount, tmp_path / str(number), number, 30)
        for number in range(4)
    ]
    assert run_threads(*works) == []
    assert mount.file_stats() == []


def test_threads_open_while_others_close(file: Path) -> None:
    for _ in range(3):
        mount = mount_of_cpu()

        def work(mount: gpufs.Mount = mount) -> None:
            while True:
                opened = mount.open(file)
                assert opened.read(10, 100).tobytes() == CONTENT[100:110]

        def close(mount: gpufs.Mount = mount) -> None:
            while mount.stats()["opens"] + mount.stats()["reopens"] < 20:
                pass
            mount.close()

        errors = run_threads(work, work, close)
        assert [type(error) for error in errors] == [ValueError] * 2
        assert all("closed" in str(error) for error in errors)


def test_closing_a_file_waits_for_other_threads(mount: gpufs.Mount, file: Path) -> None:
    for _ in range(5):
        opened = mount.open(file, "r+")
        started = threading.Barrier(3)

        def work(opened: gpufs.File = opened, started: threading.Barrier = started) -> None:
            started.wait()
            while True:
                assert opened.read().tobytes() == CONTENT
                opened.write(CONTENT[:100])

        def close(opened: gpufs.File = opened, started: threading.Barrier = started) -> None:
            started.wait()
            threading.Event().wait(0.01)
            opened.close()

        errors = run_threads(work, work, close)
        assert [(type(error), "closed" in str(error)) for error in errors] == [
            (ValueError, True)
        ] * 2
    assert file.read_bytes() == CONTENT


@FORKS
def test_forked_processes_get_an_error_and_the_parent_goes_on(
    mount: gpufs.Mount, file: Path
) -> None:
    with mount.open(file, "r+") as opened, mount.array(file, "u1") as array:
        opened.write(b"x", 5)
        for use in [
            *uses(opened),
            lambda: array[3],
            lambda: mount.open(file),
            lambda: mount.array(file, "u1"),
        ]:
            assert "RuntimeError: this gpufs mount belongs to the parent process" in in_child(use)
        assert in_child(lambda: opened.closed) == "returned True"
        assert in_child(opened.close) == "returned None"
        assert in_child(array.close) == "returned None"
        assert opened.read(3, 4).tobytes() == CONTENT[4:5] + b"x" + CONTENT[6:7]
    assert file.read_bytes() == CONTENT[:5] + b"x" + CONTENT[6:]


def test_forked_processes_with_open_files_end_well(tmp_path: Path) -> None:
    program = """
import os, sys, gpufs
mount = gpufs.mount(device="cpu", cache="1MiB")
file = mount.open(sys.argv[1], "w+")
file.write(b"content")
if os.fork() == 0:
    with file:
        pass
    sys.exit(7)  # runs the exit handlers
_, status = os.wait()
print(os.waitstatus_to_exitcode(status), bytes(file.read()))
"""
    assert run_program(program, tmp_path / "new") == "7 b'content'\n"
    assert (tmp_path / "new").read_bytes() == b"content"


def test_forked_processes_end_also_if_a_thread_was_opening_a_file(file: Path) -> None:
    program = """
import os, sys, gpufs
mount = gpufs.mount(device="cpu", cache="1MiB")
with mount.open(sys.argv[1]):
    mount._latch.acquire()
    if os.fork() == 0:
        sys.exit(7)
    mount._latch.release()
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert run_program(program, file) == "7\n"


def test_files_left_open_are_written_back_when_the_interpreter_ends(tmp_path: Path) -> None:
    program = """
import sys, gpufs
mount = gpufs.mount(device="cpu", cache="1MiB")
kept = [mount.open(sys.argv[1], "w"), mount.array(sys.argv[2], "u1")]
kept.append(kept)
kept[0].write(kept[1][:])
"""
    (tmp_path / "old").write_bytes(CONTENT)
    assert run_program(program, tmp_path / "new", tmp_path / "old") == ""
    assert (tmp_path / "new").read_bytes() == CONTENT


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


def test_every_close_waits_until_all_is_written(tmp_path: Path) -> None:
    data = bytes(range(256)) * 64
    for attempt in range(150):
        path = tmp_path / str(attempt)
        mount = gpufs.mount(device="cpu", cache="1MiB", workers=1, cpu_threads=2)
        file = mount.open(path, "wb")
        file.write(data)
        both = threading.Barrier(2)

        def close_in_another_thread(
            file: gpufs.File = file, both: threading.Barrier = both
        ) -> None:
            both.wait()
            file.close()

        other = threading.Thread(target=close_in_another_thread)
        other.start()
        both.wait()
        if attempt % 2:
            file.close()
        else:
            mount.close()
        assert path.read_bytes() == data
        other.join()
        mount.close()


def test_who_opens_sees_what_is_there_now(mount: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "file"
    opened = []
    for content in (
        b"one",
        b"two",
        b"three and more",
        b"four",
    ):  # as a cell of a notebook, run again
        path.write_bytes(content)
        opened.append(mount.open(path))
        assert opened[-1].read().tobytes() == content
    (tmp_path / "new").write_bytes(b"another file")
    (tmp_path / "new").replace(path)
    opened.append(mount.open(path))
    assert opened[-1].read().tobytes() == b"another file"
    path.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        mount.open(path)
    assert caught.value.filename == str(path)
    for file in opened:
        file.close()


def test_a_file_that_goes_on_changing_has_the_size_of_its_open(
    mount: gpufs.Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpufs.File, "_is_current", lambda *_: False)
    path = tmp_path / "file"
    path.write_bytes(b"one")
    with mount.open(path):
        path.write_bytes(b"three and more")
        with mount.open(path) as file:
            assert (file.size(), file.read().tobytes()) == (14, b"three and more")


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
