"""The hypergradient to a tolerance: what tests and users compare with."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .. import errors, tree
from ..problem import Problem, Sample, arrays, check_problem
from .conjugate_gradient import Solution, refined


def hypergradient(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    outer_batch: PyTree,
    inner_batch: PyTree,
    *,
    tolerance: float | None = None,
    steps: int = 10_000,
) -> PyTree:
    r"""Return :math:`f_x - J H^{-1} f_y` at (x, y) on the given data, by conjugate gradients.

    This is the gradient of :math:`F(x) = f(x, y^*(x))` where y minimises g(x, .); elsewhere it is
    the surrogate that every implicit method follows.

    Args:
        problem: the two losses.
        x: the outer variable.
        y: the inner variable.
        outer_batch: the data of the outer loss, all of it for the exact value.
        inner_batch: the data of the inner loss.
        tolerance: relative residual of the linear system, computed afresh at the end; by default
            the square root of the precision of y, 1e-8 for float64 and 3e-4 for float32.
        steps: Hessian products after which to give up.

    Raises:
        Mistake: if g is not strongly convex in y here, the tolerance is not reached, or what it
            takes is not finite.
    """
    check_problem(problem)
    errors.count("steps", steps)
    x, y = arrays("x", x), arrays("y", y)
    inner_batch = arrays("inner_batch", inner_batch)
    stacked = jax.tree.map(lambda a: a[None], inner_batch)
    problem.check(x, y, Sample(outer_batch, stacked, jax.random.key(0)))
    if tolerance is None:
        tolerance = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps) ** 0.5
    errors.number("tolerance", tolerance, above=0)
    w, found, finite = _solve(
        problem, x, y, outer_batch, inner_batch, jnp.asarray(tolerance), jnp.asarray(steps)
    )
    for what, sound in zip(MUST_BE_FINITE, finite, strict=True):
        if not bool(sound):
            raise errors.Mistake(
                f"{what} is not finite at this point, so there is no hypergradient; look for a "
                f"NaN in the data, or a root, a logarithm or a quotient at zero in the losses."
            )
    if not bool(found.definite):
        raise errors.Mistake(
            "the inner loss is not strongly convex in y at this point (a direction of curvature "
            "<= 0 was met), so it has no hypergradient there; add a regulariser such as "
            "1e-3 * |y|^2 or move y closer to its optimum."
        )
    if not float(found.residual) <= tolerance:
        raise errors.Mistake(
            f"the linear system of the hypergradient was solved to a relative residual of "
            f"{float(found.residual):.1e} in {int(found.products)} products, not to the "
            f"tolerance {tolerance:.1e}; raise `steps` or `tolerance`, or use float64."
        )
    return w


MUST_BE_FINITE = (
    "the gradient of the outer loss in x",
    "the gradient of the outer loss in y",
    "the solution of the linear system with the Hessian of the inner loss",
    "the hypergradient",
)


@eqx.filter_jit
def _solve(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    outer_batch: PyTree,
    inner_batch: PyTree,
    tolerance: jax.Array,
    steps: jax.Array,
) -> tuple[PyTree, Solution, list[jax.Array]]:
    inner = jax.tree.map(lambda a: jnp.asarray(a)[None], inner_batch)
    seen, z, sample, pull = problem.view(x, Sample(outer_batch, inner, jax.random.key(0)))
    batch = sample.batch(0)
    f_x, f_y = seen.outer_gradients(z, y, sample.outer)
    operator = lambda u: seen.hessian_product(z, y, batch, u)
    found = refined(operator, f_y, steps=steps, tolerance=tolerance)
    cross = seen.cross_product(z, y, batch, found.s)
    w = pull(tree.add_scale(f_x, -1.0, cross))
    return w, found, [tree.all_finite(value) for value in (f_x, f_y, found.s, w)]
