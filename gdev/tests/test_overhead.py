"""What contexts and modules take counts for the limit, where NVML says it."""

from __future__ import annotations

import json
import signal
import time

import pytest

from .gdev_daemon import OUT_OF_MEMORY, Daemon, Program
from .test_limits import BLOCK, MIB, used, wait_until_used

CONTEXT = 4 * MIB
MODULE = 2 * MIB


def start(daemon: Daemon, likeness: str = "", vgpu: str = "a", **more: str) -> Program:
    """Starts a program whose contexts and modules take memory; ``likeness``: of its NVML."""
    environment = {
        "GDEV_NVML": str(daemon.gpu.nvml),
        "GDEV_SIMULATED_NVML": likeness,
        "GDEV_SIMULATED_CONTEXT": str(CONTEXT),
        "GDEV_SIMULATED_MODULE": str(MODULE),
    }
    return daemon.program(vgpu, env=environment | more)


def test_a_context_counts_for_the_limit(shared: Daemon) -> None:
    """Of 16 MiB exactly 12 are left, and the program sees that."""
    with start(shared) as program:
        program.does("init")
        assert used(shared) == "4 MiB"
        assert program.does("info") == [12 * MIB, 16 * MIB]
        program.does("alloc", 12 * MIB)
        assert program.does("info") == [0, 16 * MIB]
        assert program.says("alloc", 1) == OUT_OF_MEMORY
        assert used(shared) == "16 MiB"


def test_what_was_granted_before_is_taken_back(shared: Daemon) -> None:
    """A second context takes what the grant had room for."""
    with start(shared) as program:
        program.does("init")
        key = program.does("alloc", BLOCK)[0]  # all is granted
        program.does("context")
        assert used(shared) == "10 MiB"
        assert program.says("alloc", 8 * MIB) == OUT_OF_MEMORY
        program.does("alloc", 6 * MIB)
        program.does("free", key)
        program.does("alloc", BLOCK)
        assert program.says("alloc", 1) == OUT_OF_MEMORY


def test_a_context_that_does_not_fit_is_refused(shared: Daemon) -> None:
    with start(shared) as program:
        program.does("init")
        key = program.does("alloc", 10 * MIB)[0]
        assert program.says("context") == OUT_OF_MEMORY
        assert used(shared) == "14 MiB"
        program.does("alloc", 2 * MIB)  # the refused one has left nothing
        program.does("free", key)
        program.does("context")
        assert used(shared) == "10 MiB"
        said = program.end()
    assert "no memory for a context of 4.0 MiB" in said
    assert "virtual GPU a" in said
    assert "limit 16.0 MiB" in said


def test_the_first_context_may_be_refused(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "2MiB")
    with start(daemon) as program:
        assert program.says("init") == OUT_OF_MEMORY
        assert used(daemon) == "0 B"
        daemon.must("vgpu", "set", "a", "--memory", "8MiB")
        program.does("init")
        assert used(daemon) == "4 MiB"


def test_the_end_of_a_context_gives_it_back(shared: Daemon) -> None:
    with start(shared) as program:
        program.does("init")
        program.does("context")
        assert used(shared) == "8 MiB"
        program.does("destroy")
        assert used(shared) == "4 MiB"
        program.does("release")
        assert used(shared) == "0 B"


@pytest.mark.parametrize("likeness", ["", "foreign"])
def test_the_overhead_of_a_killed_program_is_gone(shared: Daemon, likeness: str) -> None:
    with start(shared, likeness) as program:
        program.does("init")
        assert used(shared) == "4 MiB"
        program.process.send_signal(signal.SIGKILL)
        wait_until_used(shared, "0 B")


def test_modules_count_a_moment_later(shared: Daemon) -> None:
    with start(shared) as program:
        program.does("init")
        program.does("module")
        wait_until_used(shared, "6 MiB")
        program.does("alloc", 10 * MIB)
        assert program.says("alloc", 1) == OUT_OF_MEMORY
        program.does("unload")
        wait_until_used(shared, "14 MiB")


def test_overhead_that_grows_past_the_limit_ends_nothing(shared: Daemon) -> None:
    """It makes the next allocations fail, until enough is freed."""
    with start(shared) as program:
        program.does("init")
        first = program.does("alloc", 4 * MIB)[0]
        second = program.does("alloc", 8 * MIB)[0]
        program.does("fill", second, 5, 8 * MIB)
        program.does("module")
        wait_until_used(shared, "18 MiB")
        assert program.does("info") == [0, 16 * MIB]
        assert program.does("check", second, 5, 8 * MIB) == [1]
        program.does("free", first)
        assert program.says("alloc", 4 * MIB) == OUT_OF_MEMORY
        program.does("alloc", 2 * MIB)
        assert program.says("alloc", 1) == OUT_OF_MEMORY


