r"""Where the variables live: convex sets, projected onto in the norm of the adaptive matrix.

The step of the paper, :math:`\operatorname{argmin}_{u \in X} \langle w, u \rangle +
\tfrac{1}{2\gamma} \|u - x\|_A^2`, is the projection of :math:`x - \gamma A^{-1} w` onto X in the
norm of A. The Euclidean projection of the same point is another step, and a wrong one.

Below, p is the point, m the diagonal of the matrix and u the projection. A set of vectors takes all
leaves of a pytree together as one vector; `PerLeaf` and `Product` take them apart. Numbers of a set
are leaves, so that changing one never recompiles. All of it runs on the device in fixed memory,
under ``jit`` and ``vmap``, and has the derivatives of the projection wherever that is
differentiable.

Tolerances: multipliers are found to round-off. A member is feasible to a few units of round-off: in
single precision below 1e-6 of the radius, the total or the size of the terms of an equation, for
points up to 1e6 radii or totals away, beyond which the round-off of the point exceeds the set.
Large variables are searched from a first guess on a sample, so that a few passes over all
coordinates are enough; no search takes more than 50.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax.projections
import optax.tree
from jax.lax import stop_gradient
from jax.scipy.linalg import cho_solve
from jax.scipy.sparse.linalg import bicgstab
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from . import errors
from .errors import Mistake
from .proximal import (
    PASSES,
    AbstractProximal,
    Part,
    Space,
    check_parts,
    fits,
    floating,
    is_number,
    only,
    parts_of,
    root,
    sample,
    secular,
    share,
    single,
    sizes,
    spread,
    stride_of,
    structure_of,
    total,
    working_dtype,
)


class AbstractSet(AbstractProximal):
    """A closed convex set of pytrees."""

    def prox(self, point: PyTree, matrix: PyTree) -> PyTree:
        """The projection: the indicator function of a set has no scale."""
        return self.project(point, matrix)

    @abc.abstractmethod
    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Return the member ``u`` of least ``(u - point)' diag(matrix) (u - point)``.

        ``matrix`` has the structure of ``point``; each of its leaves has the shape of the leaf of
        ``point`` or is a single number, for a multiple of the identity. A single number in place of
        the pytree is a multiple of the identity of the whole space.
        """

    @abc.abstractmethod
    def check(self, name: str, point: PyTree) -> None:
        """Raise a `Mistake` that names the variable if its shape does not fit the set."""


class Free(AbstractSet):
    """The whole space."""

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Return ``point``."""
        return point

    def check(self, name: str, point: PyTree) -> None:
        """Anything fits."""


class Box(AbstractSet):
    """``lower <= u <= upper``, with a number for all coordinates or a pytree like the variable.

    The set is separable, so the projection is the same for every diagonal matrix.
    """

    lower: PyTree
    upper: PyTree

    def __init__(self, lower: PyTree, upper: PyTree):
        _bounds("Box.lower", lower, np.inf)
        _bounds("Box.upper", upper, -np.inf)
        for low, high in _pairs(lower, upper):
            if not np.all(low <= high):
                raise Mistake(
                    "`Box` must have `lower` nowhere above `upper`, but it is empty: an entry of "
                    f"`lower` is {np.max(low):g} where `upper` is {np.min(high):g}."
                    if low.ndim == high.ndim == 0
                    else "`Box` must have `lower` nowhere above `upper`, but it is empty: "
                    "some entry of `lower` is above that of `upper`."
                )
        self.lower, self.upper = lower, upper

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Clip."""
        return optax.projections.projection_box(
            point, _cast(self.lower, point), _cast(self.upper, point)
        )

    def check(self, name: str, point: PyTree) -> None:
        """Refuse bounds of another structure or shape than the variable's."""
        floating(name, point)
        for bound, value in (("lower", self.lower), ("upper", self.upper)):
            fits(f"Box.{bound}", value, name, point)


