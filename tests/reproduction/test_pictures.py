"""What is drawn of a report, and where names find room."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.reproduction import pictures
from tests.helpers.reproduction import a_report


@pytest.fixture
def drawn(panels):
    """Draw a report and hand back its panels."""
    return partial(panels, pictures.draw)


def test_a_curve_is_the_mean_of_its_seeds_with_a_band_and_the_papers_figure_at_the_end(drawn):
    mild, strong = drawn(a_report())
    assert [axes.get_title() for axes in (mild, strong)] == ["alpha = 100", "alpha = 0.1"]
    curve, paper = mild.lines
    np.testing.assert_allclose(curve.get_xydata(), [(1, 0.3), (2, 0.6), (3, 0.7)])
    np.testing.assert_allclose(paper.get_xydata(), [(3.5, 0.6835), (5, 0.6835)])
    (band,) = mild.collections
    corners = {tuple(point) for point in np.round(band.get_paths()[0].vertices, 6).tolist()}
    assert corners == {(1, 0.2), (2, 0.4), (3, 0.6), (1, 0.4), (2, 0.8), (3, 0.8)}
    none, mixed, _ = strong.lines  # only mixed has a figure of the paper here
    assert none.get_color() == curve.get_color() != mixed.get_color()


def test_seeds_of_different_length_are_drawn_as_far_as_all_go(drawn):
    report = a_report()
    report["cells"][0]["by_round"] = [[0.2, 0.4, 0.6], [0.4, 0.6]]
    mild, _ = drawn(report)
    np.testing.assert_allclose(mild.lines[0].get_xydata(), [(1, 0.3), (2, 0.5)])


def test_a_budget_is_points_against_bytes_the_variants_of_a_system_joined_and_named(drawn):
    report = a_report(layout="budget")
    one, other = report["cells"][1], report["cells"][2]
    report["cells"] = [
        one | {"label": "FAS, float32", "uplink_bytes_per_upload": 800, "accuracy": 0.5},
        one | {"label": "FAS, 2 bits", "uplink_bytes_per_upload": 80, "accuracy": 0.4},
        other | {"label": "FedAvg", "uplink_bytes_per_upload": 9000, "accuracy": 0.6},
    ]
    (axes,) = drawn(report)
    assert axes.get_xscale() == "log"
    assert axes.get_legend_handles_labels()[1] == ["FAS", "FedAvg"]
    lines = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert lines == [[[80, 0.4], [800, 0.5]], [[9000, 0.6]]]
    assert {name.get_text(): name.xy for name in axes.texts} == {
        "2 bits": (80, 0.4),
        "float32": (800, 0.5),
    }


PANEL = (0.0, 0.0, 300.0, 200.0)


def test_a_name_with_room_is_beside_its_point_by_hand():
    """A name of 20 x 8 begins 8 to the right of its point."""
    assert pictures._find_room((100, 100), (20, 8), [(96, 96, 104, 104)], PANEL) == (
        108,
        96,
        128,
        104,
    )


def test_a_name_goes_no_further_round_than_it_must_by_hand():
    """The right is taken up to 107. An eighth and a quarter of the way up would still be on it,
    three eighths are not: 100 + (8 + 20 / 2) cos 67.5 = 106.89, 100 + (8 + 8 / 2) sin 67.5 =
    111.09."""
    left, low, right, high = pictures._find_room((100, 100), (20, 8), [(107, 90, 129, 107)], PANEL)
    assert [(left + right) / 2, (low + high) / 2] == pytest.approx([106.89, 111.09], abs=0.01)


def test_at_the_right_edge_a_name_stays_inside():
    assert pictures._find_room((295, 100), (20, 8), [], PANEL)[2] <= 300


@given(
    st.lists(
        st.tuples(st.integers(30, 270), st.integers(30, 170)), min_size=1, max_size=6, unique=True
    )
)
def test_a_few_names_are_clear_of_all_points_and_of_each_other(places):
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in places]
    for place in places:
        room = pictures._find_room(place, (20, 8), taken, PANEL)
        assert room[0] >= 0 and room[1] >= 0 and room[2] <= 300 and room[3] <= 200
        assert all(pictures._shared_area(room, other) < 1 for other in taken)
        taken.append(room)


def test_names_in_a_picture_are_clear_of_each_other_of_points_and_of_their_spread(drawn):
    from matplotlib.text import Text

    places = [(80, 0.4), (90, 0.41), (100, 0.4), (120, 0.41), (800, 0.5), (9000, 0.45)]
    cell = a_report()["cells"][1] | {"sd": 0.02}
    cells = [
        cell | {"label": f"FAS, code number {n}", "uplink_bytes_per_upload": x, "accuracy": y}
        for n, (x, y) in enumerate(places)
    ]
    (axes,) = drawn(a_report(layout="budget", cells=cells))
    axes.figure.draw_without_rendering()  # it was saved with other pixels
    names: list[Any] = [Text.get_window_extent(name).extents for name in axes.texts]
    assert len(names) == 6
    pixels = lambda x, y: axes.transData.transform((x, y))  # noqa: E731
    bars = [(*pixels(x, y - 0.02) - 1, *pixels(x, y + 0.02) + 1) for x, y in places]
    panel = axes.get_window_extent().extents
    for n, name in enumerate(names):
        assert all(pictures._shared_area(name, other) < 1 for other in bars + names[:n])
        assert pictures._shared_area(name, panel) == pytest.approx(
            (name[2] - name[0]) * (name[3] - name[1])
        )
        middle = np.array([name[0] + name[2], name[1] + name[3]]) / 2
        assert np.abs(middle - pixels(*places[n])).sum() < 150  # not far from its point


def test_what_boxes_share_by_hand():
    assert pictures._shared_area((0, 0, 4, 2), (3, 1, 9, 9)) == 1
    assert pictures._shared_area((0, 0, 4, 2), (4, 0, 9, 9)) == 0
    assert pictures._shared_area((0, 0, 4, 2), (5, 3, 9, 9)) == 0


def test_variants_are_rows_the_best_on_top_with_their_bytes(drawn):
    report = a_report(layout="variants")
    report["cells"] = [cell for cell in report["cells"] if cell["alpha"] == 0.1]
    (axes,) = drawn(report)
    ordered = sorted(report["cells"], key=lambda cell: cell["accuracy"])
    names = [f"{cell['label']} ({cell['uplink_bytes_per_upload']:,} bytes)" for cell in ordered]
    assert [text.get_text() for text in axes.get_yticklabels()] == names
    points = [line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() == "o"]
    assert points == [[cell["accuracy"], row] for row, cell in enumerate(ordered)]
