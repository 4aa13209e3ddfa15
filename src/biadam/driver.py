"""The driver: the only loop in the library."""

import enum
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Key, PRNGKeyArray, PyTree

from . import errors, tree
from .data import AbstractSource
from .outputs import AbstractOutput, Last
from .problem import Calls, Levels, Problem, Sample, arrays, check_problem, first_line
from .progress import Progress
from .proximal import AbstractProximal
from .sets import AbstractSet, Free
from .solver import LOOKS, AbstractSolver, Info


class Outcome(enum.StrEnum):
    """How a run ended."""

    OK = "ok"
    DIVERGED = "diverged"


class DivergedWarning(RuntimeWarning):
    """A run met a value that is not finite; its result is the last finite point."""


class IdleWarning(UserWarning):
    """A part of a method had nothing to do, such as a matrix that adapts to nothing."""


class ActiveConstraintWarning(UserWarning):
    """The inner variable rests against its set, where the implicit hypergradient is wrong."""


@dataclass(frozen=True)
class OfState:
    """A metric of the whole state of a method, in place of one of (x, y)."""

    function: Callable[[Any], Any]


Metric = Callable[[PyTree, PyTree], Any] | OfState


@dataclass(frozen=True)
class Result:
    """What a run found and how it went.

    The arrays of `metrics` and `info` have an entry for each evaluation: `at` holds the number of
    steps taken by then, `clock` the seconds of stepping, and `calls` the oracle calls.
    """

    x: PyTree
    y: PyTree
    state: Any
    outcome: Outcome
    message: str
    steps: int
    seconds: float  # of stepping alone, without compilation and evaluation
    compile_seconds: float
    oracle_calls: dict[str, int]
    metrics: dict[str, np.ndarray]
    info: dict[str, np.ndarray]
    at: np.ndarray
    clock: np.ndarray
    calls: np.ndarray  # a row for each evaluation, a column for each kind in `oracle_calls`


