"""``gpufs doctor``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator

import typer

from gpufs.cli._options import JsonOption
from gpufs.cli._output import is_terminal, write


def doctor_command(as_json: JsonOption = False) -> None:
    """Check whether this machine can run gpufs, and say what it lacks.

    \b
    gpufs doctor                  what works, what does not, and what to do about it
    gpufs doctor --json           the same for programs

    Exit status: 0 when gpufs works here, even if only on the CPU; 1 when it does not.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    from gpufs import doctor

    report = doctor.examine()
    if as_json:
        write([json.dumps(report.to_json(), indent=2).encode() + b"\n"])
    else:
        colored = is_terminal(sys.stdout)
        lines = [*_doctor_lines(doctor.format_report(report), colored), "", doctor.conclude(report)]
        write([os.fsencode("\n".join(lines)) + b"\n"])
    raise typer.Exit(0 if report.usable else 1)


def _doctor_lines(findings: Iterable[tuple[str, str, str]], colored: bool) -> Iterator[str]:
    colors = {"ok": "green", "info": "blue", "warn": "yellow", "fail": "red"}
    for level, text, advice in findings:
        mark = f"{level:<5}"
        yield f"{typer.style(mark, fg=colors[level]) if colored else mark} {text}"
        if advice:
            yield f"{'':<5}   -> {advice}"
