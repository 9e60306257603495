"""Runs commands of a package without importing its modules each time, which takes half a second.

This file, as a program, imports the modules. Each command is a fork of it, with the arguments, the
environment, the folder, the umask and the pipes that the test gives it.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

_REQUEST_BYTES = 1 << 20
_NUMBER = struct.Struct("=i")


class Commands:
    """Starts commands of a package. Any thread may call it.

    Args:
        package: its module ``cli`` has a function ``main``.
        warm_up: arguments of a command that fails at once, after it has imported what most commands
            import while they run.
        environment: what to add to the environment of the program that forks.
    """

    def __init__(
        self, package: str, warm_up: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.package = package
        self.warm_up = warm_up
        self.environment = environment
        self.lock = threading.Lock()  # of what follows
        self.requests: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def run(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        timeout_s: float,
        cwd: Path | None = None,
        stdin: bytes = b"",
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs a command as ``python -m PACKAGE`` does. Raises subprocess.TimeoutExpired."""
        umask = os.umask(0)
        os.umask(umask)
        request = [list(arguments), dict(environment), str(cwd or Path.cwd()), umask]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command_end, our_end = _pipes()
        with ours, concurrent.futures.ThreadPoolExecutor(len(our_end)) as pool:
            with theirs, contextlib.ExitStack() as given:
                files = [given.enter_context(file).fileno() for file in command_end]
                requests = self._where_requests_go()
                socket.send_fds(requests, [json.dumps(request).encode()], [theirs.fileno(), *files])
            written = pool.submit(_write, our_end[0], stdin)
            read = [pool.submit(_read, file) for file in our_end[1:]]
            ours.settimeout(timeout_s)
            (command,) = _NUMBER.unpack(ours.recv(_NUMBER.size))
            try:
                (status,) = _NUMBER.unpack(ours.recv(_NUMBER.size))
            except TimeoutError:
                os.kill(command, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), timeout_s) from None
            written.result()
            output, errors = (text.result() for text in read)
        return subprocess.CompletedProcess(list(arguments), status, output, errors)

    def _where_requests_go(self) -> socket.socket:
        with self.lock:
            if self.requests is None:
                self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.requests.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
                with theirs:
                    self.process = subprocess.Popen(
                        [sys.executable, "-P", __file__, self.package, *self.warm_up],
                        env=dict(os.environ) | dict(self.environment),
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


def _pipes() -> tuple[list[BinaryIO], list[BinaryIO]]:
    """Returns the ends of three pipes: the command's files 0, 1 and 2, and ours."""
    pipes = [os.pipe() for _ in range(3)]
    reading = [os.fdopen(end, "rb", buffering=0) for end, _ in pipes]
    writing = [os.fdopen(end, "wb", buffering=0) for _, end in pipes]
    return [reading[0], *writing[1:]], [writing[0], *reading[1:]]


def _write(file: BinaryIO, data: bytes) -> None:
    with file, contextlib.suppress(BrokenPipeError):
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]


def _read(file: BinaryIO) -> bytes:
    with file:
        return file.read()


def _serve(requests: socket.socket) -> list[str] | None:
    """Forks a process for each request.

    Returns in each of them, with the arguments; without any when there are no more requests.
    """
    while True:
        request, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
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
    answers, *given = files
    command = os.fork()
    if command == 0:
        os.close(answers)
        for number, file in enumerate(given):
            os.dup2(file, number)
            os.close(file)
        arguments, environment, folder, umask = json.loads(request)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        os.umask(umask)
        return [str(one) for one in arguments]
    for file in given:
        os.close(file)
    os.write(answers, _NUMBER.pack(command))
    status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    os.write(answers, _NUMBER.pack(status))
    os._exit(0)


def _main() -> None:
    import typer.main

    package, *warm_up = sys.argv[1:]
    cli = importlib.import_module(f"{package}.cli")
    typer.main.get_command = functools.cache(typer.main.get_command)
    sys.argv = [package, *warm_up]  # for what typer imports when it parses arguments
    with contextlib.redirect_stderr(None):
        cli.main()
    gc.freeze()  # otherwise each process goes through all objects at its end
    arguments = _serve(socket.socket(fileno=os.dup(0)))
    if arguments is not None:
        sys.argv = [package, *arguments]
        try:
            runpy.run_module(package, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            _end_at_once(end.code)
            raise


def _end_at_once(status: object) -> None:
    """Ends the process without taking the modules apart, which takes longer than most commands.

    Returns where only the interpreter knows what to do: a status that is a text, output that cannot
    be written.
    """
    if status is None or isinstance(status, int):
        threading._shutdown()
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit((status or 0) & 0xFF)


if __name__ == "__main__":
    _main()
