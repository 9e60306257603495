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
        assert (failed.discarded, lost.discarded) == (False, True)


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


def lose(mount: gpufs.Mount, path: os.PathLike[str] | str, *, closes: bool) -> None:
    """Loses bytes of a file. Without a close, no exception says so."""
    file = mount.open(path, "r+b")
    file.write(b"x" * 1000, 4096)
    with file_size_limit(4096):
        if closes:
            with pytest.raises(OSError, match="File too large"):
                file.close()
        del file
        gc.collect()


def test_a_file_that_loses_bytes_again_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 4096)
    with pytest.raises(OSError, match="File too large") as caught, small_mount() as mount:
        lose(mount, path, closes=True)
        with mount.open(path, "r+b") as file:  # what fits is written
            file.write(b"b" * 4096)
        lose(mount, path, closes=False)
    assert caught.value.filename == str(path)


def test_a_close_that_loses_nothing_hides_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 4096)
    with pytest.raises(OSError, match="File too large") as caught, small_mount() as mount:
        first, other = mount.open(path, "r+b"), mount.open(path, "r+b")
        first.write(b"x" * 1000, 4096)
        with file_size_limit(4096):
            with pytest.raises(OSError, match="File too large"):
                first.close()  # the other file may still write the bytes
            del other
            gc.collect()
    assert caught.value.filename == str(path)


def test_unmounting_names_the_file_that_was_not_told_of(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("told", "new")]
    with pytest.raises(OSError, match="File too large") as caught, small_mount() as mount:
        for path in paths:
            path.write_bytes(b"a" * 4096)
            lose(mount, path, closes=path == paths[0])
    assert caught.value.filename == str(paths[1])


@pytest.mark.parametrize("rooted", [True, False])
def test_a_relative_path_that_raised_at_its_close_is_not_told_of_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rooted: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"a" * 4096)
    root = {"root": tmp_path} if rooted else {}
    with gpufs.mount(device="cpu", cache="1MiB", cpu_threads=1, workers=1, **root) as mount:
        lose(mount, "file", closes=True)


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
