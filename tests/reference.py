"""Stochastic bilevel methods in plain NumPy, written a second time to check the library against.

    min_x F(x) = f(x, y*(x)),   y*(x) = argmin_y g(x, y),   x in R^d,  y in R^p

Nothing here draws a random number: every sample is named and passed in, so a trajectory is a
function of its arguments. An inner sample (of g) is called zeta, an outer sample (of f) xi.
H is d2g/dy2 (p x p), J is d2g/dxdy (d x p, row index x), s solves H s = f_y, w estimates the
hypergradient f_x - J s and v estimates g_y.

Conventions of every method:

* `samples` has one entry an iteration, in order; entry t (from 1) holds what is drawn at time t,
  the time at which the estimates that move iterate t are formed.
* The result has one more entry than `samples`: the start, then (x, y) after each iteration.
* A hyper-parameter of type `Schedule` is a number or a function of t = 1, 2, ...
* A running estimate (EMA, STORM) starts with the raw value of the first sample, so the weight of
  iteration 1 has no effect. Momentum weights are clamped to (0, 1].
* `estimator` is "sum" (`neumann_sum`) or "random" (`neumann_random`); keys "xi", "zeta0" and
  "zetas" serve both, key "k" and the argument `K` only the latter.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Sample = Any  # what an oracle takes as xi or zeta; the methods only pass it on
Entry = Mapping[str, Any]  # the named samples of one iteration
Schedule = float | Callable[[int], float]
Box = tuple[ArrayLike, ArrayLike] | None  # lower and upper bounds of x
Iterates = list[tuple[Array, Array]]
Estimator = Literal["sum", "random"]


# ---------------------------------------------------------------------------------------- oracles


class Oracle(Protocol):
    """The partial derivatives of a bilevel problem at a sample."""

    def f_x(self, x: Array, y: Array, xi: Sample) -> Array: ...
    def f_y(self, x: Array, y: Array, xi: Sample) -> Array: ...
    def g_x(self, x: Array, y: Array, zeta: Sample) -> Array: ...
    def g_y(self, x: Array, y: Array, zeta: Sample) -> Array: ...
    def hess(self, x: Array, y: Array, zeta: Sample) -> Array: ...
    def cross(self, x: Array, y: Array, zeta: Sample) -> Array: ...


class Quadratic:
    """A quadratic problem whose samples are its coefficients.

    g(x, y; zeta) = y'Hy/2 + x'By + c'y    with zeta = {H: (p, p), B: (d, p), c: (p,)}
    f(x, y; xi)   = |y-t|^2/2 + a|x-r|^2/2 with xi   = {t: (p,), r: (d,), a: number}
    """

    def f_x(self, x: Array, y: Array, xi: Sample) -> Array:
        return xi["a"] * (x - xi["r"])

    def f_y(self, x: Array, y: Array, xi: Sample) -> Array:
        return y - xi["t"]

    def g_x(self, x: Array, y: Array, zeta: Sample) -> Array:
        return zeta["B"] @ y

    def g_y(self, x: Array, y: Array, zeta: Sample) -> Array:
        return zeta["H"] @ y + zeta["B"].T @ x + zeta["c"]

    def hess(self, x: Array, y: Array, zeta: Sample) -> Array:
        return zeta["H"]

    def cross(self, x: Array, y: Array, zeta: Sample) -> Array:
        return zeta["B"]


def mean_inner(zetas: Sequence[Sample]) -> dict[str, Array]:
    """Average inner samples of `Quadratic`: the sample whose g is the mean of theirs."""
    return {name: np.mean([zeta[name] for zeta in zetas], axis=0) for name in ("H", "B", "c")}


def mean_outer(xis: Sequence[Sample]) -> dict[str, Any]:
    """Average outer samples of `Quadratic`: the sample whose gradients are the mean of theirs."""
    a = float(np.mean([xi["a"] for xi in xis]))
    r = np.mean([xi["a"] * xi["r"] for xi in xis], axis=0) / a
    return {"t": np.mean([xi["t"] for xi in xis], axis=0), "r": r, "a": a}


def quadratic_solution(zeta: Sample, xi: Sample) -> tuple[Array, Array]:
    """Solve `Quadratic` without noise: x* and y*(x*) from grad F = 0."""
    H, B, c = (np.asarray(zeta[name], np.float64) for name in ("H", "B", "c"))
    t, r, a = (np.asarray(xi[name], np.float64) for name in ("t", "r", "a"))
    M, n = np.linalg.solve(H, B.T), np.linalg.solve(H, c)  # y*(x) = -Mx - n
    x = np.linalg.solve(a * np.eye(len(r)) + M.T @ M, a * r - M.T @ (n + t)).astype(np.float64)
    return x, -M @ x - n


# --------------------------------------------------------------------------------- building blocks


def at(schedule: Schedule, t: int) -> float:
    """Value of a hyper-parameter at iteration t."""
    return schedule(t) if callable(schedule) else schedule


def clamp(weight: float) -> float:
    """Bring a momentum weight (or an averaging step eta) to (0, 1]."""
    if weight <= 0:
        raise ValueError(f"a momentum weight must be positive, got {weight}")
    return min(1.0, weight)


def clip(x: Array, box: Box) -> Array:
    """Project on a box; for a diagonal metric this is the projection in the metric's norm too."""
    return x if box is None else np.clip(x, *box)


def ema(estimate: Array | None, new: Array, a: float) -> Array:
    """Exponential moving average; the first call (no estimate yet) returns the sample."""
    return new if estimate is None else a * new + (1 - a) * estimate


