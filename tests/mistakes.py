"""The table of mistakes: what a user does, and a part of the one sentence that answers."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import biadam
from biadam import Problem, metrics, models, outputs, proximal, schedules, solvers
from biadam.comparison.referee import TUNING
from biadam.data import AbstractSource, FullBatch, Minibatches, omniglot
from biadam.data.episodes import Episodes, Groups, evaluation_episodes
from biadam.double_loop import Amortized
from biadam.hypergradients import (
    ConjugateGradient,
    Exact,
    FixedPoint,
    LinearSystem,
    NeumannRandom,
    NeumannSum,
    PerSample,
    Unrolled,
)
from biadam.sets import Affine, Box, HalfSpace, L2Ball
from biadam.tasks import (
    Learned,
    Quadratic,
    class_groups,
    few_shot_task,
    fresh_tasks,
    hyper_cleaning,
    ridge,
    selection,
)
from biadam.tasks.few_shot import FewShot

BED = Quadratic((2, 3), examples=4, noise=0.1)
DIGITS = omniglot.few_shot_digits()[1]


def compare(
    task: Any = hyper_cleaning, options: Any = None, seconds: Any = 1.0, **given: Any
) -> Any:
    words = {"out": "nowhere", "seconds": seconds, **given}
    return biadam.compare(task, options, **words)


def run(
    problem: Problem = BED.problem,
    solver: Any = None,
    data: Any = None,
    x: Any = BED.x0,
    y: Any = BED.y0,
    **given: Any,
) -> Any:
    return biadam.run(
        problem,
        solvers.biadam() if solver is None else solver,
        BED.minibatches(2) if data is None else data,
        x,
        y,
        **{"steps": 3, "key": jax.random.key(0), **given},
    )


def rows(x: Any, batch: Any) -> Any:
    """A loss without its mean."""
    return jnp.sum((x[None] - batch["centre"]) ** 2, axis=1)


def hypergradient(problem: Any = BED.problem, inner_batch: Any = BED.inner_data) -> Any:
    return biadam.hypergradient(problem, BED.x0, BED.y0, BED.outer_data, inner_batch)


def short(task: Any) -> Any:
    return run(task.problem, solvers.biadam_tracked(), task.source, jnp.full(7, 5 / 7), task.y0)


class Fewer(AbstractSource):
    """Two inner minibatches, whatever is asked for."""

    def __call__(self, key: Any, step: Any, batches: int) -> Any:
        return BED.minibatches(2)(key, step, 2)


def root(x: Any, y: Any, batch: Any) -> Any:
    """A loss that is finite at x = 0, with a gradient that is not."""
    return BED.outer(jnp.zeros(2), jnp.zeros(3), batch) + jnp.sqrt(jnp.sum(x**2))


@jax.custom_vjp
def once(y: Any) -> Any:
    """A function with a backward pass of its own, which has no derivative."""
    return jnp.sum(y**2)


once.defvjp(lambda y: (once(y), y), lambda y, slope: (2 * slope * y,))


def looped(y: Any) -> Any:
    """Half of a half of the squares."""
    halve = lambda carry: (carry[0] + 1, carry[1] / 2)
    return jax.lax.while_loop(lambda carry: carry[0] < 2, halve, (0, jnp.sum(y**2)))[1]


class MistakeRow(NamedTuple):
    act: Callable[[], Any]
    answer: str  # a regular expression


MISTAKES: dict[str, MistakeRow] = {
    "missing mean": MistakeRow(
        lambda: run(Problem(lambda x, y, b: rows(x, b), BED.inner)),
        r"`Problem.outer\(x, y, batch\)` must return a scalar loss, .* \(2,\); take its mean",
    ),
    "loss and something more": MistakeRow(
        lambda: run(Problem(BED.outer, lambda x, y, b: (BED.inner(x, y, b), 1.0))),
        "`Problem.inner.* returned a tuple; return the loss alone",
    ),
    "loss of integers": MistakeRow(
        lambda: run(Problem(lambda x, y, b: jnp.argmax(x), BED.inner)),
        "must return a real number, but its type is int",
    ),
    "loss that fails on the shapes": MistakeRow(
        lambda: run(y=jnp.zeros(4)),
        "`Problem.outer.* can't be evaluated at the given x, y",
    ),
    "loss with a misspelt field": MistakeRow(
        lambda: run(Problem(lambda x, y, b: b["targt"].mean(), BED.inner)),
        "can't be evaluated .* 'targt'",
    ),
    "integer x": MistakeRow(
        lambda: run(x=jnp.zeros(2, int)),
        "`x` must be of a floating type, but it has a leaf of type int",
    ),
    "problem that is a pair": MistakeRow(
        lambda: run((BED.outer, BED.inner)), r"`problem` must be a biadam.Problem.* is a tuple"
    ),
    "set that is a pair": MistakeRow(
        lambda: Problem(BED.outer, BED.inner, outer_set=(0, 1)),
        r"`outer_set` must be one of biadam.sets, but it is \(0, 1\)",
    ),
    "loss that is NaN at the start": MistakeRow(
        lambda: run(Problem(BED.outer, lambda x, y, b: jnp.sum(jnp.log(y - 1)))),
        "`Problem.inner` is nan at the start",
    ),
    "number for a key": MistakeRow(
        lambda: run(key=0), r"`key` must be one key, such as jax.random.key\(0\), but it is 0"
    ),
    "several keys": MistakeRow(
        lambda: run(key=jax.random.split(jax.random.key(0), 3)), r"but it is an array of shape \(3,"
    ),
    "empty y": MistakeRow(lambda: run(y=()), "`y` must hold at least one array"),
    "NaN in the start": MistakeRow(
        lambda: run(x=jnp.asarray([0.0, jnp.nan])), "`x` must start finite"
    ),
    "box of another shape": MistakeRow(
        lambda: run(Problem(BED.outer, BED.inner, outer_set=Box(jnp.zeros(3), jnp.ones(3)))),
        r"lower.*\(2,\).*\(3,\)",
    ),
    "box of another structure": MistakeRow(
        lambda: run(Problem(BED.outer, BED.inner, outer_set=Box({"a": 0.0}, {"a": 1.0}))),
        "lower",
    ),
    "empty box": MistakeRow(lambda: Box(1.0, 0.0), "Box"),
    "box of words": MistakeRow(
        lambda: Box("a", "b"), "`Box.lower` must be a number or a pytree of them, but it has 'a'"
    ),
    "box of nothing": MistakeRow(lambda: Box(0.0, None), "`Box.upper` must be a number .* None"),
    "box at infinity": MistakeRow(
        lambda: Box(np.inf, np.inf), "`Box.lower` must leave some numbers inside, but it has inf"
    ),
    "ball of no radius": MistakeRow(
        lambda: L2Ball(None),
        "`L2Ball.radius` must be a number, but it is None",
    ),
    "groups of no weight": MistakeRow(
        lambda: proximal.GroupL1(None),
        "`GroupL1.weight` must be a number, but it is None",
    ),
    "normal that underflows": MistakeRow(
        lambda: HalfSpace(1e-60, 1.0).check("x", np.ones(3, np.float32)),
        "`HalfSpace.normal` must have an entry other than zero, but it has none in float32",
    ),
    "equations that round to the same": MistakeRow(
        lambda: Affine(np.array([[1.0, 1.0], [1.0, 1 + 1e-9]]), np.ones(2)).check(
            "x", np.ones(2, np.float32)
        ),
        "`Affine.matrix` must have linearly independent rows, .* rank 1 in float32",
    ),
    "term for the penalties": MistakeRow(
        lambda: ridge(outer_set=proximal.L1(0.1)),
        "`outer_set` must be one of biadam.sets, but it is L1",
    ),
    "decay of one, corrected": MistakeRow(
        lambda: metrics.Adam(1.0, corrected=True),
        "`Adam.decay` must be below 1 to be corrected, but it is 1.0",
    ),
    "decay of one in a norm, corrected": MistakeRow(
        lambda: metrics.Norm(1, corrected=True), "`Norm.decay` must be below 1 .* but it is 1,"
    ),
    "data of several lengths": MistakeRow(
        lambda: Minibatches(outer=(np.ones(3), np.ones(4)), inner=np.ones(3), size=1),
        r"`outer` must share their leading axis.*\(3,\), \(4,\)",
    ),
    "data without an axis": MistakeRow(
        lambda: Minibatches(outer=np.ones(3), inner=np.float64(1.0), size=1),
        "`inner` must share their leading axis",
    ),
    "empty data": MistakeRow(
        lambda: Minibatches(outer=np.ones((0, 2)), inner=np.ones(3), size=1),
        "`outer` must hold at least one example, but it is empty",
    ),
    "no data": MistakeRow(
        lambda: FullBatch({}, np.ones(3)), "`outer` must hold at least one array"
    ),
    "batch larger than the data": MistakeRow(
        lambda: Minibatches(outer=np.ones(9), inner=np.ones(3), size=4, replacement=False),
        "`size` of 4 is more than the 3 examples of the inner data",
    ),
    "batch of none": MistakeRow(
        lambda: Minibatches(outer=np.ones(9), inner=np.ones(3), size=0),
        r"`size \(outer\)` must be a whole number of at least 1, but it is 0",
    ),
    "three sizes": MistakeRow(
        lambda: Minibatches(outer=np.ones(9), inner=np.ones(3), size=(1, 2, 3)),
        r"`size` must be one number or a pair \(outer, inner\)",
    ),
    "size of a fraction": MistakeRow(
        lambda: Minibatches(outer=np.ones(9), inner=np.ones(3), size=2.5),
        r"`size \(outer\)` must be a whole number",
    ),
    "data of words": MistakeRow(
        lambda: Minibatches(outer=np.array(["a", "b"]), inner=np.ones(3), size=1),
        "`outer` must hold arrays of numbers, but one is of type <U1",
    ),
    "NaN in the data": MistakeRow(
        lambda: Minibatches(outer=np.array([1.0, np.nan, 2.0, np.inf]), inner=np.ones(3), size=1),
        "`outer` must be finite, but 2 of its 4 examples",
    ),
    "fewer inner minibatches than the method asks for": MistakeRow(
        lambda: run(data=Fewer(), solver=solvers.biadam(hypergradient=NeumannSum(6))),
        r"`data` must give the 8 inner minibatches .* but their shapes are \(2, 2, 2, 3\)",
    ),
    "words for x": MistakeRow(lambda: run(x="abc"), "`x` must hold arrays of numbers"),
    "words among the data of a hypergradient": MistakeRow(
        lambda: hypergradient(inner_batch={"a": "s"}), "`inner_batch` must hold arrays of numbers"
    ),
    "hypergradient of a pair of losses": MistakeRow(
        lambda: hypergradient((BED.outer, BED.inner)), r"`problem` must be a biadam.Problem"
    ),
    "hypergradient where the gradient is NaN": MistakeRow(
        lambda: hypergradient(Problem(root, BED.inner)),
        "the gradient of the outer loss in x is not finite at this point",
    ),
    "gradient that is NaN at the start": MistakeRow(
        lambda: run(Problem(root, BED.inner)),
        "the outer direction is nan at the start although the losses are finite",
    ),
    "inner gradient that is NaN at the start": MistakeRow(
        lambda: run(
            Problem(BED.outer, lambda x, y, b: BED.inner(x, y, b) + jnp.sqrt(jnp.sum(y**2)))
        ),
        "the inner direction is nan at the start",
    ),
    "loss that JAX differentiates only once": MistakeRow(
        lambda: run(Problem(BED.outer, lambda x, y, b: BED.inner(x, y, b) + once(y))),
        "differentiable twice by JAX, forward over reverse: TypeError: can't apply forward-mode",
    ),
    "loss with a while loop": MistakeRow(
        lambda: run(Problem(BED.outer, lambda x, y, b: BED.inner(x, y, b) + looped(y))),
        "differentiable twice by JAX, forward over reverse: ValueError: Reverse-mode",
    ),
    "complex metric": MistakeRow(
        lambda: run(metrics={"wave": lambda x, y: 1j}), "'wave' must return one real number"
    ),
    "negative step size of NumPy's": MistakeRow(
        lambda: solvers.biadam((np.float32(-1), 0.1)), r"`step_size\[outer\]` must be above 0"
    ),
    "class in place of a schedule": MistakeRow(
        lambda: solvers.biadam(mixing=schedules.PowerDecay),
        r"`mixing` must be a number or a schedule, .* the class PowerDecay; build one of it",
    ),
    "schedule that fails": MistakeRow(
        lambda: run(solver=solvers.biadam(mixing=lambda: 0.1)),
        "a schedule must be a function of the step number .* fails: TypeError",
    ),
    "number for the set of the system": MistakeRow(
        lambda: LinearSystem(domain=3),
        "`LinearSystem.domain` must be one of biadam.sets, but it is 3",
    ),
    "set of the system of another shape": MistakeRow(
        lambda: run(
            solver=solvers.biadam_tracked(
                hypergradient=LinearSystem(domain=Box(jnp.zeros(7), jnp.ones(7)))
            )
        ),
        r"`Box.lower`.*\(7,\)",
    ),
    "negative steps": MistakeRow(
        lambda: run(steps=-1), "`steps` must be a whole number of at least 0, but it is -1"
    ),
    "steps that are no number": MistakeRow(
        lambda: run(steps="3"), "`steps` must be a whole number"
    ),
    "no end": MistakeRow(lambda: run(steps=None), "`steps` or `seconds` must say how long"),
    "negative seconds": MistakeRow(lambda: run(seconds=-1.0), "`seconds` must be above 0"),
    "evaluation every 0 steps": MistakeRow(lambda: run(every=0), "`every` must be a whole number"),
    "no evaluation": MistakeRow(
        lambda: run(evaluations=0), "`evaluations` must be a whole number of at least 1"
    ),
    "metric that is no number": MistakeRow(
        lambda: run(metrics={"all": lambda x, y: x}),
        r"the metric 'all' must return one real number",
    ),
    "metric that is a word": MistakeRow(
        lambda: run(metrics={"word": lambda x, y: "abc"}),
        "the metric 'word' must return one real number",
    ),
    "one metric without a name": MistakeRow(
        lambda: run(metrics=lambda x, y: 0.0), "`metrics` must be a dictionary of functions"
    ),
    "output by name": MistakeRow(
        lambda: run(output="last"), "`output` must be one of biadam.outputs, but it is 'last'"
    ),
    "best of no metrics": MistakeRow(
        lambda: run(output=outputs.Best("loss")), "no metric of this run 'loss': there are none"
    ),
    "best by no metric": MistakeRow(
        lambda: run(output=outputs.Best("los"), metrics={"loss": lambda x, y: 0.0}),
        "no metric of this run 'los': did you mean 'loss'",
    ),
    "factory in place of a solver": MistakeRow(
        lambda: run(solver=solvers.biadam), "`solver` must be what a function of biadam.solvers"
    ),
    "arrays in place of a source": MistakeRow(
        lambda: run(data=np.ones(3)), "`data` must be a source such as biadam.data.Minibatches"
    ),
    "one step size": MistakeRow(
        lambda: solvers.biadam(0.1), r"`step_size` must be a pair \(outer, inner\), but it is 0.1"
    ),
    "negative step size": MistakeRow(
        lambda: solvers.biadam((0.1, -1.0)), r"`step_size\[inner\]` must be above 0, but it is -1"
    ),
    "step size that is NaN": MistakeRow(
        lambda: solvers.biadam((float("nan"), 0.1)), r"`step_size\[outer\]` must be above 0"
    ),
    "endless step size": MistakeRow(
        lambda: solvers.biadam((float("inf"), 0.1)),
        r"`step_size\[outer\]` must be above 0 and finite, but it is inf",
    ),
    "step size of each coordinate": MistakeRow(
        lambda: run(solver=solvers.biadam((np.ones(2), 0.1))), r"its shape is \(2,\); scale the"
    ),
    "schedule of several numbers": MistakeRow(
        lambda: run(solver=solvers.biadam(mixing=lambda t: jnp.ones(2))), r"its shape is \(2,\)"
    ),
    "step size as text": MistakeRow(
        lambda: solvers.biadam(("0.1", 0.1)), r"`step_size\[outer\]` must be a number"
    ),
    "number in place of a part": MistakeRow(
        lambda: solvers.biadam(hypergradient=3),
        "`hypergradient` must be one of biadam.hypergradients, but it is 3",
    ),
    "tracked system in a method without one": MistakeRow(
        lambda: solvers.mstsa(hypergradient=LinearSystem()),
        "`hypergradient` must solve .* but it is LinearSystem.* NeumannSum",
    ),
    "unrolling in an alternating method": MistakeRow(
        lambda: solvers.mstsa(hypergradient=Unrolled()),
        "`hypergradient` must solve .* but it is Unrolled",
    ),
    "tracked system in a double loop": MistakeRow(
        lambda: solvers.stocbio(hypergradient=LinearSystem()),
        "`hypergradient` must solve .* but it is LinearSystem",
    ),
    "number for the hypergradient of an alternating method": MistakeRow(
        lambda: solvers.mstsa(hypergradient=3),
        "`hypergradient` must be one of biadam.hypergradients, but it is 3",
    ),
    "system of a double loop in an alternating method": MistakeRow(
        lambda: run(solver=solvers.mstsa(hypergradient=Amortized())),
        "`hypergradient` .* mstsa can carry .* but it is Amortized; take",
    ),
    "system of a double loop in a single one": MistakeRow(
        lambda: run(solver=solvers.biadam(hypergradient=Amortized())),
        "`hypergradient` .* a single loop can carry .* but it is Amortized; take",
    ),
    "system of a double loop in a refreshed one": MistakeRow(
        lambda: run(solver=solvers.srba(hypergradient=Amortized())),
        "`hypergradient` .* a single loop can carry .* but it is Amortized; take",
    ),
    "tracked system in VRBO": MistakeRow(
        lambda: run(solver=solvers.vrbo(hypergradient=LinearSystem())),
        "`hypergradient` .* vrbo can carry .* but it is LinearSystem; take",
    ),
    "random length in VRBO": MistakeRow(
        lambda: solvers.vrbo(hypergradient=NeumannRandom()),
        "`hypergradient` must be exact on all the data, .* NeumannRandom.* take .* NeumannSum",
    ),
    "random length inside another hypergradient in VRBO": MistakeRow(
        lambda: solvers.vrbo(hypergradient=PerSample(NeumannRandom())),
        "`hypergradient` must be exact on all the data",
    ),
    "random length in SRBA": MistakeRow(
        lambda: solvers.srba(hypergradient=NeumannRandom()),
        "`hypergradient` must be exact on all the data, .* NeumannRandom.* take .* NeumannSum",
    ),
    "rate above one": MistakeRow(
        lambda: schedules.Constant(1.5), "`Constant.outer` must be above 0 and at most 1"
    ),
    "signal by its name": MistakeRow(
        lambda: metrics.Adam(signal="momentum"),
        "`Adam.signal` must be fresh, momentum, .* but it is 'momentum'",
    ),
    "signal of a norm that is a number": MistakeRow(
        lambda: metrics.Norm(signal=0),
        "`Norm.signal` must be fresh",
    ),
    "signal of AdaGrad that is none": MistakeRow(
        lambda: metrics.AdaGrad(signal=None),
        "`AdaGrad.signal` must be fresh",
    ),
    "signal of AdaGradNorm that is a class": MistakeRow(
        lambda: metrics.AdaGradNorm(signal=metrics.Adam),
        "`AdaGradNorm.signal` must be fresh",
    ),
    "signal of a transformation that is none": MistakeRow(
        lambda: metrics.FromOptax(optax.scale_by_rms(), signal=3),
        "`FromOptax.signal` must be fresh",
    ),
    "floor of zero": MistakeRow(lambda: metrics.Adam(floor=0.0), "`Adam.floor` must be above 0"),
    "decay above one": MistakeRow(
        lambda: metrics.Norm(decay=1.1), "`Norm.decay` must be at least 0 and at most 1"
    ),
    "series of no length": MistakeRow(
        lambda: NeumannRandom(0), "`NeumannRandom.length` must be a whole number of at least 1"
    ),
    "series of a fraction": MistakeRow(
        lambda: NeumannSum(2.5), "`NeumannSum.terms` must be a whole number"
    ),
    "series with a negative step": MistakeRow(
        lambda: NeumannSum(3, -0.5), "`NeumannSum.step_size` must be above 0"
    ),
    "fixed point without steps": MistakeRow(lambda: FixedPoint(0), "`FixedPoint.steps`"),
    "negative damping": MistakeRow(
        lambda: ConjugateGradient(damping=-1.0), "`ConjugateGradient.damping` must be at least 0"
    ),
    "system without a step": MistakeRow(lambda: LinearSystem(0.0), "`LinearSystem.step_size`"),
    "truncation beyond the trajectory": MistakeRow(
        lambda: Unrolled(3, truncation=4), "`Unrolled.truncation` must be at most `steps`, 3"
    ),
    "blocks of several arrays": MistakeRow(
        lambda: run(
            Problem(
                lambda x, y, b: BED.outer(x, y[0], b),
                lambda x, y, b: BED.inner(x, y[0], b) + jnp.sum(y[1] ** 2),
            ),
            solvers.biadam(hypergradient=Exact(blocks=True)),
            y=(BED.y0, BED.y0),
        ),
        "`Exact.blocks` needs y to be one array",
    ),
    "dense system too large": MistakeRow(
        lambda: run(solver=solvers.biadam(hypergradient=Exact(most=2))),
        "at most 2 inner variables, but y has 3",
    ),
    "unknown data set": MistakeRow(
        lambda: hyper_cleaning("minst"), "no data set 'minst': did you mean 'mnist'"
    ),
    "noise above one": MistakeRow(lambda: hyper_cleaning(noise=1.5), "`noise` must be at least 0"),
    "too few weights": MistakeRow(
        lambda: short(hyper_cleaning(train=100, validation=50)),
        r"`x` must have one entry for each of the 100 training examples, but its shape is \(7,\)",
    ),
    "too few examples to choose from": MistakeRow(
        lambda: short(selection(train=100, validation=50, choose=5)),
        r"`x` must have one entry for each of the 100 training examples, but its shape is \(7,\)",
    ),
    "more examples than there are": MistakeRow(
        lambda: hyper_cleaning(train=1500, validation=400),
        "ask for 1900 examples, but digits has 1797",
    ),
    "third of two small sets": MistakeRow(
        lambda: omniglot.small_background(3), "`number` must be 1 or 2, but it is 3"
    ),
    "all alphabets held out": MistakeRow(
        lambda: omniglot.split_alphabets(DIGITS, 4, seed=0),
        "`validation` must leave an alphabet to train on, but it is 4 of 4",
    ),
    "task of one class": MistakeRow(
        lambda: Episodes(DIGITS, 1, 1), "`ways` must be a whole number of at least 2, but it is 1"
    ),
    "more ways than classes": MistakeRow(
        lambda: Episodes(DIGITS, 17, 1, rotations=False),
        "`ways` must be at most the 16 classes that there are, but it is 17",
    ),
    "more ways than classes to test on": MistakeRow(
        lambda: fresh_tasks("digits", ways=20, held_out=0),
        "`ways` must be at most the 16 characters to test on, but it is 20",
    ),
    "heads without a penalty": MistakeRow(
        lambda: fresh_tasks("digits", ridge=0), "`ridge` must be above 0, but it is 0"
    ),
    "more ways than classes to follow": MistakeRow(
        lambda: class_groups("digits", ways=7),
        "`ways` must be at most the 6 characters to follow, but it is 7",
    ),
    "unknown norm": MistakeRow(
        lambda: few_shot_task("digits", norm="bach"),
        "there is no norm 'bach': did you mean 'batch'",
    ),
    "images smaller than those learned from": MistakeRow(
        lambda: Learned(FewShot(models.Convolutional(), 0.01), None, (14, 14)).features(
            np.zeros((2, 10, 10))
        ),
        "`image` must hold images of 14 x 14, or larger .* but they are 10 x 10",
    ),
    "more images than drawings": MistakeRow(
        lambda: Groups(DIGITS, 5, 6),
        "`shots` and `queries` ask for 21 different drawings of a character, but there are 20",
    ),
    "more tasks than groups": MistakeRow(
        lambda: Groups(DIGITS, 5, 1, tasks=4),
        "`tasks` must be at most the 3 groups that the characters make, but it is 4",
    ),
    "anchor of no tasks": MistakeRow(
        lambda: Episodes(DIGITS, 5, 1, anchor=0), "`anchor` must be a whole number of at least 1"
    ),
    "turns of oblong images": MistakeRow(
        lambda: Episodes(DIGITS._replace(image=DIGITS.image[..., :-1]), 5, 1),
        "`rotations` need square images, but these are 14 x 13",
    ),
    "evaluation of nothing": MistakeRow(
        lambda: evaluation_episodes(DIGITS, 5, 1, episodes=0, key=jax.random.key(0)),
        "`episodes` must be a whole number of at least 1, but it is 0",
    ),
    "encoder of no channels": MistakeRow(
        lambda: models.Convolutional(channels=0), "`channels` must be a whole number of at least 1"
    ),
    "norm by its name": MistakeRow(
        lambda: models.Convolutional(norm="batch"),
        "`norm` must be one of biadam.models, but it is 'batch'",
    ),
    "groups that do not divide the channels": MistakeRow(
        lambda: models.GroupNorm(3)(jnp.ones((8, 2, 2, 1)), None),
        "`GroupNorm.groups` must divide the 8 channels, but it is 3",
    ),
    "sphere of no radius": MistakeRow(
        lambda: models.Sphere(0.0), "`Sphere.radius` must be above 0, but it is 0.0"
    ),
    "inner problem without curvature": MistakeRow(
        lambda: biadam.hypergradient(
            Problem(BED.outer, lambda x, y, b: -jnp.sum(y**2)),
            BED.x0,
            BED.y0,
            BED.outer_data,
            BED.inner_data,
        ),
        "not strongly convex",
    ),
    "seeds into those of tuning": MistakeRow(
        lambda: compare(seeds=TUNING + 1), "`seeds` must be at most 1,000,000, but it is 1,000,001"
    ),
    "seeds of one's own choice": MistakeRow(
        lambda: compare(seeds=[TUNING]), "`seeds` must be a whole number"
    ),
    "a seed among the options": MistakeRow(
        lambda: compare(options={"seed": 0}), "`options` must leave `seed` out"
    ),
    "no seeds to tune on": MistakeRow(
        lambda: compare(tuning_seeds=0), "`tuning_seeds` must be a whole number of at least 1"
    ),
    "misspelt option of a task": MistakeRow(
        lambda: compare(options={"nois": 0.1}), "did you mean 'noise'"
    ),
    "task without a seed": MistakeRow(
        lambda: compare(lambda data: None), "must take an argument `seed`"
    ),
    "task in place of its maker": MistakeRow(
        lambda: compare(3), "`task` must be a function that makes a task"
    ),
    "two budgets": MistakeRow(
        lambda: compare(samples=10.0), "seconds and samples are given; give one of them"
    ),
    "no budget": MistakeRow(lambda: compare(seconds=None), "but none is given"),
    "empty budget": MistakeRow(lambda: compare(seconds=0.0), "`seconds` must be above 0"),
    "misspelt group of methods": MistakeRow(
        lambda: compare(methods="papr"), "did you mean 'paper'"
    ),
    "no methods": MistakeRow(lambda: compare(methods=[]), "at least one method"),
    "grid of another method": MistakeRow(
        lambda: compare(methods=["soba"], grids={"mrbo": {}}),
        "no method of this comparison 'mrbo'",
    ),
    "grid of an unknown argument": MistakeRow(
        lambda: compare(methods=["soba"], grids={"soba": {"step_siz": [1.0]}}),
        "did you mean 'step_size'",
    ),
    "grid without values": MistakeRow(
        lambda: compare(methods=["soba"], grids={"soba": {"step_size": []}}),
        "`grids` must give at least one value of soba's `step_size`",
    ),
    "no settings": MistakeRow(lambda: compare(settings=0), "`settings` must be a whole number"),
    "no workers": MistakeRow(lambda: compare(workers=0), "`workers` must be a whole number"),
}


def answers() -> dict[str, str]:
    """What each mistake is answered with; the kind of exception first."""
    told = {}
    for name, row in MISTAKES.items():
        try:
            row.act()
            told[name] = "nothing was raised"
        except Exception as error:  # whatever it is, the test compares it
            told[name] = f"{type(error).__name__}: {error}"
    return told


if __name__ == "__main__":
    print(json.dumps(answers()))
