"""One page for people: a single HTML file that needs no network."""

import base64
import io
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.image import imsave

from .. import __version__
from ..record import Record
from . import words
from .bands import AXES, band
from .read import Comparison, Method, finite, marks, read, titles
from .style import DARK, GROUPS, LIGHT, Style, groups, styles

BINS = 40  # of the histograms of weights

TEMPLATES = Environment(
    loader=PackageLoader("biadam.report", "template"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


class Cell(NamedTuple):
    """A number of the table: as it is read, its interval, and what it is sorted by."""

    text: str
    detail: str = ""
    sort: float | None = None


class TableRow(NamedTuple):
    """A method's, or a reference's."""

    name: str
    kind: str
    note: str
    cells: list[Cell]


class Image(NamedTuple):
    """A training image of a gallery."""

    source: str
    given: int
    true: int


def page(directories: Sequence[Path], out: Path) -> Path:
    """Write a page on folders that `biadam run` and `biadam compare` wrote.

    Args:
        directories: the folders; each comparison gets a panel and a section.
        out: the HTML file to write.
    """
    comparisons = read(directories)
    names = titles(comparisons)
    present = groups(comparisons)
    looks = {group: styles(comparisons, group) for group in present}
    letters = marks(comparisons)
    panels = [
        _panel(c, name, looks[group], letters, group)
        for group in present
        for c, name in zip(comparisons, names, strict=True)
        if any(m.group == group for m in c.methods)
    ]
    curves = dict.fromkeys(curve for panel in panels for curve in panel["curves"])
    text = TEMPLATES.get_template("page.html").render(
        title=words.listed(dict.fromkeys(c.task for c in comparisons)),
        subtitle="; ".join(names),
        version=__version__,
        axes=AXES,
        curves={curve: curve.replace("_", " ") for curve in curves},
        light=LIGHT,
        dark=DARK,
        groups=[
            {
                "name": GROUPS.get(group, group),
                "panels": [(i, p) for i, p in enumerate(panels) if p["group"] == group],
                "methods": list(looks[group].items()),
            }
            for group in present
        ],
        sections=[_section(c, name) for c, name in zip(comparisons, names, strict=True)],
        log=not any(panel["largest"].get(curve) for panel in panels for curve in list(curves)[:1]),
        marks=[(mark, name) for name, mark in letters.items()],
        data=_json(panels),
        style=_file("page.css"),
        script=_file("page.js"),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    return out


def _file(name: str) -> str:
    return files("biadam.report").joinpath("template", name).read_text(encoding="utf-8")


def _json(panels: list[dict[str, Any]]) -> str:
    """As JSON that can stand in an HTML element."""
    text = json.dumps({"axes": AXES, "panels": panels}, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _panel(
    comparison: Comparison,
    title: str,
    looks: dict[str, Style],
    letters: dict[str, str],
    group: str,
) -> dict[str, Any]:
    """The lines of one chart, for the script of the page."""
    curves = comparison.curves
    methods = [m for m in comparison.methods if m.group == group and m.finished]
    return {
        "title": title,
        "group": group,
        "curves": curves,
        "largest": {curve: comparison.largest(curve) for curve in curves},
        "lines": [
            {
                "name": method.name,
                "colour": looks[method.name].colour,
                "dash": looks[method.name].dash,
                "curves": {curve: _axes(method, curve) for curve in curves},
            }
            for method in comparison.ranked(methods)
        ],
        "references": [
            {"mark": letters[reference["name"]], "values": reference["metrics"]}
            for reference in comparison.references
            if reference.get("name") in letters
        ],
    }


def _axes(method: Method, curve: str) -> dict[str, list[list[float]]]:
    bands = {axis: band(method.finished, curve, axis) for axis in AXES}
    return {
        axis: [[float(f"{v:.5g}") for v in values.tolist()] for values in found]
        for axis, found in bands.items()
        if found is not None
    }


def _section(comparison: Comparison, title: str) -> dict[str, Any]:
    summary = comparison.summary
    best = comparison.best
    kept = best.finished[0] if best else None
    first = next((run.summary for m in comparison.methods for run in m.runs), {})
    return {
        "title": title,
        "place": str(comparison.place),
        "story": words.story(comparison),
        "columns": _columns(comparison),
        "rows": _rows(comparison),
        "refused": [(m.name, m.row["refused"]) for m in comparison.methods if m.row.get("refused")],
        "best": best.name if best else "",
        "seed": kept.summary.get("seed", "unknown") if kept else "",
        "weights": _weights(kept) if kept else [],
        "galleries": _galleries(kept) if kept else [],
        "command": str(summary.get("command") or ""),
        "options": _pairs(summary.get("options")),
        "settings": [_setting(m) for m in comparison.ranked(comparison.methods)],
        "tuned": comparison.tuned,
        "environment": _pairs(summary.get("environment") or first.get("environment")),
    }


def _pairs(mapping: Any) -> list[tuple[str, str]]:
    return [
        (str(name).replace("_", " "), "default" if value is None else str(value))
        for name, value in (mapping or {}).items()
    ]


def _setting(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "setting": list((method.row.get("setting") or {}).items()),
        "tried": method.row.get("tried"),
        "diverged": method.row.get("diverged_settings"),
    }


def _columns(comparison: Comparison) -> list[str]:
    """Headings behind the first."""
    return [
        *(name.replace("_", " ") for name in comparison.metrics),
        *(f"{what} to {target:g}" for target in _targets(comparison) for what in ("time", "calls")),
        *_equal_calls(comparison),
        "steps a second",
        "compiling",
        *(["evaluating"] if comparison.tuned else []),
        "diverged runs",
        *(["diverged settings"] if comparison.tuned else []),
    ]


def _targets(comparison: Comparison) -> list[float]:
    """The values of the metric whose time is told, the first to be reached first."""
    values = {t.get("value") for m in comparison.methods for t in m.row.get("targets") or []}
    known = [v for v in map(finite, values) if v is not None]
    return sorted(known, reverse=not comparison.largest(comparison.metric))


def _equal_calls(comparison: Comparison) -> list[str]:
    """The heading of what all had reached after the same number of oracle calls, if it is known."""
    known = (m.row.get("equal_calls") or {} for m in comparison.methods)
    calls = next((of["calls"] for of in known if of), None)
    name = comparison.metric.replace("_", " ")
    return [] if calls is None else [f"{name} at {words.told(calls, 0)} calls"]


def _rows(comparison: Comparison) -> list[TableRow]:
    """Methods and references in one order, the best first."""
    methods = [m for m in comparison.methods if not m.row.get("refused")]
    metrics = [m.row.get("metrics") or {} for m in methods]
    beside = [r.get("metrics") or {} for r in comparison.references]
    numbers = {
        name: _numbers([of.get(name) or {} for of in metrics], [of.get(name) for of in beside])
        for name in comparison.metrics
    }
    equal = _numbers([m.row.get("equal_calls") or {} for m in methods], [])
    rows = []
    for i, method in enumerate(methods):
        rows.append(
            TableRow(
                method.name,
                method.group,
                str(method.row.get("note") or ""),
                [
                    *(numbers[name][i] for name in comparison.metrics),
                    *_way(comparison, method),
                    *(equal[i] for _ in _equal_calls(comparison)),
                    *_costs(comparison, method),
                ],
            )
        )
    width = len(_columns(comparison))
    for i, reference in enumerate(comparison.references):
        cells = [numbers[name][len(methods) + i] for name in comparison.metrics]
        cells += [Cell("")] * (width - len(cells))
        rows.append(TableRow(str(reference.get("name")), "reference", "", cells))
    sign = -1 if comparison.largest(comparison.metric) else 1

    def key(row: TableRow) -> tuple[bool, float]:
        first = row.cells[0].sort
        return first is None, sign * (first or 0.0)

    return sorted(rows, key=key)


def _numbers(intervals: Sequence[dict[str, Any]], single: Sequence[Any]) -> list[Cell]:
    """A column of one metric: the methods' cells, then the references'."""
    found = [*intervals, *({"mean": value} for value in single)]
    triples = [tuple(finite(of.get(part)) for part in ("mean", "low", "high")) for of in found]
    spreads = [(high - low) / 2 for _, low, high in triples if low is not None and high is not None]
    places = words.decimals([mean for mean, *_ in triples if mean is not None], spreads)
    return [
        Cell(
            words.told(mean, places),
            ""
            if None in (low, high) or low == high
            else f"{words.told(low, places)} to {words.told(high, places)}",
            mean,
        )
        for mean, low, high in triples
    ]


def _way(comparison: Comparison, method: Method) -> list[Cell]:
    """When a method passed each target."""
    cells = []
    reached = {target.get("value"): target for target in method.row.get("targets") or []}
    for value in _targets(comparison):
        seconds, calls = (
            finite(reached.get(value, {}).get(part)) for part in ("seconds", "oracle_calls")
        )
        cells.append(Cell("-" if seconds is None else f"{seconds:.3g} s", "", seconds))
        cells.append(Cell(words.told(calls, 0), "", calls))
    return cells


def _costs(comparison: Comparison, method: Method) -> list[Cell]:
    """What a method's answer took, and what went wrong on the way."""
    row, cells = method.row, []
    pace = finite(row.get("steps_per_second"))
    cells.append(Cell("-" if pace is None else f"{float(f'{pace:.3g}'):,g}", "", pace))
    for part in ("compile_seconds", *(["other_seconds"] if comparison.tuned else [])):
        spent = finite(row.get(part))
        cells.append(Cell("-" if spent is None else f"{spent:.3g} s", "", spent))
    runs = len(row.get("runs") or method.runs)
    cells.append(_share(row.get("diverged"), runs))
    if comparison.tuned:
        cells.append(_share(row.get("diverged_settings"), row.get("tried")))
    return cells


def _share(part: Any, whole: Any) -> Cell:
    if finite(part) is None or not finite(whole):
        return Cell("-")
    return Cell(f"{part} of {whole}", "", part / whole)


def _weights(run: Record) -> list[dict[str, Any]]:
    """Histograms of the learned weights, for right and for wrong labels, at one scale."""
    if not {"weight", "wrong"} <= set(run.arrays):
        return []
    weight, wrong = run.arrays["weight"], run.arrays["wrong"].astype(bool)
    most = max(1.0, float(np.nan_to_num(weight).max(initial=0.0)))
    edges = np.linspace(0, most, BINS + 1)
    counts = {
        name: np.histogram(weight[of], edges)[0]
        for name, of in (("right", ~wrong), ("wrong", wrong))
    }
    top = max(int(count.max()) for count in counts.values()) or 1
    return [
        {
            "label": label,
            "count": int(count.sum()),
            "top": top,
            "most": most,
            "bars": [
                {
                    "x": i,
                    "height": round(100 * int(n) / top, 2),
                    "title": f"{n:,} of weight {edges[i]:.3g} to {edges[i + 1]:.3g}",
                }
                for i, n in enumerate(count)
            ],
        }
        for label, count in counts.items()
    ]


GALLERIES = {
    "suspect": "most suspicious training images",
    "best": "training images of largest weight",
    "worst": "training images of least weight",
}


def _galleries(run: Record) -> list[dict[str, Any]]:
    """The images that a task kept for people to judge."""
    return [
        {
            "title": title,
            "images": [
                Image(_png(image), int(given), int(true))
                for image, given, true in zip(
                    *(run.arrays[f"{name}_{of}"] for of in ("image", "given", "true")), strict=True
                )
            ],
        }
        for name, title in GALLERIES.items()
        if f"{name}_image" in run.arrays
    ]


def _png(image: np.ndarray) -> str:
    """An image's address that holds the image itself, dark on white."""
    file = io.BytesIO()
    imsave(file, image, cmap="gray_r", vmin=0, vmax=255, format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
