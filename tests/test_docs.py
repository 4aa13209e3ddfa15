"""What the pages claim about the code, and the code on the pages."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import biadam
from biadam import AbstractSolver, metrics, proximal, sets, solvers
from biadam.metrics import AbstractMetric
from biadam.proximal import AbstractProximal
from biadam.sets import AbstractSet
from biadam.tasks import Quadratic

ROOT = Path(__file__).parent.parent
BED = Quadratic((2, 3), condition=3.0, noise=0.1)


def code(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_every_method_stands_on_the_map():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(solvers.__all__)


def test_combinations_of_the_page_run():
    (source,) = code("docs/methods.md")
    names = {}
    exec(source, names)
    made = {name: value for name, value in names.items() if isinstance(value, AbstractSolver)}
    assert len(made) == 6
    for solver in made.values():
        result = biadam.run(
            BED.problem,
            solver,
            BED.minibatches(2),
            BED.x0,
            BED.y0,
            steps=200,
            key=jax.random.key(0),
        )
        start = np.linalg.norm(BED.x0 - BED.optimum())
        assert np.linalg.norm(result.x - BED.optimum()) < start


def test_the_page_on_constraints_runs():
    (source,) = code("docs/constraints.md")
    names = {}
    exec(source, names)
    bed = names["bed"]
    result = biadam.run(
        names["problem"],
        names["solver"],
        bed.minibatches(2),
        bed.x0,
        bed.y0,
        steps=20,
        every=20,
        key=jax.random.key(0),
        metrics=names["watched"],
    )
    assert (result.metrics["mapping"] <= result.metrics["measure"]).all()
    assert np.abs(np.asarray(result.x)).sum() <= 0.7 * (1 + 1e-12)


def test_every_set_term_and_metric_is_on_its_page():
    page = (ROOT / "docs" / "constraints.md").read_text()
    kinds = ((sets, AbstractSet), (proximal, AbstractProximal), (metrics, AbstractMetric))
    for module, kind in kinds:
        for name, thing in vars(module).items():
            if isinstance(thing, type) and issubclass(thing, kind) and "Abstract" not in name:
                assert re.search(rf"[`.]{name}[(`]", page), name


def test_the_readme_prints_what_it_says(capsys):
    """In the types a user has by default."""
    first, second = code("README.md")
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        names = {}
        exec(first, names)
        exec(second, names)
    told = capsys.readouterr().out
    assert told == "2.1 without penalties, 1.0 with the learned ones\n"
    assert f"    {told}" in (ROOT / "README.md").read_text()
    assert isinstance(names["solver"], AbstractSolver)


@pytest.mark.parametrize("name", solvers.__all__)
def test_every_solver_file_tells_its_paper_and_its_departures(name):
    module = __import__(getattr(solvers, name).__module__, fromlist=["x"])
    text = module.__doc__
    assert "Reference" in text
    assert "Departures" in text
    assert ".. math::" in text
    assert getattr(solvers, name).__doc__
