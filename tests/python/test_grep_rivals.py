"""What programs without gpufs find in text, against ``gpufs grep``, on the CPU and on a GPU."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from random import Random

import gpufs
import pytest
from gpufs import _core, grep
from gpufs.bench import World, _grep
from gpufs.bench._measure import AbsentError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .grep_alphabets import ALPHABETS

SETTINGS = settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
CHUNK = 4096  # the smallest
CHUNKS_OF_PART = 8  # of the program for the CPU
FIRST_READ = 98304  # bytes in which a NUL makes all of a file binary


def ways(fs: gpufs.Mount) -> tuple[str, ...]:
    return ("cpu", "cuda") if fs.device == "cuda" else ("cpu",)


def check(
    fs: gpufs.Mount, words: Iterable[bytes], roots: list[Path], chunk: int = CHUNK
) -> grep.Result:
    """Holds the rivals' results against gpufs', which it returns."""
    dictionary = grep.Dictionary(words)
    expected = grep.search(fs, dictionary, roots)
    for way in ways(fs):
        for threads in (1, 3):
            named = [os.fsencode(root) for root in roots]
            found, seconds = _core.bench_grep_rival(way, dictionary._core, named, threads, chunk)
            assert found.lines(0, len(found)) == expected._core.lines(0, len(expected)), way
            assert found.differing(expected._core) == 0
            assert found.binary() == expected._core.binary()
            assert found.failures() == expected._core.failures()
            assert (found.file_count, found.words_found) == (expected.files, expected.words_found)
            assert found.occurrences == expected.occurrences
            if not expected.binary:
                assert found.byte_count == expected.bytes
            assert seconds > 0
    return expected


def write(folder: Path, *texts: bytes) -> list[Path]:
    files = [folder / f"f{number}" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_bytes(text)
    return files


ALL_ALPHABETS = (*ALPHABETS, b"abcdefgh \n", b"a \n\0")


@st.composite
def texts_and_words(draw: st.DrawFn) -> tuple[list[bytes], set[bytes]]:
    """Makes texts of few characters, in which words often meet and overlap, and words of them."""
    alphabet = draw(st.sampled_from(ALL_ALPHABETS))
    random = Random(draw(st.integers(0, 10**6)))

    def some(count: int) -> bytes:
        return bytes(random.choices(alphabet, k=count))

    def text(size: int) -> bytes:
        pieces = [
            some(random.randint(1, 300)) * random.choice((1, 1, 2, 50))
            for _ in range(1 + size // 100)
        ]
        return b"\n".join(pieces)[:size]

    sizes = st.sampled_from(
        (0, 1, 5, 60, 1000, CHUNK, 2 * CHUNK + 1, CHUNKS_OF_PART * CHUNK + 3, 70_000, 140_000)
    )
    texts = [text(size) for size in draw(st.lists(sizes, min_size=1, max_size=6))]
    words = set()
    for _ in range(30):
        size, whole = (
            random.choice((1, 2, 3, 4, 5, 8, 9, 16, 17, 18, 40, 255)),
            random.choice(texts),
        )
        at = random.randrange(len(whole) + 1)
        words.add(whole[at : at + size] if random.random() < 0.8 else some(size))
    return texts, {word for word in words if b"\n" not in word and b"\0" not in word}


@SETTINGS
@given(made=texts_and_words())
def test_the_rivals_find_the_same(
    fs: gpufs.Mount, tmp_path_factory: pytest.TempPathFactory, made: tuple[list[bytes], set[bytes]]
) -> None:
    texts, words = made
    check(fs, words, write(tmp_path_factory.mktemp("texts"), *texts))


@pytest.mark.parametrize("size", [5, 8, 9, 16, 17, 255])
def test_words_at_the_ends_of_what_is_read(fs: gpufs.Mount, tmp_path: Path, size: int) -> None:
    word = bytes(itertools.islice(itertools.cycle(b"abcdefghijk"), size))
    # Of an odd length, so that words lie differently at each end.
    cycle = word + b" " if size % 2 == 0 else word + b", "
    texts = (
        cycle * (200_000 // len(cycle)) + word,
        b"x" * (CHUNK - 3) + b" " + word,
        b"-" * (9 * CHUNK) + word,
    )
    result = check(fs, [word, word[:-1], word[1:], b"k" + word[:-1]], write(tmp_path, *texts))
    assert [match.count for match in result] == [200_000 // len(cycle) + 1, 1, 1]


def test_overlapping_words_across_the_ends_of_what_is_read(fs: gpufs.Mount, tmp_path: Path) -> None:
    texts = (
        b"a-" * 50_000 + b"a",
        b"-" * 100_000,
        b"a-a " * 30_000,
        (b"x" * 97 + b"--" * 150) * 100,
    )
    check(fs, [b"a-a", b"--", b"---", b"-", b"a-a-a", b"-a-"], write(tmp_path, *texts))


def test_more_than_there_is_room_for(fs: gpufs.Mount, tmp_path: Path) -> None:
    """Of the CUDA program: different words of a block, and matches of a chunk."""
    parts = [bytes(letters) for letters in itertools.product(b"abcdefghijklm", repeat=3)]
    pairs = [first + b"." + second for first, second in itertools.pairwise(parts)]
    text = b" ".join(pairs)
    check(fs, {*parts, *pairs}, write(tmp_path, text, text * 3, b"ab.cd " * 9, b""), 1 << 16)
    starts = {b"." * count + b"x" for count in range(1, 100)} | {
        b"." * count for count in range(1, 100)
    }
    check(fs, starts, write(tmp_path, (b"." * 120 + b"x ") * 300), 1 << 16)


def test_small_and_empty_files(fs: gpufs.Mount, tmp_path: Path) -> None:
    texts = (
        b"",
        b"word",
        b"word\n",
        b"\n",
        b"w",
        b"no",
        b"word-word",
        b"_word word_ word",
        b"\xffword\xff word2",
    )
    result = check(fs, [b"word"], write(tmp_path, *texts))
    assert [match.count for match in result] == [1, 1, 2, 1, 1]
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(700):
        (folder / str(number)).write_bytes(b"word " * (number % 50))
    assert len(check(fs, [b"word", b"sword"], [folder])) == 686
    assert len(check(fs, [], [folder])) == 0


def test_what_cannot_be_read_is_a_failure(fs: gpufs.Mount, tmp_path: Path) -> None:
    files = write(tmp_path, b"word")
    result = check(fs, [b"word"], [tmp_path / "missing", *files])
    assert [failure.errno for failure in result.failures] == [errno.ENOENT]
    assert len(result) == 1


def test_files_with_a_nul(fs: gpufs.Mount, tmp_path: Path) -> None:
    line = b"some words and a-a-a in a line\n"
    texts = []
    for at in (0, 5, CHUNK, FIRST_READ - 1, FIRST_READ, FIRST_READ + 1, 150_000, 299_999):
        text = bytearray((line * 10_000)[:300_000])
        text[at] = 0
        texts.append(bytes(text))
    files = write(tmp_path, *texts, line * 3)
    with files[2].open("wb") as sparse:
        sparse.write(line * 5_000)
        sparse.seek(1 << 20)
        sparse.write(line)
    result = check(fs, [b"words", b"a-a", b"line"], files)
    assert len(result.binary) == 8
    assert len({match.path for match in result}) > 3


def test_what_differs_is_counted(fs: gpufs.Mount, tmp_path: Path) -> None:
    files = [os.fsencode(file) for file in write(tmp_path, b"one two two three", b"one")]

    def found(*words: str, roots: list[bytes]) -> _core.SearchResult:
        return _core.bench_grep_rival("cpu", grep.Dictionary(words)._core, roots, 1, CHUNK)[0]

    all_of_it = found("one", "two", "three", roots=files)
    assert len(all_of_it) == 4
    assert all_of_it.differing(found("one", "two", "three", roots=files)) == 0
    assert all_of_it.differing(found("one", "three", "zero", roots=files)) == 1
    assert found("zero", roots=files).differing(all_of_it) == 4
    assert all_of_it.differing(found("one", "two", "three", roots=files[1:])) == 3
    Path(os.fsdecode(files[0])).write_bytes(b"one two three")
    assert found("one", "two", "three", roots=files).differing(all_of_it) == 2


def test_a_benchmark_takes_no_word_that_is_too_long_for_a_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text(f"some words {'x' * 300} {'y' * 255} abc\n")
    monkeypatch.setattr(_grep, "DICTIONARIES", ())
    world = World.make("cpu", file=None, size=1 << 20, quick=True, tree=[str(tmp_path)], tell=print)
    try:
        text = _grep.Text(world, 10)
        assert text.words == ["some", "words", "y" * 255]
        assert text.size == (1, 572)
    finally:
        world.__exit__(None, None, None)


def test_a_benchmark_calls_matches_that_differ_wrong(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_grep, "DICTIONARIES", ())
    with World.make(
        "cpu", file=None, size=1 << 20, quick=True, tree=[str(tree)], tell=print
    ) as world:
        text = _grep.Text(world, 500)
        assert {"alpha", "beta", "gamma"} < set(text.words)
        by_cpu, by_cpu = _grep.rival(world, text, "cpu", 2), _grep.search(text, device="cpu")
        assert [next(source()).wrong_bytes for source in (by_cpu, by_cpu)] == [0, 0]
        with (tree / "b").open("a") as file:
            file.write("alpha\n")
        assert [next(source()).wrong_bytes for source in (by_cpu, by_cpu)] == [32, 32]
        with pytest.raises(AbsentError, match="needs a GPU"):
            next(_grep.rival(world, text, "cuda", 2)())


def test_what_a_rival_refuses(tmp_path: Path) -> None:
    words, files = grep.Dictionary(["word"])._core, [os.fsencode(write(tmp_path, b"word")[0])]
    for chunk in (0, CHUNK - 64, CHUNK + 1, 1 << 40):
        with pytest.raises(ValueError, match="chunks"):
            _core.bench_grep_rival("cpu", words, files, 1, chunk)
    if _core.built_cuda_version == 0:
        with pytest.raises(OSError, match="built without it"):
            _core.bench_grep_rival("cuda", words, files, 1, CHUNK)
