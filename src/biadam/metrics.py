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
import numpy as np
import optax
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
        _check_decay("Adam", self.decay, self.floor, self.corrected)
        _check_signal("Adam", self.signal)

    def init(self, like: PyTree) -> Moment:
        """A mean of zero."""
        return Moment(jax.tree.map(jnp.zeros_like, like), jnp.zeros((), jnp.int32))

    def update(self, memory: Moment, h: PyTree, d: PyTree, p: PyTree) -> Moment:
        """Average the squares."""
        squares = _squares(self.signal(h, d, p))
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


class AdaGrad(AbstractMetric):
    r"""``a <- a + signal^2``, ``A = diag(sqrt(a) + rho)``: steps shrink with all that was seen.

    Args:
        floor: rho.
        signal: what drives it.
    """

    floor: float = 1e-3
    signal: Signal = eqx.field(static=True, default=fresh)

    def __check_init__(self) -> None:
        errors.number("AdaGrad.floor", self.floor, above=0)
        _check_signal("AdaGrad", self.signal)

    def init(self, like: PyTree) -> PyTree:
        """A sum of zero."""
        return jax.tree.map(jnp.zeros_like, like)

    def update(self, memory: PyTree, h: PyTree, d: PyTree, p: PyTree) -> PyTree:
        """Add the squares."""
        return tree.add_scale(memory, 1.0, _squares(self.signal(h, d, p)))

    def matrix(self, memory: PyTree, like: PyTree) -> PyTree:
        """The root of the sum, above the floor."""
        return jax.tree.map(lambda a: _root(a, self.floor, False), memory)

    def idle(self, memory: PyTree) -> Bool[Array, ""]:
        """Whether f_x was always zero."""
        return jnp.array(self.signal is partial) & _all_zero(memory)


class Largest(AbstractMetric):
    """The largest that each entry of another metric's matrix has been, so that no step grows."""

    of: AbstractMetric

    def __check_init__(self) -> None:
        errors.part("Largest.of", self.of, AbstractMetric, "metrics")

    def init(self, like: PyTree) -> tuple[Any, PyTree]:
        """The other's memory, and nothing so far."""
        memory = self.of.init(like)
        shapes = jax.eval_shape(self.of.matrix, memory, like)
        return memory, jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)

    def update(self, memory: tuple[Any, PyTree], h: PyTree, d: PyTree, p: PyTree) -> Any:
        """Let the other learn, and compare."""
        inner = self.of.update(memory[0], h, d, p)
        return inner, jax.tree.map(jnp.maximum, memory[1], self.of.matrix(inner, h))

    def matrix(self, memory: tuple[Any, PyTree], like: PyTree) -> PyTree:
        """The largest."""
        return memory[1]

    def idle(self, memory: tuple[Any, PyTree]) -> Bool[Array, ""]:
        """Whether the other is."""
        return self.of.idle(memory[0])


def amsgrad(
    decay: float = 0.99, floor: float = 1e-3, signal: Signal = fresh, corrected: bool = False
) -> Largest:
    """Adam whose mean square never falls: ``A = diag(sqrt(max(a_1, .., a_t)) + rho)``."""
    return Largest(Adam(decay, floor, signal, corrected=corrected))


class Norm(AbstractMetric):
    r"""``b <- tau b + (1 - tau) |signal|``, ``B = (b + rho) I``: the paper's matrix for y.

    Args:
        decay: tau.
        floor: rho.
        signal: what drives it.
        start: b_0, which must be positive where the first signal is zero (equation 11).
        squared: average the squared norm and take the root.
        corrected: take ``tau^t b_0`` away from b and divide by ``1 - tau^t``: the mean of the norms
            alone, whatever b_0 is.
    """

    decay: float = 0.99
    floor: float = 1e-3
    signal: Signal = eqx.field(static=True, default=fresh)
    start: float = 0.0
    squared: bool = eqx.field(static=True, default=False)
    corrected: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        _check_decay("Norm", self.decay, self.floor, self.corrected)
        _check_signal("Norm", self.signal)
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
        b = self._unbiased(memory) if self.corrected else memory.mean
        b = jnp.sqrt(b) if self.squared else b
        return jax.tree.map(lambda a: (b + jnp.asarray(self.floor, b.dtype)).astype(a.dtype), like)

    def idle(self, memory: Moment) -> Bool[Array, ""]:
        """Whether f_x was always zero."""
        return jnp.array(self.signal is partial) & _all_zero(memory.mean)

    def _unbiased(self, memory: Moment) -> Array:
        b = memory.mean
        kept = jnp.asarray(self.decay, b.dtype) ** memory.seen.astype(b.dtype)
        return jnp.maximum(b - kept * jnp.asarray(self.start, b.dtype), 0) / (1 - kept)


