"""Memory that programs make with cuMemCreate: the driver's rules, turns, and the limit."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .gdev_daemon import OUT_OF_MEMORY, Daemon, Program, seed_of_test
from .simulated_gpu import BUILD, ROOT, TIMEOUT_S

MIB = 1 << 20
INVALID = "error 1"  # CUDA_ERROR_INVALID_VALUE
NOT_SUPPORTED = "error 801"
NO_ACCESS, READ, WRITE = 0, 1, 3
GPU, PEER = 0, 1
BY_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


@contextlib.contextmanager
def started(daemon: Daemon, vgpu: str = "a") -> Iterator[Program]:
    with daemon.program(vgpu, "handles") as program:
        program.does("init")
        yield program


def mapped(program: Program, size: int, value: int, types: int = 0) -> tuple[int, int]:
    """Makes memory that is filled. Returns its handle and address."""
    handle = program.does("create", size, types)[0]
    address = program.does("reserve", size)[0]
    program.does("map", address, size, 0, handle)
    program.does("access", address, size, GPU, WRITE)
    program.does("fill", address, size, value)
    return handle, address


def facts(daemon: Daemon, program: Program) -> tuple[int, int, int]:
    """Returns what a program uses, what of that is wired, and what is off the GPU, in MiB."""
    shown = json.loads(daemon.must("top", "--json", "--interval", "0.1"))
    (own,) = [one for one in shown["programs"] if one["process"] == program.process.pid]
    return own["used"] // MIB, own["wired"] // MIB, own["swapped"] // MIB


def swap_out(daemon: Daemon, program: Program) -> None:
    pid = str(program.process.pid)
    daemon.must("pause", pid)
    end = time.monotonic() + TIMEOUT_S
    while not re.search(rf"^{pid} .*off,", daemon.must("ps"), re.MULTILINE):
        assert time.monotonic() < end
        time.sleep(0.02)


def swap_in(daemon: Daemon, program: Program) -> None:
    daemon.must("resume", str(program.process.pid))


@contextlib.contextmanager
def swapped_out(daemon: Daemon, program: Program) -> Iterator[None]:
    swap_out(daemon, program)
    yield
    swap_in(daemon, program)


def swap(daemon: Daemon, program: Program) -> None:
    with swapped_out(daemon, program):
        pass


def test_two_programs_that_do_not_fit_together_take_turns(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a") as a, started(two_vgpus, "b") as b:
        _, at_a = mapped(a, 40 * MIB, 1)
        _, at_b = mapped(b, 40 * MIB, 2)
        assert facts(two_vgpus, a) == (40, 0, 40)
        for _ in range(3):
            assert a.does("check", at_a, 40 * MIB, 1) == [1]
            assert b.does("check", at_b, 40 * MIB, 2) == [1]


def test_memory_larger_than_a_place_of_the_host(daemon: Daemon) -> None:
    """Places have at most 64 MiB, and this is one chunk of more."""
    big = daemon.gpu.memory.with_name("big")
    daemon.must("vgpu", "add", "a", "--memory", "1GiB")
    environment = {"GDEV_SIMULATED_GPU": str(big), "GDEV_SIMULATED_MEMORY": str(160 * MIB)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(daemon, "gpu", type(daemon.gpu)(big, 160 * MIB))
        with started(daemon, "a") as a:
            _, at = mapped(a, 130 * MIB, 1)
            a.does("fill", at + 128 * MIB, 2 * MIB, 3)
            swap(daemon, a)
            assert a.does("check", at, 128 * MIB, 1) == [1]
            assert a.does("check", at + 128 * MIB, 2 * MIB, 3) == [1]


def test_the_drivers_rules_hold(two_vgpus: Daemon, tmp_path: Path) -> None:
    """With and without gdev: as a driver of version 580 answers on an H100."""
    size = 8 * MIB
    unaided = two_vgpus.gpu.environment(under_gdev=False)
    with (
        Program([str(BUILD / "tests" / "handles")], unaided) as alone,
        started(two_vgpus) as under,
    ):
        for program in (alone, under):
            program.does("init")
            at = program.does("reserve", 64 * MIB)[0]
            one = program.does("create", size, 0)[0]
            other = program.does("create", 4 * MIB, 0)[0]
            assert program.says("create", MIB, 0) == INVALID
            assert program.says("map", at, 4 * MIB, 0, one) == NOT_SUPPORTED
            assert program.says("map", at, 4 * MIB, 4 * MIB, one) == NOT_SUPPORTED
            assert program.says("map", at, 16 * MIB, 0, one) == NOT_SUPPORTED
            assert program.says("get", at, GPU) == INVALID
            assert program.says("retain", at) == INVALID
            program.does("map", at, size, 0, one)
            program.does("map", at + 8 * MIB, 4 * MIB, 0, other)
            program.does("map", at + 16 * MIB, size, 0, one)
            assert program.says("map", at + 4 * MIB, 4 * MIB, 0, other) == INVALID
            assert program.does("get", at, GPU) == [NO_ACCESS]
            assert program.says("access", at, 4 * MIB, GPU, WRITE) == INVALID
            assert program.says("access", at + 2 * MIB, 4 * MIB, GPU, WRITE) == INVALID
            program.does("access", at, 24 * MIB, GPU, WRITE)  # with a gap, which ends it
            assert program.does("get", at + 11 * MIB, GPU) == [WRITE]
            assert program.does("get", at + 16 * MIB, GPU) == [NO_ACCESS]
            assert program.says("unmap", at, 4 * MIB) == INVALID
            assert program.says("unmap", at, 10 * MIB) == INVALID
            assert program.says("unreserve", at, 64 * MIB) == INVALID
            assert program.does("retain", at + 17 * MIB) == [one]
            assert program.does("properties", one) == [0, 0]
            assert program.says("export", one, BY_DESCRIPTOR) == INVALID
            program.does("release", one)
            program.does("release", one)
            assert program.says("release", one) == INVALID
            program.does("unmap", at, 24 * MIB)
            program.does("unmap", at, 24 * MIB)  # nothing is mapped there
            program.does("unreserve", at, 64 * MIB)
            program.does("release", other)
            assert program.says("release", other) == INVALID


def test_a_handle_that_is_mapped_twice_comes_back_at_both_addresses(two_vgpus: Daemon) -> None:
    with started(two_vgpus) as a:
        handle, first = mapped(a, 8 * MIB, 1)
        second = a.does("reserve", 8 * MIB)[0]
        a.does("map", second, 8 * MIB, 0, handle)
        a.does("access", second, 8 * MIB, GPU, WRITE)
        swap(two_vgpus, a)
        a.does("fill", second, 4 * MIB, 2)
        assert a.does("check", first, 4 * MIB, 2) == [1]
        assert a.does("check", first + 4 * MIB, 4 * MIB, 1) == [1]
        swap(two_vgpus, a)
        assert a.does("check", second, 4 * MIB, 2) == [1]
        assert facts(two_vgpus, a) == (8, 0, 0)


def test_access_comes_back_as_it_was(two_vgpus: Daemon) -> None:
    with started(two_vgpus) as a:
        _, at = mapped(a, 4 * MIB, 1)
        _, other = mapped(a, 4 * MIB, 2)
        a.does("access", at, 4 * MIB, GPU, READ)
        a.does("access", at, 4 * MIB, PEER, WRITE)
        a.does("access", other, 4 * MIB, GPU, NO_ACCESS)
        with swapped_out(two_vgpus, a):
            assert a.does("get", at, GPU) == [READ]
        assert a.does("check", at, 4 * MIB, 1) == [1]
        for where, device, flags in ((at, GPU, READ), (at, PEER, WRITE), (other, GPU, NO_ACCESS)):
            assert a.does("get", where, device) == [flags]
        # Also the driver says so: what it has is what the new mapping got.
        a.does("access", other, 4 * MIB, GPU, WRITE)
        assert a.does("check", other, 4 * MIB, 2) == [1]
        swap(two_vgpus, a)
        a.does("fill", other, 4 * MIB, 3)
        assert a.does("check", other, 4 * MIB, 3) == [1]


def test_memory_that_is_mapped_nowhere_keeps_its_bytes(two_vgpus: Daemon) -> None:
    with started(two_vgpus) as a:
        handle, at = mapped(a, 8 * MIB, 1)
        a.does("unmap", at, 8 * MIB)
        swap(two_vgpus, a)
        a.does("map", at, 8 * MIB, 0, handle)
        a.does("access", at, 8 * MIB, GPU, WRITE)
        assert a.does("check", at, 8 * MIB, 1) == [1]


def test_memory_is_unmapped_while_it_is_off_and_mapped_elsewhere_later(two_vgpus: Daemon) -> None:
    with started(two_vgpus) as a:
        handle, at = mapped(a, 8 * MIB, 1)
        other = a.does("reserve", 8 * MIB)[0]
        with (
            concurrent.futures.ThreadPoolExecutor() as threads,
            swapped_out(two_vgpus, a),
        ):
            assert a.says("unreserve", at, 8 * MIB) == INVALID
            assert a.says("unmap", at, 4 * MIB) == INVALID
            a.does("unmap", at, 8 * MIB)
            a.does("unreserve", at, 8 * MIB)
            waiting = threads.submit(a.does, "map", other, 8 * MIB, 0, handle)
            time.sleep(0.3)
            assert not waiting.done()
            swap_in(two_vgpus, a)
            waiting.result(TIMEOUT_S)
        a.does("access", other, 8 * MIB, GPU, WRITE)
        assert a.does("check", other, 8 * MIB, 1) == [1]
        assert facts(two_vgpus, a) == (8, 0, 0)


def test_memory_is_released_while_it_is_off(two_vgpus: Daemon) -> None:
    """No turn is needed for that: the program stays paused."""
    with started(two_vgpus) as a:
        handle, at = mapped(a, 8 * MIB, 1)
        rest = mapped(a, 4 * MIB, 2)[1]
        with swapped_out(two_vgpus, a):
            a.does("release", handle)
            assert facts(two_vgpus, a) == (12, 0, 12)
            a.does("unmap", at, 8 * MIB)
            assert facts(two_vgpus, a) == (4, 0, 4)
        assert a.does("check", rest, 4 * MIB, 2) == [1]


def test_memory_lives_while_it_is_mapped_or_retained(two_vgpus: Daemon) -> None:
    with started(two_vgpus) as a:
        handle, at = mapped(a, 8 * MIB, 1)
        a.does("release", handle)
        assert a.says("map", at, 8 * MIB, 0, handle) == INVALID
        swap(two_vgpus, a)
        assert a.does("check", at, 8 * MIB, 1) == [1]
        assert a.does("retain", at + 5 * MIB) == [handle]
        a.does("unmap", at, 8 * MIB)
        assert facts(two_vgpus, a) == (8, 0, 0)
        a.does("map", at, 8 * MIB, 0, handle)
        a.does("access", at, 8 * MIB, GPU, WRITE)
        assert a.does("check", at, 8 * MIB, 1) == [1]
        a.does("unmap", at, 8 * MIB)
        a.does("release", handle)
        assert facts(two_vgpus, a) == (0, 0, 0)


@pytest.mark.parametrize("how", ["export", "dmabuf", "sync", "bind", "array"])
def test_what_others_use_stays_on_the_gpu(two_vgpus: Daemon, how: str) -> None:
    with started(two_vgpus) as a:
        handle, at = mapped(a, 8 * MIB, 1, BY_DESCRIPTOR)
        rest = mapped(a, 4 * MIB, 2, BY_DESCRIPTOR)[1]
        assert facts(two_vgpus, a) == (12, 0, 0)
        own = {"export": (handle, BY_DESCRIPTOR), "dmabuf": (at, 8 * MIB), "sync": (at,)}
        a.does(how, *own.get(how, (handle,)))
        with swapped_out(two_vgpus, a):
            assert facts(two_vgpus, a) == (12, 8, 4)
        assert a.does("check", at, 8 * MIB, 1) == [1]
        assert a.does("check", rest, 4 * MIB, 2) == [1]
        a.does("unmap", at, 8 * MIB)
        a.does("release", handle)
        assert facts(two_vgpus, a) == (4, 0, 0)


def test_wired_memory_is_unmapped_while_the_rest_is_off(two_vgpus: Daemon) -> None:
    with started(two_vgpus) as a:
        handle, at = mapped(a, 8 * MIB, 1, BY_DESCRIPTOR)
        mapped(a, 4 * MIB, 2)
        a.does("sync", at)
        with swapped_out(two_vgpus, a):
            a.does("unmap", at, 8 * MIB)
            a.does("release", handle)
            assert facts(two_vgpus, a) == (4, 0, 4)


def test_an_address_is_known_to_the_driver_when_it_is_asked(two_vgpus: Daemon) -> None:
    """While the memory is off, nothing is mapped there: the question waits for the turn."""
    with started(two_vgpus, "a") as a, started(two_vgpus, "b") as b:
        at = mapped(a, 40 * MIB, 1)[1]
        mapped(b, 40 * MIB, 2)
        assert a.does("range", at) == [40 * MIB]
        assert facts(two_vgpus, a) == (40, 0, 0)


def test_the_limit_is_exact(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    with started(daemon) as a:
        handle, at = mapped(a, 14 * MIB, 1)
        assert a.says("create", 4 * MIB, 0) == OUT_OF_MEMORY
        last = a.does("create", 2 * MIB, 0)[0]
        assert a.says("create", 2 * MIB, 0) == OUT_OF_MEMORY
        a.does("release", handle)
        assert a.says("create", 2 * MIB, 0) == OUT_OF_MEMORY  # it is mapped still
        a.does("release", last)
        a.does("create", 2 * MIB, 0)
        a.does("unmap", at, 14 * MIB)
        a.does("create", 14 * MIB, 0)
        assert a.says("create", 2 * MIB, 0) == OUT_OF_MEMORY


def test_memory_outlives_its_context(two_vgpus: Daemon) -> None:
    """It is copied in another one; without one it stays on the GPU."""
    with started(two_vgpus) as a:
        at = mapped(a, 4 * MIB, 1)[1]
        a.does("reset")
        assert a.does("check", at, 4 * MIB, 1) == [1]
        assert facts(two_vgpus, a) == (4, 4, 0)
        other = mapped(a, 4 * MIB, 2)[1]
        swap(two_vgpus, a)
        assert a.does("check", at, 4 * MIB, 1) == [1]
        assert a.does("check", other, 4 * MIB, 2) == [1]


def test_swapping_that_is_switched_off(two_vgpus: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDEV_SWAP", "0")
    with started(two_vgpus) as a:
        mapped(a, 4 * MIB, 1)
        assert facts(two_vgpus, a) == (4, 4, 0)


def test_a_program_that_is_killed_leaves_nothing(two_vgpus: Daemon) -> None:
    for is_off in (False, True):
        with started(two_vgpus) as a:
            mapped(a, 40 * MIB, 1)
            if is_off:
                swap_out(two_vgpus, a)
            a.process.kill()
            a.process.wait(TIMEOUT_S)
        with started(two_vgpus) as b:
            mapped(b, 64 * MIB, 2)


class Model:
    """A program's memory as it should be, beside the program. Small, so that operations meet."""

    sizes = (2 * MIB, 4 * MIB, 6 * MIB)
    slot = 8 * MIB
    slots = 8

    def __init__(self, program: Program, chance: random.Random) -> None:
        self.program, self.chance = program, chance
        self.base = program.does("reserve", self.slots * self.slot)[0]
        self.next = 0
        # By a number of ours: size, value of its bytes (None: any), references
        self.memory: dict[int, tuple[int, int | None, int]] = {}
        self.handles: dict[int, int] = {}
        self.mapped: dict[int, int] = {}  # by slot
        self.access: dict[tuple[int, int], int] = {}  # by slot and device

    def address(self, slot: int) -> int:
        return self.base + slot * self.slot

    def forget_dead(self, which: int) -> None:
        if self.memory[which][2] == 0 and which not in self.mapped.values():
            del self.memory[which], self.handles[which]

    def used(self) -> int:
        return sum(size for size, _, _ in self.memory.values()) // MIB

    def give_back(self) -> None:
        """An operation that needs no turn."""
        chance, program = self.chance, self.program
        held = [which for which, one in self.memory.items() if one[2] > 0]
        if chance.random() < 0.5 and held:
            which = chance.choice(held)
            program.does("release", self.handles[which])
            size, value, references = self.memory[which]
            self.memory[which] = size, value, references - 1
            self.forget_dead(which)
        elif self.mapped:
            slot = chance.choice([*self.mapped])
            size = self.memory[self.mapped[slot]][0]
            if size > 2 * MIB:
                assert program.says("unmap", self.address(slot), size - 2 * MIB) == INVALID
            program.does("unmap", self.address(slot), size)
            which = self.mapped.pop(slot)
            self.access = {key: flags for key, flags in self.access.items() if key[0] != slot}
            self.forget_dead(which)

    def step(self) -> None:
        chance, program = self.chance, self.program
        what = chance.random()
        if what < 0.2:
            size = chance.choice(self.sizes)
            answer = program.says("create", size, chance.choice([0, BY_DESCRIPTOR]))
            if answer == OUT_OF_MEMORY:
                assert self.used() + size // MIB > 30
                return
            self.next += 1
            self.handles[self.next] = int(answer.split()[1])
            self.memory[self.next] = size, None, 1
        elif what < 0.4:
            held = [which for which, one in self.memory.items() if one[2] > 0]
            slot = chance.randrange(self.slots)
            if held:
                which = chance.choice(held)
                size = self.memory[which][0]
                answer = program.says("map", self.address(slot), size, 0, self.handles[which])
                assert (answer == "ok") == (slot not in self.mapped), answer
                self.mapped.setdefault(slot, which)
        elif what < 0.55 and self.mapped:
            slot = chance.choice([*self.mapped])
            device = chance.choice([GPU, GPU, PEER])
            flags = chance.choice([WRITE, WRITE, READ, NO_ACCESS])
            size = self.memory[self.mapped[slot]][0]
            program.does("access", self.address(slot), size, device, flags)
            self.access[slot, device] = flags
        elif what < 0.65 and self.mapped:
            slot = chance.choice([*self.mapped])
            which = self.mapped[slot]
            assert program.does("retain", self.address(slot) + MIB) == [self.handles[which]]
            size, value, references = self.memory[which]
            self.memory[which] = size, value, references + 1
        elif what < 0.8:
            self.give_back()
        else:
            self.write()

    def write(self) -> None:
        for slot in [slot for slot in self.mapped if self.access.get((slot, GPU)) == WRITE]:
            which = self.mapped[slot]
            size, _, references = self.memory[which]
            value = self.chance.randrange(1 << 32)
            self.program.does("fill", self.address(slot), size, value)
            self.memory[which] = size, value, references
            break

    def check(self) -> None:
        for slot, which in self.mapped.items():
            size, value, _ = self.memory[which]
            for device in (GPU, PEER):
                flags = self.access.get((slot, device), NO_ACCESS)
                assert self.program.does("get", self.address(slot), device) == [flags]
            if value is not None and self.access.get((slot, GPU), NO_ACCESS) != NO_ACCESS:
                assert self.program.does("check", self.address(slot), size, value) == [1]


