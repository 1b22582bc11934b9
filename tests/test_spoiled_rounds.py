"""Uploads that are refused or spoil a round: their clients are missing, and the round goes on."""

from typing import Any

import numpy as np
import pytest

import fedsift
from fedsift import config, runs
from fedsift.codecs import WireError
from fedsift.engines import choose_engine
from fedsift.engines.sequential import SequentialEngine
from fedsift.federation import Federation, NothingUsable, Useless
from fedsift.federation.server_half import describe_problem
from fedsift.memory import is_empty
from fedsift.turns import run_turn
from fedsift.types import UserError
from tests.helpers.federations import RECIPE, a_federation, equal, run_rounds
from tests.helpers.runs import lines

ENGINE = SequentialEngine()
SMALL: dict[str, Any] = {"local": RECIPE, "distill": RECIPE}


def lying(algorithm, clients, lie):
    """The algorithm, where what these clients upload is changed on its way."""
    honest = algorithm.client_turn

    def client_turn(client, memory, download, r):
        memory, upload = yield from honest(client, memory, download, r)
        return memory, lie(upload) if client.id in clients else upload

    object.__setattr__(algorithm, "client_turn", client_turn)
    return algorithm


def poisoned(algorithm, clients, poison):
    """The algorithm, where a decoder lets these clients' poison pass."""
    honest = algorithm.check_upload

    def check_upload(server, client, upload, r):
        found = honest(server, client, upload, r)
        return poison(found) if client in clients else found

    object.__setattr__(algorithm, "check_upload", check_upload)
    return algorithm


