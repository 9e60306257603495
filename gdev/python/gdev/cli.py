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
import json
import os
import pwd
import secrets
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from gpufs.sizes import format_size, parse_size

from gdev import _daemon, _files, _gpus
from gdev._values import NO_LIMIT, format_limit, json_limit, limit_of, policy_of
from gdev.bench import app as bench
from gdev.commands import commands
from gdev.commands.table import print_table

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Share a GPU between unmodified CUDA programs.",
    rich_markup_mode=None,
)
vgpus = typer.Typer(no_args_is_help=True, help="Add, change and remove virtual GPUs.")
gpus = typer.Typer(no_args_is_help=True, help="What programs may have of the GPUs.")

segments = typer.Typer(help="List device memory that is shared by keys, and remove it.")

Process = Annotated[
    int,
    typer.Argument(min=1, max=2**31 - 1, help="The program's process, as gdev ps shows it."),
]
Name = Annotated[str, typer.Argument(help="Name of the virtual GPU.")]
EndAfter = Annotated[
    int | None,
    typer.Option(
        "--end-after",
        help="Kill a program that keeps others waiting for so many seconds after its turn is over;"
        " 0: never.",
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", help="The limit for all its programs together: 60GiB, none.")
]
Reserve = Annotated[
    str | None,
    typer.Option("--reserve", help="So much of a GPU is never taken away from its programs."),
]
Priority = Annotated[
    int | None, typer.Option("--priority", help="The higher one is served first: -1000 to 1000.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print them as JSON.")]
WhenFull = Annotated[
    str | None,
    typer.Option(
        "--when-full",
        help="When the GPU is full: 'swap' (others leave when their turn is over), 'wait' (until"
        " others free memory), 'fail' (out of memory).",
    ),
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
                daemon.ask(_daemon.ADD, vgpu, NO_LIMIT, _daemon.ALL_USERS, *[_daemon.UNCHANGED] * 4)
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


@vgpus.command("add")
def add_command(
    name: Name,
    memory: Memory,
    reserve: Reserve = None,
    priority: Priority = None,
    when_full: WhenFull = None,
    end_after: EndAfter = None,
    everybody: Annotated[
        bool, typer.Option("--everybody", help="All users may use it, not only its owner.")
    ] = False,
) -> None:
    """Add a virtual GPU: gdev vgpu add a --memory 60GiB."""
    owner = _daemon.ALL_USERS if everybody else os.getuid()
    policy = policy_of(reserve, priority, when_full, end_after)
    with _daemon.connect(start=True) as daemon:
        daemon.ask(_daemon.ADD, name, limit_of(memory), owner, *policy)


def must_change(*options: object) -> None:
    """Raises ValueError if no option is given."""
    if all(one is None for one in options):
        raise ValueError("nothing to change: give an option (--help lists them)")


@vgpus.command("set")
def set_command(
    name: Name,
    memory: Annotated[
        str | None, typer.Option("--memory", help="The limit for all its programs together.")
    ] = None,
    reserve: Reserve = None,
    priority: Priority = None,
    when_full: WhenFull = None,
    end_after: EndAfter = None,
) -> None:
    """Change a virtual GPU while programs use it: gdev vgpu set a --memory 80GiB."""
    limit = _daemon.UNCHANGED if memory is None else limit_of(memory)
    policy = policy_of(reserve, priority, when_full, end_after)
    must_change(memory, reserve, priority, when_full, end_after)
    with _daemon.connect(start=True) as daemon:
        daemon.ask(_daemon.SET, name, limit, _daemon.UNCHANGED, *policy)


@vgpus.command("rm")
def remove_command(name: Name) -> None:
    """Remove a virtual GPU that no program uses."""
    with _daemon.connect(start=True) as daemon:
        daemon.ask(_daemon.REMOVE, name)


@vgpus.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the virtual GPUs: their settings, and what their programs use.

    With --json: an array of objects with vgpu, memory (null: no limit), reserve, priority,
    when_full, end_after (seconds; 0: never), users ("everybody", or a user), used, shared (of that:
    by keys), overhead (of that: no allocations), programs, refused. Sizes are bytes.
    """
    with _daemon.connect(start=True) as daemon:
        found = daemon.vgpus()
    if as_json:
        print(json.dumps([_vgpu_json(one) for one in found]))
        return
    rows = [
        (
            one.name,
            format_limit(one.limit),
            format_size(one.reserve),
            str(one.priority),
            one.when_full,
            f"{one.end_after_s} s" if one.end_after_s else "never",
            users_of(one),
            format_size(one.used),
            str(one.clients),
            str(one.refusals),
        )
        for one in found
    ]
    head = ("NAME", "MEMORY", "RESERVE", "PRIORITY", "WHEN FULL", "END AFTER", "USERS")
    print_table((*head, "USED", "PROGRAMS", "REFUSED"), rows)


def _vgpu_json(one: _daemon.Vgpu) -> dict[str, Any]:
    return {
        "vgpu": one.name,
        "memory": json_limit(one.limit),
        "reserve": one.reserve,
        "priority": one.priority,
        "when_full": one.when_full,
        "end_after": one.end_after_s,
        "users": users_of(one),
        "used": one.used,
        "shared": one.shared,
        "overhead": one.overhead,
        "programs": one.clients,
        "refused": one.refusals,
    }


@app.command("ps")
def ps_command() -> None:
    """List the programs that run under gdev. Without a daemon, say that there is none.

    \b
    STATE says where a program's memory is; several may hold at once:
      on, off            its work may run; it waits, and what others need is on the host (SWAPPED)
      moving out, in     between the two
      waits for memory   others have it: for an allocation, or to come back
      does not fit       it is off, and needs more than there is for it now
      held for its job   on its GPU, until the rest of its job is, or has finished
      paused             by gdev pause
      no host memory     what should leave cannot: see gdev gpu set --host-memory
      file error         it cannot leave: its swap file cannot be written
      busy               it cannot leave: its work does not end
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    found = _daemon.connect_if_running()
    if found is None:
        print(_daemon.NOTHING_RUNS)
        return
    with found as daemon:
        rows = [
            (
                str(one.process),
                one.vgpu,
                format_size(one.used),
                str(one.counts["refusals"]),
                one.state,
                format_size(one.swapped),
            )
            for one in daemon.clients()
        ]
    print_table(("PROCESS", "VGPU", "USED", "REFUSED", "STATE", "SWAPPED"), rows)


@app.command("pause")
def pause_command(process: Process) -> None:
    """Take a program off its GPU until it is resumed."""
    with _daemon.connect(start=False) as daemon:
        daemon.pause(process, is_paused=True)


@app.command("resume")
def resume_command(process: Process) -> None:
    """Let a paused program go on."""
    with _daemon.connect(start=False) as daemon:
        daemon.pause(process, is_paused=False)


@gpus.command("set")
def gpu_set_command(
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="Most of each GPU for all programs together: 60GiB, none."),
    ] = None,
    spare: Annotated[
        str | None,
        typer.Option(
            "--spare", help="Of that: kept free for programs whose turn begins, to begin sooner."
        ),
    ] = None,
    host_memory: Annotated[
        str | None,
        typer.Option("--host-memory", help="Most of the host's memory for what is swapped out."),
    ] = None,
    swap_files: Annotated[
        str | None,
        typer.Option(
            "--swap-files",
            help="Most in files, beside that; programs make them in the folder GDEV_SWAP_FOLDER.",
        ),
    ] = None,
) -> None:
    """Change what programs may have of the GPUs and of the host."""
    chosen = (
        None if memory is None else limit_of(memory),
        None if spare is None else parse_size(spare),
        None if host_memory is None else parse_size(host_memory),
        None if swap_files is None else parse_size(swap_files),
    )
    must_change(*chosen)
    with _daemon.connect(start=True) as daemon:
        daemon.settings(*chosen)


