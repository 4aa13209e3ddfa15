"""How the outer variable x weighs the training examples: by one entry each, or by a function."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import Mistake
from ..hypergradients import NeumannRandom
from ..schedules import PowerDecay
from .images import CLASSES, Corrupted, Labelled
from .out_of_fold import TINY, given, out_of_fold


class AbstractWeighting(eqx.Module):
    """Makes weights of x: the sigmoid of what a call returns."""

    @abc.abstractmethod
    def start(self, examples: Labelled) -> Array:
        """The x that weighs all examples alike, by one half."""

    @abc.abstractmethod
    def __call__(self, x: Array, of: Labelled) -> Float[Array, " n"]:
        """The weights' logits."""

    @abc.abstractmethod
    def settings(self, examples: Labelled, ridge: float) -> dict[str, dict[str, Any]]:
        """What works for each method, with the penalty C of the inner loss."""


def _pace(examples: Labelled) -> float:
    """An inner step size that shrinks with the curvature of the features."""
    features = np.asarray(examples.features)
    return 7.0 / float(np.linalg.eigvalsh(features.T @ features / len(features))[-1])


def _plain(scale: float, pace: float, ridge: float) -> dict[str, dict[str, Any]]:
    """What works for methods whose outer steps are not normalised, in units of both steps."""
    pairs = {
        (0.02, 1.0): ("f2sa",),
        (0.1, 1.0): ("saba",),
        (0.1, 1 / 3): ("aid_cg", "bome", "stable"),
        (0.5, 1.0): ("alset", "bsa", "fsla", "ma_soba", "smb", "soba", "srba", "ttsa"),
        (0.5, 1 / 2): ("f2ba", "pbgd_gradient", "pbgd_value"),
        (0.5, 1 / 3): ("aid_fp", "amigo", "fsla_plain", "mstsa", "stocbio", "svrb"),
        (2.0, 1.0): ("mrbo", "reverse", "sustain", "vrbo"),
    }
    plain: dict[str, dict[str, Any]] = {
        name: {"step_size": (outer * scale, inner * pace)}
        for (outer, inner), names in pairs.items()
        for name in names
    }
    for name in ("stable", "svrb"):
        plain[name]["convexity"] = 2 * ridge
    return plain


def entries(x: Array, of: Labelled, count: int) -> Float[Array, " n"]:
    """The entries of x that belong to these examples; another length would be read past its end."""
    if x.shape != (count,):
        raise Mistake(
            f"`x` must have one entry for each of the {count} training examples, but its shape is "
            f"{x.shape}."
        )
    return x[of.index]


class OnePerExample(AbstractWeighting):
    """Each example has an entry of x of its own."""

    count: int = eqx.field(static=True)  # of the training examples

    def start(self, examples: Labelled) -> Array:
        """See `AbstractWeighting`."""
        return jnp.zeros(len(examples.label), examples.features.dtype)

    def __call__(self, x: Array, of: Labelled) -> Float[Array, " n"]:
        """See `AbstractWeighting`."""
        return entries(x, of, self.count)

    def settings(self, examples: Labelled, ridge: float) -> dict[str, dict[str, Any]]:
        """By a coarse grid on the digits and a seed that none reports.

        The gradient of a weight comes from one example in n and enters through a mean, so that
        steps that are not normalised grow with n; inner steps shrink with the curvature of the
        features. The least inner curvature is that of the penalty, 2 C.
        """
        slow = PowerDecay(scale=55.0, offset=3000.0, power=1 / 2)
        printed = {"step_size": (2.0, 0.5), "hypergradient": NeumannRandom(length=3, step_size=0.5)}
        tracked = {"step_size": (0.4, 0.1), "mixing": slow}
        authors = {"step_size": (0.4, 5e-4)}
        pace = _pace(examples)
        return {
            **_plain(float(len(examples.label)), pace, ridge),
            "adambo": {"step_size": (0.05, pace)},
            "biadam": printed,
            "biadam_authors": authors,
            "biadam_tracked": tracked,
            "bo_rep": {"step_size": (0.1, pace)},
            "d_tfbo": {"step_size": (100.0, 1.0)},
            "newton_cg": {"rate": 5.0, "tolerance": 1e-3},
            "s_tfbo": {"step_size": (100.0, 1.0)},
            "slip": {"step_size": (0.1, pace)},
            "vr_biadam": printed,
            "vr_biadam_authors": authors,
            "vr_biadam_tracked": tracked,
        }


class OfTraits(AbstractWeighting):
    """x holds the coefficients of a linear function of a few traits of an example."""

    traits: Float[Array, "n traits"]

    def start(self, examples: Labelled) -> Array:
        """See `AbstractWeighting`."""
        return jnp.zeros_like(self.traits[0])

    def __call__(self, x: Array, of: Labelled) -> Float[Array, " n"]:
        """See `AbstractWeighting`."""
        return self.traits[of.index] @ x

    def settings(self, examples: Labelled, ridge: float) -> dict[str, dict[str, Any]]:
        """By a coarse grid on MNIST and a seed that none reports, for the recommended methods.

        The others start from what works for free weights, with a tenth of the outer steps that are
        normalised; the gradient of a coefficient comes from every example, so that the other steps
        don't grow with n. They are where a search begins, no more.
        """
        pace, tracked = _pace(examples), {"step_size": (0.03, 0.1)}
        printed = {"step_size": (0.2, 0.5), "hypergradient": NeumannRandom(length=3, step_size=0.5)}
        authors = {"step_size": (0.03, 5e-4)}
        return {
            **_plain(1.0, pace, ridge),
            "adambo": {"step_size": (0.005, pace)},
            "biadam": printed,
            "biadam_authors": authors,
            "biadam_tracked": tracked,
            "bo_rep": {"step_size": (0.01, pace)},
            "d_tfbo": {"step_size": (1.0, 1.0)},
            "newton_cg": {"rate": 0.5, "tolerance": 1e-3},
            "s_tfbo": {"step_size": (1.0, 1.0)},
            "slip": {"step_size": (0.01, pace)},
            "vr_biadam": printed,
            "vr_biadam_authors": authors,
            "vr_biadam_tracked": tracked,
        }


Weights = Callable[[Corrupted, int], AbstractWeighting]  # of the data and a seed


@dataclass(frozen=True)
class FreeWeights:
    """One free weight for each example, as in the paper."""

    def __call__(self, images: Corrupted, seed: int) -> OnePerExample:
        """See `Weights`."""
        return OnePerExample(len(images.given))


@dataclass(frozen=True)
class WeightFunction:
    """A small function of each example, which a few clean examples can determine.

    Its traits are the class of the label and three numbers, standardised, that models of the other
    folds give without any clean label: the label's probability, its loss, and the logarithm of how
    much likelier it is than the likeliest other.
    """

    def __call__(self, images: Corrupted, seed: int) -> OfTraits:
        """See `Weights`."""
        probability = out_of_fold(images.examples, seed)
        named = given(images.examples, probability)
        label = np.eye(CLASSES)[images.given]
        others = np.maximum(np.where(label == 1, 0, probability).max(axis=1), TINY)
        numbers = np.stack([named, -np.log(named), np.log(named / others)], axis=1)
        standard = (numbers - numbers.mean(axis=0)) / np.maximum(numbers.std(axis=0), 1e-6)
        traits = np.concatenate([standard, label], axis=1)
        return OfTraits(jnp.asarray(traits, images.examples.features.dtype))
