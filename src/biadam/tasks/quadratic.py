r"""The test bed: a quadratic bilevel problem whose every answer has a closed form.

.. math::
    g(x, y; \zeta) &= \tfrac12 y' H_\zeta y - y' B_\zeta' x - c_\zeta' y, \qquad
    f(x, y; \xi) = \tfrac12 \|y - t_\xi\|^2 + \tfrac{r}{2} \|x - u_\xi\|^2, \\
    y^*(x) &= H^{-1} (B' x + c), \qquad J = -B, \qquad
    \nabla F(x) = r (x - u) + B H^{-1} (y^*(x) - t),

with the means H, B, c, t, u of the samples' matrices and vectors. F is itself a quadratic, so its
optimum solves a linear system.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .. import errors
from ..data import FullBatch, Minibatches
from ..problem import Problem


class Quadratic:
    """A random quadratic problem over a finite number of examples.

    Args:
        dimensions: (outer, inner), d and p.
        condition: L_g / mu of the mean Hessian, whose largest eigenvalue is 1.
        noise: size of the examples' deviations from the mean; their Hessians stay positive
            definite, their mean is exact.
        examples: how many there are, for either loss.
        ridge: r, the strong convexity of the outer loss in x.
        seed: names the problem.
    """

    def __init__(
        self,
        dimensions: tuple[int, int] = (4, 5),
        *,
        condition: float = 10.0,
        noise: float = 0.0,
        examples: int = 8,
        ridge: float = 0.5,
        seed: int = 0,
    ):
        for name, value in zip(("outer", "inner"), dimensions, strict=True):
            errors.count(f"dimensions ({name})", value)
        errors.number("condition", condition, least=1)
        errors.number("noise", noise, least=0)
        errors.count("examples", examples)
        errors.number("ridge", ridge, least=0)
        d, p = dimensions
        draw = np.random.default_rng(seed)
        basis = np.linalg.qr(draw.normal(size=(p, p)))[0]
        spectrum = np.geomspace(1 / condition, 1.0, p)
        self.hessian = basis @ np.diag(spectrum) @ basis.T
        # Coupled through the root of H, so that the curvature of F is that of H^{-1}.
        mixed = draw.normal(size=(d, p)) / np.sqrt(p)
        self.coupling = mixed @ basis @ np.diag(np.sqrt(spectrum)) @ basis.T
        self.shift, self.target = draw.normal(size=p), draw.normal(size=p)
        self.centre = draw.normal(size=d)
        self.ridge = ridge

        def centred(*shape: int) -> np.ndarray:
            sample = draw.normal(size=(examples, *shape))
            return noise * (sample - sample.mean(0))

        # A factor of the root on both sides keeps every example's Hessian positive definite.
        root = np.linalg.cholesky(self.hessian)
        wobble = centred(p, p)
        wobble = (wobble + np.swapaxes(wobble, 1, 2)) / 2
        largest = max(1.0, 2 * float(np.abs(np.linalg.eigvalsh(wobble)).max()))
        self.inner_data = {
            "hessian": self.hessian + root @ (wobble / largest) @ root.T,
            "coupling": self.coupling + centred(d, p),
            "shift": self.shift + centred(p),
            "index": np.arange(examples),
        }
        self.outer_data = {
            "target": self.target + centred(p),
            "centre": self.centre + centred(d),
            "index": np.arange(examples),
        }
        self.problem = Problem(outer=self.outer, inner=self.inner)
        self.x0, self.y0 = jnp.zeros(d), jnp.zeros(p)

    def outer(self, x: Float[Array, " d"], y: Float[Array, " p"], batch: PyTree) -> Array:
        """f, the mean over a minibatch."""
        near = jnp.sum((y[None] - batch["target"]) ** 2, axis=1)
        small = jnp.sum((x[None] - batch["centre"]) ** 2, axis=1)
        return jnp.mean(near + self.ridge * small) / 2

    def inner(self, x: Float[Array, " d"], y: Float[Array, " p"], batch: PyTree) -> Array:
        """g, the mean over a minibatch."""
        hessian, coupling, shift = (
            jnp.mean(batch[name], axis=0) for name in ("hessian", "coupling", "shift")
        )
        return y @ hessian @ y / 2 - x @ coupling @ y - shift @ y

    def minibatches(self, size: int = 1, replacement: bool = True) -> Minibatches:
        """A source of random minibatches of the examples."""
        return Minibatches(self.outer_data, self.inner_data, size, replacement)

    def full(self) -> FullBatch:
        """The source without noise."""
        return FullBatch(self.outer_data, self.inner_data)

    def solution(self, x: np.ndarray) -> np.ndarray:
        """y*(x)."""
        return np.linalg.solve(self.hessian, self.coupling.T @ x + self.shift)

    def hypergradient(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """``f_x - J H^{-1} f_y`` at any point; at y = y*(x) the gradient of F."""
        s = np.linalg.solve(self.hessian, y - self.target)
        return self.ridge * (x - self.centre) + self.coupling @ s

    def optimum(self, inverse: np.ndarray | None = None) -> np.ndarray:
        """The minimiser of F.

        With another ``inverse`` in place of H^{-1} in the hypergradient, the point where that
        biased hypergradient vanishes at y*(x), which is where a method that uses it converges to.
        """
        inverse = np.linalg.inv(self.hessian) if inverse is None else inverse
        at = self.coupling @ inverse
        slope = self.ridge * np.eye(len(self.centre)) + at @ np.linalg.solve(
            self.hessian, self.coupling.T
        )
        value = self.ridge * self.centre + at @ (
            self.target - np.linalg.solve(self.hessian, self.shift)
        )
        return np.linalg.solve(slope, value)
