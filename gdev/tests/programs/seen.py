"""What gdev has seen of this process (gdev/status.h). Programs of this folder import it."""

from __future__ import annotations

import ctypes


class Status(ctypes.Structure):
    """gdev_status_t of gdev/status.h."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("driver", ctypes.c_char_p),
        ("launches", ctypes.c_uint64),
        ("lookups", ctypes.c_uint64),
        ("unknown_functions", ctypes.c_uint64),
        ("bypasses", ctypes.c_uint64),
    )


def status() -> Status | None:
    """Returns what gdev says, or None without gdev."""
    try:
        ask = ctypes.CDLL(None).gdev_status
    except AttributeError:
        return None
    said = Status(size=ctypes.sizeof(Status))
    if ask(ctypes.byref(said)) != 0:
        raise RuntimeError("gdev_status failed")
    return said


def differences(before: Status | None, after: Status | None, by_cupti: int) -> dict[str, object]:
    """Returns what gdev saw between two looks, with ``agrees``: as many launches as CUPTI saw, and
    no unknown function. Empty without gdev."""
    if before is None or after is None:
        return {}
    unknown = ctypes.CDLL(None).gdev_unknown_function
    unknown.restype = ctypes.c_char_p
    names = [name.decode() for name in map(unknown, range(64)) if name]
    seen = after.launches - before.launches
    return {
        "by_gdev": seen,
        "lookups": after.lookups,
        "unknown": names,
        "bypasses": after.bypasses,
        "driver": after.driver.decode(),
        "agrees": seen == by_cupti and not names,
    }
