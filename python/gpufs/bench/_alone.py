"""Runs a source in a process of its own: what is measured there is not mixed with the threads of other libraries."""

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
    """Returns a source of what ``samples(world, *arguments)`` yields there; a function that a module has by name.

    The process lives as long as the source. What it raises is raised here.
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
    # The same modules as here, whatever the working directory holds; Ctrl-C is for the parent
    # alone.
    # noqa: PTH109 - a path is text here
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
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
    """The other end: a sample for each line on standard input."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between the answers

    def answer(what: Any) -> None:  # noqa: ANN401 - a sample or an exception
        pickle.dump(what, answers)
        answers.flush()

    samples, world, arguments = pickle.load(sys.stdin.buffer)
    try:
        source = samples(world, *arguments)
        while sys.stdin.buffer.readline():
            answer(next(source))
    except BrokenPipeError:
        pass  # nobody asks any more
    except Exception as error:
        answer(error)
