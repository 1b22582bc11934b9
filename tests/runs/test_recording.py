"""The recording of a run: what is in it, that it changes nothing, and that it can be damaged."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsift import config, runs
from fedsift.codecs.parts import Parts
from fedsift.data import make_dataset, split
from fedsift.federation.conversations import Conversation
from fedsift.runs import CHECKPOINT, LEDGER, METRICS, RECORDING, SAMPLES, read_recording
from fedsift.runs.previews import describe_samples
from fedsift.runs.recording import to_row
from fedsift.types import SoftLabels, UserError
from tests.helpers.damage import damage_file
from tests.helpers.runs import bits, lines, play, resumed, straight, tiny


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    return straight(tmp_path_factory.mktemp("recorded") / "run", tiny())


def test_a_row_by_hand():
    # Shares in thousandths, the three likeliest classes, and none that has nothing.
    probs = np.array([[0.05, 0.7, 0.0, 0.25], [0.0, 0.0, 1.0, 0.0], [0.1, 0.2, 0.3, 0.4]])
    said = {3: SoftLabels(np.array([2, 7, 9]), probs)}
    told = Conversation(Parts(22, 1, 24), Parts(values=5), {3: 60}, said, None, None, 50, 4, (8,))
    assert to_row(2, told) == {
        "round": 2,
        "bytes": {
            "up": {"header": 22, "indexes": 1, "values": 24, "others": 0},
            "down": {"header": 0, "indexes": 0, "values": 5, "others": 0},
        },
        "clients": {
            "3": {
                "rows": 60,
                "said": {
                    "2": [1, 700, 3, 250, 0, 50],
                    "7": [2, 1000],
                    "9": [3, 400, 2, 300, 1, 200],
                },
            }
        },
        "aggregate": {},
        "student": {},
        "labelled": 50,
        "contested": 4,
        "unlabelled": [8],
        "disputed": [],
    }


def test_a_run_is_recorded_round_by_round(recorded):
    found = read_recording(recorded)
    assert found is not None and list(found.rounds) == [0, 1, 2]
    for number, sent in enumerate(lines(recorded / LEDGER)):
        row = found.rounds[number]
        assert {way: sum(row["bytes"][way].values()) for way in ("up", "down")} == {
            way: sum(sent[way].values()) for way in ("up", "down")
        }
        assert row["clients"].keys() == sent["up"].keys()
        assert all(told["rows"] == 6 == len(told["said"]) for told in row["clients"].values())
        asked = {sample for told in row["clients"].values() for sample in told["said"]}
        assert asked <= row["aggregate"].keys() <= row["student"].keys()
        rows = lines(recorded / METRICS)[number]["uploaded_labels"]
        assert row["labelled"] == rows["samples"]
    assert found.samples["kind"] == "images" and found.samples["tile"] == [8, 8]
    task = config.build_task(tiny())
    assert found.samples["samples"] == list(range(30))
    assert task.public_labels is not None
    assert found.samples["truth"] == task.public_labels.tolist()


SYSTEMS = {
    "weights": ("digits-fedavg", ("model=mlp",)),
    "soft labels down": ("digits-fas-soft-down", ()),
    "audits and votes": (
        "digits-fas",
        ("aggregator=trust", "algorithm.audit=8", "algorithm.votes=expertise"),
    ),
}


@pytest.mark.parametrize("preset, settings", SYSTEMS.values(), ids=SYSTEMS)
def test_a_recording_changes_nothing(preset, settings, tmp_path):
    told = straight(tmp_path / "told", tiny(preset, *settings))
    silent = straight(tmp_path / "silent", tiny(preset, *settings, "record=false"))
    for name in (METRICS, LEDGER, CHECKPOINT):
        assert (told / name).read_bytes() == (silent / name).read_bytes()
    assert not (silent / RECORDING).exists() and not (silent / SAMPLES).exists()
    assert read_recording(silent) is None
    for row, sent in zip(lines(told / RECORDING), lines(told / LEDGER), strict=True):
        assert sum(row["bytes"]["up"].values()) == sum(sent["up"].values())
        assert sum(row["bytes"]["down"].values()) == sum(sent["down"].values())


def test_a_resumed_run_has_the_recording_of_one_played_straight_through(recorded, tmp_path):
    stopped = straight(tmp_path / "stopped", tiny(), 1)
    with open(stopped / RECORDING, "a") as file:  # as if killed before the checkpoint was there
        file.write(json.dumps(lines(recorded / RECORDING)[1]) + "\n")
    assert bits(resumed(stopped)) == bits(recorded)
    for name in (RECORDING, SAMPLES):
        assert (stopped / name).read_bytes() == (recorded / name).read_bytes()


def test_a_recording_can_be_switched_off_and_on(tmp_path):
    folder = straight(tmp_path / "run", tiny(rounds=3), 1)
    play(runs.begin_run(folder, tiny("digits-fas", "record=false"), resume=True), 1)
    play(runs.begin_run(folder, tiny(), resume=True))
    assert [row["round"] for row in lines(folder / RECORDING)] == [0, 2]
    found = read_recording(folder)
    assert found is not None and list(found.rounds) == [0, 2]


def test_a_recording_that_is_damaged_is_refused_in_one_sentence(recorded, tmp_path):
    for name in (RECORDING, SAMPLES):
        original = (recorded / name).read_bytes()
        for seed in range(60):
            folder = tmp_path / f"{name}-{seed}"
            folder.mkdir()
            for each in (RECORDING, SAMPLES):
                (folder / each).write_bytes((recorded / each).read_bytes())
            damage_file(folder / name, random.Random(seed))
            try:
                read_recording(folder)
            except UserError as error:
                assert str(error).startswith(f"cannot read {folder / name}: ")
                assert "\n" not in str(error)
        assert (recorded / name).read_bytes() == original


HOSTILE = {
    "many clients": ({"clients": {str(i): {"rows": 1, "said": {}} for i in range(17)}}, "a few"),
    "a share above one": ({"aggregate": {"1": [0, 1001]}}, "soft labels"),
    "a name for a sample": ({"student": {"<script>": [0, 1]}}, "soft labels"),
    "a long list": ({"disputed": list(range(17))}, "disputed must be a few samples"),
    "other parts": ({"bytes": {"up": {"x": 1}, "down": {}}}, "bytes by part"),
}


@pytest.mark.parametrize("change, told", HOSTILE.values(), ids=HOSTILE)
def test_a_row_of_a_stranger_is_refused(recorded, tmp_path, change, told):
    (tmp_path / SAMPLES).write_bytes((recorded / SAMPLES).read_bytes())
    row = lines(recorded / RECORDING)[0] | change
    (tmp_path / RECORDING).write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=told):
        read_recording(tmp_path)


# --- samples to look at ---


def test_a_picture_is_in_its_place():
    import base64
    import io

    from PIL import Image

    x = np.zeros((40, 3, 64, 64), np.uint8)
    x[:, 0] = np.arange(40)[:, None, None] * 6  # the red of each
    task = split(make_dataset(x, np.arange(40) % 2), private=10, public=20, test=10, seed=0)
    told = describe_samples(task, 0)
    assert told["tile"] == [32, 32] and told["samples"] == list(range(20))
    sheet: Any = Image.open(io.BytesIO(base64.b64decode(told["picture"])))
    assert sheet.size == (16 * 32, 2 * 32)
    reds = [sheet.getpixel((i % 16 * 32 + 9, i // 16 * 32 + 9))[0] for i in range(20)]
    truth = (task.public.store.values[task.public.rows, 0, 0, 0]).tolist()
    assert max(abs(a - b) for a, b in zip(reds, truth, strict=True)) <= 6


def test_rows_of_a_table_and_series_are_told():
    x = np.arange(60, dtype=np.float32).reshape(20, 3)
    told = describe_samples(split(make_dataset(x, np.arange(20) % 2), 5, 10, 5), 0)
    assert told["kind"] == "rows" and [name for name, _ in told["rows"][0]] == ["x0", "x1", "x2"]
    series = np.repeat(x[:, :, None], 2, 2)
    made = make_dataset(series, np.arange(20) % 2, kind="series")
    told = describe_samples(split(made, 5, 10, 5), 0)
    assert told["kind"] == "series" and len(told["series"][0]) == 3


def test_a_text_is_told_in_words():
    task = config.build_task(config.read_experiment("text-fas"))
    told = describe_samples(task, 0)
    assert told["kind"] == "texts" and len(told["texts"]) == len(told["samples"])
    assert all(text and len(text) <= 301 for text in told["texts"])