def run(
    problem: Problem,
    solver: AbstractSolver,
    data: AbstractSource,
    x: PyTree,
    y: PyTree,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    key: PRNGKeyArray,
    metrics: Mapping[str, Metric] | None = None,
    every: int | None = None,
    evaluations: int = 50,
    output: AbstractOutput = Last(),
    compiled_loop: bool | None = None,
    progress: bool | None = None,
) -> Result:
    """Solve a problem: take steps until their number or the time is used up.

    Args:
        problem: what is solved.
        solver: how.
        data: where the samples come from.
        x: where the outer variable starts.
        y: where the inner variable starts.
        steps: how many steps to take.
        seconds: how long to step; compilation and evaluation do not count. With both, the first
            that is reached ends the run.
        key: names all the randomness. Equal keys give equal results, bit for bit.
        metrics: functions of (x, y), or `OfState` with a function of the method's state; called
            outside the compiled loop.
        every: steps between evaluations; by default so many that there are about `evaluations`.
        evaluations: over the run, where `every` does not say.
        output: which iterate to return, of `biadam.outputs`.
        compiled_loop: run many steps inside one compiled loop; otherwise every step is its own
            call. By default a loop, unless the losses convolve on a CPU, whose compiler makes
            slow code of convolutions in loops.
        progress: show a bar; by default if a person is watching.
    """
    wanted = {} if metrics is None else metrics
    _check(problem, solver, data, steps, seconds, every, evaluations, wanted, output)
    key = _one_key(key)
    x, y = arrays("x", x), arrays("y", y)
    first_sample = data(key, 0, solver.batches)
    _check_minibatches(first_sample, solver.batches)
    problem.check(x, y, first_sample)
    x = _check_start("x", x, "outer_set", problem.outer_set)
    y = _check_start("y", y, "inner_set", problem.inner_set)
    if compiled_loop is None:
        compiled_loop = jax.default_backend() != "cpu" or not problem.convolves(x, y, first_sample)
    machine = _Machine(_Parts(problem, tree.real(solver), data, output, key), compiled_loop)

    begun = time.perf_counter()
    at = machine.start(x, y)
    jax.block_until_ready(machine.warm(at))
    compile_seconds = time.perf_counter() - begun

    pace = _Pace(steps, seconds, every, evaluations)
    log = _Log(wanted)
    clock, done, outcome, totals, best = 0.0, 0, Outcome.OK, Calls(), None
    message = "all that was asked for was done."
    first = machine.losses(at)
    _check_losses(first)
    _check_gradients(at.info)
    watched = progress if progress is not None else sys.stderr.isatty()
    with Progress(watched, steps, seconds) as bar:
        while True:
            totals, at = totals.plus(Calls(*map(int, at.calls))), at.counted()
            if pace.due(done, clock):
                values = log.evaluate(at, done, clock, totals)
                best = output.judge(best, at.state.point, values)
                bar.tell(values)
                pace.evaluated(done, clock)
                blown = _blown_up(first, machine.losses(at))
                if blown:
                    outcome, message = Outcome.DIVERGED, f"by step {done} {blown}; {ADVICE}"
                    break
            if pace.over(done, clock):
                break
            count = pace.chunk(done, clock, watched)
            begun = time.perf_counter()
            new = jax.block_until_ready(machine.advance(at, count))
            clock += time.perf_counter() - begun
            taken = int(new.step) - int(at.step)
            if not bool(new.finite):
                outcome = Outcome.DIVERGED
                message = (
                    f"the point stopped being finite at step {done + taken}, and the result is "
                    f"the last finite one; {ADVICE}"
                )
                at = machine.advance(at, taken - 1)
                done += taken - 1
                totals = totals.plus(Calls(*map(int, at.calls)))
                break
            at, done = new, done + taken
            bar.move(done, clock)
    if outcome is Outcome.DIVERGED:
        warnings.warn(message, DivergedWarning, stacklevel=2)
    for remark in solver.remarks(problem, at.state) if done else []:
        warnings.warn(remark, IdleWarning, stacklevel=2)
    if not isinstance(problem.inner_set, Free) and machine.clips(at, min(done // 10, LOOKS)):
        warnings.warn(
            f"at the end of the run `inner_set` ({type(problem.inner_set).__name__}) still holds y "
            f"back; the hypergradient assumes that its border is not reached at y*(x), and is not "
            f"the gradient of F here: widen the set, or move what it says into the inner loss.",
            ActiveConstraintWarning,
            stacklevel=2,
        )
    chosen = output.pick(at.kept, best, at.state.point)
    return Result(
        chosen.x,
        chosen.y,
        at.state,
        outcome,
        message,
        done,
        clock,
        compile_seconds,
        totals._asdict(),
        *log.arrays(),
    )


class _At(eqx.Module):
    """Where a run is: all that the compiled loop carries."""

    state: Any
    kept: Any
    info: Info
    calls: Calls  # since they were last counted
    step: Array  # steps taken
    finite: Array

    def counted(self) -> "_At":
        """Calls start over, so that no counter overflows."""
        zero = Calls(*(jnp.zeros_like(n) for n in self.calls))
        return eqx.tree_at(lambda a: a.calls, self, zero)


class _Parts(eqx.Module):
    """All that a step needs beside where it is."""

    problem: Problem
    solver: AbstractSolver
    data: AbstractSource
    output: AbstractOutput
    key: Key[Array, ""]

    def sample(self, step: Any) -> Sample:
        return self.data(self.key, step, self.solver.batches)


class _Machine:
    """The compiled parts of one run."""

    def __init__(self, parts: _Parts, compiled_loop: bool):
        self.parts: _Parts = tree.with_arrays(parts)  # changing a number must not recompile
        self.compiled_loop = compiled_loop

    def start(self, x: PyTree, y: PyTree) -> _At:
        _trace(_start, self.parts, x, y)
        return _start(self.parts, x, y)

    def losses(self, at: _At) -> dict[str, float]:
        """Both losses on the minibatches of the start: normalised steps can blow up finitely."""
        return {name: float(loss) for name, loss in _losses(self.parts, at.state.point).items()}

    def warm(self, at: _At) -> _At:
        """Compile what `advance` calls, and throw away what it returns."""
        if self.compiled_loop:
            _trace(_loop, self.parts, at, jnp.zeros((), jnp.int32))
            return self.advance(at, 0)
        _trace(_step, self.parts, at)
        return _step(self.parts, at)

    def advance(self, at: _At, count: int) -> _At:
        """Take ``count`` steps, or fewer if the point stops being finite."""
        if self.compiled_loop:
            return _loop(self.parts, at, jnp.asarray(count, jnp.int32))
        for _ in range(count):
            at = _step(self.parts, at)
            if not bool(at.finite):
                break
        return at

    def clips(self, at: _At, count: int) -> bool:
        """Whether ``inner_set`` holds y back in the mean of so many further states.

        In a mean the noise of directions cancels, since y stays where it is but for noise, and
        what the set takes away does not. No states, as after a short run, tell nothing.
        """
        mean = None
        for i in range(count):
            at = self.advance(at, 1)
            numbers, rest = eqx.partition(at.state, eqx.is_inexact_array)
            mean = numbers if mean is None else _mean(1 / (i + 1), numbers, mean)
        return count > 0 and bool(_clips(self.parts, eqx.combine(mean, rest)))


@eqx.filter_jit
def _start(parts: _Parts, x: PyTree, y: PyTree) -> _At:
    state, info = parts.solver.init(parts.problem, x, y, parts.sample(0))
    kept, zero = parts.output.init(state.point), jnp.zeros((), jnp.int32)
    return _At(state, kept, info, info.calls, zero, jnp.array(True))


@eqx.filter_jit
def _losses(parts: _Parts, point: Levels) -> dict[str, Array]:
    sample, problem = parts.sample(0), parts.problem
    return {
        "outer": problem.outer_loss(point.x, point.y, sample.outer),
        "inner": problem.inner_loss(point.x, point.y, sample.batch(0)),
    }


_mean = eqx.filter_jit(lambda rate, new, old: tree.mix(rate, new, old))


@eqx.filter_jit
def _clips(parts: _Parts, state: Any) -> Array:
    return parts.solver.clips(parts.problem, state, parts.sample)


def _next(parts: _Parts, at: _At) -> _At:
    step = at.step + 1
    sample = parts.sample(step)
    state, info = parts.solver.step(parts.problem, at.state, sample)
    draw = jr.fold_in(sample.key, 0)
    kept = parts.output.update(at.kept, at.state.point, step, draw)
    finite = tree.all_finite(state.point)
    return _At(state, kept, info, at.calls.plus(info.calls), step, finite)


_step = eqx.filter_jit(_next)


@eqx.filter_jit
def _loop(parts: _Parts, at: _At, count: Array) -> _At:
    last = at.step + count
    going = lambda at: (at.step < last) & at.finite
    return lax.while_loop(going, lambda at: _next(parts, at), at)


def _trace(function: Any, *arguments: Any) -> None:
    """Refuse losses that the method can't differentiate; the call to come traces nothing anew."""
    try:
        function.lower(*arguments)
    except errors.Mistake:
        raise
    except Exception as error:
        raise errors.Mistake(
            f"the method can't take a step on this problem, whose losses must be differentiable "
            f"twice by JAX, forward over reverse: {first_line(error)}"
        ) from error


class _Pace:
    """When to evaluate, when to stop, and how many steps to take until then."""

    def __init__(
        self, steps: int | None, seconds: float | None, every: int | None, evaluations: int
    ):
        self.steps, self.seconds = steps, seconds
        self.every, self.evaluations = every, evaluations
        if every is None and steps is not None and seconds is None:
            self.every = max(1, math.ceil(steps / evaluations))
        self.next_time = 0.0

    def over(self, done: int, clock: float) -> bool:
        return (self.steps is not None and done >= self.steps) or (
            self.seconds is not None and clock >= self.seconds
        )

    def due(self, done: int, clock: float) -> bool:
        if done == 0 or self.over(done, clock):
            return True
        return done % self.every == 0 if self.every else clock >= self.next_time

    def evaluated(self, done: int, clock: float) -> None:
        if self.seconds is not None:
            self.next_time = clock + self.seconds / self.evaluations

    def chunk(self, done: int, clock: float, watched: bool) -> int:
        limits = [10**6]
        if self.steps is not None:
            limits.append(self.steps - done)
        if self.every is not None:
            limits.append(self.every - done % self.every)
        if self.seconds is not None:
            until = self.seconds if self.every else min(self.seconds, self.next_time)
            limits.append(self._fit(done, clock, min(REFRESH, until - clock)))
        else:
            limits.append(self._fit(done, clock, REFRESH if watched else ANSWER))
        return min(limits)

    def _fit(self, done: int, clock: float, span: float) -> int:
        """How many steps fit into a span of time, growing from one while nothing is known."""
        return max(1, min(int(done / clock * span), 4 * done)) if clock > 0 else 1


REFRESH = 0.2  # seconds between two looks at the clock
ANSWER = 1.0  # seconds that an interrupt may wait where nobody watches


class _Log:
    """What the evaluations saw."""

    def __init__(self, metrics: Mapping[str, Metric]):
        self.metrics = metrics
        self.rows: list[tuple[dict[str, float], dict[str, float], int, float, Calls]] = []

    def evaluate(self, at: _At, done: int, clock: float, totals: Calls) -> dict[str, float]:
        values = {name: _scalar(name, _measure(m, at.state)) for name, m in self.metrics.items()}
        info = {n: float(v) for n, v in at.info._asdict().items() if n != "calls"}
        self.rows.append((values, info, done, clock, totals))
        return values

    def arrays(self) -> tuple[Any, ...]:
        values, info, at, clock, calls = zip(*self.rows, strict=True)
        columns = lambda rows: {name: np.array([row[name] for row in rows]) for name in rows[0]}
        return columns(values), columns(info), np.array(at), np.array(clock), np.array(calls)


def _measure(metric: Metric, state: Any) -> Any:
    if isinstance(metric, OfState):
        return metric.function(state)
    return metric(state.point.x, state.point.y)


def _scalar(name: str, value: Any) -> float:
    array = np.asarray(value)
    real = any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer))
    if array.shape != () or not real:
        raise errors.Mistake(
            f"the metric {name!r} must return one real number, but it returned an array of shape "
            f"{array.shape} and type {array.dtype}."
        )
    return float(array)


