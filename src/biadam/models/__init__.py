"""Representations: encoders whose parameters are a plain pytree, the library's and the user's."""

from .adapters import from_equinox as from_equinox
from .adapters import from_nnx as from_nnx
from .encoder import AbstractEncoder as AbstractEncoder
from .encoder import Convolutional as Convolutional
from .norms import BatchNorm as BatchNorm
from .norms import GroupNorm as GroupNorm
from .norms import NoNorm as NoNorm
from .scalings import Raw as Raw
from .scalings import Sphere as Sphere