def storm(estimate: Array | None, new: Array, old: Array, a: float) -> Array:
    """Variance-reduced momentum: `new` and `old` are ONE sample at the new and the old point.

    The first call (no estimate yet) returns `new`; a = 0 is the recursion of SPIDER.
    """
    return new if estimate is None else new + (1 - a) * (estimate - old)


def clip_spectral(M: Array, bound: float) -> Array:
    """Project on the matrices of spectral norm at most `bound`."""
    U, sigma, Vt = np.linalg.svd(M, full_matrices=False)
    return (U * np.minimum(sigma, bound)) @ Vt


def clip_eigenvalues(M: Array, low: float, high: float = np.inf) -> Array:
    """Project on the symmetric matrices with eigenvalues in [low, high]."""
    eigenvalues, V = np.linalg.eigh((M + M.T) / 2)
    return (V * np.clip(eigenvalues, low, high)) @ V.T


# --------------------------------------------------------------------------------- hypergradients


def neumann_sum(
    oracle: Oracle,
    x: Array,
    y: Array,
    *,
    xi: Sample,
    zeta0: Sample,
    zetas: Sequence[Sample],
    theta: float,
) -> Array:
    """Hypergradient with a Neumann series of Q + 1 terms, zetas = [zeta^1, ..., zeta^Q].

    s = theta * sum_{q=0}^{Q} (I - theta H(zeta^{Q-q+1})) ... (I - theta H(zeta^Q)) f_y(xi): the
    sample of highest index is applied first.
    """
    r = oracle.f_y(x, y, xi)
    total = r
    for zeta in reversed(zetas):
        r = r - theta * oracle.hess(x, y, zeta) @ r
        total = total + r
    return oracle.f_x(x, y, xi) - oracle.cross(x, y, zeta0) @ (theta * total)


def neumann_random(
    oracle: Oracle,
    x: Array,
    y: Array,
    *,
    xi: Sample,
    zeta0: Sample,
    zetas: Sequence[Sample],
    k: int,
    K: int,
    theta: float,
) -> Array:
    """Hypergradient with one term of the series, of random length k in {0, ..., K-1}.

    s = K theta (I - theta H(zeta^k)) ... (I - theta H(zeta^1)) f_y(xi): zeta^1 is applied first,
    and samples beyond zeta^k are not used.
    """
    if not 0 <= k < K or k > len(zetas):
        raise ValueError(f"length {k} outside 0..{K - 1} or beyond the {len(zetas)} samples given")
    r = oracle.f_y(x, y, xi)
    for zeta in zetas[:k]:
        r = r - theta * oracle.hess(x, y, zeta) @ r
    return oracle.f_x(x, y, xi) - oracle.cross(x, y, zeta0) @ (K * theta * r)


def hypergradient(
    oracle: Oracle,
    x: Array,
    y: Array,
    sample: Entry,
    estimator: Estimator,
    theta: float,
    K: int | None,
) -> Array:
    """Evaluate the chosen Neumann estimator on the samples named in one entry.

    With k = None the random one is its mean over all lengths, which is the sum.
    """
    xi, zeta0, zetas = sample["xi"], sample["zeta0"], sample["zetas"]
    if estimator == "sum" or sample.get("k", 0) is None:
        return neumann_sum(oracle, x, y, xi=xi, zeta0=zeta0, zetas=zetas, theta=theta)
    if K is None:
        raise ValueError('estimator "random" needs K')
    return neumann_random(
        oracle, x, y, xi=xi, zeta0=zeta0, zetas=zetas, k=sample["k"], K=K, theta=theta
    )


def directions(
    oracle: Oracle, x: Array, y: Array, s: Array, xi: Sample, zeta: Sample
) -> tuple[Array, Array, Array]:
    """Directions (D_x, D_y, D_s) of the methods that track s, all at one point and sample pair."""
    return (
        oracle.f_x(x, y, xi) - oracle.cross(x, y, zeta) @ s,
        oracle.g_y(x, y, zeta),
        oracle.hess(x, y, zeta) @ s - oracle.f_y(x, y, xi),
    )


# ----------------------------------------------------------------------------- BiAdam, VR-BiAdam


def _adaptive(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    variance_reduced: bool,
    gamma: float,
    lam: float,
    tau: float,
    rho: float,
    k: float,
    m: float,
    c1: float,
    c2: float,
    theta: float,
    K: int | None,
    estimator: Estimator,
    box: Box,
) -> Iterates:
    """Run Algorithm 1 (EMA) or, variance reduced, Algorithm 2 (STORM) of arXiv:2106.11396."""
    iterates = [(x, y)]
    x_old, y_old = x, y
    v: Array | None = None
    w: Array | None = None
    alpha = beta = 1.0
    a, b = np.zeros_like(x), 0.0
    for t, sample in enumerate(samples, 1):
        q = oracle.g_y(x, y, sample["zeta"])
        h = hypergradient(oracle, x, y, sample, estimator, theta, K)
        if variance_reduced:
            q_old = oracle.g_y(x_old, y_old, sample["zeta"])
            h_old = hypergradient(oracle, x_old, y_old, sample, estimator, theta, K)
            v, w = storm(v, q, q_old, alpha), storm(w, h, h_old, beta)
        else:
            v, w = ema(v, q, alpha), ema(w, h, beta)
        a = tau * a + (1 - tau) * h**2
        b = tau * b + (1 - tau) * float(np.linalg.norm(q))
        A, B = np.sqrt(a) + rho, b + rho
        eta = clamp(k / (m + t) ** (1 / 3 if variance_reduced else 1 / 2))
        x_tilde = clip(x - gamma * w / A, box)
        y_tilde = y - lam * v / B
        x_old, y_old = x, y
        x, y = x + eta * (x_tilde - x), y + eta * (y_tilde - y)
        iterates.append((x, y))
        power = 2 if variance_reduced else 1
        alpha, beta = clamp(c1 * eta**power), clamp(c2 * eta**power)  # weights of time t + 1
    return iterates


