"""What the pages claim about the code, and the code on the pages."""

import ast
import re
import sys
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
PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
BED = Quadratic((2, 3), condition=3.0, noise=0.1)


ABOVE = {"jax", "equinox", "optax", "jaxtyping", "numpy"}  # what the rooms above may import


def test_no_room_imports_what_is_below_it():
    """In the order of the table; the types of annotations and one measured table are exempt."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)
    order = [room.strip("/") for row in rows for room in re.findall(r"`([^`]*)`", row)]
    source = Path(biadam.__file__).parent
    for path in source.rglob("*.py"):
        inside = path.relative_to(source).parts
        if inside == ("__init__.py",):  # imports names when they are first used
            continue
        here = order.index(inside[0])
        for package, lazy in imports(path, source):
            if package[0] == "biadam":
                name = package[1] if (source / package[1]).is_dir() else f"{package[1]}.py"
                exempt = (inside[-1], name) == ("about.py", "tasks") and lazy
                assert order.index(name) <= here or exempt, f"{path} imports {name}"
            elif here <= order.index("driver.py") and not lazy:
                assert package[0] in ABOVE | sys.stdlib_module_names, f"{path}: {package}"


def imports(path, source):
    """The modules that a file imports, and whether it does so inside a function."""
    module = ast.parse(path.read_text())
    types = {
        id(node)
        for branch in ast.walk(module)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    here = ("biadam", *path.relative_to(source).parts[:-1])
    for node in ast.walk(module):
        if id(node) in types or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        lazy = node.col_offset > 0
        if isinstance(node, ast.Import):
            yield from ((name.name.split("."), lazy) for name in node.names)
        elif not node.level:
            yield node.module.split("."), lazy
        else:
            base = here[: len(here) + 1 - node.level]
            named = [node.module] if node.module else [name.name for name in node.names]
            for name in named:
                if name != "__version__":
                    yield (*base, *name.split(".")), lazy


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_links_of_a_page_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", link):
            target, _, anchor = link.partition("#")
            file = (ROOT / page).parent / target if target else ROOT / page
            assert file.exists(), link
            if anchor and file.suffix == ".md":
                headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
                slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
                assert anchor in slugs, link


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
