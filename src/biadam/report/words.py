"""What was done, in sentences made from the files."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .read import Comparison, finite

BUDGETS = {
    "seconds": "{} seconds of stepping, in which compiling and evaluating do not count",
    "steps": "{} steps",
    "samples": "{} samples",
}

ORDINALS = {3: "third", 9: "ninth"}  # of a search's rounds

ALONE = "the clean set alone"  # the reference that hyper-cleaning has to beat


def story(comparison: Comparison) -> list[str]:
    """Paragraphs: what ran, how it was tuned, what failed, what it means."""
    if not comparison.tuned:
        return [_single_runs(comparison)]
    paragraphs = (
        _runs(comparison),
        _tuning(comparison),
        _failures(comparison),
        verdict(comparison),
    )
    return [paragraph for paragraph in paragraphs if paragraph]


def verdict(comparison: Comparison) -> str:
    """For hyper-cleaning: whether cleaning is worth it, beside training on the clean set alone."""
    alone = next((r for r in comparison.references if r.get("name") == ALONE), None)
    metric = "test_accuracy"
    reached = finite(((alone or {}).get("metrics") or {}).get(metric))
    known = [m for m in comparison.methods if m.mean(metric) is not None]
    if comparison.task != "hyper-cleaning" or reached is None or not known:
        return ""
    best = max(known, key=lambda method: method.mean(metric) or 0.0)
    mean = best.mean(metric) or 0.0
    low = finite(best.row["metrics"][metric].get("low"))
    clean = _clean_images(comparison)
    if reached < min(mean, mean if low is None else low):
        return (
            f"Cleaning pays here: the best cleaned classifier, by {best.name}, has test accuracy "
            f"{mean:.3f}, and one trained on {clean} alone has {reached:.3f}."
        )
    return (
        f"Read this as a benchmark of solvers, not as a case for cleaning: a classifier trained "
        f"on {clean} alone has test accuracy {reached:.3f}, which is as good as any cleaned one "
        f"(the best is {mean:.3f}, by {best.name}).{_detection(comparison, alone or {})}"
    )


def _detection(comparison: Comparison, alone: dict[str, Any]) -> str:
    """Whether that classifier also finds wrong labels better."""
    area = finite((alone.get("metrics") or {}).get("auc"))
    reached = max((m.mean("auc") or 0.0 for m in comparison.methods), default=0.0)
    if area is None or area < reached or not reached:
        return ""
    return (
        f" Scoring the labels by it also finds the wrong ones at least as well "
        f"(AUC {area:.3f} against {reached:.3f})."
    )


def _clean_images(comparison: Comparison) -> str:
    count = (comparison.summary.get("options") or {}).get("validation")
    return f"the {count:,} clean images" if isinstance(count, int) else "the clean images"


def _single_runs(comparison: Comparison) -> str:
    count = sum(len(method.runs) for method in comparison.methods)
    if count == 1:
        return f"A single run of {comparison.task}; nothing was tuned for it."
    return (
        f"{count} single runs of {comparison.task}, laid side by side: nothing was tuned for this "
        f"page, and they may have had different options and budgets. {_intervals(comparison)}"
    ).strip()


def _runs(comparison: Comparison) -> str:
    summary = comparison.summary
    taken = [m for m in comparison.methods if not m.row.get("refused")]
    budget = summary.get("budget") or {}
    amount, kind = finite(budget.get("amount")), str(budget.get("kind") or "")
    each = ""
    if amount is not None:
        words = BUDGETS.get(kind, "{} " + kind.replace("_", " "))
        each = f" Each run had {words.format(f'{amount:,g}')}."
    seeds = summary.get("seeds") or []
    count = f"{len(taken) or 'No'} method{'s' if len(taken) != 1 else ''} ran"
    once = f" once for each of the seeds {listed(seeds)}" if len(seeds) > 1 else ""
    data = f" on {summary['data']}" if summary.get("data") else ""
    return f"{count} {comparison.task}{data}{once}.{each} {_intervals(comparison)}".strip()


def _intervals(comparison: Comparison) -> str:
    if len(comparison.summary.get("seeds") or []) < 2:
        return ""
    told = "Lines are means over the seeds, and bands reach from the least seed to the largest"
    if comparison.tuned:
        return f"{told}; below a mean in the table stands its 95 % interval, by Student's t."
    return f"{told}, as do the small numbers in the table."


def _tuning(comparison: Comparison) -> str:
    summary = comparison.summary
    tried = [t for t in (m.row.get("tried") for m in comparison.methods) if isinstance(t, int)]
    seeds = summary.get("tuning_seeds") or []
    if not seeds or not any(t > 1 for t in tried):
        return "Nothing was tuned: every method had the setting that its table row says."
    few, many = min(tried), max(tried)
    grid = f"{many}" if few == many else f"{few} to {many}"
    diverged = sum(m.row.get("diverged_settings") or 0 for m in comparison.methods)
    told = (
        f"Before that, the setting of each method was chosen among {grid} on "
        f"seed{'s' if len(seeds) > 1 else ''} {listed(seeds)}, by "
        f"{comparison.metric.replace('_', ' ')} alone{_ladder(summary)}. "
        f"Of the {sum(tried):,} settings tried in all, {diverged:,} diverged; the table counts "
        f"them."
    )
    both = sorted(set(seeds) & set(summary.get("seeds") or []))
    if both:
        told += f" Seeds {listed(both)} served for tuning and for reporting, which flatters."
    return told


def _ladder(summary: Mapping[str, Any]) -> str:
    """How the worse settings got less."""
    parts = [(rung["settings"], rung["part"]) for rung in summary.get("ladder") or []]
    if len(parts) < 2:
        return ""
    rungs = [f"{count} for {_part(part)}" for count, part in parts]
    return f": {', then the best '.join(rungs)} of the budget"


def _part(share: float) -> str:
    return "all" if share >= 1 else f"a {ORDINALS.get(round(1 / share), f'{share:.2g} part')}"


def _failures(comparison: Comparison) -> str:
    told = []
    blown = {m.name: m.row.get("diverged") or 0 for m in comparison.methods}
    if any(blown.values()):
        who = listed(f"{name} ({count})" for name, count in blown.items() if count)
        told.append(f"Of the reported runs, some diverged: {who}; lines and means leave them out.")
    lost = sum(len(m.row.get("runs") or []) - len(m.runs) for m in comparison.methods)
    if lost:
        told.append(
            f"{lost} run folder{'s are' if lost > 1 else ' is'} missing or broken, and not drawn."
        )
    return " ".join(told)


def listed(items: Iterable[Any]) -> str:
    """Words with commas and an "and"."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def decimals(values: Sequence[float], spreads: Sequence[float]) -> int:
    """How many a column needs: two digits of a usual interval and three of a usual value."""
    usual = [
        digits - 1 - math.floor(math.log10(known[len(known) // 2]))
        for digits, known in (
            (2, sorted(s for s in spreads if s > 0)),
            (3 if any(s > 0 for s in spreads) else 4, sorted(abs(v) for v in values if v)),
        )
        if known
    ]
    return min(4, max(0, *usual)) if usual else 0


def told(value: float | None, places: int) -> str:
    """A number with so many decimals; one far too large for them in powers of ten."""
    if value is None:
        return "-"
    return f"{value:,.{places}f}" if abs(value) < 1e7 else f"{value:.2e}"
