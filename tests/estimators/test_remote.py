"""A black box may answer anything, or nothing; the asker stays whole."""

import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift.estimators import remote
from fedsift.estimators.remote import Remote
from fedsift.types import ModelFailure, UserError
from tests.helpers.black_box import answer_evenly, say, serving

ROWS = np.array([[1.5, -2.0], [0.25, 3.0], [9.0, 1.0]])


def test_rows_are_posted_and_probabilities_are_read():
    def answer(box, rows):
        table = [[row[0] / 10, 1 - row[0] / 10] for row in rows]
        say(box, json.dumps({"probabilities": table}).encode())

    with serving(answer) as (address, asked):
        found = Remote(address).predict(ROWS, 2)
    assert found.tolist() == [[0.15, 0.85], [0.025, 0.975], [0.9, pytest.approx(0.1)]]
    assert asked == [ROWS.tolist()]


def test_many_rows_are_posted_in_pieces(monkeypatch):
    monkeypatch.setattr(remote, "VALUES_PER_POST", 4)  # two rows of two
    with serving(answer_evenly(3)) as (address, asked):
        assert Remote(address).predict(ROWS, 3).tolist() == [[0.5, 0.25, 0.25]] * 3
    assert [len(rows) for rows in asked] == [2, 1]


def test_a_plain_list_will_do():
    assert remote.read_answer(b"[[0.25, 0.75]]", 1, 2).tolist() == [[0.25, 0.75]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>500</html>", "no JSON but HTML"),
        (b"", "no JSON"),
        (b'{"error": "busy"}', "without a table of numbers|it gives"),
        (b"[[1, 2], [3]]", "without a table of numbers"),
        (b'[["a", "b"]]', "without a table of numbers"),
        (b"[[0.5, 0.6]]", "rows that do not sum to 1"),
        (b"[[NaN, 1]]", "not finite"),
        (b"[[1.5, -0.5]]", "below 0"),
        (b"[[0.5, 0.5], [0.5, 0.5]]", r"it gives \(2, 2\) for 1 samples"),
        (b"[" * 100_000, "no JSON"),
        (b"[[1e999, 0]]", "not finite"),
    ],
)
def test_what_is_no_table_of_probabilities_is_a_failure(content, said):
    with pytest.raises(ModelFailure, match=said):
        remote.read_answer(content, 1, 2)


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.floats() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)
    ).map(lambda told: json.dumps(told).encode())
)
def test_any_answer_is_a_table_or_a_failure(content):
    try:
        found = remote.read_answer(content, 2, 2)
    except ModelFailure:
        return
    assert found.shape == (2, 2) and np.allclose(found.sum(1), 1)


def test_an_answer_longer_than_any_honest_one_is_not_read_to_its_end():
    with (
        serving(lambda box, rows: say(box, b" " * 1_000_000)) as (address, _),
        pytest.raises(ModelFailure, match="more than 10240 bytes"),
    ):
        Remote(address, retries=0).predict(ROWS, 2)


def hang(box, rows):
    time.sleep(20)


def trickle(box, rows):
    box.send_response(200)
    box.send_header("Content-Length", "400")
    box.end_headers()
    for _ in range(300):
        box.wfile.write(b" ")
        time.sleep(0.1)


def trickle_headers(box, rows):
    for _ in range(300):
        box.wfile.write(b"H")
        time.sleep(0.1)


def test_a_box_that_hangs_is_waited_for_once():
    calls = []

    def note_call(box, rows):
        calls.append(len(rows))
        hang(box, rows)

    with serving(note_call) as (address, _):
        with pytest.raises(ModelFailure, match=r"no answer in 0\.2 s"):
            Remote(address, timeout=0.2, retries=2).predict(ROWS, 2)
        assert len(calls) == 1


@pytest.mark.parametrize("answer", [hang, trickle, trickle_headers])
def test_a_box_that_takes_its_time_is_given_up(answer):
    ended = []

    def note_end(box, rows):
        answer(box, rows)
        ended.append(answer)

    with serving(note_end) as (address, _):
        with pytest.raises(ModelFailure, match=r"cannot be asked \(no answer in 0.5 s\)"):
            Remote(address, timeout=0.5, retries=0).predict(ROWS, 2)
        assert not ended


def test_a_redirect_is_not_followed():
    with serving(answer_evenly(2)) as (other, asked):
        moved = lambda box, rows: say(box, b"", 307, Location=other)  # noqa: E731
        with (
            serving(moved) as (address, _),
            pytest.raises(ModelFailure, match="status 307; redirects are not followed"),
        ):
            Remote(address, retries=0).predict(ROWS, 2)
    assert asked == []


def test_a_box_that_fails_is_asked_again():
    told = iter([503, 500])

    def answer(box, rows):
        status = next(told, 200)
        say(box, b"") if status == 200 else say(box, b"", status)
        told_last.append(status)

    told_last: list[int] = []
    with serving(answer) as (address, asked), pytest.raises(ModelFailure, match="no JSON"):
        Remote(address, retries=2).predict(ROWS, 2)
    assert told_last == [503, 500, 200] and len(asked) == 3


def test_nobody_there_is_a_failure():
    with serving(answer_evenly(2)) as (address, _):
        pass
    with pytest.raises(ModelFailure, match=r"cannot be asked \(ConnectionRefusedError\)"):
        Remote(address, retries=0).predict(ROWS, 2)


@pytest.mark.parametrize(
    "address", ["ftp://a/b", "http://", "127.0.0.1:90", "http://a:b/", "http://a/ b", "file:///x"]
)
def test_an_address_that_is_none_is_told(address):
    with pytest.raises(UserError, match="write http://HOST:PORT/PATH"):
        Remote(address)


def test_a_password_in_an_address_is_refused():
    with pytest.raises(UserError, match="password"):
        Remote("http://me:secret@127.0.0.1/")
