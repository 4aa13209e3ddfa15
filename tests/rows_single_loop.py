"""The single-loop methods on the test bed."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from beds import Row, at, neumann_floor
from biadam import Calls
from biadam.data.blocks import Blocks
from biadam.hypergradients import LinearSystem, NeumannSum
from biadam.schedules import Constant, Coupled
from biadam.solvers.fsla import fsla, fsla_plain
from biadam.solvers.ma_soba import ma_soba
from biadam.solvers.mrbo import mrbo
from biadam.solvers.mstsa import mstsa
from biadam.solvers.saba import saba
from biadam.solvers.slip import slip
from biadam.solvers.smb import smb
from biadam.solvers.soba import soba
from biadam.solvers.srba import srba
from biadam.solvers.stable import stable
from biadam.solvers.sustain import sustain
from biadam.solvers.svrb import svrb
from biadam.solvers.vrbo import vrbo
from biadam.tasks import Quadratic


def curvature(bed: Quadratic) -> float:
    """The largest eigenvalue of the Hessian of F."""
    root = bed.coupling @ np.linalg.inv(bed.hessian)
    return float(np.linalg.eigvalsh(root @ root.T).max()) + bed.ridge


def convexity(bed: Quadratic) -> float:
    """The least eigenvalue of H: mu."""
    return float(np.linalg.eigvalsh(bed.hessian)[0])


def tracked(bed: Quadratic) -> tuple[float, float]:
    """Constant steps at which three levels that move at once are stable."""
    return min(0.05, 0.4 * convexity(bed) ** 2), 1.0


class Geometric(eqx.Module):
    """``scale * ratio^t``, for steps whose length does not depend on the gradient's."""

    scale: float
    ratio: float

    def __call__(self, t: Any) -> Any:
        return self.scale * self.ratio ** jnp.asarray(t, float)


def blocks(bed: Quadratic, size: int = 2) -> Blocks:
    return Blocks(bed.outer_data, bed.inner_data, size)


SUM = NeumannSum(7, 0.8)
SYSTEM = LinearSystem(1.0)
NO_SYSTEM = frozenset({".rates.system"})  # the method has no level s

ROWS: dict[str, Row] = {
    "smb": Row(
        at(smb, (0.02, 0.5), hypergradient=SUM, rates=Constant(0.5, 0.5)),
        4000,
        Calls(1, 1, 7, 1),
        neumann_floor(8, 0.8),
        inert=NO_SYSTEM,
    ),
    "sustain": Row(
        at(sustain, (0.02, 0.5), hypergradient=SUM, mixing=0.9, rates=Coupled(0.5, 0.5, 2.0)),
        4000,
        Calls(2, 2, 14, 2),
        neumann_floor(8, 0.8),
    ),
    "mrbo": Row(
        at(mrbo, (0.02, 0.5), hypergradient=SUM, mixing=0.9, rates=Coupled(0.5, 0.5, 2.0)),
        4000,
        Calls(2, 2, 14, 2),
        neumann_floor(8, 0.8),
    ),
    "mstsa": Row(
        at(mstsa, (0.02, 0.5), hypergradient=SUM),
        4000,
        Calls(2, 1, 14, 2),
        neumann_floor(8, 0.8),
    ),
    "vrbo": Row(
        lambda bed: vrbo((0.5 / curvature(bed), 1.0), hypergradient=SUM, period=4),
        1000,
        # 2 (m + 1) looks, and in four iterations one at all the data, which is four minibatches.
        Calls(9, 9, 63, 9),
        neumann_floor(8, 0.8),
    ),
    "svrb": Row(
        lambda bed: svrb((0.1 / curvature(bed), 1.0), rate=0.5),
        6000,
        Calls(2, 2, 6, 6),  # p = 3 products for a matrix
        inert=frozenset({".convexity", ".smoothness"}),
    ),
    "stable": Row(
        lambda bed: stable((1 / curvature(bed), 1.0)),
        800,
        Calls(1, 1, 6, 6),
        inert=frozenset({".cross_bound", ".convexity"}),
    ),
    "fsla": Row(lambda bed: fsla(tracked(bed), system_step=1.0, rate=0.5), 9000, Calls(2, 1, 1, 2)),
    "fsla_plain": Row(
        lambda bed: fsla_plain(tracked(bed), system_step=1.0), 9000, Calls(1, 1, 1, 1)
    ),
    "soba": Row(
        lambda bed: soba(tracked(bed), hypergradient=SYSTEM, mixing=1.0), 9000, Calls(1, 1, 1, 1)
    ),
    "ma_soba": Row(
        lambda bed: ma_soba(tracked(bed), hypergradient=SYSTEM, mixing=1.0), 9000, Calls(1, 1, 1, 1)
    ),
    "slip": Row(
        lambda bed: slip((Geometric(0.1, 0.999), 1.0), warm_steps=2, hypergradient=SYSTEM),
        16000,
        Calls(1, 1, 1, 1),
        inert=frozenset({".outer_metric.start"}),  # forgotten at once, as the decay is 0
    ),
    "saba": Row(lambda bed: saba(tracked(bed)), 9000, Calls(1, 1, 1, 1), data=blocks),
    "srba": Row(
        lambda bed: srba(tracked(bed), hypergradient=SYSTEM, period=4),
        9000,
        Calls(2.5, 2.5, 2.5, 2.5),  # two looks in three steps of four, then all four minibatches
    ),
}
