r"""Hyper-representation: learn features on which a linear classifier learns a new task from little.

.. math::
    \min_z \; E_\xi \; \frac1{|D'_\xi|} \sum_{(a, b) \in D'_\xi}
        \ell(\theta_\xi^*(z)' \phi(a; z), b) \quad \text{with} \quad
    \theta_\xi^*(z) = \operatorname{argmin}_\theta \; \frac1{|D_\xi|} \sum_{(a, b) \in D_\xi}
        \ell(\theta' \phi(a; z), b) + C \|\theta\|^2

x is z, the parameters of an encoder, and y the heads theta, a linear classifier for each task xi:
to tell N characters apart, from k support images of each (D) and judged by other query images (D').
The inner loss is the sum over the tasks of a sample, so that the step sizes of a head do not depend
on how many there are.

There are two settings. *Fresh tasks* are drawn anew at every step. Each has a head of its own that
is solved for on the spot: no inner variable is kept, and none can be warm-started. Methods that
look at two points solve the same tasks at both. *Class groups* cut the classes into M groups once
and for all; y holds a head for each, and every step sees fresh images of a few of them. That is a
stochastic bilevel problem in the theory's sense, where one inner step, momentum, STORM on y and a
tracked linear system mean what they say.

The paper writes a head that does not depend on the task, which permuted labels make meaningless.
"""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from .. import errors
from ..data.episodes import (
    AbstractStore,
    Episodes,
    Groups,
    OnDevice,
    TaskImages,
    evaluation_episodes,
)
from ..data.omniglot import Characters, at_hand, few_shot_digits, omniglot, split_alphabets
from ..hypergradients import (
    AbstractInner,
    ConjugateGradient,
    FixedPoint,
    LinearSystem,
    NeumannRandom,
    NeumannSum,
    Newton,
    PerSample,
    Steps,
)
from ..metrics import Adam, Identity
from ..models import AbstractEncoder, BatchNorm, Convolutional, GroupNorm, NoNorm
from ..schedules import Constant, PowerDecay
from .base import Task
from .few_shot import FewShot, Representation, accuracies, answers, curvature, singly
from .learned import packed, written

DATASETS = ("omniglot", "digits")
STEPS, TERMS = 16, 5  # D and K of the paper's experiment
INNER_STEP = 0.4  # of a head, and of the series
EVALUATIONS = 20  # over a run: each one passes thousands of images
PRINTED_RIDGE = 1e-2  # C there
RIDGE = 1e-3  # C for accuracy, by what is held out; features of 10 ** 0.5 times the length and
# the printed C make the same heads but for the bias, and a curvature L_g ten times as large


class Drawn(NamedTuple):
    """Characters for each use; only the first are trained on."""

    train: Characters
    validation: Characters
    test: Characters


def drawn(data: str, held_out: int | None) -> Drawn:
    """A data set with some alphabets of its training characters held out, always the same ones.

    The tens are the alphabets of the digits.
    """
    if data not in DATASETS:
        raise errors.unknown("data set", data, DATASETS)
    background, test = omniglot() if data == "omniglot" else few_shot_digits()
    known = len(np.unique(background.alphabet))
    few = known // 6 if held_out is None else held_out
    errors.count("held_out", few, least=0)
    if few >= known:
        raise errors.Mistake(
            f"`held_out` must leave an alphabet to train on, but it is {few} of {known}."
        )
    if not few:
        return Drawn(background, background.take(np.zeros(len(background.number), bool)), test)
    return Drawn(*split_alphabets(background, few, seed=0), test)


