"""Files that are closed, dropped, or shared by threads and processes."""

from __future__ import annotations

import functools
import gc
import random
import threading
from pathlib import Path

import gpufs
import pytest

from .conftest import FORKS, in_child, run_program
from .file_cases import CONTENT, mount_of_cpu, run_threads, uses
from .file_operations import random_operations


@pytest.mark.parametrize("mode", ["r", "r+", "a"])
def test_closed_files_refuse_work_but_not_closing(
    mount: gpufs.Mount, file: Path, mode: str
) -> None:
    with mount.open(file, mode) as opened:
        assert not opened.closed
        assert repr(opened) == f"<gpufs.File {str(file)!r}>"
        opened.size()
    assert opened.closed
    assert repr(opened) == f"<gpufs.File {str(file)!r} closed>"
    opened.close()
    opened.check()
    for use in uses(opened):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert file.read_bytes() == CONTENT


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_files_are_closed_with_their_mount(file: Path, mode: str) -> None:
    with mount_of_cpu() as mount:
        opened = mount.open(file, mode)
        opened.size()
    assert opened.closed
    assert opened.mount is mount
    opened.close()
    for use in [*uses(opened), lambda: mount.open(file), lambda: mount.array(file, "u1")]:
        with pytest.raises(ValueError, match="closed"):
            use()


def test_an_exception_leaves_the_block_with_the_file_closed(mount: gpufs.Mount, file: Path) -> None:
    with pytest.raises(ZeroDivisionError), mount.open(file) as opened:
        raise ZeroDivisionError
    assert opened.closed


def test_files_that_are_garbage_are_closed(mount: gpufs.Mount, file: Path) -> None:
    opened = mount.open(file)
    array = mount.array(file, "u1")
    (found,) = mount.file_stats()
    assert (found.path, found.size, found.holders) == (str(file), len(CONTENT), 2)
    part = array[:10]
    del opened, array
    gc.collect()
    assert mount.file_stats() == []
    assert part.tobytes() == CONTENT[:10]


def test_garbage_is_written_back(mount: gpufs.Mount, tmp_path: Path) -> None:
    opened = mount.open(tmp_path / "new", "w")
    opened.write(CONTENT)
    del opened
    gc.collect()
    assert (tmp_path / "new").read_bytes() == CONTENT


def test_a_file_keeps_its_mount(file: Path) -> None:
    opened = mount_of_cpu().open(file)
    gc.collect()
    assert opened.read().tobytes() == CONTENT
    opened.mount.close()


