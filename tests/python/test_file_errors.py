"""Errors of files, and which call raises them."""

from __future__ import annotations

import errno
import functools
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import gpufs
import numpy as np
import pytest

from .conftest import file_size_limit
from .file_cases import CONTENT, errno_of, mount_of_cpu, run_threads


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
