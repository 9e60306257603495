"""What files of a mount refuse, and what is no mistake: closing again, also in a process that was forked off."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import gpufs
import numpy as np
import pytest


@pytest.mark.parametrize(
    "data", ["text", object(), [b"bytes", None], np.array(["text"]), np.array([{}], object)], ids=repr
)
def test_what_has_no_bytes_of_its_own_is_not_written(mount: gpufs.Mount, tmp_path: Path, data: object) -> None:
    path = tmp_path / "file"
    with mount.open(path, "wb") as file, pytest.raises(TypeError, match="bytes or an array of numbers is needed"):
        file.write(data)
    assert path.stat().st_size == 0


@pytest.mark.parametrize(
    ("data", "written"),
    [
        (b"", b""),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"cd"), b"cd"),
        (np.int16([1, -1]), b"\1\0\xff\xff"),
        ([], b""),
    ],
    ids=repr,
)
def test_what_has_bytes_is_written(mount: gpufs.Mount, tmp_path: Path, data: object, written: bytes) -> None:
    with mount.open(tmp_path / "file", "wb") as file:
        assert file.write(data) == len(written)
    assert (tmp_path / "file").read_bytes() == written


def test_records_in_front_of_the_file_are_refused(mount: gpufs.Mount, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    with mount.open(tmp_path / "file") as file:
        for offset in (-1, -16):
            with pytest.raises(ValueError, match=f"negative offset: {offset}"):
                file.gather([1], 16, offset=offset)


def test_a_forked_process_may_close_what_it_was_given(mount: gpufs.Mount, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    file, array = mount.open(tmp_path / "file"), mount.array(tmp_path / "file", "uint8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads, rightly
        child = os.fork()
    if child == 0:
        status = 1
        try:
            try:
                file.read()
            except RuntimeError:
                with file, array:
                    pass
                mount.close()
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.asarray(file.read()).tobytes() == b"content"
    file.close()
    file.close()
    array.close()
