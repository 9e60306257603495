"""Counts of ``gpufs grep`` against the machine's GNU grep: all words in all files of a set."""

from __future__ import annotations

import collections
import os
import random
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpufs
import pytest
from gpufs import grep
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import Command
from .grep_alphabets import ALPHABETS

SETTINGS = settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
FIRST_READ = 98304  # bytes that grep reads first: a NUL in them makes the file binary
ENVIRONMENT = dict(os.environ) | {"LC_ALL": "C"}

Counts = dict[tuple[bytes, bytes], int]


def version_of_grep() -> tuple[int, ...]:
    if shutil.which("grep") is None:
        return ()
    said = subprocess.run(["grep", "--version"], capture_output=True, check=False).stdout
    found = re.match(rb"grep \(GNU grep\) (\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()


pytestmark = pytest.mark.skipif(version_of_grep() < (3, 5), reason="needs GNU grep 3.5 or later")


def in_threads(work: Callable[[bytes], Counts], words: Iterable[bytes]) -> Counts:
    counts: Counts = {}
    with ThreadPoolExecutor(4) as pool:
        for part in pool.map(work, words):
            counts.update(part)
    return counts


def grep_each(
    files: Sequence[Path], words: Iterable[bytes], options: Sequence[bytes] = ()
) -> Counts:
    """One grep for each file and word, as the definition has it."""

    def work(word: bytes) -> Counts:
        counts: Counts = {}
        for file in files:
            command = [b"grep", b"-o", b"-w", b"-F", *options, b"-e", word, bytes(file)]
            lines = subprocess.run(
                command, env=ENVIRONMENT, capture_output=True, check=False
            ).stdout.count(b"\n")
            if lines:
                counts[bytes(file), word] = lines
        return counts

    return in_threads(work, words)


def grep_all(files: Sequence[Path], words: Iterable[bytes]) -> Counts:
    """Runs one grep for each word: faster, unless an earlier file has grown grep's buffer."""
    paths = [bytes(file) for file in files]

    def work(word: bytes) -> Counts:
        command = [b"grep", b"-o", b"-w", b"-F", b"-H", b"-Z", b"-e", word, *paths]
        output = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False).stdout
        lines = collections.Counter(
            line.partition(b"\0")[0] for line in output.split(b"\n") if line
        )
        return {(path, word): count for path, count in lines.items()}

    return in_threads(work, words)


def gpufs_counts(
    run: Command, folder: Path, files: Sequence[Path], words: Iterable[bytes]
) -> Counts:
    dictionary = folder / "dictionary"
    # Of "\r\n" both belong to the line's end.
    dictionary.write_bytes(
        b"".join(word + (b"\r\n" if word.endswith(b"\r") else b"\n") for word in words)
    )
    done = run("grep", "--device", "cpu", "--no-progress", "-f", dictionary, *files)
    assert done.stderr == b""
    counts = counts_of(done.stdout)
    assert list(counts) == sorted(counts)
    return counts


def counts_of(output: bytes) -> Counts:
    """What ``gpufs grep`` printed."""
    counts: Counts = {}
    for line in output.split(b"\n")[:-1]:
        path, _, rest = line.partition(b"\t")
        word, _, count = rest.rpartition(b"\t")
        assert (path, word) not in counts
        counts[path, word] = int(count)
    return counts


def assert_same(found: Counts, expected: Counts) -> None:
    different = {
        key: (found.get(key, 0), expected.get(key, 0)) for key in found.keys() | expected.keys()
    }
    different = {key: pair for key, pair in different.items() if pair[0] != pair[1]}
    assert different == {}, "(gpufs, grep)"


ALL_ALPHABETS = (*ALPHABETS, b"\\.*[a \n", bytes(range(1, 256)))


class RandomText:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.alphabet = self.random.choice(ALL_ALPHABETS)

    def text(self, size: int) -> bytes:
        if self.random.random() < 0.5:
            return bytes(self.random.choices(self.alphabet, k=size))
        pieces = []
        while sum(map(len, pieces)) < size:
            piece = bytes(self.random.choices(self.alphabet, k=self.random.randint(1, 12)))
            pieces.append(
                piece * self.random.choice((1, 2, 5, 30)) + self.random.choice((b"", b" ", b"\n"))
            )
        return b"".join(pieces)[:size]

    def word(self, text: bytes) -> bytes:
        size = self.random.choice((1, 2, 3, 4, 5, 7, 8, 9, 16, 17))
        at = self.random.randrange(len(text) + 1)
        taken = text[at : at + size] if self.random.random() < 0.8 else self.text(size)
        return taken.replace(b"\n", b"").replace(b"\0", b"")


