"""Help texts of commands: docstrings, whose paragraphs are as wide as the terminal."""

from __future__ import annotations

import inspect
from typing import Any, Final

from typer.core import TyperCommand

KEPT_LINES: Final = "\b"  # begins a paragraph whose lines stay as they are


def unwrapped(text: str) -> str:
    """Returns a text whose paragraphs are one line each, except for marked ones."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        one if one.startswith(KEPT_LINES) else " ".join(one.split()) for one in paragraphs
    )


class Command(TyperCommand):
    """A command whose help is its docstring."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **keywords)
        if self.help is not None:
            self.help = unwrapped(self.help)
