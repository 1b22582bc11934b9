"""The paper's Theorem 1, federated distillation of a Gaussian mixture, in closed form and by
simulation (docs/theory.md).

x = y u + sigma z in R^p with |u| = 1, y = +-1 and z standard normal. The clients estimate u by the
mean of y x. The server averages these to beta_s, of unit length and with correlation alpha with u.
It labels u_bar p unlabelled points by sign(beta_s' x) and keeps those with |beta_s' x| > Gamma.
The mean of sign(beta_s' x) x over them is beta_hat. How near u is it?
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

import numpy as np

from fedsift.seeding import rng
from fedsift.types import Array, UserError

GAMMAS, U_BARS, ALPHAS, SIGMAS = (0.0, 0.5, 1.0, 1.5), (0.5, 2.0, 8.0), (0.3, 0.7), (0.6, 1.2)
DIMENSION, TRIALS = (
    20_000,
    100,
)  # the limit's error falls with p, the interval with sqrt(p trials): docs/theory.md
CHUNK = 2**20  # numbers drawn at a time, whatever p and u_bar


# --- the theorem ---


@dataclass(frozen=True)
class Limit:
    """The limit p -> infinity: share kept, share of these mislabelled, Lambda, cot(beta_hat, u)."""

    rho: float
    nu: float
    lam: float
    cot: float


def q(t: float) -> float:
    """The tail of a standard normal, P(z > t)."""
    return 0.5 * math.erfc(t / math.sqrt(2))


def closed_form(
    gamma: float, u_bar: float, alpha: float, sigma: float, misprint: bool = False
) -> Limit:
    """Theorem 1; `misprint` uses the 1 / (2 pi) of the paper's Lambda, not 1 / sqrt(2 pi)."""
    _check(gamma, u_bar, alpha, sigma)
    plus, minus = (gamma - alpha) / sigma, (gamma + alpha) / sigma
    rho = q(plus) + q(minus)
    if not u_bar * rho > 0:
        raise UserError(f"no point passes gamma = {gamma} at sigma = {sigma}; lower gamma")
    nu = q(minus) / rho
    constant = 2 * math.pi if misprint else math.sqrt(2 * math.pi)
    lam = (math.exp(-plus * plus / 2) + math.exp(-minus * minus / 2)) / (constant * rho)
    along = 1 - 2 * nu + sigma * alpha * lam
    across = sigma * math.sqrt((1 - alpha**2) * lam**2 + 1 / (u_bar * rho))
    return Limit(rho, nu, lam, along / across)


def best_threshold(u_bar: float, alpha: float, sigma: float) -> float:
    """The Gamma where a higher threshold stops helping: the closed form's argmax, > 0, finite."""
    _check(0, u_bar, alpha, sigma)
    low, high, best = 0.0, alpha + 8 * sigma, 0.0  # 8 sigma above alpha one point in 10^15 is left
    for _ in range(6):  # look closer around the best of 41, to within 10^-7 of the first width
        gammas = np.linspace(low, high, 41).tolist()
        best = max(gammas, key=lambda gamma: closed_form(gamma, u_bar, alpha, sigma).cot)
        step = (high - low) / 40
        low, high = max(best - step, 0.0), best + step
    return best


# --- the federation ---


def draw(count: int, u: Array, sigma: float, generator: np.random.Generator) -> tuple[Array, Array]:
    """Points x [count, p] and their labels y [count], +1 or -1."""
    y = generator.choice([-1.0, 1.0], count)
    return y[:, None] * u + sigma * generator.standard_normal((count, len(u))), y


def client_estimator(x: Array, y: Array) -> Array:
    """beta_k = mean(y x) over the client's samples."""
    return y @ x / len(y)


def server_estimator(estimators: Sequence[Array], sizes: Sequence[int]) -> Array:
    """sum_k n_k / n beta_k = (1 / n) sum y_i x_i over the samples of all clients, unit length."""
    return unit(np.average(estimators, axis=0, weights=sizes))


def unit(vector: Array) -> Array:
    return vector / np.linalg.norm(vector)


