"""What checks of a machine find: :mod:`gpufs.doctor`, and ``gdev doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "info", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    level: Level
    text: str
    advice: str = ""
    gpu: int | None = None
