"""Shared parts of the examples: options, the compute library, a clock, and the last line."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

import gpufs
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")
HostArray = npt.NDArray[Any]

RELATIVE_ERROR_MAX: Final = 1e-4  # of sums of 32-bit numbers, which depend on the order


def parser(text: str, *, cache: str) -> argparse.ArgumentParser:
    """Returns a parser with the shared options; ``cache`` is an example's default."""
    made = argparse.ArgumentParser(
        description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="a GPU, the CPU device, or what is there",
    )
    made.add_argument(
        "--cache",
        default=cache,
        help="the mount's page cache; less than the data, to see evictions",
    )
    made.add_argument(
        "--folder", help="where to make the data, some MB; a temporary folder without it"
    )
    made.add_argument("--seed", type=int, default=1, help="of the data, and of what is asked of it")
    made.add_argument(
        "--no-register",
        dest="register",
        action="store_false",
        help="do not register the files for direct loads first: "
        "the first reads of a part are then staged by the host",
    )
    return made


@contextlib.contextmanager
def folder(wanted: str | None) -> Iterator[Path]:
    """Yields the folder of ``--folder``, or a temporary one."""
    if wanted is not None:
        Path(wanted).mkdir(parents=True, exist_ok=True)
        yield Path(wanted)
        return
    with tempfile.TemporaryDirectory(prefix="gpufs-example-") as made:
        yield Path(made)


def mount_for(options: argparse.Namespace, files: Iterable[Path]) -> gpufs.Mount:
    """Makes a mount from the options, and registers the files for direct loads."""
    device = cast(Literal["auto", "cpu", "cuda"], options.device)
    mount = gpufs.mount(device=device, cache=options.cache, read_only=True)
    if options.register:
        for file in files:
            mount.register_file(file)
    return mount


@dataclass(frozen=True)
class Library:
    """The compute library: PyTorch if it is installed and the mount is on a GPU, else NumPy."""

    torch: Any  # None: NumPy
    device: str

    @classmethod
    def beside(cls, mount: gpufs.Mount) -> Library:
        """Chooses the library for a mount."""
        if mount.device == "cuda" and importlib.util.find_spec("torch") is not None:
            import torch

            if torch.cuda.is_available():
                return cls(torch, f"cuda:{mount.ordinal}")
        return cls(None, "cpu")

    @property
    def name(self) -> str:
        """The library's name."""
        return "NumPy" if self.torch is None else f"PyTorch on {self.device}"

    def put(self, array: HostArray) -> Any:  # noqa: ANN401 - an array of either library
        """Copies an array of the host to the library's device."""
        return array if self.torch is None else self.torch.from_numpy(array).to(self.device)

    def take(self, array: Any) -> Any:  # noqa: ANN401 - an array of either library
        """Takes an array of gpufs: without a copy, unless NumPy takes it from a GPU."""
        return np.asarray(array) if self.torch is None else self.torch.from_dlpack(array)

    def back(self, made: Any) -> HostArray:  # noqa: ANN401 - an array of either library
        """Copies a result to the host."""
        return np.asarray(made if self.torch is None else made.cpu().numpy())


class Clock:
    """Time and bytes of the measured parts of a run; checking is not measured."""

    def __init__(self, mount: gpufs.Mount) -> None:
        self._mount = mount
        self.seconds = 0.0
        self.bytes = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Adds the time of the ``with`` block, including the device's work."""
        start = time.perf_counter()
        yield
        self._mount.synchronize()
        self.seconds += time.perf_counter() - start


def steps(items: Iterable[Item], count: int, text: str) -> Iterable[Item]:
    """Yields the items, with a progress bar on standard error if that is a terminal."""
    hidden = not sys.stderr.isatty()
    return track(
        items, text, total=count, console=Console(stderr=True), transient=True, disable=hidden
    )


def check(got: HostArray, wanted: HostArray, what: str) -> None:
    """Exits if two results differ by more than rounding."""
    scale = float(np.abs(wanted).max(initial=1.0))
    if got.shape != wanted.shape or not np.allclose(
        got, wanted, rtol=0, atol=RELATIVE_ERROR_MAX * scale
    ):
        raise SystemExit(f"{what}: not what NumPy makes of the file")


def conclude(mount: gpufs.Mount, clock: Clock, what: str) -> None:
    """Prints the last line."""
    counts = mount.stats()
    speed = clock.bytes / clock.seconds / 1e9 if clock.seconds else 0.0
    print(
        f"{what}, all as NumPy's: {clock.bytes / 1e6:,.1f} MB in {clock.seconds:.2f} s, "
        f"{speed:.2f} GB/s; "
        f"{counts['hits']:,} hits, loads: {counts['direct_loads']:,} direct, "
        f"{counts['staged_loads']:,} staged; "
        f"{counts['evictions']:,} evictions, "
        f"{(counts['direct_bytes'] + counts['staged_bytes'] + counts['open_bytes']) / 1e6:,.1f} MB "
        "from the file"
    )
