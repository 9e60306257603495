"""``gdev doctor``."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from gdev import _doctor


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check what this machine can do for gdev, and what programs do that gdev does not see.

    One line for each check; where something is missing, with what to do. Exit status: 0 if all is
    well, 1 if something is missing.
    """
    findings = list(_doctor.examine())
    if as_json:
        shown = [
            {key: text for key, text in dataclasses.asdict(one).items() if key != "gpu"}
            for one in findings
        ]
        print(json.dumps(shown))
    else:
        for one in findings:
            advice = f" ({one.advice})" if one.advice else ""
            print(f"{one.level:<5} {one.check}: {one.text}{advice}")
    raise typer.Exit(1 if any(one.level == "fail" for one in findings) else 0)
