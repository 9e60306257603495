"""``gdev metrics``."""

from __future__ import annotations

import contextlib
import threading
from importlib import metadata
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer
from gpufs._text_server import TextServer

from gdev import _daemon
from gdev._metrics import exposition
from gdev._sight import look

DEFAULT_LISTEN: Final = "127.0.0.1:9401"


def metrics_command(
    listen: Annotated[
        str,
        typer.Option(
            help="Address and port. There is no password: another address than that of this host"
            " shows all virtual GPUs and programs to others."
        ),
    ] = DEFAULT_LISTEN,
    once: Annotated[bool, typer.Option("--once", help="Print them instead.")] = False,
) -> None:
    """Serve all that gdev top shows to Prometheus, at /metrics, until Ctrl-C.

    Each request asks the daemon. Without a daemon the answer is the error 500.
    """
    if once:
        print(_read(), end="")
        return
    address, port = _place_of(listen)
    with (
        TextServer(_read, program="gdev", version=_version(), address=address, port=port) as server,
        contextlib.suppress(KeyboardInterrupt),
    ):
        print(server.url, flush=True)
        threading.Event().wait()


def _read() -> str:
    with _daemon.connect(start=False) as daemon:
        return exposition(look(daemon))


def _place_of(listen: str) -> tuple[str, int]:
    """Returns address and port. Raises ValueError."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(f"//{listen}")
        if parts.hostname and parts.port is not None and parts.netloc == listen:
            return parts.hostname, parts.port
    raise ValueError(f"--listen is an address and a port, such as {DEFAULT_LISTEN}: {listen}")


def _version() -> str:
    """Returns the version of the package that gdev is a part of."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("gpufs")
    return "unknown"
