r"""FSLA: inner level, linear system and outer level take a step each, in turn.

.. math::
    y_{k+1} &= y_k - \beta g_y(x_k, y_k; \zeta_1), \\
    s_{k+1} &= s_k - \rho (H(x_k, y_{k+1}; \zeta_2) s_k - f_y(x_k, y_{k+1}; \xi)), \\
    h(x, y, s) &= f_x(x, y; \xi) - J(x, y; \zeta_3) s, \\
    w_{k+1} &= h(x_k, y_{k+1}, s_{k+1}) + (1 - \eta_k) (w_k - h(x_{k-1}, y_k, s_k)), \\
    x_{k+1} &= x_k - \alpha w_{k+1}.

With all steps and eta of the order :math:`k^{-1/2}` it needs :math:`O(\epsilon^{-4})` samples. The
form without outer momentum, :math:`w = h`, is what the authors' experiments run.

Reference: J. Li, B. Gu, H. Huang, A Fully Single Loop Algorithm for Bilevel Optimization without
Hessian Inverse, 2021, arXiv:2112.04660.

Departures:
    * One outer minibatch xi serves f_y and f_x, which are then evaluated together. It biases
      nothing: s enters h only by J, on a minibatch of its own, and f_x does not see s.
    * w starts with the fresh hypergradient at the start, and s with zero.
    * The theory has no sets and no metrics. The steps of x and y are proximal ones in the norms of
      the metrics' matrices, which are the paper's without; that of s is plain.
"""

import jax
import jax.numpy as jnp
import optax.tree
from jaxtyping import Array, PyTree

from .. import schedules, tree
from ..alternating import AbstractAlternating, Inner
from ..estimators import AbstractEstimator, MovingAverage, Storm
from ..hypergradients import Field
from ..metrics import AbstractMetric, Identity
from ..problem import Calls, Levels, Problem, Sample, View
from ..schedules import Number, PowerDecay
from .about import About, method

ABOUT = About("Li, Gu, Huang, FSLA", 2021, "2112.04660", "single", "O(eps^-4)", (True, True))


class Fsla(AbstractAlternating):
    """The alternating method on a tracked linear system; minibatches zeta_1, zeta_2, zeta_3."""

    step_size: tuple[Number, Number]
    system_step: Number
    rate: Number
    estimator: AbstractEstimator
    outer_metric: AbstractMetric
    inner_metric: AbstractMetric
    batches = 3

    def __check_init__(self) -> None:
        schedules.check_number("system_step", self.system_step)

    def lift(self, x: PyTree, y: PyTree) -> Levels:
        """``(x, y, 0)``."""
        return Levels(x, y, jax.tree.map(jnp.zeros_like, y))

    def follow(
        self, problem: Problem, view: View, point: Levels, sample: Sample, step: Array
    ) -> Inner:
        """One step of s."""
        x, y, s = point
        seen, batches = view.problem, view.sample
        f_x, f_y = seen.outer_gradients(view.x, y, batches.outer)
        product = seen.hessian_product(view.x, y, batches.batch(1), s)
        gap = tree.add_scale(product, -1.0, f_y)
        here = Levels(x, y, tree.add_scale(s, -schedules.at(self.system_step, step), gap))
        residual = tree.ratio(optax.tree.norm(gap), optax.tree.norm(f_y))

        def field(z: Levels) -> Field:
            # The estimator's new point is `here` itself, where f_x came along with f_y.
            known = z is here
            at = view if known else problem.view(z.x, sample)
            partial = f_x if known else at.problem.outer_gradients(at.x, z.y, at.sample.outer)[0]
            cross = at.problem.cross_product(at.x, z.y, at.sample.batch(2), z.s)
            w = at.pull(tree.add_scale(partial, -1.0, cross))
            calls = Calls(0 if known else 1, 0, 0, 1)
            return Field(Levels(w, None), at.pull(partial), residual, calls)

        return Inner(here, field, Calls(1, 0, 1, 0), residual)


@method(ABOUT)
def fsla(
    step_size: tuple[Number, Number] = (
        PowerDecay(scale=0.2, offset=100.0, power=1 / 2),
        PowerDecay(scale=5.0, offset=100.0, power=1 / 2),
    ),
    *,
    system_step: Number = PowerDecay(scale=5.0, offset=100.0, power=1 / 2),
    rate: Number = PowerDecay(scale=5.0, offset=100.0, power=1 / 2),
    estimator: AbstractEstimator = Storm(),
    outer_metric: AbstractMetric = Identity(),
    inner_metric: AbstractMetric = Identity(),
) -> Fsla:
    r"""Build FSLA.

    Args:
        step_size: :math:`(\alpha, \beta)`, numbers or schedules.
        system_step: :math:`\rho`, of the linear system.
        rate: :math:`\eta_k`, the weight of the fresh hypergradient.
        estimator: how w follows the hypergradient.
        outer_metric: the geometry of x.
        inner_metric: the geometry of y.
    """
    return Fsla(
        step_size=step_size,
        system_step=system_step,
        rate=rate,
        estimator=estimator,
        outer_metric=outer_metric,
        inner_metric=inner_metric,
    )


@method(ABOUT)
def fsla_plain(
    step_size: tuple[Number, Number] = (
        PowerDecay(scale=0.2, offset=100.0, power=1 / 2),
        PowerDecay(scale=5.0, offset=100.0, power=1 / 2),
    ),
    *,
    system_step: Number = PowerDecay(scale=5.0, offset=100.0, power=1 / 2),
    outer_metric: AbstractMetric = Identity(),
    inner_metric: AbstractMetric = Identity(),
) -> Fsla:
    """FSLA without outer momentum: x follows h itself, and no old point is looked at."""
    return Fsla(
        step_size=step_size,
        system_step=system_step,
        rate=1.0,
        estimator=MovingAverage(),
        outer_metric=outer_metric,
        inner_metric=inner_metric,
    )