@gpus.command("list")
def gpu_list_command(as_json: AsJson = False) -> None:
    """List what programs may have, and the GPUs on which they take turns.

    With --json: an object with settings (memory, spare, host_memory, swap_files; null: no limit)
    and gpus, an array of objects with gpu, index and uuid (of nvidia-smi; null without it), memory,
    for_programs, given (what programs may have on it just now), overhead (what they have beside
    their allocations), unaccounted (in use, and no program's). Sizes are bytes.
    """
    with _daemon.connect(start=True) as daemon:
        settings = daemon.settings()
        found = daemon.gpus()
    known = _gpus.listed() if found else {}
    names_of_gpus = [known.get(one.number, _gpus.ListedGpu()) for one in found]
    if as_json:
        names = ("memory", "spare", "host_memory", "swap_files")
        shown = dict(zip(names, map(json_limit, settings), strict=True))
        rows = [
            one.to_json() | asdict(name) for one, name in zip(found, names_of_gpus, strict=True)
        ]
        print(json.dumps({"settings": shown, "gpus": rows}))
        return
    print_table(
        ("MEMORY", "SPARE", "HOST MEMORY", "SWAP FILES"), [tuple(map(format_limit, settings))]
    )
    print()
    sizes = [(one.total, one.capacity, one.rooms, one.overhead, one.unaccounted) for one in found]
    table = [
        (one.label, "-" if name.index is None else str(name.index), *map(format_size, of))
        for one, name, of in zip(found, names_of_gpus, sizes, strict=True)
    ]
    print_table(
        ("GPU", "INDEX", "MEMORY", "FOR PROGRAMS", "GIVEN", "OVERHEAD", "UNACCOUNTED"), table
    )


@segments.callback(invoke_without_command=True)
def segments_command(context: typer.Context) -> None:
    """List device memory that is shared by keys, as far as you may read it."""
    if context.invoked_subcommand is not None:
        return
    with _daemon.connect(start=False) as daemon:
        rows = [
            (
                str(one.id),
                "removed" if one.is_removed else f"{one.key:#x}" if one.key else "private",
                format_size(one.bytes),
                user_name(one.owner),
                f"{one.mode:03o}",
                str(one.attachments),
                one.vgpu,
            )
            for one in daemon.segments()
        ]
    print_table(("ID", "KEY", "SIZE", "OWNER", "MODE", "ATTACHED", "VGPU"), rows)


@segments.command("rm")
def remove_segment_command(
    number: Annotated[int, typer.Argument(min=0, help="Its id.", metavar="ID")],
) -> None:
    """Remove a segment: its memory is free when no program has it attached any more."""
    with _daemon.connect(start=False) as daemon:
        try:
            daemon.ask(_daemon.KEY_REMOVE, "", number)
        except OSError as error:
            texts = {
                errno.EINVAL: "there is no such segment (gdev shm)",
                errno.EPERM: "it is another user's",
            }
            text = texts.get(error.errno or 0, error.strerror)
            raise OSError(error.errno, text, str(number)) from None


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
app.add_typer(vgpus, name="vgpu")
app.add_typer(gpus, name="gpu")
app.add_typer(segments, name="shm")
app.add_typer(bench, name="bench")


def users_of(one: _daemon.Vgpu) -> str:
    """Returns who may use a virtual GPU."""
    return "everybody" if one.owner == _daemon.ALL_USERS else user_name(one.owner)


def user_name(number: int) -> str:
    """Returns a user's name, or the number if it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


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
