"""What the tests of files share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import gpufs
import numpy as np
import pytest

CONTENT = np.random.default_rng(1).integers(0, 256, 700_001, np.uint8).tobytes()


def mount_of_cpu(**options: object) -> gpufs.Mount:
    return gpufs.mount(
        **({"device": "cpu", "cache": "4MiB", "workers": 1, "cpu_threads": 2} | options)
    )  # type: ignore[arg-type]


def errno_of(error: type[OSError], use: Callable[[], object], path: Path | None) -> int | None:
    with pytest.raises(error) as caught:
        use()
    assert caught.value.filename == (path if path is None else str(path))
    return caught.value.errno


def run_threads(*works: Callable[[], object]) -> list[BaseException]:
    errors: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


def uses(opened: gpufs.File) -> list[Callable[[], object]]:
    return [
        opened.size,
        opened.stat,
        opened.read,
        lambda: opened.read(0),
        lambda: opened.read(1, 10**9),
        lambda: opened.readinto(np.zeros(4, np.uint8)),
        lambda: opened.gather([0], 4),
        lambda: opened.gather([], 4),
        lambda: opened.write(b"x"),
        lambda: opened.write(b""),
        lambda: opened.truncate(1),
        opened.fsync,
        opened.wait,
        lambda: opened.descriptor,
    ]
