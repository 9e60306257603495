"""Device memory shared by keys: the rules of shmget(), ends, limits."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from .gdev_daemon import OUT_OF_MEMORY, Daemon, Program
from .segments import (
    BLOCK,
    CREAT,
    EXCL,
    MAKE,
    MIB,
    RDONLY,
    descriptors,
    error,
    free_bytes,
    program,
    wait_for_descriptors,
    wait_until_free,
)
from .simulated_gpu import BUILD, ROOT, TIMEOUT_S
from .test_limits import used, wait_until_used

DEST = 0o1000  # in a mode: removed


# --- The rules ---


def test_two_programs_see_the_same_bytes(shared: Daemon) -> None:
    with program(shared) as one, program(shared) as other:
        (number,) = one.does("get", 7, 3 * MIB, MAKE)
        assert other.does("get", 7, 0, 0) == [number]
        (mine,) = one.does("at", number, 0)
        (its,) = other.does("at", number, 0)
        assert other.does("check", its, 0, 3 * MIB) == [1]  # new memory is zero
        one.does("fill", mine, 5, 3 * MIB)
        assert other.does("check", its, 5, 3 * MIB) == [1]


def test_a_segment_is_attached_as_often_as_one_wants(shared: Daemon) -> None:
    with program(shared) as one:
        (number,) = one.does("get", 7, BLOCK, MAKE)
        first, second = one.does("at", number, 0)[0], one.does("at", number, RDONLY)[0]
        assert first != second
        one.does("fill", first, 9, BLOCK)
        assert one.does("check", second, 9, BLOCK) == [1]
        one.does("dt", first)
        assert one.does("stat", number)[2] == 1
        assert one.does("check", second, 9, BLOCK) == [1]
        assert one.says("dt", first) == error(errno.EINVAL)


def test_keys_are_found_or_made_as_the_flags_say(shared: Daemon) -> None:
    with program(shared) as one:
        assert one.says("get", 7, BLOCK, 0) == error(errno.ENOENT)
        (number,) = one.does("get", 7, 1000, MAKE | EXCL)
        assert one.does("get", 7, 1000, MAKE) == [number]
        assert one.says("get", 7, 1000, MAKE | EXCL) == error(errno.EEXIST)
        assert one.says("get", 7, 1001, 0) == error(errno.EINVAL)  # larger than it is
        assert one.says("get", 8, 0, MAKE) == error(errno.EINVAL)
        assert one.says("get", 8, BLOCK, MAKE | 0o10000) == error(errno.EINVAL)
        assert one.does("get", -(1 << 63), BLOCK, MAKE) != [number]


def test_private_segments_have_no_key(shared: Daemon) -> None:
    with program(shared) as one:
        first, second = one.does("get", 0, BLOCK, 0o600), one.does("get", 0, BLOCK, 0o600)
        assert first != second
        assert one.does("stat", first[0])[0] == 0


def test_a_removed_segment_lives_until_the_last_one_detaches(shared: Daemon) -> None:
    with program(shared) as one, program(shared) as other:
        (number,) = one.does("get", 7, BLOCK, MAKE)
        (mine,) = one.does("at", number, 0)
        (its,) = other.does("at", number, 0)
        one.does("rm", number)
        assert one.says("at", number, 0) == error(errno.EIDRM)
        assert one.says("rm", number) == error(errno.EIDRM)
        assert one.does("stat", number)[5] == DEST | 0o600
        assert one.says("get", 7, 0, 0) == error(errno.ENOENT)
        (again,) = one.does("get", 7, BLOCK, MAKE)  # the key is free at once
        assert again != number
        one.does("fill", mine, 3, BLOCK)
        one.does("dt", mine)
        assert other.does("check", its, 3, BLOCK) == [1]
        assert used(shared) == "4 MiB"
        other.does("dt", its)
        assert used(shared) == "2 MiB"
        assert one.says("stat", number) == error(errno.EIDRM)
        wait_until_free(shared, 62 * MIB)


def test_ids_that_never_were_are_invalid(shared: Daemon) -> None:
    with program(shared) as one:
        (number,) = one.does("get", 7, BLOCK, MAKE)
        for other in (number + 1, number - 1, -1, (1 << 31) - 1):
            for words in (("at", other, 0), ("stat", other), ("rm", other)):
                assert one.says(*words) == error(errno.EINVAL)
        assert one.says("at", number, 1) == error(errno.EINVAL)
        assert one.says("dt", 4096) == error(errno.EINVAL)


def test_a_segment_says_whose_it_is(shared: Daemon) -> None:
    with program(shared) as one, program(shared) as other:
        (number,) = one.does("get", 7, 1000, CREAT | 0o640)
        own, its = one.process.pid, other.process.pid
        assert one.does("stat", number) == [7, 1000, 0, os.getuid(), os.getgid(), 0o640, own, 0]
        other.does("at", number, 0)
        one.does("set", number, 12, 34, 0o7444)
        assert one.does("stat", number) == [7, 1000, 1, 12, 34, 0o444, own, its]


def test_the_names_of_the_paper_do_the_same(shared: Daemon) -> None:
    with program(shared) as one:
        (address,) = one.does("paper", 7, BLOCK)
        one.does("fill", address, 1, BLOCK)
        assert used(shared) == "2 MiB"
        one.does("dt", address)
        assert used(shared) == "0 B"


def test_without_gdev_or_cuda_the_calls_say_so(shared: Daemon) -> None:
    with shared.program("a", "shared_memory") as one:
        assert one.says("get", 7, BLOCK, MAKE) == error(errno.ENODEV)
    environment = shared.gpu.environment(under_gdev=False)
    with Program([str(BUILD / "tests" / "shared_memory")], environment) as one:
        one.does("init")
        assert one.says("get", 7, BLOCK, MAKE) == error(errno.ENOSYS)
    environment = shared.gpu.environment(under_gdev=True)
    with Program([str(BUILD / "tests" / "shared_memory")], environment) as one:
        one.does("init")
        assert one.says("get", 7, BLOCK, MAKE) == error(errno.ENOSYS)


@pytest.mark.parametrize(("language", "standard"), [("c", "c99"), ("c++", "c++11")])
def test_the_header_is_of_both_languages(language: str, standard: str) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no compiler")
    cache = (BUILD.parent / "CMakeCache.txt").read_text()
    (cuda,) = re.findall(r"^GDEV_CUDA_INCLUDE_DIR:PATH=(.*)$", cache, re.MULTILINE)
    code = (
        '#include "gdev/shared_memory.h"\n'
        "int main(void) { return gshmget(1, 2, IPC_CREAT) < 0 && gshmdt(0) == -ENOSYS; }\n"
    )
    options = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    include = [f"-I{ROOT / 'gdev' / 'include'}", "-isystem", cuda]
    done = subprocess.run(
        [compiler, "-x", language, *options, *include, "-"],
        input=code,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- Ends ---


def test_the_bytes_outlive_their_creator(shared: Daemon) -> None:
    with program(shared) as creator:
        (number,) = creator.does("get", 7, 4 * MIB, MAKE)
        creator.does("fill", creator.does("at", number, 0)[0], 77, 4 * MIB)
    assert used(shared) == "4 MiB"
    assert free_bytes(shared) == 60 * MIB
    with program(shared) as third:
        assert third.does("get", 7, 4 * MIB, 0) == [number]
        (address,) = third.does("at", number, 0)
        assert third.does("check", address, 77, 4 * MIB) == [1]
        third.does("rm", number)
    wait_until_used(shared, "0 B")
    wait_until_free(shared)


def test_the_death_of_a_program_detaches(shared: Daemon) -> None:
    before = descriptors(shared)
    with program(shared) as one:
        (number,) = one.does("get", 7, BLOCK, MAKE)
        with program(shared) as other:
            for _ in range(3):
                other.does("at", number, 0)
            one.does("rm", number)
            assert one.does("stat", number)[2] == 3
        wait_until_used(shared, "0 B")
        wait_until_free(shared)
        assert one.says("stat", number) == error(errno.EIDRM)
    wait_for_descriptors(shared, before)


def test_the_end_of_a_context_detaches(shared: Daemon) -> None:
    with program(shared) as one:
        (number,) = one.does("get", 7, BLOCK, MAKE)
        (address,) = one.does("at", number, 0)
        one.does("fill", address, 1, BLOCK)
        one.does("reset")
        assert one.does("stat", number)[2] == 0
        assert one.says("dt", address) == error(errno.EINVAL)
        (address,) = one.does("at", number, 0)
        assert one.does("check", address, 1, BLOCK) == [1]


def test_a_forked_child_has_nothing_attached(shared: Daemon) -> None:
    with program(shared) as one:
        (number,) = one.does("get", 7, BLOCK, MAKE)
        (address,) = one.does("at", number, 0)
        child = one.does("fork")[0]
        assert one.says("dt", address) == error(errno.EINVAL)
        assert one.says("stat", number) == error(errno.ENODEV)
        one.does("init")
        assert one.does("stat", number)[2] == 1  # its parent's
        (own,) = one.does("at", number, 0)
        assert one.does("stat", number)[2] == 2
        one.does("dt", own)
        os.kill(child, signal.SIGKILL)


def test_when_the_daemon_is_gone_what_is_attached_stays(shared: Daemon) -> None:
    with program(shared) as one:
        (number,) = one.does("get", 7, BLOCK, MAKE)
        (address,) = one.does("at", number, 0)
        (second,) = one.does("at", number, 0)
        one.does("fill", address, 8, BLOCK)
        shared.kill()
        assert one.says("get", 7, 0, 0) == error(errno.ENOTCONN)
        one.does("dt", second)
        shared.start()
        assert one.does("check", address, 8, BLOCK) == [1]
        assert one.says("get", 7, 0, 0) == error(errno.ENOENT)
        one.does("dt", address)
        (number,) = one.does("get", 7, BLOCK, MAKE)
        assert one.does("stat", number)[2] == 0
        assert used(shared) == "2 MiB"
    assert used(shared) == "2 MiB"


def test_a_client_that_was_cut_off_is_attached_again(shared: Daemon) -> None:
    """A daemon that hung for seconds has lost the connection, and the segment is still there."""
    with program(shared) as one, program(shared) as other:
        (number,) = one.does("get", 7, BLOCK, MAKE)
        (removed,) = one.does("get", 8, BLOCK, MAKE)
        for which in (number, number, removed):
            one.does("at", which, 0)
        other.does("at", removed, 0)
        other.does("rm", removed)
        assert shared.process is not None
        shared.process.send_signal(signal.SIGSTOP)
        assert one.says("stat", number) == error(errno.ENOTCONN)
        shared.process.send_signal(signal.SIGCONT)
        end = time.monotonic() + 20
        while one.says("stat", number) == error(errno.ENOTCONN):
            assert time.monotonic() < end
            time.sleep(0.1)
        assert one.does("stat", number)[2] == 2
        assert one.does("stat", removed)[2] == 2


# --- Limits ---


def test_a_segment_counts_for_the_virtual_gpu_of_its_creator(shared: Daemon) -> None:
    shared.must("vgpu", "add", "b", "--memory", "8MiB")
    with program(shared) as one, program(shared, "b") as other:
        assert one.says("get", 7, 16 * MIB + 1, MAKE) == error(errno.ENOMEM)
        (number,) = one.does("get", 7, 16 * MIB, MAKE)
        assert used(shared) == "16 MiB"
        assert one.says("alloc", 1) == OUT_OF_MEMORY
        assert one.does("info") == [0, 16 * MIB]
        other.does("at", number, 0)
        other.does("alloc", 8 * MIB)  # what it attached is not its own
        one.does("rm", number)
        assert one.says("alloc", 1) == OUT_OF_MEMORY
        other.process.kill()
        wait_until_used(shared, "0 B")
        one.does("alloc", 16 * MIB)
        assert one.says("get", 7, 1, MAKE) == error(errno.ENOMEM)


def test_a_segment_of_a_program_that_is_gone_counts_for_others(shared: Daemon) -> None:
    with program(shared) as one:
        one.does("get", 7, 10 * MIB, MAKE)
    with program(shared) as other:
        assert other.says("alloc", 6 * MIB + 1) == OUT_OF_MEMORY
        other.does("alloc", 6 * MIB)
        shared.must("vgpu", "set", "a", "--memory", "8MiB")  # less than is there
        assert other.says("alloc", 1) == OUT_OF_MEMORY
        other.does("rm", other.does("get", 7, 0, 0)[0])
        other.does("alloc", BLOCK)
        assert other.says("alloc", 1) == OUT_OF_MEMORY


def test_a_virtual_gpu_that_holds_a_segment_is_not_removed(shared: Daemon) -> None:
    with program(shared) as one:
        one.does("get", 7, BLOCK, MAKE)
    end = time.monotonic() + 10
    while len(shared.must("ps").splitlines()) > 1:
        assert time.monotonic() < end
        time.sleep(0.02)
    refused = shared.gdev("vgpu", "rm", "a")
    assert refused.returncode == 1 and "programs use it" in refused.stderr
    shared.must("shm", "rm", shared.must("shm").splitlines()[1].split()[0])
    shared.must("vgpu", "rm", "a")


def test_the_gpu_may_have_less_than_the_limit(shared: Daemon) -> None:
    shared.must("vgpu", "set", "a", "--memory", "1TiB")
    with program(shared) as one:
        assert one.says("get", 7, 66 * MIB, MAKE) == error(errno.ENOMEM)
        assert used(shared) == "0 B"
        one.does("get", 7, 64 * MIB, MAKE)
