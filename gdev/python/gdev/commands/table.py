"""What commands list: tables of plain text, or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print them as JSON.")]


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Prints columns as wide as their contents."""
    for line in table_lines(head, rows):
        print(line)


def table_lines(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yields the lines of columns as wide as their contents."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        padded = (f"{text:{width}}" for text, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()
