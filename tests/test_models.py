import sys
from functools import partial

import pytest
import torch
from torch import nn

from fedsift.models import MODELS, initial_state, make_model
from fedsift.types import Model, UserError

CIFAR, DIGITS = (3, 32, 32), (1, 8, 8)


def parameters(what: str, shape: tuple[int, ...], classes: int = 10) -> int:
    return sum(p.numel() for p in make_model(what, shape, classes).build().parameters())


def tiny(shape: tuple[int, ...], classes: int, bias: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(int(torch.Size(shape).numel()), classes, bias=bias)
    )


class Own(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(shape[0], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


# --- sizes by hand ---


def test_mlp_size():
    # 64 x 64 + 64 and 64 x 10 + 10 on 8x8; 5 x 64 + 64 and 64 x 3 + 3 on rows of five.
    assert parameters("mlp", DIGITS) == 4160 + 650
    assert parameters("mlp", (5,), 3) == 384 + 195


def test_cnn_size_on_digits():
    # 1 x 16 x 9 + 16 = 160; 16 x 32 x 9 + 32 = 4,640; two poolings leave 2 x 2: 32 x 4 x 10 + 10 =
    # 1,290.
    assert parameters("cnn", DIGITS) == 160 + 4640 + 1290 == 6090


def test_resnet8_size_on_cifar():
    # stem:    3 x 16 x 9 + 2 x 16 = 464
    # stage 1: 2 (16 x 16 x 9 + 2 x 16) = 4,672, the shortcut is the identity
    # stage 2: 16 x 32 x 9 + 32 x 32 x 9 + 2 x 64 = 13,952, and the projection 16 x 32 + 64 = 576
    # stage 3: 32 x 64 x 9 + 64 x 64 x 9 + 2 x 128 = 55,552, and the projection 32 x 64 + 128 =
    # 2,176
    # head:    64 x 10 + 10 = 650
    assert (
        parameters("resnet8", CIFAR) == 464 + 4672 + (13952 + 576) + (55552 + 2176) + 650 == 78042
    )


def test_resnet20_size_on_cifar():
    # As resnet8, with two more blocks a stage: 2 x 4,672; 2 x 2 (32 x 32 x 9 + 64) = 2 x 18,560;
    # and
    # 2 x 2 (64 x 64 x 9 + 128) = 2 x 73,984.
    assert parameters("resnet20", CIFAR) == 78042 + 2 * (4672 + 18560 + 73984) == 272474


def test_width_scales_the_channels():
    # cnn with 8 and 16 channels: 80 + 1,168 + (16 x 4 x 10 + 10).
    assert parameters("cnn(width=0.5)", DIGITS) == 80 + 1168 + 650
    # resnet8 with 8/16/32: stem 232; 1,184; 3,520 + 160; 13,952 + 576; head 330.
    assert parameters("resnet8(width=0.5)", CIFAR) == 232 + 1184 + 3680 + 14528 + 330
    # mlp with 128 hidden units.
    assert parameters("mlp(width=2)", DIGITS) == 64 * 128 + 128 + 128 * 10 + 10


def test_a_tiny_width_leaves_one_channel():
    assert parameters("cnn(width=0.001)", (1, 4, 4), 2) == (9 + 1) + (9 + 1) + (1 * 2 + 2)


# --- group norm ---


def test_group_norm_has_groups_of_eight_channels_and_no_running_statistics():
    net = make_model("resnet8(norm=group)", CIFAR, 10).build()
    norms = [m for m in net.modules() if isinstance(m, nn.GroupNorm)]
    assert {(norm.num_channels, norm.num_groups) for norm in norms} == {(16, 2), (32, 4), (64, 8)}
    assert list(net.buffers()) == []
    assert parameters("resnet8(norm=group)", CIFAR) == 78042


def test_group_norm_with_odd_channel_numbers_takes_the_nearest_that_divides():
    # 16 x 1.25 = 20: 20 // 8 = 2 groups. 16 x 1.1875 = 19, a prime: one group.
    assert (
        make_model("resnet8(norm=group, width=1.25)", CIFAR, 10)
        .build()
        .get_submodule("norm")
        .num_groups
        == 2
    )
    assert (
        make_model("resnet8(norm=group, width=1.1875)", CIFAR, 10)
        .build()
        .get_submodule("norm")
        .num_groups
        == 1
    )


@pytest.mark.parametrize(("norm", "independent"), [("group", True), ("batch", False)])
def test_only_batch_norm_mixes_the_samples_of_a_batch(norm, independent):
    torch.manual_seed(0)
    net = make_model(f"resnet8(norm={norm}, width=0.5)", (1, 8, 8), 3).build().train()
    x = torch.randn(4, 1, 8, 8)
    changed = torch.cat([x[:1], 5 * x[1:]])
    assert torch.allclose(net(x)[0], net(changed)[0], atol=1e-5) == independent


# --- any input ---


IMAGE_MODELS = [name for name in MODELS if name not in ("bag", "text-cnn", "series-cnn")]


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 7), (3, 9, 33), (1, 8, 8), (4, 3, 1)])
def test_every_model_takes_images_of_any_size(name, shape):
    net = make_model(name, shape, 4).build().eval()
    out = net(torch.zeros(2, *shape))
    assert out.shape == (2, 4)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_outputs_depend_on_the_input(name):
    torch.manual_seed(0)
    out = make_model(name, (2, 5, 7), 3).build().eval()(torch.randn(2, 2, 5, 7))
    assert not torch.allclose(out[0], out[1])


