"""The command line, ``gdev``.

Exit status of ``gdev run``: that of the program; 127 if there is no such program, 126 if it cannot
be run, 125 after another error, as of ``env`` and ``timeout``. Of the others: 0; 1 after an error,
with one line on standard error; 2 after wrong arguments, also such as the daemon refuses.

Commands that change or read what is kept without a daemon (``run``, ``vgpu``, ``gpu``, ``apply``)
start it. ``ps`` and ``top`` say that there is none, and the others end with an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from gdev import _daemon, _files
from gdev._users import ALL_USERS
from gdev._values import NO_LIMIT
from gdev.bench import app as bench
from gdev.commands import commands, groups

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Share a GPU between unmodified CUDA programs.",
    rich_markup_mode=None,
)


@app.command(
    "run",
    context_settings={"allow_interspersed_args": False},
)
def run_command(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments.")],
    vgpu: Annotated[
        str, typer.Option(help="The virtual GPU that the program uses; 'default' has no limit.")
    ] = "default",
    job: Annotated[
        str | None,
        typer.Option(
            help="A name that is the same for all commands of one job (mpirun -n 2 gdev run --job "
            "NAME ...): its processes use several GPUs together, and have their turns together. "
            "Without it, all processes that this command starts are a job."
        ),
    ] = None,
) -> None:
    """Run a program under gdev: gdev run --vgpu a -- python train.py."""
    try:
        environment = environment_of(vgpu, job)
    except OSError as error:
        complain(error)
        raise typer.Exit(125) from None
    except ValueError as error:  # the file of GDEV_CONFIG
        print(f"gdev: {error}", file=sys.stderr)
        raise typer.Exit(125) from None
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        print(f"gdev: {command[0]}: there is no such program", file=sys.stderr)
        raise typer.Exit(127) from None
    except (OSError, ValueError) as error:
        print(f"gdev: {command[0]}: {error}", file=sys.stderr)
        raise typer.Exit(126) from None


def environment_of(vgpu: str, job: str | None = None) -> dict[str, str]:
    """Returns the environment of a program in a virtual GPU. Starts the daemon. Raises OSError.

    job: what the programs of one job have in common; without one, they are a job of their own.
    """
    driver = _files.driver()
    if driver is None:
        text = "there is no NVIDIA driver here: install it, or name it in GDEV_DRIVER"
        raise OSError(errno.ENOENT, text, "libcuda.so.1")
    preloaded = [str(_files.library()), os.environ.get("LD_PRELOAD", "")]
    with _daemon.connect(start=True) as daemon:
        known = {one.name for one in daemon.vgpus()}
        if vgpu == "default" and vgpu not in known:
            with contextlib.suppress(FileExistsError):  # another command was sooner
                daemon.ask(_daemon.ADD, vgpu, NO_LIMIT, ALL_USERS, *[_daemon.UNCHANGED] * 4)
        elif vgpu not in known:
            text = "there is no such virtual GPU (gdev vgpu add makes one)"
            raise OSError(errno.ENOENT, text, vgpu)
    return dict(os.environ) | {
        "LD_PRELOAD": ":".join(part for part in preloaded if part),
        "GDEV_DRIVER": str(driver),
        "GDEV_SOCKET": str(_files.socket_path()),
        "GDEV_VGPU": vgpu,
        "GDEV_JOB": job or secrets.token_hex(8),
    }


@app.command("stop")
def stop_command(
    force: Annotated[
        bool, typer.Option("--force", help="Also if memory that is shared by keys is lost.")
    ] = False,
) -> None:
    """End the daemon. Programs go on with the memory that they have.

    What is shared by keys ends with it: programs keep what they have attached, and nobody else
    finds it any more.
    """
    with _daemon.connect(start=False) as daemon:
        if not force and (count := len(daemon.segments())):
            text = f"memory shared by keys would be lost (gdev shm: {count}); --force ends it too"
            raise OSError(errno.EBUSY, text)
        daemon.ask(_daemon.STOP)


for command_name, command in commands.items():
    app.command(command_name)(command)
for group_name, group in groups.items():
    app.add_typer(group, name=group_name)
app.add_typer(bench, name="bench")


def complain(error: OSError) -> None:
    """Prints an error as one line."""
    about = f"{error.filename}: " if error.filename else ""
    print(f"gdev: {about}{error.strerror or error}", file=sys.stderr)


def main() -> int:
    """Runs the command line. Returns its exit status."""
    run: Callable[..., int | None] = app
    try:
        return run(prog_name="gdev", standalone_mode=False) or 0
    except OSError as error:
        complain(error)
        return 1
    except ValueError as error:
        print(f"gdev: {error}", file=sys.stderr)
        return 2
    except (typer.BadParameter.__mro__[1], typer.Abort) as error:  # type: ignore[misc]
        show = getattr(error, "show", None)
        if show is not None:
            show()
        return 2
