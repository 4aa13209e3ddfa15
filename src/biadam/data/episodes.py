"""Few-shot tasks drawn from characters: tell N classes apart from k examples of each.

Everything random is drawn inside the compiled step, from images that lie on the device, or on the
host where they are too many; the content is the same.
"""

import abc
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt8

from .. import errors
from ..problem import Sample
from .omniglot import Characters
from .sources import AbstractSource


class TaskImages(eqx.Module):
    """The labelled images of several tasks, those of a class one after the other."""

    image: Float[Array, "*batches tasks n height width"]  # ink 1 on paper 0
    label: Int[Array, "*batches tasks n"]  # the place of the class in its task
    block: Int[Array, "*batches tasks"]  # the number of the task's group, or of the task


class AbstractStore(eqx.Module):
    """Where the images of the characters lie."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Characters, drawings of each, height and width."""

    @abc.abstractmethod
    def take(
        self, character: Int[Array, "..."], drawing: Int[Array, "..."]
    ) -> UInt8[Array, "... height width"]:
        """The images with these numbers, which are broadcast against each other."""


class OnDevice(AbstractStore):
    """Images in the memory of the device."""

    image: UInt8[Array, "characters drawings height width"]

    def __init__(self, characters: Characters):
        self.image = jnp.asarray(characters.image)

    @property
    def shape(self) -> tuple[int, ...]:
        """See `AbstractStore`."""
        return self.image.shape

    def take(
        self, character: Int[Array, "..."], drawing: Int[Array, "..."]
    ) -> UInt8[Array, "... height width"]:
        """See `AbstractStore`."""
        return self.image[character, drawing]


class OnHost(AbstractStore):
    """Images in the memory of the host, or in a file mapped into it: those drawn are sent over."""

    held: "_Held" = eqx.field(static=True)

    def __init__(self, characters: Characters):
        self.held = _Held(characters.image)

    @property
    def shape(self) -> tuple[int, ...]:
        """See `AbstractStore`."""
        return self.held.image.shape

    def take(
        self, character: Int[Array, "..."], drawing: Int[Array, "..."]
    ) -> UInt8[Array, "... height width"]:
        """See `AbstractStore`."""
        many = jnp.broadcast_shapes(character.shape, drawing.shape)
        gather = lambda c, d: self.held.image[np.asarray(c), np.asarray(d)]
        wanted = jax.ShapeDtypeStruct((*many, *self.shape[2:]), np.uint8)
        return jax.pure_callback(gather, wanted, character, drawing, vmap_method="broadcast_all")


class _Held:
    """An array as a static part of a program: equal only to itself."""

    def __init__(self, image: np.ndarray):
        self.image = image


