import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.papers.fas_icc2022 import theory, theory_plot
from fedsift.papers.fas_icc2022.theory import best_threshold, closed_form, cot, monte_carlo
from fedsift.seeding import rng
from fedsift.types import UserError
from tests.helpers.tiers import slow_but

DOCS = Path(__file__).parents[3] / "docs" / "theory.md"

u_bars, alphas, sigmas = st.floats(0.05, 50), st.floats(0.05, 0.95), st.floats(0.3, 3)


@pytest.fixture(scope="module")
def rows() -> list[theory.Row]:
    return theory.grid()


# --- the closed form by hand ---


@pytest.mark.parametrize(
    ("t", "tail"),
    [
        (0, 0.5),
        (1, 0.158655254),
        (-1, 0.841344746),
        (1.959963985, 0.025),
        (3, 0.001349898),
        (6, 9.8658765e-10),
    ],
)
def test_the_tail_of_the_normal(t, tail):
    assert theory.q(t) == pytest.approx(tail, rel=1e-7)


def test_without_a_threshold_everything_is_kept():
    # alpha / sigma = 1: rho = Q(-1) + Q(1) = 1, nu = Q(1) = .158655, Lambda = 2 phi(1) = .483941;
    # along u 1 - .317311 + .25 * .483941 = .803675, across .5 sqrt(.75 * .234199 + 1) = .542137.
    limit = closed_form(0, 1, 0.5, 0.5)
    assert (limit.rho, limit.nu, limit.lam) == pytest.approx((1, 0.158655, 0.483941), abs=1e-6)
    assert limit.cot == pytest.approx(0.803675 / 0.542137, abs=1e-5)


def test_a_threshold_equal_to_alpha():
    # G+ = 0, G- = 2: rho = .5 + .022750 = .522750, nu = .022750 / .522750 = .043520,
    # Lambda = (phi(0) + phi(2)) / rho = (.398942 + .053991) / .522750 = .866443;
    # along u 1 - .087041 + .25 * .866443 = 1.129570, across .5 sqrt(.75 * .750723 + 1 / 1.045500) =
    # .616345.
    limit = closed_form(0.5, 2, 0.5, 0.5)
    assert (limit.rho, limit.nu, limit.lam) == pytest.approx(
        (0.522750, 0.043520, 0.866443), abs=1e-5
    )
    assert limit.cot == pytest.approx(1.129570 / 0.616345, abs=1e-5)


def test_the_misprint_changes_lambda_by_sqrt_2_pi_and_nothing_before_it():
    right, wrong = closed_form(0.5, 2, 0.5, 0.5), closed_form(0.5, 2, 0.5, 0.5, misprint=True)
    assert (wrong.rho, wrong.nu) == (right.rho, right.nu)
    assert wrong.lam == pytest.approx(right.lam / math.sqrt(2 * math.pi))
    # .866443 / 2.506628 = .345661: (.912959 + .086415) / (.5 sqrt(.75 * .119481 + .956480)) =
    # .999374 / .511393.
    assert wrong.cot == pytest.approx(0.999374 / 0.511393, abs=1e-5)


def test_lambda_is_the_mean_noise_of_the_kept_points():
    """Of z with z > G+ or z < -G-: the mean of z sign, by summing over a fine grid instead of the
    formula.
    """
    z = np.linspace(-12, 12, 2_400_001)
    density = np.exp(-(z**2) / 2)
    above, below = z > (0.8 - 0.3) / 0.6, z < -(0.8 + 0.3) / 0.6
    mean = (density * z * (above * 1.0 - below)).sum() / density[above | below].sum()
    assert closed_form(0.8, 1, 0.3, 0.6).lam == pytest.approx(mean, rel=1e-4)


def test_the_cotangent_is_that_of_the_angle():
    assert cot(np.array([3.0, 4.0]), np.array([1.0, 0.0])) == pytest.approx(3 / 4)
    assert cot(np.array([-5.0, 0.0, 5.0]), np.array([1.0, 0.0, 0.0])) == pytest.approx(-1)
    assert cot(np.array([2.0, 0.0]), np.array([1.0, 0.0])) == math.inf


# --- the federation ---


