"""One figure for one run."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage

from ..record import Record

# Blue for what is right and vermilion for what is wrong: told apart by most eyes and in print.
RIGHT, WRONG, COMMON, INK = "#0072B2", "#D55E00", "#999999", "#333333"

Scale = Callable[[Any], Any]


class Panels(NamedTuple):
    """What a task's figure shows beside the curves."""

    right: Callable[[Axes, Record], None]
    below: Callable[[SubFigure, Record], None]


def figure(record: Record) -> Path:
    """Draw a run into its folder: its curves, and what the task has to show beside them."""
    summary = record.summary
    panels = PANELS.get(summary["task"])
    drawn = Figure(figsize=(11, 7 if panels else 4), layout="constrained")
    FigureCanvasAgg(drawn)
    drawn.suptitle(f"{summary['task']}, {summary['data']}, {summary['solver']}", color=INK)
    if panels is None:
        curves = [name for name in record.arrays if name.startswith("curve_")]
        for place, name in enumerate(curves, start=1):
            _curve(drawn.add_subplot(1, len(curves), place), record, name)
    else:
        parts: Any = drawn.subfigures(2, 1)
        top, bottom = parts
        left, right = top.subplots(1, 2)
        curves = [name for name in record.arrays if name.startswith("curve_")]
        _curve(left, record, curves[0])
        for name in curves[1:]:
            _curve(left.twinx(), record, name, COMMON)
        panels.right(right, record)
        panels.below(bottom, record)
    path = record.directory / "figure.png"
    drawn.savefig(path, dpi=110)
    return path


def _curve(axes: Axes, record: Record, name: str, colour: str = RIGHT) -> None:
    clock = record.arrays["clock"]
    axes.plot(clock, record.arrays[name], color=colour)
    axes.set_ylabel(name.removeprefix("curve_").replace("_", " "), color=colour)
    axes.set_xlabel("seconds of stepping")
    steps = axes.secondary_xaxis("top", functions=_steps(clock, record.arrays["at"]))
    steps.set_xlabel("steps")
    axes.grid(alpha=0.25)


def _steps(clock: np.ndarray, at: np.ndarray) -> tuple[Scale, Scale]:
    """Seconds to steps and back; by their mean pace, which is a straight line."""
    pace = at[-1] / clock[-1] if clock[-1] else 1.0
    return (lambda seconds: seconds * pace), (lambda steps: steps / pace)


def _learned(axes: Axes, record: Record) -> None:
    weights(axes, record)
    axes.set_xlabel("learned weight of a training example")
    auc = record.summary["metrics"]["auc"]
    title = "" if auc is None else f"AUC {auc:.3f}, best F1 {record.summary['metrics']['f1']:.3f}"
    axes.legend(frameon=False, title=title)


def weights(axes: Axes, record: Record) -> None:
    """Histograms of the learned weights of right and of wrong labels."""
    weight, wrong = record.arrays["weight"], record.arrays["wrong"]
    bins = np.linspace(0, 1, 41).tolist()
    for of, colour, name in ((~wrong, RIGHT, "right label"), (wrong, WRONG, "wrong label")):
        axes.hist(weight[of], bins=bins, color=colour, alpha=0.65, label=f"{name} ({of.sum()})")
    axes.set_ylabel("examples")


def _suspects(part: SubFigure, record: Record) -> None:
    part.suptitle(
        "most suspicious training images: the label they came with → the true one", color=INK
    )
    gallery(part.subplots(), record, "suspect")


