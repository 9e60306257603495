"""Progress bars on standard error. Each shows nothing if it is not wanted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from gpufs import grep
    from gpufs._mount import Mount

# For measurements, some of which take a minute.
STEPS_ESTIMATED_OVER_S: Final = 600


@contextlib.contextmanager
def grep_bar(wanted: bool) -> Iterator[Callable[[grep.Progress | None], None] | None]:
    """Yields a callback for a search's progress, or None if no bar is wanted.

    The callback's argument None removes the bar.
    """
    if not wanted:
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("listing", total=None)

    def show(progress: grep.Progress | None) -> None:
        if progress is None:
            bar.stop()
        elif progress.files_total:
            text = f"{progress.files_done:,} of {progress.files_total:,} files"
            # A file that grows during the search must not move the bar past its end.
            total = max(progress.bytes_total, progress.bytes_done)
            bar.update(task, description=text, completed=progress.bytes_done, total=total)

    with bar:
        yield show


@contextlib.contextmanager
def loading_bar(mount: Mount, wanted: bool) -> Iterator[None]:
    """Shows how much a mount has loaded, during the ``with`` block."""
    if not wanted:
        yield
        return
    from rich.console import Console
    from rich.progress import (
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    columns = (
        SpinnerColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    ended = threading.Event()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def follow() -> None:
            while not ended.wait(0.1):
                counts = mount.stats()
                bar.update(
                    task,
                    completed=counts["direct_bytes"]
                    + counts["staged_bytes"]
                    + counts["open_bytes"],
                )

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()


class Steps:
    """A bar of finished and remaining steps; nothing if it is not wanted."""

    def __init__(self, wanted: bool) -> None:
        self._bar: Any = None
        if not wanted:
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left, about:"),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
            speed_estimate_period=STEPS_ESTIMATED_OVER_S,
        )
        self._task = self._bar.add_task("preparing", total=None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.stop()

    def tell(self, text: str, done: int | None = None, total: int | None = None) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=done, total=total)

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Hides the bar while a row is written, perhaps to the same terminal."""
        self.stop()
        yield
        if self._bar is not None:
            self._bar.start()