def norm_belief(decay: float = 0.99, floor: float = 1e-3, start: float = 1.0) -> Norm:
    """Equation (11): ``b <- tau b + (1 - tau) |g_y - v|`` from ``b_0 > 0``."""
    return Norm(decay, floor, signal=deviation, start=start)


class AdaGradNorm(AbstractMetric):
    r"""``b^2 <- b^2 + |signal|^2``, ``B = (b + rho) I``.

    Args:
        start: b_0, which bounds the first steps.
        floor: rho.
        signal: what drives it.
    """

    start: float = 1.0
    floor: float = 1e-3
    signal: Signal = eqx.field(static=True, default=fresh)

    def __check_init__(self) -> None:
        errors.number("AdaGradNorm.start", self.start, above=0)
        errors.number("AdaGradNorm.floor", self.floor, above=0)
        _check_signal("AdaGradNorm", self.signal)

    def init(self, like: PyTree) -> Array:
        """b_0^2."""
        return jnp.square(jnp.asarray(self.start, jnp.result_type(*jax.tree.leaves(like))))

    def update(self, memory: Array, h: PyTree, d: PyTree, p: PyTree) -> Array:
        """Add the squared norm."""
        size = optax.tree.norm(self.signal(h, d, p), squared=True)
        return memory + jnp.asarray(size, memory.dtype)

    def matrix(self, memory: Array, like: PyTree) -> PyTree:
        """One number for all coordinates."""
        return jax.tree.map(lambda a: _root(memory, self.floor, False).astype(a.dtype), like)

    def idle(self, memory: Array) -> Bool[Array, ""]:
        """Whether f_x was always zero."""
        return jnp.array(self.signal is partial) & (memory == self.init(memory))


class Scaling(NamedTuple):
    """What a transformation of optax remembers, and the matrix that it last divided by."""

    state: Any
    matrix: PyTree
    still: Array  # whether all signals so far were zero


class FromOptax(AbstractMetric):
    r"""The matrix that a transformation of optax divides by: ``A = max(signal / update, rho)``.

    That is a matrix where the transformation only rescales: every coordinate of the update must be
    a positive multiple of that of the signal, whatever came before. So for `optax.scale_by_rms`,
    `scale_by_rss`, `scale_by_adam`, `scale_by_yogi` and their kin with ``b1=0``, or
    `clip_by_global_norm`. What averages signals (momentum), turns them around (a negative learning
    rate) or asks for the variable itself is refused when the metric is made.

    Where the signal is zero the quotient is that of a signal so small that its square vanishes;
    where even that has an update of zero, as before `scale_by_rss` from 0 has seen anything, it is
    the floor.
    The numbers of the transformation are part of the program, so that another one is compiled anew.

    Args:
        transformation: of optax.
        floor: rho, below which no entry of the matrix falls.
        signal: what drives it.
    """

    transformation: optax.GradientTransformation = eqx.field(static=True)
    floor: float = 1e-3
    signal: Signal = eqx.field(static=True, default=fresh)

    def __check_init__(self) -> None:
        errors.number("FromOptax.floor", self.floor, above=0)
        _check_signal("FromOptax", self.signal)
        if not isinstance(self.transformation, optax.GradientTransformation):
            raise errors.Mistake(
                f"`FromOptax.transformation` must be a transformation of optax such as "
                f"optax.scale_by_rms(), but it is {self.transformation!r}."
            )
        _check_rescales(self.transformation)

    def init(self, like: PyTree) -> Scaling:
        """The transformation's own start."""
        with jax.numpy_dtype_promotion("standard"):  # optax mixes types
            state = self.transformation.init(like)
        return Scaling(state, jax.tree.map(jnp.ones_like, like), jnp.array(True))

    def update(self, memory: Scaling, h: PyTree, d: PyTree, p: PyTree) -> Scaling:
        """Let the transformation see the signal, and take the quotient."""
        signal = self.signal(h, d, p)
        state, matrix = _quotient(self.transformation, memory.state, signal)
        return Scaling(state, matrix, memory.still & _all_zero(signal))

    def matrix(self, memory: Scaling, like: PyTree) -> PyTree:
        """The last quotient, above the floor."""
        return jax.tree.map(lambda a: jnp.maximum(a, jnp.asarray(self.floor, a.dtype)), memory[1])

    def idle(self, memory: Scaling) -> Bool[Array, ""]:
        """Whether f_x was always zero."""
        return jnp.array(self.signal is partial) & memory.still


