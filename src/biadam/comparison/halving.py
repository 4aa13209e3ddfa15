"""Successive halving: many settings get a little, the best of them more."""

import math
from collections.abc import Sequence
from typing import NamedTuple

KEPT = 3  # of so many settings, one is kept; the next rung's runs are so many times longer
RUNGS = 3  # at most


class Rung(NamedTuple):
    """One round of a search."""

    part: float  # of the full budget, for each run
    settings: int  # that enter


def ladder(settings: int) -> list[Rung]:
    """The rounds for so many settings; in the last one they get the full budget."""
    counts = [settings]
    while len(counts) < RUNGS and counts[-1] > KEPT:
        counts.append(math.ceil(counts[-1] / KEPT))
    last = len(counts) - 1
    return [Rung(float(KEPT) ** (i - last), count) for i, count in enumerate(counts)]


def cost(settings: int) -> float:
    """What a search spends, in full budgets of one run."""
    return sum(rung.part * rung.settings for rung in ladder(settings)) if settings > 1 else 0.0


def best(scores: Sequence[float], count: int) -> list[int]:
    """Which have the least scores, the first of equals; infinite ones are never among them."""
    order = sorted(range(len(scores)), key=lambda i: (scores[i], i))
    return [i for i in order if math.isfinite(scores[i])][:count]
