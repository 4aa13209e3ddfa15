r"""How near a stationary point: the gradient mapping, and the paper's convergence measure.

At a point x the step along the exact gradient, in the metric of a diagonal matrix A, is

.. math::
    x^+ = \operatorname{argmin}_{u \in X} \langle \nabla F(x), u \rangle
        + \tfrac{1}{2\gamma} \|u - x\|_A^2, \qquad
    G_X(x, \nabla F(x), \gamma) = \tfrac1\gamma (x - x^+),

and :math:`\|G_X\|` is zero at the stationary points and nowhere else; without constraints it is
:math:`\|A^{-1} \nabla F(x)\|`. For a method with the directions w the paper bounds it by

.. math::
    M_t = \tfrac1\gamma \|\tilde x_{t+1} - x_t\| + \tfrac1\rho \big( \sqrt2\,
        \|w_t - \bar\nabla f(x_t, y_t)\| + L_0 \|y^*(x_t) - y_t\| \big),
    \qquad A_t \succeq \rho I,

with :math:`\bar\nabla f` the implicit formula at any y. Both need y*(x), which costs a solution of
the inner problem, and all the data of both losses, so they are for evaluations and not for steps.
Where y*(x) is outside ``inner_set`` there is no gradient to speak of, and both are NaN.

Reference: F. Huang, J. Li, S. Gao, BiAdam: Fast Adaptive Bilevel Optimization Methods, 2021,
arXiv:2106.11396, section "Useful Convergence Metric".
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax.tree
from jax import lax
from jaxtyping import Array, PyTree

from . import errors, tree
from .driver import OfState
from .hypergradients import hypergradient
from .hypergradients.conjugate_gradient import conjugate_gradient
from .problem import Problem
from .proximal import spread
from .solver import SingleLoop, State, proximal_step


def inner_solution(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    inner_batch: PyTree,
    *,
    tolerance: float | None = None,
    steps: int = 100,
) -> PyTree:
    """Return y*(x), the minimiser of the inner loss on the given data, by Newton's method from y.

    The steps solve their systems by conjugate gradients and are halved until the loss falls. The
    inner set plays no part: where its border is not reached, as the implicit formula assumes, the
    minimiser is the same.

    Args:
        problem: the two losses.
        x: the outer variable.
        y: where to start.
        inner_batch: the data of the inner loss.
        tolerance: ends it after the step whose length is below this times ``1 + |y|``; by default
            the square root of the precision of y, since the steps converge quadratically.
        steps: Newton steps after which to give up.

    Raises:
        Mistake: if the inner loss is not strongly convex, or the tolerance is not reached.
    """
    errors.count("steps", steps)
    x, y = jax.tree.map(jnp.asarray, (x, y))
    if tolerance is None:
        tolerance = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps) ** 0.5
    errors.number("tolerance", tolerance, above=0)
    found = _newton(problem, x, y, inner_batch, jnp.asarray(tolerance), jnp.asarray(steps))
    if not bool(found.definite):
        raise errors.Mistake(
            "the inner loss is not strongly convex in y on the way to y*(x) (a direction of "
            "curvature <= 0 was met); add a regulariser such as 1e-3 * |y|^2."
        )
    if not bool(found.done):
        raise errors.Mistake(
            f"y*(x) was not found to the tolerance {tolerance:.1e} in {int(found.taken)} Newton "
            f"steps, the last of length {float(found.size):.1e}; raise `steps` or `tolerance`, "
            f"start nearer, or use float64."
        )
    return found.y


def gradient_mapping(
    problem: Problem,
    outer_data: PyTree,
    inner_data: PyTree,
    *,
    step_size: float = 1.0,
    matrix: PyTree = 1.0,
) -> Callable[[PyTree, PyTree], float]:
    r"""Return a metric for `biadam.run`: :math:`\|G_X(x, \nabla F(x), \gamma)\|` as told above.

    Args:
        problem: what is solved, with the set or term of x.
        outer_data: all the data of the outer loss.
        inner_data: all the data of the inner loss.
        step_size: :math:`\gamma`.
        matrix: the diagonal of A: one number, or a pytree like x of arrays or numbers.
    """
    errors.number("step_size", step_size, above=0)

    def metric(x: PyTree, y: PyTree) -> float:
        x, y = jax.tree.map(jnp.asarray, (x, y))
        gradient = _gradient(problem, x, y, outer_data, inner_data)
        diagonal = jax.tree.map(lambda a, z: jnp.asarray(a, z.dtype), spread(matrix, x), x)
        target = proximal_step(x, gradient, diagonal, step_size, problem.outer_set)
        return _distance(x, target) / step_size

    return metric


def convergence_measure(
    problem: Problem,
    solver: SingleLoop,
    outer_data: PyTree,
    inner_data: PyTree,
    *,
    lipschitz: float | None = None,
    floor: float | None = None,
) -> OfState:
    r"""Return a metric for `biadam.run`: the paper's :math:`M_t` as told above.

    Args:
        problem: what is solved.
        solver: the method whose states are measured, with its step size and matrices.
        outer_data: all the data of the outer loss.
        inner_data: all the data of the inner loss.
        lipschitz: :math:`L_0`. By default the least that serves at the point in question, which
            makes the last term :math:`\sqrt2 \|\bar\nabla f(x, y) - \nabla F(x)\|`.
        floor: :math:`\rho`, at most the least entry of A, which it is by default.
    """
    errors.part("solver", solver, SingleLoop, "solvers, of a single loop")
    if lipschitz is not None:
        errors.number("lipschitz", lipschitz, above=0)
    if floor is not None:
        errors.number("floor", floor, above=0)

    def measure(state: State) -> float:
        x, y, _ = state.point
        move = solver.moves(problem, state).x
        solution = inner_solution(problem, x, y, inner_data)
        if not _inside(problem, solution):
            return float("nan")
        surrogate = hypergradient(problem, x, y, outer_data, inner_data)
        if lipschitz is None:
            gradient = hypergradient(problem, x, solution, outer_data, inner_data)
            drift = 2**0.5 * _distance(surrogate, gradient)
        else:
            drift = lipschitz * _distance(solution, y)
        least = min(float(jnp.min(a)) for a in jax.tree.leaves(move.matrix))
        rho = least if floor is None else floor
        step = _distance(proximal_step(*move), x) / float(move.step_size)
        return step + (2**0.5 * _distance(state.direction.x, surrogate) + drift) / rho

    return OfState(measure)


def _gradient(
    problem: Problem, x: PyTree, y: PyTree, outer_data: PyTree, inner_data: PyTree
) -> PyTree:
    """The gradient of F, or NaN where an active constraint leaves none to compute."""
    solution = inner_solution(problem, x, y, inner_data)
    if not _inside(problem, solution):
        return jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), x)
    return hypergradient(problem, x, solution, outer_data, inner_data)


def _inside(problem: Problem, y: PyTree) -> bool:
    """Whether the inner set or term leaves the minimiser without it where it is."""
    eps = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps)
    far = _distance(problem.inner_set.prox(y, 1.0), y)
    return far <= eps**0.5 * float(optax.tree.norm(y))


def _distance(one: PyTree, other: PyTree) -> float:
    return float(optax.tree.norm(tree.add_scale(one, -1.0, other)))


class _Newton(NamedTuple):
    """Where Newton's method stands."""

    y: PyTree
    size: Array  # of the last step
    taken: Array
    definite: Array
    done: Array


