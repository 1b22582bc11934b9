"""Samples in a page: so many as fit, each picture once."""

import base64
import io
import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from fedsift.report import thumbnails
from fedsift.report.thumbnails import MOST, fit_samples
from tests.helpers.sheets import sheet_of


def shade(value):
    return np.full((2, 3), value)


def pixels_of(sheet, shared):
    """Sample -> the shade of its tile in the shared picture, or None."""
    from_all = shared[sheet["shared"]]
    whole = np.asarray(Image.open(io.BytesIO(base64.b64decode(from_all["picture"]))))
    width, height = sheet["tile"]
    found = {}
    for sample, tile in zip(sheet["samples"], sheet["tiles"], strict=True):
        down, right = divmod(tile, from_all["columns"])
        found[sample] = int(whole[down * height, right * width]) if tile >= 0 else None
    return found


def test_few_samples_stay_as_they_are():
    sheet = sheet_of([shade(9)], [4])
    assert fit_samples([sheet], [Counter([4])]) == ([sheet], [])


def test_sheets_share_a_picture_by_hand(monkeypatch):
    # Sample 5 of one set looks as sample 8 of the other; sample 7 is in no shown round.
    monkeypatch.setattr(thumbnails, "MOST", 400)
    first = sheet_of([shade(10), shade(20), shade(30)], [5, 6, 7])
    second = sheet_of([shade(10), shade(40)], [8, 9], columns=1)
    kept, shared = fit_samples([first, second], [Counter([6, 5, 6]), Counter([8, 9])])
    assert [sheet["samples"] for sheet in kept] == [[6, 5], [8, 9]]  # what is named twice first
    assert [sheet["truth"] for sheet in kept] == [[6, 5], [8, 9]]
    # In turn: 6 and 8, then 5, which is there already, and 9.
    assert [sheet["tiles"] for sheet in kept] == [[0, 1], [1, 2]]
    assert [pixels_of(sheet, shared) for sheet in kept] == [{6: 20, 5: 10}, {8: 10, 9: 40}]
    assert not any("picture" in sheet for sheet in kept) and len(shared) == 1


def test_many_pictures_of_noise_fit():
    rng = np.random.default_rng(0)
    sheets = [
        sheet_of(rng.integers(0, 256, (512, 32, 32, 3)), list(range(512)), 16, "jpeg")
        for _ in range(6)
    ]
    assert sum(len(sheet["picture"]) for sheet in sheets) > 2 * MOST
    kept, shared = fit_samples(sheets, [Counter(range(512))] * 6)
    assert MOST // 2 < len(shared[0]["picture"]) <= MOST
    there = [sum(tile >= 0 for tile in sheet["tiles"]) for sheet in kept]
    assert max(there) - min(there) <= 1 and 0 < sum(there) < 6 * 512
    assert [len(sheet["samples"]) for sheet in kept] == [512] * 6


def test_many_texts_fit(monkeypatch):
    # Each set has 120 letters; a text of ten has two quotes, and a comma and a space after it.
    monkeypatch.setattr(thumbnails, "MOST", 240)
    sheets = [
        {
            "public": 100,
            "samples": list(range(20)),
            "truth": None,
            "kind": "texts",
            "texts": [f"{place:010d}" for place in range(20)],
        }
        for _ in range(2)
    ]
    kept, shared = fit_samples(sheets, [Counter(range(20))] * 2)
    assert shared == []
    for sheet in kept:
        assert sheet["texts"] == [f"{place:010d}" if place < 8 else None for place in range(20)]


def bomb():
    """It says that it is 60,000 pixels wide and high."""
    sheet = sheet_of([shade(1)], [3])
    code = bytearray(base64.b64decode(sheet["picture"]))
    code[16:24] = (60_000).to_bytes(4, "big") * 2
    return sheet | {"picture": base64.b64encode(bytes(code)).decode()}


@pytest.mark.parametrize(
    "change",
    [
        {"picture": base64.b64encode(b"not a picture").decode()},
        {"picture": bomb()["picture"]},
        {"columns": 10**9},
        {"tile": [32, 32]},
        {"junk": "x" * 5000, "texts": ["more"]},
    ],
    ids=["no picture", "bomb", "columns", "tile", "other keys"],
)
def test_a_picture_of_a_stranger_is_left_out(monkeypatch, change):
    monkeypatch.setattr(thumbnails, "MOST", 100)
    kept, shared = fit_samples([sheet_of([shade(1)], [3]) | change], [Counter([3])])
    assert kept[0]["samples"] == [3] and kept[0]["tiles"] == [-1]
    assert len(json.dumps([kept, shared])) < 400