class NonNegative(AbstractSet):
    """``u >= 0``, whatever the diagonal matrix."""

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Clip."""
        return optax.projections.projection_non_negative(point)

    def check(self, name: str, point: PyTree) -> None:
        """Any real variable fits."""
        floating(name, point)


class LInfBall(AbstractSet):
    """``|u_i| <= radius`` for every coordinate, whatever the diagonal matrix."""

    radius: ArrayLike

    def __init__(self, radius: ArrayLike):
        sizes("LInfBall.radius", radius, least=0.0)
        self.radius = radius

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Clip."""
        bound = _cast(self.radius, point)
        return optax.projections.projection_box(point, optax.tree.scale(-1, bound), bound)

    def check(self, name: str, point: PyTree) -> None:
        """Refuse more than one radius."""
        floating(name, point)
        single("LInfBall.radius", self.radius)


class L2Ball(AbstractSet):
    r""":math:`\|u\|_2 \le r`, over all leaves together.

    Outside, :math:`u_i = m_i p_i / (m_i + \nu)` where :math:`\nu > 0` solves :math:`\|u(\nu)\|_2 =
    r`; secant steps on :math:`1 / \|u(\nu)\|_2`, which is nearly linear, find it.
    """

    radius: ArrayLike

    def __init__(self, radius: ArrayLike):
        sizes("L2Ball.radius", radius, above=0.0)
        self.radius = radius

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Shorten, the less the heavier a coordinate is in the matrix."""
        space = Space.of(point, matrix)
        radius = space.number(self.radius)
        if _euclidean(space, matrix):
            return space.tree(optax.projections.projection_l2_ball(space.points, radius))

        def shorten(points: list[Array]) -> list[Array]:
            nu = secular(points, space.matrices, lambda t, m: m + t, radius)
            return [p * (m / (m + nu)) for p, m in zip(points, space.matrices, strict=True)]

        inside = total([(p / radius) ** 2 for p in space.points]) <= 1
        return space.tree(jax.lax.cond(inside, lambda points: points, shorten, space.points))

    def check(self, name: str, point: PyTree) -> None:
        """Refuse more than one radius."""
        floating(name, point)
        single("L2Ball.radius", self.radius)


class Simplex(AbstractSet):
    r""":math:`u \ge 0, \; \sum_i u_i = s`, over all leaves together; s is ``total``.

    :math:`u_i = \max(p_i - \nu / m_i, 0)` for the one :math:`\nu` with the right sum.

    The search for it serves the identity too. Optax's Euclidean projection sorts, which at 1e5
    coordinates on a CPU takes more than ten times as long, and its sum, of a point 1e4 totals away
    in single precision, is off by 4e-6.
    """

    total: ArrayLike

    def __init__(self, total: ArrayLike = 1.0):
        sizes("Simplex.total", total, above=0.0)
        self.total = total

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Lower every coordinate, the less the heavier it is in the matrix, down to zero."""
        space = Space.of(point, matrix)
        return space.tree(_fill(space.points, space.matrices, None, space.number(self.total)))

    def check(self, name: str, point: PyTree) -> None:
        """Refuse more than one total."""
        floating(name, point)
        single("Simplex.total", self.total)


