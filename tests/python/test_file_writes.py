"""Writes to files of a mount, and what readers and other programs see of them."""

from __future__ import annotations

import errno
import functools
import subprocess
from pathlib import Path

import gpufs
import numpy as np
import pytest

from .file_cases import CONTENT, errno_of, run_threads


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
