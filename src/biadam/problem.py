r"""What is solved: two losses, their derivatives, the feasible sets, one sample of the noise.

.. math:: \min_{x \in X} F(x) = E_\xi f(x, y^*(x); \xi), \qquad
          y^*(x) = \operatorname{argmin}_{y \in Y} E_\zeta g(x, y; \zeta).

Every derivative that a method takes is a method of `Problem`, one oracle of the theory each:
`outer_gradients` (Gf), `inner_gradient` (Gg), `hessian_product` (HVP), `cross_product` (JVP).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from . import tree
from .errors import Mistake, part
from .proximal import AbstractProximal
from .sets import Free


class Levels(NamedTuple):
    """One thing per level of the problem; a level that is None is absent."""

    x: Any  # outer
    y: Any  # inner
    s: Any = None  # linear system H s = grad_y f, for the methods that track it


class Sample(NamedTuple):
    """All the randomness of one step: the same sample gives the same noise."""

    outer: PyTree[Array]  # one minibatch of the outer loss, xi
    inner: PyTree[Array]  # minibatches of the inner loss, stacked on a leading axis: zeta, zeta^0..
    key: Key[Array, ""]  # for every other draw, such as the random length of a series
    whole: tuple[PyTree[Array], PyTree[Array]] | None = (
        None  # all the data (outer, inner), if known
    )
    block: tuple[Any, Any] | None = None  # which block of the data each is, if they are blocks

    @property
    def single(self) -> bool:
        """Whether the sample has one inner minibatch, which then stands for all of them.

        So have those of a source without inner noise, or whose inner problem comes with the
        sample, as a few-shot task does.
        """
        return all(a.shape[0] == 1 for a in jax.tree.leaves(self.inner))

    def batch(self, i: Any) -> PyTree[Array]:
        """The i-th inner minibatch."""
        return jax.tree.map(lambda a: a[0 if self.single else i], self.inner)

    def after(self, count: int) -> "Sample":
        """The sample without its first inner minibatches."""
        if self.single:
            return self
        return self._replace(inner=jax.tree.map(lambda a: a[count:], self.inner))

    def parts(self, count: int) -> PyTree[Array]:
        """The inner minibatches in so many groups of equal size, on a new leading axis."""

        def part(a: Array) -> Array:
            if self.single:
                return jnp.broadcast_to(a, (count, *a.shape))
            return a.reshape(count, -1, *a.shape[1:])

        return jax.tree.map(part, self.inner)


class Calls(NamedTuple):
    """How often each oracle was called, in minibatches."""

    outer_gradient: Any = 0  # (f_x, f_y) together
    inner_gradient: Any = 0  # g_y, or (g_x, g_y) together
    hessian_product: Any = 0  # H u
    cross_product: Any = 0  # J u

    def plus(self, other: "Calls") -> "Calls":
        """The sum, kind by kind."""
        return Calls(*(a + b for a, b in zip(self, other, strict=True)))


class Problem(eqx.Module):
    """``min over x in X of f(x, y*(x))`` with ``y*(x) = argmin over y in Y of g(x, y)``.

    Args:
        outer: the loss ``f(x, y, batch)``, a scalar.
        inner: the loss ``g(x, y, batch)``, a scalar, strongly convex in ``y``.
        outer_set: where x lives: a set of `biadam.sets` or a proximal term of `biadam.proximal`.
        inner_set: where y lives. The hypergradient assumes that its border is not reached at y*(x).
        stage: the part ``stage(x, batch)`` of both losses that does not depend on y, such as the
            features that an encoder x computes; the losses get what it returns, a pytree of real
            arrays, in place of x. It is evaluated once for each point and minibatch, however many
            inner steps and Hessian products follow, and differentiated once.
    """

    outer: Callable[[Any, Any, Any], Array]
    inner: Callable[[Any, Any, Any], Array]
    outer_set: AbstractProximal = Free()
    inner_set: AbstractProximal = Free()
    stage: Callable[[Any, Any], Any] | None = None

    def __check_init__(self) -> None:
        part("outer_set", self.outer_set, AbstractProximal, "sets")
        part("inner_set", self.inner_set, AbstractProximal, "sets")

    def outer_loss(self, x: PyTree, y: PyTree, batch: PyTree) -> Array:
        """``f``, its stage included."""
        return self.outer(self._staged(x, batch), y, batch)

    def inner_loss(self, x: PyTree, y: PyTree, batch: PyTree) -> Array:
        """``g``, its stage included."""
        return self.inner(self._staged(x, batch), y, batch)

    def _staged(self, x: PyTree, batch: PyTree) -> PyTree:
        return x if self.stage is None else self.stage(x, batch)

    def view(self, x: PyTree, sample: Sample) -> "View":
        """The problem as it looks from x on one sample: the stage's part is done.

        Its losses are those of the staged variables, one for each minibatch of the sample, and
        gradients in these become gradients in x by `View.pull`. By the chain rule every formula
        for a hypergradient holds in either variable, so that a method may work in the view and
        pull back once.
        """
        stage = self.stage
        if stage is None:
            return View(self, x, sample, lambda gradient: gradient)

        def staged(x: PyTree) -> Staged:
            outer = stage(x, sample.outer)
            if sample.single:  # spare the stage an axis of one
                one = stage(x, sample.batch(0))
                return Staged(outer, jax.tree.map(lambda a: a[None], one))
            return Staged(outer, jax.vmap(lambda batch: stage(x, batch))(sample.inner))

        seen, pull = jax.vjp(staged, x)
        place = jnp.arange(jax.tree.leaves(sample.inner)[0].shape[0])
        problem = Problem(
            lambda z, y, batch: self.outer(z.outer, y, batch),
            lambda z, y, batch: self.inner(z.at(batch[0]), y, batch[1]),
            inner_set=self.inner_set,
        )
        inner = (place, sample.inner)
        return View(problem, seen, sample._replace(inner=inner), lambda gradient: pull(gradient)[0])

    def outer_gradients(self, x: PyTree, y: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        """``f_x`` and ``f_y``."""
        return jax.grad(self.outer_loss, argnums=(0, 1))(x, y, batch)

    def inner_gradient(self, x: PyTree, y: PyTree, batch: PyTree) -> PyTree:
        """``g_y``."""
        return jax.grad(self.inner_loss, argnums=1)(x, y, batch)

    def inner_gradients(self, x: PyTree, y: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        """``g_x`` and ``g_y``."""
        return jax.grad(self.inner_loss, argnums=(0, 1))(x, y, batch)

    def inner_slope(self, x: PyTree, y: PyTree, batch: PyTree, u: PyTree) -> Array:
        """``<g_y, u>``, the derivative of g along u; its gradients are H u and J u."""
        return jax.jvp(lambda y: self.inner_loss(x, y, batch), (y,), (u,))[1]

    def hessian_product(self, x: PyTree, y: PyTree, batch: PyTree, u: PyTree) -> PyTree:
        """``H u``, with ``H`` the Hessian of g in y."""
        return jax.jvp(lambda y: self.inner_gradient(x, y, batch), (y,), (u,))[1]

    def cross_product(self, x: PyTree, y: PyTree, batch: PyTree, u: PyTree) -> PyTree:
        """``J u``, with ``J = d^2 g / dx dy``: the gradient in x of ``<g_y, u>``.

        Reverse over forward: where x enters g late, as weights of a loss do, nothing is propagated
        back through the rest.
        """
        return jax.grad(self.inner_slope)(x, y, batch, u)

    def products(self, x: PyTree, y: PyTree, batch: PyTree, u: PyTree) -> tuple[PyTree, PyTree]:
        """``H u`` and ``J u`` on one batch, from one backward pass."""
        cross, hessian = jax.grad(self.inner_slope, argnums=(0, 1))(x, y, batch, u)
        return hessian, cross

    def gradient_and_products(
        self, x: PyTree, y: PyTree, batch: PyTree, u: PyTree
    ) -> tuple[PyTree, PyTree, PyTree]:
        """``g_y``, ``H u`` and ``J u`` on one batch.

        One forward pass of ``(g, <g_y, u>)`` and one pull-back of both at once, which turns pairs
        of skinny matrix products into single fat ones.
        """

        def pair(x: PyTree, y: PyTree) -> Array:
            return jnp.stack(jax.jvp(lambda y: self.inner_loss(x, y, batch), (y,), (u,)))

        value, pull = jax.vjp(pair, x, y)
        in_x, in_y = jax.vmap(pull)(jnp.eye(2, dtype=value.dtype))
        row = lambda i, of: jax.tree.map(lambda a: a[i], of)
        return row(0, in_y), row(1, in_y), row(1, in_x)

    def check(self, x: PyTree, y: PyTree, sample: Sample) -> None:
        """Refuse, in the user's words and before anything is compiled, what can't be solved."""
        for name, point, where in (("x", x, self.outer_set), ("y", y, self.inner_set)):
            _check_variable(name, point)
            where.check(name, point)
        inner = sample.batch(0)
        if self.stage is not None:
            self._check_stage(x, inner)
        losses = (
            ("outer", self.outer_loss, sample.outer),
            ("inner", self.inner_loss, inner),
        )
        for name, loss, batch in losses:
            try:
                value = jax.eval_shape(loss, x, y, batch)
            except Mistake:
                raise
            except Exception as error:
                raise Mistake(
                    f"`Problem.{name}(x, y, batch)` can't be evaluated at the given x, y and a "
                    f"minibatch of the data: {first_line(error)}"
                ) from error
            if not isinstance(value, jax.ShapeDtypeStruct):
                raise Mistake(
                    f"`Problem.{name}(x, y, batch)` must return a scalar loss, but it returned "
                    f"a {type(value).__name__}; return the loss alone."
                )
            if value.shape != ():
                raise Mistake(
                    f"`Problem.{name}(x, y, batch)` must return a scalar loss, but it returned an "
                    f"array of shape {value.shape}; take its mean over the minibatch."
                )
            if not jnp.issubdtype(value.dtype, jnp.floating):
                raise Mistake(
                    f"`Problem.{name}(x, y, batch)` must return a real number, but its type is "
                    f"{value.dtype}; return the loss, not a count or an index."
                )

    def convolves(self, x: PyTree, y: PyTree, sample: Sample) -> bool:
        """Whether a loss has convolutions in it."""
        losses = ((self.outer_loss, sample.outer), (self.inner_loss, sample.batch(0)))
        return any(_convolves(jax.make_jaxpr(loss)(x, y, batch)) for loss, batch in losses)

    def _check_stage(self, x: PyTree, batch: PyTree) -> None:
        try:
            staged = jax.eval_shape(self._staged, x, batch)
        except Exception as error:
            raise Mistake(
                f"`Problem.stage(x, batch)` can't be evaluated at the given x and a minibatch of "
                f"the data: {first_line(error)}"
            ) from error
        for leaf in jax.tree.leaves(staged):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise Mistake(
                    f"`Problem.stage(x, batch)` must return arrays of a floating type, but one is "
                    f"{leaf.dtype}; leave labels and indices in the batch, which the losses see."
                )


class Staged(NamedTuple):
    """What the stage makes of x, on every minibatch of a sample."""

    outer: PyTree  # on the outer minibatch
    inner: PyTree  # on the inner ones, stacked on a leading axis

    def at(self, place: Array) -> PyTree:
        """On the inner minibatch of this place."""
        single = all(a.shape[0] == 1 for a in jax.tree.leaves(self.inner))
        return jax.tree.map(lambda a: a[0 if single else place], self.inner)


class View(NamedTuple):
    """A problem as seen from one x on one sample."""

    problem: Problem
    x: PyTree  # what its losses take for x
    sample: Sample
    pull: Callable[[PyTree], PyTree]  # a gradient in that to one in the problem's own x


def check_problem(problem: Any) -> None:
    """Refuse what is not a problem."""
    if not isinstance(problem, Problem):
        raise Mistake(
            f"`problem` must be a biadam.Problem(outer=..., inner=...), but it is a "
            f"{type(problem).__name__}."
        )


def arrays(name: str, values: PyTree) -> PyTree:
    """The same with its leaves as arrays of JAX, or a `Mistake`."""
    try:
        return jax.tree.map(jnp.asarray, values)
    except (TypeError, ValueError) as error:
        raise Mistake(
            f"`{name}` must hold arrays of numbers, but one of its leaves can't be made one: "
            f"{first_line(error)}"
        ) from error


def _convolves(program: Any) -> bool:
    """Whether a program has a convolution in it, at any depth."""
    return "conv_general_dilated" in str(program)


def _check_variable(name: str, point: PyTree) -> None:
    leaves = jax.tree.leaves(point)
    if not leaves:
        raise Mistake(f"`{name}` must hold at least one array, but it is {point!r}.")
    for leaf in leaves:
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise Mistake(
                f"`{name}` must be of a floating type, but it has a leaf of type {dtype}; "
                f"write for example {name}.astype(float)."
            )
        if not isinstance(leaf, jax.core.Tracer) and not bool(tree.all_finite(leaf)):
            raise Mistake(f"`{name}` must start finite, but it holds a NaN or an infinity.")


def first_line(error: Exception) -> str:
    """What an exception says, for a sentence of ours."""
    return ": ".join((type(error).__name__, *str(error).strip().splitlines()[:1]))