class CappedSimplex(AbstractSet):
    r""":math:`0 \le u_i \le c_i, \; \sum_i u_i = s`, over all leaves together.

    s is ``total`` and c is ``cap``, a number for all coordinates or a pytree like the variable.
    With cap 1 and a whole total it is the convex hull of the choices of so many coordinates.
    :math:`u_i = \min(\max(p_i - \nu / m_i, 0), c_i)` for a :math:`\nu` with the right sum.
    """

    total: ArrayLike
    cap: PyTree

    def __init__(self, total: ArrayLike, cap: PyTree = 1.0):
        sizes("CappedSimplex.total", total, above=0.0)
        sizes("CappedSimplex.cap", cap, least=0.0)
        self.total, self.cap = total, cap

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Shift every coordinate, the less the heavier it is in the matrix, between 0 and cap."""
        space = Space.of(point, matrix)
        caps = space.like(self.cap)
        return space.tree(_fill(space.points, space.matrices, caps, space.number(self.total)))

    def check(self, name: str, point: PyTree) -> None:
        """Refuse a cap that does not fit, and a total above the sum of the caps."""
        floating(name, point)
        single("CappedSimplex.total", self.total)
        fits("CappedSimplex.cap", self.cap, name, point)
        caps = [_known(c) for c in jax.tree.leaves(spread(self.cap, point))]
        wanted = _known(self.total)
        if wanted is None or any(c is None for c in caps):
            return
        leaves = jax.tree.leaves(point)
        most = sum(
            float(np.sum(np.broadcast_to(c, jnp.shape(leaf)), dtype=np.float64))
            for c, leaf in zip(caps, leaves, strict=True)
            if c is not None
        )
        if float(wanted) > most * (1 + 1e-6):
            raise Mistake(
                f"`CappedSimplex.total` must be at most the sum of the caps, {most:g} for {name}, "
                f"but it is {float(wanted):g}; lower it or raise `cap`."
            )


class L1Ball(AbstractSet):
    r""":math:`\|u\|_1 \le r`, over all leaves together.

    Outside, :math:`|u|` is the projection of :math:`|p|` onto the simplex of total r, with p's
    signs; for the identity too, for the reasons told at `Simplex`.
    """

    radius: ArrayLike

    def __init__(self, radius: ArrayLike):
        sizes("L1Ball.radius", radius, above=0.0)
        self.radius = radius

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Shrink every coordinate towards zero, the less the heavier it is in the matrix."""
        space = Space.of(point, matrix)
        radius = space.number(self.radius)
        lengths = [jnp.abs(p) for p in space.points]

        def shrink(points: list[Array]) -> list[Array]:
            filled = _fill([jnp.abs(p) for p in points], space.matrices, None, radius)
            return [jnp.sign(p) * u for p, u in zip(points, filled, strict=True)]

        inside = total(lengths) <= radius
        return space.tree(jax.lax.cond(inside, lambda points: points, shrink, space.points))

    def check(self, name: str, point: PyTree) -> None:
        """Refuse more than one radius."""
        floating(name, point)
        single("L1Ball.radius", self.radius)


class HalfSpace(AbstractSet):
    r""":math:`\langle c, u \rangle \le b`, over all leaves together.

    c is ``normal``, a number for all coordinates or a pytree like the variable; b is ``offset``.
    :math:`u = p - \max(\langle c, p \rangle - b, 0) \, (c / m) / \langle c, c / m \rangle`, done
    twice, since the first time leaves the round-off of a point far outside. Both c and b are first
    divided by the largest entry of c, whose square may be no number of the working precision.
    """

    normal: PyTree
    offset: ArrayLike

    def __init__(self, normal: PyTree, offset: ArrayLike):
        sizes("HalfSpace.normal", normal)
        _check_normal(normal, np.dtype(np.float64))
        sizes("HalfSpace.offset", offset)
        self.normal, self.offset = normal, offset

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Go along the normal, in the geometry of the matrix, to the border."""
        space = Space.of(point, matrix)
        parts = space.like(self.normal)
        most = stop_gradient(jnp.stack([jnp.max(jnp.abs(c)) for c in parts]).max())
        offset = space.number(self.offset) / most
        normals = [
            jnp.broadcast_to(c / most, p.shape) for c, p in zip(parts, space.points, strict=True)
        ]
        width = total([c * (c / m) for c, m in zip(normals, space.matrices, strict=True)])
        us = space.points
        for _ in range(2):
            over = total([c * u for c, u in zip(normals, us, strict=True)]) - offset
            far = jnp.maximum(over, 0) / width
            us = [u - far * (c / m) for u, c, m in zip(us, normals, space.matrices, strict=True)]
        return space.tree(us)

    def check(self, name: str, point: PyTree) -> None:
        """Refuse a normal of another structure or shape than the variable's."""
        floating(name, point)
        fits("HalfSpace.normal", self.normal, name, point)
        _check_normal(self.normal, working_dtype(point))
        single("HalfSpace.offset", self.offset)


