"""Moves programs off the GPU and back: swap_speed.py PROGRAM SIZE CYCLES

PROGRAM is the tests' client `memory`, SIZE what it allocates (8GiB). First one program alone is
paused and resumed CYCLES times, then two of which one fits change places. Each time all bytes are
checked. Prints a line of JSON for each: GB/s of the moves. Exit status: 0, or 1 after a wrong byte.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from gdev._records import Client
from gpufs.sizes import parse_size
from small_gpu import overheads, set_memory

from gdev import _daemon, _files, cli

ALLOCATIONS = 4


class Holder:
    """A program that has filled its memory."""

    def __init__(self, program: str, size: int, value: int) -> None:
        self.process = subprocess.Popen(
            [program],
            env=cli.environment_of("default"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.value = value
        self.piece = size // ALLOCATIONS
        self.says("init")
        for key in range(ALLOCATIONS):
            self.says(f"alloc {self.piece}")
            self.says(f"fill {key} {value + key} {self.piece}")

    def says(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        if not answer.startswith("ok"):
            sys.exit(f"{line}: {answer}")
        return answer

    def check(self) -> None:
        """Lets the GPU read all and write it anew; ends the program if a byte is wrong."""
        for key in range(ALLOCATIONS):
            if self.says(f"sum {key} {self.value + key} {self.piece}") != "ok 1":
                sys.exit(f"wrong bytes in allocation {key} of process {self.process.pid}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def client(self, daemon: _daemon.Daemon) -> Client:
        return next(one for one in daemon.clients() if one.process == self.process.pid)


def speeds(before: Client, after: Client) -> dict[str, float]:
    since = {name: after.counts[name] - before.counts[name] for name in after.counts}
    moved = since["bytes_out"] + since["bytes_in"]
    lasted = since["moving_ns"]
    return {"moved_gb": round(moved / 1e9, 2), "gb_per_s": round(moved / max(lasted, 1), 2)}


def move(one: Holder, daemon: _daemon.Daemon, is_paused: int, phase: str) -> dict[str, float]:
    before = one.client(daemon)
    daemon.ask(_daemon.PAUSE, "", one.process.pid, is_paused)
    if not is_paused:
        one.check()
    while one.client(daemon).phase != phase:
        time.sleep(0.001)
    return speeds(before, one.client(daemon))


def main() -> int:
    program, size, cycles = sys.argv[1], parse_size(sys.argv[2]), int(sys.argv[3])
    environment = cli.environment_of("default")
    assert environment["GDEV_VGPU"] == "default"
    with _daemon.Daemon(_files.socket_path()) as daemon:
        one = Holder(program, size, 100)
        for cycle in range(cycles):
            out = move(one, daemon, 1, "off")
            back = move(one, daemon, 0, "on")
            one.check()
            if cycle in (0, 1, cycles - 1):
                print(json.dumps({"cycle": cycle, "out": out, "in": back}), flush=True)
        other = Holder(program, size, 200)
        both = (one.process.pid, other.process.pid)
        memory = set_memory(size + size // 8 + sum(overheads(both)))
        for _ in range(2):  # the first moves wait for the host's memory
            one.check()
            other.check()
        before = [each.client(daemon) for each in (one, other)]
        begin = time.monotonic()
        for _ in range(min(cycles, 10)):
            one.check()
            other.check()
        lasted = time.monotonic() - begin
        after = [each.client(daemon) for each in (one, other)]
        each_way = [speeds(a, b) for a, b in zip(before, after, strict=True)]
        print(json.dumps({"both": each_way, "seconds": round(lasted, 2)}), flush=True)
        set_memory(memory)
        for each in (one, other):
            each.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