class Dealer(eqx.Module):
    """Turns classes into the support and the query images of tasks.

    A class is a character, or with rotations a character and a quarter turn: class c is character
    ``c // 4`` turned ``c % 4`` times.
    """

    store: AbstractStore
    ways: int = eqx.field(static=True)
    shots: int = eqx.field(static=True)
    queries: int = eqx.field(static=True)
    turns: int = eqx.field(static=True)

    def __init__(
        self,
        characters: Characters | AbstractStore,
        ways: int,
        shots: int,
        queries: int,
        rotations: bool,
    ):
        store = OnDevice(characters) if isinstance(characters, Characters) else characters
        drawings, height, width = store.shape[1:]
        errors.count("ways", ways, least=2)
        errors.count("shots", shots)
        errors.count("queries", queries)
        if rotations and height != width:
            raise errors.Mistake(
                f"`rotations` need square images, but these are {height} x {width}; pad them or "
                f"set it to False."
            )
        self.store, self.turns = store, 4 if rotations else 1
        self.ways, self.shots, self.queries = ways, shots, queries
        if ways > self.classes:
            raise errors.Mistake(
                f"`ways` must be at most the {self.classes} classes that there are, but it is "
                f"{ways}."
            )
        if shots + queries > drawings:
            raise errors.Mistake(
                f"`shots` and `queries` ask for {shots + queries} different drawings of a "
                f"character, but there are {drawings} of each."
            )

    @property
    def classes(self) -> int:
        """How many there are."""
        return self.store.shape[0] * self.turns

    def deal(
        self, key: Key[Array, ""], classes: Int[Array, "tasks ways"], block: Int[Array, " tasks"]
    ) -> tuple[TaskImages, TaskImages]:
        """Draw different images for query and support of tasks with these classes."""
        drawings = jnp.broadcast_to(
            jnp.arange(self.store.shape[1]), (*classes.shape, self.store.shape[1])
        )
        order = jr.permutation(key, drawings, axis=-1, independent=True)
        drawing = order[..., : self.shots + self.queries]
        image = self.store.take(classes[..., None] // self.turns, drawing)
        if self.turns > 1:
            image = _turn(image, classes[..., None, None, None] % self.turns)
        return (
            _together(image[:, :, self.shots :], block),
            _together(image[:, :, : self.shots], block),
        )


class Episodes(AbstractSource):
    """Fresh tasks at every step.

    The one inner minibatch of a sample is the support images of its tasks, the outer one the query
    images of the same tasks. The classes of a task differ, and so do all the images of a class.

    Args:
        characters: those to draw from, or where they lie: `OnHost` for more than the device holds.
        ways: classes of a task.
        shots: support images of a class.
        queries: query images of a class.
        tasks: tasks of a sample.
        rotations: whether the quarter turns of a character are classes of their own.
        anchor: if given, each sample also has a draw of so many other tasks as its `whole`, for the
            methods that look at a large batch now and then.
    """

    dealer: Dealer
    tasks: int = eqx.field(static=True)
    anchor: int | None = eqx.field(static=True)

    def __init__(
        self,
        characters: Characters | AbstractStore,
        ways: int,
        shots: int,
        queries: int = 15,
        tasks: int = 4,
        rotations: bool = True,
        anchor: int | None = None,
    ):
        self.dealer = Dealer(characters, ways, shots, queries, rotations)
        self.tasks, self.anchor = tasks, anchor
        for name, value in (("tasks", tasks), ("anchor", 1 if anchor is None else anchor)):
            errors.count(name, value)

    def __call__(self, key: Key[Array, ""], step: Any, batches: int) -> Sample:
        """See `AbstractSource`; whatever ``batches`` is, the sample holds one inner minibatch."""
        return _sample(self._draw, key, step, self.tasks, self.anchor)

    def _draw(self, key: Key[Array, ""], tasks: int) -> tuple[TaskImages, TaskImages]:
        class_key, image_key = jr.split(key)
        pick = lambda k: _some(k, self.dealer.classes, self.dealer.ways)
        classes = jax.vmap(pick)(jr.split(class_key, tasks))
        return self.dealer.deal(image_key, classes, jnp.arange(tasks))


class Groups(AbstractSource):
    """Tasks that come back: the classes are cut into groups once, each a task with its own head.

    Each sample draws some groups without replacement, and fresh support and query images of them.
    The `block` of the images tells which groups they are.

    Args:
        characters: see `Episodes`.
        ways: classes of a group; those left over by the division are not used.
        shots: support images of a class.
        queries: query images of a class.
        tasks: groups of a sample.
        rotations: whether the quarter turns of a character are classes of their own.
        anchor: if given, each sample also has a draw of so many groups as its `whole`.
        seed: names the division into groups.
    """

    dealer: Dealer
    groups: Int[Array, "count ways"]
    tasks: int = eqx.field(static=True)
    anchor: int | None = eqx.field(static=True)

    def __init__(
        self,
        characters: Characters | AbstractStore,
        ways: int,
        shots: int,
        queries: int = 15,
        tasks: int = 4,
        rotations: bool = False,
        anchor: int | None = None,
        seed: int = 0,
    ):
        self.dealer = Dealer(characters, ways, shots, queries, rotations)
        self.tasks, self.anchor = tasks, anchor
        order = np.random.default_rng(seed).permutation(self.dealer.classes)
        whole = len(order) // ways * ways
        self.groups = jnp.asarray(order[:whole].reshape(-1, ways))
        for name, value in (("tasks", tasks), ("anchor", 1 if anchor is None else anchor)):
            errors.count(name, value)
            if value > self.count:
                raise errors.Mistake(
                    f"`{name}` must be at most the {self.count} groups that the characters make, "
                    f"but it is {value}."
                )

    @property
    def count(self) -> int:
        """How many groups there are."""
        return self.groups.shape[0]

    def __call__(self, key: Key[Array, ""], step: Any, batches: int) -> Sample:
        """See `AbstractSource`; whatever ``batches`` is, the sample holds one inner minibatch."""
        return _sample(self._draw, key, step, self.tasks, self.anchor)

    def _draw(self, key: Key[Array, ""], tasks: int) -> tuple[TaskImages, TaskImages]:
        group_key, image_key = jr.split(key)
        block = _some(group_key, self.count, tasks)
        return self.dealer.deal(image_key, self.groups[block], block)


def evaluation_episodes(
    characters: Characters | AbstractStore,
    ways: int,
    shots: int,
    *,
    queries: int = 15,
    episodes: int = 600,
    chunk: int = 20,
    key: Key[Array, ""],
) -> Iterator[tuple[TaskImages, TaskImages]]:
    """Tasks to test on, as pairs (query, support), so many at once; no rotations.

    Equal keys give equal tasks, so that whatever is compared is tested on the same ones.
    """
    errors.count("episodes", episodes)
    source = Episodes(characters, ways, shots, queries, chunk, rotations=False)
    return _chunks(source, episodes, key)


def _chunks(
    source: Episodes, episodes: int, key: Key[Array, ""]
) -> Iterator[tuple[TaskImages, TaskImages]]:
    draw = eqx.filter_jit(lambda source, step: source(key, step, 1))
    for begin in range(0, episodes, source.tasks):
        sample = draw(source, jnp.asarray(begin // source.tasks))
        few = min(source.tasks, episodes - begin)
        yield jax.tree.map(lambda a, few=few: a[:few], (sample.outer, sample.batch(0)))


_Pair = tuple[TaskImages, TaskImages]  # (query, support), as everywhere (outer, inner)


def _sample(
    draw: Callable[[Key[Array, ""], int], _Pair],
    key: Key[Array, ""],
    step: Any,
    tasks: int,
    anchor: int | None,
) -> Sample:
    here, there, rest = jr.split(jr.fold_in(key, step), 3)
    query, support = draw(here, tasks)
    whole = None if anchor is None else draw(there, anchor)
    return Sample(query, jax.tree.map(lambda a: a[None], support), rest, whole)


def _turn(
    image: UInt8[Array, "*many side side"], quarters: Int[Array, "*over 1 1"]
) -> UInt8[Array, "*many side side"]:
    """Turn images counter-clockwise, each by its own number of quarters."""
    turned = [jnp.rot90(image, quarter, axes=(-2, -1)) for quarter in range(4)]
    return jnp.select([quarters == quarter for quarter in range(4)], turned)


def _some(key: Key[Array, ""], count: int, few: int) -> Int[Array, " few"]:
    """Different numbers below ``count``: the largest of random ones, cheaper than a permutation."""
    return jax.lax.top_k(jr.uniform(key, (count,), jnp.float32), few)[1]


def _together(
    image: UInt8[Array, "tasks ways few height width"], block: Int[Array, " tasks"]
) -> TaskImages:
    tasks, ways, few, *size = image.shape
    label = jnp.broadcast_to(jnp.repeat(jnp.arange(ways), few), (tasks, ways * few))
    level = image.reshape(tasks, ways * few, *size).astype(jnp.result_type(float))
    return TaskImages(level / 255, label, block)