@pytest.mark.parametrize("seed", range(24))
def test_random_files(run: Command, tmp_path: Path, seed: int) -> None:
    made = RandomText(seed)
    files, words = [], set()
    for number, size in enumerate((0, 1, 4, 30, 200, 1000)):
        text = made.text(size)
        if number == 4 and seed % 4 == 0:
            text = text[:100] + b"\0" + text[100:]
        files.append(tmp_path / f"f{number}")
        files[-1].write_bytes(text)
        words |= {made.word(text) for _ in range(10)}
    words.discard(b"")
    assert_same(gpufs_counts(run, tmp_path, files, words), grep_each(files, words))


@pytest.mark.parametrize("seed", range(4))
def test_words_on_the_command_line(run: Command, tmp_path: Path, seed: int) -> None:
    """Given to grep in the same way, one at a time."""
    made = RandomText(seed)
    file = tmp_path / "file"
    file.write_bytes(made.text(300))
    words = {made.word(file.read_bytes()) for _ in range(20)} - {b""}
    options = [option for word in words for option in (b"-e", word)]
    done = run("grep", "--device", "cpu", *options, file)
    assert done.stderr == b""
    assert_same(counts_of(done.stdout), grep_each([file], words))
    for word in sorted(words)[:5]:
        done = run("grep", "--device", "cpu", "--", word, file)
        command = [b"grep", b"-o", b"-w", b"-F", b"--", word, bytes(file)]
        status = subprocess.run(
            command, env=ENVIRONMENT, capture_output=True, check=False
        ).returncode
        assert (counts_of(done.stdout), done.returncode) == (grep_each([file], [word]), status)


FOLDED = (b"aA-", b"abAB- \n", b"aZz@[`{_ \n", b"kK\xe2\x84\xaa\xc3\xa9\xc9 \n", b"sS\xc5\xbf-")


@SETTINGS
@given(data=st.data(), alphabet=st.sampled_from(FOLDED))
def test_the_case_is_ignored(
    mount: gpufs.Mount, tmp_path: Path, data: st.DataObject, alphabet: bytes
) -> None:
    some = st.lists(st.sampled_from(list(alphabet)), max_size=60).map(bytes)
    text = data.draw(some)
    words = data.draw(st.lists(some.map(lambda word: word.replace(b"\n", b"")[:4]), max_size=6))
    words = [word for word in words if word]
    file = tmp_path / "file"
    file.write_bytes(text)
    result = grep.search(mount, grep.Dictionary(words, ignore_case=True), [file])
    found = {(os.fsencode(match.path), os.fsencode(match.word)): match.count for match in result}
    spellings = {word.lower(): word for word in reversed(words)}  # bytes: of ASCII only
    assert_same(found, grep_each([file], spellings.values(), [b"-i"]))


@SETTINGS
@given(
    data=st.data(),
    alphabet=st.sampled_from((*ALL_ALPHABETS, *FOLDED, b"a \n\0", b"a-\0\n")),
    ignore_case=st.booleans(),
    line=st.integers(0, 40),
)
def test_lines_are_counted(
    mount: gpufs.Mount,
    tmp_path: Path,
    data: st.DataObject,
    alphabet: bytes,
    ignore_case: bool,
    line: int,
) -> None:
    some = st.lists(st.sampled_from(list(alphabet)), max_size=80).map(bytes)
    text = b"\n".join([b"x" * line, data.draw(some)])
    words = [word[:4].translate(None, b"\n\0") for word in data.draw(st.lists(some, max_size=4))]
    words = [*filter(None, words), b"zzz"]
    file = tmp_path / "file"
    file.write_bytes(text)
    ((found),) = grep.count_lines(mount, grep.Dictionary(words, ignore_case=ignore_case), [file])
    options = [option for word in words for option in (b"-e", word)]
    command = [
        b"grep",
        b"-c",
        b"-w",
        b"-F",
        *([b"-i"] if ignore_case else []),
        *options,
        bytes(file),
    ]
    assert found.lines == int(
        subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False).stdout
    )