def biadam(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    gamma: float,
    lam: float,
    tau: float,
    rho: float,
    k: float,
    m: float,
    c1: float,
    c2: float,
    theta: float,
    K: int | None = None,
    estimator: Estimator = "random",
    box: Box = None,
) -> Iterates:
    """BiAdam (arXiv:2106.11396, Algorithm 1). Keys: xi, zeta, zeta0, zetas, k.

    eta_t = k/(m+t)^(1/2); v has weight alpha_{t+1} = c1 eta_t and w beta_{t+1} = c2 eta_t, from the
    clamped eta_t (so k = inf gives eta = 1, alpha = c1, beta = c2). A_t = diag(sqrt(a_t) + rho) is
    driven by the raw hypergradient of time t, B_t = (b_t + rho) I by the norm of the raw g_y, with
    a_0 = b_0 = 0 and no bias correction. x and y move at the same time.
    """
    return _adaptive(
        oracle, x, y, samples, variance_reduced=False, gamma=gamma, lam=lam, tau=tau, rho=rho,
        k=k, m=m, c1=c1, c2=c2, theta=theta, K=K, estimator=estimator, box=box,
    )  # fmt: skip


def vr_biadam(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    gamma: float,
    lam: float,
    tau: float,
    rho: float,
    k: float,
    m: float,
    c1: float,
    c2: float,
    theta: float,
    K: int | None = None,
    estimator: Estimator = "random",
    box: Box = None,
) -> Iterates:
    """VR-BiAdam (arXiv:2106.11396, Algorithm 2). Keys: xi, zeta, zeta0, zetas, k.

    As `biadam`, with STORM for v and w, eta_t = k/(m+t)^(1/3), alpha_{t+1} = c1 eta_t^2 and
    beta_{t+1} = c2 eta_t^2. The old point is evaluated with all of the new entry, k included.
    """
    return _adaptive(
        oracle, x, y, samples, variance_reduced=True, gamma=gamma, lam=lam, tau=tau, rho=rho,
        k=k, m=m, c1=c1, c2=c2, theta=theta, K=K, estimator=estimator, box=box,
    )  # fmt: skip


# ------------------------------------------------------------------ methods with a Neumann series


def authors(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    variance_reduced: bool,
    gamma: float,
    lam: float,
    momentum: float,
    theta: float,
    tau: float = 0.99,
    rho: float = 1e-6,
) -> Iterates:
    """What the authors' experiments run of BiAdam and VR-BiAdam. Keys: xi, zeta, zeta0, zetas.

    Both averages keep a share `momentum` of the past; both matrices are coordinate-wise, driven by
    the averages w and v, with rho inside the root and no bias correction; there is no eta.
    """
    iterates = [(x, y)]
    x_old, y_old = x, y
    v: Array | None = None
    w: Array | None = None
    a, b = np.zeros_like(x), np.zeros_like(y)
    for sample in samples:
        q = oracle.g_y(x, y, sample["zeta"])
        h = hypergradient(oracle, x, y, sample, "sum", theta, None)
        if variance_reduced:
            q_old = oracle.g_y(x_old, y_old, sample["zeta"])
            h_old = hypergradient(oracle, x_old, y_old, sample, "sum", theta, None)
            v, w = storm(v, q, q_old, 1 - momentum), storm(w, h, h_old, 1 - momentum)
        else:
            v, w = ema(v, q, 1 - momentum), ema(w, h, 1 - momentum)
        a = tau * a + (1 - tau) * w**2
        b = tau * b + (1 - tau) * v**2
        x_old, y_old = x, y
        x, y = x - gamma * w / np.sqrt(a + rho), y - lam * v / np.sqrt(b + rho)
        iterates.append((x, y))
    return iterates


def sustain(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: Schedule,
    beta: Schedule,
    a_f: Schedule,
    a_g: Schedule,
    theta: float,
    K: int | None = None,
    estimator: Estimator = "random",
) -> Iterates:
    """SUSTAIN (arXiv:2102.07367, v2). Keys: xi, zeta, zeta0, zetas, k.

    STORM on v (weight a_g) and w (weight a_f), then steps beta on y and alpha on x, at the same
    time; all four schedules are read at the iteration t that uses them.
    """
    iterates = [(x, y)]
    x_old, y_old = x, y
    v: Array | None = None
    w: Array | None = None
    for t, sample in enumerate(samples, 1):
        q = oracle.g_y(x, y, sample["zeta"])
        q_old = oracle.g_y(x_old, y_old, sample["zeta"])
        h = hypergradient(oracle, x, y, sample, estimator, theta, K)
        h_old = hypergradient(oracle, x_old, y_old, sample, estimator, theta, K)
        v = storm(v, q, q_old, clamp(at(a_g, t)))
        w = storm(w, h, h_old, clamp(at(a_f, t)))
        x_old, y_old = x, y
        x, y = x - at(alpha, t) * w, y - at(beta, t) * v
        iterates.append((x, y))
    return iterates


