"""Networks of other libraries as encoders: their parameters become the outer variable z."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key, PyTree

from .. import errors
from .encoder import AbstractEncoder
from .scalings import AbstractScaling, Sphere


class Adapted(AbstractEncoder):
    """A network whose parameters were taken out of it.

    Args:
        start: the parameters, as `init` returns them whatever its key.
        network: a function of parameters and images that returns a row of features an image.
        scaling: what the heads see of the features.
    """

    start: PyTree[Array]
    network: Any
    scaling: AbstractScaling

    def init(self, key: Key[Array, ""], shape: tuple[int, int]) -> PyTree[Array]:
        """See `AbstractEncoder`."""
        return self.start

    def apply(
        self, z: PyTree[Array], image: Float[Array, "n height width"], statistics: Any = None
    ) -> Float[Array, "n features"]:
        """See `AbstractEncoder`."""
        return self.scaling(self.network(z, image))

    def statistics(self, z: PyTree[Array], image: Float[Array, "n height width"]) -> Any:
        """See `AbstractEncoder`; nothing, for such a network takes none."""
        return None


def from_equinox(module: eqx.Module, scaling: AbstractScaling = Sphere()) -> Adapted:
    """An encoder from an Equinox module, a function of one image [height, width].

    Its arrays of floating type are z; whatever else it holds stays as it is. It may return an array
    of any shape, which is read as one row.
    """
    z, rest = eqx.partition(module, eqx.is_inexact_array)
    return Adapted(z, _Equinox(rest), _checked(scaling))


def from_nnx(module: Any, scaling: AbstractScaling = Sphere()) -> Adapted:
    """An encoder from a Flax NNX module, a function of images [n, height, width, 1].

    Its `nnx.Param` variables are z, as nested dictionaries; others stay as they are, so statistics
    that a module collects as it goes do not change: call ``module.eval()`` first.
    """
    try:
        from flax import nnx
    except ImportError as error:
        raise errors.Mistake(
            "an NNX module needs Flax, which is not installed; install flax."
        ) from error
    graph, *states = nnx.split(module, nnx.Param, ...)
    parameters, rest = states
    return Adapted(nnx.to_pure_dict(parameters), _Nnx(graph, parameters, rest), _checked(scaling))


class _Equinox(eqx.Module):
    """What is left of an Equinox module without its parameters."""

    rest: Any

    def __call__(self, z: PyTree[Array], image: Array) -> Array:
        return jax.vmap(lambda one: eqx.combine(z, self.rest)(one).reshape(-1))(image)


class _Nnx(eqx.Module):
    """What is left of an NNX module without its parameters."""

    graph: Any = eqx.field(static=True)
    form: Any  # the parameters as NNX holds them
    rest: Any

    def __call__(self, z: PyTree[Array], image: Array) -> Array:
        from flax import nnx

        parameters = jax.tree.map(lambda a: a, self.form)  # a copy, for the next line writes to it
        nnx.replace_by_pure_dict(parameters, z)
        module = nnx.merge(self.graph, parameters, self.rest)
        return module(image[..., None]).reshape(len(image), -1)


def _checked(scaling: AbstractScaling) -> AbstractScaling:
    errors.part("scaling", scaling, AbstractScaling, "models")
    return scaling
