"""The commands of ``gdev``, but those that start programs and end the daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import typer

from gdev.commands.apply import apply_command
from gdev.commands.doctor import doctor_command
from gdev.commands.gpu import app as gpu_app
from gdev.commands.metrics import metrics_command
from gdev.commands.programs import pause_command, ps_command, resume_command
from gdev.commands.service import service_command
from gdev.commands.shm import app as shm_app
from gdev.commands.top import top_command
from gdev.commands.vgpu import app as vgpu_app

groups: Final[dict[str, typer.Typer]] = {"vgpu": vgpu_app, "gpu": gpu_app, "shm": shm_app}
commands: Final[dict[str, Callable[..., None]]] = {
    "ps": ps_command,
    "pause": pause_command,
    "resume": resume_command,
    "top": top_command,
    "metrics": metrics_command,
    "doctor": doctor_command,
    "apply": apply_command,
    "service": service_command,
}
