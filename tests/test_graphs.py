"""Who hears whom, and with which weight: edges by hand, then what must hold of every graph."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift import graphs, registry
from fedsift.graphs import GRAPHS, EdgeList, ErdosRenyi, Regular
from fedsift.types import UserError

PATH = frozenset({(0, 1), (1, 2)})


def rng(seed=0):
    return np.random.default_rng(seed)


def edges(text, clients, seed=0):
    return graphs.draw_edges(registry.build(GRAPHS, "graph", text), clients, rng(seed))


def degrees(found, clients):
    return [len(graphs.list_neighbours(found, client)) for client in range(clients)]


@pytest.mark.parametrize(
    ("text", "clients", "expected"),
    [
        ("ring", 4, {(0, 1), (1, 2), (2, 3), (0, 3)}),
        ("ring", 2, {(0, 1)}),
        ("grid", 5, {(0, 1), (1, 2), (3, 4), (0, 3), (1, 4)}),  # 0 1 2 over 3 4
        ("grid", 4, {(0, 1), (2, 3), (0, 2), (1, 3)}),  # 0 1 over 2 3
        ("complete", 3, {(0, 1), (0, 2), (1, 2)}),
        ("edges(0-1 1-2)", 3, {(0, 1), (1, 2)}),
        (
            "edges(2-1 1-2 1-0)",
            3,
            {(0, 1), (1, 2)},
        ),  # either way round, and named twice, it is one edge
        ("erdos-renyi(1)", 3, {(0, 1), (0, 2), (1, 2)}),
        (
            "regular(3)",
            4,
            {(a, b) for b in range(4) for a in range(b)},
        ),  # degree 3 among 4 is everyone
        ("ring", 1, set()),
        ("complete", 1, set()),
    ],
)
def test_edges_by_hand(text, clients, expected):
    assert edges(text, clients) == expected


def test_neighbours_by_hand():
    assert [graphs.list_neighbours(PATH, client) for client in range(3)] == [[1], [0, 2], [1]]


@given(st.integers(3, 16), st.integers(2, 8), st.integers(0, 5))
def test_a_regular_graph_is_connected_and_has_one_degree(clients, degree, seed):
    if degree >= clients or clients * degree % 2:
        with pytest.raises(
            UserError, match=f"no connected graph has {clients} clients of degree {degree} each"
        ):
            Regular(degree)(clients, rng(seed))
        return
    found = graphs.draw_edges(Regular(degree), clients, rng(seed))
    assert degrees(found, clients) == [degree] * clients
    assert all(a < b for a, b in found)


@given(st.integers(2, 14), st.sampled_from([0.4, 0.6, 0.9]), st.integers(0, 20))
def test_an_erdos_renyi_graph_is_connected_and_a_function_of_its_generator(clients, p, seed):
    found = graphs.draw_edges(
        ErdosRenyi(p), clients, rng(seed)
    )  # `drawn` refuses what is not connected
    assert found == graphs.draw_edges(ErdosRenyi(p), clients, rng(seed))
    assert min(degrees(found, clients)) >= 1


@pytest.mark.parametrize("graph", [Regular(4), ErdosRenyi(0.4)])
def test_random_graphs_differ_from_seed_to_seed(graph):
    assert len({graphs.draw_edges(graph, 12, rng(seed)) for seed in range(5)}) == 5


def test_a_random_graph_is_drawn_again_until_it_is_connected():
    """At p = 0.3 most draws of 8 clients leave somebody out; what is returned never does."""
    pairs = [(a, b) for b in range(8) for a in range(b)]
    first = [frozenset(pair for pair in pairs if g.random() < 0.3) for g in map(rng, range(20))]
    assert sum(0 in degrees(found, 8) for found in first) > 5
    assert all(
        0 not in degrees(graphs.draw_edges(ErdosRenyi(0.3), 8, rng(seed)), 8) for seed in range(20)
    )


# --- mistakes ---


def test_a_graph_must_be_connected():
    with pytest.raises(UserError, match="not connected"):
        edges("edges(0-1 2-3)", 4)
    with pytest.raises(UserError, match="not connected"):
        edges("edges(0-1)", 3)
    with pytest.raises(UserError, match="not connected"):
        edges("edges(0-0 1-1)", 2)  # to oneself is not to another
    with pytest.raises(UserError, match="draws; make it denser"):
        ErdosRenyi(1e-9)(4, rng())


def test_an_edge_must_name_clients_that_are_there():
    with pytest.raises(UserError, match="not there; there are 3, numbered from 0"):
        edges("edges(0-1 1-2 2-3)", 3)


@pytest.mark.parametrize("text", ["0-1-2", "0", "a-b", "0-1,1-2", "0--1", "-1-0", "0:1"])
def test_edges_that_cannot_be_read_are_a_mistake(text):
    with pytest.raises(UserError, match="write them as 0-1 1-2 2-0"):
        EdgeList(text)(3, rng())


@pytest.mark.parametrize("p", [0, -0.1, 1.1, float("nan")])
def test_a_probability_of_an_edge_is_above_0_and_at_most_1(p):
    with pytest.raises(UserError, match="above 0 and at most 1"):
        ErdosRenyi(p)(4, rng())


def test_an_unknown_graph_is_refused_by_the_nearest():
    with pytest.raises(UserError, match="did you mean 'complete'"):
        edges("complet", 3)


# --- mixing weights ---


def test_metropolis_weights_of_a_path_by_hand():
    """Degrees 1, 2, 1: every edge weighs 1 / (1 + 2); what is missing to 1 stays at home."""
    third = 1 / 3
    expected = [[2 * third, third, 0], [third, third, third], [0, third, 2 * third]]
    assert np.allclose(graphs.mixing_weights(PATH, 3), expected, atol=1e-15)


def test_metropolis_weights_of_a_star_by_hand():
    """The middle has degree 3: 1/4 on each edge; leaves keep 3/4, the middle 1/4."""
    star = frozenset({(0, 1), (0, 2), (0, 3)})
    assert np.allclose(np.diag(graphs.mixing_weights(star, 4)), [0.25, 0.75, 0.75, 0.75])
    assert np.allclose(graphs.mixing_weights(star, 4)[0], 0.25)


def test_on_the_complete_graph_one_step_is_the_mean():
    assert np.allclose(graphs.mixing_weights(edges("complete", 5), 5), 1 / 5)


@given(st.integers(2, 12), st.integers(0, 10))
def test_mixing_is_symmetric_doubly_stochastic_and_follows_the_edges(clients, seed):
    found = graphs.draw_edges(ErdosRenyi(0.5), clients, rng(seed))
    weights = graphs.mixing_weights(found, clients)
    assert np.array_equal(weights, weights.T) and (weights >= 0).all()
    assert np.allclose(weights.sum(0), 1) and np.allclose(weights.sum(1), 1)
    off = weights - np.diag(np.diag(weights))
    assert {(a, b) for a, b in np.argwhere(off > 0).tolist() if a < b} == found


@pytest.mark.parametrize("text", ["ring", "grid", "complete", "regular(4)", "erdos-renyi(0.5)"])
def test_mixing_again_and_again_brings_everyone_to_the_mean(text):
    start = np.arange(9.0)
    mixed = np.linalg.matrix_power(graphs.mixing_weights(edges(text, 9), 9), 300) @ start
    assert np.allclose(mixed, start.mean(), atol=1e-6)


@pytest.mark.parametrize("given", [3, [1, 2], [("a", "b")], [(0, 1, 2)], None])
def test_a_graph_that_does_not_give_pairs_is_a_mistake(given):
    with pytest.raises(UserError, match="it must give pairs of client numbers"):
        graphs.draw_edges(lambda clients, generator: given, 3, np.random.default_rng(0))


def test_the_edges_of_a_graph_may_come_in_any_order_and_type():
    graph: Any = lambda clients, generator: [(1, 0), np.array([2, 1])]  # noqa: E731
    edges = graphs.draw_edges(graph, 3, np.random.default_rng(0))
    assert edges == {(0, 1), (1, 2)}