def test_mlp_takes_feature_rows():
    assert make_model("mlp", (5,), 3).build()(torch.zeros(2, 5)).shape == (2, 3)


@pytest.mark.parametrize("name", ["cnn", "resnet8", "resnet20"])
def test_a_convolutional_model_on_feature_rows_is_a_mistake(name):
    with pytest.raises(
        UserError,
        match=r"needs images \(channels, height, width\), but samples have shape \(5,\); use mlp",
    ):
        make_model(name, (5,), 3).build()


# --- names, factories, options ---


def test_a_factory_of_your_own_is_a_model():
    made = make_model(tiny, (2, 3), 4)
    assert (made.name, made.factory, made.shape, made.classes) == ("tiny", tiny, (2, 3), 4)
    assert made.build()(torch.zeros(1, 2, 3)).shape == (1, 4)


def test_a_module_class_of_your_own_is_a_model():
    assert isinstance(make_model(Own, (5,), 3).build(), Own)


def test_a_partial_of_a_factory_has_a_name_that_is_the_same_in_every_process():
    # Starting weights are drawn from the name: a memory address in it would make every run another
    # run.
    made = make_model(partial(tiny, bias=False), (2, 3), 4)
    assert made.build()(torch.zeros(1, 2, 3)).tolist() == [[0, 0, 0, 0]]
    assert "0x" not in made.name