def test_c_prints_what_grep_prints(run: Command, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for seed in range(8):
        (folder / f"f{seed}").write_bytes(RandomText(seed).text(300))
    with (folder / "sparse").open("wb") as sparse:
        sparse.write(b"a\n" * 60_000)
        sparse.seek(4 << 20)
        sparse.write(b"a")
    for options in (["-e", "a"], ["-e", "a-a", "-e", "'"], ["-i", "A"], ["no-such-word"]):
        for paths in (
            [folder],
            [folder / "f1"],
            [folder / "f1", folder / "f2"],
            [folder, folder / "missing"],
        ):
            ours = run("grep", "--device", "cpu", "-rc", *options, *paths)
            command = ["grep", "-r", "-c", "-w", "-F", *options, *map(str, paths)]
            theirs = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False)
            assert sorted(ours.stdout.splitlines()) == sorted(theirs.stdout.splitlines())
            assert ours.returncode == theirs.returncode
            assert ours.stderr == theirs.stderr.replace(b"grep:", b"gpufs grep:")


def test_files_with_a_late_nul(run: Command, tmp_path: Path) -> None:
    """Lines short enough for the reading buffer's model to be exact (apps/grep/grep_buffer.hpp)."""
    rnd = random.Random(7)
    files = []
    for number in range(24):
        lines, size, wanted = [], 0, FIRST_READ + rnd.randrange(400_000)
        while size < wanted:
            line = b" ".join(rnd.choices((b"foo", b"bar", b"a-a", b"x"), k=rnd.randint(0, 9)))
            lines.append(line)
            size += len(line) + 1
        text = bytearray(b"\n".join(lines))
        boundary = rnd.randrange(1, wanted // FIRST_READ + 1) * FIRST_READ
        places = (
            boundary - 1,
            boundary,
            boundary + rnd.randrange(100),
            rnd.randrange(wanted),
            len(text) - 1,
        )
        text[min(places[number % len(places)], len(text) - 1)] = 0
        files.append(tmp_path / f"f{number}")
        files[-1].write_bytes(text)
    words = [b"foo", b"bar", b"a-a", b"x"]
    counts = gpufs_counts(run, tmp_path, files, words)
    assert_same(counts, grep_each(files, words))
    assert counts


def test_a_sparse_file_is_binary(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    with file.open("wb") as out:
        out.write(b"foo\n" * 50_000)
        out.seek(4 << 20)
        out.write(b"foo\n")
    assert_same(gpufs_counts(run, tmp_path, [file], [b"foo"]), grep_each([file], [b"foo"]))


def files_below(root: Path, kept: Callable[[Path], bool], total_bytes: int) -> list[Path]:
    """Files spread evenly over a tree, of about this size together."""
    files = sorted(
        file for file in root.rglob("*") if not file.is_symlink() and file.is_file() and kept(file)
    )
    random.Random(1).shuffle(files)
    chosen = []
    for file in files:
        size = file.stat().st_size
        if size <= total_bytes:
            chosen.append(file)
            total_bytes -= size
    return sorted(chosen)


def words_of(files: Sequence[Path]) -> set[bytes]:
    """Words that stand in the files: of letters, and such as make a search hard."""
    rnd = random.Random(2)
    counts: collections.Counter[bytes] = collections.Counter()
    others: set[bytes] = set()
    for file in files:
        text = file.read_bytes()
        counts.update(re.findall(rb"\w+", text))
        others.update(
            rnd.sample(pieces, min(3, len(pieces)))
            if (pieces := re.findall(rb"\S+[ \t]\S+|\S+", text))
            else ()
        )
    common = [word for word, _ in counts.most_common(60)]
    rare = rnd.sample(sorted(counts), min(len(counts), 250))
    hard = rnd.sample(sorted(others), min(len(others), 150))
    made = [
        b"--",
        b"==",
        b"...",
        b"''",
        b'""',
        b"-----",
        b"/*",
        b"-*-",
        b"# #",
        b"::",
        b"self",
        b"a-a",
        b"0 0",
        b", 0",
    ]
    return {
        word for word in {*common, *rare, *hard, *made} if len(word) <= 255 and b"\0" not in word
    }


def is_text(file: Path) -> bool:
    return file.suffix in {".py", ".h", ".txt", ".hpp", ".c", ""} and file.stat().st_size < 400_000


def is_binary(file: Path) -> bool:
    return file.suffix in {".pyc", ".so", ".exe", ".whl"} and file.stat().st_size < 2_000_000


@pytest.mark.parametrize("tree", ["stdlib", "include"])
def test_a_real_tree(run: Command, tmp_path: Path, tree: str) -> None:
    root = Path(sysconfig.get_path("stdlib")) if tree == "stdlib" else Path("/usr/include")
    if not root.is_dir():
        pytest.skip(f"no {root} here")
    texts = files_below(root, is_text, 3_000_000)
    files = texts + files_below(root, is_binary, 3_000_000)
    words = words_of(texts)
    counts = gpufs_counts(run, tmp_path, files, words)
    assert_same(counts, grep_all(files, words))
    assert len(counts) > len(words)
