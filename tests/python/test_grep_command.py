"""What ``gpufs grep`` takes and says, beside what tests/python/test_command_line.py has of all commands."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from .conftest import Command, tree_lines


def special_path(kind: str, folder: Path) -> Path:
    """Something that is no regular file."""
    path = folder / kind
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif kind == "device":
        return Path("/dev/zero")
    else:
        path = Path("/proc/self", "status" if kind == "pseudo file" else "")
        if not path.exists():
            pytest.skip("no /proc here")
    return path


@pytest.mark.parametrize("kind", ["FIFO", "socket", "device", "pseudo file", "pseudo folder"])
def test_what_cannot_be_searched_is_one_line_and_the_rest_is_done(
    run: Command, words: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    path = special_path(kind, Path())
    done = run("grep", "--device", "cpu", "-f", words, path, tree / "b")
    assert done.stdout == b"".join(tree_lines(tree).splitlines(keepends=True)[1:3])
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"gpufs grep: {path}: is ")
    assert kind.partition(" ")[0] in line
    assert done.returncode == 2


def test_what_is_special_below_a_folder_is_passed_over(run: Command, words: Path, tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    (tree / "link").symlink_to("a")
    done = run("grep", "--device", "cpu", "-f", words, tree)
    assert (done.stdout, done.stderr, done.returncode) == (tree_lines(tree), b"", 0)
