"""What ``gpufs grep`` takes and says, beside what tests/python/test_command_line.py has of all commands."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from .conftest import TIMEOUT_S, Command, command_line, tree_lines


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


# --- The timeline ---


def names_of_input(tmp_path: Path, words: Path, tree: Path) -> dict[str, Path]:
    """Names of files that are read, which a timeline must not overwrite."""
    (tmp_path / "symbolic").symlink_to(tree / "b")
    (tmp_path / "hard").hardlink_to(tree / "below" / "c")
    (tmp_path / "folder").symlink_to(tree / "below")
    return {
        "a file": tree / "b",
        "a file below a folder": tree / "below" / "c",
        "a symbolic link": tmp_path / "symbolic",
        "a hard link": tmp_path / "hard",
        "a linked folder": tmp_path / "folder" / "c",
        "the words": words,
    }


KINDS = ("a file", "a file below a folder", "a symbolic link", "a hard link", "a linked folder", "the words")


@pytest.mark.parametrize("kind", KINDS)
def test_a_timeline_overwrites_no_input(run: Command, words: Path, tree: Path, tmp_path: Path, kind: str) -> None:
    output = names_of_input(tmp_path, words, tree)[kind]
    before = output.read_bytes()
    done = run("grep", "--device", "cpu", "--timeline", output, "-f", words, tree / "b", tree / "below")
    assert output.read_bytes() == before
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"gpufs grep: {output}: would be lost: ")
    assert (done.stdout, done.returncode) == (b"", 2)


def test_a_timeline_does_not_overwrite_words_on_standard_input(words: Path, tree: Path) -> None:
    before = words.read_bytes()
    arguments = command_line("grep", "--device", "cpu", "--timeline", words, "-f", "-", tree)
    with words.open("rb") as stdin:
        done = subprocess.run(arguments, stdin=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert words.read_bytes() == before
    assert done.stderr == f"gpufs grep: {words}: would be lost: it is the list of words\n".encode()
    assert done.returncode == 2


def test_a_timeline_may_replace_another_file(run: Command, words: Path, tree: Path, tmp_path: Path) -> None:
    output = tmp_path / "timeline"
    for before in (None, "old"):
        if before is not None:
            output.write_text(before)
        done = run("grep", "--device", "cpu", "--timeline", output, "-f", words, tree)
        assert (done.stdout, done.stderr, done.returncode) == (tree_lines(tree), b"", 0)
        assert json.loads(output.read_text())["traceEvents"]


def test_a_timeline_may_go_where_nothing_is_kept(run: Command, words: Path, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "--timeline", "/dev/null", "-f", words, tree)
    assert (done.stdout, done.stderr, done.returncode) == (tree_lines(tree), b"", 0)


def test_a_timeline_that_cannot_be_written_is_one_line(run: Command, words: Path, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "--timeline", tree / "no" / "folder", "-f", words, tree)
    assert done.stderr == f"gpufs grep: {tree}/no/folder: No such file or directory\n".encode()
    assert (done.stdout, done.returncode) == (b"", 2)
