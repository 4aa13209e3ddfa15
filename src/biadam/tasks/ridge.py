r"""Per-feature ridge: learn a penalty for every coefficient of a linear model.

.. math::
    \min_{x \ge 0} \; \frac1m \sum_j \ell(a_j' \theta^*(x), b_j) \quad \text{with} \quad
    \theta^*(x) = \operatorname{argmin}_\theta \; \frac1n \sum_i \ell(a_i' \theta, b_i)
        + \lambda \sum_k x_k \theta_k^2 + C \|\theta\|^2

x is one number for each feature, and y is theta: a coefficient for each feature and an intercept,
which only C penalises. C keeps the inner problem strongly convex where no feature is penalised; a
negative x would not, so every set of penalties has x >= 0.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from .. import errors
from ..data import Minibatches
from ..data.tables import Rows, Table, table
from ..problem import Problem
from ..sets import AbstractSet, L1Ball, NonNegative
from .base import Task, detection


class Budget(AbstractSet):
    r""":math:`u \ge 0` and :math:`\sum_i u_i \le r`: the L1 ball's part without signs.

    The ball's projection keeps signs and zeros, so it comes after the clipping to :math:`u \ge 0`.
    """

    ball: L1Ball

    def __init__(self, radius: ArrayLike):
        self.ball = L1Ball(radius)

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Clip, then shrink."""
        return self.ball.project(NonNegative().project(point, matrix), matrix)

    def check(self, name: str, point: PyTree) -> None:
        """Refuse more than one radius."""
        self.ball.check(name, point)


def ridge(
    data: str = "diabetes",
    *,
    outer_set: AbstractSet = NonNegative(),
    junk: int = 20,
    train: int | None = None,
    validation: int | None = None,
    batch: int = 64,
    scale: float = 0.1,
    ridge: float = 1e-3,
    seed: int = 0,
) -> Task:
    """Tune a penalty for each feature, so that useless features are found and shrunk.

    Args:
        data: ``diabetes``, squared loss, or ``breast_cancer``, logistic loss.
        outer_set: where the penalties live; it must hold no negative ones. ``Box(0, 10)`` caps
            each, ``Budget(3)`` caps their sum, which makes them sparse.
        junk: how many features of pure noise are added to the real ones.
        train: number of training rows.
        validation: number of validation rows.
        batch: size of a minibatch, of either loss.
        scale: lambda, the unit of the penalties.
        ridge: C.
        seed: names the split and the noise.
    """
    errors.number("scale", scale, above=0)
    errors.number("ridge", ridge, above=0)
    parts = table(data, train, validation, junk, seed)
    features = len(parts.names)
    useless = np.arange(features) >= features - junk
    x0 = _start(outer_set, features)
    examples, held, test = jax.tree.map(jnp.asarray, (parts.train, parts.validation, parts.test))
    entry = optax.sigmoid_binary_cross_entropy if parts.classes else optax.squared_error

    def predict(y: PyTree, of: Rows) -> Array:
        return of.feature @ y["coefficient"] + y["intercept"]

    def outer(x: Array, y: PyTree, of: Rows) -> Array:
        return jnp.mean(entry(predict(y, of), of.target))

    def inner(x: Array, y: PyTree, of: Rows) -> Array:
        theta = y["coefficient"]
        penalty = scale * jnp.sum(x * theta**2)
        return outer(x, y, of) + penalty + ridge * (jnp.sum(theta**2) + y["intercept"] ** 2)

    validation_loss = jax.jit(lambda x, y: outer(x, y, held))
    test_loss = jax.jit(lambda x, y: outer(x, y, test))
    common = cache(lambda: one_for_all(parts, ridge))

    def judge(y: PyTree, prefix: str) -> dict[str, float]:
        found = {
            f"{prefix}validation_loss": float(validation_loss(x0, y)),
            f"{prefix}test_loss": float(test_loss(x0, y)),
        }
        if parts.classes:
            right = (np.asarray(predict(y, test)) > 0) == (parts.test.target > 0)
            found[f"{prefix}test_accuracy"] = float(right.mean())
        return found

    def evaluate(x: Array, y: PyTree) -> dict[str, float]:
        return {
            **judge(y, ""),
            **judge(_point(common()[1]), "common_"),
            "common_penalty": common()[0],
            "penalised": float(np.mean(np.asarray(x) > 0)),
            "junk_auc": detection(np.asarray(x), useless)["auc"],
        }

    def keep(x: Array, y: PyTree) -> dict[str, np.ndarray]:
        return {
            "penalty": scale * np.asarray(x),
            "coefficient": np.asarray(y["coefficient"]),
            "common_coefficient": common()[1][:-1],
            "feature": np.asarray(parts.names),
            "junk": useless,
        }

    zero = jnp.zeros((), x0.dtype)
    return Task(
        name="ridge",
        data=data,
        problem=Problem(outer=outer, inner=inner, outer_set=outer_set),
        source=Minibatches(outer=held, inner=examples, size=batch),
        x0=x0,
        y0={"coefficient": jnp.zeros(features, x0.dtype), "intercept": zero},
        curves={"validation_loss": validation_loss},
        evaluate=evaluate,
        solver="biadam_tracked",
        settings={
            "biadam_tracked": {"step_size": (0.3, 0.1)},
            "vr_biadam_tracked": {"step_size": (0.3, 0.1)},
        },
        steps=20_000,
        options={
            "data": data,
            "outer_set": repr(outer_set),
            "junk": junk,
            "train": len(parts.train.target),
            "validation": len(parts.validation.target),
            "batch": batch,
            "scale": scale,
            "ridge": ridge,
        },
        keep=keep,
    )


