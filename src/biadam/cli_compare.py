"""The commands that compare methods; everything slow is imported when one runs."""

import hashlib
import inspect
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .errors import Mistake, unknown

if TYPE_CHECKING:
    from .comparison import Comparison
    from .tasks.weights import Weights

compare_app = typer.Typer(
    help="Tune several methods on a task alike, and compare what each reaches.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
reproduce_app = typer.Typer(
    help="Make a figure of the paper again.", no_args_is_help=True, rich_markup_mode=None
)

FEW_SHOT = (
    "reverse,aid_cg,aid_fp,stocbio,mrbo,vrbo,fsla,mstsa,sustain,smb,biadam,vr_biadam,"
    "biadam_authors,vr_biadam_authors,recommended"
)
SECONDS = 2.0  # of a run, unless something else is asked for
OVERHEAD = 12.0  # seconds for each method beside its steps: compiling, evaluating

Out = Annotated[Path | None, typer.Option(help="Folder to write to.", file_okay=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")]
Solvers = Annotated[
    str,
    typer.Option(
        help="Names with commas, or `paper`, `modern`, `recommended`, `reference`, `all`."
    ),
]
Seconds = Annotated[
    float | None, typer.Option(help=f"How long to step, in each run; {SECONDS:g} by default.")
]
OracleCalls = Annotated[float | None, typer.Option(help="In place of seconds.")]
Samples = Annotated[float | None, typer.Option(help="Examples to draw, in place of seconds.")]
Seeds = Annotated[int, typer.Option(help="How many to report.")]
TuningSeeds = Annotated[int, typer.Option(help="How many to choose settings on.")]
Settings = Annotated[int, typer.Option(help="How many to try of each method.")]
Grid = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE;VALUE",
        help="Try these values instead, for every method or for one, as in "
        "'biadam.step_size=0.1,0.1;0.3,0.1'; may be repeated.",
    ),
]
Workers = Annotated[int | None, typer.Option(help="Processes; one for each core by default.")]
Data = Annotated[str, typer.Option(help="digits (embedded) or mnist.")]
Noise = Annotated[float, typer.Option(help="Share of wrong training labels.")]
Batch = Annotated[int, typer.Option(help="Size of a minibatch.")]
Kind = Annotated[
    str,
    typer.Option(
        help="free: one for each example, or function: of a few traits of an example, which few "
        "clean examples can determine."
    ),
]
Train = Annotated[int | None, typer.Option(help="Training examples.")]
Validation = Annotated[int | None, typer.Option(help="Validation examples.")]


RUNS = Path("biadam-runs")
LONGEST = 200  # letters of a folder's name
UNNAMED = ("data", "out", "as_json", "workers")  # in words of their own, or no matter


def unusual(given: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """Words of a folder's name for options that are not the usual ones."""
    words = []
    for name, value in given.items():
        if value in (None, usual[name]):
            continue
        pairs = name in ("settings", "grid") and isinstance(value, list)  # they name themselves
        texts = value if pairs else [f"{name.replace('_', '-')}-{value}"]
        words += [re.sub(r"[^\w.,=+-]+", "_", text).strip("_") for text in texts]
    return words


def place(words: Sequence[str]) -> Path:
    """A folder that is named by words, short enough for any disk."""
    name = "-".join(words)
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return RUNS / name


class Asked(NamedTuple):
    """A task as the command line names it."""

    name: str
    make: Callable[..., Any]
    options: dict[str, Any]


def _hyper_cleaning(
    data: Data = "digits",
    noise: Noise = 0.6,
    train: Train = None,
    validation: Validation = None,
    weights: Kind = "free",
    batch: Batch = 128,
) -> Asked:
    """Which method cleans best."""
    from .tasks import hyper_cleaning

    options = {"noise": noise, "train": train, "validation": validation, "batch": batch}
    form = {"data": data, "weights": weights_of(weights)}
    return Asked("hyper-cleaning", hyper_cleaning, {**form, **options})


def weights_of(kind: str) -> "Weights":
    """What x is in the cleaning of labels, by its name on the command line."""
    from .tasks import FreeWeights, WeightFunction

    kinds: dict[str, Weights] = {"free": FreeWeights(), "function": WeightFunction()}
    if kind not in kinds:
        raise unknown("kind of weights", kind, kinds)
    return kinds[kind]


def _ridge(
    data: Annotated[str, typer.Option(help="diabetes or breast_cancer (embedded).")] = "diabetes",
    junk: Annotated[int, typer.Option(help="Features of pure noise to add.")] = 20,
    train: Train = None,
    validation: Validation = None,
    batch: Batch = 64,
) -> Asked:
    """Which method tunes penalties best."""
    from .tasks import ridge

    options = {"junk": junk, "train": train, "validation": validation, "batch": batch}
    return Asked("ridge", ridge, {"data": data, **options})


def _selection(
    data: Data = "digits",
    choose: Annotated[int | None, typer.Option(help="Examples to choose.")] = None,
    noise: Noise = 0.6,
    train: Train = None,
    validation: Validation = None,
    batch: Batch = 128,
) -> Asked:
    """Which method chooses training examples best."""
    from .tasks import selection

    options = {"choose": choose, "noise": noise, "batch": batch}
    split = {"train": train, "validation": validation}
    return Asked("selection", selection, {"data": data, **options, **split})


def _hyper_representation(
    data: Annotated[
        str, typer.Option(help="omniglot, or digits (embedded), in pairs.")
    ] = "omniglot",
    setting: Annotated[
        str, typer.Option(help="groups (to compare methods in) or fresh tasks.")
    ] = "groups",
    way: Annotated[int, typer.Option(help="Classes of a task.")] = 5,
    shot: Annotated[int, typer.Option(help="Examples of a class to learn from.")] = 1,
    channels: Annotated[int, typer.Option(help="Of each layer of the encoder.")] = 32,
    episodes: Annotated[int, typer.Option(help="Tasks to test on.")] = 600,
) -> Asked:
    """Which method learns features best."""
    from .tasks import few_shot_task

    options = {"setting": setting, "ways": way, "shots": shot, "channels": channels}
    options = {"data": data, **options, "episodes": episodes}
    return Asked("hyper-representation", few_shot_task, options)


class Effort(NamedTuple):
    """How much of everything."""

    seconds: float | None
    oracle_calls: float | None
    samples: float | None
    seeds: int
    tuning_seeds: int
    settings: int
    workers: int | None


def _compare(
    task: Asked,
    usual: Path,
    solvers: Solvers = "paper",
    seconds: Seconds = None,
    oracle_calls: OracleCalls = None,
    samples: Samples = None,
    seeds: Seeds = 3,
    tuning_seeds: TuningSeeds = 1,
    settings: Settings = 16,
    grid: Grid = None,
    workers: Workers = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    from .comparison import chosen

    if seconds is None and oracle_calls is None and samples is None:
        seconds = SECONDS
    names = chosen(solvers)
    grids = _grids(grid or [], names)
    effort = Effort(seconds, oracle_calls, samples, seeds, tuning_seeds, settings, workers)
    folder, keep = out or usual, out or RUNS  # those without a place of their own share runs
    _alone(keep)
    _announce([effort], len(names))
    found = _run(task, names, effort, grids, folder, keep)
    if as_json:
        print(json.dumps(found.summary))
    else:
        _show(found)
    written = _page([folder], folder)
    if not as_json:
        print(f"page: {written}")


def _run(
    task: Asked,
    names: list[str],
    effort: Effort,
    grids: dict[str, dict[str, list[Any]]],
    folder: Path,
    keep: Path,
) -> "Comparison":
    from .comparison import compare

    return compare(
        task.make,
        task.options,
        methods=names,
        seconds=effort.seconds,
        oracle_calls=effort.oracle_calls,
        samples=effort.samples,
        seeds=effort.seeds,
        tuning_seeds=effort.tuning_seeds,
        settings=effort.settings,
        grids=grids,
        workers=effort.workers,
        out=folder,
        cache=keep / "cache",
        progress=True,
        command=shlex.join(["biadam", *sys.argv[1:]]),
    )


def _alone(keep: Path) -> None:
    """One thread for this process too, in case that it makes the runs itself."""
    from .comparison.work import alone

    alone(keep / "cache" / "programs")


def _announce(efforts: Sequence[Effort], methods: int) -> None:
    """Say how long comparisons may take, if the budgets say so."""
    from .comparison.halving import cost
    from .comparison.plan import processes

    seconds = 0.0
    for effort in efforts:
        if effort.seconds is None or effort.oracle_calls is not None or effort.samples is not None:
            return
        runs = cost(effort.settings) * effort.tuning_seeds + effort.seeds
        seconds += methods * (effort.seconds * runs + OVERHEAD) / processes(effort.workers)
    told = f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"
    print(f"biadam: at most about {told} on an idle machine", file=sys.stderr)


def _page(folders: list[Path], into: Path) -> Path:
    from .report import figures, page

    figures(folders, into / "report-figures")
    return page(folders, into / "report.html")


def _command(options: Callable[..., Asked]) -> Callable[..., None]:
    """A command with the options of a task, which the function reads, and the common ones."""
    own = inspect.signature(options).parameters
    both = inspect.signature(_compare).parameters
    common = {n: p for n, p in both.items() if n not in ("task", "usual")}
    usual = {name: p.default for name, p in (*own.items(), *common.items())}

    def command(**given: Any) -> None:
        task = options(**{name: given[name] for name in own})
        beside = {k: v for k, v in given.items() if k not in UNNAMED}
        words = ["compare", task.name, task.options["data"], *unusual(beside, usual)]
        _compare(task, place(words), **{name: given[name] for name in common})

    keyword = inspect.Parameter.KEYWORD_ONLY
    every = [p.replace(kind=keyword) for p in (*own.values(), *common.values())]
    vars(command)["__signature__"] = inspect.Signature(every)
    command.__doc__ = options.__doc__
    return command


@reproduce_app.command("figure-2")
def figure_2(
    data: Data = "mnist",
    noise: Annotated[
        list[float] | None, typer.Option(help="Shares of wrong labels; 0.8, 0.6 and 0.2.")
    ] = None,
    train: Train = None,
    validation: Validation = None,
    batch: Batch = 32,
    solvers: Solvers = "paper,modern,recommended",
    seconds: Annotated[float, typer.Option(help="How long to step, in each run.")] = 3.0,
    seeds: Seeds = 3,
    settings: Settings = 9,
    workers: Workers = None,
    out: Out = None,
) -> None:
    """Hyper-cleaning: validation loss against time, at three shares of wrong labels."""
    from .comparison import chosen

    levels = noise or [0.8, 0.6, 0.2]
    keep = out or Path("biadam-runs") / f"figure-2-{data}"
    names = chosen(solvers)
    effort = Effort(seconds, None, None, seeds, 1, settings, workers)
    _alone(keep)
    _announce([effort] * len(levels), len(names))
    folders = []
    for level in levels:
        print(f"biadam: {level:g} of the labels wrong", file=sys.stderr)
        folders.append(keep / f"noise-{level:g}")
        task = _hyper_cleaning(data, level, train, validation, batch=batch)
        _show(_run(task, names, effort, {}, folders[-1], keep))
    print(f"page: {_page(folders, keep)}")


@reproduce_app.command("figure-3")
def figure_3(
    data: Annotated[str, typer.Option(help="omniglot, or digits (embedded).")] = "omniglot",
    ways: Annotated[list[int] | None, typer.Option("--way", help="5 and 20.")] = None,
    shots: Annotated[list[int] | None, typer.Option("--shot", help="1 and 5.")] = None,
    channels: Annotated[int, typer.Option(help="Of each layer of the encoder.")] = 32,
    episodes: Annotated[int, typer.Option(help="Tasks to test on.")] = 200,
    solvers: Solvers = FEW_SHOT,
    seconds: Annotated[
        float,
        typer.Option(help="How long to step, in each run of 5 ways; sqrt(N / 5) as long of N."),
    ] = 6.0,
    seeds: Seeds = 3,
    settings: Settings = 4,
    workers: Workers = None,
    out: Out = None,
) -> None:
    """Hyper-representation: accuracy against time and calls, in four settings, on class groups."""
    from .comparison import chosen

    keep = out or Path("biadam-runs") / f"figure-3-{data}"
    names = chosen(solvers)
    panels = [(way, shot) for way in ways or [5, 20] for shot in shots or [1, 5]]
    each = [seconds * (way / 5) ** 0.5 for way, _ in panels]
    efforts = [Effort(long, None, None, seeds, 1, settings, workers) for long in each]
    _alone(keep)
    _announce(efforts, len(names))
    folders = []
    for (way, shot), effort in zip(panels, efforts, strict=True):
        print(f"biadam: {way}-way {shot}-shot", file=sys.stderr)
        folders.append(keep / f"{way}-way-{shot}-shot")
        task = _hyper_representation(data, "groups", way, shot, channels, episodes)
        _show(_run(task, names, effort, {}, folders[-1], keep))
    print(f"page: {_page(folders, keep)}")


for of, name in (
    (_hyper_cleaning, "hyper-cleaning"),
    (_hyper_representation, "hyper-representation"),
    (_ridge, "ridge"),
    (_selection, "selection"),
):
    compare_app.command(name)(_command(of))


def _grids(words: list[str], names: list[str]) -> dict[str, dict[str, list[Any]]]:
    """Read the grids; a word without a method's name is for all of them."""
    from . import solvers
    from .settings import parse_grid

    texts: dict[str, list[str]] = {}
    for word in words:
        key, _, _ = word.partition("=")
        method, dot, _ = key.partition(".")
        if dot and method not in names:
            raise Mistake(
                f"`--grid` is for a method of this comparison, such as {names[0]}, but it is "
                f"{word!r}."
            )
        for name in [method] if dot else names:
            texts.setdefault(name, []).append(word.removeprefix(f"{method}.") if dot else word)
    return {name: parse_grid(of, getattr(solvers, name)) for name, of in texts.items()}


def _show(found: "Comparison") -> None:
    from rich.console import Console
    from rich.table import Table

    rows = [row for row in found.rows if not row.refused]
    beside = found.summary["references"]
    named = [row.metrics for row in rows] + [reference["metrics"] for reference in beside]
    metrics = list(dict.fromkeys(name for of in named for name in of))
    results = Table(box=None, pad_edge=False, title=_title(found), title_justify="left")
    results.add_column("method", no_wrap=True)
    for name in metrics:
        results.add_column(name.replace("_", " "), justify="right", overflow="fold")
    for row in rows:
        cells = (_interval(row.metrics.get(name)) for name in metrics)
        results.add_row(row.solver + ("*" if row.note else ""), *cells)
    for reference in beside:
        values = (reference["metrics"].get(name) for name in metrics)
        cells = ("-" if value is None else f"{value:.3f}" for value in values)
        results.add_row(reference["name"], *cells, style="italic")
    metric = found.summary["metric"].replace("_", " ")
    title = f"seconds and oracle calls to reach a {metric} of, and what equal calls reached"
    speed = Table(box=None, pad_edge=False, title=title, title_justify="left")
    targets = [target["value"] for target in rows[0].targets] if rows else []
    speed.add_column("method", no_wrap=True)
    equal = next((row.equal_calls["calls"] for row in rows if row.equal_calls), 0)
    for heading in (*(f"{value:g}" for value in targets), f"at {equal:,.0f} calls", "steps/s"):
        speed.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        pace = "-" if row.steps_per_second is None else f"{row.steps_per_second:,.3g}"
        reached = [_reached(target) for target in row.targets]
        speed.add_row(row.solver, *reached, _interval(row.equal_calls), pace)
    chosen = Table(box=None, pad_edge=False, title="settings", title_justify="left")
    for heading in ("method", "diverged", "chosen"):
        chosen.add_column(heading, no_wrap=heading != "chosen", overflow="fold")
    for row in rows:
        setting = " ".join(f"{key}={value}" for key, value in row.setting.items())
        chosen.add_row(row.solver, f"{row.diverged_settings} of {row.tried}", setting or "-")
    console = Console()
    console.width = max(console.width, 120)
    for table in (results, speed, chosen):
        console.print(table)
        console.print()
    stepping, compiling, others = (
        sum(seconds)
        for seconds in zip(
            *((row.seconds, row.compile_seconds, row.other_seconds) for row in found.rows),
            strict=True,
        )
    )
    print(
        f"all runs together: {stepping:.0f} s of stepping; off the clock {compiling:.0f} s of "
        f"compiling and {others:.0f} s of evaluating"
    )
    for row in found.rows:
        if row.refused:
            print(f"{row.solver} does not take this task: {row.refused}")
        elif row.note:
            print(f"* {row.solver}: {row.note}")
        if row.diverged:
            print(f"{row.solver}: {row.diverged} of {len(row.runs)} runs diverged")


def _title(found: "Comparison") -> str:
    summary = found.summary
    budget, seeds = summary["budget"], len(summary["seeds"])
    kind = budget["kind"].replace("_", " ")
    return (
        f"{summary['task']} on {summary['data']}: {budget['amount']:g} {kind} a run, mean of "
        f"{seeds} seeds [95 % interval], beside what simpler means reach"
    )


def _interval(of: dict[str, Any] | None) -> str:
    if not of:
        return "-"
    ends = "" if of["low"] is None else f" [{of['low']:.3f}, {of['high']:.3f}]"
    return f"{of['mean']:.3f}{ends}"


def _reached(target: dict[str, Any]) -> str:
    if target["seconds"] is None:
        return "-"
    return f"{target['seconds']:.2g} s, {target['oracle_calls']:.2g}"
