"""``gpufs cat`` and ``gpufs stat``, against the files themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from gpufs import cat, cli
from hypothesis import given, settings
from hypothesis import strategies as st

from .conftest import TIMEOUT_S, Command, command_line

CPU = ("--device", "cpu", "--cache", "64KiB")


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Command]:
    """Runs the command line in this process, which is ten times faster than in a new one."""

    def command(*arguments: str | bytes | os.PathLike[str]) -> subprocess.CompletedProcess[bytes]:
        words = [os.fsdecode(word) for word in arguments]
        capfdbinary.readouterr()
        status = cli.main(words)
        return subprocess.CompletedProcess(words, status, *capfdbinary.readouterr())

    before = signal.getsignal(signal.SIGPIPE)
    yield command
    signal.signal(signal.SIGPIPE, before)


@pytest.fixture(scope="module")
def content() -> bytes:
    """Much more than the cache of `CPU`, and no whole pages."""
    return np.random.default_rng(1).bytes((3 << 20) + 777)


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "file"
    path.write_bytes(content)
    return path


# --- cat ---


def test_cat_writes_files_one_after_the_other(
    run: Command, tmp_path: Path, file: Path, content: bytes
) -> None:
    small, empty = tmp_path / "small", tmp_path / "empty"
    small.write_bytes(b"small\n")
    empty.touch()
    done = run("cat", *CPU, small, file, empty, small)
    assert (done.stdout == b"small\n" + content + b"small\n", done.stderr, done.returncode) == (
        True,
        b"",
        0,
    )


@pytest.mark.parametrize("name", [b"caf\xe9\xff line\nend", b"-dash"])
def test_cat_and_stat_take_any_name(run: Command, tmp_path: Path, name: bytes) -> None:
    path = os.fsencode(tmp_path) + b"/" + name
    Path(os.fsdecode(path)).write_bytes(b"content")
    done = run("cat", *CPU, "--root", tmp_path, "--", name)
    assert (done.stdout, done.stderr, done.returncode) == (b"content", b"", 0)
    done = run("stat", *CPU, path)
    assert done.stdout.startswith(path + b"\n")
    assert (done.stderr, done.returncode) == (b"", 0)
    done = run("stat", "--json", *CPU, path, path + b"-missing")
    assert os.fsencode(json.loads(done.stdout)["files"][0]["path"]) == path
    assert done.stderr == b"gpufs: " + path + b"-missing: No such file or directory\n"


def test_what_cannot_be_read_is_one_line_and_the_rest_is_done(run: Command, tmp_path: Path) -> None:
    small, fifo = tmp_path / "small", tmp_path / "fifo"
    small.write_bytes(b"small\n")
    os.mkfifo(fifo)
    for command in ("cat", "stat"):
        done = run(command, *CPU, tmp_path / "missing", small, tmp_path, fifo, small)
        lines = done.stderr.decode().splitlines()
        assert lines[:2] == [
            f"gpufs: {tmp_path}/missing: No such file or directory",
            f"gpufs: {tmp_path}: Is a directory",
        ]
        assert lines[2].startswith(f"gpufs: {fifo}: ")
        assert (len(lines), done.returncode) == (3, 1)
        assert done.stdout.count(b"small\n") == 2


def test_nothing_outside_of_the_root_is_read(run: Command, tmp_path: Path, tree: Path) -> None:
    (tmp_path / "outside").write_bytes(b"outside")
    for command in ("cat", "stat"):
        done = run(command, *CPU, "--root", tree, "a", "../outside")
        assert b"outside\n" not in done.stdout
        assert (b"gamma" if command == "cat" else b"a\n") in done.stdout
        assert done.stderr == b"gpufs: ../outside: leads out of the mount's root\n"
        assert done.returncode == 1
    done = run("cat", *CPU, "--root", "", tmp_path / "outside")
    assert done.stderr.startswith(b"gpufs: root: an empty path")
    assert (done.stdout, done.returncode) == (b"", 2)
    done = run("cat", *CPU, "--root", tmp_path / "missing", "a")
    assert done.stderr == f"gpufs: {tmp_path}/missing: No such file or directory\n".encode()
    assert (done.stdout, done.returncode) == (b"", 2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["cat"], "FILE"),
        (["cat", "--bytes", "many", "FILE"], "'many'"),
        (["cat", "--offset", "-1", "FILE"], "'-1'"),
        (["stat", "--page", "1000", "FILE"], "1000"),
        (["cat", "--device", "cpu", "--cache", "1KiB", "FILE"], "cache"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(
    run: Command, file: Path, arguments: list[str], text: str
) -> None:
    done = run(*(str(file) if argument == "FILE" else argument for argument in arguments))
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("gpufs: ")
    assert text in line
    assert (done.stdout, done.returncode) == (b"", 2)


@pytest.mark.parametrize(
    ("first", "count", "options"),
    [
        (1 << 20, 4097, ["--offset", "1MiB", "--bytes", "4097"]),
        (5, 0, ["--offset", "5", "--bytes", "0"]),
        (4 << 20, None, ["--offset", "4MiB"]),
    ],
)
def test_cat_writes_the_part_that_is_asked_for(
    run: Command, file: Path, content: bytes, first: int, count: int | None, options: list[str]
) -> None:
    done = run("cat", *CPU, *options, file)
    part = content[first:] if count is None else content[first : first + count]
    assert (done.stdout == part, done.stderr, done.returncode) == (True, b"", 0)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> Any:
    path = tmp_path_factory.mktemp("cat") / "file"
    path.write_bytes(content)
    options = {
        "device": "cpu",
        "cache": "64KiB",
        "read_only": True,
        "cpu_threads": 2,
        "workers": 1,
    }
    with gpufs.mount(**options) as mount, mount.open(path) as file:
        yield file


@settings(max_examples=150, deadline=None)
@given(
    first=st.integers(0, 4 << 20),
    count=st.none() | st.integers(0, 5 << 20) | st.just(2**70),
    piece_bytes=st.integers(1 << 16, 4 << 20) | st.sampled_from([1 << 16, 4096 * 33]),
)
def test_pieces_are_the_bytes_in_order(
    opened: gpufs.File, content: bytes, first: int, count: int | None, piece_bytes: int
) -> None:
    tally = cat.Tally()
    pieces = [
        bytes(piece)
        for piece in cat.pieces(opened, first, count, tally=tally, piece_bytes=piece_bytes)
    ]
    wanted = content[first:] if count is None else content[first : first + count]
    assert b"".join(pieces) == wanted
    assert all(0 < len(piece) <= piece_bytes for piece in pieces)
    assert (tally.files, tally.bytes) == (1, len(wanted))


def test_pieces_need_no_memory_for_the_whole_file(opened: gpufs.File, content: bytes) -> None:
    piece_bytes = 1 << 18
    tracemalloc.start()  # NumPy tells it of its arrays
    total = sum(len(piece) for piece in cat.pieces(opened, piece_bytes=piece_bytes))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == len(content)
    assert piece_bytes < most < 3 * piece_bytes


def test_stats_tell_what_was_done(run: Command, file: Path, content: bytes) -> None:
    done = run("cat", *CPU, "--stats", file, file.with_name("missing"))
    text = done.stderr.decode()
    assert done.stdout == content
    assert f"1 files, {len(content):,} bytes" in text
    for part in (
        "CPU device",
        "GB/s",
        "hits; misses:",
        "No such file",
        f"\nread_bytes {len(content)}\n",
        "\nopens ",
    ):
        assert part in text
    assert done.returncode == 1


def test_output_that_cannot_be_written_is_an_error(file: Path) -> None:
    for command in ("cat", "stat"):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                command_line(command, *CPU, file),
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=TIMEOUT_S,
                check=False,
            )
        assert done.stderr == b"gpufs: standard output: No space left on device\n"
        assert done.returncode == 2


@pytest.fixture
def half_written(file: Path) -> Callable[[], Any]:
    """Starts `cat` of much, and waits until it writes what nobody takes."""

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command_line("cat", *CPU, *[file] * 1000),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert len(process.stdout.read(10)) == 10
        return process

    return start


def test_a_reader_that_goes_away_ends_it_quietly(
    half_written: Callable[[], subprocess.Popen[bytes]],
) -> None:
    with half_written() as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_S) == -signal.SIGPIPE


def test_an_interrupt_ends_it_at_once_with_status_130(
    half_written: Callable[[], subprocess.Popen[bytes]],
) -> None:
    with half_written() as process:
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == cli.INTERRUPTED
        assert process.stderr is not None
        assert process.stderr.read() == b""


# --- stat ---


def test_stat_tells_what_the_host_tells(
    run: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.chmod(0o640)
    os.utime(file, ns=(1, 1_234_567_890_003_456_789))
    host = file.stat()
    done = run("stat", "--json", *CPU, file)
    found = json.loads(done.stdout)
    assert found == {
        "version": gpufs.__version__,
        "device": "cpu",
        "files": [
            {
                "path": str(file),
                "size": host.st_size,
                "mode": host.st_mode,
                "modified_ns": host.st_mtime_ns,
                "changed_ns": host.st_ctime_ns,
                "inode": host.st_ino,
                "device": host.st_dev,
                "arrays": [],
            }
        ],
        "failures": [],
    }
    assert (done.stderr, done.returncode) == (b"", 0)
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "XXX-5:30")
        time.tzset()
        text = run("stat", *CPU, file).stdout.decode()
    time.tzset()
    assert text.startswith(f"{file}\n")
    for part in (
        f" {host.st_size:,} bytes\n",
        " -rw-r----- (0640)\n",
        " 2009-02-14 05:01:30.003456789 +0530\n",
    ):
        assert part in text
    assert f" {host.st_ino} of device {os.major(host.st_dev)}:{os.minor(host.st_dev)}\n" in text


@pytest.mark.parametrize(
    ("array", "order"),
    [
        (np.zeros((3, 4), np.float32), "C"),
        (np.asfortranarray(np.zeros((3, 4), np.int16)), "F"),
        (np.zeros((2, 3, 4), np.complex64).transpose(2, 1, 0), "F"),
        (np.zeros(7, np.uint8), "C"),
        (np.zeros((), bool), "C"),
        (np.zeros((0, 3, 4)), "C"),
        (np.zeros((3, 0, 4)), "C"),
        (np.zeros((5, 1), np.float64, order="F"), "C"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.dtype}{value.shape}",
)
def test_stat_tells_the_array_of_an_npy_file(
    mount: gpufs.Mount, tmp_path: Path, array: Any, order: str
) -> None:
    path = tmp_path / "array.npy"
    np.save(path, array)
    from gpufs import stat

    (entry,) = stat.describe(mount, path).arrays
    header_bytes = path.stat().st_size - array.nbytes
    assert entry == stat.ArrayEntry(
        None, array.dtype.name, array.shape, order, header_bytes, array.nbytes
    )


def test_stat_tells_the_arrays_of_a_safetensors_file(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = json.dumps(
        {
            "__metadata__": {"made": "by hand"},
            "layer.0": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
            "scale\n": {"dtype": "F4\x1b[2J", "shape": [4], "data_offsets": [12, 14]},
            "bias": {"dtype": "I64", "shape": [1], "data_offsets": [14, 22]},
        }
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(22))
    first = 8 + len(header)
    done = run("stat", "--json", *CPU, path)
    (found,) = json.loads(done.stdout)["files"]
    unknown = {"shape": None, "order": None, "offset": None, "nbytes": None}
    assert found["arrays"] == [
        {
            "name": "layer.0",
            "dtype": "bfloat16",
            "shape": [2, 3],
            "order": "C",
            "offset": first,
            "nbytes": 12,
        },
        {"name": "scale\n", "dtype": "F4\x1b[2J", **unknown},
        {
            "name": "bias",
            "dtype": "int64",
            "shape": [1],
            "order": "C",
            "offset": first + 14,
            "nbytes": 8,
        },
    ]
    text = run("stat", *CPU, path).stdout.decode()
    assert f"'layer.0': bfloat16 (2, 3), C order, 12 bytes from {first}\n" in text
    assert "'scale\\n': 'F4\\x1b[2J', which gpufs cannot read\n" in text


@pytest.mark.parametrize("name", ["broken.npy", "broken.safetensors"])
def test_a_damaged_header_is_one_line(run: Command, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"no header at all\n")
    done = run("stat", *CPU, path)
    assert done.stdout.startswith(f"{path}\n  size      17 bytes\n".encode())
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"gpufs: {path}: ")
    assert done.returncode == 1
    (failure,) = json.loads(run("stat", "--json", *CPU, path).stdout)["failures"]
    assert (failure["path"], failure["errno"]) == (str(path), None)
    assert line == f"gpufs: {path}: {failure['error']}"