def _check(
    problem: Problem,
    solver: AbstractSolver,
    data: AbstractSource,
    steps: int | None,
    seconds: float | None,
    every: int | None,
    evaluations: int,
    metrics: Mapping[str, Metric],
    output: AbstractOutput,
) -> None:
    check_problem(problem)
    if not isinstance(solver, AbstractSolver):
        raise errors.Mistake(
            f"`solver` must be what a function of biadam.solvers returns, but it is {solver!r}."
        )
    if not isinstance(data, AbstractSource):
        raise errors.Mistake(
            f"`data` must be a source such as biadam.data.Minibatches, but it is a "
            f"{type(data).__name__}."
        )
    if steps is None and seconds is None:
        raise errors.Mistake("`steps` or `seconds` must say how long to run, but neither is given.")
    if steps is not None:
        errors.count("steps", steps, least=0)
    if seconds is not None:
        errors.number("seconds", seconds, above=0)
    if every is not None:
        errors.count("every", every)
    errors.count("evaluations", evaluations)
    if not isinstance(metrics, Mapping):
        raise errors.Mistake(
            f"`metrics` must be a dictionary of functions of (x, y) by name, but it is {metrics!r}."
        )
    errors.part("output", output, AbstractOutput, "outputs")
    output.check(metrics)


