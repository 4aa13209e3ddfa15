"""A bar for the person who watches."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any


class Progress:
    """Steps, steps per second and time left, on standard error; nothing if nobody watches.

    Needs rich, which comes with the command line; without it there is silence.
    """

    def __init__(self, watched: bool, steps: int | None, seconds: float | None):
        self.bar: Any = _bar() if watched else None
        self.by_time = steps is None
        self.total = seconds if steps is None else steps
        self.task: Any = None

    def __enter__(self) -> "Progress":
        """Draw the bar."""
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task("", total=self.total, speed="", told="")
        return self

    def move(self, done: int, clock: float) -> None:
        """So many steps in so many seconds."""
        if self.bar is not None:
            speed = f"{done / clock:,.0f} steps/s" if clock else ""
            self.bar.update(self.task, completed=clock if self.by_time else done, speed=speed)

    def tell(self, values: Mapping[str, float]) -> None:
        """Show the latest metrics."""
        if self.bar is not None:
            told = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self.bar.update(self.task, told=told)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the bar where it stands."""
        if self.bar is not None:
            self.bar.stop()


def _bar() -> Any:
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    columns = (
        progress.BarColumn(bar_width=24),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[speed]}"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[told]}"),
    )
    return progress.Progress(*columns, console=Console(stderr=True))
