"""Attacks whose point is to exceed what a server accepts: refused, named, and the round goes on."""

from dataclasses import replace
from typing import Any

import pytest

import fedsift
from fedsift.attacks import read_threat
from fedsift.engines.sequential import SequentialEngine
from tests.helpers.federations import RECIPE, a_federation, run_rounds, same_records

ENGINE = SequentialEngine("cpu", threads=1)
BOTH: dict[str, Any] = {"local": RECIPE, "distill": RECIPE}


def attacked(algorithm: Any, text: str, model: str = "mlp") -> Any:
    return replace(a_federation(algorithm, model, cohort=6), threat=read_threat(text, 0.34))


@pytest.mark.parametrize("make", [fedsift.fd, fedsift.fas, fedsift.cfd])
def test_more_labels_than_the_budget_make_the_client_missing(make):
    federation = attacked(make(8, **BOTH), "over-budget")
    for record in run_rounds(federation, 2, ENGINE):
        assert set(record.bytes.missing) == set(record.hostile) == federation.hostile
        for reason in record.bytes.missing.values():
            assert "40 soft labels" in reason or "at most 219 can be right here" in reason


def test_a_refused_client_costs_no_more_than_its_absence():
    """The students are those of a round in which the hostile clients did not answer at all."""
    federation = attacked(fedsift.fas(8, **BOTH), "over-budget")
    honest = a_federation(fedsift.fas(8, **BOTH), cohort=6)
    (record,) = run_rounds(federation, 1, ENGINE)
    algorithm = honest.algorithm
    check = algorithm.check_upload

    def deaf(server, client, upload, r):
        if client in federation.hostile:
            raise fedsift.WireError("not heard")
        return check(server, client, upload, r)

    object.__setattr__(algorithm, "check_upload", deaf)
    (without,) = run_rounds(honest, 1, ENGINE)
    assert record.accuracies == without.accuracies


@pytest.mark.parametrize(
    ("text", "model"), [("huge(1e30)", "mlp"), ("nan-variance", "resnet8(width=0.25)")]
)
def test_weights_that_spoil_the_average_are_left_out(text, model):
    task = fedsift.split(fedsift.load_dataset("digits"), private=120, public=60, test=60)
    clients = fedsift.make_clients(task.private, 3, model=model)
    quick = fedsift.Recipe(epochs=1)
    federation = fedsift.Federation(
        fedsift.fedavg(local=quick), clients, task, 3, 0, None, read_threat(text, 0.34)
    )
    (record,) = run_rounds(federation, 1, ENGINE)
    assert set(record.bytes.missing) == federation.hostile
    assert 0 <= record.accuracy <= 1


def test_a_resume_after_refusals_is_the_same_bit_for_bit():
    whole = run_rounds(attacked(fedsift.cfd(8, **BOTH), "over-budget"), 3, ENGINE)
    rest = run_rounds(attacked(fedsift.cfd(8, **BOTH), "over-budget"), 3, ENGINE, whole[0].state)
    assert same_records(whole[1:], rest)