def _one_key(key: Any) -> Key[Array, ""]:
    """The key, of the new kind or the old, or a `Mistake`."""
    if isinstance(key, jax.Array):
        if jnp.issubdtype(key.dtype, jnp.unsignedinteger):
            key = jr.wrap_key_data(key)
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
            return key
    told = f"an array of shape {key.shape}" if isinstance(key, jax.Array) else repr(key)
    raise errors.Mistake(f"`key` must be one key, such as jax.random.key(0), but it is {told}.")


def _check_minibatches(sample: Sample, batches: int) -> None:
    """Refuse too few, which indices would read several times without a word."""
    shapes = [jnp.shape(a) for a in jax.tree.leaves(sample.inner)]
    counts = {shape[0] if shape else 0 for shape in shapes}
    if counts - {batches} and counts != {1}:
        raise errors.Mistake(
            f"`data` must give the {batches} inner minibatches that the method asks for, or one "
            f"for all of them, on the leading axis of every array of Sample.inner, but their "
            f"shapes are {', '.join(map(str, shapes))}."
        )


def _check_gradients(info: Info) -> None:
    for name, norm in (("outer", info.outer_norm), ("inner", info.inner_norm)):
        if not math.isfinite(norm):
            raise errors.Mistake(
                f"the {name} direction is {float(norm)} at the start although the losses are "
                f"finite there; start from another point, or mend the losses where their "
                f"derivatives are not finite, as those of a root or a norm at zero."
            )


