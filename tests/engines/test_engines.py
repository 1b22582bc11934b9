"""What every engine does: one step by hand, and answers that never depend on company, order or
threads.
"""

import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedsift
from fedsift import engines, models
from fedsift.engines import sequential
from fedsift.engines.batched import BatchedEngine
from fedsift.engines.sequential import SequentialEngine
from fedsift.engines.spread.processes import WorkerEngine
from fedsift.types import Fit, Predict, Recipe, UserError
from tests.helpers import parity, toys
from tests.helpers.parity import same

SGD = Recipe(epochs=1, batch=2, lr=0.5, optimizer="sgd", momentum=0.0)


@pytest.fixture(scope="module", params=[SequentialEngine, BatchedEngine, WorkerEngine])
def engine(request):
    return request.param("cpu", 2)


@pytest.fixture(scope="module")
def reference():
    return SequentialEngine("cpu", threads=2)


def fit(factory=toys.linear, recipe=SGD, key=(0,), n=2, epoch=0, state=None):
    values, labels = toys.gaussians(n, classes=2, features=2)
    model = toys.model(factory)
    return Fit(
        model,
        state or models.initial_state(model, 0),
        toys.labelled(values, labels),
        recipe,
        key,
        epoch,
    )


def test_one_step_of_gradient_descent_by_hand(engine):
    """Zero weights give s = (1/2, 1/2) everywhere. With x = (1, 0) of class 0 and x = (0, 1) of
    class 1, the gradient of the mean loss is (1/2) sum (s - t) x^T = [[-1/4, 1/4], [1/4, -1/4]]; a
    step of 0.5 gives +-1/8."""
    data = toys.labelled([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    job = Fit(toys.model(), {"1.weight": torch.zeros(2, 2)}, data, SGD, (0,))
    (state,) = engine.run([job])
    assert torch.equal(state["1.weight"], torch.tensor([[0.125, -0.125], [-0.125, 0.125]]))


def test_a_soft_target_halves_the_pull_by_hand(engine):
    """As above with t = (3/4, 1/4) and (1/4, 3/4): s - t is half as large, and so is the step."""
    hard = toys.labelled([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    soft = type(hard)(hard.samples, torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
    (state,) = engine.run([Fit(toys.model(), {"1.weight": torch.zeros(2, 2)}, soft, SGD, (0,))])
    assert torch.equal(state["1.weight"], torch.tensor([[0.0625, -0.0625], [-0.0625, 0.0625]]))


def test_predict_answers_outputs_before_the_softmax(engine):
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    (logits,) = engine.run(
        [Predict(toys.model(), {"1.weight": weights}, toys.samples([[1.0, 1.0], [2.0, 0.0]]))]
    )
    assert logits.dtype == np.float32
    assert logits.tolist() == [[3.0, 7.0], [2.0, 6.0]]


def test_batch_norm_statistics_are_part_of_the_answer(engine):
    """One batch (0, 0), (2, 4): means 1, 2; unbiased variances 2, 8; running value = 0.9 old + 0.1
    new.
    """
    model = toys.model(toys.with_batch_norm)
    data = toys.labelled([[0.0, 0.0], [2.0, 4.0]], [0, 1])
    (state,) = engine.run([Fit(model, models.initial_state(model, 0), data, SGD, (0,))])
    assert torch.allclose(state["0.running_mean"], torch.tensor([0.1, 0.2]))
    assert torch.allclose(state["0.running_var"], torch.tensor([1.1, 1.7]))
    assert state["0.num_batches_tracked"] == 1


def test_prediction_uses_running_statistics_not_the_batch(engine):
    model = toys.model(toys.with_batch_norm)
    state = models.initial_state(model, 0) | {"0.running_mean": torch.tensor([5.0, 5.0])}
    together, alone = toys.samples([[1.0, 2.0], [100.0, 0.0]]), toys.samples([[1.0, 2.0]])
    both, one = engine.run([Predict(model, state, together), Predict(model, state, alone)])
    assert np.array_equal(both[:1], one)


def test_what_went_in_is_left_alone(engine):
    job = fit()
    before = {name: value.clone() for name, value in job.state.items()}
    engine.run([job])
    assert same(job.state, before)


@pytest.mark.parametrize("factory", [toys.linear, toys.with_batch_norm, toys.with_dropout])
def test_an_answer_does_not_depend_on_company_order_or_threads(engine, factory):
    recipe = Recipe(epochs=3, batch=8, lr=0.01)
    jobs = [fit(factory, recipe, key=(0, "client", i), n=11) for i in range(6)]
    together = engine.run(jobs)
    backwards = engine.run(jobs[::-1])[::-1]
    alone = [type(engine)("cpu", 1).run([job])[0] for job in jobs]
    assert all(
        same(a, b) and same(a, c) for a, b, c in zip(together, backwards, alone, strict=True)
    )
    assert not same(together[0], together[1])


def test_dropout_is_drawn_from_the_key_and_leaves_global_randomness_alone(engine):
    before = torch.get_rng_state()
    first, second, other = engine.run([fit(toys.with_dropout, key=(k,)) for k in (1, 1, 2)])
    assert same(first, second) and not same(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def keeps_what_it_saw(shape, classes):
    """Stores an activation and counts its calls in a buffer no state holds: both must not reach the
    next job.
    """

    class Net(torch.nn.Module):
        calls: torch.Tensor

        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(shape[0], classes)
            self.register_buffer("calls", torch.zeros(()), persistent=False)

        def forward(self, x):
            self.seen = self.head(x)
            self.calls += 1
            return self.seen * (1 + self.calls)

    return Net()


def always_random(shape, classes):
    class Net(torch.nn.Linear):
        def forward(self, x):
            return super().forward(torch.nn.functional.dropout(x, 0.5, training=True))

    return Net(shape[0], classes)


def with_weight_norm(shape, classes):
    return torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(shape[0], classes))


@pytest.mark.filterwarnings("ignore:always_random cannot be stacked")
@pytest.mark.parametrize(
    ("kind", "factory"),
    [
        (SequentialEngine, keeps_what_it_saw),
        (SequentialEngine, always_random),
        (SequentialEngine, with_weight_norm),
        pytest.param(BatchedEngine, keeps_what_it_saw),
        (BatchedEngine, always_random),
        pytest.param(BatchedEngine, with_weight_norm),
    ],
)
def test_networks_with_a_life_of_their_own_answer_the_same_every_time(kind, factory):
    recipe = Recipe(epochs=2, batch=4, lr=0.01)
    jobs = [fit(factory, recipe, key=(0, "client", i), n=9) for i in range(4)]
    asks = [Predict(job.model, job.state, job.data.samples) for job in jobs]
    first, second = (kind("cpu", threads=n).run([*jobs, *asks, *jobs]) for n in (1, 2))
    assert all(same(a, b) for a, b in zip(first[:4], first[8:], strict=True))
    assert all(same(a, b) for a, b in zip(first[:4], second[:4], strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(first[4:8], second[4:8], strict=True))


def looks_at_threads(shape, classes):
    class Net(torch.nn.Linear):
        def forward(self, x):
            assert torch.get_num_threads() == 1
            return super().forward(x)

    return Net(shape[0], classes)


def test_every_job_runs_on_one_thread(reference):
    assert len(reference.run([fit(looks_at_threads), fit(looks_at_threads)])) == 2


def test_narrow_strided_shortcuts_see_the_same_pixels_without_a_stride():
    """Channels last, torch 2.13 writes beyond the gradient of their weights and the process dies:
    4 inputs of a 1x1 convolution with stride 2 are no multiple of 8, and 16 are.
    """
    x = torch.arange(2 * 4 * 5 * 5.0).view(2, 4, 5, 5)
    narrow, wide = (nn.Conv2d(width, 8, 1, stride=2) for width in (4, 16))
    expected = narrow(x)
    sequential._replace_strides(nn.ModuleList([narrow, wide]))
    assert narrow.stride == (1, 1) and wide.stride == (2, 2)
    torch.testing.assert_close(narrow(x), expected)
    fits = parity.fits(models.make_model("resnet8(width=0.25)", (1, 8, 8), 3), sizes=(16, 16))
    trained = SequentialEngine("cpu", threads=1).run(fits * 10)  # it would have died by then
    assert all(torch.isfinite(value).all() for value in trained[-1].values())


def test_images_reach_convolutions_channels_last(reference):
    seen = []

    def spy(shape, classes):
        class Net(torch.nn.Conv2d):
            def forward(self, x):
                seen.append(x.is_contiguous(memory_format=torch.channels_last))
                return super().forward(x).mean((2, 3))

        return Net(3, classes, 3)

    images = np.zeros((4, 3, 8, 8), np.float32)
    model = toys.model(spy, (3, 8, 8))
    reference.run(
        [Fit(model, models.initial_state(model, 0), toys.labelled(images, [0, 1] * 2), SGD, (0,))]
    )
    assert seen[-1] is True


def test_two_callers_of_one_engine_do_not_stop_each_other(engine):
    shared = engine
    short, long = fit(), fit(recipe=Recipe(epochs=300, batch=2))
    with ThreadPoolExecutor(2) as callers:
        slow = callers.submit(shared.run, [long])
        quick = [callers.submit(shared.run, [short]).result() for _ in range(3)]
        assert same(slow.result()[0], type(engine)("cpu", 1).run([long])[0])
    assert all(same(answer[0], quick[0][0]) for answer in quick)


@pytest.mark.parametrize(
    ("samples", "batch", "key", "said"),
    [
        (
            1,
            8,
            (0, 3, "local", 7),
            "client 7 has one sample, .*give the clients at least 2 samples",
        ),
        (1, 8, (0,), "a training set has one sample, .*or use group norm"),
        (3, 1, (0, 3, "local", 7), "batches of one sample; use batch=2 or more, or use group norm"),
    ],
)
def test_batch_norm_on_a_single_value_is_explained(engine, samples, batch, key, said):
    model = models.make_model("resnet8", (1, 4, 4), 2)
    data = toys.labelled(np.zeros((samples, 1, 4, 4), np.float32), [0] * samples)
    job = Fit(model, models.initial_state(model, 0), data, replace(SGD, batch=batch), key)
    with pytest.raises(UserError, match=said):
        engine.run([job])


def test_milestones_count_epochs_from_the_first_round(engine):
    """decay 0 from epoch 4 on: a Fit that starts at epoch 4 must not move, one that starts at 3
    moves once.
    """
    recipe = Recipe(
        epochs=2, batch=2, lr=0.5, optimizer="sgd", momentum=0.0, milestones=(4,), decay=0.0
    )
    one_epoch = Recipe(epochs=1, batch=2, lr=0.5, optimizer="sgd", momentum=0.0)
    late, middle, once = engine.run(
        [fit(recipe=recipe, epoch=4), fit(recipe=recipe, epoch=3), fit(recipe=one_epoch)]
    )
    assert same(late, fit().state)
    assert same(middle, once)


def test_augmentation_is_drawn_from_the_key(engine):
    model = models.make_model("cnn", (1, 8, 8), 2)
    images = np.random.default_rng(0).random((6, 1, 8, 8)).astype(np.float32)
    data, state = toys.labelled(images, [0, 1] * 3), models.initial_state(model, 0)
    plain, crops = Recipe(epochs=2, batch=3), Recipe(epochs=2, batch=3, augment="crop-flip")
    a, b, c, d = engine.run(
        [
            Fit(model, state, data, r, k)
            for r, k in ((crops, (1,)), (crops, (1,)), (crops, (2,)), (plain, (1,)))
        ]
    )
    assert same(a, b) and not same(a, c) and not same(a, d)


def test_a_failing_job_is_told_and_the_engine_goes_on(engine):
    broken = fit(state={"1.weight": torch.zeros(3, 3)})
    with pytest.raises(RuntimeError, match="size mismatch"):
        engine.run([broken, *(fit(recipe=Recipe(epochs=200, batch=2)) for _ in range(4))])
    assert len(engine.run([fit()])) == 1


def test_the_choice_of_engine_says_what_and_why():
    router, why = engines.choose_engine("sequential", "cpu")
    engine = router.networks
    assert isinstance(engine, SequentialEngine)
    assert (
        why == f"sequential engine on cpu, float32, {engine.workers.threads} thread(s) (asked for)"
    )
    router, why = engines.choose_engine(device="cpu")
    assert isinstance(router.networks, BatchedEngine) and why.endswith(
        "(auto: stacks equal networks where that pays)"
    )
    assert engines.choose_engine(router)[0] is router
    router, _ = engines.choose_engine(device="cpu", memory=0.25)
    assert isinstance(router.networks, BatchedEngine) and router.networks._memory == 2**28
    with pytest.raises(UserError, match="unknown engine 'sequental'; did you mean 'sequential'"):
        engines.choose_engine("sequental")
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        engines.choose_engine("auto", "gpu")


class Own:
    """The least an engine needs: here, another engine that is asked."""

    def __init__(self):
        self.asked = SequentialEngine("cpu", threads=1)

    def run(self, jobs):
        return self.asked.run(jobs)

    def describe(self, model):
        return f"{model.name}: my way"


def test_an_engine_of_ones_own_needs_run_and_describe_alone():
    own = Own()
    router, said = engines.choose_engine(own)
    assert router.networks is own and said == "engine of type Own (your own)"
    task = fedsift.split(fedsift.load_dataset("digits"), private=40, public=20, test=20)
    clients = fedsift.make_clients(task.private, 2, model="mlp")
    algorithm = fedsift.fedavg(local=Recipe(epochs=1))
    mine, theirs = (
        [
            r.accuracy
            for r in fedsift.federate(algorithm, clients, task, rounds=2, cohort=2, engine=e)
        ]
        for e in (own, "sequential")
    )
    assert mine == theirs


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (Own, r"engine Own is a class; pass an object, Own\(\)"),
        (object(), "an engine of type object has no run and no describe; an engine has run"),
        (types.SimpleNamespace(run=len), "has no describe; an engine has run"),
    ],
)
def test_what_is_no_engine_is_told(engine, said):
    with pytest.raises(UserError, match=said):
        engines.choose_engine(engine)


PLUG_IN = """
from fedsift.engines import sequential
from fedsift.engines.sequential import SequentialEngine

class Mine:
    def __init__(self, device, threads=1):
        self.given, self.asked = (device, threads), SequentialEngine(device, threads)

    def run(self, jobs):
        return self.asked.run(jobs)

    def describe(self, model):
        return f"{model.name}: my way"

class Mute:
    def run(self, jobs):
        return []
"""


def test_an_engine_may_come_from_a_file_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_engine.py").write_text(PLUG_IN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "own_engine:Mine(threads=2)"
    engine, why = engines.choose_engine(name, "cpu", "float32", memory=2)
    assert why == f"engine {name} (asked for)" and vars(engine.networks)["given"] == ("cpu", 2)
    assert same(engine.run([fit()])[0], SequentialEngine("cpu", threads=1).run([fit()])[0])
    with pytest.raises(UserError, match="type Mute has no describe; an engine has run"):
        engines.choose_engine("own_engine:Mute", "cpu")


def test_what_an_engine_on_a_cpu_sets_for_the_whole_process_is_said():
    assert "torch.set_num_threads(1)" in (engines.choose_engine.__doc__ or "")
    assert "glibc" in (engines.choose_engine.__doc__ or "")


def test_making_an_engine_leaves_the_threads_of_torch_alone():
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        engine, _ = engines.choose_engine(device="cpu")
        assert torch.get_num_threads() == before + 1
        engine.run([fit()])
    finally:
        torch.set_num_threads(before)


def test_a_device_that_is_not_there_is_an_error_not_a_fallback(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device"):
        engines.choose_engine("auto", "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8", "resnet8(norm=group)"])
def test_cuda_agrees_with_the_cpu(name, monkeypatch):
    monkeypatch.setattr(
        torch.backends.cudnn, "allow_tf32", False
    )  # compare like with like: full float32
    model = models.make_model(name, (1, 8, 8), 2)
    images = np.random.default_rng(0).random((12, 1, 8, 8)).astype(np.float32)
    recipe = Recipe(epochs=2, batch=4, lr=0.01, optimizer="sgd", augment="crop-flip")
    job = Fit(
        model, models.initial_state(model, 0), toys.labelled(images, [0, 1] * 6), recipe, (0,)
    )
    (here,), (there,) = SequentialEngine("cpu").run([job]), SequentialEngine("cuda").run([job])
    assert all(torch.allclose(here[k], there[k], atol=2e-3) for k in here)
    a, b = (
        SequentialEngine(d).run([Predict(model, here, job.data.samples)])[0]
        for d in ("cpu", "cuda")
    )
    assert np.allclose(a, b, atol=2e-2)
