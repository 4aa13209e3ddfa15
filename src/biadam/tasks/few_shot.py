"""Few-shot classification on learned features: heads, answers, accuracies, and reuse.

A head is a linear softmax classifier, fitted to the features of its task's support images. The
normalisation of the encoder can use the statistics of whatever it is shown, as in training, or
fixed ones that were measured on training images. With fixed ones an image's answer depends on the
support images and on nothing else; otherwise it also depends on the other queries.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from ..data.episodes import TaskImages
from ..hypergradients import AbstractInner, Steps
from ..models import AbstractEncoder
from ..problem import Problem


class Representation(NamedTuple):
    """An encoder's parameters with the statistics that its normalisation is to use."""

    z: PyTree
    statistics: PyTree | None  # None for those of the images themselves


class FewShot(eqx.Module):
    """The losses of few-shot tasks on the features of an encoder.

    The inner loss is a sum over tasks, so that the step sizes of a head do not depend on how many
    there are. Of heads that come and go with a sample it is the sum over the sample's tasks. Of
    heads that are kept, every sample must estimate the same loss however many of them it sees, so
    it is the mean over its tasks, times the number that a usual sample has.
    """

    encoder: AbstractEncoder
    ridge: float  # C
    usual: float | None = None  # tasks of a sample, if heads are kept

    def stage(self, x: Representation, of: TaskImages) -> Float[Array, "tasks n width"]:
        """The features of all images."""
        tasks, n, *size = of.image.shape
        flat = self.encoder.apply(x.z, of.image.reshape(tasks * n, *size), x.statistics)
        return flat.reshape(tasks, n, -1)

    def training_stage(self, z: PyTree, of: TaskImages) -> Float[Array, "tasks n width"]:
        """The features with the statistics of the images themselves."""
        return self.stage(Representation(z, None), of)

    def outer(self, features: Array, y: Array, of: TaskImages) -> Array:
        """The mean loss of the queries."""
        return jnp.mean(entropy(features, y[of.block], of.label))

    def inner(self, features: Array, y: Array, of: TaskImages) -> Array:
        """The sum over the tasks of the mean loss of the support and the penalty of the head."""
        heads = y[of.block]
        each = entropy(features, heads, of.label) + self.ridge * jnp.sum(heads**2, axis=(1, 2))
        return jnp.sum(each) if self.usual is None else self.usual * jnp.mean(each)

    def problem(self) -> Problem:
        """The bilevel problem, with x the parameters of the encoder."""
        # Methods of a module compare by what it holds: equal tasks share a compiled program.
        return Problem(self.outer, self.inner, stage=self.training_stage)

    def fit(
        self, x: Representation, support: TaskImages, ways: int, solver: AbstractInner
    ) -> Array:
        """The heads of some tasks, from zero.

        A solver with a tolerance sees the tasks as one problem: how exact a head is depends, within
        the tolerance, on the others beside it.
        """
        features = self.stage(x, support)
        start = jnp.zeros((features.shape[0], features.shape[2], ways), features.dtype)
        return solver(self.apart(), features, start, _apart(support)).y

    def apart(self) -> Problem:
        """The problem on features of tasks that each have a head of their own, in their order."""
        alone = FewShot(self.encoder, self.ridge)
        return Problem(alone.outer, alone.inner)


def entropy(
    features: Float[Array, "tasks n width"],
    heads: Float[Array, "tasks width ways"],
    label: Int[Array, "tasks n"],
) -> Float[Array, " tasks"]:
    """The mean loss of each task."""
    losses = optax.softmax_cross_entropy_with_integer_labels(features @ heads, label)
    return jnp.mean(losses, axis=1)


@eqx.filter_jit
def answers(
    few_shot: FewShot,
    x: Representation,
    query: TaskImages,
    support: TaskImages,
    ways: int,
    solver: AbstractInner,
) -> Int[Array, "tasks n"]:
    """The classes that the heads of some tasks give their queries."""
    heads = few_shot.fit(x, support, ways, solver)
    return jnp.argmax(few_shot.stage(x, query) @ heads, axis=2)


def accuracies(
    few_shot: FewShot,
    x: Representation,
    tasks: Iterable[tuple[TaskImages, TaskImages]],
    ways: int,
    solver: AbstractInner,
) -> Float[np.ndarray, " tasks"]:
    """The share of right answers of each task; pairs are (query, support)."""
    right = [
        np.asarray(answers(few_shot, x, query, support, ways, solver) == query.label).mean(axis=1)
        for query, support in tasks
    ]
    return np.concatenate(right)


def singly(
    tasks: Iterable[tuple[TaskImages, TaskImages]],
) -> Iterator[tuple[TaskImages, TaskImages]]:
    """The same tasks one at a time, so that no statistics are those of several."""
    for pair in tasks:
        for i in range(len(pair[0].image)):
            yield jax.tree.map(lambda a, i=i: a[i : i + 1], pair)


@eqx.filter_jit
def curvature(
    few_shot: FewShot, x: Representation, support: TaskImages, ways: int, turns: int = 30
) -> Array:
    """L_g of some tasks: the largest eigenvalue of the inner Hessian on the way of the inner steps.

    It is that of the worst task, at the worst point of `Steps` from zero. Inner steps are stable
    below 2 over it. By power iteration on each task, which starts at a point where it ended at the
    one before.
    """
    features = few_shot.stage(x, support)
    count, _, width = features.shape
    zero = jnp.zeros((count, width, ways), features.dtype)
    own, alone = _apart(support), few_shot.apart()
    size = lambda u: jnp.sqrt(jnp.sum(u**2, axis=(1, 2), keepdims=True))
    path = Steps()

    def point(_: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        heads, u, largest = carry
        product = lambda u: alone.hessian_product(features, heads, own, u)
        turn = lambda _, u: (lambda bent: bent / size(bent))(product(u))
        u = jax.lax.fori_loop(0, turns, turn, u)
        bend = jnp.maximum(largest, jnp.max(size(product(u))))
        slope = alone.inner_gradient(features, heads, own)
        return heads - path.step_size * slope, u, bend

    u = jr.normal(jr.key(0), zero.shape, zero.dtype)
    start = zero, u / size(u), jnp.zeros((), zero.dtype)
    return jax.lax.fori_loop(0, path.count + 1, point, start)[2]


def _apart(of: TaskImages) -> TaskImages:
    """The images of tasks that each have a head of their own, in their order."""
    return TaskImages(of.image, of.label, jnp.arange(of.image.shape[0]))
