"""Audit rows: the list in a download, the answers in an upload, and what they cost."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsift
from fedsift.algorithms.audits import Audits, derive_secret, encode_answers, split_answers
from fedsift.algorithms.soft_labels import ClientMemory, ServerMemory
from fedsift.checkpoints import from_bytes, restore_state, to_bytes
from fedsift.codecs import WireError
from fedsift.engines import choose_engine
from fedsift.federation import Federation
from fedsift.turns import run_turn
from fedsift.types import LabelAnswer, UserError
from tests.helpers import toys

RECIPE = fedsift.Recipe(epochs=1)
RULE = "trust(memory(era(0.1)))"


# --- by hand ---


def test_answers_are_one_number_in_base_c():
    # 3, 0, 7 in base 10 is 307: two bytes, 51 and 1.
    assert encode_answers(np.array([3, 0, 7]), 10) == bytes([51, 1])
    answers, taken, rest = split_answers(bytes([51, 1]) + b"after", 3, 10)
    assert (answers.tolist(), taken, rest) == ([3, 0, 7], bytes([51, 1]), b"after")
    assert len(encode_answers(np.zeros(32, int), 10)) == 14  # 32 log2(10) / 8 = 13.3
    assert encode_answers(np.zeros(0, int), 10) == b""


def test_answers_that_name_no_classes_are_refused():
    with pytest.raises(WireError, match="name no classes"):
        split_answers((1000).to_bytes(2, "little"), 3, 10)
    with pytest.raises(WireError, match="cut short"):
        split_answers(b"\1", 3, 10)


@given(
    classes=st.integers(2, 100),
    answers=st.lists(st.integers(0, 10**6), max_size=64),
    after=st.binary(max_size=5),
)
def test_answers_come_back(classes, answers, after):
    said = np.array(answers, np.int64) % classes
    found, _, rest = split_answers(encode_answers(said, classes) + after, len(said), classes)
    assert (found.tolist(), rest) == (said.tolist(), after)


def a_round(number: int):
    return toys.a_round(number, public=tuple((float(i), 0.0) for i in range(40)))


def test_the_list_costs_a_few_bytes_and_nothing_in_the_first_round():
    rows, audits = np.array([3, 5, 30]), Audits(8)
    # binom(40, 3) = 9,880: two bytes; one for the number, four for the checksum.
    listed = audits.encode_rows(rows, a_round(1))
    assert len(listed) == 7
    found, rest = audits.split_download(listed + b"weights", a_round(1))
    assert (found.tolist(), rest) == ([3, 5, 30], b"weights")
    assert audits.encode_rows(rows, a_round(0)) == b""
    assert Audits().split_download(b"weights", a_round(1))[1] == b"weights"


@pytest.mark.parametrize("place", range(7))
def test_a_damaged_list_is_refused(place):
    listed = bytearray(Audits(8).encode_rows(np.array([3, 5, 30]), a_round(1)))
    listed[place] ^= 1
    with pytest.raises(WireError):
        Audits(8).split_download(bytes(listed), a_round(1))
    with pytest.raises(WireError):  # of another round
        Audits(8).split_download(
            Audits(8).encode_rows(np.array([3, 5, 30]), a_round(1)), a_round(2)
        )


@given(st.binary(max_size=30))
def test_any_list_is_read_or_refused(download):
    try:
        rows, _ = Audits(8).split_download(download, a_round(1))
    except WireError:
        return
    assert len(rows) <= 8


def test_what_does_not_fit_together_is_refused_in_words():
    with pytest.raises(UserError, match="audit=8 needs an aggregator that judges clients"):
        fedsift.fas(10, audit=8)
    with pytest.raises(UserError, match="audit asks about 0 to 64 samples, not 65"):
        fedsift.fas(10, aggregator="trust", audit=65)
    with pytest.raises(UserError, match="not memory or trust"):
        fedsift.fas(10, aggregator="trust", pool=20)
    with pytest.raises(UserError, match="set mode=labels"):
        fedsift.sift(bytes=100, aggregator="trust", audit=8)
    fedsift.sift(bytes=100, mode="labels", aggregator="trust", audit=8)


# --- federations ---


def a_federation(audit: int, **options: Any) -> Federation:
    task = fedsift.split(fedsift.load_dataset("digits"), private=80, public=30, test=50)
    clients = fedsift.make_clients(task.private, 4, model="mlp")
    algorithm = fedsift.fas(
        10, aggregator=RULE, audit=audit, local=RECIPE, distill=RECIPE, **options
    )
    return Federation(algorithm, clients, task, cohort=3, seed=0)


def run(federation: Federation, rounds: int, state: Any = None) -> list[Any]:
    parts = (federation.algorithm, federation.clients, federation.task)
    return list(fedsift.federate(*parts, rounds=rounds, cohort=3, state=state))


@pytest.mark.parametrize("down", ["weights", "soft-labels"])
def test_audits_survive_a_resume_and_their_bytes_are_counted(down):
    federation = a_federation(8, download=down)
    straight = run(federation, 3)
    stored = restore_state(from_bytes(to_bytes(straight[0].state)), federation)
    resumed = run(federation, 3, stored)
    assert to_bytes(resumed[-1].state) == to_bytes(straight[-1].state)
    # 8 of 30: binom = 5,852,925, three bytes, and five around them; 8 classes of 10: four bytes.
    plain = run(a_federation(0, download=down), 2)
    assert straight[0].bytes.up == plain[0].bytes.up
    if down == "weights":
        assert straight[0].bytes.down == plain[0].bytes.down
        assert straight[1].bytes.down == {id: size + 8 for id, size in plain[1].bytes.down.items()}
        assert straight[1].bytes.up == {id: size + 4 for id, size in plain[1].bytes.up.items()}


def test_answers_reach_the_memory():
    record = run(a_federation(8), 2)[-1]
    counted = [
        one["counts"]["compared"]
        for one in record.state.server.memory.aggregator["by_client"].values()
    ]
    assert sum(n[3] for n in counted) > 0  # answers
    assert sum(n[2] for n in counted) > 0  # audited rows


def test_what_is_asked_depends_on_the_secret_alone():
    federation = a_federation(8)
    server = run(federation, 1)[0].state.server
    algorithm: Any = federation.algorithm
    r = federation.round(1)
    assert isinstance(server.memory, ServerMemory)
    assert server.memory.secret == derive_secret(0)
    rows = algorithm.audits.choose_rows(algorithm.aggregate, server, r)
    other = algorithm.set_secret(server, b"another")
    assert rows.tolist() != algorithm.audits.choose_rows(algorithm.aggregate, other, r).tolist()
    same = replace(other, memory=replace(other.memory, secret=derive_secret(0)))
    assert rows.tolist() == algorithm.audits.choose_rows(algorithm.aggregate, same, r).tolist()
    plain: Any = a_federation(0).algorithm
    assert plain.set_secret(server, b"another") is server


def test_an_upload_without_its_answers_is_refused():
    federation = a_federation(8)
    server = run(federation, 1)[0].state.server
    algorithm: Any = federation.algorithm
    r = federation.round(1)
    client = federation.draw_cohort(r)[0]
    download = algorithm.prepare_downloads(server, [client], r)[client.id]
    turn = algorithm.client_turn(client, algorithm.client_memory(), download, r)
    _, upload = run_turn(turn, choose_engine()[0])
    checked = algorithm.check_upload(server, client.id, upload, r)
    assert len(checked.answers.classes) == 8
    for bad in (upload[4:], bytes(4) + upload[4:], b"\xff" * 4 + upload[4:]):
        with pytest.raises(WireError):
            algorithm.check_upload(server, client.id, bad, r)


def test_a_client_that_lies_to_an_audit_sends_other_answers():
    r = replace(toys.a_round(1), public=toys.samples([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]))
    probs = np.array([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]])
    algorithm = fedsift.fas(2, aggregator="trust", audit=2)
    own = LabelAnswer(probs, probs, 2, memory=ClientMemory(), asked=np.array([0, 2]))
    _, honest = algorithm.encode_answer(toys.client(), own, r)
    _, lies = algorithm.encode_answer(toys.client(), replace(own, answers=np.array([0, 1, 1])), r)
    # Two answers of two classes are one byte, the first one the higher digit: 1 0 and 0 1.
    assert (honest[0], lies[0]) == (2, 1)
