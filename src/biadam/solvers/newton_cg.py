r"""Newton-CG: the deterministic reference, for data that fit a gradient.

Every iteration sees all the data. With :math:`\hat g` the scale of the inner gradient and
:math:`\epsilon` the tolerance:

.. math::
    x_{k+1} &= x_k + \text{the update of any optax optimiser along } w_k, \\
    y_{k+1} &: \|g_y(x_{k+1}, y_{k+1})\| \le \epsilon \hat g \text{ by inexact Newton steps from }
        y_k, \\
    s_{k+1} &: \|H s_{k+1} - f_y\| \le \epsilon \|f_y\| \text{ by conjugate gradients from } s_k, \\
    w_{k+1} &= f_x(x_{k+1}, y_{k+1}) - J(x_{k+1}, y_{k+1})\, s_{k+1}.

The Newton steps are those of `biadam.hypergradients.newton`; :math:`\hat g` is the largest inner
gradient met so far at the start of an iteration, which is as a rule the one at the user's y. At
every iteration the returned y belongs to the returned x.

Theory: gradient descent on F with an error of order :math:`\epsilon`. As in Pedregosa's HOAG, which
lets :math:`\epsilon` fall with k (a schedule does here).

Reference: F. Pedregosa, Hyperparameter Optimization with Approximate Gradient, 2016,
arXiv:1602.02355.

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
from jaxtyping import Array, Int, PyTree

from .. import errors, schedules, tree
from ..hypergradients.conjugate_gradient import conjugate_gradient
from ..hypergradients.newton import newton
from ..problem import Calls, Levels, Problem, Sample
from ..schedules import Number
from ..solver import AbstractSolver, Info, info_of, refuse_sets
from .about import About, method
from .space import Knob, whole


class NewtonState(NamedTuple):
    """What the next step needs."""

    step: Int[Array, ""]  # k
    point: Levels  # x_k, y*(x_k), s_k
    direction: PyTree  # w_k
    optimiser: Any  # what the optimiser remembers
    scale: Array  # the largest |g_y| at the start of an iteration
    gap: Array  # |g_y| over the scale at the point


class NewtonCG(AbstractSolver):
    """Solve both levels' equations to a tolerance, then let an optimiser move x."""

    optimiser: optax.GradientTransformation = eqx.field(static=True)
    rate: Number  # of what the optimiser proposes
    tolerance: Number  # epsilon
    newton_steps: int = eqx.field(static=True)  # at most, in an iteration
    products: int = eqx.field(static=True)  # at most, in one linear system
    batches = 1

    def __check_init__(self) -> None:
        schedules.check_number("rate", self.rate)
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
            change = tree.scale(schedules.at(self.rate, state.step), change)
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
        sample = sample._replace(outer=outer, inner=jax.tree.map(lambda a: a[None], inner))
        seen, z, sample, pull = problem.view(x, sample)
        inner = sample.batch(0)
        found, scale = newton(
            seen, z, y, inner, scale, tolerance, steps=self.newton_steps, products=self.products
        )
        y = found.y

        f_x, f_y = seen.outer_gradients(z, y, outer)
        product = lambda u: seen.hessian_product(z, y, inner, u)
        missing = tree.add_scale(f_y, -1.0, product(s))
        left, size = optax.tree.norm(missing), optax.tree.norm(f_y)
        goal = tolerance * tree.ratio(size, left)
        system = conjugate_gradient(product, missing, steps=self.products, tolerance=goal)
        s = tree.add_scale(s, 1.0, system.s)
        w = pull(tree.add_scale(f_x, -1.0, seen.cross_product(z, y, inner, s)))

        calls = Calls(1, found.gradients, found.products + 1 + system.products, 1)
        gap = tree.ratio(found.norm, scale)
        state = NewtonState(step, Levels(x, y, s), w, memory, scale, gap)
        residual = system.residual * tree.ratio(left, size)
        return state, info_of(calls, jnp.ones(()), w, found.gradient, residual)


@method(
    About(
        "Pedregosa, HOAG",
        2016,
        "1602.02355",
        "double",
        "deterministic",
        (False, False),
        adaptive=True,
    ),
    (Knob("rate", whole, 0.1, 10.0),),
)
def newton_cg(
    optimiser: optax.GradientTransformation = optax.adam(0.1),
    *,
    rate: Number = 1.0,
    tolerance: Number = 1e-6,
    newton_steps: int = 50,
    products: int = 10_000,
) -> NewtonCG:
    r"""Build the deterministic reference.

    Args:
        optimiser: what moves x along the hypergradient.
        rate: of what it proposes; a number that can be changed without another optimiser.
        tolerance: :math:`\epsilon`, of both equations, relative.
        newton_steps: at most so many in one iteration.
        products: at most so many Hessian products in one linear system.
    """
    return NewtonCG(optimiser, rate, tolerance, newton_steps, products)
