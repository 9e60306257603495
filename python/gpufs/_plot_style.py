"""The look that all plots share, those of gdev too: colors by program, names beside the lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, Final

OURS: Final = "#0b62c4"
LIMIT: Final = "#5f6670"
QUIET: Final = "#d5d9de"  # grids, frames

# By the beginning of a program's name. The first that fits counts. The same color means the same
# program in all plots.
COLORS: Final[tuple[tuple[str, str], ...]] = (
    ("gpufs", OURS),
    ("CPU device", "#7db2e8"),
    ("CPU", "#2f2f2f"),
    ("CUDA", "#d9480f"),
    ("torch", "#b0307a"),
    ("KvikIO", "#2b8a3e"),
    ("cuFile", "#74a534"),
    ("np.memmap", "#8a5a19"),
    ("rg", "#8a5a19"),
    ("pipeline", "#e08a00"),
    ("pread + one copy", "#8a5a19"),
    ("host", "#6741d9"),
    ("pwrite", "#6741d9"),
    ("stores into a mapping", "#a288e0"),
    ("disk", "#c92a2a"),
    ("copy engine", "#9aa1a9"),
    ("memcpy", "#9aa1a9"),
    ("raw", "#9aa1a9"),
    ("hits", "#099268"),
)
OTHER: Final = "#868e96"

FORMER_NAMES: Final = {"twin": "CPU device"}  # in stored results

PIXELS_PER_INCH: Final = 150
TEXT: Final = 8
SMALL_TEXT: Final = 7
LINE_STEP: Final = 0.075  # between names beside a panel, as a part of its height


def check() -> None:
    """Raises ImportError, with advice, if plots cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'gpufs[bench]'") from None


def short_name(program: str) -> str:
    """Returns a program's name without its details, which follow a comma."""
    name = program.split(",")[0]
    return FORMER_NAMES.get(name, name)


def color_of(program: str) -> str:
    return next((color for start, color in COLORS if program.startswith(start)), OTHER)


def new_figure(width: float, height: float) -> Any:  # noqa: ANN401 - matplotlib has no types here
    """Returns a figure without pyplot, which would look for a display and keep every figure."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def plain_axes(axes: Any) -> None:  # noqa: ANN401
    """Removes what says nothing: most of the frame, the ticks' marks."""
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, labelsize=SMALL_TEXT)
    axes.grid(color=QUIET, linewidth=0.6)
    axes.set_axisbelow(True)


def spread_out(wanted: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Returns positions in the same order that are near the wanted ones, and far enough apart.

    ``sizes``: how much room each one needs, half of it on each side.
    """
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    # Relative to the places that all would have side by side, positions must not decrease. Groups
    # of them that would decrease get their mean: this moves them least.
    offsets: list[float] = []
    for position, at in enumerate(order):
        before = offsets[-1] + sizes[order[position - 1]] / 2 if position else -sizes[at] / 2
        offsets.append(before + sizes[at] / 2)
    groups: list[list[float]] = []
    for at, offset in zip(order, offsets, strict=True):
        groups.append([wanted[at] - offset])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    means = [fmean(group) for group in groups for _ in group]
    result = [0.0] * len(wanted)
    for at, mean, offset in zip(order, means, offsets, strict=True):
        result[at] = mean + offset
    return result


def name_lines(axes: Any, ends: Iterable[tuple[str, float, float, str]]) -> None:  # noqa: ANN401
    """Writes the names of lines to the right of a panel, each at the height of its line's end.

    ``ends``: name, x and y of the end, color.
    """
    ends = list(ends)
    low, high = axes.get_ylim()
    transform = axes.transScale.transform
    bottom, top = transform((1, low))[1], transform((1, high))[1]
    heights = [(transform((1, y))[1] - bottom) / (top - bottom) for _, _, y, _ in ends]
    places = spread_out(heights, [LINE_STEP] * len(ends))
    for (name, _, _, color), place in zip(ends, places, strict=True):
        axes.text(
            1.02,
            place,
            name,
            transform=axes.transAxes,
            color=color,
            fontsize=SMALL_TEXT,
            va="center",
            fontweight="bold" if color == OURS else "normal",
        )