class Affine(AbstractSet):
    r""":math:`C u = b`, a few equations over all leaves together.

    C is ``matrix``: a pytree like the variable, whose leaves have one more axis in front that
    counts the equations. b is ``offset``, one number per equation.
    :math:`u = p - M^{-1} C' (C M^{-1} C')^{-1} (C p - b)`, done three times, since the first time
    leaves the round-off of a point far away.

    For the sake of matrices of many orders of magnitude the equations are first combined so that
    each has a coordinate of its own, the one whose entry in :math:`C M^{-1/2}` is largest. This
    takes as many passes over C as there are equations, and memory for two copies of C.
    """

    matrix: PyTree
    offset: ArrayLike

    def __init__(self, matrix: PyTree, offset: ArrayLike):
        equations = {jnp.shape(leaf)[0] if jnp.ndim(leaf) else 0 for leaf in _arrays(matrix)}
        if len(equations) != 1 or 0 in equations:
            raise Mistake(
                "`Affine.matrix` must have one row per equation in front of every leaf's axes, "
                f"but its leaves have the shapes {[jnp.shape(leaf) for leaf in _arrays(matrix)]}."
            )
        (rows,) = equations
        if jnp.shape(offset) != (rows,):
            raise Mistake(
                f"`Affine.offset` must have one number for each of the {rows} equations of "
                f"`matrix`, the shape ({rows},), but it has {jnp.shape(offset)}."
            )
        sizes("Affine.matrix", matrix)
        sizes("Affine.offset", offset)
        _check_rank(matrix, rows, np.dtype(np.float64))
        self.matrix, self.offset = matrix, offset

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Go to the solutions along the span of the equations, in the geometry of the matrix."""
        space = Space.of(point, matrix)
        offset = space.number(self.offset)
        lines = [c.reshape(offset.size, -1) for c in space.like(self.matrix)]
        roots = _line([jnp.sqrt(m) for m in space.matrices], space.points)
        rows, ends = _own(
            lines[0] if len(lines) == 1 else jnp.concatenate(lines, axis=1), offset, roots
        )
        scaled = rows / roots[None, :]
        heights = jnp.max(jnp.abs(scaled), axis=1)
        scaled = scaled / heights[:, None]
        factor = jnp.linalg.cholesky(scaled @ scaled.T)
        u = _line(space.points, space.points)
        for _ in range(3):
            gap = (rows @ u - ends) / heights
            u = u - (scaled.T @ cho_solve((factor, True), gap)) / roots
        parts = jnp.split(u, np.cumsum([p.size for p in space.points])[:-1])
        return space.tree([u.reshape(p.shape) for u, p in zip(parts, space.points, strict=True)])

    def check(self, name: str, point: PyTree) -> None:
        """Refuse equations for a variable of another structure or shape."""
        floating(name, point)
        if structure_of(self.matrix) != structure_of(point):
            raise Mistake(
                f"`Affine.matrix` must be a pytree like {name}, {structure_of(point)}, "
                f"but it is {structure_of(self.matrix)}."
            )
        rows = jnp.size(self.offset)
        for part, leaf in zip(jax.tree.leaves(self.matrix), jax.tree.leaves(point), strict=True):
            if jnp.shape(part) != (rows, *jnp.shape(leaf)):
                raise Mistake(
                    f"`Affine.matrix` must have the shape {(rows, *jnp.shape(leaf))}, the "
                    f"equations in front of the axes of {name}, but it has {jnp.shape(part)}."
                )
        _check_rank(self.matrix, rows, working_dtype(point))


class Custom(AbstractSet):
    r"""Any closed convex set, given by its Euclidean projection :math:`\Pi` (pytree to pytree).

    Where the matrix is not a multiple of the identity, accelerated projected gradients minimise
    :math:`\tfrac12 \|u - p\|_M^2` over the set: with :math:`L = \max_i m_i, \ell = \min_i m_i`,

    .. math::
        u^+ = \Pi(v - \tfrac1L M (v - p)), \qquad
        v^+ = u^+ + \tfrac{\sqrt L - \sqrt \ell}{\sqrt L + \sqrt \ell} (u^+ - u),

    until :math:`\tfrac{2L}{\ell} \|u^+ - v\|`, a bound on the distance to the answer, is below
    ``tolerance`` times the length of :math:`u^+`, or the step is round-off, or ``passes`` are over.

    The cost is one Euclidean projection a pass, and about :math:`\sqrt{L / \ell} \,
    \log(1 / \text{tolerance})` passes: meant for matrices that differ by a few orders of magnitude.
    Every answer is an output of :math:`\Pi`, so feasible even where the passes ran out. Derivatives
    are those of the fixed point :math:`u = \Pi(u - \tfrac1L M (u - p))`.
    """

    projection: Callable[[PyTree], PyTree]
    tolerance: ArrayLike
    passes: int

    def __init__(
        self,
        projection: Callable[[PyTree], PyTree],
        tolerance: ArrayLike = 1e-8,
        passes: int = 10_000,
    ):
        if not callable(projection):
            raise Mistake(
                "`Custom.projection` must be a function from a point to its Euclidean projection, "
                f"but it is {projection!r}."
            )
        sizes("Custom.tolerance", tolerance, least=0.0)
        errors.count("Custom.passes", passes)
        # A bare function is no leaf that jax.jit takes; a Partial holds it in the structure.
        bare = structure_of(projection) == structure_of(0)
        self.projection = jax.tree_util.Partial(projection) if bare else projection
        self.tolerance, self.passes = tolerance, passes

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Iterate, unless the Euclidean projection is the one wanted."""
        space = Space.of(point, matrix)
        if _euclidean(space, matrix):
            return self.projection(point)
        ps = space.points
        most = jnp.stack([jnp.max(m) for m in space.matrices]).max()
        least = jnp.stack([jnp.min(m) for m in space.matrices]).min()
        rates = [m / most for m in space.matrices]
        tolerance = space.number(self.tolerance) * least / most / 2
        tolerance = jnp.maximum(tolerance, 4 * float(jnp.finfo(space.dtype).eps))
        momentum = (jnp.sqrt(most) - jnp.sqrt(least)) / (jnp.sqrt(most) + jnp.sqrt(least))

        def euclidean(us: Sequence[Array]) -> list[Array]:
            return space.like(self.projection(space.tree(us)))

        def descend(vs: Sequence[Array]) -> list[Array]:
            return euclidean([v - r * (v - p) for v, r, p in zip(vs, rates, ps, strict=True)])

        def go(carry: tuple[Array, list[Array], list[Array], Array]) -> Array:
            passes, _, _, done = carry
            return (passes < self.passes) & ~done

        def body(
            carry: tuple[Array, list[Array], list[Array], Array],
        ) -> tuple[Array, list[Array], list[Array], Array]:
            passes, us, vs, _ = carry
            new = descend(vs)
            step = optax.tree.norm([n - v for n, v in zip(new, vs, strict=True)])
            done = ~(step > tolerance * optax.tree.norm(new))
            vs = [n + momentum * (n - u) for n, u in zip(new, us, strict=True)]
            return passes + 1, new, vs, done

        def solve(_: Callable[[Any], Any], start: list[Array]) -> list[Array]:
            begin = (jnp.zeros((), jnp.int32), start, start, jnp.asarray(False))
            return jax.lax.while_loop(go, body, begin)[1]

        def residual(us: list[Array]) -> list[Array]:
            return [u - new for u, new in zip(us, descend(us), strict=True)]

        def tangent_solve(linear: Callable[[Any], Any], rhs: list[Array]) -> list[Array]:
            invert = lambda matvec, b: bicgstab(matvec, b, tol=1e-10)[0]
            answer: list[Array] = jax.lax.custom_linear_solve(linear, rhs, invert, invert)
            return answer

        start = euclidean(ps)
        return space.tree(jax.lax.custom_root(residual, start, solve, tangent_solve))

    def check(self, name: str, point: PyTree) -> None:
        """Refuse a projection that does not return a pytree like the variable."""
        floating(name, point)
        like = jax.eval_shape(lambda p: p, point)
        got = jax.eval_shape(self.projection, point)
        shapes = lambda tree: [(a.shape, a.dtype) for a in jax.tree.leaves(tree)]
        if structure_of(got) != structure_of(like) or shapes(got) != shapes(like):
            raise Mistake(
                f"`Custom.projection` must return a pytree like {name}, {like}, "
                f"but it returns {got}."
            )


