"""Text of files and paths, made harmless for errors and terminals."""

from __future__ import annotations

from typing import Final

_SHOWN_MAX: Final = 80  # characters

# C0 without the newline, DEL, C1; and the bytes of C1 in paths that are not UTF-8.
_ESCAPES: Final = {
    code: f"\\x{code & 0xFF:02x}"
    for code in (*range(0x20), 0x7F, *range(0x80, 0xA0), *range(0xDC80, 0xDCA0))
    if code != 0x0A
}


def visible(text: str) -> str:
    """Returns lines with escaped control characters, which could control the terminal."""
    return text.translate(_ESCAPES)


def shown(value: object) -> str:
    """Returns a part of a file's header as a short text for an error, as ``repr`` escapes it."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply; or an integer of thousands of digits
        return "(too large to show)"
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."


def printable(text: str) -> str:
    """Returns a text unchanged if all its characters are printable, else as ``repr`` escapes it."""
    return text if text.isprintable() else repr(text)
