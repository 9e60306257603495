"""The command line, ``gpufs``.

Exit status of ``gpufs grep``, as of grep: 0 when a word was found, 1 when none was, 2 when
something went wrong, also where words were found besides. Of ``gpufs search``: 0 when something was
found, 1 when nothing was, 2 when something failed. Of ``gpufs doctor``: 0 when gpufs works here, 1
when something that it needs does not. Of ``gpufs bench``: 0, 1 when data was wrong, 2 when
something failed. Of ``gpufs top``: 0, also after Ctrl-C, which is how one ends it; 2 when nothing
listens, or no longer. Of ``gpufs cat`` and ``gpufs stat``: 0, 1 when a file could not be read, as
cat's; 2 when something else failed. Of ``gpufs matvec``, ``gpufs matmul`` and ``gpufs collage``: 0,
2 when something failed. 130 after Ctrl-C of the others, 143 after SIGTERM, 129 when the terminal is
gone: what was half written is removed. A reader that goes away ends it quietly, as it ends other
tools, by SIGPIPE.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from gpufs import _core
from gpufs.cli._bench import bench_command
from gpufs.cli._cat import cat_command
from gpufs.cli._collage import collage_commands
from gpufs.cli._completion import completion_command
from gpufs.cli._doctor import doctor_command
from gpufs.cli._exit_status import FAILED, INTERRUPTED
from gpufs.cli._grep import grep_command
from gpufs.cli._linear import matmul_command, matvec_command
from gpufs.cli._output import complain, describe, flush_output, write
from gpufs.cli._search import search_command
from gpufs.cli._signals import EndedError, ending_soon
from gpufs.cli._stat import stat_command
from gpufs.cli._top import top_command

# In the order in which the help shows them.
COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "grep": grep_command,
    "cat": cat_command,
    "matvec": matvec_command,
    "matmul": matmul_command,
    "search": search_command,
    "stat": stat_command,
    "doctor": doctor_command,
    "bench": bench_command,
    "top": top_command,
    "completion": completion_command,
}

# Typer's error of usage: a class of click's or of its own, by its version.
UsageError: Final[Any] = typer.BadParameter.__mro__[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line with these arguments, or the process's; returns its exit status."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        with ending_soon():
            status = app(
                args=None if arguments is None else list(arguments),
                prog_name="gpufs",
                standalone_mode=False,
            )
        if not flush_output():
            return FAILED
    except UsageError as error:
        # Also when nothing was asked for: then the help has been shown, and there is nothing to
        # say.
        text = " ".join(error.format_message().split())
        if text:
            complain(text)
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except EndedError as ended:
        return ended.status
    except OSError as error:
        complain(describe(error))
        return FAILED
    except MemoryError:
        complain(os.strerror(errno.ENOMEM))
        return FAILED
    return status if isinstance(status, int) else 0


def _show_version(wanted: bool) -> None:
    if wanted:
        cuda = _core.built_cuda_version
        built = f"CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else "CPU device only"
        write([f"gpufs {_core.__version__} ({built})\n".encode()])
        raise typer.Exit


def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Files for GPU code: read and search files on a GPU, see what this machine supports, or measure it."""


def _make_app() -> typer.Typer:
    made = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Files for GPU code.",
    )
    made.callback()(_options)
    for name, command in COMMANDS.items():
        made.command(name)(command)
    made.add_typer(collage_commands, name="collage")
    return made


app = _make_app()