def fresh_tasks(
    data: str = "omniglot",
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 15,
    tasks: int = 4,
    encoder: AbstractEncoder = Convolutional(),
    heads: AbstractInner = Newton(),
    rotations: bool | None = None,
    ridge: float = RIDGE,
    held_out: int | None = None,
    episodes: int = 600,
    seed: int = 0,
    store: Callable[[Characters], AbstractStore] = OnDevice,
) -> Task:
    """Learn features from tasks that are drawn anew at every step; the setting for accuracy.

    Args:
        data: ``omniglot``, or ``digits`` for a small stand-in.
        ways: N, classes of a task.
        shots: k, support images of a class.
        queries: query images of a class.
        tasks: how many a step sees; VRBO looks at four times as many every few steps.
        encoder: phi.
        heads: how the heads are solved for, in testing and by the methods that leave it open.
        rotations: whether the quarter turns of a character are classes of their own in training; by
            default those of Omniglot's are, and those of digits, where 6 and 9 are two, are not.
        ridge: C; the paper prints 0.01.
        held_out: alphabets that are not trained on but followed, by default a sixth of them; with
            0, what is followed is the characters that are trained on.
        episodes: tasks to test on.
        seed: names the first parameters and the tasks to test on.
        store: where the images lie: `biadam.data.OnHost` for more than the device holds.
    """
    characters = drawn(data, held_out)
    turned = data == "omniglot" if rotations is None else rotations
    held = store(characters.train)
    source = lambda anchor: Episodes(held, ways, shots, queries, tasks, turned, anchor)
    few_shot = FewShot(encoder, ridge)
    bench = Bench(few_shot, heads, characters, (ways, shots, queries), episodes, seed, store)
    settings = _fresh_settings(heads)
    return Task(
        name="hyper-representation",
        data=data,
        variant=f"fresh-{ways}-way-{shots}-shot",
        problem=few_shot.problem(),
        source=source(None),
        x0=bench.x0,
        y0=bench.heads(tasks),
        curves=bench.curves(),
        evaluate=bench.evaluate,
        solver="biadam",
        settings=settings,
        sources={"vrbo": source(4 * tasks)},
        starts={"vrbo": bench.heads(4 * tasks)},
        refuses=lambda name: "" if name in settings else KEEPS,
        steps=2_000,
        keep=bench.keep,
        options=bench.options(tasks, turned),
        tuned_by=bench.followed,
        largest=True,
        evaluations=EVALUATIONS,
    )


def class_groups(
    data: str = "omniglot",
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 15,
    tasks: int = 4,
    encoder: AbstractEncoder = Convolutional(),
    heads: AbstractInner = Newton(),
    rotations: bool = False,
    ridge: float = PRINTED_RIDGE,
    held_out: int | None = None,
    episodes: int = 600,
    seed: int = 0,
    store: Callable[[Characters], AbstractStore] = OnDevice,
) -> Task:
    """Learn features and a head for each of M groups of classes; the setting to compare methods in.

    Args:
        data: ``omniglot``, or ``digits`` for a small stand-in.
        ways: N, classes of a group; there are as many groups as the training characters make.
        shots: k, support images of a class.
        queries: query images of a class.
        tasks: how many groups a step sees; VRBO looks at four times as many every few steps.
        encoder: phi.
        heads: how the heads are solved for in testing.
        rotations: whether the quarter turns of a character are classes of their own.
        ridge: C.
        held_out: alphabets that are not trained on but followed, by default a sixth of them; with
            0, what is followed is the characters that are trained on.
        episodes: tasks to test on.
        seed: names the first parameters, the groups and the tasks to test on.
        store: where the images lie: `biadam.data.OnHost` for more than the device holds.
    """
    characters = drawn(data, held_out)
    held = store(characters.train)
    source = lambda anchor: Groups(held, ways, shots, queries, tasks, rotations, anchor, seed)
    few_shot = FewShot(encoder, ridge, float(tasks))
    bench = Bench(few_shot, heads, characters, (ways, shots, queries), episodes, seed, store)
    groups = source(None)
    return Task(
        name="hyper-representation",
        data=data,
        variant=f"groups-{ways}-way-{shots}-shot",
        problem=few_shot.problem(),
        source=groups,
        x0=bench.x0,
        y0=bench.heads(groups.count),
        curves=bench.curves(),
        evaluate=bench.evaluate,
        solver="biadam_tracked",
        settings=_group_settings(2 * ridge * tasks / groups.count),
        sources={"vrbo": source(min(4 * tasks, groups.count))},
        steps=2_000,
        keep=bench.keep,
        options=bench.options(tasks, rotations),
        tuned_by=bench.followed,
        largest=True,
        evaluations=EVALUATIONS,
    )


KEEPS = (
    "keeps an inner variable or a linear system from step to step, and fresh tasks have none to "
    "keep; use class groups, or a method such as biadam"
)