def mstsa(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: Schedule,
    beta: Schedule,
    c: Schedule,
    theta: float,
    K: int | None = None,
    estimator: Estimator = "random",
) -> Iterates:
    """MSTSA (arXiv:2102.07367, v1). Keys: xi, zeta, zeta0, zetas, k.

    A plain step on y comes first; STORM for w compares (x_t, y_{t+1}) with (x_{t-1}, y_t).
    """
    iterates = [(x, y)]
    x_old = x
    w: Array | None = None
    for t, sample in enumerate(samples, 1):
        y_old = y
        y = y - at(beta, t) * oracle.g_y(x, y, sample["zeta"])
        h = hypergradient(oracle, x, y, sample, estimator, theta, K)
        h_old = hypergradient(oracle, x_old, y_old, sample, estimator, theta, K)
        w = storm(w, h, h_old, clamp(at(c, t)))
        x_old = x
        x = x - at(alpha, t) * w
        iterates.append((x, y))
    return iterates


def mrbo(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    gamma: float,
    lam: float,
    d: float,
    m: float,
    c1: float,
    c2: float,
    theta: float,
    K: int | None = None,
    estimator: Estimator = "sum",
) -> Iterates:
    """MRBO (arXiv:2106.04692). Keys: xi, zeta, zeta0, zetas (and k).

    eta_t = d/(m+t)^(1/3), not clamped; w has weight alpha_{t+1} = c1 eta_t^2 and v beta_{t+1} =
    c2 eta_t^2, clamped (c1 belongs to w and c2 to v, the other way round than in `vr_biadam`).
    """
    iterates = [(x, y)]
    x_old, y_old = x, y
    v: Array | None = None
    w: Array | None = None
    alpha = beta = 1.0
    for t, sample in enumerate(samples, 1):
        q = oracle.g_y(x, y, sample["zeta"])
        q_old = oracle.g_y(x_old, y_old, sample["zeta"])
        h = hypergradient(oracle, x, y, sample, estimator, theta, K)
        h_old = hypergradient(oracle, x_old, y_old, sample, estimator, theta, K)
        v, w = storm(v, q, q_old, beta), storm(w, h, h_old, alpha)
        eta = d / (m + t) ** (1 / 3)
        x_old, y_old = x, y
        x, y = x - gamma * eta * w, y - lam * eta * v
        iterates.append((x, y))
        alpha, beta = clamp(c1 * eta**2), clamp(c2 * eta**2)  # weights of time t + 1
    return iterates


def vrbo(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: Schedule,
    beta: Schedule,
    q: int,
    theta: float,
    K: int | None = None,
    estimator: Estimator = "sum",
) -> Iterates:
    """VRBO (arXiv:2106.04692). Keys: inner, and big at t = 1, q + 1, 2q + 1, ...

    `big` and each of the m + 1 entries of `inner` are themselves entries with keys xi, zeta, zeta0,
    zetas (and k). The last inner entry updates v and w without moving y, so that the estimates
    carried over belong to the returned (x, y).
    """
    iterates = [(x, y)]
    v: Array | None = None
    w: Array | None = None
    for t, sample in enumerate(samples, 1):
        if (t - 1) % q == 0:
            v = oracle.g_y(x, y, sample["big"]["zeta"])
            w = hypergradient(oracle, x, y, sample["big"], estimator, theta, K)
        assert v is not None and w is not None
        x_old, y_old = x, y
        x = x - at(alpha, t) * w
        for i, small in enumerate(sample["inner"], 1):
            q_new = oracle.g_y(x, y, small["zeta"])
            q_old = oracle.g_y(x_old, y_old, small["zeta"])
            h_new = hypergradient(oracle, x, y, small, estimator, theta, K)
            h_old = hypergradient(oracle, x_old, y_old, small, estimator, theta, K)
            v, w = storm(v, q_new, q_old, 0.0), storm(w, h_new, h_old, 0.0)
            x_old, y_old = x, y
            if i < len(sample["inner"]):
                y = y - at(beta, t) * v
        iterates.append((x, y))
    return iterates


def stocbio(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: Schedule,
    beta: Schedule,
    theta: float,
    K: int | None = None,
    estimator: Estimator = "sum",
) -> Iterates:
    """StocBiO (arXiv:2010.07962). Keys: inner (one zeta a step), xi, zeta0, zetas (and k).

    alpha is the step on y, beta the step on x; the inner loop starts from the last y.
    """
    iterates = [(x, y)]
    for t, sample in enumerate(samples, 1):
        for zeta in sample["inner"]:
            y = y - at(alpha, t) * oracle.g_y(x, y, zeta)
        x = x - at(beta, t) * hypergradient(oracle, x, y, sample, estimator, theta, K)
        iterates.append((x, y))
    return iterates


Solution = Callable[[Oracle, Array, Array, Array, Entry], Array]


def series(theta: float) -> Solution:
    """The Neumann series of step theta for s. Keys: xi, zetas."""

    def solve(oracle: Oracle, x: Array, y: Array, s: Array, sample: Entry) -> Array:
        r = oracle.f_y(x, y, sample["xi"])
        total = r
        for zeta in reversed(sample["zetas"]):
            r = r - theta * oracle.hess(x, y, zeta) @ r
            total = total + r
        return theta * total

    return solve


