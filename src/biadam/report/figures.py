"""One figure for one run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure

from ..record import Record

# Blue for what is right and vermilion for what is wrong: told apart by most eyes and in print.
RIGHT, WRONG, INK = "#0072B2", "#D55E00", "#333333"

Scale = Callable[[Any], Any]


def figure(record: Record) -> Path:
    """Draw a run into its folder."""
    drawn = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(drawn)
    summary = record.summary
    drawn.suptitle(f"{summary['task']}, {summary['data']}, {summary['solver']}", color=INK)
    parts: Any = drawn.subfigures(2, 1)
    top, bottom = parts
    curves, weights = top.subplots(1, 2)
    _curves(curves, record)
    _weights(weights, record)
    _gallery(bottom, record)
    path = record.directory / "figure.png"
    drawn.savefig(path, dpi=110)
    return path


def _curves(axes: Axes, record: Record) -> None:
    clock = record.arrays["clock"]
    for name, values in record.arrays.items():
        if name.startswith("curve_"):
            axes.plot(clock, values, color=RIGHT)
            axes.set_ylabel(name.removeprefix("curve_").replace("_", " "))
    axes.set_xlabel("seconds of stepping")
    steps = axes.secondary_xaxis("top", functions=_steps(clock, record.arrays["at"]))
    steps.set_xlabel("steps")
    axes.grid(alpha=0.25)


def _steps(clock: np.ndarray, at: np.ndarray) -> tuple[Scale, Scale]:
    """Seconds to steps and back; by their mean pace, which is a straight line."""
    pace = at[-1] / clock[-1] if clock[-1] else 1.0
    return (lambda seconds: seconds * pace), (lambda steps: steps / pace)


def _weights(axes: Axes, record: Record) -> None:
    weight, wrong = record.arrays["weight"], record.arrays["wrong"]
    bins = np.linspace(0, 1, 41).tolist()
    for of, colour, name in ((~wrong, RIGHT, "right label"), (wrong, WRONG, "wrong label")):
        axes.hist(weight[of], bins=bins, color=colour, alpha=0.65, label=f"{name} ({of.sum()})")
    axes.set_xlabel("learned weight of a training example")
    axes.set_ylabel("examples")
    auc = record.summary["metrics"]["auc"]
    title = "" if auc is None else f"AUC {auc:.3f}, best F1 {record.summary['metrics']['f1']:.3f}"
    axes.legend(frameon=False, title=title)


def _gallery(part: SubFigure, record: Record) -> None:
    images = record.arrays["suspect_image"]
    given, true = record.arrays["suspect_given"], record.arrays["suspect_true"]
    part.suptitle(
        "most suspicious training images: the label they came with → the true one", color=INK
    )
    grid: Any = part.subplots(4, 10)
    cells = grid.ravel()
    for cell in cells:
        cell.axis("off")
    for cell, image, label, truth in zip(cells, images, given, true, strict=False):
        cell.imshow(image, cmap="gray_r")
        caught = label != truth
        cell.set_title(
            f"{label} → {truth}" if caught else f"{label}, right",
            fontsize=8,
            pad=2,
            color=WRONG if caught else RIGHT,
        )
