"""Submitted reads and writes: their futures against plain calls, and their errors."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from gpufs import _submit

from .conftest import FORKS, TIMEOUT_S, in_child, run_program

CONTENT = np.random.default_rng(2).integers(0, 256, 1_000_003, np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(CONTENT.tobytes())
    return made


def on_host(array: Any) -> np.ndarray[Any, Any]:
    return array if isinstance(array, np.ndarray) else array.numpy()


def result_of(future: Future[Any]) -> Any:
    value = future.result(TIMEOUT_S)
    return value if isinstance(value, int) else on_host(value)


@pytest.fixture
def busy(fs: gpufs.Mount, path: Path) -> Iterator[threading.Event]:
    """All threads that run calls wait in callbacks until the event is set."""
    release = threading.Event()
    begun = threading.Semaphore(0)

    def hold(_: object) -> None:
        begun.release()
        release.wait(TIMEOUT_S)

    with fs.open(path) as file:
        for _ in range(_submit.AT_ONCE):
            file.submit_read(1).add_done_callback(hold)
        for _ in range(_submit.AT_ONCE):
            assert begun.acquire(timeout=TIMEOUT_S)
        yield release
        release.set()


def test_futures_give_what_calls_give(fs: gpufs.Mount, path: Path) -> None:
    index = np.random.default_rng(3).integers(0, 1000, 300)
    with fs.open(path) as file, fs.array(path, "u1", (1000, 1000)) as array:
        parts = [file.submit_read(40_000, start) for start in range(0, 1_000_003, 40_000)]
        whole, past_the_end = file.submit_read(), file.submit_read(5, 2_000_000)
        records = file.submit_gather(index, 1000)
        rows, column, item = array.submit(index), array.submit(np.s_[::-1, 3]), array.submit((5, 7))
        assert np.array_equal(np.concatenate([result_of(part) for part in parts]), CONTENT)
        assert np.array_equal(result_of(whole), CONTENT)
        assert result_of(past_the_end).size == 0
        table = CONTENT[:1_000_000].reshape(1000, 1000)
        for found, wanted in (
            (records, table[index]),
            (rows, table[index]),
            (column, table[::-1, 3]),
        ):
            assert np.array_equal(result_of(found), wanted)
        assert result_of(item) == table[5, 7]


def test_out_is_filled_and_returned(mount: gpufs.Mount, path: Path) -> None:
    out = np.zeros(5000, np.uint8)
    with mount.open(path) as file:
        assert file.submit_read(5000, 77, out=out).result(TIMEOUT_S) is out
    assert np.array_equal(out, CONTENT[77:5077])


def test_the_error_of_a_call_is_told_to_its_own_future_only(fs: gpufs.Mount, path: Path) -> None:
    for _ in range(5):
        path.write_bytes(CONTENT.tobytes())
        # Without direct loads, which may still find the bytes that the file had when it was
        # registered.
        with gpufs.mount(device=fs.device, cache="4MiB", pinned=0) as made, made.open(path) as file:
            os.truncate(path, 500_000)  # of which the mount has heard nothing
            good, bad = [], []
            for i in range(20):
                good.append(file.submit_read(20_000, i * 20_000))
                bad.append(file.submit_read(20_000, 600_000 + i * 20_000))
            for i, future in enumerate(good):
                assert np.array_equal(result_of(future), CONTENT[i * 20_000 : (i + 1) * 20_000])
            for future in bad:
                with pytest.raises(OSError) as caught:
                    future.result(TIMEOUT_S)
                assert (caught.value.errno, caught.value.filename) == (errno.ENODATA, str(path))
            file.wait()
            file.check()
            assert file.failures() == 0


def test_arguments_are_refused_by_the_future(fs: gpufs.Mount, path: Path) -> None:
    with fs.open(path) as file, fs.array(path, "u1") as array:
        assert isinstance(file.submit_read(5, -1).exception(TIMEOUT_S), ValueError)
        assert isinstance(file.submit_read(5, out="text").exception(TIMEOUT_S), TypeError)
        with pytest.raises(OSError, match="not open for writing"):
            file.submit_write(b"text")
        with pytest.raises(IndexError):
            array.submit(len(CONTENT))
    with pytest.raises(ValueError, match="closed"):
        file.submit_read()


def test_closing_waits_for_what_was_submitted(fs: gpufs.Mount, tmp_path: Path) -> None:
    target = tmp_path / "new"
    with fs.open(target, "wb") as file:
        futures = [
            file.submit_write(CONTENT[at : at + 5000], at) for at in range(0, len(CONTENT), 5000)
        ]
    assert target.read_bytes() == CONTENT.tobytes()
    assert all(future.done() for future in futures)
    assert sum(future.result() for future in futures) == len(CONTENT)


@pytest.mark.parametrize("call", ["fsync", "stat", "truncate", "wait"])
def test_so_do_the_calls_that_wait(fs: gpufs.Mount, tmp_path: Path, call: str) -> None:
    with fs.open(tmp_path / "new", "w+b") as file:
        futures = [file.submit_write(CONTENT[:5000], at * 5000) for at in range(40)]
        file.truncate(7) if call == "truncate" else getattr(file, call)()
        assert all(future.done() for future in futures)


def test_records_of_many_writers_are_appended_whole(fs: gpufs.Mount, tmp_path: Path) -> None:
    target = tmp_path / "log"
    with fs.open(target, "ab") as file:
        for i in range(200):
            file.submit_write(bytes([i]) * 100)
    records = [target.read_bytes()[at : at + 100] for at in range(0, 20_000, 100)]
    assert sorted(records) == [bytes([i]) * 100 for i in range(200)]


def test_the_error_of_a_write_stays_with_the_file(fs: gpufs.Mount, tmp_path: Path) -> None:
    file = fs.open(tmp_path / "new", "wb")
    file.submit_write(b"good")
    file.submit_write(b"too far", 2**63 - 1)  # nobody asks this future
    for call in (file.fsync, file.fsync, file.close):
        with pytest.raises(OSError) as caught:
            call()
        assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "new"))
    assert file.closed
    file.close()
    assert (tmp_path / "new").read_bytes() == b"good"


@pytest.mark.parametrize("closes", [True, False])
def test_unmounting_raises_the_error_of_a_write_that_no_call_has_raised(
    tmp_path: Path, closes: bool
) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    mount = gpufs.mount(device="cpu", cache="1MiB", cpu_threads=1, workers=1)
    for path in paths:
        file = mount.open(path, "wb")
        wait([file.submit_write(b"lost", 1 << 48)])  # its future is dropped
        if closes and path == paths[0]:
            with pytest.raises(OSError, match="too large"):
                file.close()
        gone = weakref.ref(file)
        del file
        gc.collect()
        while gone() is not None:  # until its thread drops it
            time.sleep(0.001)
    with pytest.raises(OSError, match="too large") as caught:
        mount.unmount()
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(paths[closes]))
    assert not mount.file_errors().errors


def test_what_has_not_begun_can_be_cancelled(
    fs: gpufs.Mount, tmp_path: Path, busy: threading.Event
) -> None:
    with fs.open(tmp_path / "new", "wb") as file:
        file.submit_write(b"stays")
        cancelled = file.submit_write(b"never")
        assert cancelled.cancel()
        busy.set()
        file.wait()
    assert cancelled.cancelled()
    assert (tmp_path / "new").read_bytes() == b"stays"


def test_a_callback_may_close_the_file(fs: gpufs.Mount, path: Path, busy: threading.Event) -> None:
    file = fs.open(path)
    closed = threading.Event()

    def close(_: object) -> None:
        file.close()
        closed.set()

    first = file.submit_read(10)
    first.add_done_callback(close)
    others = [file.submit_read(10, at) for at in range(200)]
    busy.set()
    assert closed.wait(TIMEOUT_S)
    assert wait(others, TIMEOUT_S).not_done == set()
    assert {type(other.exception()) for other in others} <= {type(None), ValueError}


def test_unmounting_waits_too_and_takes_no_more(path: Path) -> None:
    mount = gpufs.mount(device="cpu", cache="4MiB", workers=1, cpu_threads=2)
    file = mount.open(path)
    futures = [file.submit_read(100_000, at * 1000) for at in range(50)]
    mount.unmount()
    assert all(future.done() for future in futures)
    assert np.array_equal(result_of(futures[7]), CONTENT[7000:107_000])
    with pytest.raises(ValueError, match="closed"):
        file.submit_read()


def test_they_can_be_awaited(fs: gpufs.Mount, path: Path) -> None:
    async def sizes() -> list[int]:
        with fs.open(path) as file:
            reads = [asyncio.wrap_future(file.submit_read(n * 1000)) for n in range(10)]
            return [on_host(array).size for array in await asyncio.gather(*reads)]

    assert asyncio.run(sizes()) == [n * 1000 for n in range(10)]


@FORKS
def test_a_forked_process_submits_nothing(mount: gpufs.Mount, path: Path) -> None:
    with mount.open(path) as file:
        file.submit_read(1).result(TIMEOUT_S)
        assert in_child(lambda: file.submit_read(1)).startswith("RuntimeError")
        assert in_child(file.close) == "returned None"


def test_a_program_that_ends_loses_nothing(tmp_path: Path) -> None:
    program = """
import sys, gpufs
mount = gpufs.mount(device="cpu", cache="4MiB", workers=1, cpu_threads=2)
file = mount.open(sys.argv[1], "wb")
for i in range(100):
    file.submit_write(bytes([i]) * 3000, i * 3000)
"""
    assert run_program(program, tmp_path / "new") == ""
    assert (tmp_path / "new").read_bytes() == b"".join(bytes([i]) * 3000 for i in range(100))