class PerLeaf(AbstractSet):
    """Every leaf on its own in the same set, such as every layer's weights in an L2 ball."""

    each: AbstractSet

    def __init__(self, each: AbstractSet):
        if not isinstance(each, AbstractSet):
            raise Mistake(f"`PerLeaf.each` must be a set, but it is {each!r}.")
        self.each = each

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Project leaf by leaf."""
        return jax.tree.map(self.each.project, point, spread(matrix, point))

    def check(self, name: str, point: PyTree) -> None:
        """Check every leaf."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(point):
            self.each.check(f"{name}{jax.tree_util.keystr(path)}", leaf)

    def parts(self, name: str, point: PyTree) -> list[Part]:
        """Those of every leaf."""
        return parts_of(jax.tree.map(lambda _: self.each, point), name, point)


class Product(AbstractSet):
    """A set for every part of the variable.

    ``sets`` is a pytree of sets whose structure is the upper part of the variable's, such as
    ``{"weights": L2Ball(1.0), "scales": NonNegative()}`` for a dictionary with these two entries.
    """

    sets: PyTree

    def __init__(self, sets: PyTree):
        only("Product.sets", sets, AbstractSet)
        self.sets = sets

    def project(self, point: PyTree, matrix: PyTree) -> PyTree:
        """Project part by part."""
        return jax.tree.map(
            lambda part, p, m: part.project(p, m),
            self.sets,
            point,
            spread(matrix, point),
            is_leaf=lambda node: isinstance(node, AbstractSet),
        )

    def check(self, name: str, point: PyTree) -> None:
        """Check every part, and that the parts are those of the variable."""
        check_parts("Product.sets", self.sets, name, point)

    def parts(self, name: str, point: PyTree) -> list[Part]:
        """Those of every set."""
        return parts_of(self.sets, name, point)


