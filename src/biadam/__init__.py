"""Stochastic bilevel optimisation in JAX."""

from . import data as data
from . import estimators as estimators
from . import hypergradients as hypergradients
from . import metrics as metrics
from . import outputs as outputs
from . import schedules as schedules
from . import sets as sets
from . import solvers as solvers
from . import tasks as tasks
from .errors import Mistake as Mistake
from .hypergradients import hypergradient as hypergradient
from .problem import Calls as Calls
from .problem import Levels as Levels
from .problem import Problem as Problem
from .problem import Sample as Sample
from .run import DivergedWarning as DivergedWarning
from .run import IdleWarning as IdleWarning
from .run import Outcome as Outcome
from .run import Result as Result
from .run import run as run
from .solver import AbstractSolver as AbstractSolver
from .solver import Info as Info
from .solver import SingleLoop as SingleLoop
from .solver import State as State

__version__ = "0.1.0"
