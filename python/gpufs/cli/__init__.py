"""The command line, ``gpufs``.

Exit status:

* ``gpufs grep``: as of grep: 0 if a word was found, 1 if none was, 2 after an error, even if words
  were found;
* ``gpufs search``: 0 if a vector was found, 1 if none was, 2 after an error;
* ``gpufs doctor``: 0 if gpufs works here, 1 if it does not;
* ``gpufs bench``: 0, 1 if data was wrong, 2 after an error;
* ``gpufs top``: 0, also after Ctrl-C, the usual way to end it; 2 if nothing listens (any more);
* ``gpufs cat``, ``gpufs stat``: 0, 1 if a file could not be read, as for cat; 2 after another
  error;
* ``gpufs matvec``, ``gpufs matmul``, ``gpufs collage``: 0, 2 after an error;
* all others: 130 after Ctrl-C; all: 143 after SIGTERM, 129 after SIGHUP. Half-written files are
  removed.

If the reader of its output closes the pipe, SIGPIPE ends the command silently, as for other tools.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from gpufs import _core
from gpufs.cli._bench import bench_command
from gpufs.cli._cat import cat_command
from gpufs.cli._collage import collage_commands
from gpufs.cli._completion import completion_command
from gpufs.cli._doctor import doctor_command
from gpufs.cli._exit_status import FAILED, INTERRUPTED
from gpufs.cli._grep import grep_command
from gpufs.cli._help import Command
from gpufs.cli._linear import matmul_command, matvec_command
from gpufs.cli._output import complain, describe, flush_output, write
from gpufs.cli._search import search_command
from gpufs.cli._signals import EndedError, ending_soon
from gpufs.cli._stat import stat_command
from gpufs.cli._top import top_command

# In the order in which people meet them, which is that of the help.
COMMANDS: Final[dict[str, Callable[..., None] | typer.Typer]] = {
    "doctor": doctor_command,
    "grep": grep_command,
    "cat": cat_command,
    "stat": stat_command,
    "search": search_command,
    "matvec": matvec_command,
    "matmul": matmul_command,
    "collage": collage_commands,
    "bench": bench_command,
    "top": top_command,
    "completion": completion_command,
}

# Typer's usage error: a class of click or of typer, depending on typer's version.
UsageError: Final[Any] = typer.BadParameter.__mro__[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns its exit status.

    ``arguments`` None: the arguments of the process.
    """
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
        # Without arguments, the help has been shown, and the text is empty.
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
    """Files for GPU code: read and search files on a GPU, check this machine, or measure it.

    Each command shows an example: gpufs COMMAND --help.
    """


class _InOrder(TyperGroup):
    """Commands in the order of ``COMMANDS``; typer would list groups of commands last."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        return list(COMMANDS)


def _make_app() -> typer.Typer:
    made = typer.Typer(
        cls=_InOrder,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_options)
    for name, command in COMMANDS.items():
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name)
        else:
            made.command(name, cls=Command)(command)
    return made


app = _make_app()