def test_a_path_to_a_factory_is_a_model(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\ndef net(shape, classes, depth=1): return "
        "nn.Linear(shape[0] * depth, classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    built = make_model("my_nets:net(depth=3)", (5,), 2).build()
    assert isinstance(built, nn.Linear)
    assert built.in_features == 15
    monkeypatch.delitem(sys.modules, "my_nets")


@pytest.mark.parametrize("path", ["no_such_module:net", "torch:no_such_net", "math:pi"])
def test_a_path_that_leads_nowhere_is_a_mistake(path):
    with pytest.raises(UserError) as caught:
        make_model(path, (5,), 2)
    assert str(caught.value).startswith(f"model {path!r}: ")


@pytest.mark.parametrize("path", ["math:", ":net", ".:net"])
def test_half_a_path_is_answered_with_how_to_write_it(path):
    with pytest.raises(UserError) as caught:
        make_model(path, (5,), 2)
    assert (
        str(caught.value) == f"cannot read model {path!r}; write module:name, for example mine:net"
    )


@pytest.mark.parametrize("what", [nn.Linear(2, 2), nn.ReLU()])
def test_a_network_in_the_place_of_a_factory_is_a_mistake(what):
    with pytest.raises(UserError, match="is a network, but every client needs one of its own"):
        make_model(what, (2,), 2)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("resnet9", "unknown model 'resnet9'; did you mean 'resnet8'? (fedsift ls models)"),
        ("cnn(0.5)", "model 'cnn(0.5)': write options as key=value"),
        ("cnn(depth=3)", "model 'cnn(depth=3)': got an unexpected keyword argument 'depth'"),
        ("torch:pi", "model 'torch:pi' is of type float; give a class or a function"),
        ("resnet8(norm=layer)", "norm is batch or group, not 'layer'"),
        ("cnn(width=0)", "a width factor must be above 0 and at most 1000, not 0"),
        ("mlp(width=-1)", "a width factor must be above 0 and at most 1000, not -1"),
    ],
)
def test_a_wrong_name_or_option_is_a_mistake(what, said):
    with pytest.raises(UserError) as caught:
        make_model(what, DIGITS, 10).build()
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("what", ["cnn(width=wide)", "cnn(width=[1])"])
def test_an_option_of_the_wrong_type_is_a_mistake(what):
    with pytest.raises(UserError, match="width"):
        made = make_model(what, DIGITS, 10)
        hash(made)  # what a federation does with it first: find the distinct architectures
        made.build()


def test_equal_models_compare_and_hash_equal():
    one, same = (make_model("resnet8(norm=group, width=0.5)", CIFAR, 10) for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    assert one.options == (("norm", "group"), ("width", 0.5))
    others = [
        make_model("resnet8(norm=group)", CIFAR, 10),
        make_model("resnet8(norm=group, width=0.5)", DIGITS, 10),
        make_model("resnet8(norm=group, width=0.5)", CIFAR, 11),
    ]
    assert len({one, same, *others}) == 4


# --- starting weights ---


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_starting_weights_depend_on_the_seed_and_the_name_only():
    made = make_model("mlp", (5,), 3)
    torch.manual_seed(1)
    first = initial_state(made, 0)
    torch.manual_seed(2)
    assert same_weights(first, initial_state(made, 0))
    assert same_weights(first, initial_state(Model("mlp", MODELS["mlp"], (5,), 3), 0))
    assert not same_weights(first, initial_state(made, 1))
    assert not same_weights(first, initial_state(Model("other", MODELS["mlp"], (5,), 3), 0))


def test_starting_weights_leave_global_randomness_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    initial_state(make_model("resnet8", DIGITS, 10), 0)
    assert torch.equal(before, torch.get_rng_state())


def test_a_starting_state_holds_every_parameter_and_buffer_and_is_a_copy():
    made = make_model("resnet8", DIGITS, 10)
    state = initial_state(made, 0)
    assert state.keys() == made.build().state_dict().keys()
    assert not any(value.requires_grad for value in state.values())
    state["head.bias"].fill_(9)
    assert initial_state(made, 0)["head.bias"].abs().max() < 9


def test_starting_weights_are_drawn_once_but_never_shared():
    """Whatever is written into one, weights or counters, the next is as drawn, also where it came
    from the cache.
    """
    built = []

    def counted(shape, classes):
        built.append(shape)
        return nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes))

    made = Model("counted", counted, (3,), 2)
    first = initial_state(made, 5)
    drawn = {name: value.clone() for name, value in first.items()}
    for value in first.values():
        value.fill_(9)
    second = initial_state(made, 5)
    assert same_weights(second, drawn)
    for value in second.values():
        value.zero_()
    assert same_weights(initial_state(made, 5), drawn)
    assert len(built) == 1
    assert not same_weights(initial_state(made, 6), drawn)
    assert len(built) == 2
