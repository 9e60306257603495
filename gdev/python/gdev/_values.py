"""Limits and policies as users write them."""

from __future__ import annotations

import re
from typing import Final

from gpufs.sizes import Size, format_size, parse_size

from gdev import _daemon
from gdev._records import WHEN_FULL

# What the account can hold: no limit beside that of the GPU.
NO_LIMIT: Final = (2**31 - 1) * 4096
PRIORITY_MAX: Final = 1000
END_AFTER_MAX_S: Final = 10**9


def is_name(text: str) -> bool:
    """Tells whether a virtual GPU may have this name."""
    return re.fullmatch(r"[A-Za-z0-9_.-]+", text) is not None and len(text) < _daemon.NAME_BYTES


def limit_of(text: Size) -> int:
    """Returns a limit in bytes. Raises ValueError."""
    limit = NO_LIMIT if text == "none" else parse_size(text)
    if not 0 < limit <= NO_LIMIT:
        raise ValueError(f"a limit is 1 byte to {format_size(NO_LIMIT)}, or 'none': {text}")
    return limit


def format_limit(limit: int, none: str = "no limit") -> str:
    """Returns a limit as text."""
    return none if limit >= NO_LIMIT else format_size(limit)


def json_limit(limit: int) -> int | None:
    """Returns a limit, or None if there is none."""
    return None if limit >= NO_LIMIT else limit


def policy_of(
    reserve: str | None, priority: int | None, when_full: str | None, end_after: int | None
) -> tuple[int, int, int, int]:
    """Returns a policy as the daemon's numbers. Raises ValueError."""
    if when_full is not None and when_full not in WHEN_FULL:
        raise ValueError(f"--when-full is one of {', '.join(WHEN_FULL)}: {when_full}")
    if priority is not None and not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        raise ValueError(f"--priority is -1000 to 1000: {priority}")
    if end_after is not None and not 0 <= end_after <= END_AFTER_MAX_S:
        raise ValueError(f"--end-after is 0 to {END_AFTER_MAX_S} seconds: {end_after}")
    return (
        _daemon.UNCHANGED if reserve is None else parse_size(reserve),
        _daemon.UNCHANGED if priority is None else priority % 2**64,
        _daemon.UNCHANGED if when_full is None else WHEN_FULL.index(when_full),
        _daemon.UNCHANGED if end_after is None else end_after,
    )


def must_change(*options: object) -> None:
    """Raises ValueError if no option is given."""
    if all(one is None for one in options):
        raise ValueError("nothing to change: give an option (--help lists them)")
