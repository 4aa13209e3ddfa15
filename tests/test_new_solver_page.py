"""The contributor's guide is run as it stands on the page."""

import re
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest

import biadam
from biadam import Calls, SingleLoop
from biadam.solvers import METHODS
from biadam.solvers.about import FACTORIES, SPACES
from matrix import BEDS, Row

PAGE = Path(__file__).parent.parent / "docs" / "contributing" / "new_solver.md"


@pytest.fixture
def blocks():
    """The page's Python, the method's entries in the tables taken back afterwards."""
    yield re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    METHODS.pop("example", None)
    FACTORIES.pop("example", None)
    SPACES.pop("example", None)
    sys.modules.pop("example", None)


@pytest.mark.parametrize("bed", BEDS.values(), ids=BEDS)
def test_the_example_of_the_page_works(blocks, bed):
    source, row = blocks
    module = types.ModuleType("example")
    exec(source, module.__dict__)
    assert METHODS["example"].year == 2026
    names = {"example": module.example, "Row": Row, "Calls": Calls}
    exec(row, names)
    row = names["row"]
    solver = row.solver(bed)
    assert isinstance(solver, SingleLoop)
    result = biadam.run(
        bed.problem, solver, bed.full(), bed.x0, bed.y0, steps=row.steps, key=jax.random.key(0)
    )
    np.testing.assert_allclose(result.x, row.limit(bed), rtol=row.tolerance)
    spent = Calls(**result.oracle_calls)
    first = Calls(1, 1, 1, 1)
    assert tuple(spent) == tuple(f + row.steps * n for f, n in zip(first, row.calls, strict=True))
