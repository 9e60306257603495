"""Help texts: they speak of tasks, in the order in which people meet them, with examples."""

from __future__ import annotations

import os
import re
import shlex
from typing import Any, Final

import pytest
import typer
from gpufs.cli import COMMANDS, app
from gpufs.cli._collage import DEFAULT_COMMAND
from gpufs.cli._help import unwrapped

from .conftest import Command

GROUP: Final[Any] = typer.main.get_command(app)
NARROW = 80  # columns

# Of the device's or the service's side, which a reader of a list of commands need not know.
JARGON = re.compile(r"\b(kernels?|mounts?|inodes?|warps?|latency|staging|exit status)\b", re.I)


def leaves() -> dict[str, Any]:
    """All commands by their words, and groups of commands."""
    found = {}
    for name, command in GROUP.commands.items():
        found[name] = command
        for below, one in getattr(command, "commands", {}).items():
            found[f"{name} {below}"] = one
    return found


def examples(command: Any) -> list[str]:
    """The command lines in a help text, without what the shell and the reader get."""
    lines = re.findall(r"^(gpufs .+?)(?: {2,}.*)?$", command.help, re.MULTILINE)
    return [line.split(" > ")[0] for line in lines]


def shown(run: Command, *words: str, columns: int = NARROW) -> str:
    done = run(*words, "--help", env=dict(os.environ) | {"COLUMNS": str(columns)})
    assert (done.stderr, done.returncode) == (b"", 0)
    return done.stdout.decode()


def test_commands_are_listed_in_the_order_in_which_people_meet_them(run: Command) -> None:
    listed = re.findall(r"^│ (\w+)  ", shown(run).split("Commands")[1], re.MULTILINE)
    assert listed == list(COMMANDS)
    assert listed[0] == "doctor"
    assert listed.index("grep") < listed.index("bench") < listed.index("top")
    assert listed[-1] == "completion"


def test_each_command_says_its_task_in_a_line(run: Command) -> None:
    rows = shown(run).split("Commands")[1].splitlines()
    assert len([row for row in rows if row.startswith("│")]) == len(COMMANDS)
    for name, command in GROUP.commands.items():
        task = command.get_short_help_str(NARROW)
        assert f"{name:<10}  {task}" in " ".join(rows)
        assert re.fullmatch(r"[A-Z][a-z]+ .*[^.]\.?", task)
        assert not JARGON.search(task), task


@pytest.mark.parametrize("name", leaves())
def test_each_command_shows_examples_that_it_accepts(name: str) -> None:
    lines = examples(leaves()[name])
    assert lines
    for line in lines:
        assert line.startswith(f"gpufs {name.removesuffix(' make')}")
        assert len(line) <= NARROW - 2
        _, first, *words = shlex.split(line)
        command = GROUP.commands[first]
        if hasattr(command, "commands"):
            below = words.pop(0) if words[0] in command.commands else DEFAULT_COMMAND
            command = command.commands[below]
        command.make_context(command.name, words)  # parses them, and runs nothing


@pytest.mark.parametrize("name", leaves())
def test_the_help_shows_each_example_in_a_line_of_its_own(run: Command, name: str) -> None:
    lines = [line.strip() for line in shown(run, *name.split()).splitlines()]
    for example in examples(leaves()[name]):
        assert any(line.startswith(example) for line in lines)


def test_paragraphs_are_as_wide_as_the_terminal_and_examples_stay() -> None:
    text = """Do it.

    A paragraph of
    two lines.

    \b
    an example
    another
    """
    assert unwrapped(text) == "Do it.\n\nA paragraph of two lines.\n\n\b\nan example\nanother"
