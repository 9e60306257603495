"""The command line, ``gdev``.

Exit status of ``gdev run``: that of the program; 127 if there is no such program, 126 if it cannot
be run, 125 after another error, as of ``env`` and ``timeout``. Of the others: 0; 1 after an error,
with one line on standard error; 2 after wrong arguments.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer
from gpufs.sizes import format_size, parse_size

from gdev import _daemon, _files
from gdev.bench import app as bench

# What the account can hold: no limit beside that of the GPU.
NO_LIMIT: Final = (2**31 - 1) * 4096

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Share a GPU between unmodified CUDA programs.",
    rich_markup_mode=None,
)
vgpus = typer.Typer(no_args_is_help=True, help="Add, change and remove virtual GPUs.")

Name = Annotated[str, typer.Argument(help="Name of the virtual GPU.")]
Memory = Annotated[
    str, typer.Option("--memory", help="The limit for all its programs together: 60GiB, none.")
]


@app.command(
    "run",
    context_settings={"allow_interspersed_args": False},
)
def run_command(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments.")],
    vgpu: Annotated[
        str, typer.Option(help="The virtual GPU that the program uses; 'default' has no limit.")
    ] = "default",
) -> None:
    """Run a program under gdev: gdev run --vgpu a -- python train.py."""
    try:
        environment = environment_of(vgpu)
    except OSError as error:
        complain(error)
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


def environment_of(vgpu: str) -> dict[str, str]:
    """Returns the environment of a program in a virtual GPU. Starts the daemon. Raises OSError."""
    driver = _files.driver()
    if driver is None:
        raise OSError(errno.ENOENT, "there is no NVIDIA driver here", "libcuda.so.1")
    preloaded = [str(_files.library()), os.environ.get("LD_PRELOAD", "")]
    with _daemon.connect(start=True) as daemon:
        known = {one.name for one in daemon.vgpus()}
        if vgpu == "default" and vgpu not in known:
            with contextlib.suppress(FileExistsError):  # another command was sooner
                daemon.ask(_daemon.ADD, vgpu, NO_LIMIT, _daemon.ALL_USERS)
        elif vgpu not in known:
            raise OSError(errno.ENOENT, "there is no such virtual GPU (gdev vgpu add)", vgpu)
    return dict(os.environ) | {
        "LD_PRELOAD": ":".join(part for part in preloaded if part),
        "GDEV_DRIVER": str(driver),
        "GDEV_SOCKET": str(_files.socket_path()),
        "GDEV_VGPU": vgpu,
    }


@vgpus.command("add")
def add_command(
    name: Name,
    memory: Memory,
    everybody: Annotated[
        bool, typer.Option("--everybody", help="All users may use it, not only its owner.")
    ] = False,
) -> None:
    """Add a virtual GPU: gdev vgpu add a --memory 60GiB."""
    owner = _daemon.ALL_USERS if everybody else os.getuid()
    with _daemon.connect(start=True) as daemon:
        daemon.ask(_daemon.ADD, name, limit_of(memory), owner)


@vgpus.command("set")
def set_command(name: Name, memory: Memory) -> None:
    """Change a virtual GPU while programs use it: gdev vgpu set a --memory 80GiB."""
    with _daemon.connect(start=False) as daemon:
        daemon.ask(_daemon.SET, name, limit_of(memory))


@vgpus.command("rm")
def remove_command(name: Name) -> None:
    """Remove a virtual GPU that no program uses."""
    with _daemon.connect(start=False) as daemon:
        daemon.ask(_daemon.REMOVE, name)


@vgpus.command("list")
def list_command() -> None:
    """List the virtual GPUs."""
    with _daemon.connect(start=False) as daemon:
        rows = [
            (
                one.name,
                "none" if one.limit == NO_LIMIT else format_size(one.limit),
                format_size(one.used),
                str(one.clients),
                str(one.refusals),
            )
            for one in daemon.vgpus()
        ]
    print_table(("NAME", "LIMIT", "USED", "PROGRAMS", "REFUSED"), rows)


@app.command("ps")
def ps_command() -> None:
    """List the programs that run under gdev."""
    with _daemon.connect(start=False) as daemon:
        rows = [
            (str(one.process), one.vgpu, format_size(one.used), str(one.refusals))
            for one in daemon.clients()
        ]
    print_table(("PROCESS", "VGPU", "USED", "REFUSED"), rows)


@app.command("stop")
def stop_command() -> None:
    """End the daemon. Programs go on with the memory that they have."""
    with _daemon.connect(start=False) as daemon:
        daemon.ask(_daemon.STOP)


app.add_typer(vgpus, name="vgpu")
app.add_typer(bench, name="bench")


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Prints columns as wide as their contents."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        print(
            "  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip()
        )


def limit_of(text: str) -> int:
    """Returns a limit in bytes. Raises ValueError."""
    limit = NO_LIMIT if text == "none" else parse_size(text)
    if not 0 < limit <= NO_LIMIT:
        raise ValueError(f"a limit is 1 byte to {format_size(NO_LIMIT)}, or 'none': {text}")
    return limit


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
