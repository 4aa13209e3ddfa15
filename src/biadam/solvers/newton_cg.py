r"""Newton-CG: the deterministic reference, for data that fit a gradient.

Every iteration sees all the data. With :math:`\hat g` the scale of the inner gradient and
:math:`\epsilon` the tolerance:

.. math::
    x_{k+1} &= x_k + \text{the update of any optax optimiser along } w_k, \\
    y_{k+1} &: \|g_y(x_{k+1}, y_{k+1})\| \le \epsilon \hat g \text{ by inexact Newton steps from }
        y_k, \\
    s_{k+1} &: \|H s_{k+1} - f_y\| \le \epsilon \|f_y\| \text{ by conjugate gradients from } s_k, \\
    w_{k+1} &= f_x(x_{k+1}, y_{k+1}) - J(x_{k+1}, y_{k+1})\, s_{k+1}.

A Newton step solves :math:`\|H d + g_y\| \le \eta \|g_y\|` by conjugate gradients, :math:`\eta =
\min(1/2, \sqrt{\|g_y\| / \hat g})`, and takes the longest of :math:`t = 1, 1/2, 1/4, \ldots` with

.. math:: \|g_y(x, y + t d)\| \le (1 - 10^{-4} t) \|g_y(x, y)\|.

The squared norm of the gradient falls along d at the rate :math:`2 \langle g_y, H d \rangle \le
-2 (1 - \eta) \|g_y\|^2`, so such a t exists; where g is strongly convex the norm has no stationary
point but :math:`y^*(x)`, so the iteration converges from anywhere, superlinearly in the end. It
needs no value of g, and the gradient that accepts a step is the one that the next step starts from.

:math:`\hat g` is the largest inner gradient met so far at the start of an iteration, which is as a
rule the one at the user's y. At every iteration the returned y belongs to the returned x.

Theory: gradient descent on F with an error of order :math:`\epsilon`. As in Pedregosa's HOAG, which
lets :math:`\epsilon` fall with k (a schedule does here).

References: F. Pedregosa, Hyperparameter Optimization with Approximate Gradient, 2016,
arXiv:1602.02355. S. C. Eisenstat, H. F. Walker, Globally Convergent Inexact Newton Methods, 1994.

Departures:
    * HOAG minimises g by a quasi-Newton method and steps by a rule of its own; here Newton-CG,
      which shares its products with the linear system, and any optimiser.
    * No constraints: optax knows no metric to project in.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import optax.tree
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree

from .. import errors, schedules, tree
from ..hypergradients.conjugate_gradient import conjugate_gradient
from ..problem import Calls, Levels, Problem, Sample
from ..schedules import Number
from ..solver import AbstractSolver, Info, info_of, refuse_sets
from .about import About, method


class NewtonState(NamedTuple):
    """What the next step needs."""

    step: Int[Array, ""]  # k
    point: Levels  # x_k, y*(x_k), s_k
    direction: PyTree  # w_k
    optimiser: Any  # what the optimiser remembers
    scale: Array  # the largest |g_y| at the start of an iteration
    gap: Array  # |g_y| over the scale at the point


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


class NewtonCG(AbstractSolver):
    """Solve both levels' equations to a tolerance, then let an optimiser move x."""

    optimiser: optax.GradientTransformation = eqx.field(static=True)
    tolerance: Number  # epsilon
    newton_steps: int = eqx.field(static=True)  # at most, in an iteration
    products: int = eqx.field(static=True)  # at most, in one linear system
    batches = 1

    def __check_init__(self) -> None:
        schedules.check_number("tolerance", self.tolerance)
        errors.count("newton_steps", self.newton_steps)
        errors.count("products", self.products)
        if not isinstance(self.optimiser, optax.GradientTransformation):
            raise errors.Mistake(
                f"`optimiser` must be one of optax, such as optax.adam(0.1), but it is "
                f"{self.optimiser!r}."
            )

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[NewtonState, Info]:
        """Solve both equations at the start."""
        refuse_sets(problem, "newton_cg")
        step, start = jnp.ones((), jnp.int32), Levels(x, y, jax.tree.map(jnp.zeros_like, y))
        scale = jnp.zeros_like(optax.tree.norm(y))
        return self._look(problem, step, start, self.optimiser.init(x), scale, sample)

    def step(
        self, problem: Problem, state: NewtonState, sample: Sample
    ) -> tuple[NewtonState, Info]:
        """Move x, then solve both equations there."""
        x, y, s = state.point
        # optax leans on implicit promotion, which is an error under jax's strict rules.
        with jax.numpy_dtype_promotion("standard"):
            change, memory = self.optimiser.update(state.direction, state.optimiser, x)
            point = Levels(optax.apply_updates(x, change), y, s)
        return self._look(problem, state.step + 1, point, memory, state.scale, sample)

    def remarks(self, problem: Problem, state: NewtonState) -> list[str]:
        """Say when the inner equation was not solved."""
        wanted, reached = float(schedules.at(self.tolerance, state.step)), float(state.gap)
        if reached <= wanted:
            return []
        return [
            f"the inner gradient was reduced to {reached:.1e} of its scale and not to the "
            f"tolerance {wanted:.1e}, so the hypergradient is less exact than asked for; use "
            f"float64, raise `tolerance` or `newton_steps`, or make g strongly convex in y."
        ]

    def _look(
        self,
        problem: Problem,
        step: Array,
        point: Levels,
        memory: Any,
        scale: Array,
        sample: Sample,
    ) -> tuple[NewtonState, Info]:
        """The inner solution and the hypergradient at a new x."""
        if sample.whole is None:
            raise errors.Mistake(
                "`newton_cg` needs all the data at once, but the source does not give them; use "
                "biadam.data.FullBatch, or a stochastic method such as biadam."
            )
        outer, inner = sample.whole
        tolerance = schedules.at(self.tolerance, step).astype(scale.dtype)
        x, y, s = point
        found, scale = self._minimise(problem, x, y, inner, scale, tolerance)
        y = found.y

        f_x, f_y = problem.outer_gradients(x, y, outer)
        product = lambda u: problem.hessian_product(x, y, inner, u)
        missing = tree.add_scale(f_y, -1.0, product(s))
        left, size = optax.tree.norm(missing), optax.tree.norm(f_y)
        goal = tolerance * _ratio(size, left)
        system = conjugate_gradient(product, missing, steps=self.products, tolerance=goal)
        s = tree.add_scale(s, 1.0, system.s)
        w = tree.add_scale(f_x, -1.0, problem.cross_product(x, y, inner, s))

        calls = Calls(1, found.gradients, found.products + 1 + system.products, 1)
        gap = _ratio(found.norm, scale)
        state = NewtonState(step, Levels(x, y, s), w, memory, scale, gap)
        residual = system.residual * _ratio(left, size)
        return state, info_of(calls, jnp.ones(()), w, found.gradient, residual)

    def _minimise(
        self,
        problem: Problem,
        x: PyTree,
        y: PyTree,
        batch: PyTree,
        scale: Array,
        tolerance: Array,
    ) -> tuple[Inner, Array]:
        """Inexact Newton steps from y, and the scale that the tolerance is relative to."""
        gradient = lambda y: problem.inner_gradient(x, y, batch)
        first = gradient(y)
        norm = optax.tree.norm(first)
        scale = jnp.maximum(scale, norm)
        goal = tolerance * scale

        def unfinished(at: Inner) -> Array:
            return (at.norm > goal) & (at.steps < self.newton_steps) & ~at.stuck

        def newton(at: Inner) -> Inner:
            # No more exact than the goal asks for, and in any case a direction of descent.
            forcing = jnp.maximum(jnp.sqrt(at.norm / scale), goal / (2 * at.norm))
            product = lambda u: problem.hessian_product(x, at.y, batch, u)
            found = conjugate_gradient(
                product, at.gradient, steps=self.products, tolerance=jnp.minimum(forcing, 0.5)
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
        return lax.while_loop(unfinished, newton, start), scale


def _ratio(a: Array, b: Array) -> Array:
    """``a / b``, or 0 where b is 0."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


@method(About("Pedregosa, HOAG", 2016, "1602.02355", "double", "deterministic", (False, False)))
def newton_cg(
    optimiser: optax.GradientTransformation = optax.adam(0.1),
    *,
    tolerance: Number = 1e-6,
    newton_steps: int = 50,
    products: int = 10_000,
) -> NewtonCG:
    r"""Build the deterministic reference.

    Args:
        optimiser: what moves x along the hypergradient.
        tolerance: :math:`\epsilon`, of both equations, relative.
        newton_steps: at most so many in one iteration.
        products: at most so many Hessian products in one linear system.
    """
    return NewtonCG(optimiser, tolerance, newton_steps, products)
