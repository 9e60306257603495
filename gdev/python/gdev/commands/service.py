"""``gdev service``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gdev import _config, _files


def service_command(
    config: Annotated[
        Path | None,
        typer.Option(
            help="A file of gdev apply, for each start. Default: that of GDEV_CONFIG, if it is set."
        ),
    ] = None,
) -> None:
    """Print a unit with which systemd runs the daemon for this user. It needs no root.

    \b
    mkdir -p ~/.config/systemd/user
    gdev service > ~/.config/systemd/user/gdev.service
    systemctl --user daemon-reload
    gdev stop                              # if gdev run has started a daemon
    systemctl --user enable --now gdev     # starts it, also at the next login
    loginctl enable-linger                 # from boot on, without a login
    journalctl --user -u gdev              # what it says

    The unit has the paths of this installation and of GDEV_SOCKET: print it anew if they change.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    if config is None and os.environ.get(_config.VARIABLE):
        config = Path(os.environ[_config.VARIABLE])
    if config is not None:
        _config.load(config)
    print(unit(config), end="")


def unit(config: Path | None) -> str:
    """Returns the text of the unit. Raises OSError."""
    socket = _files.socket_path()
    lines = [
        "[Unit]",
        "Description=gdev, which shares GPUs between programs",
        "",
        "[Service]",
        # Its folder may be gone after a boot.
        _line("ExecStartPre", "/bin/mkdir", "-p", "-m", "700", str(socket.parent)),
        _line("ExecStart", str(_files.daemon()), str(socket)),
    ]
    if config is not None:
        own = Path(sys.argv[0]).absolute()
        is_program = own.name == "gdev" and os.access(own, os.X_OK)
        gdev = [str(own)] if is_program else [sys.executable, "-m", "gdev"]
        lines += [
            f"Environment={_quoted(f'GDEV_SOCKET={socket}')}",
            _line("ExecStartPost", *gdev, "apply", "--no-start", str(config.absolute())),
        ]
    lines += [
        "Restart=on-failure",
        "RestartPreventExitStatus=3",  # another daemon has the socket
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    return "\n".join(lines)


def _line(name: str, *words: str) -> str:
    return f"{name}={' '.join(_quoted(word.replace('$', '$$')) for word in words)}"


def _quoted(word: str) -> str:
    """Returns a word as systemd reads it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