def test_two_programs_have_their_own_overhead(shared: Daemon) -> None:
    with start(shared) as one, start(shared) as other:
        one.does("init")
        other.does("init")
        assert used(shared) == "8 MiB"
        one.does("alloc", 4 * MIB)
        other.does("alloc", 4 * MIB)
        assert one.says("alloc", 1) == OUT_OF_MEMORY
        assert other.says("alloc", 1) == OUT_OF_MEMORY
        one.process.kill()
        wait_until_used(shared, "8 MiB")
        other.does("alloc", 8 * MIB)


def test_a_virtual_gpu_does_not_pay_for_another(shared: Daemon) -> None:
    shared.must("vgpu", "add", "b", "--memory", "16MiB")
    with start(shared) as one, start(shared, vgpu="b") as other:
        one.does("init")
        other.does("init")
        other.does("module")
        wait_until_used(shared, "6 MiB", "b")
        assert used(shared) == "4 MiB"
        one.does("alloc", 12 * MIB)


def test_a_new_daemon_hears_of_it(shared: Daemon) -> None:
    with start(shared) as program:
        program.does("init")
        program.does("alloc", 8 * MIB)
        shared.kill()
        shared.start()
        assert program.does("info") == [4 * MIB, 16 * MIB]
        assert used(shared) == "12 MiB"


def test_without_nvml_there_is_no_overhead(shared: Daemon) -> None:
    with start(shared, GDEV_NVML="/nonexistent") as program:
        program.does("init")
        program.does("alloc", 16 * MIB)
        assert program.says("alloc", 1) == OUT_OF_MEMORY


@pytest.mark.parametrize("likeness", ["foreign", "unavailable"])
def test_where_nvml_does_not_know_the_process_the_difference_counts(
    shared: Daemon, likeness: str
) -> None:
    with start(shared, likeness) as program:
        program.does("init")
        assert used(shared) == "4 MiB"
        program.does("alloc", 8 * MIB)
        program.does("context")
        assert used(shared) == "16 MiB"
        assert program.says("context") == OUT_OF_MEMORY
        program.does("destroy")
        assert used(shared) == "12 MiB"


def test_nvml_that_hangs_holds_nothing_up(shared: Daemon) -> None:
    with start(shared, "hangs") as program:
        begin = time.monotonic()
        program.does("init")
        program.does("context")
        program.does("destroy")
        assert time.monotonic() - begin < 4  # one second, once
        program.does("alloc", 16 * MIB)
        assert program.says("alloc", 1) == OUT_OF_MEMORY
        assert used(shared) == "16 MiB"
        begin = time.monotonic()
        program.end()
        assert time.monotonic() - begin < 2


def test_a_forked_child_measures_itself(shared: Daemon) -> None:
    with start(shared) as program:
        program.does("init")
        child = program.does("fork")[0]
        assert child != program.process.pid
        program.does("init")
        wait_until_used(shared, "4 MiB")


def test_memory_that_others_use_on_the_gpu_is_nobodys(shared: Daemon) -> None:
    """What is not a program's of gdev lowers what programs may have, and `gdev top` shows it."""
    stranger = Program(
        [str(shared.gpu.driver.parent.parent / "tests" / "memory")],
        shared.gpu.environment(under_gdev=False),
    )
    with stranger, start(shared) as program:
        stranger.does("init")
        stranger.does("alloc", 6 * MIB)
        program.does("init")
        program.does("alloc", BLOCK)
        (gpu,) = json.loads(shared.must("top", "--json"))["gpus"]
        assert gpu["overhead"] == CONTEXT
        assert gpu["unaccounted"] == 6 * MIB


@pytest.mark.parametrize(
    ("likeness", "source", "text"),
    [("", "nvml", ""), ("foreign", "difference", "is an estimate")],
)
def test_doctor_says_how_the_overhead_is_known(
    shared: Daemon, likeness: str, source: str, text: str
) -> None:
    with start(shared, likeness) as program:
        program.does("init")
        program.does("alloc", BLOCK)
        found = json.loads(
            shared.gdev("doctor", "--json", env={"GDEV_NVML": str(shared.gpu.nvml)}).stdout
        )
    (nvml,) = [one for one in found if one["check"] == "NVML"]
    assert nvml["level"] == "ok"
    texts = [one["text"] for one in found if one["check"] == "program"]
    assert (source == "nvml") == (texts == [])
    assert all(f"process {program.process.pid}" in one and text in one for one in texts)


def test_doctor_says_that_nvml_is_absent(shared: Daemon) -> None:
    found = json.loads(shared.gdev("doctor", "--json").stdout)
    (nvml,) = [one for one in found if one["check"] == "NVML"]
    assert nvml["level"] == "info"
