"""Random g* calls against a model."""

from __future__ import annotations

import errno
import random

from .gcalls import INVALID, NOT_OPEN, launch, numbers, put, start, stored
from .gdev_daemon import Daemon, Program, seed_of_test
from .segments import MIB, error


class Model:
    """What a program's handles and allocations should be."""

    WORDS = 64

    def __init__(self, program: Program, chosen: random.Random) -> None:
        self.program = program
        self.chosen = chosen
        self.next_handle = 1
        self.handles: dict[int, int] = {}  # the last id
        self.memory: dict[int, tuple[int, list[int]]] = {}  # handle and numbers, by address
        self.host = stored(program, "host", 4 * self.WORDS)

    def open(self) -> None:
        assert self.program.does("gopen", 0) == [self.next_handle]
        self.handles[self.next_handle] = 0
        self.next_handle += 1

    def step(self) -> None:
        if not self.handles or self.chosen.random() < 0.05:
            self.open()
        handle = self.chosen.choice(sorted(self.handles))
        getattr(self, self.chosen.choice(self.STEPS))(handle)

    def any_memory(self) -> int | None:
        return self.chosen.choice(sorted(self.memory)) if self.memory else None

    def close(self, handle: int) -> None:
        if self.chosen.random() < 0.8:
            return
        self.program.does("gclose", handle)
        assert self.program.says("gbarrier", handle) == NOT_OPEN
        del self.handles[handle]
        self.memory = {at: one for at, one in self.memory.items() if one[0] != handle}

    def allocate(self, handle: int) -> None:
        big = self.chosen.random() < 0.1
        made = self.program.says("gmalloc", handle, "_", 2 * MIB if big else 4 * self.WORDS)
        if made == error(errno.ENOMEM):
            assert len(self.memory) > 3
            return
        address = int(made.split()[1])
        assert address not in self.memory
        first = self.chosen.randrange(1 << 20)
        put(self.program, address, first, self.WORDS, handle)
        self.memory[address] = (handle, list(range(first, first + self.WORDS)))

    def free(self, handle: int) -> None:
        address = self.any_memory()
        if address is None:
            assert self.program.says("gfree", handle, self.host) == INVALID
        elif self.memory[address][0] == handle:
            self.program.does("gfree", handle, address)
            del self.memory[address]
        else:
            assert self.program.says("gfree", handle, address) == INVALID

    def copy(self, handle: int) -> None:
        to, from_ = self.any_memory(), self.any_memory()
        if to is None or from_ is None or to == from_:
            return
        begin = self.chosen.randrange(self.WORDS)
        count = self.chosen.randrange(self.WORDS - begin)
        words = (handle, to + 4 * begin, from_ + 4 * begin, 4 * count)
        if self.chosen.random() < 0.5:
            self.program.does("gmemcpy", *words)
        else:
            (id_,) = self.program.does("gmemcpy_async", *words, "_")
            self.count(handle, id_)
            self.program.does("gsync", handle, id_, -1)
        source = self.memory[from_][1]
        self.memory[to][1][begin : begin + count] = source[begin : begin + count]

    def add(self, handle: int) -> None:
        """Launches several kernels without waiting between them."""
        address = self.any_memory()
        for _ in range(self.chosen.randrange(4) if address is not None else 0):
            assert address is not None
            value = self.chosen.randrange(1000)
            self.count(
                handle,
                launch(self.program, "gdev_add", address, self.WORDS, -value, handle=handle),
            )
            held = self.memory[address][1]
            held[:] = [one + value for one in held]
        self.program.does("gbarrier", handle)

    def sync(self, handle: int) -> None:
        id_ = self.chosen.randrange(5)
        expected = 0 < id_ <= self.handles[handle]
        assert self.program.says("gsync", handle, id_, -1) == ("ok" if expected else INVALID)

    def check(self, handle: int) -> None:
        address = self.any_memory()
        if address is not None:
            assert numbers(self.program, address, self.WORDS, handle) == self.memory[address][1]

    def count(self, handle: int, id_: int) -> None:
        self.handles[handle] += 1
        assert id_ == self.handles[handle]

    STEPS = ("close", "allocate", "allocate", "free", "copy", "copy", "add", "sync", "check")


def test_random_operations_against_a_model(shared: Daemon) -> None:
    chosen = random.Random(seed_of_test())
    with start(shared) as made:
        model = Model(made, chosen)
        for _ in range(150):
            model.step()
        for address, (handle, held) in model.memory.items():
            assert numbers(made, address, model.WORDS, handle) == held