def test_two_clients_by_hand():
    # mean(y x): (1, 1), then ((1, 0) - (0, 2)) / 2 = (.5, -1). Weighted 1 to 2: (2 / 3, -1 / 3), at
    # unit length (2, -1).
    one = theory.client_estimator(np.array([[-1.0, -1.0]]), np.array([-1.0]))
    two = theory.client_estimator(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([1.0, -1.0]))
    assert one.tolist() == [1, 1]
    assert two.tolist() == [0.5, -1]
    assert theory.server_estimator([one, two], [1, 2]) == pytest.approx(
        np.array([2, -1]) / math.sqrt(5)
    )


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 2**32))
def test_the_server_has_the_estimator_of_the_pooled_samples_and_its_logits(sizes, seed):
    generator = rng(seed)
    u = theory.unit(generator.standard_normal(7))
    data = [theory.draw(size, u, 0.8, generator) for size in sizes]
    clients = [theory.client_estimator(x, y) for x, y in data]
    pooled = theory.client_estimator(
        np.concatenate([x for x, _ in data]), np.concatenate([y for _, y in data])
    )
    beta_s = theory.server_estimator(clients, sizes)
    assert beta_s == pytest.approx(theory.unit(pooled))
    unlabelled, _ = theory.draw(5, u, 0.8, generator)
    logits = np.average([unlabelled @ beta for beta in clients], axis=0, weights=sizes)
    assert logits == pytest.approx(unlabelled @ beta_s * np.linalg.norm(pooled))


