"""What both ends know is enforced: samples, counts, sizes of weights, ranges of inputs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsift
from fedsift import runs, seeding
from fedsift.algorithms import weight_bounds
from fedsift.algorithms.averages import (
    MOST,
    Averaging,
    cap_counts,
    join_weights,
    measure_update,
    shorten_update,
)
from fedsift.algorithms.weights import ServerMemory
from fedsift.attacks import read_threat
from fedsift.checkpoints import restore_state
from fedsift.codecs import CODECS, WEIGHT_CODECS, Qsgd, Updates, WireError
from fedsift.codecs.mixtures import MixtureCodec, Mixtures
from fedsift.engines.sequential import SequentialEngine
from fedsift.models import initial_state
from fedsift.turns import run_turn
from fedsift.types import Model, Server, SoftLabels, UserError
from tests.helpers import toys
from tests.helpers.federations import RECIPE, a_federation, equal, run_rounds
from tests.helpers.toys import weights

ENGINE = SequentialEngine()
W32 = WEIGHT_CODECS["float32"]

# --- samples that both ends draw ---


def upload_on(index, r, client=0):
    rows = np.full((len(index), 2), 0.5, np.float32)
    return CODECS["float32"].encode(SoftLabels(np.array(index), rows), r.link(client))


def drawn(r, size, *names):
    return seeding.subset(r.rng("pick", *names), len(r.public), size)


@pytest.mark.parametrize(("sampler", "names"), [("none", ()), ("random", (3,))])
def test_drawn_samples_are_the_only_ones_taken(sampler, names):
    """A set code of other samples was taken (DEPLOYMENT, D1)."""
    r = toys.a_round(1, public=[[float(i), 0.0] for i in range(9)])
    fd = fedsift.fd(3, sampler=sampler)
    server, own = fd.start(r), drawn(r, 3, *names)
    assert fd.check_upload(server, 3, upload_on(own, r, 3), r).labels.index.tolist() == own.tolist()
    others = np.setdiff1d(np.arange(9), own)[:3]
    for wrong in (others, drawn(r, 3, *(() if names else (3,))), drawn(r, 3, 4)):
        with pytest.raises(WireError, match="other samples than those of this round's draw"):
            fd.check_upload(server, 3, upload_on(wrong, r, 3), r)


def test_as_many_rows_as_the_budget_where_both_ends_draw_them():
    r = toys.a_round(1, public=[[float(i), 0.0] for i in range(9)])
    fd, short = fedsift.fd(3), fedsift.fd(3, bytes=60)
    for rows in (1, 2, 4, 9):
        with pytest.raises(WireError, match=f"{rows} soft labels where the budget is 3"):
            fd.check_upload(fd.start(r), 0, upload_on(drawn(r, rows), r), r)
    found = short.check_upload(short.start(r), 0, upload_on(drawn(r, 2), r), r)
    assert len(found.labels) == 2


@pytest.mark.parametrize("sampler", ["mixed", "low-entropy", "own-classes"])
def test_a_client_that_chooses_is_held_to_the_budget(sampler):
    """Confident rows on the whole public set took FAS from .82 to .24 (DEPLOYMENT, D1)."""
    r = toys.a_round(1, public=[[float(i), 0.0] for i in range(9)])
    fd = fedsift.fd(3, sampler=sampler)
    assert len(fd.check_upload(fd.start(r), 0, upload_on([1, 5], r), r).labels) == 2
    for index in ([], [0, 2, 4, 6], range(9)):
        with pytest.raises(WireError, match=f"{len(index)} soft labels where the budget is 3"):
            fd.check_upload(fd.start(r), 0, upload_on(index, r), r)


@pytest.mark.parametrize("sampler", ["none", "random"])
def test_honest_uploads_of_drawn_samples_pass_in_a_whole_run(sampler):
    algorithm = fedsift.fd(40, sampler=sampler, local=RECIPE, distill=RECIPE, bytes=400)
    records = run_rounds(a_federation(algorithm), 2, ENGINE)
    assert not any(record.bytes.missing for record in records)


# --- claimed samples ---


def average(uploads, base=0.0, **options):
    found, claimed = Averaging(**options).average(uploads, weights(base))
    return found["1.weight"][0, 0].item(), claimed


def lot(*values_and_counts):
    return [(id, (weights(v), n)) for id, (v, n) in enumerate(values_and_counts)]


def test_no_client_counts_more_than_three_lower_medians():
    """2^32 - 1 of 2^32 + 119 was the whole average; now 120 of 240."""
    assert cap_counts({0: 40, 1: 2**32 - 1, 2: 40, 3: 40}) == {0: 40, 1: 120, 2: 40, 3: 40}
    found, claimed = average(lot((0, 40), (14, 2**32 - 1), (0, 40), (0, 40)))
    assert found == 7.0  # 14 x 120 / 240
    assert claimed[1] == 2**32 - 1


@pytest.mark.parametrize("make", [fedsift.fedavg, fedsift.fedpaq, fedsift.feddf])
def test_no_system_believes_a_claim_of_all_samples(make):
    """Such an upload was the average (DEPLOYMENT, D2); now it is 14 x 120 / 240 in all of them."""
    r, system = toys.a_round(), make()
    server = Server({"linear": weights(0)}, ServerMemory())
    turn = system.server_turn(server, lot((0, 40), (14, 2**32 - 1), (0, 40), (0, 40)), r)
    if not system.distill:
        assert equal(run_turn(turn, ENGINE).students["linear"], weights(7))
        return
    assert len(next(turn)) == 4
    (fit,) = turn.send([np.zeros((4, 2), np.float32)] * 4)
    assert equal(fit.state, weights(7))


def test_honest_counts_are_as_they_were():
    assert average(lot((2, 1), (6, 1), (12, 3)))[0] == pytest.approx(44 / 5)
    assert cap_counts({0: 1, 1: 9, 2: 3}) == {0: 1, 1: 9, 2: 3}


def test_the_lower_of_two_medians_is_meant():
    assert cap_counts({0: 1, 1: 500}) == {0: 1, 1: 3}


@given(st.lists(st.integers(1, 2**32 - 1), min_size=1, max_size=30))
def test_a_minority_cannot_raise_the_cap_beyond_what_an_honest_client_has(counts):
    capped = cap_counts(dict(enumerate(counts)))
    middle = sorted(counts)[(len(counts) - 1) // 2]
    assert all(capped[i] == min(count, MOST * middle) for i, count in enumerate(counts))


def test_equal_counts_believe_nobody():
    assert average(lot((0, 40), (9, 2**32 - 1), (0, 40)), counts="equal")[0] == 3.0
    with pytest.raises(UserError, match="counts"):
        fedsift.fedavg(counts="fair")


class Twice:
    """Uploads that can be read again; how often they were."""

    def __init__(self, uploads):
        self.uploads, self.reads = uploads, 0

    def __iter__(self):
        self.reads += 1
        return iter(self.uploads)


@pytest.mark.parametrize(
    ("options", "most", "reads"), [({}, 3, 1), ({}, 5000, 2), ({"counts": "equal"}, 5000, 1)]
)
def test_honest_uploads_are_read_once(options, most, reads):
    uploads = Twice(lot((1, 2), (1, 3), (1, most)))
    Averaging(**options).average(uploads, weights(0))
    assert uploads.reads == reads


def claim(server, samples, r, client=0):
    return fedsift.fedavg().check_upload(
        server, client, W32.encode(weights(1), r.number, samples), r
    )


def test_a_count_is_fixed_by_the_first_accepted_upload():
    r = toys.a_round()
    server = Server({"linear": weights(0)}, ServerMemory(counts={0: 7}))
    assert claim(server, 7, r)[1] == 7 and claim(server, 9, r, client=1)[1] == 9
    with pytest.raises(WireError, match="a claim of 8 samples; this client has claimed 7 before"):
        claim(server, 8, r)
    with pytest.raises(WireError, match="weights of a client without samples"):
        claim(server, 0, r, client=1)


def test_counts_are_remembered_and_resumed():
    federation = a_federation(fedsift.fedavg(local=RECIPE))
    (record,) = run_rounds(federation, 1, ENGINE)
    sizes = {c.id: len(c.data) for c in federation.draw_cohort(federation.round(0))}
    assert record.state.server.memory.counts == sizes
    back = restore_state(runs.from_bytes(runs.to_bytes(record.state)), federation)
    assert back.server.memory.counts == sizes
    forgotten = federation.algorithm.forget(back.server, min(sizes))
    assert forgotten.memory.counts == sizes  # starting over is no way to claim more


@pytest.mark.parametrize("counts", [{9: 5}, {-1: 5}, {0: 0}, {0: -3}, {0: 2**32}])
def test_counts_in_a_checkpoint_that_nobody_claimed_are_refused(counts):
    federation = a_federation(fedsift.fedavg(local=RECIPE))
    state = federation.start()
    server = replace(state.server, memory=ServerMemory(counts=counts))
    stored = runs.from_bytes(runs.to_bytes(replace(state, server=server)))
    with pytest.raises(UserError, match=r"it has a client -?\d+ that claimed"):
        restore_state(stored, federation)


@pytest.mark.parametrize("down", ["float32", "updates(2)"])
def test_sift_remembers_counts_of_weights_too(down):
    sift = fedsift.sift(bytes=100_000, mode="weights", down_codec=down, local=RECIPE)
    (record,) = run_rounds(a_federation(sift), 1, ENGINE)
    assert len(record.state.server.memory.counts) == 3


# --- long updates ---


def test_a_long_update_is_shortened_to_a_multiple_of_the_median():
    """Norms from base 1: 2, 2 and 20 (four entries each); clip 3 allows 6: 1 + 3 instead of 11."""
    lots = lot((2, 1), (0, 1), (11, 1))
    assert [measure_update(w, weights(1)) for _, (w, _) in lots] == [2, 2, 20]
    assert average(lots, base=1.0)[0] == pytest.approx(13 / 3)
    assert average(lots, base=1.0, clip=3.0)[0] == pytest.approx((2 + 0 + 4) / 3)
    assert average(iter(lots), base=1.0, clip=3.0)[0] == pytest.approx((2 + 0 + 4) / 3)


def test_shortening_leaves_counters_and_keeps_variances_above_zero():
    base = {"w": torch.zeros(2), "n.running_var": torch.ones(1), "n": torch.tensor(3)}
    state = {"w": torch.ones(2), "n.running_var": torch.zeros(1), "n": torch.tensor(9)}
    short = shorten_update(state, base, 0.25)
    assert short["w"].tolist() == [0.25, 0.25] and short["n"].item() == 9
    assert short["n.running_var"].item() == 0.75
    assert measure_update(state, base) == pytest.approx(2**0.5)


def test_a_scaled_update_does_less_harm_when_clipped():
    """One of six turns its update round and makes it 30 times as long."""

    def accuracy(clip):
        algorithm = fedsift.fedavg(local=RECIPE, clip=clip)
        honest = algorithm.check_upload

        def check_upload(server, client, upload, r):
            state, samples = honest(server, client, upload, r)
            base = algorithm._base(server, r.model_of(client), r)
            turned = shorten_update(state, base, -30.0)
            return (turned if client == 0 else state), samples

        object.__setattr__(algorithm, "check_upload", check_upload)
        return run_rounds(a_federation(algorithm, cohort=6, alpha=100.0), 4, ENGINE)[-1].accuracy

    clipped, whole = accuracy(2.0), accuracy(None)
    assert clipped > 0.8 and clipped > whole + 0.2


# --- the median and the trimmed mean of weights ---


def test_the_median_of_weights_hears_no_outlier():
    """Of 1, 2, 3 and 1000 the two in the middle; claims do not count."""
    lots = lot((1, 5), (2, 5), (1000, 2**32 - 1), (3, 5))
    found, claimed = average(lots, rule="median")
    assert found == 2.5 and claimed == {0: 5, 1: 5, 2: 2**32 - 1, 3: 5}
    assert average(iter(lots[:3]), rule="median")[0] == 2.0


def test_the_trimmed_mean_drops_a_quarter_at_each_end():
    """Of eight, two at each end: (3 + 4 + 5 + 6) / 4. Of three, one: the middle. Of two, none."""
    lots = lot(*((value, 1) for value in (-90, 1, 3, 4, 5, 6, 80, 99)))
    assert average(lots, rule="trimmed-mean")[0] == 4.5
    assert average(lots[5:], rule="trimmed-mean")[0] == 80.0
    assert average(lots[:2], rule="trimmed-mean")[0] == -44.5
    assert average(lots[:2], rule="median")[0] == -44.5


def test_weights_are_joined_one_by_one_and_counters_keep_the_largest():
    states = [
        {"w": torch.tensor([1.0, 9.0]), "n": torch.tensor(3)},
        {"w": torch.tensor([2.0, 7.0]), "n": torch.tensor(8)},
        {"w": torch.tensor([5.0, 8.0]), "n": torch.tensor(5)},
    ]
    found = join_weights(states, "median")
    assert found["w"].tolist() == [2.0, 8.0] and found["w"].dtype == torch.float32
    assert found["n"].item() == 8


def test_an_ensemble_is_joined_by_the_same_rule():
    outputs = [np.array([[0.0, 2.0]]), np.array([[1.0, 0.0]]), np.array([[50.0, 1.0]])]
    assert Averaging().average_outputs(outputs).tolist() == [[17.0, 1.0]]
    assert Averaging(rule="median").average_outputs(outputs).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("make", [fedsift.fedavg, fedsift.fedpaq, fedsift.feddf, fedsift.sift])
def test_an_unknown_average_is_refused(make):
    with pytest.raises(UserError, match="unknown average 'mode'"):
        make(average="mode")


def test_turned_updates_do_less_harm_to_a_median():
    """Two of six turn their updates round and make them three times as long."""

    def accuracy(average):
        algorithm = fedsift.fedavg(local=RECIPE, average=average)
        federation = a_federation(algorithm, cohort=6, alpha=100.0)
        federation = replace(federation, threat=read_threat("sign-flip(3)", 0.34))
        assert len(federation.hostile) == 2
        return run_rounds(federation, 4, ENGINE)[-1].accuracy

    mean, median = accuracy("mean"), accuracy("median")
    assert median > 0.7 and median > mean + 0.2


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), "much"])
def test_a_clip_that_is_no_multiple_is_refused(bad):
    with pytest.raises(UserError, match="clip"):
        fedsift.feddf(clip=bad)


# --- absurd weights ---


def with_norm(**changes):
    model = toys.model(toys.with_batch_norm, shape=(2,))
    state = {name: value.clone() for name, value in initial_state(model, 0).items()}
    for name, value in changes.items():
        key = name.replace("__", ".")
        state[key] = torch.full_like(state[key], value)
    return model, state


def checked(codec, **changes):
    """An upload with these values, of a network with a batch norm, as the server takes it."""
    model, state = with_norm(**changes)
    r = toys.a_round(models=[model])
    algorithm = fedsift.fedavg(codec=codec)
    server = algorithm.start(r)
    base = server.students[model.name]
    if isinstance(algorithm.up, Qsgd | Updates):
        upload = algorithm.up.encode(state, 0, 5, base, (1,))
    else:
        upload = algorithm.up.encode(state, 0, 5)
    return algorithm.check_upload(server, 0, upload, r)


@pytest.mark.parametrize("codec", ["float32", "float16", "qsgd(4)"])
def test_a_variance_below_zero_is_refused(codec):
    """It made every prediction NaN (DEFECTS, D3)."""
    checked(codec, **{"0__running_var": 0.0})
    with pytest.raises(WireError, match=r"a variance '0\.running_var' below 0"):
        checked(codec, **{"0__running_var": -0.01})


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"1__weight": 1e20}, r"weights '1\.weight' up to 1e\+20, where 1e\+04"),
        ({"1__bias": -20_000.0}, r"weights '1\.bias' up to 2e\+04"),
        ({"0__running_mean": 2e6}, r"'0\.running_mean' up to 2e\+06, where 1e\+06"),
        ({"0__running_var": 1e13}, r"'0\.running_var' up to 1e\+13, where 1e\+12"),
        ({"0__num_batches_tracked": 2**40}, "counter '0.num_batches_tracked' moves by"),
    ],
)
def test_weights_that_no_training_reaches_are_refused(changes, what):
    """Floats of 1e20 in one upload poisoned the checkpoint (DEPLOYMENT, D3)."""
    with pytest.raises(WireError, match=what):
        checked("float32", **changes)


def test_bounds_do_not_grow_with_the_weights_of_the_server():
    model = toys.model()
    large = {name: torch.full_like(v, 9_000.0) for name, v in initial_state(model, 0).items()}
    weight_bounds.check_weights(large, large, model, 0)
    larger = {name: 1.2 * value for name, value in large.items()}
    with pytest.raises(WireError, match="far beyond any training"):
        weight_bounds.check_weights(larger, large, model, 0)


@pytest.mark.parametrize(
    "recipe",
    [
        fedsift.Recipe(epochs=10, lr=0.01),
        fedsift.Recipe(epochs=10, lr=0.05, optimizer="sgd"),
        fedsift.Recipe(epochs=5, lr=0.1),  # far too high: accuracy suffers, the bound does not
    ],
)
def test_real_trainings_stay_far_below_the_bounds(recipe):
    data = fedsift.load_dataset("digits")
    task = fedsift.split(data, private=200, public=100, normalise="standard")
    clients = fedsift.make_clients(task.private, 4, fedsift.Dirichlet(0.1), "cnn")
    algorithm = fedsift.fedavg(local=recipe)
    rounds = list(fedsift.federate(algorithm, clients, task, rounds=3, cohort=4))
    assert not any(record.bytes.missing for record in rounds)
    weights = rounds[-1].state.server.students["cnn"]
    largest = max(float(value.abs().max()) for value in weights.values())
    assert largest < weight_bounds.LARGEST / 100


# --- students that cannot be sent ---


def test_a_student_that_does_not_fit_the_way_down_is_not_saved():
    """float16 ends at 65,504: the next round could not have begun."""
    liar = int(a_federation(fedsift.fedavg(), cohort=5).cohort_ids(0)[2])
    algorithm = fedsift.fedavg(local=RECIPE, down_codec="float16")
    honest = algorithm.check_upload

    def check_upload(server, client, upload, r):
        state, samples = honest(server, client, upload, r)
        return {n: v * 0 + 1e7 if client == liar else v for n, v in state.items()}, samples

    object.__setattr__(algorithm, "check_upload", check_upload)
    records = run_rounds(a_federation(algorithm, cohort=5), 2, ENGINE)
    assert "are too large to be sent down" in records[0].bytes.missing[liar]


# --- soft labels per class, mixtures, estimates ---


@pytest.mark.parametrize("algorithm", [fedsift.fd_jeong(), fedsift.mix2fld()])
def test_a_client_has_at_least_one_label(algorithm):
    r = toys.a_round()
    link = replace(r.link(0), samples=2, drawn_from=())
    empty = CODECS["float32"].encode(SoftLabels(np.empty(0, np.int64), np.empty((0, 2))), link)
    if isinstance(algorithm, fedsift.Mix2FLD):
        none = Mixtures(np.empty((0, 2)), np.empty(0), np.empty(0))
        mixtures = MixtureCodec((2,), 2, 10).encode(none, 0)
        empty = len(empty).to_bytes(4, "little") + empty + mixtures
    with pytest.raises(WireError, match="0 soft labels where the budget is 2"):
        algorithm.check_upload(algorithm.start(r), 0, empty, r)


@pytest.mark.parametrize(
    ("values", "taken"),
    [
        ([0.0, 1.0, 0.5], True),
        ([2.0, -1.0, 0.5], True),  # one width outside
        ([2.1, 0.5, 0.5], False),  # further than that, and more than one value in twenty
        ([5.0] + [0.5] * 29, True),  # one in thirty is
        ([11.1] + [0.5] * 29, False),  # but not by more than ten widths
        ([65_504.0] * 3, False),  # DEPLOYMENT, D3
    ],
)
def test_mixtures_are_near_the_public_inputs(values, taken):
    codec = MixtureCodec((len(values),), 2, 4, low=0.0, high=1.0)
    mixtures = Mixtures(np.array([values]), np.array([0]), np.array([1]))
    message = codec.encode(mixtures, 3)
    if taken:
        assert codec.decode(message, 3).x.shape == (1, len(values))
        return
    with pytest.raises(WireError, match="where public inputs go from 0 to 1"):
        codec.decode(message, 3)


def test_mix2fld_knows_the_range_of_its_public_inputs():
    r = toys.a_round(public=[[0.0, 2.0], [-1.0, 1.0]])
    codec = fedsift.mix2fld()._codec(r)
    assert (codec.low, codec.high) == (-1.0, 2.0)


def test_estimates_sum_to_one():
    """A row of 16 and -15 is taken, one of 16 and 0 is not; real estimates stay near [0, 1]."""
    r = toys.a_round()
    system = fedsift.gossip(1, graph="complete")
    for row, good in (([16.0, -15.0], True), ([16.0, 0.0], False), ([0.7, 0.3], True)):
        message = system.codec.encode(np.array([row]), 0)
        if good:
            assert system.check_upload(Server({}), 0, message, r) == message
        else:
            with pytest.raises(WireError, match="rows do not sum to 1"):
                system.check_upload(Server({}), 0, message, r)


@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_real_estimates_are_far_from_the_bounds(codec):
    system = fedsift.gossip(20, graph="ring", codec=codec, local=RECIPE, distill=RECIPE)
    records = run_rounds(a_federation(system, cohort=6, alpha=0.1), 12, ENGINE)
    assert not any(record.bytes.missing for record in records)
    tables = [memory.estimate for memory in records[-1].state.memories.values()]
    assert max(np.abs(table).max() for table in tables) < 4
    assert max(np.abs(table.sum(1) - 1).max() for table in tables) < 0.05


# --- nothing changes for honest clients ---


def test_an_honest_average_is_the_plain_one():
    r, model = toys.a_round(), toys.model()
    algorithm = fedsift.fedavg()
    server = algorithm.start(r)
    uploads = {i: W32.encode(weights(v), 0, n) for i, (v, n) in enumerate([(1, 3), (2, 5), (4, 9)])}
    new = run_turn(toys.serve(algorithm, server, uploads, r), ENGINE)
    exact = (1 * 3 + 2 * 5 + 4 * 9) / 17
    assert equal(new.students["linear"], weights(exact)) and isinstance(model, Model)
