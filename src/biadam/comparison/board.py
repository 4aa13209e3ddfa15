"""What a comparison is at, for the person who watches."""

import sys
from types import TracebackType
from typing import Any, NamedTuple


class Line(NamedTuple):
    """A method's state."""

    stage: str
    done: int  # trials of the stage
    total: int
    best: float | None  # metric that it has reached


class Board:
    """A live table on standard error, or a line for each change where nobody can watch it.

    Needs rich for the table, which comes with the command line; without it there are lines.

    Args:
        wanted: say anything at all; by default if a person watches.
        metric: the name of what is reached.
    """

    def __init__(self, wanted: bool | None, metric: str):
        person = sys.stderr.isatty()
        self.wanted = person if wanted is None else wanted
        self.metric = metric
        self.lines: dict[str, Line] = {}
        self.live: Any = _live() if self.wanted and person else None

    def __enter__(self) -> "Board":
        """Draw the table."""
        if self.live is not None:
            self.live.start()
        return self

    def tell(self, solver: str, stage: str, done: int, total: int, best: float | None) -> None:
        """A method is at a stage, with so many of its trials done."""
        old = self.lines.get(solver)
        known = best if best is not None or old is None else old.best
        self.lines[solver] = Line(stage, done, total, known)
        if self.live is not None:
            self.live.update(self._table())
        elif self.wanted and total and done == total:
            told = "" if known is None else f", {self.metric} {known:.4g}"
            print(f"{solver}: {stage}{told}", file=sys.stderr, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the table as it is."""
        if self.live is not None:
            self.live.stop()

    def _table(self) -> Any:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for heading in ("method", "stage", "", "runs", self.metric.replace("_", " ")):
            table.add_column(heading, no_wrap=True)
        for solver, line in self.lines.items():
            runs = f"{line.done} of {line.total}" if line.total else ""
            best = "" if line.best is None else f"{line.best:.4g}"
            state = "waiting" if not line.done else "running"
            state, style = (state, "bold") if line.done < line.total else ("done", "dim")
            table.add_row(solver, line.stage, state, runs, best, style=style)
        return table


def _live() -> Any:
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        return None
    return Live(console=Console(stderr=True), refresh_per_second=4, vertical_overflow="crop")
