"""Memory shared by keys: random operations and kills, against a model."""

from __future__ import annotations

import errno
import random
import time
from dataclasses import dataclass, field

from .gdev_daemon import Daemon, Program, seed_of_test
from .segments import (
    BLOCK,
    CREAT,
    EXCL,
    MIB,
    descriptors,
    error,
    program,
    wait_for_descriptors,
    wait_until_free,
    wait_until_gone,
)
from .test_limits import used, wait_until_used
from .test_protocol import ask, connect
from .test_shared_memory_protocol import REMOVE, STATUS


@dataclass
class Segment:
    """What the model knows of a segment."""

    key: int
    bytes: int
    vgpu: str
    value: int = 0
    is_removed: bool = False
    attached: int = 0


@dataclass
class Model:
    """The rules, written down naively."""

    limits: dict[str, int]
    segments: dict[int, Segment] = field(default_factory=dict)

    def used(self, vgpu: str) -> int:
        return sum(
            -(-one.bytes // BLOCK) * BLOCK for one in self.segments.values() if one.vgpu == vgpu
        )

    def find(self, key: int) -> int | None:
        for number, one in self.segments.items():
            if key != 0 and one.key == key and not one.is_removed:
                return number
        return None

    def get(self, vgpu: str, key: int, size: int, flags: int) -> int | str:
        """Returns an error, the id, or -1: a new one."""
        found = self.find(key)
        if found is not None:
            if flags & CREAT and flags & EXCL:
                return error(errno.EEXIST)
            return found if size <= self.segments[found].bytes else error(errno.EINVAL)
        if not flags & CREAT and key != 0:
            return error(errno.ENOENT)
        if size == 0:
            return error(errno.EINVAL)
        fits = self.used(vgpu) + -(-size // BLOCK) * BLOCK <= self.limits[vgpu]
        return -1 if fits else error(errno.ENOMEM)

    def drop(self) -> None:
        for number in [
            n for n, one in self.segments.items() if one.is_removed and not one.attached
        ]:
            del self.segments[number]


@dataclass
class Actor:
    vgpu: str
    program: Program
    attached: dict[int, int] = field(default_factory=dict)  # ids by address


def act(chance: random.Random, actor: Actor, model: Model, known: list[int]) -> None:
    """Lets a program do something, and checks that the model does the same."""
    program, action = actor.program, chance.random()
    number = chance.choice(known) if known else 1
    one = model.segments.get(number)
    gone = error(errno.EIDRM if known else errno.EINVAL)
    if action < 0.3:
        key, size = chance.randrange(4), chance.choice([0, 1, BLOCK, BLOCK + 1, 3 * BLOCK])
        flags = chance.choice([0, CREAT, CREAT | EXCL]) | 0o600
        expected, answer = (
            model.get(actor.vgpu, key, size, flags),
            program.says("get", key, size, flags),
        )
        if expected == -1:
            number = int(answer.removeprefix("ok "))
            assert number not in known
            known.append(number)
            model.segments[number] = Segment(key, size, actor.vgpu)
        else:
            assert answer == (expected if isinstance(expected, str) else f"ok {expected}")
    elif action < 0.55:
        answer = program.says("at", number, 0)
        if one is None or one.is_removed:
            assert answer == gone
        else:
            actor.attached[int(answer.removeprefix("ok "))] = number
            one.attached += 1
    elif action < 0.7 and actor.attached:
        address = chance.choice(list(actor.attached))
        program.does("dt", address)
        model.segments[actor.attached.pop(address)].attached -= 1
    elif action < 0.9 and actor.attached:
        address = chance.choice(list(actor.attached))
        one = model.segments[actor.attached[address]]
        size = one.bytes // 4 * 4
        assert program.does("check", address, one.value, size) == [1]
        one.value = chance.randrange(1, 1 << 31) if size else 0
        program.does("fill", address, one.value, size)
    else:
        answer = program.says("rm", number)
        assert answer == (gone if one is None or one.is_removed else "ok")
        if one is not None:
            one.is_removed = True
    model.drop()


def test_random_operations_and_kills_match_a_model(daemon: Daemon) -> None:
    seed = seed_of_test()
    chance = random.Random(seed)
    model = Model({"a": 8 * BLOCK, "b": 4 * BLOCK})
    for name, limit in model.limits.items():
        daemon.must("vgpu", "add", name, "--memory", f"{limit // MIB}MiB")
    before = descriptors(daemon)
    actors = [Actor(name, program(daemon, name)) for name in ("a", "a", "b")]
    known: list[int] = []
    try:
        for _ in range(600):
            actor = chance.choice(actors)
            if chance.random() < 0.02:
                actor.program.process.kill()
                actor.program.process.communicate()
                wait_until_gone(daemon, actor.program.process.pid)
                for number in actor.attached.values():
                    model.segments[number].attached -= 1
                model.drop()
                actor.attached, actor.program = {}, program(daemon, actor.vgpu)
            else:
                act(chance, actor, model, known)
        with connect(daemon) as one:
            for number, segment in model.segments.items():
                refused, numbers = ask(one, STATUS, b"", number)
                assert (refused, numbers[4] >> 32) == (0, segment.attached)
                if not segment.is_removed:
                    assert ask(one, REMOVE, b"", number)[0] == 0
    finally:
        for actor in actors:
            actor.program.process.kill()
            actor.program.process.communicate()
    for name in model.limits:
        wait_until_used(daemon, "0 B", name)
    wait_until_free(daemon)
    wait_for_descriptors(daemon, before)


def test_programs_that_are_killed_at_any_moment_leave_nothing(shared: Daemon) -> None:
    """They make and remove one segment all the time, and are killed in the middle of it."""
    chance = random.Random(seed_of_test())
    before = descriptors(shared)
    for _ in range(12):
        programs = [program(shared) for _ in range(2)]
        for one in programs:
            assert one.process.stdin is not None
            one.process.stdin.write("churn 7 1000000\n")
            one.process.stdin.flush()
        time.sleep(chance.random() * 0.05)
        for one in programs:
            one.process.kill()
        for one in programs:
            assert one.process.communicate()[0] == ""  # no error before
    for line in shared.must("shm").splitlines()[1:]:
        shared.must("shm", "rm", line.split()[0])
    wait_until_used(shared, "0 B")
    wait_until_free(shared)
    wait_for_descriptors(shared, before)


def test_programs_that_make_the_same_segment_at_once_use_nothing_more(shared: Daemon) -> None:
    programs = [program(shared) for _ in range(3)]
    try:
        for one in programs:
            assert one.process.stdin is not None
            one.process.stdin.write("churn 7 200\n")
            one.process.stdin.flush()
        for one in programs:
            assert one.process.stdout is not None
            assert one.process.stdout.readline().strip() == "ok"
        assert used(shared) == "0 B"
        programs[0].does("alloc", 16 * MIB)
        wait_until_free(shared, 48 * MIB)
    finally:
        for one in programs:
            one.process.kill()
            one.process.communicate()
