"""One stream of samples for a method of the library and for its second implementation."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax

import reference
from biadam import Problem, Sample
from biadam.tasks import Quadratic

BED = Quadratic((2, 3), condition=3.0, noise=0.3, seed=5)
KEY = jr.key(7)
STEPS = 50


def drawn(data: Any, batches: int) -> Sample:
    """The samples 0 to `STEPS` of a source, stacked; arrays of NumPy but for the keys."""
    stacked = jax.jit(jax.vmap(lambda t: data(KEY, t, batches)))(jnp.arange(STEPS + 1))
    return jax.tree.map(np.asarray, stacked._replace(key=None))._replace(key=stacked.key)


@functools.cache
def minibatches(batches: int) -> Sample:
    """Those of the usual source, drawn once for all tests."""
    return drawn(BED.minibatches(2), batches)


class Shared:
    """One stream of samples, for the library and, as coefficients, for the second one."""

    def __init__(self, batches: int, data: Any = None, problem: Problem = BED.problem):
        self.problem = problem
        self.whole = jax.tree.map(jnp.asarray, (BED.outer_data, BED.inner_data))
        self.stacked = minibatches(batches) if data is None else drawn(data, batches)

    def sample(self, t: int) -> Sample:
        """Number t of the stream, the one that the library's step t is given."""
        return jax.tree.map(lambda a: jnp.asarray(a[t]), self.stacked)._replace(whole=self.whole)

    def trajectory(self, solver: Any) -> tuple[np.ndarray, np.ndarray]:
        """X and y after each of the library's steps."""

        def go(state: Any, sample: Any) -> tuple[Any, Any]:
            sample = sample._replace(whole=self.whole)
            state, _ = solver.step(self.problem, state, sample)
            return state, (state.point.x, state.point.y)

        @jax.jit
        def all_steps(samples: Any) -> Any:
            start, _ = solver.init(self.problem, BED.x0, BED.y0, self.sample(0))
            return lax.scan(go, start, samples)[1]

        x, y = all_steps(jax.tree.map(lambda a: a[1:], self.stacked))
        return np.asarray(x), np.asarray(y)


def zeta_of(batch: Any) -> dict[str, np.ndarray]:
    """The mean coefficients of a minibatch of the inner loss."""
    mean = {name: np.mean(batch[name], axis=0) for name in ("hessian", "coupling", "shift")}
    return {"H": mean["hessian"], "B": -mean["coupling"], "c": -mean["shift"]}


def xi_of(batch: Any) -> dict[str, Any]:
    """The same of the outer loss."""
    return {"t": np.mean(batch["target"], 0), "r": np.mean(batch["centre"], 0), "a": BED.ridge}


def series(sample: Sample, length: int | None = None) -> dict[str, Any]:
    """What a Neumann estimator is given, by the names of the reference."""
    inner = jax.tree.map(np.asarray, sample.inner)
    count = jax.tree.leaves(inner)[0].shape[0]
    batches = [{name: a[i] for name, a in inner.items()} for i in range(count)]
    zeta, zeta0, *zetas = map(zeta_of, batches)
    k = None if length is None else int(jr.randint(sample.key, (), 0, length))
    return {"xi": xi_of(sample.outer), "zeta": zeta, "zeta0": zeta0, "zetas": zetas, "k": k}


def pair(sample: Sample) -> dict[str, Any]:
    return {"xi": xi_of(sample.outer), "zeta": zeta_of(sample.batch(0))}


def agree(
    solver: Any,
    second: Callable[..., Any],
    entry: Callable[[Sample], Any],
    *,
    first: int,
    data: Any = None,
    problem: Problem = BED.problem,
    **numbers: Any,
) -> None:
    """Compare all iterates; ``first`` is the sample that the first step follows.

    That is 0 for the methods that look before they move, whose first look is in `init`.
    """
    shared = Shared(solver.batches, data, problem)
    entries = [entry(shared.sample(t)) for t in range(first, first + STEPS)]
    start = np.zeros(2), np.zeros(3)
    iterates = second(reference.Quadratic(), *start, entries, **numbers)[1:]
    x, y = shared.trajectory(solver)
    np.testing.assert_allclose(x, [i[0] for i in iterates], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(y, [i[1] for i in iterates], rtol=1e-10, atol=1e-12)