@given(st.integers(3, 200), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_a_correlated_vector_has_unit_length_and_the_correlation_asked_for(p, alpha, seed):
    generator = rng(seed)
    u = theory.unit(generator.standard_normal(p))
    beta_s = theory.draw_correlated(u, alpha, generator)
    assert np.linalg.norm(beta_s) == pytest.approx(1)
    assert beta_s @ u == pytest.approx(alpha)


def test_distillation_keeps_confident_points_and_averages_them_with_their_signs():
    u, beta_s = np.array([1.0, 0.0]), np.array([0.6, 0.8])
    beta_hat, kept = theory.distil(beta_s, u, 0.5, 1.0, 1000, rng(0))
    x, _ = theory.draw(1000, u, 1.0, rng(0))
    confident = [row if row @ beta_s > 0 else -row for row in x if abs(row @ beta_s) > 0.5]
    assert kept == len(confident)
    assert beta_hat == pytest.approx(np.mean(confident, axis=0))


def test_from_the_clients_to_the_distilled_estimator():
    """The whole pipeline in whole vectors, against the closed form at the correlation the clients
    happened to reach.
    """
    p, sigma, u_bar, gamma, sizes, generator = 2000, 0.6, 8, 0.5, [10, 20, 50], rng("pipeline")
    u = theory.unit(generator.standard_normal(p))
    clients = [theory.client_estimator(*theory.draw(size, u, sigma, generator)) for size in sizes]
    beta_s = theory.server_estimator(clients, sizes)
    alpha = float(beta_s @ u)
    assert alpha == pytest.approx(
        1 / math.sqrt(1 + sigma**2 * p / sum(sizes)), rel=0.2
    )  # n / (n + sigma^2 p), rooted
    beta_hat, kept = theory.distil(beta_s, u, gamma, sigma, u_bar * p, generator)
    limit = closed_form(gamma, u_bar, alpha, sigma)
    assert kept / (u_bar * p) == pytest.approx(limit.rho, abs=0.02)
    assert cot(beta_hat, u) == pytest.approx(
        limit.cot, rel=0.08
    )  # four deviations of a single trial
    assert closed_form(gamma, u_bar, alpha, sigma, misprint=True).cot > 1.3 * cot(beta_hat, u)
    assert cot(beta_hat, u) > 2 * cot(beta_s, u)


# --- the simulation ---


@pytest.mark.parametrize(("gamma", "p"), [(0.0, 3), (0.6, 30), (1.0, 60)])
def test_three_directions_are_whole_vectors_in_distribution(gamma, p):
    trials = 2000
    whole = theory.sample(gamma, 6, 0.5, 0.8, p, trials, 0, full=True)
    three = theory.sample(gamma, 6, 0.5, 0.8, p, trials, 0)
    both = np.sort(np.concatenate([whole, three]))
    gap = np.abs(
        np.searchsorted(np.sort(whole), both, "right")
        - np.searchsorted(np.sort(three), both, "right")
    )
    assert gap.max() / trials < 1.95 * math.sqrt(2 / trials)  # Kolmogorov-Smirnov, 99.9 %
    if p > 3:  # at p = 3 a trial can be arbitrarily lucky: cot has no variance worth comparing
        error = math.hypot(whole.std(), three.std()) / math.sqrt(trials)
        assert abs(whole.mean() - three.mean()) < 3.3 * error
        assert whole.std() == pytest.approx(three.std(), rel=0.1)


def test_the_closed_form_is_inside_the_intervals_as_often_as_it_should_be(rows):
    assert len(rows) == 4 * 3 * 2 * 2
    for row in rows:
        assert abs(row.mean - row.closed) < 3.29 / 1.96 * row.half_width, row  # 99.9 % each
        assert row.half_width < 0.01 * row.closed
        assert row.inside == (abs(row.mean - row.closed) <= row.half_width)
    assert sum(not row.inside for row in rows) <= 7  # 2.4 misses expected; 8 or more: 0.3 %


def test_the_misprinted_constant_is_outside_every_interval_of_the_grid(rows):
    assert all(abs(row.mean - row.misprinted) > 8 * row.half_width for row in rows)


@pytest.mark.parametrize("clients", slow_but([5, 20, 80], 5))
def test_a_federation_of_estimators_distils_to_what_the_closed_form_says(clients):
    one = theory.federation(clients)
    assert one.alpha == pytest.approx(1 / math.sqrt(1 + 1.2**2 * 2000 / (10 * clients)), rel=0.25)
    assert one.after == pytest.approx(one.closed, rel=0.1)
    assert one.after > one.before


@pytest.mark.slow
def test_more_clients_make_a_better_estimator_before_and_after():
    few, some, many = (theory.federation(clients) for clients in (5, 20, 80))
    assert few.before < some.before < many.before and few.after < some.after < many.after


def test_the_misprinted_constant_is_outside(rows):
    apart = [row for row in rows if abs(row.misprinted / row.closed - 1) > 0.01]
    assert len(apart) > 40  # here and there the two curves cross
    for row in apart:
        assert abs(row.mean - row.misprinted) > 2 * 3.29 / 1.96 * row.half_width, row
    assert max(abs(row.misprinted / row.mean - 1) for row in rows) > 0.5


@pytest.mark.slow
def test_whole_vectors_agree_with_the_closed_form():
    estimate = monte_carlo(0.5, 8, 0.3, 0.6, p=400, trials=60, full=True)
    low, high = estimate.interval(0.999)
    assert (
        low
        < closed_form(0.5, 8, 0.3, 0.6).cot
        < high
        < closed_form(0.5, 8, 0.3, 0.6, misprint=True).cot
    )


def test_an_interval_is_the_mean_and_1_96_errors_either_side():
    values = theory.sample(0.5, 2, 0.5, 1, 100, 40, 3)
    estimate = monte_carlo(0.5, 2, 0.5, 1, p=100, trials=40, seed=3)
    error = math.sqrt(((values - values.mean()) ** 2).sum() / 39 / 40)
    assert (estimate.mean, estimate.error) == pytest.approx((values.mean(), error))
    assert estimate.interval() == pytest.approx(
        (values.mean() - 1.959964 * error, values.mean() + 1.959964 * error)
    )


@pytest.mark.parametrize("full", [False, True])
def test_the_seed_decides(full):
    one, again = (monte_carlo(0.5, 2, 0.5, 1, p=50, trials=5, seed=1, full=full) for _ in range(2))
    assert one == again
    assert monte_carlo(0.5, 2, 0.5, 1, p=50, trials=5, seed=2, full=full) != one
    np.random.default_rng(0).standard_normal(3)
    assert (
        monte_carlo(0.5, 2.0, 0.5, 1.0, p=50, trials=5, seed=1, full=full) == one
    )  # 2 and 2.0 are one cell


def test_a_cell_does_not_depend_on_the_grid_around_it():
    big = theory.grid((0, 0.5), (1, 2), (0.4,), (0.8,), p=100, trials=3)
    assert theory.grid((0.5,), (2,), (0.4,), (0.8,), p=100, trials=3) == [big[3]]
    assert [(row.u_bar, row.gamma) for row in big] == [(1, 0), (1, 0.5), (2, 0), (2, 0.5)]


def test_memory_is_bounded_by_the_chunk(monkeypatch):
    whole = theory.sample(0.5, 2, 0.5, 1, 100, 3, 0)
    sizes, plain = [], theory.draw

    def watched(count, u, sigma, generator):
        sizes.append(count)
        return plain(count, u, sigma, generator)

    monkeypatch.setattr(theory, "CHUNK", 730)
    monkeypatch.setattr(theory, "draw", watched)
    theory.distil(np.eye(100)[0], np.eye(100)[0], 0.5, 1.0, 30, rng(0))
    assert sizes == [7, 7, 7, 7, 2]
    monkeypatch.setattr(theory, "CHUNK", 64)
    assert theory.sample(0.5, 2, 0.5, 1, 100, 3, 0) == pytest.approx(whole, rel=1e-9)


# --- the conclusions ---


@given(st.floats(0, 3), u_bars, alphas, sigmas)
def test_more_unlabelled_points_always_help(gamma, u_bar, alpha, sigma):
    assert (
        closed_form(gamma, 1.1 * u_bar, alpha, sigma).cot
        > closed_form(gamma, u_bar, alpha, sigma).cot
    )


def test_more_unlabelled_points_help_in_the_simulation(rows):
    cells = {(row.gamma, row.u_bar, row.alpha, row.sigma): row for row in rows}
    fewer = [cell for cell in cells if cell[1] < 8]
    assert len(fewer) > len(cells) / 3
    for cell in fewer:
        gamma, u_bar, alpha, sigma = cell
        row, more = cells[cell], cells[gamma, 4 * u_bar, alpha, sigma]
        assert more.mean - more.half_width > row.mean + row.half_width


@given(u_bars, alphas, sigmas)
def test_a_little_threshold_always_helps(u_bar, alpha, sigma):
    """At Gamma = 0 the slope of log cot is Lambda / (2 sigma (1 + u_bar (1 - alpha^2) Lambda^2)):
    above 0 for any u_bar.
    """
    step, zero = 1e-4 * sigma, closed_form(0, u_bar, alpha, sigma)
    slope = math.log(closed_form(step, u_bar, alpha, sigma).cot / zero.cot) / step
    expected = zero.lam / (2 * sigma * (1 + u_bar * (1 - alpha**2) * zero.lam**2))
    assert slope == pytest.approx(expected, rel=0.05, abs=2e-4 / sigma)
    assert expected > 0


@given(u_bars, alphas, sigmas)
def test_a_higher_threshold_helps_up_to_the_best_and_hurts_beyond(u_bar, alpha, sigma):
    best = best_threshold(u_bar, alpha, sigma)
    assert 0 < best < alpha + 2 * sigma
    rising = [closed_form(gamma, u_bar, alpha, sigma).cot for gamma in np.linspace(0, best, 20)]
    falling = [
        closed_form(gamma, u_bar, alpha, sigma).cot
        for gamma in np.linspace(best, best + 4 * sigma, 20)
    ]
    assert (np.diff(rising) > -1e-12).all()
    assert (np.diff(falling) < 0).all()
    assert rising[-1] > rising[0]


@given(u_bars, alphas, sigmas)
def test_the_best_threshold_falls_as_the_unlabelled_set_grows(u_bar, alpha, sigma):
    assert best_threshold(2 * u_bar, alpha, sigma) < best_threshold(u_bar, alpha, sigma) + 1e-6


def test_where_a_higher_threshold_stops_helping():
    found = [best_threshold(u_bar, 0.5, 1) for u_bar in (0.01, 0.5, 2, 8, 32, 1000, 1e6)]
    assert found == pytest.approx([0.62, 0.60, 0.54, 0.40, 0.20, 0.01, 0], abs=0.01)
    # A closer look than any it took: no point of a fine grid is better.
    fine = max(
        np.linspace(0, 3, 30_001).tolist(), key=lambda gamma: closed_form(gamma, 2, 0.5, 1).cot
    )
    assert best_threshold(2, 0.5, 1) == pytest.approx(fine, abs=1e-4)


def test_the_simulation_rises_to_the_best_threshold_and_falls_beyond():
    best = best_threshold(0.5, 0.7, 1.2)
    low, top, high = (monte_carlo(gamma, 0.5, 0.7, 1.2) for gamma in (0, best, 3 * best))
    assert low.interval()[1] < top.interval()[0]
    assert high.interval()[1] < top.interval()[0]


# --- errors ---


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((-0.1, 1, 0.5, 1), "gamma, the threshold, must be 0 or more, not -0.1"),
        ((math.inf, 1, 0.5, 1), "gamma, the threshold, must be 0 or more, not inf"),
        ((0, 0, 0.5, 1), "u_bar, unlabelled points per dimension, must be above 0, not 0"),
        ((0, math.nan, 0.5, 1), "u_bar, unlabelled points per dimension, must be above 0, not nan"),
        ((0, 1, 0, 1), "alpha, the correlation of beta_s and u, must lie between 0 and 1, not 0"),
        ((0, 1, 1, 1), "alpha, the correlation of beta_s and u, must lie between 0 and 1, not 1"),
        ((0, 1, 0.5, 0), "sigma, the noise, must be above 0, not 0"),
        ((0, 1, 0.5, -1), "sigma, the noise, must be above 0, not -1"),
    ],
)
def test_a_value_outside_its_range_is_a_mistake(values, text):
    gamma, u_bar, alpha, sigma = values
    with pytest.raises(UserError, match=text):
        closed_form(gamma, u_bar, alpha, sigma)
    with pytest.raises(UserError, match=text):
        monte_carlo(gamma, u_bar, alpha, sigma, p=10, trials=2)
    if gamma == 0:
        with pytest.raises(UserError, match=text):
            best_threshold(u_bar, alpha, sigma)


