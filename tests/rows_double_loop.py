"""The double-loop methods on the test bed."""

import functools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax

from beds import Row, neumann_floor
from biadam import Calls
from biadam.double_loop import Amortized
from biadam.hypergradients import ConjugateGradient, FixedPoint, NeumannSum
from biadam.solvers.adambo import adambo
from biadam.solvers.aid import aid_cg, aid_fp
from biadam.solvers.alset import alset
from biadam.solvers.amigo import amigo
from biadam.solvers.bo_rep import bo_rep
from biadam.solvers.bsa import bsa
from biadam.solvers.newton_cg import newton_cg
from biadam.solvers.reverse import reverse
from biadam.solvers.stocbio import stocbio
from biadam.solvers.ttsa import ttsa
from biadam.tasks import Quadratic


def curvature(bed: Quadratic) -> float:
    """The largest eigenvalue of the Hessian of F: the outer step must stay below 2 over it."""
    at = bed.coupling @ np.linalg.inv(bed.hessian)
    return float(np.linalg.eigvalsh(at @ at.T).max()) + bed.ridge


def steps(bed: Quadratic, outer: float = 1.0) -> tuple[float, float]:
    """A constant pair: ``outer`` over the curvature of F, and 1, the one over that of g."""
    return outer / curvature(bed), 1.0


@functools.cache
def descent(bed: Quadratic) -> optax.GradientTransformation:
    """Gradient descent on F; one object a bed, as another one would be another program."""
    return optax.sgd(1 / curvature(bed))


class Geometric(eqx.Module):
    """``scale * ratio^t``: for normalised steps, which have the length they are told."""

    scale: float
    ratio: float

    def __call__(self, t: Any) -> Any:
        return self.scale * self.ratio ** jnp.asarray(t, float)


SUM = NeumannSum(3, 0.8)

ROWS: dict[str, Row] = {
    "reverse": Row(
        lambda bed: reverse(steps(bed), inner_steps=8, truncation=5),
        800,
        Calls(1, 8, 5, 5),
        neumann_floor(5, 1.0),
    ),
    "aid_cg": Row(
        lambda bed: aid_cg(steps(bed), inner_steps=5, hypergradient=ConjugateGradient(6)),
        800,
        Calls(1, 5, 6, 1),
    ),
    "aid_fp": Row(
        lambda bed: aid_fp(steps(bed), inner_steps=5, hypergradient=FixedPoint(4, 0.8)),
        800,
        Calls(1, 5, 3, 1),
        neumann_floor(4, 0.8),
    ),
    "bsa": Row(
        lambda bed: bsa(steps(bed), inner_steps=3, hypergradient=SUM),
        800,
        Calls(1, 3, 3, 1),
        neumann_floor(4, 0.8),
    ),
    "ttsa": Row(
        lambda bed: ttsa(steps(bed), hypergradient=SUM),
        800,
        Calls(1, 1, 3, 1),
        neumann_floor(4, 0.8),
    ),
    "alset": Row(
        lambda bed: alset(steps(bed), inner_steps=2, hypergradient=SUM),
        800,
        Calls(1, 2, 3, 1),
        neumann_floor(4, 0.8),
    ),
    "stocbio": Row(
        lambda bed: stocbio(steps(bed), inner_steps=4, hypergradient=SUM),
        800,
        Calls(1, 4, 3, 1),
        neumann_floor(4, 0.8),
    ),
    "amigo": Row(
        lambda bed: amigo(steps(bed, 0.3), inner_steps=4, hypergradient=Amortized(3, 1.0)),
        2000,
        Calls(1, 4, 3, 1),
    ),
    "adambo": Row(
        lambda bed: adambo((Geometric(0.1, 0.997), 1.0), hypergradient=SUM),
        5000,
        Calls(1, 1, 3, 1),
        neumann_floor(4, 0.8),
    ),
    "bo_rep": Row(
        lambda bed: bo_rep((Geometric(0.1, 0.997), 1.0), hypergradient=Amortized(1, 1.0)),
        6000,
        Calls(1, 1.5, 1, 1),
        inert=frozenset({".outer_metric.start"}),  # forgotten at once, as the decay is 0
    ),
    "newton_cg": Row(
        lambda bed: newton_cg(descent(bed), tolerance=1e-9),
        800,
        # No number of the method's own: so many in the protocol's eight steps, which start cold.
        Calls(1, 3.5, 9.625, 1),
        data=lambda bed: bed.full(),  # so that one look at all of it is one call
    ),
}