def gallery(axes: Axes, record: Record, name: str, columns: int = 10) -> None:
    """Draw training images, with the label they came with and, where it is wrong, the true one."""
    images, given, true = (record.arrays[f"{name}_{of}"] for of in ("image", "given", "true"))
    for i, (image, label, truth) in enumerate(zip(images, given, true, strict=True)):
        left, top = 1.15 * (i % columns), -1.3 * (i // columns)
        axes.imshow(image, cmap="gray_r", vmin=0, vmax=255, extent=(left, left + 1, top - 1, top))
        caught = label != truth
        axes.text(
            left + 0.5,
            top + 0.03,
            f"{label} → {truth}" if caught else f"{label}, right",
            fontsize=8,
            ha="center",
            va="bottom",
            color=WRONG if caught else RIGHT,
        )
    axes.set_xlim(0, 1.15 * columns - 0.15)
    axes.set_ylim(-1.3 * math.ceil(len(images) / columns), 0.3)
    axes.axis("off")


def _choice(axes: Axes, record: Record) -> None:
    weights(axes, record)
    axes.set_yscale("log")
    axes.set_xlabel("learned weight of a training example")
    metrics, count = record.summary["metrics"], int(record.arrays["chosen"].sum())
    axes.legend(
        frameon=False,
        loc="upper center",
        title=f"{metrics['chosen_right']:.1%} of the {count} chosen are right,\n"
        f"{metrics['base_right']:.1%} of all",
    )


def _choices(part: SubFigure, record: Record) -> None:
    halves: Any = part.subfigures(1, 2)
    for half, name, title in zip(
        halves, ("best", "worst"), ("of largest weight", "of least weight"), strict=True
    ):
        half.suptitle(f"training images {title}", color=INK)
        gallery(half.subplots(), record, name, columns=5)


def _against_common(axes: Axes, record: Record) -> None:
    """Bars of what was learned beside those of the best common penalty."""
    metrics = record.summary["metrics"]
    places = np.arange(2)
    for shift, prefix, colour, name in (
        (-0.2, "", RIGHT, "a penalty for each feature, learned"),
        (0.2, "common_", COMMON, "one penalty for all, from a grid"),
    ):
        heights = [metrics[f"{prefix}{of}_loss"] or 0.0 for of in ("validation", "test")]
        bars = axes.bar(places + shift, heights, 0.38, color=colour, label=name)
        axes.bar_label(bars, fmt="%.3f", color=INK)
    axes.set_xticks(places, ["validation", "test"])
    axes.set_ylabel("loss")
    axes.margins(y=0.5)
    axes.legend(frameon=False, loc="upper center")


def _features(part: SubFigure, record: Record) -> None:
    penalty, junk = record.arrays["penalty"], record.arrays["junk"]
    place = np.arange(len(penalty))
    rows: Any = part.subplots(2, 1, sharex=True)
    above, below = rows
    for of, colour, name in ((~junk, RIGHT, "a real feature"), (junk, WRONG, "pure noise")):
        if of.any():
            above.bar(place[of], penalty[of], color=colour, label=name)
            below.bar(place[of], record.arrays["coefficient"][of], color=colour)
    below.plot(
        place,
        record.arrays["common_coefficient"],
        "_",
        color=INK,
        ms=9,
        label="one penalty for all",
    )
    above.set_ylabel("penalty")
    below.set_ylabel("coefficient")
    below.axhline(0, color=INK, lw=0.6)
    above.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    below.legend(frameon=False)
    below.set_xticks(place, record.arrays["feature"], rotation=90, fontsize=8)
    below.set_xlim(-0.7, len(place) - 0.3)


def _unseen(axes: Axes, record: Record) -> None:
    """Features of characters that were never trained on, in the plane where they differ most."""
    place, of = record.arrays["embedding"], record.arrays["embedding_class"]
    axes.scatter(place[:, 0], place[:, 1], c=of, cmap="tab10", s=9, alpha=0.7)
    for number, image in enumerate(record.arrays["embedding_image"]):
        picture = OffsetImage(255 - image, cmap="gray", zoom=0.9, alpha=0.9)
        axes.add_artist(AnnotationBbox(picture, place[of == number].mean(axis=0), pad=0.1))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("features of unseen characters", color=INK, fontsize=10)


def _episode(part: SubFigure, record: Record) -> None:
    """The support of a task, a row a class, and queries with the class that they were given."""
    arrays = record.arrays
    rows = min(SHOWN_CLASSES, int(arrays["support_label"].max()) + 1)
    metrics = record.summary["metrics"]
    part.suptitle(
        f"a task of unseen characters: learned from the left, asked the others; "
        f"{metrics['test_accuracy']:.1%} right over all tasks",
        color=INK,
    )
    grid: Any = part.subplots(rows, 1 + SHOWN_QUERIES, squeeze=False)
    for cell in grid.ravel():
        cell.axis("off")
    for row in range(rows):
        support = arrays["support_image"][arrays["support_label"] == row][0]
        grid[row, 0].imshow(support, cmap="gray_r")
        asked = np.flatnonzero(arrays["query_label"] == row)[:SHOWN_QUERIES]
        for cell, query in zip(grid[row, 1:], asked, strict=False):
            right = arrays["query_answer"][query] == row
            cell.imshow(arrays["query_image"][query], cmap="gray_r" if right else "Oranges")
            if not right:
                cell.set_title(f"row {arrays['query_answer'][query] + 1}", fontsize=7, color=WRONG)


SHOWN_CLASSES, SHOWN_QUERIES = 5, 15

PANELS = {
    "hyper-cleaning": Panels(_learned, _suspects),
    "ridge": Panels(_against_common, _features),
    "hyper-representation": Panels(_unseen, _episode),
    "selection": Panels(_choice, _choices),
}
