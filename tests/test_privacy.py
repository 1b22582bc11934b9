"""What uploads tell about private labels: the attacks by hand, and on a federation."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from fedsift import config, privacy
from fedsift.engines import choose_engine
from fedsift.federation import Federation
from fedsift.privacy import divergence, doubt, guess_shares
from fedsift.samplers import OwnClasses, low_entropy, mixed
from fedsift.turns import run_turn
from fedsift.types import SoftLabels, UserError
from tests.helpers.cli import complaint, done
from tests.helpers.runs import KINDS

TRUTH = np.array([0, 0, 1, 1])  # classes of four public samples


def labels(index, *rows):
    return SoftLabels(np.array(index), np.array(rows, np.float32))


def undone(guess):
    """Without the share of doubt."""
    return (guess - privacy.DOUBT / len(guess)) / (1 - privacy.DOUBT)


def test_the_divergence_by_hand():
    even, one, most = np.array([0.5, 0.5]), np.array([1.0, 0.0]), np.array([0.75, 0.25])
    assert divergence(even, even) == 0
    assert divergence(one, even) == pytest.approx(math.log(2))
    assert divergence(even, most) == pytest.approx(0.5 * math.log(4 / 3))


def test_a_guess_never_rules_a_class_out_and_is_even_without_evidence():
    assert doubt(np.array([3.0, 0.0])) == pytest.approx([0.975, 0.025])
    assert doubt(np.zeros(4)) == pytest.approx([0.25] * 4)


def test_the_mean_of_soft_labels_is_held_against_that_of_all_clients():
    # Client 0 says .6, .4 in the mean and client 1 .2, .8; all of them .4, .6.
    # .6/.4 : .4/.6 = 9 : 4, and .2/.4 : .8/.6 = 3 : 8.
    uploads = {
        0: [labels([0, 1], [0.8, 0.2], [0.4, 0.6])],
        1: [labels([0], [0.1, 0.9]), labels([3], [0.3, 0.7])],
    }
    found = guess_shares("mean", uploads, low_entropy, TRUTH, 2)
    assert undone(found[0]) == pytest.approx([9 / 13, 4 / 13])
    assert undone(found[1]) == pytest.approx([3 / 11, 8 / 11])


def test_counts_of_classes_undo_the_root_of_quotas():
    # Quotas by square root: two rows of class 0 and one of class 1 stand for 4 : 1 samples.
    uploads = {0: [labels([0, 1, 2], [0.9, 0.1], [0.8, 0.2], [0.2, 0.8])]}
    assert undone(guess_shares("counts", uploads, OwnClasses(0.5), TRUTH, 2)[0]) == pytest.approx(
        [0.8, 0.2]
    )
    plain = guess_shares("counts", uploads, low_entropy, TRUTH, 2)[0]
    assert undone(plain) == pytest.approx([2 / 3, 1 / 3])
    even = guess_shares("counts", uploads, OwnClasses(0.0), TRUTH, 2)[0]  # nothing to undo
    assert undone(even) == pytest.approx([2 / 3, 1 / 3])


def test_of_a_mixed_choice_the_sure_half_is_counted_unless_labels_are_hard():
    rows = [0.6, 0.4], [0.01, 0.99], [0.55, 0.45], [0.02, 0.98]
    sure = guess_shares("counts", {0: [labels([0, 1, 2, 3], *rows)]}, mixed, TRUTH, 2)[0]
    assert undone(sure) == pytest.approx([0, 1])
    hard = [1, 0], [0, 1], [1, 0], [0, 1]
    all_of_them = guess_shares("counts", {0: [labels([0, 1, 2, 3], *hard)]}, mixed, TRUTH, 2)[0]
    assert undone(all_of_them) == pytest.approx([0.5, 0.5])


def test_picks_are_held_against_what_there_was_to_choose():
    # Of classes 0, 0, 0, 1 two samples were chosen, one of each class: 1/3 : 1.
    uploads = {0: [labels([0, 3], [0.5, 0.5], [0.5, 0.5])]}
    found = guess_shares("picks", uploads, low_entropy, np.array([0, 0, 0, 1]), 2)[0]
    assert undone(found) == pytest.approx([0.25, 0.75])


# --- on a federation ---

SMALL = ["clients=6", "cohort=4", "data.private=240", "data.public=120", "model=mlp", "device=cpu"]


def a_federation(*settings: str) -> Federation:
    return config.build_federation(config.read_experiment("digits-fas", [*SMALL, *settings]))


def test_listening_changes_nothing_and_hears_every_upload():
    federation, engine = a_federation("local.epochs=2", "distill.epochs=1"), choose_engine()[0]
    (heard,) = privacy.overhear([federation], 2, engine)
    state, sizes = federation.start(), list[dict[int, int]]()
    for _ in range(2):
        record = run_turn(federation.round_turn(state), engine)
        state, sizes = record.state, [*sizes, record.bytes.up]
    assert sum(map(len, heard.labels.values())) == 8
    assert heard.bytes == {
        id: [row[id] for row in sizes if id in row] for id in sorted({*sizes[0], *sizes[1]})
    }


def test_uploads_tell_the_label_shares_of_a_skewed_federation():
    federation = a_federation("alpha=0.1", "local.epochs=20", "distill.epochs=5")
    found = privacy.score(federation, privacy.overhear([federation], 3, choose_engine()[0])[0])
    assert found["even"]["kl"] > 1
    assert found["mean"]["kl"] < 0.6 * found["even"]["kl"]
    assert found["counts"]["kl"] < 0.4 * found["even"]["kl"]
    assert found["counts"]["top"] >= 0.8
    assert found["even"]["kl"] >= found["usual"]["kl"]


def test_where_nobody_chooses_picks_tell_nothing():
    federation = a_federation("alpha=0.1", "sampler=none", "local.epochs=2")
    found = privacy.score(federation, privacy.overhear([federation], 2, choose_engine()[0])[0])
    assert found["picks"]["kl"] > 0.9 * found["even"]["kl"]
    assert found["bytes"] == 0  # all uploads have one size


def test_weights_are_not_audited():
    federation = a_federation("algorithm=fedavg")
    with pytest.raises(UserError, match="upload no soft labels; audit fd or fas"):
        privacy.overhear([federation], 1, choose_engine()[0])


def test_unknown_public_classes_are_one_sentence():
    federation = a_federation("local.epochs=1")
    blind = replace(federation, task=replace(federation.task, public_labels=None))
    with pytest.raises(UserError, match="classes of the public samples are not known"):
        privacy.score(blind, privacy.Overheard())


def test_the_command_prints_a_row_per_setting_and_writes_all_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*KINDS["digits-fas"], "rounds=1", "sweep.sampler=[none,mixed]", "--seeds", "2"]
    told = done("audit", "digits-fas", *words, "-o", "out.json").stdout
    assert "sampler=none" in told and "sampler=mixed" in told
    report = json.loads((tmp_path / "out.json").read_text())
    assert [len(row["by_seed"]) for row in report["rows"]] == [2, 2]
    assert report["axes"] == {"algorithm.sampler": ["none", "mixed"]} and report["seeds"] == 2
    row = report["rows"][0]
    mean = sum(seed["mean"]["kl"] for seed in row["by_seed"]) / 2
    assert row["mean"]["kl"] == pytest.approx(mean, abs=1e-4)
    assert "give --seeds" in complaint("audit", "digits-fas", "seed=3")
    assert "rounds cannot be swept" in complaint("audit", "digits-fas", "sweep.rounds=[1,2]")