def _quotient(
    transformation: optax.GradientTransformation, state: Any, signal: PyTree
) -> tuple[Any, PyTree]:
    """The next state, and signal over update; the smallest signals are made just nonzero."""

    def small(h: Array) -> Array:  # its square underflows, its quotient not
        return jnp.asarray(float(jnp.finfo(h.dtype).tiny) ** 0.75, h.dtype)

    def over(h: Array, u: Array) -> Array:
        quotient = h / u.astype(h.dtype)
        return jnp.where((h == small(h)) & jnp.isinf(quotient), h, quotient)

    signal = jax.tree.map(lambda h: jnp.where(jnp.abs(h) < small(h), small(h), h), signal)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types
        update, state = transformation.update(signal, state)
    return state, jax.tree.map(over, signal, update)


def _check_rescales(transformation: optax.GradientTransformation) -> None:
    """Refuse a transformation whose quotient is not positive, tried on signals that turn around."""
    words = (
        "must return positive multiples of what it is given, as optax.scale_by_rms() does, but "
        "{}; leave out its momentum (b1=0), its learning rate, and what needs the variable."
    )
    # Huge before tiny, so that any memory of the one would drown the other.
    sizes = (1e4, -1e-2, 1e4, 1e-2, -1.0, -1e-4)
    row = np.asarray((1.0, -0.3, 0.0, 2.0), np.float32)
    with jax.ensure_compile_time_eval():
        try:
            signal = jnp.asarray(row)
            state = transformation.init(signal)
            for size in sizes:
                state, matrix = _quotient(transformation, state, jnp.float32(size) * signal)
                positive = bool(jnp.all((matrix > 0) & jnp.isfinite(matrix)))
                if not positive:
                    raise errors.Mistake(
                        "`FromOptax.transformation` " + words.format("this one does not")
                    )
        except errors.Mistake:
            raise
        except Exception as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise errors.Mistake(
                "`FromOptax.transformation` " + words.format(f"it fails on them: {said}")
            ) from error


def _squares(signal: PyTree) -> PyTree:
    return jax.tree.map(jnp.square, signal)


def _check_decay(name: str, decay: Any, floor: Any, corrected: bool) -> None:
    errors.number(f"{name}.decay", decay, least=0, most=1)
    if corrected and isinstance(decay, int | float) and decay == 1:
        raise errors.Mistake(
            f"`{name}.decay` must be below 1 to be corrected, but it is {decay!r}, under which "
            f"nothing is learned; lower it, or leave `corrected` out."
        )
    errors.number(f"{name}.floor", floor, above=0)


def _check_signal(name: str, signal: Any) -> None:
    if isinstance(signal, type) or not callable(signal):
        raise errors.Mistake(
            f"`{name}.signal` must be fresh, momentum, partial, deviation or partial_deviation of "
            f"biadam.metrics, or another function of (h, d, p), but it is {signal!r}."
        )


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