def cut(upload):
    return upload[: len(upload) // 2]


def huge(found):
    """Weights of 1e20: finite, but no network with them can predict."""
    weights, samples = found
    return {name: value * 0 + 1e20 for name, value in weights.items()}, samples


def first_round_without(algorithm, left_out):
    """Bit for bit, what a round is in which some clients never took their turn."""
    federation = a_federation(algorithm, cohort=5)
    state, r = federation.start(), federation.round(0)
    cohort = [client for client in federation.draw_cohort(r) if client.id not in left_out]
    downloads = algorithm.prepare_downloads(state.server, cohort, r)
    turns = [algorithm.client_turn(c, federation._no_memory(), downloads[c.id], r) for c in cohort]
    outcomes = [run_turn(turn, ENGINE) for turn in turns]
    checked = [
        (c.id, algorithm.check_upload(state.server, c.id, upload, r))
        for c, (_, upload) in zip(cohort, outcomes, strict=True)
    ]
    server = run_turn(algorithm.server_turn(state.server, checked, r), ENGINE)
    return server, {c.id: memory for c, (memory, _) in zip(cohort, outcomes, strict=True)}


def in_first_cohort(place=1):
    return int(a_federation(fedsift.fas(5), cohort=5).cohort_ids(0)[place])


ALGORITHMS = {
    "fas": lambda: fedsift.fas(5, **SMALL),
    "cfd": lambda: fedsift.cfd(20, **SMALL),
    "fedavg": lambda: fedsift.fedavg(local=RECIPE),
    "fd-jeong": lambda: fedsift.fd_jeong(local=RECIPE),
    "mix2fld": lambda: fedsift.mix2fld(**SMALL),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_refused_upload_is_a_turn_that_never_happened(name):
    liar = in_first_cohort()
    algorithm = lying(ALGORITHMS[name](), [liar], cut)
    (record,) = run_rounds(a_federation(algorithm, cohort=5), 1, ENGINE)
    server, memories = first_round_without(ALGORITHMS[name](), [liar])
    assert equal(record.state.server.students, server.students)
    assert equal(record.state.server.memory, server.memory)
    assert record.state.memories.keys() == {
        id for id, memory in memories.items() if not is_empty(memory)
    }
    assert record.bytes.missing.keys() == {liar}
    assert record.bytes.missing[liar].startswith("its message is refused: ")
    assert len(record.bytes.up) == 4 and len(record.bytes.down) == 5
    assert liar not in record.bytes.up


def test_gossip_goes_on_where_a_message_is_refused():
    """A neighbour without mail keeps its own estimate for that share; all of it stays finite."""
    liar = 2
    system = lying(fedsift.gossip(6, graph="ring", **SMALL), [liar], cut)
    records = run_rounds(a_federation(system, cohort=6), 3, ENGINE)
    for record in records:
        assert record.bytes.missing.keys() == {liar}
        assert not any(edge.startswith(f"{liar}>") for edge in record.bytes.edges)
        assert record.bytes.uplink == record.bytes.downlink
    size = records[0].bytes.edges["0>1"]
    assert records[0].bytes.broadcast == 5 * size and records[0].bytes.down[1] == size


def test_a_round_in_which_nothing_is_usable_says_why():
    algorithm = lying(fedsift.fas(5, **SMALL), range(6), cut)
    with pytest.raises(NothingUsable, match=r"round 0 has no upload that can be used: client \d:"):
        run_rounds(a_federation(algorithm), 1, ENGINE)


def test_many_reasons_are_cut_short():
    reasons = dict.fromkeys(range(9), "its message is refused: no")
    assert str(NothingUsable(3, reasons)).count("client") == 5
    assert "; and 4 more; the state before it is kept" in str(NothingUsable(3, reasons))


def test_what_a_servers_turn_quotes_of_an_upload_stays_one_line():
    told = describe_problem(ValueError("a\x1b[31m\u202eb\nc"))
    assert told == "the server's turn fails: ValueError: a [31m b"
    assert len(describe_problem(ValueError("x" * 1000))) == 300


def test_python_users_are_warned_of_a_refused_upload():
    task = a_federation(fedsift.fas(5)).task
    clients = fedsift.make_clients(task.private, 6, model="mlp")
    algorithm = lying(fedsift.fas(5, **SMALL), [2], cut)
    with pytest.warns(UserWarning, match="round 0 is without client 2: its message is refused"):
        list(fedsift.federate(algorithm, clients, task, rounds=1, cohort=6))


# --- rounds whose students are of no use ---


def counted(algorithm):
    """The algorithm and how often its server takes a turn."""
    turns, honest = [], algorithm.server_turn

    def server_turn(server, uploads, r):
        turns.append(r.number)
        return honest(server, uploads, r)

    object.__setattr__(algorithm, "server_turn", server_turn)
    return algorithm, turns


def test_huge_finite_weights_are_found_and_left_out():
    """One such upload was saved, and no later round could be run (DEPLOYMENT, D3)."""
    liar = in_first_cohort()
    algorithm = poisoned(fedsift.fedavg(local=RECIPE), [liar], huge)
    records = run_rounds(a_federation(algorithm, cohort=5), 2, ENGINE)
    server, _ = first_round_without(fedsift.fedavg(local=RECIPE), [liar])
    assert equal(records[0].state.server.students, server.students)
    assert records[0].bytes.missing == {
        liar: "its upload is left out: with it the outputs of model mlp are not finite"
    }
    assert liar not in records[0].bytes.up
    assert records[1].accuracy > 0.5


def test_feddf_leaves_out_what_makes_its_teacher_useless():
    liar = in_first_cohort(0)
    algorithm = poisoned(fedsift.feddf(**SMALL), [liar], huge)
    (record,) = run_rounds(a_federation(algorithm, cohort=5), 1, ENGINE)
    assert record.bytes.missing.keys() == {liar}
    server, _ = first_round_without(fedsift.feddf(**SMALL), [liar])
    assert equal(record.state.server.students, server.students)


def test_two_liars_are_both_left_out():
    liars = {in_first_cohort(0), in_first_cohort(3)}
    algorithm = poisoned(fedsift.fedavg(local=RECIPE), liars, huge)
    (record,) = run_rounds(a_federation(algorithm, cohort=5), 1, ENGINE)
    assert record.bytes.missing.keys() == liars


def test_two_uploads_that_spoil_a_round_only_together_are_both_left_out():
    liars = {in_first_cohort(0), in_first_cohort(3)}
    algorithm = fedsift.fedavg(local=RECIPE)
    honest = algorithm.server_turn

    def server_turn(server, uploads, r):
        heard = dict(uploads)
        if liars <= heard.keys():
            raise ZeroDivisionError("their sum is 0")
        return (yield from honest(server, heard.items(), r))

    object.__setattr__(algorithm, "server_turn", server_turn)
    (record,) = run_rounds(a_federation(algorithm, cohort=5), 1, ENGINE)
    assert record.bytes.missing.keys() == liars
    assert "the server's turn fails: ZeroDivisionError" in record.bytes.missing[min(liars)]
    server, _ = first_round_without(fedsift.fedavg(local=RECIPE), liars)
    assert equal(record.state.server.students, server.students)


def test_an_upload_that_makes_the_server_stumble_is_left_out():
    liar = in_first_cohort()
    algorithm = poisoned(fedsift.fedavg(local=RECIPE), [liar], lambda found: ({}, "many"))
    (record,) = run_rounds(a_federation(algorithm, cohort=5), 1, ENGINE)
    assert "the server's turn fails: TypeError" in record.bytes.missing[liar]


def test_an_honest_round_takes_one_turn_of_the_server():
    algorithm, turns = counted(fedsift.fas(5, **SMALL))
    run_rounds(a_federation(algorithm), 2, ENGINE)
    assert turns == [0, 1]


@pytest.mark.parametrize("algorithm", [fedsift.fas, fedsift.ds_fl])
def test_a_server_that_diverges_by_itself_blames_nobody(algorithm):
    wild = fedsift.Recipe(epochs=2, batch=4, lr=1e30, optimizer="sgd")
    system, turns = counted(algorithm(5, local=RECIPE, distill=wild))
    with pytest.raises(UserError, match=r"lower distill\.lr") as error:
        run_rounds(a_federation(system, cohort=5), 1, ENGINE)
    assert "client" not in str(error.value)
    assert len(turns) <= 7


def test_when_most_are_huge_the_error_leaves_the_last_state():
    algorithm = poisoned(fedsift.fedavg(local=RECIPE), range(4), huge)
    federation = a_federation(algorithm, cohort=6)
    state = federation.start()
    before = {n: w.clone() for n, w in state.server.students["mlp"].items()}
    with pytest.raises(Useless, match="the outputs of model mlp are not finite after the server"):
        run_turn(federation.round_turn(state), ENGINE)
    assert equal(state.server.students["mlp"], before)


def test_held_out_samples_must_be_predicted_too():
    """Weights may be fine on the public set and not beyond it."""
    federation = a_federation(fedsift.fedavg(local=RECIPE))
    held_out = federation.task.held_out.samples

    class Blind(SequentialEngine):
        def run(self, jobs):
            answers = super().run(jobs)
            for job, answer in zip(jobs, answers, strict=True):
                if job.__class__.__name__ == "Predict" and job.samples is held_out:
                    answer[-1, 0] = np.inf
            return answers

    with pytest.raises(Useless, match="the outputs of model mlp are not finite"):
        run_rounds(federation, 1, Blind())


# --- in run folders ---


def begin(folder, algorithm="fedavg"):
    text = f"algorithm={algorithm} rounds=3 clients=5 cohort=5 data.private=50 data.public=30"
    settings = [*text.split(), "local.epochs=1", "model=mlp", "device=cpu"]
    experiment = config.read_experiment("digits-fas", settings)
    return runs.begin_run(folder, experiment, resume=folder.exists())


def test_a_run_with_a_refused_upload_is_resumed_bit_for_bit(tmp_path, monkeypatch):
    honest = fedsift.FedAvg.check_upload

    def check_upload(self, server, client, upload, r):
        if (r.number, client) == (1, 3):
            raise WireError("it is not to my taste")
        return honest(self, server, client, upload, r)

    monkeypatch.setattr(fedsift.FedAvg, "check_upload", check_upload)
    engine, _ = choose_engine()
    whole = begin(tmp_path / "whole")
    list(runs.Group.of([whole]).run_or_raise(engine))
    (part,) = [begin(tmp_path / "part")]
    next(iter(runs.Group.of([part]).run_or_raise(engine)))
    part.lock.release()
    resumed = begin(tmp_path / "part")
    list(runs.Group.of([resumed]).run_or_raise(engine))
    assert equal(whole.state.server.students, resumed.state.server.students)
    for folder in ("whole", "part"):
        metrics, ledger = (lines(tmp_path / folder / n) for n in (runs.METRICS, runs.LEDGER))
        why = {"3": "its message is refused: it is not to my taste"}
        assert [row.get("missing") for row in metrics] == [None, why, None]
        assert [row.get("missing") for row in ledger] == [None, why, None]


def test_a_round_that_cannot_be_used_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    honest = fedsift.FedAvg.check_upload

    def check_upload(self, server, client, upload, r):
        found = honest(self, server, client, upload, r)
        return huge(found) if r.number == 1 and client < 4 else found

    run = begin(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(fedsift.FedAvg, "check_upload", check_upload)
        group = runs.Group.of([run])
        outcomes = [outcome for _, outcome in group.run(choose_engine()[0])]
    assert isinstance(outcomes[-1], Useless) and len(outcomes) == 2
    assert len(lines(run.folder / runs.METRICS)) == 1
    resumed = begin(tmp_path / "run")
    assert resumed.state.round == 1
    list(runs.Group.of([resumed]).run_or_raise(choose_engine()[0]))
    assert resumed.finished


def test_nothing_but_the_round_is_lost(monkeypatch):
    """What is not an upload's doing, such as a full disk, is not laid at anybody's door."""

    def full(self, server, uploads, r):
        raise OSError("disk full")

    monkeypatch.setattr(fedsift.FedAvg, "server_turn", full)
    with pytest.raises(OSError, match="disk full"):
        run_rounds(a_federation(fedsift.fedavg(local=RECIPE)), 1, ENGINE)
    assert isinstance(a_federation(fedsift.fedavg()), Federation)
