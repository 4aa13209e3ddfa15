"""A learned encoder as a run left it, to be used on images of one's own."""

import ast
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from .. import models
from ..data.episodes import TaskImages
from ..data.omniglot import area_means
from ..errors import Mistake
from ..hypergradients import Newton
from ..models import AbstractEncoder
from ..record import load
from .few_shot import FewShot, Representation


def written(encoder: AbstractEncoder) -> str:
    """The encoder as a line of text."""
    return " ".join(repr(encoder).split())


def packed(few_shot: FewShot, x: Representation) -> dict[str, np.ndarray]:
    """The arrays that a saved run keeps of an encoder and its heads."""
    leaves = enumerate(jax.tree.leaves(x))
    return {
        "encoder": np.array(written(few_shot.encoder)),
        "ridge": np.array(few_shot.ridge),
        **{f"encoder_{i}": np.asarray(a) for i, a in leaves},
    }


class Learned:
    """Classifies images by a few examples of each class, on the features of a saved encoder.

    Images are arrays [n, height, width] with ink 1 on paper 0, or in whole numbers with ink 255.
    Those that are larger than the ones that the encoder was trained on are made smaller by area
    means, as Omniglot's were.
    """

    def __init__(self, few_shot: FewShot, x: Representation, size: tuple[int, int]):
        self.few_shot, self.x, self.size = few_shot, x, size
        self.classes: np.ndarray | None = None
        self.heads: Array | None = None

    @classmethod
    def load(cls, folder: str | Path, encoder: AbstractEncoder | None = None) -> "Learned":
        """Read the encoder of a run of hyper-representation.

        Args:
            folder: where the run was saved.
            encoder: an encoder of one's own, if the run had one.
        """
        arrays = load(Path(folder)).arrays
        if "encoder" not in arrays:
            raise Mistake(
                f"{folder} holds no encoder; give the folder of a run of hyper-representation."
            )
        network = _built(str(arrays["encoder"])) if encoder is None else encoder
        height, width = arrays["support_image"].shape[1:]
        leaves = [jnp.asarray(arrays[f"encoder_{i}"]) for i in range(_count(arrays))]
        x = jax.tree.unflatten(_structure(network, (height, width)), leaves)
        return cls(FewShot(network, float(arrays["ridge"])), x, (height, width))

    def features(self, image: Any) -> np.ndarray:
        """One row of features for each image."""
        ink = self._ink(image)
        return np.asarray(self.few_shot.encoder.apply(self.x.z, ink, self.x.statistics))

    def fit(self, image: Any, label: Any) -> "Learned":
        """Learn classes from a few images of each, with any labels."""
        self.classes, number = np.unique(np.asarray(label), return_inverse=True)
        ink = self._ink(image)
        if len(ink) != len(number):
            raise Mistake(
                f"`label` must have one entry for each of the {len(ink)} images, but it has "
                f"{len(number)}."
            )
        support = TaskImages(ink[None], jnp.asarray(number)[None], jnp.zeros(1, jnp.int32))
        self.heads = self.few_shot.fit(self.x, support, len(self.classes), Newton(1e-4))
        return self

    def predict(self, image: Any) -> np.ndarray:
        """The class of each image."""
        if self.classes is None or self.heads is None:
            raise Mistake("`predict` needs classes to choose from; call `fit` first.")
        scores = jnp.asarray(self.features(image)) @ self.heads[0]
        return self.classes[np.asarray(jnp.argmax(scores, axis=1))]

    def _ink(self, image: Any) -> Array:
        """The images of a user, as those that the encoder was trained on."""
        array = np.asarray(image)
        if array.ndim != 3:
            raise Mistake(
                f"`image` must be an array [n, height, width], but its shape is {array.shape}."
            )
        given, (height, width) = array.shape[1:], self.size
        if given[0] < height or given[0] * width != given[1] * height:
            raise Mistake(
                f"`image` must hold images of {height} x {width}, or larger ones of that shape, "
                f"but they are {given[0]} x {given[1]}; pad or crop them."
            )
        level = array / 255 if np.issubdtype(array.dtype, np.integer) else array
        small = level if given == self.size else area_means(level, self.size)
        return jnp.asarray(small, jnp.result_type(float))


def _structure(encoder: AbstractEncoder, size: tuple[int, int]) -> Any:
    def both() -> PyTree:
        z = encoder.init(jr.key(0), size)
        return Representation(z, encoder.statistics(z, jnp.zeros((1, *size))))

    return jax.tree.structure(jax.eval_shape(both))


def _count(arrays: dict[str, np.ndarray]) -> int:
    return sum(name.startswith("encoder_") for name in arrays)


def _built(text: str) -> AbstractEncoder:
    """The encoder that a text such as ``Convolutional(channels=32)`` names."""
    try:
        built: AbstractEncoder = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, AttributeError, TypeError) as error:
        raise Mistake(
            f"the run was made with an encoder of one's own, {text}; give it as `encoder`."
        ) from error
    return built


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named = {word.arg: _value(word.value) for word in node.keywords if word.arg}
        return getattr(models, node.func.id)(**named)
    return ast.literal_eval(node)
