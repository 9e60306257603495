"""The commands that show what happens, and those that set gdev up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gdev.commands.apply import apply_command
from gdev.commands.doctor import doctor_command
from gdev.commands.metrics import metrics_command
from gdev.commands.service import service_command
from gdev.commands.top import top_command

commands: Final[dict[str, Callable[..., None]]] = {
    "top": top_command,
    "metrics": metrics_command,
    "doctor": doctor_command,
    "apply": apply_command,
    "service": service_command,
}