@pytest.mark.parametrize(("p", "trials", "u_bar"), [(2, 5, 1), (10, 1, 1), (10, 5, 0.01)])
def test_a_simulation_too_small_is_a_mistake(p, trials, u_bar):
    with pytest.raises(UserError, match=r"needs p >= 3, trials >= 2 and u_bar \* p >= 1, not p = "):
        monte_carlo(0, u_bar, 0.5, 1, p=p, trials=trials)


def test_a_threshold_nothing_passes_is_a_mistake():
    with pytest.raises(UserError, match=r"no point passes gamma = 50 at sigma = 1; lower gamma"):
        closed_form(50, 1, 0.5, 1)
    for full in (False, True):
        with pytest.raises(
            UserError,
            match=r"none of the points drawn passes gamma = 20; lower gamma, or raise u_bar or p",
        ):
            monte_carlo(20, 1, 0.5, 1, p=10, trials=2, full=full)


# --- the picture and the page ---


@pytest.mark.parametrize(
    ("name", "start"), [("t.png", b"\x89PNG"), ("deep/t.pdf", b"%PDF"), ("t.SVG", b"<?xml")]
)
def test_a_picture_of_the_grid(tmp_path, name, start):
    small = theory.grid((0, 1), (1, 4), (0.3, 0.7), (0.6,), p=100, trials=3)
    theory_plot.plot(small, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    assert [path.name for path in (tmp_path / name).parent.iterdir()] == [
        Path(name).name
    ]  # no temporary file is left


def test_a_picture_of_a_single_cell(tmp_path):
    theory_plot.plot(theory.grid((0,), (1,), (0.5,), (1,), p=100, trials=3), tmp_path / "t.png")
    assert (tmp_path / "t.png").stat().st_size > 1000


def test_a_picture_shows_lines_dashes_points_and_maxima(tmp_path, rows):
    theory_plot.plot(rows, tmp_path / "t.svg")
    text = (tmp_path / "t.svg").read_text()
    for label in (
        "closed form, u_bar = 0.5",
        "as misprinted, 1 / (2 pi)",
        "simulation, 95 % interval",
        "best threshold",
    ):
        assert f"<!-- {label} -->" in text
    assert text.count("<!-- alpha = ") == 4


def test_what_cannot_be_drawn_is_a_mistake(tmp_path, rows):
    with pytest.raises(UserError, match=r"cannot draw a \.gif; use \.png, \.pdf, \.svg"):
        theory_plot.plot(rows, tmp_path / "t.gif")
    with pytest.raises(UserError, match="nothing to draw"):
        theory_plot.plot([], tmp_path / "t.png")
    assert list(tmp_path.iterdir()) == []


def test_the_page_shows_the_grid(rows):
    """The table of docs/theory.md has a line for every sigma, alpha and u_bar, and in it for every
    gamma a cell `closed, mean ± half-width (misprinted)`."""
    lines = [
        line
        for line in DOCS.read_text(encoding="utf-8").splitlines()
        if line.count("±") == len(theory.GAMMAS)
    ]
    shown = []
    for line in lines:
        sigma, alpha, u_bar, *cells = line.strip("|").split("|")
        for gamma, cell in zip(theory.GAMMAS, cells, strict=True):
            place = (gamma, float(u_bar), float(alpha), float(sigma))
            shown.append((place, [float(n) for n in re.findall(r"\d+\.\d+", cell)]))
    assert [place for place, _ in shown] == [
        (row.gamma, row.u_bar, row.alpha, row.sigma) for row in rows
    ]
    for row, (_, (closed, mean, half_width, misprinted)) in zip(rows, shown, strict=True):
        assert (closed, misprinted) == pytest.approx((row.closed, row.misprinted), abs=6e-4)
        assert mean == pytest.approx(
            row.mean, abs=2 * row.half_width
        )  # should numpy ever draw other numbers
        assert half_width == pytest.approx(row.half_width, abs=1e-3)
