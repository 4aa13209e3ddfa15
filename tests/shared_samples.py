"""One stream of samples for a method of the library and for its second implementation."""

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


class Shared:
    """One stream of samples, for the library and, as coefficients, for the second one."""

    def __init__(self, batches: int, data: Any = None, problem: Problem = BED.problem):
        self.data, self.batches, self.problem = data or BED.minibatches(2), batches, problem
        draw = jax.jit(jax.vmap(lambda t: self.data(KEY, t, batches)))
        self.stacked = draw(jnp.arange(STEPS + 1))

    def sample(self, t: int) -> Sample:
        """Number t of the stream, the one that the library's step t is given."""
        whole = self.data.outer, self.data.inner
        return jax.tree.map(lambda a: a[t], self.stacked)._replace(whole=whole)

    def trajectory(self, solver: Any) -> tuple[np.ndarray, np.ndarray]:
        """X and y after each of the library's steps."""

        def go(state: Any, t: Any) -> tuple[Any, Any]:
            state, _ = solver.step(self.problem, state, self.data(KEY, t, self.batches))
            return state, (state.point.x, state.point.y)

        @jax.jit
        def all_steps() -> Any:
            start, _ = solver.init(self.problem, BED.x0, BED.y0, self.data(KEY, 0, self.batches))
            return lax.scan(go, start, jnp.arange(1, STEPS + 1))[1]

        x, y = all_steps()
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
    count = jax.tree.leaves(sample.inner)[0].shape[0]
    zeta, zeta0, *zetas = (zeta_of(sample.batch(i)) for i in range(count))
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
