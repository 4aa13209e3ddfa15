"""The page's figures for print: a panel for each comparison, as SVG and as PNG."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

from ..record import Record
from .bands import AXES, Band, band
from .read import Comparison, finite, marks, read, titles
from .single import INK, gallery, weights
from .style import GROUPS, LIGHT, Style, groups, styles

LOOK: Any = {
    "font.size": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "biadam",  # the same file from the same runs
}
PANEL = 2.35  # inches: three fill the width of a page
SMALL = 6.5  # points, of a legend
DOTS = 300  # an inch, of a PNG


def figures(directories: Sequence[Path], out: Path) -> list[Path]:
    """Draw folders that `biadam run` and `biadam compare` wrote.

    Args:
        directories: the folders; each comparison gets a column, each group of methods a row.
        out: the folder to write to.
    """
    comparisons = read(directories)
    out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(LOOK):
        return [path for name, drawn in _all(comparisons) for path in _save(drawn, out / name)]


def _all(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, Figure]]:
    if groups(comparisons):
        for axis in AXES:
            yield f"curves-{axis}", _curves(comparisons, axis)
    best = zip((comparison.best for comparison in comparisons), titles(comparisons), strict=True)
    learned = [
        (method.finished[0], title)
        for method, title in best
        if method is not None and {"weight", "wrong"} <= set(method.finished[0].arrays)
    ]
    if learned:
        yield "weights", _weights(learned)
    for i, (run, title) in enumerate(learned):
        if "suspect_image" in run.arrays:
            yield f"images-{i}", _images(run, title)


def _save(drawn: Figure, path: Path) -> list[Path]:
    files = [path.with_suffix(".svg"), path.with_suffix(".png")]
    drawn.savefig(files[0], metadata={"Date": None})
    drawn.savefig(files[1], dpi=DOTS)
    return files


def _curves(comparisons: Sequence[Comparison], axis: str) -> Figure:
    present = groups(comparisons)
    looks = [styles(comparisons, group) for group in present]
    letters = marks(comparisons)
    width = PANEL * max(len(comparisons), 1.5)
    columns = [int(width / (0.5 + 0.055 * max(map(len, look), default=1))) for look in looks]
    heights = [
        2.2 + 0.14 * math.ceil(len(look) / n) for look, n in zip(looks, columns, strict=True)
    ]
    drawn = Figure(figsize=(width, sum(heights)), layout="constrained")
    FigureCanvasAgg(drawn)
    if letters:
        key = "dotted: " + ", ".join(f"{letter} {name}" for name, letter in letters.items())
        drawn.supxlabel(textwrap.fill(key, int(width * 19)), fontsize=SMALL)
    rows: Any = drawn.subfigures(len(present), 1, height_ratios=heights, squeeze=False)
    for row, group, look, n in zip(rows[:, 0], present, looks, columns, strict=True):
        if len(present) > 1:
            row.suptitle(GROUPS.get(group, group), color=INK, fontsize=9)
        panels = row.subplots(1, len(comparisons), squeeze=False)[0]
        for panel, comparison, title in zip(panels, comparisons, titles(comparisons), strict=True):
            panel.set_title(title, fontsize=8)
            _panel(panel, comparison, group, look, letters, axis)
        _legend(row, look, n)
    return drawn


def _panel(
    axes: Axes,
    comparison: Comparison,
    group: str,
    look: Mapping[str, Style],
    letters: Mapping[str, str],
    axis: str,
) -> None:
    curve = next(iter(comparison.curves), "")
    lines: dict[str, Band] = {}
    for method in comparison.ranked(m for m in comparison.methods if m.group == group):
        found = band(method.finished, curve, axis)
        if found is not None:
            lines[method.name] = found
    for name, line in reversed(lines.items()):
        colour = LIGHT[look[name].colour]
        axes.fill_between(line.at, line.low, line.high, color=colour, alpha=0.15, lw=0)
        axes.plot(line.at, line.mean, color=colour, lw=1.1, ls=(0, look[name].dash or None))
    values = {
        letters[reference["name"]]: value
        for reference in comparison.references
        if reference.get("name") in letters
        and (value := finite((reference.get("metrics") or {}).get(curve))) is not None
    }
    for value in values.values():
        axes.axhline(value, color="#777777", lw=0.8, ls=":")
    axes.set_xlabel(AXES[axis])
    axes.set_ylabel(curve.replace("_", " "))
    if lines:
        low, high = limits([*lines.values()], [*values.values()], comparison.largest(curve))
        if not comparison.largest(curve) and low > 0:
            _plain(axes)
        axes.set_ylim(low, high)
        axes.set_xlim(left=0)
        if axis != "seconds":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.locator_params(axis="x", nbins=5)
    axes.grid(alpha=0.3, lw=0.5, which="both")
    _letters(axes, values)


def limits(
    lines: Sequence[Band], references: Sequence[float], largest: bool
) -> tuple[float, float]:
    """Of the upright axis. Losses are cut above their usual start: blow-ups would hide the rest."""
    every = np.concatenate([line.mean for line in lines] + [np.asarray(references, float)])
    low, high = float(every.min()), float(every.max())
    if not largest:
        high = min(high, 1.15 * float(np.median([line.mean[0] for line in lines])))
    if not largest and low > 0:
        return low / 1.08, high * 1.04
    room = 0.04 * (high - low or abs(high) or 1.0)
    return low - room, high + room


def _plain(axes: Axes) -> None:
    """Numbers at one, two and five of every power of ten of a logarithmic axis."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _letters(axes: Axes, values: Mapping[str, float]) -> None:
    """Name horizontal lines at their right ends, one above the other where they are close."""
    free = -np.inf
    for letter, value in sorted(values.items(), key=lambda pair: pair[1]):
        height = axes.transAxes.inverted().transform(axes.transData.transform((0, value)))[1]
        free = max(height, free + 0.07)
        axes.text(
            1.015, free, letter, transform=axes.transAxes, fontsize=6, style="italic", va="center"
        )


def _legend(row: SubFigure, look: Mapping[str, Style], columns: int) -> None:
    handles = [
        Line2D([], [], color=LIGHT[style.colour], lw=1.1, ls=(0, style.dash or None), label=name)
        for name, style in look.items()
    ]
    row.legend(
        handles=handles,
        loc="outside lower center",
        ncols=columns,
        fontsize=SMALL,
        handlelength=3.2,
        columnspacing=1.2,
    )


def _weights(learned: Sequence[tuple[Record, str]]) -> Figure:
    drawn = Figure(figsize=(PANEL * max(len(learned), 1.5), 2.1), layout="constrained")
    FigureCanvasAgg(drawn)
    panels: Any = drawn.subplots(1, len(learned), squeeze=False)
    for panel, (run, title) in zip(panels[0], learned, strict=True):
        weights(panel, run)
        panel.set_title(f"{title}: {run.summary.get('solver')}", fontsize=8)
        panel.set_xlabel("learned weight")
        panel.legend(fontsize=SMALL)
    return drawn


def _images(run: Record, title: str) -> Figure:
    drawn = Figure(figsize=(3 * PANEL, 3.4), layout="constrained")
    FigureCanvasAgg(drawn)
    drawn.suptitle(
        f"{title}, {run.summary.get('solver')}: most suspicious training images", fontsize=8
    )
    gallery(drawn.subplots(), run, "suspect")
    return drawn