def one_for_all(parts: Table, ridge: float) -> tuple[float, np.ndarray]:
    """The common penalty of all coefficients that validates best, of a grid, and its theta."""
    shape = np.append(np.ones(len(parts.names)), 0.0)
    grid = np.append(0.0, np.geomspace(1e-4, 1e2, 61))
    fits = [fit(parts.train, p * shape + ridge, parts.classes) for p in grid]
    best = int(np.argmin([mean_loss(parts.validation, y, parts.classes) for y in fits]))
    return float(grid[best]), fits[best]


def mean_loss(rows: Rows, theta: np.ndarray, classes: bool) -> float:
    """The mean loss in double precision; the last entry of theta is the intercept."""
    out = rows.feature.astype(np.float64) @ theta[:-1] + theta[-1]
    target = rows.target.astype(np.float64)
    return float(np.mean(np.logaddexp(0, out) - target * out if classes else (out - target) ** 2))


def fit(rows: Rows, penalty: np.ndarray, classes: bool) -> np.ndarray:
    """The minimiser of the mean loss and ``sum penalty_k theta_k^2``, by Newton's method.

    The last column of theta is the intercept, which has a penalty like the others. Steps are halved
    until they descend.
    """
    a = np.concatenate([rows.feature, np.ones((len(rows.target), 1))], axis=1).astype(np.float64)
    b, n = rows.target.astype(np.float64), len(rows.target)
    value = lambda theta: mean_loss(rows, theta, classes) + penalty @ theta**2
    theta = np.zeros(a.shape[1])
    for _ in range(100):
        out = a @ theta
        share = 1 / (1 + np.exp(-out))
        slope, bend = (share - b, share * (1 - share)) if classes else (2 * (out - b), 2 + 0 * out)
        gradient = a.T @ slope / n + 2 * penalty * theta
        if np.linalg.norm(gradient) < 1e-10:
            break
        step = np.linalg.solve((a.T * bend) @ a / n + 2 * np.diag(penalty), gradient)
        length = 1.0
        while length > 1e-6 and value(theta - length * step) > value(theta):
            length /= 2
        theta = theta - length * step
    return theta


def _point(theta: np.ndarray) -> PyTree:
    short = jnp.asarray(theta, jnp.float32)
    return {"coefficient": short[:-1], "intercept": short[-1]}


def _start(outer_set: AbstractSet, features: int) -> Array:
    """The member nearest to no penalties, after a look at whether some members are negative."""
    errors.part("outer_set", outer_set, AbstractSet, "sets")
    zero = jnp.zeros(features, jnp.float32)
    outer_set.check("x", zero)
    below = jax.vmap(lambda p: outer_set.project(p, jnp.ones_like(p)))(
        -10 * jnp.eye(features, dtype=zero.dtype)
    )
    if bool(jnp.any(below < 0)):
        raise errors.Mistake(
            f"`outer_set` must hold no negative penalties, which would leave the inner problem "
            f"without a minimiser, but {type(outer_set).__name__} does; take for example "
            f"NonNegative(), Box(0, 10) or tasks.Budget(3)."
        )
    return outer_set.project(zero, jnp.ones_like(zero))
