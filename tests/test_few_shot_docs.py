"""The code on the page on few-shot learning: its blocks run, its settings can be typed."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from biadam import record, settings, solvers, tasks
from biadam.hypergradients import PerSample
from biadam.models import Convolutional

PAGE = (Path(__file__).parent.parent / "docs" / "few_shot.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_what_was_learned_is_used_in_three_lines(tmp_path, monkeypatch, capsys):
    """From the folder that the page's first command writes."""
    monkeypatch.chdir(tmp_path)
    (folder,) = re.findall(r"biadam run .* --out (\S+)", PAGE)
    encoder = Convolutional(4)
    task = tasks.fresh_tasks("digits", ways=3, queries=4, encoder=encoder, episodes=2)
    record.write(Path(folder), {}, task.keep(task.x0, task.y0))
    test = tasks.hyper_representation.drawn("digits", None).test.image
    given = {"images": test[:2, :5].reshape(-1, 14, 14), "labels": np.repeat(["a", "b"], 5)}
    exec(BLOCKS[0], {**given, "others": test[:2, 5]})
    assert re.fullmatch(r"\['[ab]' '[ab]'\]\n", capsys.readouterr().out)


def test_networks_of_other_libraries_run(capsys):
    """In the types a user has by default; the last block goes on from the one before."""
    pytest.importorskip("flax")
    assert len(BLOCKS) == 3
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        names = {}
        exec(BLOCKS[1], names)
        exec(BLOCKS[2], names)
    learned, raw = map(float, capsys.readouterr().out.split())
    assert learned > 0.4  # a third by chance
    assert 0.2 < raw <= 1


def test_the_settings_of_the_page_can_be_typed():
    typed = re.findall(r'^--set "(hypergradient=.*)"$', PAGE, re.MULTILINE)
    assert len(typed) == 3
    task = tasks.fresh_tasks("digits", ways=3, queries=4, encoder=Convolutional(4), episodes=2)
    for text in typed:
        given = settings.parse([text], solvers.biadam)
        assert isinstance(given["hypergradient"], PerSample)
        solver = task.build("biadam", solvers.biadam, **given)
        sample = task.source(jax.random.key(0), 0, solver.batches)
        init = lambda x, y, solver=solver, sample=sample: solver.init(task.problem, x, y, sample)[0]
        jax.eval_shape(init, task.x0, task.y0)
