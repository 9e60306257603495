"""A small world in which each step of gdev happens, and in which one process is killed or stopped.

Programs take turns, share memory by keys and by IPC, and settings change. Some of the programs are
the victims: they, or the daemon, come to the crash point that a test has chosen.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from .gdev_daemon import Daemon, Program
from .segments import MAKE, error, wait_until_free
from .simulated_gpu import BUILD, ROOT, Gpu, gpu_folder
from .test_protocol import ADD, CLIENTS, GPUS, LIST, PAUSE, REMOVE, SET, SETTINGS, ask, connect

MIB = 1 << 20
GPU_BYTES = 32 * MIB
SIZE = 20 * MIB  # of a program: two do not fit together
SMALL = 2 * MIB
SEGMENT = 64 * MIB  # of the host's memory
UNCHANGED = (1 << 64) - 2
KEY, KEY_VALUE = 7, 77
OFF = 2  # a phase
OWN = 5  # descriptors of a daemon without clients: lock, listener, signals, spare, events
# A step that the daemon's end has made fail must succeed within this time.
STEP_S = 20.0


def points(folder: str) -> list[str]:
    """Returns the crash points in the sources of a folder."""
    found = []
    for file in sorted((ROOT / "gdev" / folder).glob("*.cpp")):
        found += re.findall(r'\bcrash_point\("(\w+)"\)', file.read_text())
    return found


class EndedError(Exception):
    """The process that a test has chosen has come to its point, and the scenario ends there."""


class StepError(Exception):
    """A program has answered with an error, or has ended."""


class World:
    """The daemon and its programs. The folder is empty."""

    def __init__(self, folder: Path, crash: str, is_daemon: bool) -> None:
        self.ends = contextlib.ExitStack()
        gpus = self.ends.enter_context(gpu_folder())
        self.daemon = Daemon(Gpu(gpus / "gpu", GPU_BYTES, BUILD / "crash" / "programs"), folder)
        self.other_gpu = gpus / "other_gpu"
        self.swap = folder / "swap"
        self.swap.mkdir()
        self.chosen = {"GDEV_TEST_CRASH": crash}
        self.is_daemon = is_daemon
        self.programs: list[Program] = []
        self.victims: list[Program] = []
        self.values: dict[Program, list[tuple[int, int, int]]] = {}  # key, value, bytes
        self.kills: list[int | None] = []  # how the victims have ended
        self.crashes = 0  # of the daemon
        self.stops = 0  # of any process
        self.is_checking = False
        self.is_over = threading.Event()
        self.watcher = threading.Thread(target=self.watch)

    def __enter__(self) -> World:
        self.daemon.launch(self.chosen if self.is_daemon else {})
        self.watcher.start()
        end = time.monotonic() + STEP_S
        while True:
            with contextlib.suppress(OSError), connect(self.daemon):
                return self
            assert time.monotonic() < end, "no daemon listens"
            time.sleep(0.005)

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.watcher.join()
        for one in self.programs:
            one.process.kill()
            one.process.communicate()
        self.daemon.kill()
        self.ends.close()

    def watch(self) -> None:
        """Starts the daemon anew when it has ended, and lets stopped processes go on."""
        while not self.is_over.wait(0.002):
            process = self.daemon.process
            assert process is not None
            if process.poll() is not None:
                self.crashes += 1
                self.daemon.kill()
                self.daemon.launch()
            for one in (process, *(victim.process for victim in self.victims)):
                with contextlib.suppress(OSError):
                    text = Path(f"/proc/{one.pid}/stat").read_text()
                    if text.rpartition(")")[2].split()[0] == "T":
                        self.stops += 1
                        time.sleep(0.2)
                        one.send_signal(signal.SIGCONT)

    # --- Steps ---

    def has_ended(self) -> bool:
        """Tells whether a process has come to its end at the point."""
        return not self.is_checking and self.has_crashed()

    def has_crashed(self) -> bool:
        return self.crashes != 0 or any(one.process.poll() is not None for one in self.victims)

    def step(self, does: Callable[[], bool], what: str) -> None:
        """Does a step; once more if the daemon ended meanwhile. EndedError: that was the last."""
        end = time.monotonic() + STEP_S
        while not does():
            time.sleep(0.05)  # the end of a process is seen a moment later
            if any(one.process.poll() is not None for one in self.victims):
                raise EndedError
            assert self.crashes != 0, f"{what} has failed"
            assert time.monotonic() < end, f"{what} fails with the new daemon"
        if self.has_ended():
            raise EndedError

    def commands(self, kind: int, name: bytes = b"", *numbers: int, again: int = 0) -> None:
        """Asks the daemon for a change. ``again``: the error if it holds already."""

        def does() -> bool:
            try:
                with connect(self.daemon) as to:
                    failed, _ = ask(to, kind, name, *numbers)
            except (OSError, struct.error):  # it has ended
                return False
            return failed == 0 or (failed == again and (self.crashes != 0 or self.is_checking))

        self.step(does, f"message {kind}")

    def wait_for(self, program: Program, is_so: Callable[[list[int]], bool]) -> None:
        """Waits until what the daemon says of a program is so."""
        end = time.monotonic() + STEP_S
        while True:
            with contextlib.suppress(OSError, struct.error), connect(self.daemon) as to:
                for i in range(len(self.programs)):
                    failed, said = ask(to, CLIENTS, b"", i)
                    if failed == 0 and said[0] == program.process.pid and is_so(said):
                        return
            if self.has_ended():
                raise EndedError
            assert time.monotonic() < end
            time.sleep(0.005)

    def start(
        self,
        vgpu: str,
        name: str = "memory",
        is_victim: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> Program:
        """Starts a program that has initialized CUDA."""
        is_chosen = is_victim and not self.is_daemon
        program = self.daemon.program(
            vgpu,
            name,
            {"GDEV_SWAP_FOLDER": str(self.swap)}
            | (self.chosen if is_chosen else {})
            | dict(env or {}),
        )
        self.programs.append(program)
        if is_chosen:
            self.victims.append(program)
        self.step(lambda: self.says(program, "init") == "ok", "init")
        return program

    @staticmethod
    def says(program: Program, *words: object) -> str:
        """Returns the answer; nothing if the program has ended."""
        try:
            return program.says(*words)
        except BrokenPipeError:
            return ""

    def does(self, program: Program, *words: object) -> list[int]:
        """Tells a program a line, which must succeed."""
        answer = ""

        def does() -> bool:
            nonlocal answer
            answer = self.says(program, *words)
            return answer.startswith("ok")

        self.step(does, f"{words}")
        return [int(word) for word in answer.split()[1:]]

    def shares(self, maker: Program, user: Program, key: int, is_kept: bool) -> None:
        """One makes a segment, the other uses it; then it is removed, unless it is kept."""

        def does() -> bool:
            def told(program: Program, *words: object) -> list[int]:
                answer = self.says(program, *words)
                if not answer.startswith("ok"):
                    raise StepError
                return [int(word) for word in answer.split()[1:]]

            try:
                (one,) = told(maker, "get", key, SMALL, MAKE)
                (made,) = told(maker, "at", one, 0)
                told(maker, "fill", made, KEY_VALUE, SMALL)
                (other,) = told(user, "get", key, 0, 0)
                (found,) = told(user, "at", other, 0)
                is_right = told(user, "check", found, KEY_VALUE, SMALL) == [1]
                assert is_right or self.has_ended()
                told(maker, "set", one, os.getuid(), os.getgid(), 0o600)
                told(maker, "dt", made)
                if not is_kept:
                    told(maker, "rm", one)
                told(user, "dt", found)
            except StepError:
                return False
            return True

        self.step(does, "sharing by key")

    def exports(self, owner: Program, user: Program) -> None:
        """One exports memory by IPC, the other uses it."""
        (key,) = self.does(owner, "alloc", SMALL)
        self.does(owner, "fill", key, 5, SMALL)
        self.does(owner, "wait")
        handle = ""

        def does() -> bool:
            nonlocal handle
            answer = self.says(owner, "export", key)
            handle = answer.rpartition(" ")[2]
            return answer.startswith("ok")

        self.step(does, "export")
        (opened,) = self.does(user, "open", handle)
        assert self.says(user, "check", opened, 5, SMALL) in ("ok 1", "")
        self.does(user, "close", opened)

    def uses_pool(self, program: Program) -> None:
        """A program allocates and frees in a stream, and its pool gives the memory back."""
        (key,) = self.does(program, "async", SMALL)
        self.does(program, "fill", key, 6, SMALL)
        assert self.says(program, "check", key, 6, SMALL) in ("ok 1", "")
        self.does(program, "free", key)
        self.does(program, "wait")

    def fills(self, program: Program, value: int, size: int = SIZE) -> None:
        """A program gets memory of its own, and must find it as it was from then on."""
        self.values[program] = []
        for half in range(2):  # one can leave the GPU, and the other one stay
            (key,) = self.does(program, "alloc", size // 2)
            self.does(program, "fill", key, value + half, size // 2)
            self.values[program].append((key, value + half, size // 2))

    def checks(self, program: Program) -> None:
        """A program's memory is as it was. That needs no daemon, but it may need a turn."""
        for half in self.values[program]:
            answer = self.says(program, "check", *half)
            assert answer == "ok 1" or (program in self.victims and answer == ""), answer
            if self.has_ended():
                raise EndedError

    def run(self) -> None:
        """All steps. EndedError: a process has ended, as a test has chosen."""
        self.commands(SETTINGS, b"", UNCHANGED, UNCHANGED, 0, 0)
        self.commands(ADD, b"a", 2 * GPU_BYTES, UNCHANGED + 1, again=errno.EEXIST)
        self.commands(ADD, b"b", 2 * GPU_BYTES, UNCHANGED + 1, again=errno.EEXIST)
        keys = [self.start("a", "shared_memory", True), self.start("b", "shared_memory")]
        self.shares(keys[0], keys[1], KEY, is_kept=True)
        self.shares(keys[0], keys[1], KEY + 1, is_kept=False)
        one, other = self.start("a", is_victim=True), self.start("b")
        self.exports(other, one)
        self.exports(one, other)
        self.uses_pool(one)
        self.fills(one, 10)
        # The host has no room for it, and then it has.
        self.commands(PAUSE, b"", one.process.pid, 1)
        self.wait_for(one, lambda said: said[8] != 0)
        self.commands(SETTINGS, b"", UNCHANGED, UNCHANGED, 2 * SEGMENT, 2 * SEGMENT)
        self.wait_for(one, lambda said: said[5] == OFF)
        self.commands(PAUSE, b"", one.process.pid, 0)
        self.checks(one)
        self.fills(other, 20)
        self.checks(one)
        third = self.start("a", is_victim=True)
        self.fills(third, 30)
        for program in (other, third, one, other, third):  # the third's memory is in a file
            self.checks(program)
        for key, _, _ in self.values.pop(third):
            self.does(third, "free", key)
        self.is_a_job()
        self.commands(ADD, b"c", SMALL, UNCHANGED + 1, again=errno.EEXIST)
        self.commands(SET, b"c", *[UNCHANGED] * 6)
        self.commands(REMOVE, b"c", again=errno.ENOENT)

    def is_a_job(self) -> None:
        """Two programs on two GPUs leave and enter together."""
        self.commands(SETTINGS, b"", UNCHANGED, UNCHANGED, 8 * SEGMENT, 2 * SEGMENT)
        job = {"GDEV_JOB": "job"}
        pair = [
            self.start("a", is_victim=True, env=job),
            self.start("a", env=job | {"GDEV_SIMULATED_GPU": str(self.other_gpu)}),
        ]
        self.fills(pair[0], 40, 2 * SMALL)
        self.fills(pair[1], 40, 8 * SMALL)  # it enters later: the victim waits for it
        self.commands(PAUSE, b"", pair[1].process.pid, 1)
        for program in pair:
            self.wait_for(program, lambda said: said[5] == OFF)
        self.commands(PAUSE, b"", pair[1].process.pid, 0)
        for program in pair:
            self.checks(program)

    # --- Afterwards ---

    def check(self) -> None:
        """The others have what they had, and go on; when all have ended, nothing is left."""
        self.is_checking = True
        self.kill_victims()
        for name in (b"a", b"b"):
            self.commands(ADD, name, 2 * GPU_BYTES, UNCHANGED + 1, again=errno.EEXIST)
        self.commands(SETTINGS, b"", UNCHANGED, UNCHANGED, 8 * SEGMENT, 0)
        self.wait_until_seen(len([one for one in self.programs if one.process.poll() is None]))
        rest = [*self.values]
        for one in rest:
            self.commands(PAUSE, b"", one.process.pid, 0)
        for one in rest:
            self.checks(one)
        last = self.start("b")
        self.fills(last, 90)
        for one in (*rest, last):
            self.checks(one)
        self.end_programs()
        self.check_keys()
        self.end_programs()
        self.check_daemon()

    def kill_victims(self) -> None:
        self.kills = [one.process.poll() for one in self.victims]
        for one in self.victims:
            one.process.kill()
            one.process.communicate()
            self.programs.remove(one)
            self.values.pop(one, None)
        self.victims = []

    def wait_until_seen(self, clients: int) -> None:
        """Waits until the daemon has as many clients."""
        end = time.monotonic() + STEP_S
        while len(self.listed(CLIENTS)) != clients:
            assert time.monotonic() < end, f"{self.listed(CLIENTS)}, not {clients} programs"
            time.sleep(0.005)

    def listed(self, kind: int) -> list[list[int]]:
        found: list[list[int]] = []
        with contextlib.suppress(OSError, struct.error), connect(self.daemon) as to:
            while True:
                failed, said = ask(to, kind, b"", len(found))
                if failed != 0:
                    break
                found.append(said)
        return found

    def end_programs(self) -> None:
        """The programs end by themselves."""
        for one in self.programs:
            errors = one.end()
            assert one.process.returncode == 0, errors
        self.programs, self.values = [], {}
        self.wait_until_seen(0)

    def check_keys(self) -> None:
        """A segment is whole or not there, and nobody is attached."""
        program = self.start("a", "shared_memory")
        for key in (KEY, KEY + 1):
            answer = self.says(program, "get", key, 0, 0)
            if answer == error(errno.ENOENT):
                assert self.stops == 0 or key != KEY
                continue
            number = int(answer.removeprefix("ok "))
            (address,) = self.does(program, "at", number, 0)
            right = [self.does(program, "check", address, value, SMALL) for value in (0, KEY_VALUE)]
            assert right in ([[1], [0]], [[0], [1]])
            assert self.does(program, "stat", number)[:3] == [key, SMALL, 1]
            self.does(program, "dt", address)
            self.does(program, "rm", number)
            assert self.says(program, "stat", number) == error(errno.EIDRM)

    def check_daemon(self) -> None:
        """It counts nothing, and holds nothing of programs that have ended."""
        vgpus = self.listed(LIST)
        assert len(vgpus) >= 2
        assert all(one[1:4] == [0, 0, 0] and one[11] == 0 for one in vgpus)
        assert self.listed(GPUS) == []
        wait_until_free(self.daemon, GPU_BYTES)
        assert self.daemon.process is not None
        process = Path(f"/proc/{self.daemon.process.pid}")
        end = time.monotonic() + STEP_S
        while len(held := [one for one in (process / "fd").iterdir() if int(one.name) > 2]) != OWN:
            assert time.monotonic() < end, [one.readlink() for one in held]
            time.sleep(0.01)
        assert "memfd:" not in (process / "maps").read_text()
        assert [*self.swap.iterdir()] == []
        names = {one.name for one in self.swap.parent.iterdir()}
        assert names <= {"swap", "socket", "socket.lock", "socket.state"}