def amortized(rho: float) -> Solution:
    """Steps rho on the linear system from the last s. Keys: xi, zetas."""

    def solve(oracle: Oracle, x: Array, y: Array, s: Array, sample: Entry) -> Array:
        for zeta in sample["zetas"]:
            s = s - rho * (oracle.hess(x, y, zeta) @ s - oracle.f_y(x, y, sample["xi"]))
        return s

    return solve


def exact(oracle: Oracle, x: Array, y: Array, s: Array, sample: Entry) -> Array:
    """The solution of the linear system on zeta0. Keys: xi, zeta0."""
    return np.linalg.solve(oracle.hess(x, y, sample["zeta0"]), oracle.f_y(x, y, sample["xi"]))


def double_loop(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: float,
    beta: float,
    solve: Solution,
    weight: float = 1.0,
) -> Iterates:
    """AID, AmIGO, AdamBO and BO-REP without their matrices. Keys: inner, xi, zeta0, zetas.

    Steps beta on y from the last one, s by `solve` (from 0 at the start), then a step alpha on x
    along the average of the hypergradients in which the newest has `weight`.
    """
    iterates = [(x, y)]
    s, w = np.zeros_like(y), None
    for sample in samples:
        for zeta in sample["inner"]:
            y = y - beta * oracle.g_y(x, y, zeta)
        s = solve(oracle, x, y, s, sample)
        w = ema(w, oracle.f_x(x, y, sample["xi"]) - oracle.cross(x, y, sample["zeta0"]) @ s, weight)
        x = x - alpha * w
        iterates.append((x, y))
    return iterates


def reverse(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: float,
    beta: float,
) -> Iterates:
    """Reverse-mode differentiation through the steps beta on y from the last one. Keys: inner, xi.

    Every step's second derivatives are those of its own sample and y.
    """
    iterates = [(x, y)]
    for sample in samples:
        path = [y]
        for zeta in sample["inner"]:
            path.append(path[-1] - beta * oracle.g_y(x, path[-1], zeta))
        y = path.pop()
        w, a = oracle.f_x(x, y, sample["xi"]), oracle.f_y(x, y, sample["xi"])
        for zeta, at_y in zip(reversed(sample["inner"]), reversed(path), strict=True):
            w = w - beta * oracle.cross(x, at_y, zeta) @ a
            a = a - beta * oracle.hess(x, at_y, zeta) @ a
        x = x - alpha * w
        iterates.append((x, y))
    return iterates


def smb(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    eta: Schedule,
    lam: Schedule,
    beta: Schedule,
    alpha: Schedule,
    inner: Literal["sgd", "ema"],
    theta: float,
    K: int | None = None,
    estimator: Estimator = "random",
) -> Iterates:
    """SMB (arXiv:2104.14840). Keys: xi, zeta, zeta0, zetas, k.

    beta is the weight of the new hypergradient, alpha (inner="ema" only) that of the new g_y; the
    step of iteration t uses the averages that include the sample at (x_t, y_t), on x and y at the
    same time.
    """
    iterates = [(x, y)]
    v: Array | None = None
    w: Array | None = None
    for t, sample in enumerate(samples, 1):
        h = hypergradient(oracle, x, y, sample, estimator, theta, K)
        q = oracle.g_y(x, y, sample["zeta"])
        w = ema(w, h, clamp(at(beta, t)))
        v = q if inner == "sgd" else ema(v, q, clamp(at(alpha, t)))
        x, y = x - at(eta, t) * w, y - at(lam, t) * v
        iterates.append((x, y))
    return iterates


def ttsa(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: Schedule,
    beta: Schedule,
    theta: float,
    K: int | None = None,
    estimator: Estimator = "random",
    box: Box = None,
) -> Iterates:
    """TTSA (arXiv:2007.05170). Keys: xi, zeta, zeta0, zetas, k.

    y moves first (step beta); x moves (step alpha) along the hypergradient at (x_t, y_{t+1}).
    """
    iterates = [(x, y)]
    for t, sample in enumerate(samples, 1):
        y = y - at(beta, t) * oracle.g_y(x, y, sample["zeta"])
        w = hypergradient(oracle, x, y, sample, estimator, theta, K)
        x = clip(x - at(alpha, t) * w, box)
        iterates.append((x, y))
    return iterates


# ---------------------------------------------------------------------- methods that track matrices


def stable(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: Schedule,
    beta: Schedule,
    tau: Schedule,
    C_gxy: float,
    mu: float,
    box: Box = None,
) -> Iterates:
    """STABLE (arXiv:2102.04671). Keys: phi (an inner sample, for H and J), xi, zeta.

    The projected estimates are what the recursion carries on; the first ones are the raw sample
    matrices of time 1, not projected.
    """
    iterates = [(x, y)]
    x_old, y_old = x, y
    J: Array | None = None
    H: Array | None = None
    for t, sample in enumerate(samples, 1):
        phi, xi = sample["phi"], sample["xi"]
        J_new, H_new = oracle.cross(x, y, phi), oracle.hess(x, y, phi)
        if J is None or H is None:
            J, H = J_new, H_new
        else:
            a = clamp(at(tau, t))
            J = clip_spectral(storm(J, J_new, oracle.cross(x_old, y_old, phi), a), C_gxy)
            H = clip_eigenvalues(storm(H, H_new, oracle.hess(x_old, y_old, phi), a), mu)
        w = oracle.f_x(x, y, xi) - J @ np.linalg.solve(H, oracle.f_y(x, y, xi))
        x_old, y_old = x, y
        x = clip(x - at(alpha, t) * w, box)
        drift = np.linalg.solve(H, J.T @ (x - x_old))
        y = y - at(beta, t) * oracle.g_y(x_old, y, sample["zeta"]) - drift
        iterates.append((x, y))
    return iterates


