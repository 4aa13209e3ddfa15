r"""The adaptive matrices: A_t of the outer level, B_t of the inner one.

A metric folds a driving signal into its memory and reads a positive diagonal matrix from it. What
drives it is a function of what one step sees at a level: the fresh field h, the direction d that
averages it (w or v), and the partial gradient p (f_x; for the inner level h itself).

The paper prints f_x as the signal of A. Where the outer loss does not see x, as in hyper-cleaning,
that is zero and A = rho I; so the default here is the fresh hypergradient.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax.tree
from jaxtyping import Array, Bool, PyTree

from . import errors, tree

Signal = Callable[[PyTree, PyTree, PyTree], PyTree]


def fresh(h: PyTree, d: PyTree, p: PyTree) -> PyTree:
    """The field at this sample: the raw hypergradient, or g_y."""
    return h


def momentum(h: PyTree, d: PyTree, p: PyTree) -> PyTree:
    """The direction: w_t or v_t, as the authors' code does."""
    return d


def partial(h: PyTree, d: PyTree, p: PyTree) -> PyTree:
    """f_x alone, the letter of Algorithm 1."""
    return p


def deviation(h: PyTree, d: PyTree, p: PyTree) -> PyTree:
    """How far the fresh field is from the direction, as AdaBelief has it."""
    return tree.add_scale(h, -1.0, d)


def partial_deviation(h: PyTree, d: PyTree, p: PyTree) -> PyTree:
    """f_x minus w_t, the letter of equation (10)."""
    return tree.add_scale(p, -1.0, d)


class AbstractMetric(eqx.Module):
    """A rule for a positive diagonal matrix."""

    @abc.abstractmethod
    def init(self, like: PyTree) -> Any:
        """The memory before anything was seen."""

    @abc.abstractmethod
    def update(self, memory: Any, h: PyTree, d: PyTree, p: PyTree) -> Any:
        """Fold in what one step sees."""

    @abc.abstractmethod
    def matrix(self, memory: Any, like: PyTree) -> PyTree:
        """The diagonal, a pytree of arrays like ``like`` or of single numbers."""

    @abc.abstractmethod
    def idle(self, memory: Any) -> Bool[Array, ""]:
        """Whether it is driven by f_x alone and that was always zero, so that nothing adapts."""


class Identity(AbstractMetric):
    """No geometry: the matrix is I."""

    def init(self, like: PyTree) -> None:
        """Nothing to remember."""

    def update(self, memory: None, h: PyTree, d: PyTree, p: PyTree) -> None:
        """Nothing to remember."""

    def matrix(self, memory: None, like: PyTree) -> PyTree:
        """Ones."""
        return jax.tree.map(lambda a: jnp.ones((), a.dtype), like)

    def idle(self, memory: None) -> Bool[Array, ""]:
        """It never means to adapt."""
        return jnp.array(False)


class Moment(NamedTuple):
    """A running mean and the number of terms in it."""

    mean: PyTree
    seen: Array


class Adam(AbstractMetric):
    r"""``a <- tau a + (1 - tau) signal^2``, ``A = diag(sqrt(a) + rho)``.

    Args:
        decay: tau.
        floor: rho, which keeps A >= rho I.
        signal: what drives it; `fresh`, `momentum`, `partial`, `deviation` (AdaBelief), or any
            function of (h, d, p).
        inside: put the floor inside the root, ``sqrt(a + rho)``, as the authors' code does.
        corrected: divide a by ``1 - tau^t``, which undoes the start at zero; without it the first
            steps are longer by up to ``1 / sqrt(1 - tau)``.
    """

    decay: float = 0.99
    floor: float = 1e-3
    signal: Signal = eqx.field(static=True, default=fresh)
    inside: bool = eqx.field(static=True, default=False)
    corrected: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        _check_decay("Adam", self.decay, self.floor)

    def init(self, like: PyTree) -> Moment:
        """A mean of zero."""
        return Moment(jax.tree.map(jnp.zeros_like, like), jnp.zeros((), jnp.int32))

    def update(self, memory: Moment, h: PyTree, d: PyTree, p: PyTree) -> Moment:
        """Average the squares."""
        squares = jax.tree.map(jnp.square, self.signal(h, d, p))
        return Moment(tree.mix(self.decay, memory.mean, squares), memory.seen + 1)

    def matrix(self, memory: Moment, like: PyTree) -> PyTree:
        """The root of the mean square, above the floor."""
        mean = _corrected(memory, self.decay) if self.corrected else memory.mean
        return jax.tree.map(lambda a: _root(a, self.floor, self.inside), mean)

    def idle(self, memory: Moment) -> Bool[Array, ""]:
        """Whether f_x was always zero."""
        return jnp.array(self.signal is partial) & _all_zero(memory.mean)


