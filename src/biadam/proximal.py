r"""Terms added to a level's loss whose proximal map is known, in the norm of the adaptive matrix.

With a term h the step of the paper becomes :math:`\operatorname{argmin}_u h(u) + \langle w, u
\rangle + \tfrac{1}{2\gamma} \|u - x\|_A^2`, the proximal map of h at :math:`x - \gamma A^{-1} w` in
the norm of :math:`M = A / \gamma`. A convex set is the term that is zero inside and infinite
outside, so sets and terms share one interface. What both need to work over pytrees and to find a
multiplier stands at the end of this file.
"""

import abc
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from .errors import Mistake, count, number


class AbstractProximal(eqx.Module):
    """A closed convex function of pytrees, known by its proximal map."""

    @abc.abstractmethod
    def prox(self, point: PyTree, matrix: PyTree) -> PyTree:
        r"""Return :math:`\operatorname{argmin}_u h(u) + \tfrac12 \|u - p\|_M^2` at the point p.

        ``matrix`` is the diagonal of M. It has the structure of ``point``, and each of its leaves
        has the shape of the leaf of ``point`` or is a single number, for a multiple of the identity
        there; one number in place of the pytree is a multiple of the identity of the whole space.
        The result has the structure, shapes and dtypes of ``point``.
        """

    @abc.abstractmethod
    def check(self, name: str, point: PyTree) -> None:
        """Raise a `Mistake` that names the variable if its shape does not fit."""

    def parts(self, name: str, point: PyTree) -> "list[Part]":
        """The separate parts of the variable ``name``, in its order; this is all of it."""
        return [Part(name, self, point)]


class Part(NamedTuple):
    """A part of a variable, and the term or set that it has to itself."""

    name: str
    home: AbstractProximal
    point: PyTree


