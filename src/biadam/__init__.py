"""Stochastic bilevel optimisation in JAX.

Names are imported when they are first used, so that a program that only prints its help does not
wait for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import comparison as comparison
    from . import data as data
    from . import estimators as estimators
    from . import hypergradients as hypergradients
    from . import metrics as metrics
    from . import outputs as outputs
    from . import proximal as proximal
    from . import schedules as schedules
    from . import sets as sets
    from . import solvers as solvers
    from . import stationarity as stationarity
    from . import tasks as tasks
    from .comparison import compare as compare
    from .double_loop import DoubleLoop as DoubleLoop
    from .driver import ActiveConstraintWarning as ActiveConstraintWarning
    from .driver import DivergedWarning as DivergedWarning
    from .driver import IdleWarning as IdleWarning
    from .driver import OfState as OfState
    from .driver import Outcome as Outcome
    from .driver import Result as Result
    from .driver import run as run
    from .errors import Mistake as Mistake
    from .hypergradients import hypergradient as hypergradient
    from .problem import Calls as Calls
    from .problem import Levels as Levels
    from .problem import Problem as Problem
    from .problem import Sample as Sample
    from .solver import AbstractSolver as AbstractSolver
    from .solver import Info as Info
    from .solver import SingleLoop as SingleLoop

__version__ = "0.1.0"

_NAMES = {
    "comparison": ("compare",),
    "double_loop": ("DoubleLoop",),
    "errors": ("Mistake",),
    "hypergradients": ("hypergradient",),
    "problem": ("Calls", "Levels", "Problem", "Sample"),
    "driver": (
        "ActiveConstraintWarning",
        "DivergedWarning",
        "IdleWarning",
        "OfState",
        "Outcome",
        "Result",
        "run",
    ),
    "solver": ("AbstractSolver", "Info", "SingleLoop"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
_MODULES = (
    "comparison",
    "data",
    "estimators",
    "hypergradients",
    "metrics",
    "models",
    "outputs",
    "proximal",
    "schedules",
    "sets",
    "solvers",
    "stationarity",
    "tasks",
)

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