def test_threads_share_a_file(small: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.write_bytes(bytes(200_000))
    with small.open(path, "r+") as opened:

        def work(number: int) -> None:
            rng = random.Random(number)
            first, model = number * 49_999, bytearray(49_000)
            for _ in range(30):
                offset, count = rng.randrange(40_000), rng.randrange(9000)
                data = rng.randbytes(count)
                opened.write(data, first + offset)
                model[offset : offset + count] = data
                assert opened.read(49_000, first).tobytes() == model

        assert run_threads(*(functools.partial(work, number) for number in range(4))) == []


def test_threads_share_a_mount(mount: gpufs.Mount, tmp_path: Path) -> None:
    works = [
        functools.partial(random_operations, mount, tmp_path / str(number), number, 30)
        for number in range(4)
    ]
    assert run_threads(*works) == []
    assert mount.file_stats() == []


def test_threads_open_while_others_close(file: Path) -> None:
    for _ in range(3):
        mount = mount_of_cpu()

        def work(mount: gpufs.Mount = mount) -> None:
            while True:
                opened = mount.open(file)
                assert opened.read(10, 100).tobytes() == CONTENT[100:110]

        def close(mount: gpufs.Mount = mount) -> None:
            while mount.stats()["opens"] + mount.stats()["reopens"] < 20:
                pass
            mount.close()

        errors = run_threads(work, work, close)
        assert [type(error) for error in errors] == [ValueError] * 2
        assert all("closed" in str(error) for error in errors)


def test_closing_a_file_waits_for_other_threads(mount: gpufs.Mount, file: Path) -> None:
    for _ in range(5):
        opened = mount.open(file, "r+")
        started = threading.Barrier(3)

        def work(opened: gpufs.File = opened, started: threading.Barrier = started) -> None:
            started.wait()
            while True:
                assert opened.read().tobytes() == CONTENT
                opened.write(CONTENT[:100])

        def close(opened: gpufs.File = opened, started: threading.Barrier = started) -> None:
            started.wait()
            threading.Event().wait(0.01)
            opened.close()

        errors = run_threads(work, work, close)
        assert [(type(error), "closed" in str(error)) for error in errors] == [
            (ValueError, True)
        ] * 2
    assert file.read_bytes() == CONTENT


@FORKS
def test_forked_processes_get_an_error_and_the_parent_goes_on(
    mount: gpufs.Mount, file: Path
) -> None:
    with mount.open(file, "r+") as opened, mount.array(file, "u1") as array:
        opened.write(b"x", 5)
        for use in [
            *uses(opened),
            lambda: array[3],
            lambda: mount.open(file),
            lambda: mount.array(file, "u1"),
        ]:
            assert "RuntimeError: this gpufs mount belongs to the parent process" in in_child(use)
        assert in_child(lambda: opened.closed) == "returned True"
        assert in_child(opened.close) == "returned None"
        assert in_child(array.close) == "returned None"
        assert opened.read(3, 4).tobytes() == CONTENT[4:5] + b"x" + CONTENT[6:7]
    assert file.read_bytes() == CONTENT[:5] + b"x" + CONTENT[6:]


def test_forked_processes_with_open_files_end_well(tmp_path: Path) -> None:
    program = """
import os, sys, gpufs
mount = gpufs.mount(device="cpu", cache="1MiB")
file = mount.open(sys.argv[1], "w+")
file.write(b"content")
if os.fork() == 0:
    with file:
        pass
    sys.exit(7)  # runs the exit handlers
_, status = os.wait()
print(os.waitstatus_to_exitcode(status), bytes(file.read()))
"""
    assert run_program(program, tmp_path / "new") == "7 b'content'\n"
    assert (tmp_path / "new").read_bytes() == b"content"


def test_forked_processes_end_also_if_a_thread_was_opening_a_file(file: Path) -> None:
    program = """
import os, sys, gpufs
mount = gpufs.mount(device="cpu", cache="1MiB")
with mount.open(sys.argv[1]):
    mount._latch.acquire()
    if os.fork() == 0:
        sys.exit(7)
    mount._latch.release()
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert run_program(program, file) == "7\n"


def test_files_left_open_are_written_back_when_the_interpreter_ends(tmp_path: Path) -> None:
    program = """
import sys, gpufs
mount = gpufs.mount(device="cpu", cache="1MiB")
kept = [mount.open(sys.argv[1], "w"), mount.array(sys.argv[2], "u1")]
kept.append(kept)
kept[0].write(kept[1][:])
"""
    (tmp_path / "old").write_bytes(CONTENT)
    assert run_program(program, tmp_path / "new", tmp_path / "old") == ""
    assert (tmp_path / "new").read_bytes() == CONTENT


def test_every_close_waits_until_all_is_written(tmp_path: Path) -> None:
    data = bytes(range(256)) * 64
    for attempt in range(150):
        path = tmp_path / str(attempt)
        mount = gpufs.mount(device="cpu", cache="1MiB", workers=1, cpu_threads=2)
        file = mount.open(path, "wb")
        file.write(data)
        both = threading.Barrier(2)

        def close_in_another_thread(
            file: gpufs.File = file, both: threading.Barrier = both
        ) -> None:
            both.wait()
            file.close()

        other = threading.Thread(target=close_in_another_thread)
        other.start()
        both.wait()
        if attempt % 2:
            file.close()
        else:
            mount.close()
        assert path.read_bytes() == data
        other.join()
        mount.close()