def svrb(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    gamma: Schedule,
    lam: Schedule,
    a: Schedule,
    mu: float,
    L_g: float,
) -> Iterates:
    """SVRB (arXiv:2105.02266), one task. Keys: xi, zeta.

    Five STORM estimates (of g_y, f_x, f_y, J, H) share the samples and one weight a; the matrix H
    is projected where it is solved with, not in its recursion. x and y move at the same time.
    """
    iterates = [(x, y)]
    x_old, y_old = x, y
    estimates: list[Array | None] = [None] * 5
    for t, sample in enumerate(samples, 1):
        xi, zeta = sample["xi"], sample["zeta"]
        new, old = (
            (
                oracle.g_y(*point, zeta),
                oracle.f_x(*point, xi),
                oracle.f_y(*point, xi),
                oracle.cross(*point, zeta),
                oracle.hess(*point, zeta),
            )
            for point in ((x, y), (x_old, y_old))
        )
        weight = clamp(at(a, t))
        v, u_x, u_y, J, H = (
            storm(e, n, o, weight) for e, n, o in zip(estimates, new, old, strict=True)
        )
        estimates = [v, u_x, u_y, J, H]
        w = u_x - J @ np.linalg.solve(clip_eigenvalues(H, mu, L_g), u_y)
        x_old, y_old = x, y
        x, y = x - at(gamma, t) * w, y - at(lam, t) * v
        iterates.append((x, y))
    return iterates


# ---------------------------------------------------------- methods that track the linear system


def fsla(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: Schedule,
    beta: Schedule,
    rho: Schedule,
    eta: Schedule,
    momentum: Literal["storm", "none"],
) -> Iterates:
    """FSLA (arXiv:2112.04660). Keys: zeta1 (y), xi1, zeta2 (s), xi2, zeta3 (hypergradient).

    y, then s (from 0), then x move, each from the newest values; the STORM difference (weight eta)
    compares (x_t, y_{t+1}, s_{t+1}) with (x_{t-1}, y_t, s_t).
    """
    iterates = [(x, y)]
    x_old, s = x, np.zeros_like(y)
    w: Array | None = None
    for t, sample in enumerate(samples, 1):
        xi1, xi2, zeta3 = sample["xi1"], sample["xi2"], sample["zeta3"]
        h_old = oracle.f_x(x_old, y, xi2) - oracle.cross(x_old, y, zeta3) @ s
        y = y - at(beta, t) * oracle.g_y(x, y, sample["zeta1"])
        residual = oracle.hess(x, y, sample["zeta2"]) @ s - oracle.f_y(x, y, xi1)
        s = s - at(rho, t) * residual
        h = oracle.f_x(x, y, xi2) - oracle.cross(x, y, zeta3) @ s
        w = h if momentum == "none" else storm(w, h, h_old, clamp(at(eta, t)))
        x_old = x
        x = x - at(alpha, t) * w
        iterates.append((x, y))
    return iterates


def soba(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    gamma: Schedule,
    rho: Schedule,
) -> Iterates:
    """SOBA (arXiv:2201.13409). Keys: xi, zeta.

    y, s (step rho, s from 0) and x (step gamma) move at the same time, on one pair of samples.
    """
    iterates = [(x, y)]
    s = np.zeros_like(y)
    for t, sample in enumerate(samples, 1):
        D_x, D_y, D_s = directions(oracle, x, y, s, sample["xi"], sample["zeta"])
        x, y, s = x - at(gamma, t) * D_x, y - at(rho, t) * D_y, s - at(rho, t) * D_s
        iterates.append((x, y))
    return iterates


def tracked(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: float,
    beta: float,
    rho: float,
    weight: float,
    variance_reduced: bool,
    eta: Schedule = 1.0,
    tau: float | None = None,
    floor: float = 0.0,
) -> Iterates:
    """SOBA with momentum on x and y: the tracked BiAdam. Keys: xi, zeta.

    With tau the steps of x are divided by sqrt(a / (1 - tau^t)) + floor and those of y by
    b / (1 - tau^t) + floor, of the means a of the squared hypergradient and b of the norm of g_y,
    both from 0. Eta multiplies all steps, that of s too, and is clamped.
    """
    iterates = [(x, y)]
    s = np.zeros_like(y)
    a, b = np.zeros_like(x), 0.0
    A: Array | float = 1.0
    B = 1.0
    last = x, y, s
    w: Array | None = None
    v: Array | None = None
    for t, sample in enumerate(samples, 1):
        D_x, D_y, D_s = directions(oracle, x, y, s, sample["xi"], sample["zeta"])
        if variance_reduced:
            o_x, o_y, _ = directions(oracle, *last, sample["xi"], sample["zeta"])
            w, v = storm(w, D_x, o_x, weight), storm(v, D_y, o_y, weight)
        else:
            w, v = ema(w, D_x, weight), ema(v, D_y, weight)
        last = x, y, s
        if tau is not None:
            a = tau * a + (1 - tau) * D_x**2
            b = tau * b + (1 - tau) * float(np.linalg.norm(D_y))
            A, B = np.sqrt(a / (1 - tau**t)) + floor, b / (1 - tau**t) + floor
        e = clamp(at(eta, t))
        x, y, s = x - e * alpha * w / A, y - e * beta * v / B, s - e * rho * D_s
        iterates.append((x, y))
    return iterates


