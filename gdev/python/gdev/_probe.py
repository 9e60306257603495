"""Asks the driver; run as a program, so that no other process of gdev loads a driver.

Prints one object as JSON: ``path`` (null: there is no driver), ``error`` (why it does not work, or
empty), ``version`` (as cuDriverGetVersion), ``gpus`` (for each whether it has virtual memory
management).
"""

from __future__ import annotations

import ctypes
import json
from typing import Any, Final

from gdev import _files

_VIRTUAL_MEMORY: Final = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED


class _DriverError(Exception):
    """A call of the driver failed."""


def probe() -> dict[str, Any]:
    """Returns what the module's documentation describes."""
    found: dict[str, Any] = {"path": None, "error": "", "version": 0, "gpus": []}
    try:
        path = _files.driver()
        if path is None:
            found["error"] = "there is no NVIDIA driver here"
            return found
        found["path"] = str(path)
        driver = ctypes.CDLL(str(path))
        found["version"] = _number(driver, "cuDriverGetVersion")
        _check(driver.cuInit(0), "cuInit")
        for device in range(_number(driver, "cuDeviceGetCount")):
            has = _number(driver, "cuDeviceGetAttribute", _VIRTUAL_MEMORY, device)
            found["gpus"].append(has != 0)
    except (OSError, AttributeError, _DriverError) as error:
        found["error"] = str(error)
    return found


def _number(driver: ctypes.CDLL, name: str, *arguments: int) -> int:
    value = ctypes.c_int()
    _check(getattr(driver, name)(ctypes.byref(value), *arguments), name)
    return value.value


def _check(error: int, name: str) -> None:
    if error:
        raise _DriverError(f"{name}: CUDA's error {error}")


if __name__ == "__main__":
    print(json.dumps(probe()))