def adabelief(decay: float = 0.99, floor: float = 1e-3, corrected: bool = False) -> Adam:
    """Equation (10) with the hypergradient for f_x: ``a <- tau a + (1 - tau) (h - w)^2``."""
    return Adam(decay, floor, signal=deviation, corrected=corrected)


class Norm(AbstractMetric):
    r"""``b <- tau b + (1 - tau) |signal|``, ``B = (b + rho) I``: the paper's matrix for y.

    Args:
        decay: tau.
        floor: rho.
        signal: what drives it.
        start: b_0, which must be positive where the first signal is zero (equation 11).
        squared: average the squared norm and take the root.
        corrected: divide b by ``1 - tau^t`` (b_0 then plays no part but in `start`'s own weight).
    """

    decay: float = 0.99
    floor: float = 1e-3
    signal: Signal = eqx.field(static=True, default=fresh)
    start: float = 0.0
    squared: bool = eqx.field(static=True, default=False)
    corrected: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        _check_decay("Norm", self.decay, self.floor)
        errors.number("Norm.start", self.start, least=0)

    def init(self, like: PyTree) -> Moment:
        """b_0."""
        dtype = jnp.result_type(*jax.tree.leaves(like))
        return Moment(jnp.asarray(self.start, dtype), jnp.zeros((), jnp.int32))

    def update(self, memory: Moment, h: PyTree, d: PyTree, p: PyTree) -> Moment:
        """Average the norms."""
        size = optax.tree.norm(self.signal(h, d, p), squared=self.squared)
        size = jnp.asarray(size, memory.mean.dtype)
        return Moment(tree.mix(self.decay, memory.mean, size), memory.seen + 1)

    def matrix(self, memory: Moment, like: PyTree) -> PyTree:
        """One number for all coordinates."""
        b = _corrected(memory, self.decay) if self.corrected else memory.mean
        b = jnp.sqrt(b) if self.squared else b
        return jax.tree.map(lambda a: (b + jnp.asarray(self.floor, b.dtype)).astype(a.dtype), like)

    def idle(self, memory: Moment) -> Bool[Array, ""]:
        """Whether f_x was always zero."""
        return jnp.array(self.signal is partial) & _all_zero(memory.mean)


def norm_belief(decay: float = 0.99, floor: float = 1e-3, start: float = 1.0) -> Norm:
    """Equation (11): ``b <- tau b + (1 - tau) |g_y - v|`` from ``b_0 > 0``."""
    return Norm(decay, floor, signal=deviation, start=start)


def _check_decay(name: str, decay: Any, floor: Any) -> None:
    errors.number(f"{name}.decay", decay, least=0, most=1)
    errors.number(f"{name}.floor", floor, above=0)


def _root(a: Array, floor: Any, inside: bool) -> Array:
    rho = jnp.asarray(floor, a.dtype)
    return jnp.sqrt(a + rho) if inside else jnp.sqrt(a) + rho


def _corrected(memory: Moment, decay: Any) -> PyTree:
    def one(a: Array) -> Array:
        tau = jnp.asarray(decay, a.dtype)
        return a / (1 - tau ** memory.seen.astype(a.dtype))

    return jax.tree.map(one, memory.mean)


def _all_zero(values: PyTree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(a == 0) for a in jax.tree.leaves(values)]))