class _Saga:
    """A table of the last value a block and its mean."""

    def __init__(self, blocks: int, initial: Callable[[int], Array]):
        self.table = np.stack([initial(i) for i in range(blocks)])
        self.mean = self.table.mean(axis=0)

    def update(self, i: int, new: Array) -> Array:
        """Store the new value of block i; return the corrected direction new - old + mean."""
        change = new - self.table[i]
        direction = change + self.mean
        self.table[i] = new
        self.mean = self.mean + change / len(self.table)
        return direction


def saba(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    zetas: Sequence[Sample],
    xis: Sequence[Sample],
    gamma: Schedule,
    rho: Schedule,
    memory: Literal["full", "zero"] = "full",
) -> Iterates:
    """SABA (arXiv:2201.13409) on the blocks `zetas` and `xis` of equal size. Keys: i, j (integers).

    One stored value a block for each of g_y, Hs, Js (block i of `zetas`) and f_y, f_x (block j of
    `xis`). The tables start with all blocks at the start (memory="full") or with zeros; y, s (step
    rho, s from 0) and x (step gamma) move at the same time.
    """
    iterates = [(x, y)]
    s, scale = np.zeros_like(y), {"full": 1.0, "zero": 0.0}[memory]
    start = x, y
    g_y = _Saga(len(zetas), lambda i: scale * oracle.g_y(*start, zetas[i]))
    Hs = _Saga(len(zetas), lambda i: np.zeros_like(start[1]))  # s = 0 at the start
    Js = _Saga(len(zetas), lambda i: np.zeros_like(start[0]))
    f_y = _Saga(len(xis), lambda j: scale * oracle.f_y(*start, xis[j]))
    f_x = _Saga(len(xis), lambda j: scale * oracle.f_x(*start, xis[j]))
    for t, sample in enumerate(samples, 1):
        i, j = sample["i"], sample["j"]
        zeta, xi = zetas[i], xis[j]
        D_y = g_y.update(i, oracle.g_y(x, y, zeta))
        D_s = Hs.update(i, oracle.hess(x, y, zeta) @ s) - f_y.update(j, oracle.f_y(x, y, xi))
        D_x = f_x.update(j, oracle.f_x(x, y, xi)) - Js.update(i, oracle.cross(x, y, zeta) @ s)
        x, y, s = x - at(gamma, t) * D_x, y - at(rho, t) * D_y, s - at(rho, t) * D_s
        iterates.append((x, y))
    return iterates


def srba(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    gamma: Schedule,
    rho: Schedule,
    q: int,
) -> Iterates:
    """SRBA (arXiv:2302.08766). Keys: xi, zeta, and big = {xi, zeta} at t = 1, q + 1, 2q + 1, ...

    The three SOBA directions are taken whole from `big` where it is due and otherwise corrected by
    the difference of one pair of samples between this point and the last; no projection of s.
    """
    iterates = [(x, y)]
    s = np.zeros_like(y)
    last = x, y, s
    D: tuple[Array, ...] = ()
    for t, sample in enumerate(samples, 1):
        if (t - 1) % q == 0:
            D = directions(oracle, x, y, s, sample["big"]["xi"], sample["big"]["zeta"])
        else:
            new = directions(oracle, x, y, s, sample["xi"], sample["zeta"])
            old = directions(oracle, *last, sample["xi"], sample["zeta"])
            D = tuple(storm(e, n, o, 0.0) for e, n, o in zip(D, new, old, strict=True))
        D_x, D_y, D_s = D
        last = x, y, s
        x, y, s = x - at(gamma, t) * D_x, y - at(rho, t) * D_y, s - at(rho, t) * D_s
        iterates.append((x, y))
    return iterates


def ma_soba(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: Schedule,
    beta: Schedule,
    gamma: Schedule,
    theta: Schedule,
    simultaneous: bool = False,
) -> Iterates:
    """MA-SOBA (arXiv:2306.12067), unconstrained. Keys: xi, zeta.

    Steps beta on y, gamma on s (from 0), weight theta for the average h, step alpha on x. In turn,
    each from the newest values, x moving along the updated h; or, simultaneous, with all
    derivatives at the old (x, y, s).
    """
    iterates = [(x, y)]
    s = np.zeros_like(y)
    h: Array | None = None
    for t, sample in enumerate(samples, 1):
        xi, zeta = sample["xi"], sample["zeta"]
        y_new = y - at(beta, t) * oracle.g_y(x, y, zeta)
        y_at = y if simultaneous else y_new
        s_new = s - at(gamma, t) * (oracle.hess(x, y_at, zeta) @ s - oracle.f_y(x, y_at, xi))
        s_at = s if simultaneous else s_new
        D_x = oracle.f_x(x, y_at, xi) - oracle.cross(x, y_at, zeta) @ s_at
        h = ema(h, D_x, clamp(at(theta, t)))
        x, y, s = x - at(alpha, t) * h, y_new, s_new
        iterates.append((x, y))
    return iterates


def s_tfbo(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    a: float,
    b: float,
    c: float,
) -> Iterates:
    """S-TFBO (arXiv:2410.05140). Keys: xi, zeta.

    a, b, c > 0 are the initial accumulators (their squares are what the sums start from) of x, y
    and s; s starts at 0, and all three move at the same time.
    """
    iterates = [(x, y)]
    s = np.zeros_like(y)
    for sample in samples:
        D_x, D_y, D_s = directions(oracle, x, y, s, sample["xi"], sample["zeta"])
        b = float(np.hypot(b, np.linalg.norm(D_y)))
        c = float(np.hypot(c, np.linalg.norm(D_s)))
        a = float(np.hypot(a, np.linalg.norm(D_x)))
        phi = max(b, c)
        x, y, s = x - D_x / (a * phi), y - D_y / b, s - D_s / phi
        iterates.append((x, y))
    return iterates