class L1(AbstractProximal):
    r""":math:`h(u) = \sum_i \lambda_i |u_i|`, with :math:`\lambda` the ``weight``.

    The prox is :math:`\operatorname{sign}(p_i) \max(|p_i| - \lambda_i / m_i, 0)`. The weight is a
    number for all coordinates or a pytree like the variable.
    """

    weight: PyTree

    def __init__(self, weight: PyTree):
        sizes("L1.weight", weight, least=0.0)
        self.weight = weight

    def prox(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Shrink every coordinate towards zero."""
        space = Space.of(point, matrix)
        weights = space.like(self.weight)
        return space.tree(map(_shrink, space.points, space.matrices, weights))

    def check(self, name: str, point: PyTree) -> None:
        """Refuse weights of another structure or shape than the variable's."""
        floating(name, point)
        fits("L1.weight", self.weight, name, point)


class SquaredL2(AbstractProximal):
    r""":math:`h(u) = \tfrac12 \sum_i \lambda_i u_i^2`, with :math:`\lambda` the ``weight``.

    The prox is :math:`m_i p_i / (m_i + \lambda_i)`. The weight is a number for all coordinates or a
    pytree like the variable.
    """

    weight: PyTree

    def __init__(self, weight: PyTree):
        sizes("SquaredL2.weight", weight, least=0.0)
        self.weight = weight

    def prox(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Scale every coordinate."""
        space = Space.of(point, matrix)
        weights = space.like(self.weight)
        return space.tree(
            p * (m / (m + w)) for p, m, w in zip(space.points, space.matrices, weights, strict=True)
        )

    def check(self, name: str, point: PyTree) -> None:
        """Refuse weights of another structure or shape than the variable's."""
        floating(name, point)
        fits("SquaredL2.weight", self.weight, name, point)


class ElasticNet(AbstractProximal):
    r""":math:`h(u) = \sum_i \lambda_i |u_i| + \tfrac12 \sum_i \kappa_i u_i^2`.

    :math:`\lambda` is ``l1`` and :math:`\kappa` is ``l2``, each a number or a pytree like the
    variable. The prox is :math:`\operatorname{sign}(p_i) \max(|p_i| - \lambda_i / m_i, 0) \, m_i /
    (m_i + \kappa_i)`.
    """

    l1: PyTree
    l2: PyTree

    def __init__(self, l1: PyTree, l2: PyTree):
        sizes("ElasticNet.l1", l1, least=0.0)
        sizes("ElasticNet.l2", l2, least=0.0)
        self.l1, self.l2 = l1, l2

    def prox(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Shrink every coordinate towards zero, then scale it."""
        space = Space.of(point, matrix)
        weights = zip(space.like(self.l1), space.like(self.l2), strict=True)
        return space.tree(
            _shrink(p, m, l1) * (m / (m + l2))
            for p, m, (l1, l2) in zip(space.points, space.matrices, weights, strict=True)
        )

    def check(self, name: str, point: PyTree) -> None:
        """Refuse weights of another structure or shape than the variable's."""
        floating(name, point)
        fits("ElasticNet.l1", self.l1, name, point)
        fits("ElasticNet.l2", self.l2, name, point)


class GroupL1(AbstractProximal):
    r""":math:`h(u) = \lambda \sum_g \|u_g\|_2`, the groups being the rows of every leaf.

    ``axes`` is how many leading axes of a leaf count its groups: 1 for rows, 0 for one group per
    leaf, 2 for every ``leaf[i, j]``. A leaf with no more axes than that has groups of one entry.

    A group with :math:`\|M p_g\|_2 \le \lambda` goes to zero. Any other one goes to
    :math:`m_i p_i \rho / (m_i \rho + \lambda)`, where :math:`\rho > 0`, the length of the answer,
    solves :math:`\sum_i (m_i p_i / (m_i \rho + \lambda))^2 = 1` and is found to round-off.
    """

    weight: ArrayLike
    axes: int = eqx.field(static=True)

    def __init__(self, weight: ArrayLike, axes: int = 1):
        sizes("GroupL1.weight", weight, least=0.0)
        count("GroupL1.axes", axes, least=0)
        self.weight, self.axes = weight, axes

    def prox(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Shorten every group."""
        space = Space.of(point, matrix)
        weight = space.number(self.weight)
        return space.tree(
            _shrink(p, m, weight) if p.ndim <= self.axes and p.ndim else self._groups(p, m, weight)
            for p, m in zip(space.points, space.matrices, strict=True)
        )

    def check(self, name: str, point: PyTree) -> None:
        """Refuse more than one weight."""
        floating(name, point)
        single("GroupL1.weight", self.weight)

    def _groups(self, p: Array, m: Array, weight: Array) -> Array:
        rows = p.reshape(math.prod(p.shape[: self.axes]), -1)
        scales = m.reshape(rows.shape) if m.ndim else m
        short = jax.vmap(_shorten, in_axes=(0, 0 if m.ndim else None, None))
        return short(rows, scales, weight).reshape(p.shape)


class Separate(AbstractProximal):
    """A sum of terms on separate parts of the variable.

    ``terms`` is a pytree of terms and sets whose structure is the upper part of the variable's,
    such as ``{"weights": L1(0.1), "bias": Free()}`` for a dictionary with these two entries.
    """

    terms: PyTree

    def __init__(self, terms: PyTree):
        only("Separate.terms", terms, AbstractProximal)
        self.terms = terms

    def prox(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Apply to every part its own term."""
        return jax.tree.map(
            lambda term, p, m: term.prox(p, m),
            self.terms,
            point,
            spread(matrix, point),
            is_leaf=lambda node: isinstance(node, AbstractProximal),
        )

    def check(self, name: str, point: PyTree) -> None:
        """Refuse a structure that is not the upper part of the variable's."""
        check_parts("Separate.terms", self.terms, name, point)

    def parts(self, name: str, point: PyTree) -> list[Part]:
        """Those of every term."""
        return parts_of(self.terms, name, point)


def _shrink(p: Array, m: Array, weight: Array) -> Array:
    return jnp.sign(p) * jnp.maximum(jnp.abs(p) - weight / m, 0)


def _shorten(p: Array, m: Array, weight: Array) -> Array:
    """The prox of ``weight`` times the length, on one group."""
    safe = jnp.where(weight > 0, weight, 1)
    length = secular([p], [m], lambda t, m: m * t + safe, jnp.ones_like(weight))
    return jnp.where(weight > 0, p * (m * length / (m * length + safe)), p)


# Checks of what a user gives. A tracer has no value to look at and passes.


def sizes(what: str, value: PyTree, *, above: float = -math.inf, least: float = -math.inf) -> None:
    """Refuse numbers outside their range, alone, in arrays or in a pytree of either."""
    for leaf in [None] if value is None else jax.tree.leaves(value):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
            number(what, leaf, above=above, least=least)
        elif not isinstance(leaf, jax.core.Tracer):
            entries = np.asarray(leaf)
            if not np.all((entries > above) & (entries >= least) & np.isfinite(entries)):
                bound = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
                bad = entries[~((entries > above) & (entries >= least) & np.isfinite(entries))]
                raise Mistake(f"`{what}` must be {bound} and finite, but it has {bad.flat[0]:g}.")


def single(what: str, value: ArrayLike) -> None:
    """Refuse an array where one number is wanted."""
    if jnp.ndim(value):
        raise Mistake(f"`{what}` must be one number, but it has the shape {jnp.shape(value)}.")


def floating(name: str, point: PyTree) -> None:
    """Refuse a variable without entries or with other than real floating-point ones."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(point):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            where = f"{name}{jax.tree_util.keystr(path)}"
            raise Mistake(
                f"{where} must be of a floating-point dtype, but it is {jnp.result_type(leaf)}."
            )
    if not sum(jnp.size(leaf) for leaf in jax.tree.leaves(point)):
        raise Mistake(f"{name} must have at least one entry, but it has none.")


def fits(what: str, value: PyTree, name: str, point: PyTree) -> None:
    """Refuse a pytree of numbers that can't be spread over the variable ``name``."""
    if is_number(value):
        return
    if structure_of(value) != structure_of(point):
        raise Mistake(
            f"`{what}` must be a number or a pytree like {name}, {structure_of(point)}, "
            f"but it is {structure_of(value)}."
        )
    for part, leaf in zip(jax.tree.leaves(value), jax.tree.leaves(point), strict=True):
        if jnp.ndim(part) and jnp.shape(part) != jnp.shape(leaf):
            raise Mistake(
                f"`{what}` must have the shape {jnp.shape(leaf)} of {name}, "
                f"but it has {jnp.shape(part)}."
            )


def only(what: str, parts: PyTree, kind: type[Any]) -> None:
    """Refuse a pytree with other leaves than terms, or than sets, whichever is wanted."""
    for part in jax.tree.leaves(parts, is_leaf=lambda node: isinstance(node, AbstractProximal)):
        if not isinstance(part, kind):
            wanted = "sets" if kind is not AbstractProximal else "terms and sets"
            raise Mistake(f"`{what}` must be a pytree of {wanted}, but it has {part!r} in it.")


def check_parts(what: str, parts: PyTree, name: str, point: PyTree) -> None:
    """Check every part against its subtree of the variable ``name``."""
    structure = structure_of(parts, is_leaf=lambda node: isinstance(node, AbstractProximal))
    try:
        subtrees = structure.flatten_up_to(point)
    except ValueError as error:
        raise Mistake(
            f"`{what}` must have the upper part of the structure of {name}, "
            f"{structure_of(point)}, but it has {structure}."
        ) from error
    for (where, part), subtree in zip(_named(parts, name), subtrees, strict=True):
        part.check(where, subtree)


def parts_of(parts: PyTree, name: str, point: PyTree) -> list[Part]:
    """The parts of every term or set in a pytree of them."""
    structure = structure_of(parts, is_leaf=lambda node: isinstance(node, AbstractProximal))
    subtrees = structure.flatten_up_to(point)
    named = zip(_named(parts, name), subtrees, strict=True)
    return [part for (where, home), subtree in named for part in home.parts(where, subtree)]


def _named(parts: PyTree, name: str) -> list[tuple[str, AbstractProximal]]:
    leaves = jax.tree_util.tree_leaves_with_path(
        parts, is_leaf=lambda node: isinstance(node, AbstractProximal)
    )
    return [(f"{name}{jax.tree_util.keystr(path)}", part) for path, part in leaves]


def structure_of(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The structure, as something that can be compared and printed."""
    return jax.tree.structure(tree, is_leaf=is_leaf)


def is_number(value: Any) -> bool:
    """Whether this is one number in place of a pytree."""
    return structure_of(value) == structure_of(0) and jnp.ndim(value) == 0


def spread(value: PyTree, point: PyTree) -> PyTree:
    """A number for every leaf of ``point``, or the pytree as it is."""
    return jax.tree.map(lambda _: value, point) if is_number(value) else value


# Pytrees as lists of leaves. Sums run over the leaves where they are: nothing is concatenated.


class Space(NamedTuple):
    """A point and a diagonal matrix as lists of leaves of one dtype, at least single precision.

    Leaves without entries are left out.
    """

    points: list[Array]  # the leaves of the point
    matrices: list[Array]  # of each leaf's shape, or 0-d for a multiple of the identity
    tree: Callable[..., PyTree]  # leaves to the pytree, in the point's own dtypes
    dtype: np.dtype[Any]
    full: list[bool]  # which leaves of the pytree have entries

    @classmethod
    def of(cls, point: PyTree, matrix: PyTree) -> "Space":
        """The leaves of both."""
        leaves, structure = jax.tree.flatten(point)
        dtypes = [jnp.result_type(leaf) for leaf in leaves]
        dtype = working_dtype(point)
        full = [jnp.size(leaf) > 0 for leaf in leaves]
        points = [jnp.asarray(leaf, dtype) for leaf in compress(leaves, full)]
        diagonal = jax.tree.leaves(spread(matrix, point))
        matrices = [jnp.asarray(m, dtype) for m in compress(diagonal, full)]

        def tree(new: Iterable[Array]) -> PyTree:
            news = iter(new)
            every = zip(leaves, full, dtypes, strict=True)
            parts = [jnp.asarray(next(news) if some else a, kind) for a, some, kind in every]
            return jax.tree.unflatten(structure, parts)

        return cls(points, matrices, tree, dtype, full)

    def number(self, value: ArrayLike) -> Array:
        """A number of the dtype of the leaves."""
        return jnp.asarray(value, self.dtype)

    def like(self, value: PyTree) -> list[Array]:
        """One number or one array per leaf, for a number or a pytree like the point."""
        if is_number(value):
            return [self.number(value)] * len(self.points)
        return [self.number(leaf) for leaf in compress(jax.tree.leaves(value), self.full)]


def working_dtype(point: PyTree) -> np.dtype[Any]:
    """In which a point is projected: its own, but at least single precision."""
    return np.result_type(np.float32, *(jnp.result_type(leaf) for leaf in jax.tree.leaves(point)))


def total(terms: Sequence[Array], weights: Sequence[float] | None = None) -> Array:
    """The sum of all entries of all leaves, with a weight for each leaf."""
    sums = [jnp.sum(term) for term in terms]
    if weights is not None:
        sums = [w * s for w, s in zip(weights, sums, strict=True)]
    return sum(sums[1:], sums[0])


def sample(leaves: Sequence[Array], stride: int) -> list[Array]:
    """Every ``stride``-th line of each leaf; single numbers stay."""
    return [_thin(leaf, stride) if leaf.ndim else leaf for leaf in leaves]


def _thin(leaf: Array, stride: int) -> Array:
    line = _line_of(leaf.size, stride)
    flat = leaf.reshape(-1)[: leaf.size // line * line]
    return flat.reshape(-1, line)[::stride].reshape(-1)


def _line_of(size: int, stride: int) -> int:
    """How many entries a sample takes at once: single ones if it has few, which lie apart."""
    return LINE if stride > 1 and size >= 1000 * LINE * stride else 1


LINE = 16  # entries, about what a memory hands over at once


def stride_of(leaves: Sequence[Array], wanted: int) -> int:
    """The stride that leaves about so many entries, odd so as to fall in step with fewer rows."""
    return (sum(leaf.size for leaf in leaves) // wanted) | 1


def share(leaves: Sequence[Array], stride: int) -> list[float]:
    """How many entries of each leaf one entry of its sample stands for."""
    lines = [(leaf.size, _line_of(leaf.size, stride)) for leaf in leaves]
    return [size / max(1, -(-(size // line) // stride) * line) for size, line in lines]


PASSES = 50  # evaluations of one search at most


class _Search(NamedTuple):
    """Where the search for a root stands."""

    passes: Array  # evaluations so far
    t: Array  # where to look next
    below: Array  # the largest t known to be left of the root; -1 if not even 0 is
    above: Array  # the smallest t known not to be
    last_t: Array
    last_v: Array  # the value at last_t
    stretch: Array  # how many secant steps to take at once
    done: Array


def root(
    value: Callable[[Array], Array],
    start: Array,
    slope: Array,
    scale: Array,
    *,
    positive: bool,
    bend: Array | float | None = None,
) -> Array:
    r"""The root t >= 0 of an increasing function h, or 0 where h is not negative there.

    Secant steps from ``start``, the first one along ``slope``. As long as the root is known from
    one side only, the steps double in length while they leave more than a quarter of the value;
    with both sides known, one that does not halve it is followed by one to the geometric middle.
    Where the secant leaves the bracket the search goes to 8 times or an eighth of what it knows, so
    that a root of any magnitude costs about as many passes. It ends where the value or the bracket
    is round-off, or after `PASSES` evaluations.

    ``positive`` says that h(0) < 0 without a look. With ``bend``, an upper bound of :math:`t |h''|
    / h'` near the root, the search ends, after one more step, where that step's error is round-off:
    the relative error of a secant step is half the bend times the product of those of the two
    before. The bound is trusted only after a step that left at most a tenth of the value.
    """
    tiny = float(jnp.finfo(start.dtype).eps)
    one = jnp.ones_like(start)

    def go(now: _Search) -> Array:
        return (now.passes < PASSES) & ~now.done

    def body(now: _Search) -> _Search:
        t = now.t
        v = value(t)
        below = jnp.where(v < 0, t, now.below)
        above = jnp.where(v < 0, now.above, t)
        first = now.passes == 0
        rise = jnp.where(first, slope, (v - now.last_v) / jnp.where(first, 1, t - now.last_t))
        bracketed = (below > 0) & jnp.isfinite(above)
        slow = ~first & (jnp.abs(v) > jnp.abs(now.last_v) / jnp.where(bracketed, 2, 4))
        stretch = jnp.where(slow & ~bracketed, 2 * now.stretch, one)
        secant = t - stretch * v / rise
        inside = (secant > below) & (secant < above) & (secant > 0)
        good = inside & ~(slow & bracketed)
        away = jnp.where(bracketed, jnp.sqrt(below) * jnp.sqrt(above), above / 8)
        away = jnp.where(below < 0, 0, away)
        away = jnp.where(jnp.isinf(above), 8 * t + scale, away)
        new = jnp.where(good, secant, away)
        settled = ~(jnp.abs(v) > (8 if bend is None else 2) * tiny) | ((t == 0) & (v >= 0))
        settled |= jnp.isfinite(above) & (above - below <= 4 * tiny * above)
        if bend is None:
            near = jnp.zeros_like(settled)
        else:
            near = jnp.abs(bend * (new - t) * (t - now.last_t)) <= 12 * tiny * new * new
            near &= good & ~first & (jnp.abs(v) <= jnp.abs(now.last_v) / 10) & ~settled
        t = jnp.where(settled, t, new)
        return _Search(now.passes + 1, t, below, above, now.t, v, stretch, settled | near)

    begin = _Search(
        passes=jnp.zeros((), jnp.int32),
        t=start,
        below=0 * one if positive else -one,
        above=jnp.inf * one,
        last_t=start,
        last_v=jnp.inf * one,
        stretch=one,
        done=jnp.zeros((), bool),
    )
    return jax.lax.while_loop(go, body, begin).t


SAMPLE = 32768  # coordinates that a first guess looks at: a pass over these costs next to nothing


def secular(
    points: Sequence[Array],
    matrices: Sequence[Array],
    divisor: Callable[[Array, Array], Array],
    length: Array,
) -> Array:
    r"""The t >= 0 with :math:`\|u(t)\|_2 = r`, or 0 if it is already shorter there.

    :math:`u_i(t) = m_i p_i / d(t, m_i)` with a positive ``divisor`` d that is linear and increasing
    in t, and r is ``length``. One over the length is concave in t and nearly linear, which is what
    the secant steps run on: its bend is at most 3, and a sample estimates how far below that it
    is. So two looks at all coordinates mostly do in single precision. The result is differentiated
    implicitly.
    """
    inverse = 1 / length

    def squares(t: Array, ps: Sequence[Array], ms: Sequence[Array]) -> list[Array]:
        # What t changes comes first: the compiler keeps an array of what it does not change.
        return [(p * (m / divisor(t, m)) * inverse) ** 2 for p, m in zip(ps, ms, strict=True)]

    def solve(_: Callable[[Array], Array], start: Array) -> Array:
        stride = stride_of(points, SAMPLE)
        some, few = sample(points, stride), sample(matrices, stride)
        shares = share(points, stride)
        scale = total([jnp.mean(m) for m in few])

        def shape(t: Array) -> Array:
            return jax.lax.rsqrt(total(squares(t, some, few), shares)) - 1

        def whole(t: Array) -> Array:
            return jax.lax.rsqrt(total(squares(t, points, matrices))) - 1

        t = root(shape, start, slope_of(shape, start), scale, positive=False, bend=MOST_BENT)
        if stride == 1:
            return t
        slope = slope_of(shape, t)
        bent = t * jnp.abs(slope_of(lambda t: slope_of(shape, t), t)) / slope
        known = (t > 0) & jnp.isfinite(bent)
        bend = jnp.where(known, jnp.clip(2 * bent, LEAST_BENT, MOST_BENT), MOST_BENT)
        return root(whole, t, slope, scale, positive=False, bend=bend)

    def excess(t: Array) -> Array:
        return total(squares(t, points, matrices)) - 1

    def tangent_solve(linear: Callable[[Array], Array], rhs: Array) -> Array:
        slope = linear(jnp.ones_like(rhs))
        return rhs / jnp.where(slope == 0, -1, slope)

    t = jax.lax.custom_root(excess, jnp.zeros_like(length), solve, tangent_solve)
    return jnp.where(t > 0, t, 0)  # where it is short enough, no move of the data moves t


MOST_BENT, LEAST_BENT = 3.0, 0.1  # of a bend: what mathematics allows, what a sample may claim


def slope_of(function: Callable[[Array], Array], t: Array) -> Array:
    """The derivative of a function of one number."""
    slope: Array = jax.jvp(function, (t,), (jnp.ones_like(t),))[1]
    return slope
