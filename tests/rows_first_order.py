"""The penalty methods and the tuning-free ones on the test bed, with their exact fixed points."""

from collections.abc import Callable

import numpy as np

from beds import Row
from biadam import Calls
from biadam.penalty import Ramp
from biadam.solvers.bome import bome
from biadam.solvers.f2ba import f2ba
from biadam.solvers.f2sa import f2sa
from biadam.solvers.pbgd import pbgd_gradient, pbgd_value
from biadam.solvers.tfbo import d_tfbo, s_tfbo
from biadam.tasks import Quadratic

# ------------------------------------------------------------------------------ exact fixed points


def inverse(bed: Quadratic) -> np.ndarray:
    return np.linalg.inv(bed.hessian)


def series(bed: Quadratic, terms: int, step_size: float) -> np.ndarray:
    """The Neumann series for the inverse Hessian."""
    shrink = np.eye(len(bed.hessian)) - step_size * bed.hessian
    return step_size * sum(np.linalg.matrix_power(shrink, q) for q in range(terms))


def penalised(
    bed: Quadratic, penalty: float, *, slack: np.ndarray, solve: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where ``y = y*(x) - slack (y - t) / penalty`` and ``r (x - u) + B solve (y - t) = 0``.

    The first says that y minimises f plus the penalty, the second that the outer direction is zero.
    For the gap of values ``slack`` is H^{-1}, for half the squared slope H^{-2}. ``solve`` is
    H^{-1} where z is y*(x), and the series of T terms where z is T inner steps away from y.
    """
    shrink = np.linalg.inv(np.eye(len(bed.hessian)) + slack / penalty)
    outer = bed.coupling @ solve
    known = shrink @ (inverse(bed) @ bed.shift + slack @ bed.target / penalty)
    slope = bed.ridge * np.eye(len(bed.centre)) + outer @ shrink @ inverse(bed) @ bed.coupling.T
    x = np.linalg.solve(slope, bed.ridge * bed.centre + outer @ (bed.target - known))
    return x, shrink @ inverse(bed) @ bed.coupling.T @ x + known


def offset(bed: Quadratic, *, slack: np.ndarray, solve: np.ndarray) -> np.ndarray:
    """The limit of ``penalty * (x - x at infinite penalty)``."""
    outer = bed.coupling @ solve
    x = bed.optimum(solve)
    slope = bed.ridge * np.eye(len(bed.centre)) + outer @ inverse(bed) @ bed.coupling.T
    return np.linalg.solve(slope, outer @ slack @ (bed.solution(x) - bed.target))


def value_limit(penalty: float) -> Callable[[Quadratic], np.ndarray]:
    """Of F2SA and V-PBGD: the minimiser of ``min_y (f + penalty g) - penalty min_z g``."""
    return lambda bed: penalised(bed, penalty, slack=inverse(bed), solve=inverse(bed))[0]


def slope_limit(penalty: float) -> Callable[[Quadratic], np.ndarray]:
    """Of G-PBGD: the minimiser of ``f + penalty |g_y|^2 / 2``."""
    square = lambda bed: inverse(bed) @ inverse(bed)
    return lambda bed: penalised(bed, penalty, slack=square(bed), solve=inverse(bed))[0]


def restarted_limit(penalty: float, terms: int, step: float) -> Callable[[Quadratic], np.ndarray]:
    """Of F2BA, which begins z at y in every step."""
    solve = lambda bed: series(bed, terms, step)
    return lambda bed: penalised(bed, penalty, slack=inverse(bed), solve=solve(bed))[0]


def bome_limit(
    terms: int, step: float, decrease: float, guard: float
) -> Callable[[Quadratic], np.ndarray]:
    """Of BOME: the penalised point whose multiplier obeys ``m^3 guard = decrease |grad f|^2``."""

    def limit(bed: Quadratic) -> np.ndarray:
        def at(log: float) -> tuple[np.ndarray, float]:
            m = np.exp(log)
            x, y = penalised(bed, m, slack=inverse(bed), solve=series(bed, terms, step))
            square = ((y - bed.target) ** 2).sum() + ((bed.ridge * (x - bed.centre)) ** 2).sum()
            return x, m**3 * guard - decrease * square

        low, high = -5.0, 20.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (low, middle) if at(middle)[1] > 0 else (middle, high)
        return at(low)[0]

    return limit


ROWS: dict[str, Row] = {
    "f2sa": Row(
        lambda bed: f2sa((0.01, 0.5), penalty=100.0, inner_steps=2),
        20000,
        Calls(3, 6, 0, 0),
        value_limit(100.0),
        1e-10,
    ),
    "f2ba": Row(
        lambda bed: f2ba((0.1, 0.5), penalty=100.0, inner_steps=4),
        8000,
        Calls(5, 10, 0, 0),
        restarted_limit(100.0, 4, 0.5),
        1e-10,
    ),
    "bome": Row(
        lambda bed: bome((0.02, 0.02), inner_steps=10, guard=1e-3),
        30000,
        Calls(1, 12, 0, 0),
        bome_limit(10, 0.5, 0.5, 1e-3),
        1e-10,
    ),
    "pbgd_value": Row(
        lambda bed: pbgd_value((0.3, 0.3), penalty=Ramp(0.5, 20.0, 100.0), inner_steps=3),
        8000,
        Calls(1, 5, 0, 0),
        value_limit(20.0),
        1e-10,
    ),
    "pbgd_gradient": Row(
        lambda bed: pbgd_gradient((0.3, 0.3), penalty=Ramp(0.5, 100.0, 100.0)),
        50000,
        Calls(1, 1, 1, 1),
        slope_limit(100.0),
        1e-10,
    ),
    "s_tfbo": Row(
        lambda bed: s_tfbo(),
        100000,
        Calls(1, 1, 1, 1),
    ),
    "d_tfbo": Row(
        lambda bed: d_tfbo(tolerance=0.0, inner_steps=6),
        5000,
        Calls(1, 6, 6, 1),
    ),
}
