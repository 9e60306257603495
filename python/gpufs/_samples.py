"""The text exposition format of Prometheus: its writer and its parser."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class Sample(NamedTuple):
    """A line of the text format."""

    name: str
    labels: dict[str, str]
    value: float


_SAMPLE_LINE: Final = re.compile(
    r"""[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*
    (?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}[ \t]*|[ \t])
    [ \t]*([^ \t]+)(?:[ \t]+-?[0-9]+)?[ \t]*""",
    re.VERBOSE | re.DOTALL,
)
_LABEL: Final = re.compile(
    r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\[\\"n])*)"[ \t]*(,|\Z)', re.DOTALL
)
_BLANKS: Final = re.compile(r"[ \t]*\Z")
_ESCAPED: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def head(name: str, kind: Kind, text: str) -> Iterator[str]:
    """Yields the lines before a metric's samples."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    """Returns the line of a sample."""
    inner = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
    return f"{name}{{{inner}}} {value!r}" if inner else f"{name} {value!r}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def parse(text: str) -> list[Sample]:
    """Returns the samples of a text in the exposition format 0.0.4.

    Ignores timestamps and comments.

    Raises:
        ValueError: a line is not in the format.
    """
    samples = []
    # no other character ends a line, and paths may contain all others
    for line in text.split("\n"):
        if not line.strip(" \t") or line.lstrip(" \t").startswith("#"):
            continue
        match = _SAMPLE_LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"not a sample: {line[:80]!r}")
        name, labels, value = match.groups()
        samples.append(Sample(name, _parse_labels(labels or ""), _parse_value(value)))
    return samples


def _parse_value(text: str) -> float:
    try:
        if "_" in text or not text.isascii():  # notations that only Python has
            raise ValueError
        return float(text)
    except ValueError:
        raise ValueError(f"not a number: {text[:80]!r}") from None


def _parse_labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    position = 0
    while not _BLANKS.match(text, position):  # a comma may follow the last label
        match = _LABEL.match(text, position)
        if match is None:
            raise ValueError(f"not a label: {text[position : position + 80]!r}")
        labels[match[1]] = re.sub(r'\\[\\"n]', lambda escape: _ESCAPED[escape[0]], match[2])
        position = match.end()
    return labels