def _bounds(what: str, bound: PyTree, never: float) -> None:
    """Refuse bounds that are no numbers, and one that no number meets."""
    leaves: list[Any] = [None] if bound is None else jax.tree.leaves(bound)
    for leaf in leaves:
        known = _known(leaf)
        if known is None:
            continue
        if not jnp.issubdtype(known.dtype, jnp.number):
            raise Mistake(f"`{what}` must be a number or a pytree of them, but it has {leaf!r}.")
        if np.any(known == never):
            raise Mistake(f"`{what}` must leave some numbers inside, but it has {never:g}.")


def _check_normal(normal: PyTree, dtype: np.dtype[Any]) -> None:
    parts = [_known(leaf) for leaf in jax.tree.leaves(normal)]
    if not any(part is None or np.any(part.astype(dtype) != 0) for part in parts):
        raise Mistake(
            f"`HalfSpace.normal` must have an entry other than zero, but it has none in {dtype}; "
            f"multiply it and `offset` by the same number if it is that small."
        )


def _check_rank(matrix: PyTree, rows: int, dtype: np.dtype[Any]) -> None:
    """Refuse rows that are dependent, or as good as that, in the precision of the projection."""
    parts = [_known(leaf) for leaf in jax.tree.leaves(matrix)]
    known = [part.astype(dtype).reshape(rows, -1) for part in parts if part is not None]
    if len(known) < len(parts):
        return
    joined = np.concatenate(known, axis=1).astype(np.float64)
    lengths = np.linalg.norm(joined, axis=1, keepdims=True)
    directions = joined / np.where(lengths > 0, lengths, 1)
    rank = np.linalg.matrix_rank(directions, tol=10 * rows * float(np.finfo(dtype).eps))
    if rank < rows:
        raise Mistake(
            f"`Affine.matrix` must have linearly independent rows, but its {rows} rows have the "
            f"rank {rank} in {dtype}; leave out the equations that follow from the others."
        )


def _own(rows: Array, ends: Array, roots: Array) -> tuple[Array, Array]:
    """Equivalent equations, each with a coordinate that no other has, large over ``roots``."""
    for i in range(ends.size):
        pick = jnp.argmax(jnp.abs(rows[i]) / roots)
        row, end = rows[i] / rows[i, pick], ends[i] / rows[i, pick]
        column = rows[:, pick].at[i].set(0)
        rows = (rows - column[:, None] * row[None, :]).at[:, pick].set(0).at[i].set(row)
        ends = (ends - column * end).at[i].set(end)
    return rows, ends


