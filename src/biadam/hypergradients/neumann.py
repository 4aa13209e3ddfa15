r"""The inverse Hessian by a truncated Neumann series, :math:`H^{-1} \approx \vartheta \sum_q
(I - \vartheta H)^q` for a step :math:`0 < \vartheta \le 1 / L_g`.

Both forms share their mean: `NeumannSum` with Q = K - 1 equals the expectation of `NeumannRandom`
over its random length. The bias of either is :math:`H^{-1} (I - \vartheta H)^K`, of norm at most
:math:`(1 - \vartheta \mu)^K / \mu`, and stays however long one optimises.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import optax.tree
from jax import lax
from jaxtyping import PyTree

from .. import errors, tree
from ..problem import Levels, Problem, Sample
from .base import AbstractImplicit, Solved


def _shrink(
    problem: Problem, point: Levels, sample: Sample, step_size: Any
) -> Callable[[Any, PyTree], PyTree]:
    """``r <- (I - step_size H(zeta^i)) r``; zeta^i is the sample's inner minibatch i + 1."""
    x, y, _ = point

    def shrink(i: Any, r: PyTree) -> PyTree:
        return tree.add_scale(r, -step_size, problem.hessian_product(x, y, sample.batch(i + 1), r))

    return shrink


class NeumannSum(AbstractImplicit):
    r"""The whole sum, equation (5): :math:`s = \vartheta \sum_{q=0}^{Q} \prod (I - \vartheta
    H(\zeta^i)) f_y`, Q products that share their right-most factors.

    Consumes the minibatches zeta (for g_y), zeta^0 (for J) and zeta^1 .. zeta^Q, of which the
    highest is applied first.

    The residual that it tells is that before the last term, the size of the last power over that of
    f_y: one more product would be the price of its own.
    """

    terms: int = eqx.field(static=True, default=3)  # Q
    step_size: float = 0.5  # vartheta

    def __check_init__(self) -> None:
        errors.count("NeumannSum.terms", self.terms, least=0)
        errors.number("NeumannSum.step_size", self.step_size, above=0)

    @property
    def batches(self) -> int:
        """zeta, zeta^0 and zeta^1 .. zeta^Q."""
        return self.terms + 2

    def solve(self, problem: Problem, point: Levels, sample: Sample, f_y: PyTree) -> Solved:
        """Sum the powers, each from the one before."""
        shrink = _shrink(problem, point, sample, self.step_size)

        def term(j: Any, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            power = shrink(self.terms - j, carry[0])
            return power, tree.add_scale(carry[1], 1.0, power)

        power, total = lax.fori_loop(0, self.terms, term, (f_y, f_y))
        left = tree.ratio(optax.tree.norm(power), optax.tree.norm(f_y))
        return Solved(tree.scale(self.step_size, total), self.terms, left)


class NeumannRandom(AbstractImplicit):
    r"""One random term, equation (13): :math:`s = K \vartheta \prod_{i=1}^{k} (I - \vartheta
    H(\zeta^i)) f_y` with k uniform on {0, .., K - 1}; only k products are computed.

    The length k is drawn from the sample's key, so that two evaluations with one sample share it.
    One power of a random length says nothing of what the series leaves, so it tells no residual.
    Consumes the minibatches zeta (for g_y), zeta^0 (for J) and zeta^1 .. zeta^{K-1}.
    """

    length: int = eqx.field(static=True, default=3)  # K
    step_size: float = 0.5  # vartheta, 1 / L_g in the paper's theory

    def __check_init__(self) -> None:
        errors.count("NeumannRandom.length", self.length)
        errors.number("NeumannRandom.step_size", self.step_size, above=0)

    @property
    def batches(self) -> int:
        """zeta, zeta^0 and zeta^1 .. zeta^{K-1}."""
        return self.length + 1

    def solve(self, problem: Problem, point: Levels, sample: Sample, f_y: PyTree) -> Solved:
        """One power of random length, scaled."""
        shrink = _shrink(problem, point, sample, self.step_size)
        k = jr.randint(sample.key, (), 0, self.length)
        power = lax.fori_loop(1, k + 1, shrink, f_y)
        return Solved(tree.scale(self.length * self.step_size, power), k.astype(jnp.int32))