def test_random_operations_match_a_model(two_vgpus: Daemon) -> None:
    """Two programs that do not fit together; each is moved out at random moments."""
    chance = random.Random(seed_of_test())
    two_vgpus.must("gpu", "set", "--memory", "40MiB")
    for name in ("a", "b"):
        two_vgpus.must("vgpu", "set", name, "--memory", "32MiB")
    with started(two_vgpus, "a") as a, started(two_vgpus, "b") as b:
        models = [Model(one, chance) for one in (a, b)]
        for _ in range(80):
            one = chance.choice(models)
            what = chance.random()
            if what < 0.1:
                with swapped_out(two_vgpus, one.program):
                    for _ in range(chance.randrange(4)):
                        one.give_back()
                one.check()
            elif what < 0.2:
                one.check()
            else:
                one.step()
        for one in models:
            one.check()
            assert facts(two_vgpus, one.program)[:2] == (one.used(), 0)


def test_every_function_that_takes_a_handle_has_a_wrapper() -> None:
    """The driver would use a virtual handle as an address."""
    cache = (BUILD.parent / "CMakeCache.txt").read_text()
    found = re.search(r"^GDEV_CUDA_INCLUDE_DIR:PATH=(.*)$", cache, re.MULTILINE)
    assert found is not None
    header = (Path(found.group(1)) / "cuda.h").read_text(errors="replace")
    wrappers = (ROOT / "gdev/interposer/handle_calls.cpp").read_text()
    calls = re.findall(r"CUDAAPI\s+(cu\w+)\s*\(([^)]*)\)", header)
    handle = r"CUmemGenericAllocationHandle\s+\w|CUarrayMapInfo\b"
    names = {name for name, arguments in calls if re.search(handle, arguments)}
    assert {"cuMemMap", "cuMemRelease", "cuMemMapArrayAsync", "cuMulticastBindMem"} <= names
    renamed = re.findall(r"define\s+(cu\w+)\s+__CUDA_API_PT[DS][SZ]\((\w+)\)", header)
    names |= {f"{to}_ptsz" for name, to in renamed if name in names}
    assert [name for name in sorted(names) if f"case id_{name}:" not in wrappers] == []


def test_memory_outlives_its_context_when_a_turn_ends_meanwhile(two_vgpus: Daemon) -> None:
    """The last release waits for the GPU, and the turn is to end as soon as it returns."""
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        two_vgpus.program("a") as a,
    ):
        for line in (("init",), ("module",), ("create", 8 * MIB), ("map", 0)):
            a.does(*line)
        a.does("fill", 0, 7, 8 * MIB)
        a.does("context")
        a.does("spin", 1500)
        released = threads.submit(a.does, "release")
        time.sleep(0.1)
        two_vgpus.must("pause", str(a.process.pid))
        released.result(TIMEOUT_S)
        end = time.monotonic() + TIMEOUT_S
        while "off," not in two_vgpus.must("ps") and time.monotonic() < end:
            pass
        two_vgpus.must("resume", str(a.process.pid))
        assert a.does("check", 0, 7, 8 * MIB) == [1]