def draw_correlated(u: Array, alpha: float, generator: np.random.Generator) -> Array:
    """A unit vector of correlation alpha with the unit vector u, else in a random direction."""
    other = generator.standard_normal(len(u))
    return alpha * u + math.sqrt(1 - alpha**2) * unit(other - (other @ u) * u)


def distil(
    beta_s: Array, u: Array, gamma: float, sigma: float, points: int, generator: np.random.Generator
) -> tuple[Array, int]:
    """beta_hat from fresh unlabelled points, and how many of them were kept."""
    total, kept = np.zeros(len(u)), 0
    for size in _chunks(points, max(1, CHUNK // len(u))):
        x, _ = draw(size, u, sigma, generator)
        score = x @ beta_s
        keep = np.abs(score) > gamma
        total += np.sign(score[keep]) @ x[keep]
        kept += int(keep.sum())
    return total / _some(kept, gamma), kept


def cot(beta: Array, u: Array) -> float:
    """cot of the angle of beta and the unit vector u: correlation / sqrt(1 - correlation^2)."""
    along = float(beta @ u)
    across = float(np.linalg.norm(beta - along * u))
    return along / across if across else math.copysign(math.inf, along)


# --- the simulation ---


@dataclass(frozen=True)
class Federated:
    """A federation of estimators, from the clients' samples to the distilled beta_hat."""

    clients: int
    alpha: float  # correlation of beta_s with u, as it came out
    before: float  # cot(beta_s, u)
    after: float  # cot(beta_hat, u)
    closed: float  # what the closed form says at this alpha


def federation(
    clients: int = 20,
    samples: int = 10,
    gamma: float = 0.5,
    u_bar: float = 8,
    sigma: float = 1.2,
    p: int = 2000,
    seed: int = 0,
) -> Federated:
    """The paper's setting once, in full vectors: local estimators, weighted mean, pseudo-labels."""
    generator = rng(seed, "federation", clients, samples, p)
    u = unit(generator.standard_normal(p))
    local = [client_estimator(*draw(samples, u, sigma, generator)) for _ in range(clients)]
    beta_s = server_estimator(local, [samples] * clients)
    beta_hat, _ = distil(beta_s, u, gamma, sigma, round(u_bar * p), generator)
    alpha = float(beta_s @ u)
    limit = closed_form(gamma, u_bar, alpha, sigma)
    return Federated(clients, alpha, cot(beta_s, u), cot(beta_hat, u), limit.cot)


@dataclass(frozen=True)
class Estimate:
    """The mean over many trials and its standard error."""

    mean: float
    error: float

    def half_width(self, level: float = 0.95) -> float:
        return NormalDist().inv_cdf((1 + level) / 2) * self.error

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        return self.mean - self.half_width(level), self.mean + self.half_width(level)


def monte_carlo(
    gamma: float,
    u_bar: float,
    alpha: float,
    sigma: float,
    p: int = DIMENSION,
    trials: int = TRIALS,
    seed: int = 0,
    *,
    full: bool = False,
) -> Estimate:
    """cot(beta_hat, u) by simulation; `full`: whole vectors, else the 3 directions that matter."""
    values = sample(gamma, u_bar, alpha, sigma, p, trials, seed, full=full)
    return Estimate(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(trials))


def sample(
    gamma: float,
    u_bar: float,
    alpha: float,
    sigma: float,
    p: int,
    trials: int,
    seed: int,
    *,
    full: bool = False,
) -> Array:
    """cot(beta_hat, u) of every trial, [trials]."""
    _check(gamma, u_bar, alpha, sigma)
    points = round(u_bar * p)
    if p < 3 or trials < 2 or points < 1:
        raise UserError(
            "needs p >= 3, trials >= 2 and u_bar * p >= 1, "
            f"not p = {p}, trials = {trials}, u_bar = {u_bar}"
        )
    cell = [repr(float(value)) for value in (gamma, u_bar, alpha, sigma)]
    generator = rng("theory", seed, "full" if full else "reduced", p, *cell)
    trial = _full if full else _reduce
    return np.array([trial(gamma, alpha, sigma, p, points, generator) for _ in range(trials)])


def _full(
    gamma: float, alpha: float, sigma: float, p: int, points: int, generator: np.random.Generator
) -> float:
    u = unit(generator.standard_normal(p))
    beta_hat, _ = distil(draw_correlated(u, alpha, generator), u, gamma, sigma, points, generator)
    return cot(beta_hat, u)


def _reduce(
    gamma: float, alpha: float, sigma: float, p: int, points: int, generator: np.random.Generator
) -> float:
    """The same in distribution, exactly, with one number per point.

    Counting y x for x, every y is 1. Let b = beta_s = alpha u + beta v and c = beta u - alpha v.
    What is kept, and with which sign, depends on g = b'z alone. So c'z and the p - 2 other
    coordinates of z, averaged over the kept with their signs, are normal with variance 1 / kept.
    Of the others only the squared length counts: a chi-square.
    """
    beta, right, wrong, noise = math.sqrt(1 - alpha**2), 0, 0, 0.0
    for size in _chunks(points, CHUNK):
        g = generator.standard_normal(size, dtype=np.float32)
        above, below = (
            g[g > (gamma - alpha) / sigma],
            g[g < -(gamma + alpha) / sigma],
        )  # labelled rightly, and wrongly
        right, wrong = right + above.size, wrong + below.size
        noise += float(above.sum(dtype=np.float64) - below.sum(dtype=np.float64))
    kept = _some(right + wrong, gamma)
    b, c = noise / kept, generator.standard_normal() / math.sqrt(kept)
    along_u = (right - wrong) / kept + sigma * (alpha * b + beta * c)
    along_v = sigma * (beta * b - alpha * c)
    return along_u / math.sqrt(along_v**2 + sigma**2 * generator.chisquare(p - 2) / kept)


@dataclass(frozen=True)
class Row:
    """A grid cell: cot by closed form, by the paper's misprint, by simulation (95 % interval)."""

    gamma: float
    u_bar: float
    alpha: float
    sigma: float
    closed: float
    misprinted: float
    mean: float
    half_width: float
    inside: bool  # the closed form lies in mean +- half_width


def grid(
    gammas: Sequence[float] = GAMMAS,
    u_bars: Sequence[float] = U_BARS,
    alphas: Sequence[float] = ALPHAS,
    sigmas: Sequence[float] = SIGMAS,
    p: int = DIMENSION,
    trials: int = TRIALS,
    seed: int = 0,
) -> list[Row]:
    """Closed form against simulation, gamma changing fastest; the cells draw independently."""
    rows = []
    for sigma, alpha, u_bar, gamma in product(sigmas, alphas, u_bars, gammas):
        exact, wrong = (
            closed_form(gamma, u_bar, alpha, sigma, misprint).cot for misprint in (False, True)
        )
        found = monte_carlo(gamma, u_bar, alpha, sigma, p, trials, seed)
        half = found.half_width()
        rows.append(
            Row(
                gamma,
                u_bar,
                alpha,
                sigma,
                exact,
                wrong,
                found.mean,
                half,
                abs(found.mean - exact) <= half,
            )
        )
    return rows


def _chunks(count: int, size: int) -> Iterator[int]:
    for start in range(0, count, size):
        yield min(size, count - start)


def _some(kept: int, gamma: float) -> int:
    if not kept:
        raise UserError(
            f"none of the points drawn passes gamma = {gamma}; lower gamma, or raise u_bar or p"
        )
    return kept


def _check(gamma: float, u_bar: float, alpha: float, sigma: float) -> None:
    if not 0 <= gamma < math.inf:
        raise UserError(f"gamma, the threshold, must be 0 or more, not {gamma}")
    if not 0 < u_bar < math.inf:
        raise UserError(f"u_bar, unlabelled points per dimension, must be above 0, not {u_bar}")
    if not 0 < alpha < 1:
        raise UserError(
            f"alpha, the correlation of beta_s and u, must lie between 0 and 1, not {alpha}"
        )
    if not 0 < sigma < math.inf:
        raise UserError(f"sigma, the noise, must be above 0, not {sigma}")
