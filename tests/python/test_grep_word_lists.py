"""Lists of words, as ``gpufs grep -f`` reads them."""

from __future__ import annotations

import errno
from pathlib import Path

import gpufs
import pytest
from gpufs import grep
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from .conftest import Command, tree_lines

SETTINGS = settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WORD_MAX = 255

pieces = st.sampled_from(
    [b"a", b"b", b"\n", b"\r", b"\r\n", b"\0", b"\xff", b" ", b"x" * 254, b"x" * 255, b"x" * 70_000]
)


def words_of(text: bytes) -> set[bytes] | tuple[int, str]:
    """The words of a list; or the line with one that cannot be, and why."""
    words = set()
    for number, line in enumerate(text.split(b"\n"), 1):
        word = line.removesuffix(b"\r")
        if b"\0" in word[:WORD_MAX]:
            return number, "NUL"
        if len(word) > WORD_MAX:
            return number, "255"
        words.add(word)
    return words - {b""}


@SETTINGS
@given(text=st.lists(pieces, max_size=12).map(b"".join))
@example(text=b"")
@example(text=b"\r\n\r\n")
@example(text=b"a\r\na\nb")
@example(text=b"x" * 255 + b"\r\n" + b"x" * 256)
@example(text=b"x" * 255 + b"\rx\n")
@example(text=b"x" * 255 + b"\0\n")
def test_a_list_has_one_word_a_line(mount: gpufs.Mount, tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "list"
    file.write_bytes(text)
    expected = words_of(text)
    if isinstance(expected, tuple):
        line, reason = expected
        with pytest.raises(OSError, match=rf"line {line}: .*{reason}") as caught:
            grep.Dictionary.read(file)
        assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(file))
        return
    dictionary = grep.Dictionary.read(file)
    assert len(dictionary) == len(expected)
    searched = tmp_path / "searched"
    searched.write_bytes(b"\n".join(expected))
    assert {
        word.encode("utf-8", "surrogateescape") for _, word, _ in found(mount, dictionary, searched)
    } == expected


def found(
    mount: gpufs.Mount, dictionary: grep.Dictionary, file: Path
) -> list[tuple[str, str, int]]:
    return [
        (match.path, match.word, match.count) for match in grep.search(mount, dictionary, [file])
    ]


def test_lines_may_end_as_on_windows(run: Command, tree: Path, tmp_path: Path) -> None:
    words = tmp_path / "crlf"
    words.write_bytes(b"alpha\r\nbeta\r\n\r\ngamma\r\n")
    done = run("grep", "--device", "cpu", "-f", words, tree)
    assert (done.stdout, done.stderr, done.returncode) == (tree_lines(tree), b"", 0)


def test_a_folder_is_no_list(run: Command, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "-f", tree / "below", tree)
    assert done.stderr == f"gpufs grep: {tree}/below: Is a directory\n".encode()
    assert (done.stdout, done.returncode) == (b"", 2)


@pytest.mark.parametrize("endless", ["/dev/zero", "/dev/urandom"])
def test_a_list_without_end_is_refused(run: Command, tree: Path, endless: str) -> None:
    done = run(
        "grep",
        "--device",
        "cpu",
        "-f",
        endless,
        tree,
        prefix=["sh", "-c", 'ulimit -v 16000000; "$0" "$@"'],
    )
    assert done.stderr.startswith(f"gpufs grep: {endless}: line ".encode())
    assert done.stderr.count(b"\n") == 1
    assert (done.stdout, done.returncode) == (b"", 2)
