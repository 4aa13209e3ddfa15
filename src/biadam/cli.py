"""The command line. Everything slow is imported by the command that needs it."""

import inspect
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_compare import Kind, compare_app, place, reproduce_app, unusual, weights_of
from .errors import Mistake, unknown

if TYPE_CHECKING:
    from .record import Record
    from .tasks import Task

app = typer.Typer(
    help="Stochastic bilevel optimisation.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
run_app = typer.Typer(
    help="Run a method on a task, save what came out, and draw it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(run_app, name="run")

MISTAKE, DIVERGED = 2, 3

Solver = Annotated[str | None, typer.Option(help="Method; `biadam solvers` lists them.")]
Steps = Annotated[int | None, typer.Option(help="How many steps.")]
Seconds = Annotated[float | None, typer.Option(help="How long to step.")]
Seed = Annotated[
    int, typer.Option(help="Names the split, the corruption and the draws.", min=0, max=2**32 - 1)
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder to write to; by default one in biadam-runs that is named after what is asked "
        "for.",
        file_okay=False,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of the method, such as step_size=0.1,0.01 or "
        "'hypergradient=NeumannSum(terms=10)'; may be repeated.",
    ),
]
References = Annotated[
    bool,
    typer.Option(
        "--references",
        help="Also print and save what simpler means reach, and the optimum. Takes some seconds, "
        "on MNIST about twenty; then they are kept.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")]


@run_app.command("hyper-cleaning")
def hyper_cleaning(
    solver: Solver = None,
    data: Annotated[str, typer.Option(help="digits (embedded) or mnist.")] = "digits",
    noise: Annotated[float, typer.Option(help="Share of wrong training labels.")] = 0.6,
    train: Annotated[int | None, typer.Option(help="Training examples.")] = None,
    validation: Annotated[int | None, typer.Option(help="Clean examples.")] = None,
    weights: Kind = "free",
    batch: Annotated[int, typer.Option(help="Size of a minibatch.")] = 128,
    references: References = False,
    steps: Steps = None,
    seconds: Seconds = None,
    seed: Seed = 0,
    out: Out = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Learn which training labels are wrong, from a few clean examples."""
    given = dict(locals())
    from . import tasks

    task = tasks.hyper_cleaning(
        data,
        noise=noise,
        train=train,
        validation=validation,
        weights=weights_of(weights),
        batch=batch,
        seed=seed,
    )
    folder = out or _named(hyper_cleaning, given, task)
    _run(task, solver, settings or [], steps, seconds, seed, folder, as_json, references)


Way = Annotated[int, typer.Option(help="Classes of a task.")]
Shot = Annotated[int, typer.Option(help="Examples of a class to learn from.")]
Setting = Annotated[
    str, typer.Option(help="fresh (tasks drawn anew, for accuracy) or groups (to compare methods).")
]
FewShotData = Annotated[
    str | None,
    typer.Option(help="omniglot, or digits (embedded), which is taken where the other is not."),
]


@run_app.command("hyper-representation")
def hyper_representation(
    solver: Solver = None,
    data: FewShotData = None,
    way: Way = 5,
    shot: Shot = 1,
    setting: Setting = "fresh",
    heads: Annotated[str, typer.Option(help="How heads are fitted: newton or steps.")] = "newton",
    channels: Annotated[int, typer.Option(help="Of each layer of the encoder.")] = 32,
    queries: Annotated[int, typer.Option(help="Query images of a class.")] = 15,
    tasks: Annotated[int, typer.Option(help="Tasks of a step.")] = 4,
    held_out: Annotated[
        int | None, typer.Option(help="Alphabets to follow and not to train on.")
    ] = None,
    rotations: Annotated[
        bool | None,
        typer.Option(
            "--rotations/--no-rotations",
            help="Quarter turns as classes of their own in training; by default those of fresh "
            "Omniglot tasks.",
        ),
    ] = None,
    norm: Annotated[
        str, typer.Option(help="Of the encoder's blocks: batch, group, layer or none.")
    ] = "batch",
    ridge: Annotated[
        float | None,
        typer.Option(help="C; 0.001 for fresh tasks, the paper's 0.01 for groups by default."),
    ] = None,
    episodes: Annotated[int, typer.Option(help="Tasks to test on.")] = 600,
    steps: Steps = None,
    seconds: Seconds = None,
    seed: Seed = 0,
    out: Out = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Learn features on which a new task is learned from a few examples."""
    given = dict(locals())
    from .tasks import few_shot_task

    task = few_shot_task(
        data=data,
        setting=setting,
        heads=heads,
        ways=way,
        shots=shot,
        channels=channels,
        queries=queries,
        tasks=tasks,
        held_out=held_out,
        rotations=rotations,
        norm=norm,
        ridge=ridge,
        episodes=episodes,
        seed=seed,
    )
    folder = out or _named(hyper_representation, given, task)
    _run(task, solver, settings or [], steps, seconds, seed, folder, as_json)


@run_app.command("ridge")
def ridge(
    solver: Solver = None,
    data: Annotated[str, typer.Option(help="diabetes or breast_cancer (embedded).")] = "diabetes",
    most: Annotated[float | None, typer.Option(help="No penalty above this.")] = None,
    sparse: Annotated[
        float | None, typer.Option(help="No more than this in all penalties.")
    ] = None,
    junk: Annotated[int, typer.Option(help="Features of pure noise to add.")] = 20,
    train: Annotated[int | None, typer.Option(help="Training rows.")] = None,
    validation: Annotated[int | None, typer.Option(help="Validation rows.")] = None,
    batch: Annotated[int, typer.Option(help="Size of a minibatch.")] = 64,
    steps: Steps = None,
    seconds: Seconds = None,
    seed: Seed = 0,
    out: Out = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Tune a penalty for every feature of a linear model."""
    given = dict(locals())
    if most is not None and sparse is not None:
        raise Mistake("`--most` and `--sparse` can't be given together; choose one of them.")
    from . import sets, tasks

    penalties: sets.AbstractSet = sets.NonNegative()
    if most is not None:
        penalties = sets.Box(0.0, most)
    elif sparse is not None:
        penalties = tasks.Budget(sparse)
    task = tasks.ridge(
        data,
        outer_set=penalties,
        junk=junk,
        train=train,
        validation=validation,
        batch=batch,
        seed=seed,
    )
    folder = out or _named(ridge, given, task)
    _run(task, solver, settings or [], steps, seconds, seed, folder, as_json)


@run_app.command("selection")
def selection(
    solver: Solver = None,
    data: Annotated[str, typer.Option(help="digits (embedded) or mnist.")] = "digits",
    choose: Annotated[int | None, typer.Option(help="Examples to choose.")] = None,
    noise: Annotated[float, typer.Option(help="Share of wrong training labels.")] = 0.6,
    train: Annotated[int | None, typer.Option(help="Training examples.")] = None,
    validation: Annotated[int | None, typer.Option(help="Clean examples.")] = None,
    batch: Annotated[int, typer.Option(help="Size of a minibatch.")] = 128,
    steps: Steps = None,
    seconds: Seconds = None,
    seed: Seed = 0,
    out: Out = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Choose the training examples to learn from, by a few clean ones."""
    given = dict(locals())
    from . import tasks

    task = tasks.selection(
        data,
        choose=choose,
        noise=noise,
        train=train,
        validation=validation,
        batch=batch,
        seed=seed,
    )
    folder = out or _named(selection, given, task)
    _run(task, solver, settings or [], steps, seconds, seed, folder, as_json)


app.add_typer(compare_app, name="compare")
app.add_typer(reproduce_app, name="reproduce")


@app.command("report")
def make_report(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help="Folders that runs and comparisons wrote."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write, an HTML file; figures go into a folder beside it."),
    ] = None,
) -> None:
    """Write a page on runs and comparisons, and its figures for print."""
    from .report import figures, page

    folders = directories or []
    if out is not None and out.suffix != ".html":
        raise Mistake(f"`--out` must name a file that ends in .html, but it is {str(out)!r}.")
    at = out or (folders[0] if len(folders) == 1 else Path("biadam-runs")) / "report.html"
    print(f"page: {page(folders, at)}")
    drawn = figures(folders, at.with_name(f"{at.stem}-figures"))
    if drawn:
        print(f"figures: {drawn[0].parent}")


@app.command()
def solvers(as_json: Json = False) -> None:
    """The table of methods."""
    from .solvers import table

    rows = table()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, caption=CAPTION, caption_justify="left")
    for heading in ("name", "year", "loop", "needs", "samples"):
        drawn.add_column(heading, no_wrap=True)
    for heading in ("f'", "g'", "HVP", "JVP"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    drawn.add_column("sets", no_wrap=True)
    drawn.add_column("paper")
    for row in rows:
        words = (str(row[key]) for key in ("name", "year", "loop", "needs", "complexity"))
        calls = (f"{n:.3g}" for n in row["oracle_calls"].values())
        sets = " ".join(level for level in ("x", "y") if row["sets"][level])
        drawn.add_row(*words, *calls, sets or "-", row["paper"])
    console = Console()
    console.width = max(console.width, 120)
    console.print(drawn)


CAPTION = (
    "samples: those the theory needs for a gradient of norm eps; f', g', HVP, JVP: gradients and "
    "products of one step, counted with the defaults; sets: the variables it constrains"
)


NAMED = ("solver", "data", "seed")  # options that a folder's name always has a word for
UNNAMED = ("out", "as_json", "references")  # those that change no result


def _named(command: Callable[..., None], given: dict[str, Any], task: "Task") -> Path:
    """The folder of a run that names none: another run has another, as far as options tell."""
    usual = {name: of.default for name, of in inspect.signature(command).parameters.items()}
    beside = {k: v for k, v in given.items() if k not in (*NAMED, *UNNAMED)}
    words = [task.name, task.data, given["solver"] or task.solver, *unusual(beside, usual)]
    return place([*words, f"seed{given['seed']}"])


def _run(
    task: "Task",
    name: str | None,
    pairs: list[str],
    steps: int | None,
    seconds: float | None,
    seed: int,
    folder: Path,
    as_json: bool,
    references: bool = False,
) -> None:
    import jax

    from . import record, report, solvers
    from .driver import Outcome, run
    from .settings import parse

    name = task.solver if name is None else name
    if name not in solvers.__all__:
        raise unknown("solver", name, solvers.__all__)
    factory = getattr(solvers, name)
    method = task.build(name, factory, **parse(pairs, factory))
    _make(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run(
            task.problem,
            method,
            task.source_for(name),
            task.x0,
            task.start_for(name),
            steps=task.steps if steps is None and seconds is None else steps,
            seconds=seconds,
            key=jax.random.key(seed),
            metrics=task.curves,
            evaluations=task.evaluations,
        )
    for remark in dict.fromkeys(str(w.message) for w in caught):
        print(f"biadam: {remark}", file=sys.stderr)
    written = record.save(folder, task, name, dict(p.split("=", 1) for p in pairs), seed, result)
    picture = report.figure(written)
    if references:
        beside = [row._asdict() for row in task.references()]
        written = record.write(folder, {**written.summary, "references": beside}, written.arrays)
    if as_json:
        print(json.dumps(written.summary))
    else:
        _show(written, picture)
    if result.outcome is Outcome.DIVERGED:
        raise typer.Exit(DIVERGED)


def _make(folder: Path) -> None:
    """Make sure of the folder before a long run, and not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Mistake(
            f"`--out` must be a folder that can be made and written to, but {folder} can't: "
            f"{error.strerror}."
        ) from error


def _show(written: "Record", picture: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    summary = written.summary
    drawn = Table(box=None, show_header=False, pad_edge=False)
    title = f"{summary['task']} on {summary['data']} by {summary['solver']}, seed {summary['seed']}"
    for name, value in summary["metrics"].items():
        drawn.add_row(name.replace("_", " "), "not defined" if value is None else f"{value:.4f}")
    pace = summary["steps_per_second"]
    drawn.add_row("steps", f"{summary['steps']:,}" + (f"  ({pace:,.0f} a second)" if pace else ""))
    drawn.add_row("seconds", f"{summary['seconds']:.1f}")
    drawn.add_row("compile seconds", f"{summary['compile_seconds']:.1f}")
    calls = summary["oracle_calls"]
    drawn.add_row(
        "oracle calls", ", ".join(f"{name.replace('_', ' ')}s {n:,}" for name, n in calls.items())
    )
    if summary["residual"] is not None:
        drawn.add_row("residual of H s = f_y", f"{summary['residual']:.2g}")
    drawn.add_row("outcome", summary["outcome"])
    console = Console()
    console.print(title, style="bold")
    console.print(drawn)
    if summary.get("references"):
        beside = Table(box=None, pad_edge=False)
        beside.add_column("for reference", no_wrap=True)
        for name in summary["metrics"]:
            beside.add_column(name.replace("_", " "), justify="right")
        for row in summary["references"]:
            values = (row["metrics"].get(name) for name in summary["metrics"])
            beside.add_row(row["name"], *("-" if v is None else f"{v:.4f}" for v in values))
        console.print(beside)
    console.print(f"figure: {picture}", soft_wrap=True)


def main() -> None:
    """Run the command line: one clear line and status 2 for a mistake of the user's."""
    try:
        status = app(standalone_mode=False)
    except (Mistake, typer.TyperException) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        asked = message.startswith("Usage:")  # a command without its arguments shows its help
        print(message if asked else f"biadam: {' '.join(message.split())}", file=sys.stderr)
        status = MISTAKE
    raise SystemExit(status)
