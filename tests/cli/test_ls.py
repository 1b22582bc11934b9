"""`fedsift ls`: every kind and every name."""

import json
import re

import pytest

from fedsift import config
from tests.helpers.cli import complaint, done
from tests.helpers.runs import KINDS

PARTS = {
    "datasets": [
        *("digits", "breast-cancer", "clinics", "messages"),
        *("cifar10", "cifar100", "stl10", "mnist", "fashion-mnist", "svhn"),
        *("spam-assassin", "japanese-vowels"),
        *("csv:FILE", "npz:FILE", "folder:DIR", "sheet:FILE(32)"),
    ],
    "partitions": ["iid", "dirichlet", "dirichlet-free", "shards", "views", "given"],
    "models": ["mlp", "cnn", "resnet8", "resnet20", "bag", "text-cnn", "series-cnn", "mine:net"],
    "samplers": [
        "none",
        "random",
        "low-entropy",
        "mixed",
        "high-entropy",
        "margin",
        "class-balanced",
    ],
    "codecs": ["float32", "float16"],
    "aggregators": ["mean", "certainty", "era", "enhanced-era"],
    "algorithms": [
        "fd",
        "fas",
        "sift",
        "ds-fl",
        "cfd",
        "fedavg",
        "fedpaq",
        "feddf",
        "fd-jeong",
        "mix2fld",
        "gossip",
    ],
    "graphs": ["ring", "grid", "complete", "regular", "erdos-renyi", "edges", "mine:connect"],
    "attacks": ["random", "fixed", "flipped", "runner-up", "lma", "cpa", "hips", "wrong"],
    "starts": ["simclr", "rotation", "FILE.safetensors", "mine:Pretext"],
    "engines": ["auto", "batched", "sequential", "workers", "ray", "mine:Engine"],
    "presets": [
        "cifar10-fas",
        "cifar10-fd",
        "cifar10-fedavg",
        "cifar10-sift",
        "cifar10-sift-weights",
        "digits-cfd",
        "digits-ds-fl",
        "digits-fas",
        "digits-fas-low-entropy",
        "digits-fas-mixed-models",
        "digits-fas-soft-down",
        "digits-fd",
        "digits-fd-jeong",
        "digits-fedavg",
        "digits-feddf",
        "digits-fedpaq",
        "digits-gossip",
        "digits-mix2fld",
        "digits-sift",
        "hospitals",
        "table-fas",
        "table-sift",
        "text-fas",
        "text-sift",
    ],
}


@pytest.mark.parametrize("kind", PARTS)
def test_ls_of_a_kind_has_a_line_for_each_part_that_says_what_it_is(kind):
    listed = {
        line.split()[0]: " ".join(line.split()[1:]) for line in done("ls", kind).stdout.splitlines()
    }
    assert list(listed)[: len(PARTS[kind])] == PARTS[kind]
    assert [name for name, about in listed.items() if len(about) < 10] == []


def test_ls_shows_all_kinds():
    text = done("ls").stdout
    assert [line[:-1] for line in text.splitlines() if not line.startswith(" ")] == list(PARTS)
    listed = {line.split()[0] for line in text.splitlines() if line.startswith(" ")}
    assert {part for parts in PARTS.values() for part in parts} <= listed


def test_every_name_in_ls_is_taken_where_it_belongs():
    keys = {
        "samplers": "sampler",
        "codecs": "codec",
        "aggregators": "aggregator",
        "algorithms": "algorithm",
    }
    for kind, key in keys.items():
        listed = [line.split()[0] for line in done("ls", kind).stdout.splitlines()]
        assert listed[-1].startswith("mine:")  # how a part of one's own is named
        for name in listed[:-1]:
            preset = "digits-fedavg" if name == "qsgd" else "digits-fas"
            where = "algorithm.down_codec" if name == "updates" else key
            config.build_federation(
                config.read_experiment(preset, [*KINDS["digits-fas"], f"{where}={name}"])
            )


@pytest.mark.parametrize(
    "wrong", ["data.normalise=foo", "algorithm.download=foo", "partition.kind=foo", "sampler=foo"]
)
def test_a_mistake_points_only_at_lists_that_exist(wrong):
    kinds = re.findall(r"fedsift ls (\w+)", complaint("run", "digits-fas", wrong))
    assert [kind for kind in kinds if kind not in PARTS] == []


def test_an_unknown_kind_names_the_nearest():
    assert (
        complaint("ls", "sampler")
        == "error: unknown kind 'sampler'; did you mean 'samplers'? (fedsift ls)\n"
    )


def test_every_part_says_in_a_line_what_it_is():
    parts = json.loads(done("ls", "--json").stdout)
    assert {one["kind"] for one in parts} == set(PARTS)
    faults = [
        one["name"]
        for one in parts
        if not 10 <= len(one["about"]) <= 110 or one["about"] != " ".join(one["about"].split())
    ]
    assert faults == []
    meanings = {one["name"]: one["about"] for one in parts}
    assert meanings["digits"] == "1,797 handwritten digits, 8x8 with 17 grey levels."


def test_every_option_has_a_meaning_a_type_and_a_default_or_is_required():
    options = [
        (f"{part['name']}({option['name']})", option)
        for part in json.loads(done("ls", "--json").stdout)
        for option in part["options"]
    ]
    assert len(options) > 200
    for name, option in options:
        about = option["about"] or ""
        assert 4 < len(about) <= 100 and about == " ".join(about.split()), (name, about)
        assert option["type"] not in ("", "<class 'inspect._empty'>"), name
        if option["required"] or option["default"] is None:  # None, and infinity, are null
            allowed = option["required"] or "None" in option["type"] or option["type"] == "float"
            assert option["default"] is None and allowed, name


@pytest.mark.parametrize(
    ("part", "option", "meaning"),
    [
        ("rotation", "lr", "the largest learning rate, of Adam"),  # of a field with a description
        ("enhanced-era", "inner", "the rule that is sharpened"),  # a comment behind a field
        ("topk", "k", "how many of a row, 1 to 63"),  # a line of a docstring
    ],
)
def test_a_meaning_is_read_wherever_it_stands(part, option, meaning):
    (found,) = [one for one in json.loads(done("ls", "--json").stdout) if one["name"] == part]
    assert {one["name"]: one["about"] for one in found["options"]}[option] == meaning
