"""Runs commands of gdev without importing their modules each time, which takes half a second.

This file, as a program, has the modules. Each command is a fork of it, with the arguments, the
environment, the folder and the files that the test gives it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

_REQUEST_BYTES = 1 << 20
_NUMBER = struct.Struct("=i")


class Commands:
    """Starts commands. Any thread may call it."""

    def __init__(self, python_path: str) -> None:
        self.python_path = python_path
        self.lock = threading.Lock()  # of what follows
        self.requests: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def run(
        self, arguments: list[str], environment: Mapping[str, str], cwd: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as ``python -m gdev`` does. Raises subprocess.TimeoutExpired."""
        request = json.dumps([arguments, dict(environment), str(cwd)]).encode()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            with theirs:
                given = [theirs.fileno(), out.fileno(), errors.fileno()]
                socket.send_fds(self._where_requests_go(), [request], given)
            ours.settimeout(timeout_s)
            (command,) = _NUMBER.unpack(ours.recv(_NUMBER.size))
            try:
                (status,) = _NUMBER.unpack(ours.recv(_NUMBER.size))
            except TimeoutError:
                os.kill(command, signal.SIGKILL)
                raise subprocess.TimeoutExpired(arguments, timeout_s) from None
            texts = [_text_of(file.fileno()) for file in (out, errors)]
        return subprocess.CompletedProcess(arguments, status, *texts)

    def _where_requests_go(self) -> socket.socket:
        with self.lock:
            if self.requests is None:
                self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.requests.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
                with theirs:
                    self.process = subprocess.Popen(
                        [sys.executable, "-P", __file__],
                        env=dict(os.environ) | {"PYTHONPATH": self.python_path},
                        stdin=theirs,
                        stdout=subprocess.DEVNULL,
                    )
            return self.requests

    def end(self) -> None:
        """Waits for what forks, so that its processor time counts as the tests'."""
        if self.requests is not None and self.process is not None:
            self.requests.close()
            self.process.wait()
        self.requests = self.process = None


def _text_of(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode()


def _serve(requests: socket.socket) -> list[str] | None:
    """Forks a process for each request.

    Returns in each of them, with the arguments; without any when there are no more requests.
    """
    while True:
        request, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 3)
        if not request:
            return None
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    requests.close()
    answers, out, errors = files
    command = os.fork()
    if command == 0:
        os.close(answers)
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, errors)):
            os.dup2(file, number)
            os.close(file)
        arguments, environment, folder = json.loads(request)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        return [str(one) for one in arguments]
    os.close(out)
    os.close(errors)
    os.write(answers, _NUMBER.pack(command))
    status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    os.write(answers, _NUMBER.pack(status))
    os._exit(0)


def _main() -> None:
    import typer.main

    from gdev import cli

    typer.main.get_command = functools.cache(typer.main.get_command)
    sys.argv = ["gdev", "shm"]  # for what typer imports when it parses arguments
    os.environ["GDEV_SOCKET"] = os.devnull
    with contextlib.redirect_stderr(None):
        cli.main()
    gc.freeze()  # otherwise each process goes through all objects at its end
    arguments = _serve(socket.socket(fileno=os.dup(0)))
    if arguments is not None:
        sys.argv = ["gdev", *arguments]
        runpy.run_module("gdev", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
