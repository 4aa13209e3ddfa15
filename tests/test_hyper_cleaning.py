"""The task itself: its losses, its judges, and that cleaning works."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import biadam
from biadam import solvers
from biadam.tasks import hyper_cleaning
from biadam.tasks.hyper_cleaning import detection

MNIST = Path(os.environ.get("BIADAM_DATA", "/nowhere")) / "mnist"


def solve(task, steps):
    method = task.build(task.solver, getattr(solvers, task.solver))
    result = biadam.run(
        task.problem,
        method,
        task.source,
        task.x0,
        task.y0,
        steps=steps,
        key=jax.random.key(0),
        metrics=task.curves,
    )
    return result, task.evaluate(result.x, result.y)


def test_losses_are_those_of_the_formula():
    task = hyper_cleaning("digits", train=30, validation=20, ridge=0.01)
    x = jnp.linspace(-2, 2, 30, dtype=jnp.float32)
    y = jnp.asarray(np.random.default_rng(0).normal(size=(65, 10)), jnp.float32)
    sample = task.source(jax.random.key(0), 0, 1)
    batch = sample.batch(0)
    logits = np.asarray(batch.features) @ np.asarray(y)
    entropy = np.log(np.exp(logits).sum(1)) - logits[np.arange(128), np.asarray(batch.label)]
    weight = 1 / (1 + np.exp(-np.asarray(x)[np.asarray(batch.index)]))
    value = (weight * entropy).mean() + 0.01 * (np.asarray(y) ** 2).sum()
    np.testing.assert_allclose(task.problem.inner(x, y, batch), value, rtol=1e-5)
    np.testing.assert_array_equal(batch.features[:, -1], 1)  # the bias


def test_an_example_that_is_not_drawn_has_no_gradient():
    task = hyper_cleaning("digits", train=200, validation=20, batch=8)
    sample = task.source(jax.random.key(0), 0, 1)
    u = jnp.ones_like(task.y0)
    slope = task.problem.cross_product(task.x0, task.y0 + 0.1, sample.batch(0), u)
    drawn = np.unique(sample.batch(0).index)
    assert set(np.flatnonzero(np.asarray(slope))) <= set(drawn.tolist())


def test_detection():
    wrong = np.array([True, False, True, False])
    assert detection(np.array([3.0, 1.0, 2.0, 0.0]), wrong) == {"auc": 1.0, "f1": 1.0}
    assert detection(np.array([0.0, 1.0, 2.0, 3.0]), wrong)["auc"] == 0.25
    assert np.isnan(detection(np.zeros(4), np.zeros(4, bool))["auc"])


def test_digits_are_cleaned():
    """Sixty of a hundred labels are wrong, and nearly all of them are found."""
    task = hyper_cleaning("digits", seed=1)
    result, metrics = solve(task, 3000)
    assert metrics["validation_loss"] < 0.45
    assert metrics["test_accuracy"] > 0.9
    assert metrics["auc"] > 0.97
    assert metrics["f1"] > 0.93
    kept = task.keep(result.x, result.y)
    assert (kept["suspect_given"] != kept["suspect_true"]).mean() > 0.9


@pytest.mark.skipif(not MNIST.exists(), reason="MNIST is not below BIADAM_DATA")
def test_mnist_is_cleaned_to_the_bilevel_optimum():
    """With the defaults; 0.353 is the optimum, 0.412 what the true clean subset gives."""
    task = hyper_cleaning("mnist", noise=0.6)
    _, metrics = solve(task, task.steps)
    assert metrics["validation_loss"] <= 0.37
    assert metrics["test_accuracy"] >= 0.89
    assert metrics["auc"] >= 0.96
