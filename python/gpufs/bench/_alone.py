"""Runs a source in its own process, without the threads of other libraries."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias

from gpufs.bench._measure import Sample, Source
from gpufs.bench._world import World

Samples: TypeAlias = Callable[..., Generator[Sample]]

_CHILD: Final = "from gpufs.bench import _alone; _alone.serve()"


def alone(samples: Samples, world: World, *arguments: object) -> Source:
    """Returns a source of the samples that ``samples(world, *arguments)`` yields in a child.

    ``samples`` is a function that pickle can find by its module and name. The process lives as long
    as the source. Exceptions of the child are raised here.
    """

    def source() -> Generator[Sample]:
        with _start() as child:
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                pickle.dump(
                    (samples, dataclasses.replace(world, tell=_say_nothing), arguments), child.stdin
                )
                while True:
                    child.stdin.write(b"\n")
                    child.stdin.flush()
                    answer = pickle.load(child.stdout)
                    if isinstance(answer, Exception):
                        raise answer
                    yield answer
            except (EOFError, BrokenPipeError):
                raise OSError(errno.EIO, "a benchmark's own process ended early") from None
            finally:
                child.kill()
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.close()

    return source


def _start() -> subprocess.Popen[bytes]:
    # The child uses the same modules, whatever the working directory contains. Only the parent
    # handles Ctrl-C.
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ) | {"PYTHONPATH": path},
        start_new_session=True,
    )


def _say_nothing(_text: str) -> None:
    pass


def serve() -> None:
    """Runs in the child: writes a sample for each line on standard input."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # text that a library prints must not mix with the answers

    def answer(what: Any) -> None:  # noqa: ANN401 - a sample or an exception
        pickle.dump(what, answers)
        answers.flush()

    samples, world, arguments = pickle.load(sys.stdin.buffer)
    try:
        source = samples(world, *arguments)
        while sys.stdin.buffer.readline():
            answer(next(source))
    except BrokenPipeError:
        pass  # the parent has closed the pipe
    except Exception as error:
        answer(error)
