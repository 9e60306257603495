"""What gdev has seen of this process (gdev/status.h). Programs of this folder import it."""

from __future__ import annotations

import collections
import ctypes
import json


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


def compare(
    said: dict[str, object],
    before: Status | None,
    after: Status | None,
    by_cupti: collections.Counter[str],
) -> int:
    """Prints ``said`` with the launches that CUPTI and gdev saw between two looks, as JSON.

    Returns 1 if they differ, or gdev did not know a function; 0 also without gdev.
    """
    total = sum(by_cupti.values())
    said |= {"by_cupti": by_cupti, "by_cupti_total": total, "gdev": after is not None}
    failed = False
    if before is not None and after is not None:
        unknown = ctypes.CDLL(None).gdev_unknown_function
        unknown.restype = ctypes.c_char_p
        names = [name.decode() for name in map(unknown, range(64)) if name]
        said |= {
            "by_gdev": after.launches - before.launches,
            "lookups": after.lookups,
            "unknown": names,
            "bypasses": after.bypasses,
            "driver": after.driver.decode(),
        }
        failed = said["by_gdev"] != total or bool(names)
    print(json.dumps(said))
    return int(failed)
