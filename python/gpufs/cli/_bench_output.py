"""The output of ``gpufs bench``: rows as they are measured, and files that outlive an interrupt."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpufs.cli._output import complain, describe, is_terminal, write
from gpufs.cli._progress import Steps

if TYPE_CHECKING:
    from gpufs import bench


class Output:
    """Prints the rows of a run, and keeps its results in files."""

    def __init__(self, steps: Steps, json_file: str | None, plots: str | None) -> None:
        """Checks the names of the files.

        Args:
            steps: the progress bar.
            json_file: the file of the results.
            plots: the folder of the figures.

        Raises:
            OSError: the file cannot be written. Known now, and not after some minutes.
        """
        self._steps, self._json_file, self._plots = steps, json_file, plots
        # A file is written after every line, so it is complete even if the process is killed. A
        # device or a pipe gets everything at the end.
        self._growing = json_file is not None and _is_file_or_can_be(json_file)
        self._results: bench.Results | None = None
        self._rows: bench.Rows | None = None

    def print(self, text: str) -> None:
        with self._steps.hidden():
            write([text.encode(errors="surrogateescape")])

    def begin_table(self, table: bench.Table, planned: Sequence[Any]) -> None:
        from gpufs import bench

        self._rows = bench.Rows(table, planned, **table_style())
        self.print(self._rows.head())

    def add_line(self, results: bench.Results, line: bench.Line) -> None:
        assert self._rows is not None
        self._results = results
        if self._growing:
            replace_file(str(self._json_file), results.to_json())
        self.print(self._rows.row(line))

    def end_table(self, table: bench.Table) -> None:
        assert self._rows is not None
        self.print(f"{self._rows.foot(table.lines)}\n")

    def save(self, results: bench.Results) -> list[str]:
        """Writes the files. Returns their names."""
        names = []
        if self._json_file is not None:
            if self._growing:
                replace_file(self._json_file, results.to_json())
            else:
                Path(self._json_file).write_text(results.to_json(), encoding="utf-8")
            names.append(self._json_file)
        if self._plots is not None:
            from gpufs.bench import plots

            if plots.draw(results, self._plots):
                names.append(self._plots)
        return names

    def save_early(self) -> None:
        """Writes the complete lines of a run that ends early, and says so in a line."""
        self._steps.stop()
        if self._results is None:
            if self._json_file is not None or self._plots is not None:
                complain("ended before the first row was complete: nothing is kept")
            return
        lines = sum(len(table.lines) for table in self._results.benchmarks)
        rows = f"{lines} complete row{'s' if lines != 1 else ''}"
        try:
            names = self.save(self._results)
        except OSError as error:
            complain(f"ended early, after {rows}: {describe(error)}")
            return
        kept = f"; kept in {' and '.join(names)}" if names else ""
        complain(f"ended early, after {rows}{kept}")


def table_style() -> dict[str, Any]:
    """Returns the style of tables: in color and as wide as the terminal, if there is one."""
    terminal = is_terminal(sys.stdout)
    return {"colored": terminal, "width": shutil.get_terminal_size().columns if terminal else None}


def _is_file_or_can_be(name: str) -> bool:
    """Returns whether the name is a file or can be created."""
    path = Path(name)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return path.is_file() or not path.exists()


# Errors that mean: the file cannot be replaced, but perhaps written. It is a mount point, or in
# another user's folder.
_NOT_REPLACED: Final = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS)


def replace_file(name: str, text: str) -> None:
    """Writes a file, atomically if it can be replaced."""
    from gpufs._output import replacing

    target = Path(name)
    try:
        with replacing(target) as part:
            Path(part).write_text(text, encoding="utf-8")
    except OSError as error:
        if error.errno not in _NOT_REPLACED or not target.exists():
            raise OSError(error.errno, error.strerror, name) from error
        with open(name, "w", encoding="utf-8") as out:  # noqa: PTH123
            out.write(text)