SAMPLE = 2048  # coordinates that a first guess looks at; it takes some 20 passes over these


def _fill(
    points: Sequence[Array],
    matrices: Sequence[Array],
    caps: Sequence[Array] | None,
    amount: Array,
) -> list[Array]:
    r"""Entries :math:`p_i - \nu / m_i` cut to between 0 and the caps, if any, of the right sum.

    Points that differ by a multiple of 1/m have the same projection. So a first multiplier is found
    on a sample of large points, the point is moved by it, and only the rest of the way is found on
    all of it: a small number, which loses nothing to cancellation where p is far outside.
    """
    bounds: Sequence[Array | None] = [None] * len(points) if caps is None else caps
    ps, ms, aim = stop_gradient((points, matrices, amount))
    ends: Sequence[Array | None] = [None if c is None else stop_gradient(c) for c in bounds]
    stride = stride_of(ps, SAMPLE)
    some = sample(ps, stride)
    p, m = _line(some, some), _line(sample(ms, stride), some)
    cap = None if caps is None else _line(sample(stop_gradient(caps), stride), some)
    count = _line([jnp.asarray(count, aim.dtype) for count in share(ps, stride)], some)
    shift = _guess(p, m, cap, count, aim)
    fall = jnp.sum(jnp.where(_free(p - shift / m, cap), count / m, 0)) / aim
    centered = _moved(points, matrices, shift)
    rest = _rest(stop_gradient(centered), ms, ends, aim, fall)
    entries = _cut(_moved(centered, matrices, rest), bounds)
    # Newton steps on the free entries carry the derivatives, and the last digits.
    for _ in range(2):
        free = [_free(u, cap) for u, cap in zip(entries, bounds, strict=True)]
        slope = total([jnp.where(f, 1 / m, 0) for f, m in zip(free, matrices, strict=True)])
        rise = (amount - total(entries)) / jnp.where(slope > 0, slope, 1)
        entries = [
            jnp.where(f, _between(u + rise / m, cap), u)
            for f, u, m, cap in zip(free, entries, matrices, bounds, strict=True)
        ]
    return entries


def _guess(p: Array, m: Array, cap: Array | None, count: Array, amount: Array) -> Array:
    r"""The mark next to the multiplier of the right sum, each entry counted ``count`` times.

    The sum falls along straight lines between the marks :math:`m_i p_i` and :math:`m_i (p_i -
    c_i)`. A mark inside the bracket, taken as if at random, halves it on average.
    """
    marks = m * p if cap is None else jnp.concatenate([m * p, m * (p - cap)])
    # All to one entry, or every entry its cap, is not too little.
    low = jnp.max(m * (p - amount)) if cap is None else jnp.min(m * (p - cap))
    high = jnp.max(m * p)
    golden = (5**0.5 - 1) / 2
    order = jnp.arange(marks.size, dtype=p.dtype) * golden % 1

    def over(multiplier: Array) -> Array:
        return jnp.sum(count * _between(p - multiplier / m, cap)) / amount - 1

    def go(now: _Bracket) -> Array:
        return (now.passes < PASSES) & (now.left > 0)

    def body(now: _Bracket) -> _Bracket:
        inside = (marks > now.low) & (marks < now.high)
        new = marks[jnp.argmax(jnp.where(inside, order, -1))]
        v = over(new)
        up = v >= 0
        low, high = jnp.where(up, new, now.low), jnp.where(up, now.high, new)
        left = jnp.count_nonzero((marks > low) & (marks < high))
        more, less = jnp.where(up, v, now.over), jnp.where(up, now.under, v)
        return _Bracket(now.passes + 1, low, high, more, less, left)

    begin = _Bracket(
        jnp.zeros((), jnp.int32), low, high, over(low), over(high), jnp.count_nonzero(marks < high)
    )
    end = jax.lax.while_loop(go, body, begin)
    return jnp.where(end.over <= -end.under, end.low, end.high)


