r"""S-TFBO and D-TFBO: bilevel descent without step sizes to tune.

Every level divides its direction by the root of the sum of the squared norms that it has seen. With
:math:`G_y = g_y`, :math:`G_s = H s - f_y`, :math:`G_x = f_x - J s`, S-TFBO is, all at one point,

.. math::
    b_{k+1}^2 &= b_k^2 + \|G_y\|^2, \quad c_{k+1}^2 = c_k^2 + \|G_s\|^2, \quad
    a_{k+1}^2 = a_k^2 + \|G_x\|^2, \quad \varphi = \max(b_{k+1}, c_{k+1}), \\
    y_{k+1} &= y_k - G_y / b_{k+1}, \qquad s_{k+1} = s_k - G_s / \varphi, \qquad
    x_{k+1} = x_k - G_x / (a_{k+1} \varphi),

and D-TFBO, from the last y and s and with b and c begun anew at each step,

.. math::
    \text{while } \|G_y\|^2 > \epsilon: \quad & b^2 \leftarrow b^2 + \|G_y\|^2, \quad
        y \leftarrow y - G_y / b, \\
    \text{while } \|G_s\|^2 > \epsilon: \quad & c^2 \leftarrow c^2 + \|G_s\|^2, \quad
        s \leftarrow s - G_s / c, \\
    & a^2 \leftarrow a^2 + \|G_x\|^2, \quad x \leftarrow x - G_x / a.

The theory is deterministic: for :math:`\|\nabla F\| \le \epsilon` S-TFBO takes
:math:`O(\epsilon^{-2} \log^4(1 / \epsilon))` steps, and D-TFBO :math:`O(\epsilon^{-2})` outer ones
with a tolerance of one over their number.

Reference: Y. Yang, H. Ban, M. Huang, S. Ma, K. Ji, Tuning-Free Bilevel Optimization: New Algorithms
and Convergence Analysis, 2024, arXiv:2410.05140.

Departures:
    * ``step_size`` multiplies the numerators, of x and of y and s; the paper's method is that of
      (1, 1). A numerator is a length, like any step divided by a norm: S-TFBO is fast where it is
      of the order of the way to go, and slow where it is far below. On the test bed of condition
      10, where x travels 9 and s up to 220, 10,000 steps leave a relative error of 0.8 with (1, 1)
      and of less than 1e-10 with (10, 3), which is the default of `s_tfbo`.
    * The slots are fixed: the accumulators are the metrics, and that of x is multiplied by the
      larger of those of y and s, which no metric of a single level sees. An average of directions
      would not be what the sums of squares have seen.
    * D-TFBO's loops end after a number of steps in any case. Each of their steps, and J, has an
      inner minibatch of its own (first those of y, then those of s, then that of J); on minibatches
      too small for the tolerance the loops run to their end.
    * The authors' code runs ten steps of either loop without the tests, keeps D-TFBO's accumulators
      from step to step (``restart=False, tolerance=0.0``), and adds 1e-8 to the denominators, which
      positive accumulators make needless.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import optax.tree
from jax import lax
from jaxtyping import Array, Int, PyTree

from .. import errors, schedules, tree
from ..hypergradients import LinearSystem
from ..problem import Calls, Levels, Problem, Sample
from ..schedules import Number
from ..solver import AbstractSolver, Info, info_of, refuse_sets
from .about import About, method


class TuningFreeState(NamedTuple):
    """What the next step needs."""

    step: Int[Array, ""]  # k
    point: Levels  # x_k, y_k, s_k
    sums: Levels  # a^2, b^2, c^2


class SingleTuningFree(AbstractSolver):
    """S-TFBO; see the module."""

    step_size: tuple[Number, Number]
    start: Levels  # a_0, b_0, c_0
    batches = 1

    def __check_init__(self) -> None:
        _check(self.step_size, self.start)

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[TuningFreeState, Info]:
        """Begin with s = 0; nothing is looked at before the first step."""
        return _begin("s_tfbo", problem, x, y, self.start)

    def step(
        self, problem: Problem, state: TuningFreeState, sample: Sample
    ) -> tuple[TuningFreeState, Info]:
        """One step of all three levels."""
        field = _SYSTEM(problem, state.point, sample)
        sums = tree.each(lambda total, d: total + _squared(d), state.sums, field.value)
        a, b, c = (jnp.sqrt(total) for total in sums)
        phi = jnp.maximum(b, c)
        outer_step, inner_step = (_at(size, state.step) for size in self.step_size)
        rates = Levels(outer_step / (a * phi), inner_step / b, inner_step / phi)
        point = tree.each(
            lambda z, d, rate: tree.add_scale(z, -rate, d), state.point, field.value, rates
        )
        info = info_of(field.calls, jnp.ones(()), field.value.x, field.value.y, field.residual)
        return TuningFreeState(state.step + 1, point, sums), info


class DoubleTuningFree(AbstractSolver):
    """D-TFBO; see the module."""

    step_size: tuple[Number, Number]
    start: Levels  # a_0, b_0, c_0
    tolerance: Any  # epsilon, on the squared norms
    inner_steps: int = eqx.field(static=True)  # at most, of each loop
    restart: bool = eqx.field(static=True)  # b and c begin anew at each step

    def __check_init__(self) -> None:
        _check(self.step_size, self.start)
        errors.number("tolerance", self.tolerance, least=0)
        errors.count("inner_steps", self.inner_steps)

    @property
    def batches(self) -> int:
        """One for each step of either loop, and one for J."""
        return 2 * self.inner_steps + 1

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, sample: Sample
    ) -> tuple[TuningFreeState, Info]:
        """Begin with s = 0; nothing is looked at before the first step."""
        return _begin("d_tfbo", problem, x, y, self.start)

    def step(
        self, problem: Problem, state: TuningFreeState, sample: Sample
    ) -> tuple[TuningFreeState, Info]:
        """Both loops, then one outer step."""
        x, y, s = state.point
        outer_step, inner_step = (_at(size, state.step) for size in self.step_size)
        _, b, c = _sums(self.start) if self.restart else state.sums

        slope = lambda i, y: problem.inner_gradient(x, y, sample.batch(i))
        y, b, looks, v = self._descend(slope, y, b, inner_step)
        f_x, f_y = problem.outer_gradients(x, y, sample.outer)

        def gap(i: Array, s: PyTree) -> PyTree:
            product = problem.hessian_product(x, y, sample.batch(self.inner_steps + i), s)
            return tree.add_scale(product, -1.0, f_y)

        s, c, products, _ = self._descend(gap, s, c, inner_step)
        cross = problem.cross_product(x, y, sample.batch(2 * self.inner_steps), s)
        w = tree.add_scale(f_x, -1.0, cross)
        a = state.sums.x + _squared(w)
        x = tree.add_scale(x, -outer_step / jnp.sqrt(a), w)
        info = info_of(Calls(1, looks, products, 1), jnp.ones(()), w, v)
        return TuningFreeState(state.step + 1, Levels(x, y, s), Levels(a, b, c)), info

    def _descend(
        self, field: Callable[[Array, PyTree], PyTree], z: PyTree, total: Array, size: Array
    ) -> tuple[PyTree, Array, Array, PyTree]:
        """The end of a loop, its sum, how often it looked, and the last direction it saw."""

        def going(carry: tuple[Any, ...]) -> Array:
            _, _, i, _, moved = carry
            return (i < self.inner_steps) & moved

        def look(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            z, total, i, _, _ = carry
            d = field(i, z)
            square = _squared(d)
            moves = square > jnp.asarray(self.tolerance, square.dtype)
            total = jnp.where(moves, total + square, total)
            rate = jnp.where(moves, size / jnp.sqrt(total), jnp.zeros_like(total))
            return tree.add_scale(z, -rate, d), total, i + 1, d, moves

        begin = (z, total, jnp.zeros((), jnp.int32), tree.scale(0.0, z), jnp.array(True))
        z, total, looks, d, _ = lax.while_loop(going, look, begin)
        return z, total, looks, d


_SYSTEM = LinearSystem()  # for its field; the step size of its own is not looked at


def _begin(
    name: str, problem: Problem, x: PyTree, y: PyTree, start: Levels
) -> tuple[TuningFreeState, Info]:
    refuse_sets(problem, name)
    point = _SYSTEM.lift(x, y)
    state = TuningFreeState(jnp.ones((), jnp.int32), point, _sums(start))
    return state, info_of(Calls(), jnp.ones(()), tree.scale(0.0, x), point.s)


def _check(step_size: Any, start: Any) -> None:
    schedules.check_pair("step_size", step_size)
    if not isinstance(start, Levels):
        raise errors.Mistake(f"`start` must be biadam.Levels(x, y, s), but it is {start!r}.")
    for name, value in start._asdict().items():
        errors.number(f"start.{name}", value, above=0)


def _sums(start: Levels) -> Levels:
    return tree.each(lambda root: jnp.square(jnp.asarray(root, jnp.result_type(float))), start)


def _squared(direction: PyTree) -> Array:
    return jnp.asarray(optax.tree.norm(direction, squared=True), jnp.result_type(float))


def _at(number: Number, step: Array) -> Array:
    return jnp.asarray(schedules.at(number, step), jnp.result_type(float))


@method(
    About(
        "Yang, Ban, Huang, Ma, Ji, S-TFBO",
        2024,
        "2410.05140",
        "single",
        "det. O~(eps^-2)",
        (False, False),
    )
)
def s_tfbo(
    step_size: tuple[Number, Number] = (10.0, 3.0),
    *,
    start: Levels = Levels(1.0, 1.0, 1.0),
) -> SingleTuningFree:
    r"""Build S-TFBO.

    Args:
        step_size: what the numerators are multiplied by, of x and of (y, s).
        start: :math:`(a_0, b_0, c_0)`, the accumulators of x, y and s at the start.
    """
    return SingleTuningFree(step_size, start)


@method(
    About(
        "Yang, Ban, Huang, Ma, Ji, D-TFBO",
        2024,
        "2410.05140",
        "double",
        "det. O(eps^-2)",
        (False, False),
        adaptive=True,
    )
)
def d_tfbo(
    step_size: tuple[Number, Number] = (1.0, 1.0),
    *,
    start: Levels = Levels(1.0, 1.0, 1.0),
    tolerance: float = 1e-3,
    inner_steps: int = 10,
    restart: bool = True,
) -> DoubleTuningFree:
    r"""Build D-TFBO.

    Args:
        step_size: what the numerators are multiplied by, of x and of (y, s).
        start: :math:`(a_0, b_0, c_0)`, the accumulators of x, y and s at the start.
        tolerance: :math:`\epsilon`, in the theory one over the number of steps.
        inner_steps: how many steps either loop may take.
        restart: begin the accumulators of y and s anew at each step.
    """
    return DoubleTuningFree(step_size, start, tolerance, inner_steps, restart)
