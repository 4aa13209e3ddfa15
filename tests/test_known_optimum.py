"""Every method, without noise, to the point that the closed form names."""

import jax
import numpy as np
import pytest

import biadam
from biadam import Outcome, solvers
from matrix import BEDS, EVERY, ROWS


def test_every_method_has_a_row():
    assert sorted(ROWS) == sorted(solvers.__all__)


@pytest.mark.parametrize("bed", BEDS.values(), ids=BEDS)
@pytest.mark.parametrize("name", EVERY)
def test_converges_to_the_closed_form(name, bed):
    row = EVERY[name]
    result = biadam.run(
        bed.problem,
        row.solver(bed),
        bed.full(),
        bed.x0,
        bed.y0,
        steps=row.steps,
        key=jax.random.key(0),
    )
    limit = row.limit(bed)
    assert result.outcome is Outcome.OK
    error = np.linalg.norm(result.x - limit) / np.linalg.norm(limit)
    assert error <= row.tolerance