class _Bracket(NamedTuple):
    """Two multipliers, between which the right one lies."""

    passes: Array
    low: Array
    high: Array
    over: Array  # by how much the sum at low is too large, over the amount
    under: Array  # the same at high
    left: Array  # how many marks are between


def _rest(
    points: Sequence[Array],
    matrices: Sequence[Array],
    caps: Sequence[Array | None],
    amount: Array,
    fall: Array,
) -> Array:
    """The multiplier at which the entries have the right sum, if it is small.

    ``fall`` is about how fast the sum over the amount falls with it at first.
    """

    def over(multiplier: Array) -> Array:
        return total(_cut(_moved(points, matrices, multiplier), caps)) / amount - 1

    ahead = over(jnp.zeros_like(amount))
    sign = jnp.where(ahead < 0, -1, 1).astype(amount.dtype)

    def next_mark() -> Array:
        """The end of the first slope ahead, where round-off has left none here."""
        ends = []
        for p, m, cap in zip(points, matrices, caps, strict=True):
            full = amount if cap is None else jnp.minimum(cap, amount)
            reach = jnp.where(sign > 0, p, full - p)
            ends.append(jnp.min(jnp.where(reach > 0, reach * m, jnp.inf)))
        end = jnp.stack(ends).min()
        return jnp.where(jnp.isfinite(end), end, 0)

    start = jax.lax.cond(fall > 0, lambda: jnp.abs(ahead) / fall, next_mark)
    scale = amount * total([jnp.mean(m) for m in matrices]) / len(matrices)
    return sign * root(lambda t: -sign * over(sign * t), start, fall, scale, positive=True)


def _line(parts: Sequence[Array], like: Sequence[Array]) -> Array:
    """Leaves, or numbers for leaves, as one vector."""
    wide = [
        jnp.broadcast_to(part, leaf.shape).reshape(-1)
        for part, leaf in zip(parts, like, strict=True)
    ]
    return wide[0] if len(wide) == 1 else jnp.concatenate(wide)


def _free(entries: Array, cap: Array | None) -> Array:
    return entries > 0 if cap is None else (entries > 0) & (entries < cap)


def _moved(points: Sequence[Array], matrices: Sequence[Array], multiplier: Array) -> list[Array]:
    return [p - multiplier / m for p, m in zip(points, matrices, strict=True)]


def _cut(points: Sequence[Array], caps: Sequence[Array | None]) -> list[Array]:
    return [_between(p, cap) for p, cap in zip(points, caps, strict=True)]


def _between(entries: Array, cap: Array | None) -> Array:
    raised = jnp.maximum(entries, 0)
    return raised if cap is None else jnp.minimum(raised, cap)


def _euclidean(space: Space, matrix: PyTree) -> bool:
    """Whether the matrix is known to be a multiple of the identity of the whole space."""
    return is_number(matrix) or (len(space.matrices) == 1 and space.matrices[0].ndim == 0)


def _cast(value: PyTree, point: PyTree) -> PyTree:
    """Numbers like the point, in its dtypes."""
    return jax.tree.map(
        lambda v, p: jnp.asarray(v, jnp.asarray(p).dtype), spread(value, point), point
    )


def _arrays(tree: PyTree) -> list[ArrayLike]:
    return jax.tree.leaves(tree)


def _known(value: ArrayLike) -> np.ndarray | None:
    """The value, unless it is a tracer's."""
    return None if isinstance(value, jax.core.Tracer) else np.asarray(value)


def _pairs(lower: PyTree, upper: PyTree) -> list[tuple[np.ndarray, np.ndarray]]:
    """The known bounds that meet at the same coordinates."""
    lower, upper = spread(lower, upper), spread(upper, lower)
    if structure_of(lower) != structure_of(upper):
        return []
    pairs = []
    for low, high in zip(jax.tree.leaves(lower), jax.tree.leaves(upper), strict=True):
        known = _known(low), _known(high)
        if known[0] is None or known[1] is None:
            continue
        if known[0].shape == known[1].shape or () in (known[0].shape, known[1].shape):
            pairs.append((known[0], known[1]))
    return pairs
