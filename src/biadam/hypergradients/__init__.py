"""Estimators of the hypergradient, one file each; `hypergradient` is the one to compare with."""

from .base import AbstractHypergradient as AbstractHypergradient
from .base import AbstractImplicit as AbstractImplicit
from .base import Field as Field
from .conjugate_gradient import ConjugateGradient as ConjugateGradient
from .deterministic import hypergradient as hypergradient
from .exact import Exact as Exact
from .fixed_point import FixedPoint as FixedPoint
from .linear_system import LinearSystem as LinearSystem
from .neumann import NeumannRandom as NeumannRandom
from .neumann import NeumannSum as NeumannSum
from .per_sample import AbstractInner as AbstractInner
from .per_sample import Newton as Newton
from .per_sample import PerSample as PerSample
from .per_sample import Steps as Steps
from .unrolled import Unrolled as Unrolled