def _check_losses(first: dict[str, float]) -> None:
    for name, loss in first.items():
        if not math.isfinite(loss):
            raise errors.Mistake(
                f"`Problem.{name}` is {loss} at the start on a minibatch of the data; start from "
                f"another point, or mend the loss where it divides by zero or overflows."
            )


def _check_start(name: str, start: PyTree, argument: str, home: AbstractProximal) -> PyTree:
    """Refuse a start outside its set, but for round-off, which is taken away.

    A term is finite everywhere. A set that couples coordinates spreads what is wrong with a sum
    over all of them, so sums must agree as well as entries.
    """
    leaves = []
    for where, part, point in home.parts(name, start):
        inside = part.project(point, 1.0) if isinstance(part, AbstractSet) else point
        z, u = _doubles(point), _doubles(inside)
        eps = max((float(jnp.finfo(a.dtype).eps) for a in jax.tree.leaves(point)), default=0.0)
        tolerance = min(eps**0.5, 1e-5) + 4 * eps
        for size in (np.max, np.sum):
            far, most = (size(np.abs(a), initial=0) for a in (z - u, np.maximum(abs(z), abs(u))))
            if not far <= tolerance * most:
                raise errors.Mistake(
                    f"`{where}` must start inside `{argument}`, but an entry of it is "
                    f"{np.max(np.abs(z - u)):.2g} away from its projection onto "
                    f"{type(part).__name__}; start there, from the set's project({where}, 1.0)."
                )
        leaves += jax.tree.leaves(inside)
    return jax.tree.unflatten(jax.tree.structure(start), leaves)


def _doubles(values: PyTree) -> np.ndarray:
    parts = [np.ravel(np.asarray(a, np.float64)) for a in jax.tree.leaves(values)]
    return np.concatenate([np.zeros(0), *parts])


def _blown_up(first: dict[str, float], now: dict[str, float]) -> str:
    """Say which loss has grown out of all proportion, if one has."""
    for name, loss in now.items():
        if not loss <= BLOW_UP * (1 + abs(first[name])):
            return f"the {name} loss of a minibatch has grown from {first[name]:.3g} to {loss:.3g}"
    return ""


BLOW_UP = 1e3
ADVICE = (
    "try smaller step sizes (a tenth of these), a larger floor of the metrics, or a shorter step "
    "of the hypergradient's series or system."
)
