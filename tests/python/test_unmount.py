"""The end of a mount: what was written and not closed, and what is told of bytes that are lost."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
from pathlib import Path

import gpufs
import pytest

from .conftest import FORKS, file_size_limit, in_child


def small_mount() -> gpufs.Mount:
    return gpufs.mount(device="cpu", cache="1MiB", cpu_threads=1, workers=1)


def test_what_no_file_object_closed_is_written(tmp_path: Path) -> None:
    path = tmp_path / "new"
    mount = small_mount()
    file = mount.open(path, "wb")
    file.write(b"open still", 5)
    mount.core.unmount()  # as if kernels of one's own had it open
    assert path.read_bytes() == bytes(5) + b"open still"
    assert mount.closed
    assert file.closed
    mount.unmount()
    assert mount.file_errors() == gpufs.FileErrors([], 0)


def test_what_cannot_be_written_is_an_error_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "new"
    mount = small_mount()
    file = mount.open(path, "wb")
    file.write(b"x" * 1000)
    with file_size_limit(100), pytest.raises(OSError, match="File too large") as caught:
        mount.core.unmount()
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(path)
    lost = gpufs.FileError(str(path), errno.EFBIG, "write-back", at_unmount=True, count=1)
    assert mount.file_errors() == gpufs.FileErrors([lost], 0)
    mount.unmount()
    assert mount.file_errors().errors == [lost]


def test_a_file_says_at_its_close_what_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with small_mount() as mount:
        file = mount.open(path, "wb")
        file.write(b"x" * 1000)
        with file_size_limit(100), pytest.raises(OSError, match="File too large") as caught:
            file.close()
        assert caught.value.filename == str(path)
        failed, lost = mount.file_errors().errors
        for kept in (failed, lost):
            assert (kept.path, kept.errno, kept.operation) == (str(path), errno.EFBIG, "write-back")
            assert not kept.at_unmount
            assert kept.count >= 1
        assert (failed.given_up, lost.given_up) == (False, True)


def test_the_end_of_a_with_block_says_what_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with contextlib.ExitStack() as limit:
        with pytest.raises(OSError, match="File too large") as caught, small_mount() as mount:
            file = mount.open(path, "wb")
            file.write(b"x" * 1000)
            limit.enter_context(file_size_limit(100))
        assert mount.closed
    assert caught.value.filename == str(path)


def test_the_end_of_a_with_block_says_what_a_file_lost_that_nobody_closed(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with contextlib.ExitStack() as limit:
        with pytest.raises(OSError, match="File too large") as caught, small_mount() as mount:
            file = mount.open(path, "wb")
            file.write(b"x" * 1000)
            limit.enter_context(file_size_limit(100))
            del file  # closed by the garbage collector, which raises nothing
            gc.collect()
            assert mount.file_errors().errors
        assert mount.closed
    assert caught.value.filename == str(path)


def test_a_file_that_raised_at_its_close_is_not_told_of_again(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with small_mount() as mount:
        file = mount.open(path, "wb")
        file.write(b"x" * 1000)
        with file_size_limit(100), pytest.raises(OSError, match="File too large"):
            file.close()
        del file
        gc.collect()


def test_an_exception_of_the_with_block_keeps_its_place(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with contextlib.ExitStack() as limit:
        with pytest.raises(ZeroDivisionError) as caught, small_mount() as mount:
            file = mount.open(path, "wb")
            file.write(b"x" * 1000)
            limit.enter_context(file_size_limit(100))
            raise ZeroDivisionError
        assert mount.closed
    (note,) = caught.value.__notes__
    assert "File too large" in note
    assert str(path) in note


def test_a_folder_can_be_synced(tmp_path: Path, mount: gpufs.Mount) -> None:
    mount.sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        mount.sync_folder(tmp_path / "none")
    assert caught.value.filename == str(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        mount.sync_folder(os.fsencode(tmp_path / "file"))


@FORKS
def test_a_forked_process_unmounts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with small_mount() as mount:
        file = mount.open(path, "wb")
        file.write(b"of the parent")
        assert in_child(mount.unmount) == "returned None"
        assert "RuntimeError" in in_child(mount.file_errors)
        assert path.read_bytes() == b""
    assert path.read_bytes() == b"of the parent"
