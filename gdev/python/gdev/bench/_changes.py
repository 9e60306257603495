"""How much longer one kind of run takes than the other, and how sure that is."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

_RESAMPLES: Final = 1000
_OUTSIDE: Final = 0.025  # on each side of the interval


@dataclass(frozen=True)
class Change:
    """A ratio of times, and its interval of 95 %."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        """As a table shows it."""
        ratio, low, high = (f"{(one - 1) * 100:+.1f}" for one in (self.ratio, self.low, self.high))
        return f"{ratio} % [{low}, {high}]"


def change(pairs: Sequence[Sequence[tuple[float, float]]]) -> Change:
    """Returns the change from the first to the second times, which were measured in turn.

    ``pairs``: for each pair of processes the times of its repeats. The change of a pair is the
    median of its repeats', and the whole the mean of the pairs', by their logarithms. The interval
    is that of a bootstrap, which draws pairs, and repeats of each: it contains what processes
    differ by, as well as what repeats do. It is too narrow for less than about five pairs.
    """
    logs = [[math.log(second / first) for first, second in repeats] for repeats in pairs]
    draw = random.Random(0)
    means = sorted(
        fmean(median(draw.choices(one, k=len(one))) for one in draw.choices(logs, k=len(logs)))
        for _ in range(_RESAMPLES)
    )
    skipped = int(_RESAMPLES * _OUTSIDE)
    whole = fmean(median(one) for one in logs)
    low, high = means[skipped], means[-1 - skipped]
    return Change(math.exp(whole), math.exp(low), math.exp(high))