class Bench:
    """What judges an encoder: accuracies on held-out and on unseen characters."""

    def __init__(
        self,
        few_shot: FewShot,
        solver: AbstractInner,
        characters: Drawn,
        sizes: tuple[int, int, int],
        episodes: int,
        seed: int,
        store: Callable[[Characters], AbstractStore],
    ):
        errors.count("episodes", episodes)
        errors.number("ridge", few_shot.ridge, above=0)
        self.few_shot, self.solver, self.characters = few_shot, solver, characters
        self.ways, self.shots, self.queries = sizes
        self.episodes, self.seed, self.store = episodes, seed, store
        held_out = len(characters.validation.image) > 0
        self.judged = characters.validation if held_out else characters.train
        for use, of in (("follow", self.judged), ("test on", characters.test)):
            if self.ways > len(of.image):
                raise errors.Mistake(
                    f"`ways` must be at most the {len(of.image)} characters to {use}, but it is "
                    f"{self.ways}."
                )
        self.followed = "validation_accuracy" if held_out else "training_accuracy"
        shape = characters.train.image.shape[2:]
        self.x0 = few_shot.encoder.init(jr.key(seed), shape)
        self.pool = some_images(characters.train, POOL, seed)

    def options(self, tasks: int, rotations: bool) -> dict[str, Any]:
        """The words and numbers that a task was made from."""
        return {
            "ways": self.ways,
            "shots": self.shots,
            "queries": self.queries,
            "tasks": tasks,
            "encoder": written(self.few_shot.encoder),
            "heads": repr(self.solver),
            "rotations": rotations,
            "ridge": self.few_shot.ridge,
            "held_out": len(np.unique(self.characters.validation.alphabet)),
            "episodes": self.episodes,
        }

    def heads(self, count: int) -> Array:
        """So many heads, all zero."""
        like = jax.eval_shape(self.few_shot.encoder.apply, self.x0, self.pool[:1])
        return jnp.zeros((count, like.shape[1], self.ways), like.dtype)

    def fixed(self, z: PyTree) -> Representation:
        """The encoder with statistics of training images."""
        return Representation(z, _statistics(self.few_shot.encoder, z, self.pool))

    def tasks(self, of: Characters, count: int) -> Iterable[tuple[TaskImages, TaskImages]]:
        """Tasks to test on, the same ones for equal seeds."""
        key = jr.fold_in(jr.key(TESTS), self.seed)
        return evaluation_episodes(
            self.store(of), self.ways, self.shots, queries=self.queries, episodes=count, key=key
        )

    def accuracy(
        self, x: Representation, of: Iterable[tuple[TaskImages, TaskImages]]
    ) -> np.ndarray:
        """That of each task."""
        return accuracies(self.few_shot, x, of, self.ways, self.solver)

    def curves(self) -> dict[str, Callable[[PyTree, PyTree], float]]:
        """The accuracy on characters that are held out, and the inner curvature there."""
        return {
            self.followed: lambda z, y: self.followed_accuracy(z),
            "curvature": lambda z, y: self.curvature(z),
        }

    @cached_property
    def followed_tasks(self) -> list[tuple[TaskImages, TaskImages]]:
        """The tasks of a curve, fewer where they are larger."""
        return list(self.tasks(self.judged, max(FEWEST, FOLLOWED // self.ways)))

    def followed_accuracy(self, z: PyTree) -> float:
        """The mean accuracy on them."""
        return float(self.accuracy(self.fixed(z), self.followed_tasks).mean())

    def curvature(self, z: PyTree) -> float:
        """That of the heads on some of the same tasks, with the statistics of training."""
        support = self.followed_tasks[0][1]
        return float(curvature(self.few_shot, Representation(z, None), support, self.ways))

    def evaluate(self, z: PyTree, y: Array) -> dict[str, float]:
        """The accuracy on unseen characters, with half of its 95 % interval, and L_g.

        ``test_accuracy`` is with fixed statistics. ``seeing_accuracy`` is with those of the images
        of a task, where the answer to a query depends on the other queries.
        """
        unseen = lambda: self.tasks(self.characters.test, self.episodes)
        each = self.accuracy(self.fixed(z), unseen())
        seeing = self.accuracy(Representation(z, None), singly(unseen()))
        return {
            self.followed: self.followed_accuracy(z),
            "test_accuracy": float(each.mean()),
            "test_interval": interval(each),
            "seeing_accuracy": float(seeing.mean()),
            "seeing_interval": interval(seeing),
            "curvature": self.curvature(z),
        }

    def keep(self, z: PyTree, y: Array) -> dict[str, np.ndarray]:
        """The encoder, and what a figure shows of it."""
        x = self.fixed(z)
        query, support = next(iter(self.tasks(self.characters.test, 1)))
        given = answers(self.few_shot, x, query, support, self.ways, self.solver)
        some = self.characters.test.take(np.arange(min(SHOWN, len(self.characters.test.image))))
        image = some.image.reshape(-1, *some.image.shape[2:])
        ink = jnp.asarray(image / 255.0, query.image.dtype)
        features = np.asarray(self.few_shot.encoder.apply(z, ink, x.statistics))
        return {
            **packed(self.few_shot, x),
            "support_image": _grey(support.image[0]),
            "support_label": np.asarray(support.label[0]),
            "query_image": _grey(query.image[0]),
            "query_label": np.asarray(query.label[0]),
            "query_answer": np.asarray(given[0]),
            "embedding": _plane(features),
            "embedding_class": np.repeat(np.arange(len(some.image)), some.image.shape[1]),
            "embedding_image": some.image[:, 0],
        }


def interval(each: np.ndarray) -> float:
    """Half of the 95 % interval of their mean."""
    return float(1.96 * each.std() / len(each) ** 0.5)


POOL, SHOWN = 1_000, 10  # images of the statistics; characters of a figure
FOLLOWED, FEWEST = 300, 10  # classes in all tasks of a curve; tasks at least
TESTS = 7_919  # names the keys of the tasks to test on, apart from those of any training


@eqx.filter_jit
def _statistics(encoder: AbstractEncoder, z: PyTree, image: Array) -> Any:
    return encoder.statistics(z, image)


def some_images(of: Characters, count: int, seed: int) -> Array:
    """So many images of the characters."""
    draw = np.random.default_rng(seed)
    rows, drawings = of.image.shape[:2]
    image = of.image[draw.integers(0, rows, count), draw.integers(0, drawings, count)]
    return jnp.asarray(image.astype(np.float32) / 255, jnp.result_type(float))


def _plane(features: np.ndarray) -> np.ndarray:
    """Their two principal components, all 0 where a run diverged and they are not finite."""
    if not np.isfinite(features).all():
        return np.zeros((len(features), 2))
    centred = features - features.mean(axis=0, dtype=float)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T


def _grey(image: Array) -> np.ndarray:
    return (255 * np.asarray(image)).round().astype(np.uint8)


def _fresh_settings(heads: AbstractInner) -> dict[str, dict[str, Any]]:
    """What works for each method, by a coarse grid on held-out alphabets.

    BiAdam and VR-BiAdam solve their linear systems by conjugate gradients; the others as their
    papers do, with the paper's 16 inner steps and 5 terms, at the printed inner step.
    """
    system = PerSample(ConjugateGradient(50, 1e-3), heads)
    series = PerSample(NeumannSum(TERMS, INNER_STEP), heads)
    lengths = PerSample(NeumannRandom(TERMS + 1, INNER_STEP), heads)
    cold = {"inner_steps": STEPS, "warm_start": False}
    adaptive = {
        "step_size": (3e-3, 1.0),
        "outer_metric": Adam(floor=1e-6, corrected=True),
        "inner_metric": Identity(),
        "mixing": SLOW,
        "rates": Constant(0.1, 1.0),
    }
    printed = {"step_size": (3e-3, 1.0), "hypergradient": series}
    plain = (0.1, 1.0)
    return {
        "biadam": {**adaptive, "hypergradient": system},
        "vr_biadam": {**adaptive, "hypergradient": system},
        "biadam_authors": printed,
        "vr_biadam_authors": printed,
        "smb": {"step_size": plain, "hypergradient": lengths},
        "sustain": {"step_size": plain, "hypergradient": lengths},
        "mrbo": {"step_size": plain, "hypergradient": series},
        "vrbo": {"step_size": plain, "hypergradient": series, "inner_steps": 0},
        "reverse": {"step_size": (0.1, INNER_STEP), **cold},
        "aid_cg": {
            "step_size": (0.1, INNER_STEP),
            "hypergradient": ConjugateGradient(TERMS),
            **cold,
        },
        "aid_fp": {
            "step_size": (0.1, INNER_STEP),
            "hypergradient": FixedPoint(TERMS, INNER_STEP),
            **cold,
        },
        "stocbio": {
            "step_size": (0.1, INNER_STEP),
            "hypergradient": NeumannSum(TERMS, INNER_STEP),
            **cold,
        },
    }


SLOW = PowerDecay(scale=30.0, offset=900.0, power=1 / 2)


def _group_settings(convexity: float) -> dict[str, dict[str, Any]]:
    """What works for each method on groups, by a coarse grid on held-out alphabets.

    Args:
        convexity: that of the inner loss, 2 C times the share of the groups that a sample sees.
    """
    series = {"hypergradient": NeumannSum(TERMS, INNER_STEP)}
    lengths = {"hypergradient": NeumannRandom(TERMS + 1, INNER_STEP)}
    system = {"hypergradient": LinearSystem(INNER_STEP)}
    plain = {"step_size": (0.1, INNER_STEP)}
    loops = {**plain, "inner_steps": STEPS}
    adaptive = {
        "step_size": (3e-3, INNER_STEP),
        "outer_metric": Adam(floor=1e-6, corrected=True),
        "inner_metric": Identity(),
        "mixing": SLOW,
    }
    tracked = {**adaptive, **system, "rates": Constant(0.1, 1.0)}
    printed = {**adaptive, **lengths, "rates": Constant(0.1, 0.5)}
    return {
        "biadam_tracked": tracked,
        "vr_biadam_tracked": tracked,
        "biadam": printed,
        "vr_biadam": printed,
        "biadam_authors": {"step_size": (1e-3, 1e-2), **series},
        "vr_biadam_authors": {"step_size": (1e-3, 1e-2), **series},
        "smb": {**plain, **lengths},
        "sustain": {**plain, **lengths},
        "mstsa": {**plain, **lengths},
        "ttsa": {**plain, **lengths},
        "alset": {**plain, **lengths},
        "mrbo": {**plain, **series},
        "vrbo": {**plain, **series},
        "fsla": {**plain, "system_step": INNER_STEP},
        "fsla_plain": {**plain, "system_step": INNER_STEP},
        "soba": {**plain, **system},
        "ma_soba": {**plain, **system},
        "bsa": {**loops, **lengths},
        "stocbio": {**loops, **series},
        "aid_cg": {**loops, "hypergradient": ConjugateGradient(TERMS)},
        "aid_fp": {**loops, "hypergradient": FixedPoint(TERMS, INNER_STEP)},
        "reverse": {**loops},
        "stable": {"step_size": (1e-4, INNER_STEP), "rate": 0.1, "convexity": convexity},
        "svrb": {"step_size": (0.03, INNER_STEP), "rate": 0.1, "convexity": convexity},
    }


SETTINGS = ("fresh", "groups")
NORMS = {"batch": BatchNorm(), "group": GroupNorm(4), "layer": GroupNorm(1), "none": NoNorm()}
HEADS = {"newton": Newton(), "steps": Steps(STEPS, INNER_STEP)}


def few_shot_task(
    data: str | None = None,
    setting: str = "fresh",
    heads: str = "newton",
    ways: int = 5,
    shots: int = 1,
    channels: int = 32,
    queries: int = 15,
    tasks: int = 4,
    held_out: int | None = None,
    rotations: bool | None = None,
    norm: str = "batch",
    ridge: float | None = None,
    episodes: int = 600,
    seed: int = 0,
) -> Task:
    """The task that words and numbers name, for a command line; see the two settings.

    Args:
        data: ``omniglot`` or ``digits``; by default the first if it is on this machine.
        setting: ``fresh`` or ``groups``.
        heads: ``newton``, to a tolerance, or ``steps``, the paper's 16.
        ways: see `fresh_tasks`.
        shots: see `fresh_tasks`.
        channels: of each layer of the encoder.
        queries: see `fresh_tasks`.
        tasks: see `fresh_tasks`.
        held_out: see `fresh_tasks`.
        rotations: see `fresh_tasks`; class groups have none by default.
        norm: of the encoder: ``batch``, ``group`` (of 4 groups of channels), ``layer`` or ``none``.
        ridge: C; 0.001 for fresh tasks and the paper's 0.01 for class groups by default.
        episodes: see `fresh_tasks`.
        seed: see `fresh_tasks`.
    """
    if setting not in SETTINGS:
        raise errors.unknown("setting", setting, SETTINGS)
    if heads not in HEADS:
        raise errors.unknown("way to fit heads", heads, HEADS)
    if norm not in NORMS:
        raise errors.unknown("norm", norm, NORMS)
    fresh = setting == "fresh"
    make: Callable[..., Task] = fresh_tasks if fresh else class_groups
    return make(
        data or ("omniglot" if at_hand() else "digits"),
        ways=ways,
        shots=shots,
        queries=queries,
        tasks=tasks,
        encoder=Convolutional(channels, norm=NORMS[norm]),
        heads=HEADS[heads],
        rotations=rotations if fresh else bool(rotations),
        ridge=(RIDGE if fresh else PRINTED_RIDGE) if ridge is None else ridge,
        held_out=held_out,
        episodes=episodes,
        seed=seed,
    )
