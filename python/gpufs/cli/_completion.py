"""``gpufs completion``."""

from __future__ import annotations

from typing import Annotated

import typer

from gpufs.cli._output import write


def completion_command(
    context: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="For which shell.")],
) -> None:
    """Print a script with which a shell completes gpufs commands.

    It changes nothing. For bash, put this into ~/.bashrc: eval "$(gpufs completion bash)". For zsh,
    the same into ~/.zshrc, with zsh.

    \b
    gpufs completion bash
    gpufs completion fish > ~/.config/fish/completions/gpufs.fish
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    from gpufs import bench, completion

    if shell not in completion.SHELLS:
        raise typer.BadParameter(f"{shell!r} is not one of bash, zsh and fish")
    words = {
        "bench": [*bench.BENCHMARKS, *bench.GROUPS, "compare", "plot"],
        "collage": ["build"],
        "completion": list(completion.SHELLS),
    }
    write(
        [
            completion.SHELLS[shell](
                *completion.describe(context.find_root().command, words)
            ).encode()
        ]
    )
