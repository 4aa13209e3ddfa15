r"""Newton's method for the inner problem: y*(x) to a tolerance, from any start.

With :math:`\hat g` the scale of the inner gradient and :math:`\epsilon` the tolerance, a step
solves :math:`\|H d + g_y\| \le \eta \|g_y\|` by conjugate gradients, :math:`\eta =
\min(1/2, \sqrt{\|g_y\| / \hat g})`, and takes the longest of :math:`t = 1, 1/2, 1/4, \ldots` with

.. math:: \|g_y(x, y + t d)\| \le (1 - 10^{-4} t) \|g_y(x, y)\|.

The squared norm of the gradient falls along d at the rate :math:`2 \langle g_y, H d \rangle \le
-2 (1 - \eta) \|g_y\|^2`, so such a t exists; where g is strongly convex the norm has no stationary
point but :math:`y^*(x)`, so the iteration converges from anywhere, superlinearly in the end. It
needs no value of g, and the gradient that accepts a step is the one that the next step starts from.

Reference: S. C. Eisenstat, H. F. Walker, Globally Convergent Inexact Newton Methods, 1994.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax.tree
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree

from .. import tree
from ..problem import Problem
from .conjugate_gradient import conjugate_gradient


class Inner(NamedTuple):
    """Where the inner minimisation stands."""

    y: PyTree
    gradient: PyTree
    norm: Array  # of the gradient
    gradients: Int[Array, ""]  # spent
    products: Int[Array, ""]  # spent
    steps: Int[Array, ""]
    stuck: Bool[Array, ""]  # no step along the last direction shortens the gradient


class Trial(NamedTuple):
    """A step of the line search."""

    length: Array  # t
    y: PyTree
    gradient: PyTree
    norm: Array
    tries: Int[Array, ""]


HALVINGS = 30  # of a step, after which round-off is all that is left
SUFFICIENT = 1e-4  # decrease of |g_y| per length of a step, the customary constant


def newton(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    batch: PyTree,
    scale: Array,
    tolerance: Array,
    *,
    steps: int,
    products: int,
) -> tuple[Inner, Array]:
    """Steps from y until the gradient is below the tolerance times the scale; and the scale.

    The scale is the larger of the given one and the norm of the first gradient. At most so many
    steps are taken, with at most so many Hessian products in one of them.
    """
    gradient = lambda y: problem.inner_gradient(x, y, batch)
    first = gradient(y)
    norm = optax.tree.norm(first)
    scale = jnp.maximum(scale, norm)
    goal = tolerance * scale

    def unfinished(at: Inner) -> Array:
        return (at.norm > goal) & (at.steps < steps) & ~at.stuck

    def step(at: Inner) -> Inner:
        # No more exact than the goal asks for, and in any case a direction of descent.
        forcing = jnp.maximum(jnp.sqrt(at.norm / scale), goal / (2 * at.norm))
        product = lambda u: problem.hessian_product(x, at.y, batch, u)
        found = conjugate_gradient(
            product, at.gradient, steps=products, tolerance=jnp.minimum(forcing, 0.5)
        )

        def enough(trial: Trial) -> Array:
            return trial.norm <= (1 - SUFFICIENT * trial.length) * at.norm

        def halve(trial: Trial) -> Trial:
            t = trial.length / 2
            new = tree.add_scale(at.y, -t, found.s)
            slope = gradient(new)
            return Trial(t, new, slope, optax.tree.norm(slope), trial.tries + 1)

        zero = jnp.zeros((), jnp.int32)
        two, far = jnp.full_like(at.norm, 2), jnp.full_like(at.norm, jnp.inf)
        trial = lax.while_loop(
            lambda trial: ~enough(trial) & (trial.tries <= HALVINGS),
            halve,
            Trial(two, at.y, at.gradient, far, zero),
        )
        taken = enough(trial)
        pick = lambda new, old: jax.tree.map(lambda a, b: jnp.where(taken, a, b), new, old)
        return Inner(
            pick(trial.y, at.y),
            pick(trial.gradient, at.gradient),
            pick(trial.norm, at.norm),
            at.gradients + trial.tries,
            at.products + found.products,
            at.steps + 1,
            ~taken,
        )

    zero, one = jnp.zeros((), jnp.int32), jnp.ones((), jnp.int32)
    start = Inner(y, first, norm, one, zero, zero, jnp.array(False))
    return lax.while_loop(unfinished, step, start), scale
