"""Sizes in bytes as text: ``8GiB``, ``64k``, ``1.5 MB``."""

from __future__ import annotations

import operator
import re
from fractions import Fraction
from typing import Final, SupportsIndex, TypeAlias

Size: TypeAlias = str | SupportsIndex
"""A number of bytes, or text that :func:`parse_size` accepts."""

LARGEST: Final = 2**63 - 1

_PREFIXES: Final = "kmgtp"
_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_PATTERN: Final = re.compile(
    r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgtp])(i?b?)|b)?", re.IGNORECASE | re.ASCII
)


def parse_size(size: Size) -> int:
    """Returns a size in bytes.

    ``KiB``, ``MiB``, ``GiB``, ``TiB``, ``PiB`` and the single letters ``K`` ... ``P`` are powers of
    1024; ``kB`` ... ``PB`` are powers of 1000; ``B`` or no unit means bytes. Case does not matter.
    A space before the unit is allowed.

    Raises:
        ValueError: the text is not a size or not a whole number of bytes; or the size is negative
            or larger than 2**63 - 1.
        TypeError: ``size`` is neither text nor an integer.
    """
    if not isinstance(size, str):
        if isinstance(size, bool):
            raise TypeError("a size must be an integer or text, not bool")
        if not isinstance(size, SupportsIndex):
            raise TypeError(f"a size must be an integer or text such as '8GiB', not {size!r}")
        number = operator.index(size)
        if number < 0:
            raise ValueError(f"a size must not be negative: {number}")
    else:
        match = _PATTERN.fullmatch(size.strip())
        if match is None:
            raise ValueError(f"not a size: {size!r} (write it as 4096, 64KiB, 8GiB or 1.5GB)")
        digits, prefix, suffix = match.groups()
        factor = 1
        if prefix:
            factor = (1000 if suffix.lower() == "b" else 1024) ** (
                _PREFIXES.index(prefix.lower()) + 1
            )
        exact = Fraction(digits) * factor
        if exact.denominator != 1:
            raise ValueError(f"not a whole number of bytes: {size!r}")
        number = exact.numerator
    if number > LARGEST:
        raise ValueError(f"a size must be less than 2**63: {size!r}")
    return number


def format_size(size_bytes: int) -> str:
    """Returns a size as text, in powers of 1024, with at most one decimal: ``1.5 GiB``."""
    unit = 0
    while unit + 1 < len(_BINARY_UNITS) and size_bytes >= 1024 ** (unit + 1):
        unit += 1
    value = size_bytes / 1024**unit
    if round(value, 1) >= 1024 and unit + 1 < len(_BINARY_UNITS):
        unit += 1
        value = size_bytes / 1024**unit
    text = f"{value:.1f}".removesuffix(".0")
    return f"{text} {_BINARY_UNITS[unit]}"
