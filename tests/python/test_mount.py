from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import SupportsIndex

import gpufs
import numpy as np
import pytest
from gpufs import _core, grep

from .conftest import FORKS, in_child


def test_a_mount_says_what_it_is(mount: gpufs.Mount) -> None:
    assert mount.device == "cpu"
    assert "CPU" in mount.device_name
    assert mount.page_bytes == 4096
    assert mount.cache_bytes == 4 << 20
    assert mount.multiprocessors == 2
    assert mount.direct_path
    assert mount.bulk_path
    assert mount.options["workers"] == 1
    assert "4096" in repr(mount)
    assert not mount.closed


def test_options_reach_the_host_api() -> None:
    with gpufs.mount(
        device="cpu",
        cache="1MiB",
        page="512",
        workers=2,
        pinned=0,
        extent="128KiB",
        staging="8KiB",
        slots=8,
        bulk="1MiB",
        rings=3,
        open_files=16,
        cpu_threads=3,
        reclaim_timeout_s=0.25,
        request_timeout_s=3.5,
        unmount_timeout_s=4.5,
        maps_files=False,
        raises_descriptor_limit=False,
    ) as mount:
        assert mount.options == {
            "ordinal": 0,
            "cache_bytes": 1 << 20,
            "page_bytes": 512,
            "workers": 2,
            "extent_budget_bytes": 0,
            "extent_bytes": 128 << 10,
            "channel_slots": 8,
            "staging_bytes": 8 << 10,
            "bulk_bytes": 1 << 20,
            "rings": 3,
            "open_files": 16,
            "cpu_threads": 3,
            "reclaim_timeout_ns": 250_000_000,
            "request_timeout_ns": 3_500_000_000,
            "unmount_timeout_ns": 4_500_000_000,
            "read_only": False,
            "maps_files": False,
            "raises_descriptor_limit": False,
            "root": None,
        }
        assert mount.direct_path != "on"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"page": 1000}, "1000"),
        ({"page": 256}, "page"),
        ({"page": "4MiB"}, "page"),
        ({"page": 0}, "page"),
        ({"cache": 0}, "cache"),
        ({"cache": "4KiB"}, "cache"),
        ({"cache": "many"}, "many"),
        ({"workers": 0}, "workers"),
        ({"workers": 100_000}, "workers"),
        ({"staging": "1KiB"}, "staging"),
        ({"staging": "8GiB"}, "staging"),
        ({"extent": 4096}, "extent"),
        ({"slots": 5000}, "slots"),
        ({"open_files": 1 << 20}, "open"),
        ({"request_timeout_s": 0}, "request_timeout_s"),
        ({"request_timeout_s": float("nan")}, "request_timeout_s"),
        ({"device": "gpu"}, "gpu"),
    ],
)
def test_options_that_cannot_be_are_value_errors(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        gpufs.mount(**({"device": "cpu"} | options))


@pytest.mark.parametrize(
    "options", [{"device": 1}, {"ordinal": "0"}, {"cache": 1.5}, {"no_such_option": 1}]
)
def test_options_of_the_wrong_type_are_type_errors(options: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        gpufs.mount(**({"device": "cpu"} | options))


def test_a_cache_larger_than_the_address_space_is_no_memory() -> None:
    with pytest.raises(OSError, match="bytes") as caught:
        gpufs.mount(device="cpu", cache="1PiB", page="2MiB")
    assert caught.value.errno == errno.ENOMEM


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="CUDA") as caught:
        gpufs.mount(device="cuda", ordinal=999)
    assert caught.value.errno in (errno.ENODEV, errno.ENOTSUP)


def test_a_closed_mount_refuses_work_but_not_closing() -> None:
    with gpufs.mount(device="cpu", cache="1MiB") as mount:
        pass
    assert mount.closed
    mount.close()
    assert repr(mount) == "<gpufs.Mount closed>"
    words = grep.Dictionary(["word"])
    for use in (
        mount.stats,
        mount.file_stats,
        mount.synchronize,
        mount.drop_extents,
        lambda: mount.device,
        lambda: mount.options,
        lambda: mount.register_file("/dev/null"),
        lambda: grep.search(mount, words, []),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_an_exception_leaves_the_block_with_the_mount_closed() -> None:
    with pytest.raises(ZeroDivisionError), gpufs.mount(device="cpu", cache="1MiB") as mount:
        raise ZeroDivisionError
    assert mount.closed


def threads() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}


def test_a_mount_that_is_garbage_ends_its_threads() -> None:
    before = threads()  # a thread of an earlier test may still be ending
    mount = gpufs.mount(device="cpu", cache="1MiB", workers=3)
    service = threads() - before
    assert service
    del mount
    gc.collect()
    assert not service & threads()


def test_statistics_have_the_documented_names(mount: gpufs.Mount, tmp_path: Path) -> None:
    counts = mount.stats()
    assert set(counts) == set(gpufs.Statistics.__annotations__)
    assert len(counts["fault_latency_ns"]) == 32
    file = tmp_path / "file"
    file.write_text("word " * 50_000)
    result = grep.search(mount, grep.Dictionary(["word"]), [file])
    assert [match.count for match in result] == [50_000]
    counts = mount.stats()
    assert counts["opens"] >= 1
    assert counts["closes"] == counts["opens"]
    assert counts["direct_bytes"] + counts["staged_bytes"] + counts["open_bytes"] >= 250_000
    assert counts["requests_served"] > 0
    major_faults = counts["direct_loads"] + counts["staged_loads"]
    assert sum(counts["fault_latency_ns"]) >= major_faults > 0
    assert mount.file_stats() == []


def test_a_timeline_is_json_that_names_what_was_opened(mount: gpufs.Mount, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("word " * 50_000)
    with mount.timeline(tmp_path / "trace.json"):
        grep.search(mount, grep.Dictionary(["word"]), [file])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    assert (
        {"open", "close", "send"}
        <= {bar["name"] for bar in bars}
        <= {"open", "read", "close", "send", "register"}
    )
    assert any(bar["args"]["path"] == str(file) for bar in bars)
    assert all(bar["dur"] >= 0 and bar["ts"] >= 0 for bar in bars)
    with pytest.raises(FileNotFoundError), mount.timeline(tmp_path / "nowhere" / "trace.json"):
        pass


def test_options_have_the_documented_names(mount: gpufs.Mount) -> None:
    assert set(mount.options) == set(gpufs.Options.__annotations__)


def test_registered_files_are_loaded_directly(mount: gpufs.Mount, tmp_path: Path) -> None:
    if mount.direct_path != "on":
        pytest.skip(f"no direct path here: {mount.direct_path}")
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100_000)
    for path in (file, str(file), os.fsencode(file)):
        assert mount.register_file(path) >= 100_000
    assert mount.stats()["extents_registered"] >= 1
    mount.drop_extents()
    assert mount.stats()["extent_bytes"] == 0


@pytest.mark.parametrize("name", ["missing", "missing \N{SNOWMAN}", b"missing \xff"])
def test_errors_of_files_have_errno_and_filename(
    mount: gpufs.Mount, tmp_path: Path, name: str | bytes
) -> None:
    path = os.path.join(os.fsencode(tmp_path), os.fsencode(name))  # noqa: PTH118
    with pytest.raises(FileNotFoundError) as caught:
        mount.register_file(path)
    assert caught.value.errno == errno.ENOENT
    assert os.fsencode(caught.value.filename) == path


def test_a_folder_cannot_be_registered(mount: gpufs.Mount, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=tmp_path.name) as caught:
        mount.register_file(tmp_path)
    assert caught.value.filename == str(tmp_path)


@FORKS
def test_a_forked_process_gets_an_error_and_the_parent_goes_on(mount: gpufs.Mount) -> None:
    words = grep.Dictionary(["word"])
    for use in (
        mount.stats,
        mount.synchronize,
        lambda: mount.device,
        lambda: grep.search(mount, words, []),
    ):
        assert "RuntimeError: this gpufs mount belongs to the parent process" in in_child(use)
    assert in_child(mount.close) == "returned None"
    assert in_child(lambda: mount.closed) == "returned True"
    assert mount.stats()["hits"] == 0
    assert not mount.closed


@FORKS
def test_a_forked_process_may_mount_for_itself(mount: gpufs.Mount) -> None:
    def work() -> str:
        with gpufs.mount(device="cpu", cache="1MiB", workers=1) as own:
            return own.device

    assert in_child(work) == "returned cpu"


def test_a_forked_process_ends_without_waiting_for_the_parents_mount() -> None:
    program = """
import os, sys, gpufs
mount = gpufs.mount(device="cpu", cache="1MiB")
if os.fork() == 0:
    sys.exit(7)  # runs the exit handlers
_, status = os.wait()
print(os.waitstatus_to_exitcode(status), mount.device)
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("7 cpu\n", "", 0)


def test_a_mount_left_open_is_closed_when_the_interpreter_ends() -> None:
    program = "import gpufs; kept = [gpufs.mount(device='cpu', cache='1MiB')]; kept.append(kept)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_closing_waits_for_other_threads(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("word other words " * 20_000)
    words = grep.Dictionary(["word"])
    found: list[object] = []

    def work(mount: gpufs.Mount) -> None:
        try:
            while True:
                found.append(sum(match.count for match in grep.search(mount, words, [file])))
        except ValueError as error:
            found.append(str(error))

    for _ in range(3):
        found.clear()
        mount = gpufs.mount(device="cpu", cache="1MiB", workers=1)
        threads = [threading.Thread(target=work, args=(mount,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        while not found:
            threads[0].join(0.01)
        mount.close()
        for thread in threads:
            thread.join(30)
        assert set(found) == {20_000, "the gpufs mount is closed"}
        assert found.count("the gpufs mount is closed") == 3


def test_signals_are_taken_while_a_search_runs(mount: gpufs.Mount, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("word\n" * 2_000_000)
    words = grep.Dictionary(["word"])

    class InterruptionError(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise InterruptionError

    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(InterruptionError):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            while True:
                grep.search(mount, words, [file] * 4)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert mount.stats()["opens"] > 0


def test_a_mount_can_be_kept_to_a_folder_and_from_writing(tmp_path: Path) -> None:
    with gpufs.Mount(device="cpu", cache="1MiB", read_only=True, root=tmp_path) as mount:
        assert mount.options["read_only"]
        assert mount.options["root"] == os.fsencode(tmp_path)
    with gpufs.Mount(device="cpu", cache="1MiB") as mount:
        assert not mount.options["read_only"]
        assert mount.options["root"] is None
    with pytest.raises(OSError, match="none") as caught:
        gpufs.Mount(device="cpu", cache="1MiB", root=tmp_path / "none")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(tmp_path / "none")


class Two:
    """An integer of another library."""

    def __index__(self) -> int:
        return 2


@pytest.mark.parametrize("count", [np.int32(2), Two()])
def test_options_may_be_integers_of_other_libraries(count: SupportsIndex) -> None:
    with gpufs.Mount(
        device="cpu",
        cache=np.int64(1 << 20),
        ordinal=count,
        workers=count,
        slots=count,
        rings=count,
        open_files=count,
        cpu_threads=count,
    ) as mount:
        options = mount.options
        names = ("workers", "channel_slots", "rings", "open_files", "cpu_threads")
        assert [options[name] for name in names] == [2] * 5  # type: ignore[literal-required]


@pytest.mark.parametrize("root", ["", b""])
def test_an_empty_root_is_refused(root: str | bytes) -> None:
    # A setting that was left empty must not serve every file of the host.
    with pytest.raises(ValueError, match="root: an empty path"):
        gpufs.Mount(device="cpu", cache="1MiB", root=root)


def test_a_gpu_that_is_not_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for built_version, devices, warns in (
        (0, ["/dev/nvidia0"], True),
        (0, [], False),
        (13000, ["x"], False),
    ):
        monkeypatch.setattr(
            _core, "examine_cuda", lambda built=built_version: {"built_version": built}
        )
        monkeypatch.setattr("gpufs._machine.gpu_devices", lambda found=devices: found)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with (
                gpufs.mount(device="auto", cache="1MiB") as made,
                gpufs.mount(device="cpu", cache="1MiB"),
            ):
                assert len(told) == int(warns and made.device == "cpu")
        for warning in told:
            assert (warning.category, warning.filename) == (RuntimeWarning, __file__)


def test_a_process_that_stands_still_loses_time_and_no_call(tmp_path: Path) -> None:
    """Stops the process for longer than a request may take, twice, during reads and writes."""
    program = """
import os, sys, gpufs
folder = sys.argv[1]
with gpufs.Mount(device="cpu", cache=1 << 20, request_timeout_s=2, workers=2) as mount:
    print("ready", flush=True)
    for i in range(200):
        path = os.path.join(folder, f"f{i % 7}")
        with open(path, "wb") as file:
            file.write(os.urandom(1 << 20))
        with mount.open(path) as file:
            assert bytes(file.read()) == open(path, "rb").read()
print("done", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for _ in range(2):
            time.sleep(0.1)
            process.send_signal(signal.SIGSTOP)
            time.sleep(3)
            process.send_signal(signal.SIGCONT)
        output, errors = process.communicate(timeout=120)
    assert (output, errors, process.returncode) == ("done\n", "", 0)