# -------------------------------------------------------------------------- first-order methods


def f2sa(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: Schedule,
    gamma: Schedule,
    ratio: Schedule,
    lam: float,
    delta: Schedule,
    z: Array | None = None,
) -> Iterates:
    """F2SA (arXiv:2301.10945). Keys: inner, xi, zeta_y, zeta_z.

    Each entry of `inner` has keys zeta_z (step gamma on z), xi and zeta_y (step alpha on y, not
    divided by the multiplier); the outer xi, zeta_y, zeta_z serve f_x, g_x at y and g_x at z in the
    x step ratio * alpha. The multiplier is lam at t = 1 and grows by delta(t) after iteration t; z
    starts at y unless given.
    """
    iterates = [(x, y)]
    z = y if z is None else z
    for t, sample in enumerate(samples, 1):
        for inner in sample["inner"]:
            z = z - at(gamma, t) * oracle.g_y(x, z, inner["zeta_z"])
            D_y = oracle.f_y(x, y, inner["xi"]) + lam * oracle.g_y(x, y, inner["zeta_y"])
            y = y - at(alpha, t) * D_y
        penalty = oracle.g_x(x, y, sample["zeta_y"]) - oracle.g_x(x, z, sample["zeta_z"])
        D_x = oracle.f_x(x, y, sample["xi"]) + lam * penalty
        x = x - at(ratio, t) * at(alpha, t) * D_x
        lam = lam + at(delta, t)
        iterates.append((x, y))
    return iterates


def bome(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    a_x: Schedule,
    a_y: Schedule,
    a_inner: Schedule,
    eta: float = 0.5,
    eps: float = 1e-8,
) -> Iterates:
    """BOME (arXiv:2209.08709). Keys: inner (one zeta a step), zeta, xi.

    The inner steps a_inner start from y and give the constant point at which g_x is subtracted;
    phi is eta times the squared norm of the constraint's gradient, and eps is added to the
    denominator of the multiplier only.
    """
    iterates = [(x, y)]
    for t, sample in enumerate(samples, 1):
        xi, zeta = sample["xi"], sample["zeta"]
        y_hat = y
        for inner in sample["inner"]:
            y_hat = y_hat - at(a_inner, t) * oracle.g_y(x, y_hat, inner)
        q_x = oracle.g_x(x, y, zeta) - oracle.g_x(x, y_hat, zeta)
        q_y = oracle.g_y(x, y, zeta)
        f_x, f_y = oracle.f_x(x, y, xi), oracle.f_y(x, y, xi)
        square = q_x @ q_x + q_y @ q_y
        multiplier = max((eta * square - f_x @ q_x - f_y @ q_y) / (square + eps), 0.0)
        x = x - at(a_x, t) * (f_x + multiplier * q_x)
        y = y - at(a_y, t) * (f_y + multiplier * q_y)
        iterates.append((x, y))
    return iterates


def f2ba(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: float,
    beta: float,
    lam: float,
) -> Iterates:
    """F2BA (arXiv:2306.14853): F2SA of constants whose z begins at y. Keys: those of `f2sa`."""
    iterates = [(x, y)]
    for sample in samples:
        step = beta / lam
        x, y = f2sa(
            oracle, x, y, [sample], alpha=step, gamma=beta, ratio=alpha / step, lam=lam, delta=0.0
        )[1]
        iterates.append((x, y))
    return iterates


def pbgd_value(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: float,
    beta: float,
    lam: float,
    theta: float,
) -> Iterates:
    """V-PBGD (arXiv:2302.05185) of a constant penalty, divided by it. Keys: inner, zeta, xi.

    The steps theta on z begin at the last z, at y at the start.
    """
    iterates = [(x, y)]
    z = y
    for sample in samples:
        xi, zeta = sample["xi"], sample["zeta"]
        for inner in sample["inner"]:
            z = z - theta * oracle.g_y(x, z, inner)
        gap = oracle.g_x(x, y, zeta) - oracle.g_x(x, z, zeta)
        D_x = oracle.f_x(x, y, xi) / lam + gap
        D_y = oracle.f_y(x, y, xi) / lam + oracle.g_y(x, y, zeta)
        x, y = x - alpha * D_x, y - beta * D_y
        iterates.append((x, y))
    return iterates


def pbgd_gradient(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sequence[Entry],
    *,
    alpha: float,
    beta: float,
    lam: float,
) -> Iterates:
    """G-PBGD (arXiv:2302.05185) of a constant penalty, divided by it. Keys: zeta0, zeta, xi.

    The slope u is that of zeta0, its products with H and J are those of zeta.
    """
    iterates = [(x, y)]
    for sample in samples:
        xi, zeta = sample["xi"], sample["zeta"]
        u = oracle.g_y(x, y, sample["zeta0"])
        D_x = oracle.f_x(x, y, xi) / lam + oracle.cross(x, y, zeta) @ u
        D_y = oracle.f_y(x, y, xi) / lam + oracle.hess(x, y, zeta) @ u
        x, y = x - alpha * D_x, y - beta * D_y
        iterates.append((x, y))
    return iterates
