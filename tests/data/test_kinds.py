"""Tables, token ids, series and folders: how each is stored and normalised."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fedsift
from fedsift import config, data
from fedsift.types import Fit, UserError

RNG = np.random.default_rng(0)


# --- what is chosen ---


def test_tables_are_standardised_images_scaled_and_token_ids_left_unless_asked():
    table = data.split(data.make_dataset(RNG.normal(5, 3, (40, 2)), np.arange(40) % 2), 10, 20)
    x = table.public.tensor()
    assert x.mean(0).tolist() == pytest.approx([0, 0], abs=1e-5)
    assert x.std(0, correction=0).tolist() == pytest.approx([1, 1], abs=1e-5)
    assert table.notes == ("normalise = standard for a table, by figures of the 20 public samples",)
    images = data.split(data.digits(), 10, 20)
    assert float(images.public.store.std) == float(
        images.public.store.values[images.public.rows].max()
    )
    assert images.notes == ()
    ids = RNG.integers(0, 9, (40, 6))
    tokens = data.split(data.make_dataset(ids, np.arange(40) % 2, kind="tokens"), 10, 20)
    assert tokens.public.vocabulary == int(ids.max()) + 1
    found = tokens.public.tensor()
    assert found.dtype == torch.int64
    assert found.tolist() == ids[tokens.public.rows].tolist()


def test_numbers_can_be_left_as_they_are():
    x = RNG.normal(5, 3, (40, 2)).astype(np.float32)
    task = data.split(data.make_dataset(x, np.arange(40) % 2), 10, 20, normalise="none")
    assert task.public.tensor().tolist() == x[task.public.rows].tolist()


def test_series_are_standardised_feature_by_feature():
    x = RNG.normal([0, 10], [1, 5], (30, 7, 2))
    task = data.split(data.make_dataset(x, np.arange(30) % 2, kind="series"), 10, 10)
    public = x[task.public.rows]
    assert task.public.shape == (7, 2)
    assert task.public.store.mean.tolist() == pytest.approx(public.mean((0, 1)).tolist(), abs=1e-5)
    assert task.public.store.std.tolist() == pytest.approx(public.std((0, 1)).tolist(), abs=1e-5)
    assert task.normalise(x[:3]).shape == (3, 7, 2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            {"x": [[0, 1], [2, 3]], "kind": "words"},
            "it must be one of images, table, series, tokens",
        ),
        ({"x": [[0, -1], [2, 3]], "kind": "tokens"}, "whole numbers from 0 on"),
        ({"x": [[0, 0.5], [2, 3]], "kind": "tokens"}, "token ids are whole numbers"),
        (
            {"x": [[0, 1], [2, 3]], "kind": "tokens", "vocabulary": 3},
            "token ids go up to 3; the vocab",
        ),
        ({"x": [[0, 1], [2, 10**7]], "kind": "tokens"}, "at most 1,000,000, not 10,000,001"),
        ({"x": [[0, 1], [2, 3]], "kind": "series"}, "x must be numbers [S, steps, features]"),
    ],
)
def test_inputs_of_the_wrong_kind_are_refused(call, said):
    with pytest.raises(UserError) as caught:
        data.make_dataset(y=[0, 1], **call)
    assert said in str(caught.value)


def test_token_ids_are_never_scaled():
    tokens = data.make_dataset(RNG.integers(0, 9, (40, 6)), np.arange(40) % 2, kind="tokens")
    with pytest.raises(UserError, match="token ids cannot be normalised by 'standard'"):
        data.split(tokens, 10, 20, normalise="standard")
    task = data.split(tokens, 10, 20)
    with pytest.raises(UserError, match="mixup cannot mix token ids"):
        Fit(
            fedsift.make_model("bag", (6,), 2, 9), {}, task.private, fedsift.Recipe(mixup=0.2), (0,)
        )


# --- labels ---


def test_names_of_classes_are_kept_and_numbered_by_the_alphabet():
    made = data.make_dataset(np.eye(4), ["dog", "cat", "dog", "ape"])
    assert (made.y.tolist(), made.names, made.classes) == ([2, 1, 2, 0], ("ape", "cat", "dog"), 3)
    assert made.notes == ("classes: 0 = ape, 1 = cat, 2 = dog",)
    objects = np.array(["dog", "cat", "dog", "ape"], object)
    assert data.make_dataset(np.eye(4), objects).y.tolist() == [2, 1, 2, 0]


def test_labels_from_one_become_classes_from_zero():
    with pytest.warns(UserWarning, match="labels go from 1 to 3: they are taken as classes 0 to 2"):
        made = data.make_dataset(np.eye(4), [1, 3, 2, 1], test=(np.eye(4), [3, 3, 1, 2]))
    assert (made.y.tolist(), made.classes, made.names) == ([0, 2, 1, 0], 3, ("1", "2", "3"))
    assert made.test is not None
    assert made.test[1].tolist() == [2, 2, 0, 1]
    assert data.make_dataset(np.eye(4), [1, 3, 2, 1], 4).y.tolist() == [1, 3, 2, 1]


# --- token ids and networks of one's own ---


class Embedded(nn.Module):
    """As in a tutorial: looks its inputs up without asking what they are."""

    def __init__(self, shape, classes):
        super().__init__()
        self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.words(x.long()).mean(1))


class Placed(nn.Module):
    """An embedding of places, not of inputs."""

    def __init__(self, shape, classes):
        super().__init__()
        self.places, self.head = nn.Embedding(shape[0], 1), nn.Linear(shape[0], classes)

    def forward(self, x):
        return self.head(x + self.places(torch.arange(x.shape[1])).squeeze(1))


def save_tokens(folder: Path, **more: object) -> str:
    """Class 0 has words from 1 to 9, class 1 from 6 to 14."""
    y = RNG.integers(0, 2, 400)
    x = RNG.integers(1, 10, (400, 8)) + 5 * y[:, None]
    np.savez(folder / "ids.npz", x=x, y=y, **more)  # type: ignore[arg-type]
    return f"data.name=npz:{folder / 'ids.npz'}"


SIZES = ["data.private=200", "data.public=100", "clients=4", "cohort=4", "device=cpu"]


def build(*settings: str) -> fedsift.Federation:
    federation = config.build_federation(config.read_experiment("digits-fas", [*settings, *SIZES]))
    federation.start()
    return federation


@pytest.mark.parametrize("model", ["bag", "text-cnn"])
def test_whole_numbers_are_token_ids_where_the_model_looks_them_up(tmp_path, model):
    name = save_tokens(tmp_path)
    assert build(name, f"model={model}").task.public.vocabulary == 15
    assert build(name, f"model={model}", "data.vocabulary=40").task.public.vocabulary == 40
    assert build(name, "model=mlp").task.public.vocabulary is None
    assert "normalise = none for token ids" in build(name, f"model={model}").task.notes


def test_own_networks_are_tried_for_an_embedding_of_their_inputs(tmp_path, monkeypatch):
    from fedsift.models import make_model, reads_tokens

    assert reads_tokens(make_model(Embedded, (8,), 2))
    assert not reads_tokens(make_model(Placed, (8,), 2))
    assert not reads_tokens(make_model("mlp", (8,), 2))


def test_an_embedding_of_scaled_numbers_is_refused():
    x, y = RNG.integers(0, 50, (60, 8)), np.arange(60) % 2
    task = data.split(data.make_dataset(x, y), 30, 20)
    clients = fedsift.make_clients(task.private, 2, "iid", model=Embedded)
    with pytest.raises(UserError, match="looks its inputs up in an embedding, but they are norma"):
        fedsift.federate(fedsift.fas(5), clients, task, rounds=1, cohort=2)
    plain = data.split(data.make_dataset(x, y), 30, 20, normalise="none")
    clients = fedsift.make_clients(plain.private, 2, "iid", model=Embedded)
    fedsift.federate(fedsift.fas(5), clients, plain, rounds=1, cohort=2)


def test_models_for_tokens_and_series_say_what_they_need(tmp_path):
    with pytest.raises(UserError, match=r"bag needs token ids, but samples are numbers of shape"):
        build("model=bag")
    with pytest.raises(UserError, match=r"series-cnn needs series \(steps, features\)"):
        build("model=series-cnn")


# --- folders ---


def picture(path: Path, value: int, size: int = 4, mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size, size), value if mode == "L" else (value, value, value)).save(path)


def test_images_by_class(tmp_path):
    for number in range(6):
        picture(tmp_path / ("cat", "dog")[number % 2] / f"{number}.png", 10 * number)
    (tmp_path / "cat" / "notes.txt").write_text("not a picture")
    found = data.load_dataset(f"folder:{tmp_path}")
    assert found.names == ("cat", "dog")
    assert found.x.shape == (6, 1, 4, 4)
    assert found.x[:, 0, 0, 0].tolist() == [0, 20, 40, 10, 30, 50]
    assert found.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.load_dataset(f"folder:{tmp_path}(2)").x.shape == (6, 1, 2, 2)


def test_folders_may_name_the_parts(tmp_path):
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            picture(tmp_path / part / name / "1.png", 50, mode="RGB")
    picture(tmp_path / "public" / "1.jpg", 70)
    task = data.split(data.load_dataset(f"folder:{tmp_path}"))
    assert (len(task.private), len(task.public), len(task.held_out)) == (2, 1, 2)
    assert task.public.shape == (3, 4, 4)  # one is in colour, so all are


def test_folders_that_make_no_data_set(tmp_path):
    def said() -> str:
        with pytest.raises(UserError) as caught:
            data.load_dataset(f"folder:{tmp_path / 'a'}")
        return str(caught.value)

    assert "no such folder" in said()
    (tmp_path / "a").mkdir()
    assert "has no folders with .png or .jpg pictures" in said()
    picture(tmp_path / "a" / "cat" / "1.png", 1)
    assert "has 1 folders with pictures; it needs one per class" in said()
    picture(tmp_path / "a" / "dog" / "1.png", 1, size=5)
    assert "has 5x5 pixels" in said()
    (tmp_path / "a" / "dog" / "1.png").write_bytes(b"not a picture")
    assert "cannot read" in said()
    (tmp_path / "a" / "dog" / "2.png").symlink_to("/etc/passwd")
    assert "is a link, and none is followed" in said()