@eqx.filter_jit
def _newton(
    problem: Problem, x: PyTree, y: PyTree, batch: PyTree, tolerance: Array, steps: Array
) -> _Newton:
    loss = lambda y: problem.inner_loss(x, y, batch)
    eps = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps)

    def go(now: _Newton) -> Array:
        return (now.taken < steps) & now.definite & ~now.done

    def step(now: _Newton) -> _Newton:
        slope = problem.inner_gradient(x, now.y, batch)
        operator = lambda u: problem.hessian_product(x, now.y, batch, u)
        found = conjugate_gradient(operator, slope, steps=10_000, tolerance=eps**0.5)
        size = optax.tree.norm(found.s)
        fall = optax.tree.vdot(slope, found.s)
        value = loss(now.y)
        slack = 10 * eps * jnp.abs(value)  # near the end the loss no longer tells
        at = lambda rate: tree.add_scale(now.y, -rate, found.s)

        def too_long(rate: Array) -> Array:
            return ~(loss(at(rate)) <= value - 1e-4 * rate * fall + slack) & (rate > eps)

        rate = lax.while_loop(too_long, lambda rate: rate / 2, jnp.ones_like(size))
        short = size <= tolerance.astype(size.dtype) * (1 + optax.tree.norm(now.y))
        done = short & (rate == 1)
        return _Newton(at(rate), size * rate, now.taken + 1, found.definite, done)

    start = _Newton(
        y,
        jnp.full((), jnp.inf, jnp.result_type(*jax.tree.leaves(y))),
        jnp.zeros((), jnp.int32),
        jnp.array(True),
        jnp.array(False),
    )
    return lax.while_loop(go, step, start)
