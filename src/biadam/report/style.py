"""How methods look: colours told apart by most eyes, then dashes."""

from collections.abc import Sequence
from typing import NamedTuple

from .read import Comparison

# Chosen by a search for the largest least distance (CIELAB) between any two, seen by normal,
# protan, deutan and tritan eyes: at least 30 apart, with three (dark: 4.5) times the contrast of
# the ground.
LIGHT = ("#2497fe", "#c68900", "#226458", "#930094", "#644f14", "#6917eb")
DARK = ("#a5ccfe", "#ffae28", "#239640", "#e83695", "#efd8bb", "#d732f5")

# Lengths of ink and gap, in widths of the line.
DASHES = ((), (5.0, 2.0), (1.2, 1.6), (6.0, 1.8, 1.2, 1.8), (10.0, 3.0))


class Style(NamedTuple):
    """The number of a colour, and a pattern."""

    colour: int
    dash: tuple[float, ...]


def styles(comparisons: Sequence[Comparison], group: str) -> dict[str, Style]:
    """One for each method of a group that has a line, best first: what leads is solid."""
    places: dict[str, list[int]] = {}
    for comparison in comparisons:
        ranked = comparison.ranked(m for m in comparison.methods if m.group == group and m.finished)
        for place, method in enumerate(ranked):
            places.setdefault(method.name, []).append(place)
    order = sorted(places, key=lambda name: sum(places[name]) / len(places[name]))
    return {
        name: Style(i % len(LIGHT), DASHES[i // len(LIGHT) % len(DASHES)])
        for i, name in enumerate(order)
    }


def groups(comparisons: Sequence[Comparison]) -> list[str]:
    """The groups that have a line, the paper's first."""
    present = {m.group for c in comparisons for m in c.methods if m.finished}
    return sorted(present, key=lambda group: (group != "paper", group))


GROUPS = {"paper": "the paper's methods", "other": "other methods"}
