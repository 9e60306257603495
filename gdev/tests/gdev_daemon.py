"""A daemon of a test's own, and programs under it that do what the test says."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from forked_commands import Commands

from .simulated_gpu import BUILD, ROOT, TIMEOUT_S, Gpu

OUT_OF_MEMORY = "error 2"  # CUDA_ERROR_OUT_OF_MEMORY
NOT_READY = "error 802"  # CUDA_ERROR_SYSTEM_NOT_READY
PYTHON_PATH = os.pathsep.join(str(ROOT / of / "python") for of in ("gdev", "."))
COMMANDS = Commands("gdev", ["shm"], {"PYTHONPATH": PYTHON_PATH, "GDEV_SOCKET": os.devnull})


def seed_of_test() -> int:
    """Returns the seed of a random test, and prints it, which pytest shows where the test fails."""
    seed = int(os.environ.get("GDEV_TEST_SEED", random.randrange(1 << 32)))
    print(f"GDEV_TEST_SEED={seed}")
    return seed


class Program:
    """The client ``memory`` or another: each line that it is told is answered by one."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=TIMEOUT_S)

    def says(self, *words: object) -> str:
        """Tells it a line. Returns the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(*words, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def does(self, *words: object) -> list[int]:
        """Tells it a line, which must succeed. Returns the numbers of the answer."""
        answer = self.says(*words)
        assert answer.startswith("ok"), f"{words}: {answer}"
        return [int(word) for word in answer.split()[1:]]

    def stop(self) -> None:
        """Stops it, and waits until all its threads are stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self) -> str:
        """Lets it end by itself. Returns what it wrote on standard error."""
        _, errors = self.process.communicate(timeout=TIMEOUT_S)
        return errors


class Daemon:
    """A daemon with a socket of its own, and the command line that talks to it."""

    def __init__(self, gpu: Gpu, folder: Path) -> None:
        self.gpu = gpu
        self.socket = folder / "socket"
        self.process: subprocess.Popen[str] | None = None

    def launch(self, env: Mapping[str, str] | None = None) -> None:
        """Starts it, and waits for nothing."""
        self.process = subprocess.Popen(
            [self.gpu.programs / "gdevd", self.socket],
            env=dict(os.environ) | dict(env or {}),
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self) -> None:
        self.launch()
        end = time.monotonic() + TIMEOUT_S
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as trial:
                if trial.connect_ex(str(self.socket)) == 0:
                    return
            assert self.process is not None and self.process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.005)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate(timeout=TIMEOUT_S)
            self.process = None

    def environment(self) -> dict[str, str]:
        own = self.gpu.environment(under_gdev=False)
        own.pop("LD_PRELOAD", None)  # commands of gdev use no driver
        return own | {
            "PYTHONPATH": PYTHON_PATH,
            "GDEV_PROGRAMS": str(self.gpu.programs),
            "GDEV_SOCKET": str(self.socket),
            "GDEV_DRIVER": str(self.gpu.driver),
        }

    def gdev(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command of gdev. Its exit status may be any."""
        environment = self.environment() | dict(env or {})
        done = COMMANDS.run(arguments, environment=environment, cwd=cwd, timeout_s=TIMEOUT_S)
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def must(self, *arguments: str) -> str:
        """Runs a command of gdev that must succeed. Returns its output."""
        done = self.gdev(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def program(
        self, vgpu: str, name: str = "memory", env: Mapping[str, str] | None = None
    ) -> Program:
        """Starts one of the clients that take lines, in a virtual GPU."""
        environment = self.environment() | {
            "GDEV_VGPU": vgpu,
            "LD_PRELOAD": self.gpu.preloaded,
            "KERNELS": str(self.gpu.kernels),
        }
        return Program([str(BUILD / "tests" / name)], environment | dict(env or {}))
