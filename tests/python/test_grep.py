from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import gpufs
import pytest
from gpufs import grep

from .conftest import tree_lines


def test_matches_are_ordered_by_path_and_word(mount: gpufs.Mount, words: Path, tree: Path) -> None:
    result = grep.search(mount, grep.Dictionary.read(words), [tree])
    assert [(match.path, match.word, match.count) for match in result] == [
        (f"{tree}/a", "gamma", 2),
        (f"{tree}/b", "alpha", 2),
        (f"{tree}/b", "beta", 1),
        (f"{tree}/below/c", "beta", 10),
    ]
    assert b"".join(result.lines()) == tree_lines(tree)
    assert len(result) == 4
    assert result.files == 4
    assert result.bytes == sum(file.stat().st_size for file in tree.rglob("*") if file.is_file())
    assert result.words_found == 3
    assert result.occurrences == 15
    assert result.seconds > 0
    assert result.failures == []
    assert result.binary == []


def test_failures_are_exceptions_with_their_path(mount: gpufs.Mount, tree: Path) -> None:
    (tree / "dangling").symlink_to("nowhere")
    missing = tree / "missing"
    result = grep.search(
        mount, grep.Dictionary(["alpha"]), [missing, tree / "b", tree / "dangling"]
    )
    assert [match.count for match in result] == [2]
    assert {(type(failure), failure.errno, failure.filename) for failure in result.failures} == {
        (FileNotFoundError, errno.ENOENT, str(missing)),
        (FileNotFoundError, errno.ENOENT, str(tree / "dangling")),
    }


def test_binary_files_are_named(mount: gpufs.Mount, tree: Path) -> None:
    (tree / "binary").write_bytes(b"alpha \0 alpha")
    result = grep.search(mount, grep.Dictionary(["alpha"]), [tree / "b", tree / "binary"])
    assert result.binary == [str(tree / "binary")]
    assert [match.path for match in result] == [str(tree / "b")]


def test_paths_and_words_may_be_any_bytes(mount: gpufs.Mount, tmp_path: Path) -> None:
    name, word = b"\xff \xc3\xa9\n", b"caf\xe9"
    file = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118
    Path(os.fsdecode(file)).write_bytes(b"- " + word + b" -")
    result = grep.search(
        mount, grep.Dictionary([word, "caf\N{LATIN SMALL LETTER E WITH ACUTE}"]), [file]
    )
    (match,) = result
    assert (os.fsencode(match.path), os.fsencode(match.word), match.count) == (file, word, 1)
    assert b"".join(result.lines()) == file + b"\t" + word + b"\t1\n"


def test_a_dictionary_counts_different_words(tmp_path: Path) -> None:
    assert len(grep.Dictionary([])) == 0
    assert len(grep.Dictionary(["b", "a", b"b", ""])) == 2
    file = tmp_path / "words"
    file.write_bytes(b"one\n\ntwo\none\nlast without end")
    assert len(grep.Dictionary.read(file)) == 3


@pytest.mark.parametrize("word", ["two\0halves", "two\nlines", "x" * 256])
def test_words_that_cannot_be_are_value_errors(word: str) -> None:
    with pytest.raises(ValueError, match="word"):
        grep.Dictionary(["good", word])


def test_a_dictionary_file_with_such_a_word_is_named_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "words"
    file.write_bytes(b"good\n" + b"x" * 256 + b"\n")
    with pytest.raises(OSError, match="line 2") as caught:
        grep.Dictionary.read(file)
    assert caught.value.errno == errno.EINVAL
    assert caught.value.filename == str(file)


def test_a_missing_dictionary_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        grep.Dictionary.read(tmp_path / "none")
    assert caught.value.filename == str(tmp_path / "none")


def test_progress_ends_with_all_done(mount: gpufs.Mount, tree: Path) -> None:
    seen: list[grep.Progress] = []
    result = grep.search(mount, grep.Dictionary(["alpha"]), [tree], on_progress=seen.append)
    last = seen[-1]
    assert (last.files_done, last.files_total) == (4, 4)
    assert last.bytes_done == last.bytes_total == result.bytes
    assert all(before.bytes_done <= after.bytes_done for before, after in itertools.pairwise(seen))


def test_an_exception_of_the_progress_callback_goes_on(mount: gpufs.Mount, tree: Path) -> None:
    def stop(_: grep.Progress) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        grep.search(mount, grep.Dictionary(["alpha"]), [tree], on_progress=stop)
    assert len(grep.search(mount, grep.Dictionary(["alpha"]), [tree])) == 1


def test_many_matches_come_in_pieces(mount: gpufs.Mount, tmp_path: Path) -> None:
    names = [f"{number:03}" for number in range(300)]
    words = [f"word{number:03}x" for number in range(200)]
    for name in names:
        (tmp_path / name).write_text(" ".join(words))
    result = grep.search(mount, grep.Dictionary(words), [tmp_path])
    expected = [(f"{tmp_path}/{name}", word, 1) for name in names for word in words]
    assert len(expected) > 2 * grep.MATCHES_AT_ONCE
    assert [(match.path, match.word, match.count) for match in result] == expected
    pieces = list(result.lines())
    assert len(pieces) > 2
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert b"".join(pieces).decode() == "".join(
        f"{path}\t{word}\t{count}\n" for path, word, count in expected
    )


def test_a_result_outlives_its_mount(words: Path, tree: Path) -> None:
    with gpufs.mount(device="cpu", cache="1MiB") as mount:
        result = grep.search(mount, grep.Dictionary.read(words), [tree])
    assert b"".join(result.lines()) == tree_lines(tree)


def test_lines_are_counted_of_each_file(mount: gpufs.Mount, words: Path, tree: Path) -> None:
    (tree / "binary").write_bytes(b"alpha \0 alpha\0beta\n\0")
    result = grep.count_lines(mount, grep.Dictionary.read(words), [tree, tree / "missing"])
    assert [(found.path, found.lines) for found in result] == [
        (f"{tree}/a", 1),
        (f"{tree}/b", 1),
        (f"{tree}/below/c", 10),
        (f"{tree}/binary", 3),
        (f"{tree}/nothing", 0),
    ]
    assert (result.files, len(result), result.lines) == (5, 5, 15)
    assert result.bytes == sum(file.stat().st_size for file in tree.rglob("*") if file.is_file())
    assert result.seconds > 0
    assert [(failure.errno, failure.filename) for failure in result.failures] == [
        (errno.ENOENT, str(tree / "missing"))
    ]
