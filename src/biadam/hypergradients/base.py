"""Stochastic vector fields: what the noise-free method follows, at a point, with a sample."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .. import tree
from ..problem import Calls, Levels, Problem, Sample
from ..sets import AbstractSet, Free


class Field(NamedTuple):
    """What a hypergradient sees at a point."""

    value: Levels  # of x the hypergradient, of y the inner gradient, of s the residual H s - f_y
    partial: PyTree  # f_x, the part of the hypergradient that is the paper's literal signal for A
    residual: Array  # |H s - f_y| / |f_y| on the sample, NaN where the estimator does not know it
    calls: Calls


class AbstractHypergradient(eqx.Module):
    """An estimator of ``f_x - J H^{-1} f_y`` (and of ``g_y``), pure in (point, sample).

    That purity is all that variance reduction asks for: every draw comes from the sample.
    """

    @property
    @abc.abstractmethod
    def batches(self) -> int:
        """How many inner minibatches one evaluation consumes."""

    @abc.abstractmethod
    def __call__(self, problem: Problem, point: Levels, sample: Sample) -> Field:
        """The field at ``point``."""

    def lift(self, x: PyTree, y: PyTree) -> Levels:
        """The starting point of the method, given the user's."""
        return Levels(x, y)

    @property
    def system(self) -> tuple[Any, AbstractSet]:
        """Step size and feasible set of the level s, for the estimators that track it."""
        return 0.0, Free()


UNKNOWN = float("nan")


def implicit(
    problem: Problem,
    point: Levels,
    sample: Sample,
    *,
    cross_batch: PyTree,
    outer: tuple[PyTree, PyTree],
    s: PyTree,
    hessian_products: Any,
    residual: Any = UNKNOWN,
) -> Field:
    """The field whose hypergradient is ``f_x - J s`` for an approximate solution s of H s = f_y.

    The inner gradient is taken on the sample's first inner minibatch, that of the paper's v.
    """
    x, y, _ = point
    f_x, _ = outer
    cross = problem.cross_product(x, y, cross_batch, s)
    inner = problem.inner_gradient(x, y, sample.batch(0))
    return Field(
        Levels(tree.add_scale(f_x, -1.0, cross), inner),
        f_x,
        jnp.asarray(residual, jnp.float32),
        Calls(1, 1, hessian_products, 1),
    )
