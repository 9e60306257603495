"""Swaps and kills programs, again and again: swap_soak.py PROGRAM CYCLES KILLS [SIZE [SEED]]

PROGRAM is the tests' client `memory`. Four run at a time in the virtual GPU `default`, each with
SIZE (64MiB) of memory, on a GPU that is made so small that two fit. They fill their memory and
check all of it, over and over, until they have come back to the GPU CYCLES times together, and
KILLS of them were killed at random moments. Then nothing of them may be left: in the account, on
the GPU, in the host's memory. Prints a line. Exit status: 0, or 1 with what was wrong.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from gpufs.sizes import parse_size
from small_gpu import overheads, set_memory

from gdev import _daemon, _files, cli

PROGRAMS = 4
VGPU = "default"
LIVES_S = (0.05, 1.5)  # after its memory was filled
GONE_WITHIN_S = 10.0
HOST_SLACK = 1 << 30  # other programs of the machine


class EndedError(Exception):
    """A program has ended."""


class Program:
    def __init__(self, path: str, environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [path], env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def does(self, line: str) -> str:
        """Returns what comes after "ok". Raises EndedError."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(line, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise EndedError from None
        answer = self.process.stdout.readline()
        if not answer:
            raise EndedError
        if not answer.startswith("ok"):
            raise RuntimeError(f"{line}: {answer.strip()}")
        return answer[2:].strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout):
            assert file is not None
            with contextlib.suppress(BrokenPipeError):
                file.close()


class Soak:
    def __init__(self, path: str, size: int, kills: int) -> None:
        self.path = path
        self.size = size
        self.environment = cli.environment_of(VGPU)
        self.left = kills
        self.checks = 0
        self.faults: list[str] = []
        self.is_over = threading.Event()
        self.lock = threading.Lock()

    def overhead(self) -> int:
        """Returns what one program takes beside allocations."""
        program = Program(self.path, self.environment)
        try:
            program.does("init")
            return overheads([program.process.pid])[0]
        finally:
            program.end()

    def takes_kill(self) -> bool:
        with self.lock:
            self.left -= 1
            return self.left >= 0

    def live(self, seed: int) -> None:
        """Runs programs, one after another."""
        chance = random.Random(seed)
        while not self.is_over.is_set():
            program = Program(self.path, self.environment)
            timer = None
            try:
                program.does("init")
                program.does(f"alloc {self.size}")
                value = self.fill(program, chance)
                if self.takes_kill():
                    timer = threading.Timer(chance.uniform(*LIVES_S), program.process.kill)
                    timer.start()
                while timer is not None or not self.is_over.is_set():
                    self.check(program, value)
                    if chance.random() < 0.5:
                        value = self.fill(program, chance)
            except EndedError:
                if timer is None:
                    self.faults.append("a program has ended by itself")
            except RuntimeError as fault:
                self.faults.append(str(fault))
            finally:
                program.end()
            if self.faults:
                self.is_over.set()

    def fill(self, program: Program, chance: random.Random) -> int:
        value = chance.randrange(1 << 32)
        program.does(f"fill 0 {value} {self.size}")
        return value

    def check(self, program: Program, value: int) -> None:
        if program.does(f"check 0 {value} {self.size}") != "1":
            raise RuntimeError("a program has found wrong bytes")
        with self.lock:
            self.checks += 1


def cycles() -> int:
    """Returns how often programs have come back to the GPU."""
    with _daemon.Daemon(_files.socket_path()) as daemon:
        daemon.observe(begin=True)
        counts = daemon.totals(VGPU)
        return 0 if counts is None else counts["turns"]


def free_memory(path: str) -> tuple[int, int]:
    """Returns what is free of the GPU, for a program without gdev, and of the host's memory."""
    program = Program(path, dict(os.environ))
    program.does("init")
    of_gpu = int(program.does("info").split()[0])
    program.end()
    lines = Path("/proc/meminfo").read_text().splitlines()
    (of_host,) = [int(one.split()[1]) << 10 for one in lines if one.startswith("MemAvailable:")]
    return of_gpu, of_host


def left_behind(path: str, before: tuple[int, int]) -> str:
    """Returns what is left when all programs have ended; empty: nothing."""
    end = time.monotonic() + GONE_WITHIN_S
    while True:
        with _daemon.Daemon(_files.socket_path()) as daemon:
            (vgpu,) = [one for one in daemon.vgpus() if one.name == VGPU]
        of_gpu, of_host = free_memory(path)
        left = []
        if vgpu.used or vgpu.clients:
            left.append(f"{vgpu.used} bytes of {vgpu.clients} programs in the account")
        if of_gpu < before[0]:
            left.append(f"{before[0] - of_gpu} bytes of the GPU")
        if of_host < before[1] - HOST_SLACK:
            left.append(f"{before[1] - of_host} bytes of the host")
        if not left or time.monotonic() > end:
            return ", ".join(left)
        time.sleep(0.1)


def main() -> int:
    path, wanted, kills = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    size = parse_size(sys.argv[4] if len(sys.argv) > 4 else "64MiB")
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    soak = Soak(path, size, kills)
    before = free_memory(path)
    with _daemon.connect(start=True):
        pass
    memory = set_memory(2 * size + size // 2 + PROGRAMS * soak.overhead())
    begin, first = time.monotonic(), cycles()
    threads = [
        threading.Thread(target=soak.live, args=(PROGRAMS * seed + i,)) for i in range(PROGRAMS)
    ]
    for one in threads:
        one.start()
    while not soak.is_over.wait(0.2):
        if soak.left <= 0 and cycles() - first >= wanted:
            soak.is_over.set()
    for one in threads:
        one.join()
    done = cycles() - first
    seconds = time.monotonic() - begin
    set_memory(memory)
    faults = sorted({*soak.faults})
    if left := left_behind(path, before):
        faults.append(f"left: {left}")
    print(
        f"{done} cycles, {kills - max(soak.left, 0)} kills, {soak.checks} checks of {size} bytes"
        f" in {seconds:.0f} s: {'; '.join(faults) if faults else 'nothing wrong, nothing left'}"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
