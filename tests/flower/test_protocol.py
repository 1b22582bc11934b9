"""The number of the wire protocol: what crosses cannot change without a new one."""

import json
from dataclasses import replace
from pathlib import Path

from fedsift.codecs import CODECS, WEIGHT_CODECS, wire
from fedsift.codecs.estimates import ESTIMATE_CODECS
from fedsift.flower import messages
from fedsift.flower.messages import PROTOCOL
from tests.helpers import layouts

KEPT = json.loads(layouts.FILE.read_text())
COMPATIBILITY = Path(__file__).parents[2] / "docs" / "compatibility.md"


def test_what_crosses_is_what_this_number_stands_for():
    """If it fails and the change is meant: give `PROTOCOL` in flower/messages.py a new number and
    a row in docs/compatibility.md, then run `python -m tests.helpers.layouts`.
    """
    assert KEPT["protocol"] == PROTOCOL
    found = layouts.find_digests()
    changed = {name for name in found | KEPT["digests"] if found.get(name) != KEPT["digests"][name]}
    assert not changed, f"other bytes under the same number {PROTOCOL}: {sorted(changed)}"


def test_every_codec_and_every_message_is_among_them():
    names = {name for name, _ in layouts.list_bytes()}
    kinds = {type(one) for one in layouts.FLOWER}
    assert kinds == set(messages.FedsiftMessage.__args__)
    for group, codecs in (("labels", CODECS), ("weights", WEIGHT_CODECS)):
        found = {name.partition(", ")[2].partition("(")[0] for name in names if group in name[:7]}
        assert codecs.keys() <= found
    assert {f"estimates, {name}" for name in ESTIMATE_CODECS} <= names


def test_another_layout_is_seen(monkeypatch):
    monkeypatch.setattr(wire, "VERSION", 2)
    monkeypatch.setattr(layouts, "FLOWER", (replace(layouts.FLOWER[0], client=4),))
    found = layouts.find_digests()
    assert all(found[name] != KEPT["digests"][name] for name in found if name != "Flower, routes")


def test_the_number_is_in_the_docs():
    assert f"development before the release | {PROTOCOL} |" in COMPATIBILITY.read_text()
