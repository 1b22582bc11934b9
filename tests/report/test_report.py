"""Tables and pictures, checked against figures worked out by hand from made-up runs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsift import config, report, runs
from fedsift.ledger import RoundBytes
from fedsift.report import plots
from fedsift.runs import History
from fedsift.types import UserError


def history(
    *settings: str,
    preset: str = "digits-fas",
    accuracies: Sequence[float] = (0.5,),
    up: int = 100,
    down: int = 1000,
    seconds: float = 1.0,
) -> History:
    """Two clients a round, each sending `up` bytes and hearing the same `down` bytes."""
    rounds = range(len(accuracies))
    return History(
        Path("made-up"),
        config.read_experiment(preset, settings),
        [
            {"round": n, "accuracy": a, "accuracies": {"cnn": a}}
            for n, a in zip(rounds, accuracies, strict=True)
        ],
        [RoundBytes(n, {0: up, 1: up}, {0: down, 1: down}, down) for n in rounds],
        seconds,
        [
            {"client": 0, "model": "cnn", "labels": [3, 1, 0]},
            {"client": 1, "model": "cnn", "labels": [0, 2, 2]},
        ],
        {},
    )


def labels(*histories: History) -> list[str]:
    return [method.label for method in report.methods(histories)]


# --- figures ---


def test_the_row_of_one_run_is_worked_out_by_hand():
    """Six rounds: the last five have mean 0.4; 6 x 2 uploads of 100 bytes."""
    (method,) = report.methods([history(accuracies=(0.9, 0.2, 0.3, 0.4, 0.5, 0.6), seconds=2.5)])
    assert method.row() == {
        "method": "digits-fas",
        "seeds": [0],
        "rounds": 6,
        "accuracy": 0.4,
        "measured_on": "test",
        "accuracy_sd": None,
        "uplink_bytes": 1200,
        "uplink_bytes_per_upload": 100,
        "uplink_bytes_largest": 100,
        "downlink_bytes_per_download": 1000,
        "broadcast_bytes_per_round": 1000,
        "total_bytes": 13200,
        "total_bytes_broadcast": 7200,
        "client_steps_per_round": None,
        "server_steps_per_round": None,
        "edge_uplink_bytes": None,
        "edge_downlink_bytes": None,
        "downlink_bytes": 12_000,
        "broadcast_bytes": 6000,
        "seconds": 2.5,
    }


def test_the_row_of_two_seeds_has_their_means_and_the_deviation_of_the_sample():
    """0.4 and 0.6: mean 0.5, deviation sqrt(2 * 0.1^2 / 1) = 0.141421. 400 and 800 bytes up: 600 a
    run, 150 an upload.
    """
    one = history("seed=0", accuracies=(0.3, 0.5), up=100, down=1000, seconds=1.0)
    two = history("seed=1", accuracies=(0.6, 0.6), up=200, down=3000, seconds=2.0)
    (method,) = report.methods([one, two])
    assert method.accuracies == pytest.approx([0.4, 0.6])
    assert method.row() == {
        "method": "digits-fas",
        "seeds": [0, 1],
        "rounds": 2,
        "accuracy": 0.5,
        "measured_on": "test",
        "accuracy_sd": 0.141421,
        "uplink_bytes": 600,
        "uplink_bytes_per_upload": 150,
        "uplink_bytes_largest": 200,
        "downlink_bytes_per_download": 2000,
        "broadcast_bytes_per_round": 2000,
        "total_bytes": 8600,
        "total_bytes_broadcast": 4600,
        "client_steps_per_round": None,
        "server_steps_per_round": None,
        "edge_uplink_bytes": None,
        "edge_downlink_bytes": None,
        "downlink_bytes": 8000,
        "broadcast_bytes": 4000,
        "seconds": 1.5,
    }


def test_training_steps_are_the_mean_over_clients_rounds_and_seeds():
    """Seed 0: (10 + 20 + 30) / 3 = 20 and 40 at the server. Seed 1: 30 and none. Without those of
    one run nothing is known."""
    one, two = history("seed=0", accuracies=(0.3, 0.5)), history("seed=1", accuracies=(0.6, 0.6))
    told = [{"0": 10, "3": 20}, {"1": 30}]
    steps = [{"steps": by_client, "server_steps": 40} for by_client in told]
    one = replace(one, metrics=[m | s for m, s in zip(one.metrics, steps, strict=True)])
    assert report.methods([one])[0].costs()["client_steps_per_round"] == 20
    two_told = replace(two, metrics=[m | {"steps": {"2": 30}} for m in two.metrics])
    assert report.methods([one, two_told])[0].steps() == {
        "client_steps_per_round": 25,
        "server_steps_per_round": 20,
    }
    assert report.methods([one, two])[0].costs()["client_steps_per_round"] is None


def test_the_summary_of_a_run_is_worked_out_by_hand():
    assert history(accuracies=(1.0, 0.1, 0.2, 0.3, 0.4, 0.6), seconds=3.00049).summary() == {
        "run": "made-up",
        "rounds": 6,
        "accuracy": 0.32,
        "accuracy_last": 0.6,
        "measured_on": "test",
        "uplink_bytes": 1200,
        "downlink_bytes": 12_000,
        "seconds": 3.0,
    }


@pytest.fixture
def folder(tmp_path) -> Path:
    """A run folder written by hand: three rounds, of which the third is not whole."""
    contents = {
        "config.toml": config.to_toml(config.read_experiment("digits-fd", ["seed=4", "rounds=9"])),
        "metrics.jsonl": '{"round": 0, "accuracy": 0.25, "accuracies": {"cnn": 0.25}}\n'
        '{"round": 1, "accuracy": 0.75, "accuracies": {"cnn": 0.75}}\n'
        '{"round": 2, "accuracy": 0.99, "accuracies": {"cnn": 0.99}}\n',
        "ledger.jsonl": '{"round": 0, "up": {"3": 10, "5": 20}, '
        '"down": {"3": 7, "5": 7}, "broadcast": 7}\n'
        '{"round": 1, "up": {"5": 30}, "down": {"5": 9}, "broadcast": 9}\n'
        '{"round": 2, "up": {"5"',
        "timing.jsonl": '{"round": 0, "seconds": 0.5}\n{"round": 1, "seconds": 0.25}\n',
        "clients.json": json.dumps([{"client": 0, "model": "cnn", "labels": [1, 2]}]),
        "environment.json": json.dumps({"engine": "by hand"}),
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def test_a_folder_written_by_hand_is_read_up_to_its_last_whole_round(folder):
    loaded = runs.load_run(folder)
    assert loaded.accuracies == [0.25, 0.75]
    assert loaded.ledger == [
        RoundBytes(0, {3: 10, 5: 20}, {3: 7, 5: 7}, 7),
        RoundBytes(1, {5: 30}, {5: 9}, 9),
    ]
    assert (loaded.experiment.name, loaded.experiment.seed) == ("digits-fd", 4)
    assert loaded.clients == [{"client": 0, "model": "cnn", "labels": [1, 2]}]


def test_the_row_of_a_folder_written_by_hand(folder):
    """60 bytes in three uploads."""
    (method,) = report.methods([runs.load_run(folder)])
    assert method.row() == {
        "method": "digits-fd",
        "seeds": [4],
        "rounds": 2,
        "accuracy": 0.5,
        "measured_on": "test",
        "accuracy_sd": None,
        "uplink_bytes": 60,
        "uplink_bytes_per_upload": 20,
        "uplink_bytes_largest": 30,
        "downlink_bytes_per_download": 8,
        "broadcast_bytes_per_round": 8,
        "total_bytes": 83,
        "total_bytes_broadcast": 76,
        "client_steps_per_round": None,
        "server_steps_per_round": None,
        "edge_uplink_bytes": None,
        "edge_downlink_bytes": None,
        "downlink_bytes": 23,
        "broadcast_bytes": 16,
        "seconds": 0.75,
    }


@pytest.mark.parametrize("missing", ["metrics.jsonl", "ledger.jsonl", "timing.jsonl"])
def test_a_folder_without_one_of_the_three_has_no_finished_round(missing, folder):
    (folder / missing).unlink()
    with pytest.raises(UserError, match="has no finished round yet"):
        runs.load_run(folder)


# --- methods ---


def test_runs_that_differ_in_seed_name_engine_or_device_are_one_method():
    one = history("seed=0")
    others = [
        history("seed=1"),
        history("engine=sequential"),
        history("device=cpu"),
        history("name=mine"),
    ]
    (method,) = report.methods([one, *others])
    assert method.runs == (one, *others)
    assert method.label == "digits-fas"


@pytest.mark.parametrize(
    "setting", ["alpha=0.1", "budget=7", "local.lr=0.5", "model=mlp", "rounds=3", "codec=float16"]
)
def test_runs_that_differ_in_anything_else_are_two_methods(setting):
    assert len(report.methods([history(), history(setting)])) == 2


def test_seeds_find_their_method_in_any_order_and_methods_come_as_given():
    given = [
        history("seed=0"),
        history(preset="digits-fd"),
        history("seed=1"),
        history("seed=1", preset="digits-fd"),
    ]
    fas, fd = report.methods(given)
    assert (fas.runs, fd.runs) == ((given[0], given[2]), (given[1], given[3]))


def test_names_that_differ_need_no_more_said():
    assert labels(history(), history(preset="digits-fd"), history(preset="digits-fedavg")) == [
        "digits-fas",
        "digits-fd",
        "digits-fedavg",
    ]


def test_namesakes_are_told_apart_by_the_keys_that_differ():
    assert labels(history("alpha=0.1"), history("alpha=1"), history("alpha=0.1", "seed=1")) == [
        "digits-fas alpha=0.1",
        "digits-fas alpha=1",
    ]
    assert labels(history("alpha=0.1"), history("budget=7"), history(preset="digits-fd")) == [
        "digits-fas budget=60 alpha=0.1",
        "digits-fas budget=7 alpha=1",
        "digits-fd",
    ]


def test_a_run_and_a_cell_of_a_sweep_are_told_apart_by_what_differs_and_the_name_does_not_say():
    alone = history("alpha=0.1", "sampler=low-entropy")
    cells = [history(f"alpha={a}", f"name=digits-fas alpha={a}") for a in (0.1, 1)]
    assert labels(alone, *cells) == [
        "digits-fas sampler=low-entropy alpha=0.1",
        "digits-fas alpha=0.1 sampler=mixed",
        "digits-fas alpha=1 sampler=mixed",
    ]


def test_a_seed_that_was_interrupted_is_not_averaged_with_one_that_was_not():
    """.2, .4, .6 to the end, and .8 in the first of three rounds."""
    whole, part = (
        history("rounds=3", f"seed={n}", accuracies=a)
        for n, a in enumerate([(0.2, 0.4, 0.6), (0.8,)])
    )
    assert labels(whole, part) == ["digits-fas", "digits-fas (1 of 3 rounds)"]
    assert [method.row()["accuracy"] for method in report.methods([whole, part])] == [0.4, 0.8]
    assert labels(part) == ["digits-fas"]


def test_no_two_methods_have_the_same_label():
    many = [
        history(f"alpha={a}", f"budget={b}", f"seed={s}")
        for a in (0.1, 1)
        for b in (5, 6)
        for s in (0, 1)
    ]
    many += [history(f"{part}.epochs={n}") for part in ("local", "distill") for n in (1, 2)]
    assert len(set(labels(*many))) == len(labels(*many)) == 8


def test_a_label_says_which_epochs_it_means():
    one, other = labels(history("local.epochs=1"), history("distill.epochs=1"))
    assert "local.epochs=1" in one and "distill.epochs=10" in one
    assert "local.epochs=10" in other and "distill.epochs=1" in other


def test_methods_measured_on_other_samples_say_so():
    tested, validated = history(), history("data.validation=100", preset="digits-fd")
    assert report.name_accuracy([tested]) == "test accuracy"
    assert report.name_accuracy([validated]) == "validation accuracy"
    assert report.name_accuracy([tested, validated]) == "test or validation accuracy"
    assert labels(tested, validated) == ["digits-fas (test)", "digits-fd (validation)"]
    assert labels(validated) == ["digits-fd"]
    assert labels(history(), history("data.validation=100")) == [
        "digits-fas (test)",
        "digits-fas data.validation=100 (validation)",
    ]


# --- paired comparisons ---


def test_methods_on_the_same_data_cohorts_and_seeds_are_paired():
    of_fas = [history(f"seed={seed}") for seed in range(3)]
    of_avg = [history(f"seed={seed}", preset="digits-fedavg") for seed in (2, 0, 1)]
    assert report.unpaired([*of_fas, *of_avg]) == []
    assert report.unpaired(of_fas[:1]) == []


@pytest.mark.parametrize(
    "setting, key",
    {
        "data.private=700": "data.private",
        "data.public=400": "data.public",
        "data.test=100": "data.test",
        "data.validation=100": "data.validation",
        "data.normalise=standard": "data.normalise",
        "partition.kind=iid": "partition.kind",
        "alpha=0.1": "partition.alpha",
        "clients=10": "clients.count",
        "cohort=4": "clients.cohort",
        "rounds=5": "rounds",
    }.items(),
)
def test_other_data_partitions_cohorts_or_rounds_are_named(setting, key):
    assert report.unpaired([history(), history(setting, preset="digits-fd")]) == [key]


@pytest.mark.parametrize(
    "setting", ["model=mlp", "budget=7", "sampler=margin", "codec=float16", "local.lr=0.1"]
)
def test_what_makes_a_method_does_not_unpair_it(setting):
    assert report.unpaired([history(), history(setting)]) == []


def test_other_seeds_are_named():
    assert report.unpaired([history("seed=0"), history("seed=1", preset="digits-fd")]) == ["seed"]
    assert report.unpaired(
        [history("seed=0"), history("seed=1"), history("seed=0", preset="digits-fd")]
    ) == ["seed"]


def test_of_runs_with_one_seed_the_one_that_got_furthest_counts():
    short, long, other = history(), history(accuracies=(0.5, 0.6)), history("seed=1")
    short, long = replace(short, folder=Path("short")), replace(long, folder=Path("long"))
    kept, repeats = report.without_repeats([short, other, long])
    assert [run.folder for run in kept] == [other.folder, long.folder] and repeats == {
        "short": "long"
    }


def test_all_that_differs_is_named_in_order():
    assert report.unpaired(
        [history(), history("seed=2", "cohort=3", "alpha=0.1", "data.public=300")]
    ) == [
        "clients.cohort",
        "data.public",
        "partition.alpha",
        "seed",
    ]


# --- pictures ---


def replace_name(run: History, name: str) -> History:
    return replace(run, experiment=run.experiment.model_copy(update={"name": name}))


@pytest.fixture
def drawn(panels):
    """Draw histories and hand back the three panels."""
    return lambda *histories: panels(plots.plot, histories)


def test_a_curve_is_the_mean_over_seeds_with_a_band_from_lowest_to_highest(drawn):
    one = history("seed=0", accuracies=(0.2, 0.4, 0.6))
    two = history("seed=1", accuracies=(0.4, 0.8, 0.8))
    rounds, _, _ = drawn(one, two)
    (line,) = rounds.lines
    np.testing.assert_allclose(line.get_xydata(), [(1, 0.3), (2, 0.6), (3, 0.7)])
    (band,) = rounds.collections
    corners = {tuple(point) for point in np.round(band.get_paths()[0].vertices, 6).tolist()}
    assert corners == {(1, 0.2), (2, 0.4), (3, 0.6), (1, 0.4), (2, 0.8), (3, 0.8)}
    assert rounds.get_ylim() == (0, 1)


def test_the_legend_says_what_the_band_is_where_there_is_one(drawn):
    def title(*histories):
        (legend,) = drawn(*histories)[0].get_figure().legends
        return legend.get_title().get_text()

    assert title(history("seed=0")) == ""
    both = title(history("seed=0"), history("seed=1"))
    assert both == "line: mean over seeds; band: lowest to highest seed"


def test_bytes_add_up_along_the_second_axis(drawn):
    one = history("seed=0", accuracies=(0.2, 0.4, 0.6), up=100)
    two = history("seed=1", accuracies=(0.4, 0.8, 0.8), up=300)
    _, uplink, _ = drawn(one, two)
    np.testing.assert_allclose(uplink.lines[0].get_xydata(), [(400, 0.3), (800, 0.6), (1200, 0.7)])
    assert uplink.get_xscale() == "log"


def test_seeds_of_different_length_are_drawn_apart(drawn):
    rounds, _, _ = drawn(
        history("seed=0", accuracies=(0.2, 0.4, 0.6)), history("seed=1", accuracies=(0.4, 0.6))
    )
    np.testing.assert_allclose(rounds.lines[0].get_xydata(), [(1, 0.2), (2, 0.4), (3, 0.6)])
    np.testing.assert_allclose(rounds.lines[1].get_xydata(), [(1, 0.4), (2, 0.6)])


def test_every_method_has_its_line_its_colour_and_its_label(drawn):
    given = history("alpha=0.1"), history("alpha=1"), history(preset="digits-fd")
    rounds, uplink, _ = drawn(*given)
    legend = [text.get_text() for text in rounds.get_figure().legends[0].get_texts()]
    assert legend == ["digits-fas alpha=0.1", "digits-fas alpha=1", "digits-fd"]
    assert len({line.get_color() for line in rounds.lines}) == 3
    assert [line.get_color() for line in uplink.lines] == [
        line.get_color() for line in rounds.lines
    ]


@pytest.mark.parametrize(
    "name",
    ["short", "a name that is long, and says what sets this method apart from the others, lr=0.01"],
)
def test_all_of_the_legend_is_in_the_picture_and_twenty_colours_differ(drawn, name):
    rounds, _, _ = drawn(
        *(replace_name(history(f"budget={n}"), f"{name} {n}") for n in range(1, 21))
    )
    figure = rounds.get_figure()
    figure.draw_without_rendering()
    legend, (width, height) = (
        figure.legends[0].get_window_extent(),
        figure.get_size_inches() * figure.dpi,
    )
    assert (
        0 <= legend.x0 < legend.x1 <= width
        and 0 <= legend.y0 < legend.y1 < rounds.get_window_extent().y0 < height
    )
    assert rounds.get_window_extent().height > 150
    assert len({line.get_color() for line in rounds.lines}) == 20


def test_a_single_round_is_a_visible_point(drawn):
    rounds, _, _ = drawn(history(accuracies=(0.4,)))
    assert rounds.lines[0].get_marker() == "."


def test_the_bars_are_the_label_counts_client_by_client(drawn):
    _, _, bars = drawn(history("seed=3", "clients=2"))
    pieces = [
        (round(b.get_y() + b.get_height() / 2), b.get_x(), b.get_width()) for b in bars.patches
    ]
    assert pieces == [(0, 0, 3), (1, 0, 0), (0, 3, 1), (1, 0, 2), (0, 4, 0), (1, 2, 2)]
    assert bars.get_title() == "labels of the clients, seed 3"


def test_the_bars_say_whose_they_are_where_other_runs_have_other_data(drawn):
    _, _, bars = drawn(history("alpha=0.1", "clients=2"), history("alpha=1", "clients=2"))
    assert bars.get_title() == "labels of the clients, seed 0\ndigits-fas alpha=0.1"
    _, _, bars = drawn(
        history("clients=2"),
        history("clients=2", "seed=1"),
        history("clients=2", preset="digits-fd"),
    )
    assert bars.get_title() == "labels of the clients, seed 0"


def test_of_many_clients_the_first_are_drawn_and_named(drawn):
    """A million clients, of which clients.json lists 90: the first forty have a bar, and a bar has
    its client's number.
    """
    listed = [{"client": 10_000 * n + 7, "model": "cnn", "labels": [n, 1, 0]} for n in range(90)]
    _, _, bars = drawn(replace(history("seed=3", "clients=1000000"), clients=listed))
    assert [b.get_width() for b in bars.patches[:40]] == list(range(40)) and len(
        bars.patches
    ) == 3 * 40
    name = bars.yaxis.get_major_formatter()
    assert [name(row, None) for row in (-1, 0, 39, 40)] == ["", "7", "390007", ""]
    assert bars.get_title() == "labels of 40 of 1,000,000 clients, seed 3"


def test_no_figure_is_left_open(tmp_path):
    from matplotlib import pyplot as plt

    plots.plot([history()], tmp_path / "picture.png")
    assert plt.get_fignums() == []


def test_a_picture_that_cannot_be_drawn_leaves_the_old_one(tmp_path):
    (tmp_path / "picture.jpg").write_bytes(b"old")
    with pytest.raises(UserError, match=r"cannot draw a \.jpg; use \.png, \.pdf, \.svg"):
        plots.plot([history()], tmp_path / "picture.jpg")
    assert (tmp_path / "picture.jpg").read_bytes() == b"old"


def test_the_ending_may_be_in_capitals(tmp_path):
    plots.plot([history()], tmp_path / "PICTURE.PNG")
    assert (tmp_path / "PICTURE.PNG").read_bytes().startswith(b"\x89PNG")
