"""`fedsift predict`: probabilities for new samples, as the network of the run gives them."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedsift import config, runs
from fedsift.runs.predictions import Predictions
from tests.helpers.cli import FAS, complaint, done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    done("run", *FAS, "rounds=2", "--quiet", "--out", str(folder))
    return folder


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_of_hand_made_probabilities():
    probs = np.array([[0.25, 0.75], [1.0, 0.0]])
    made = Predictions(["0", "1"], ["benign", "malignant, or so"], probs).to_csv()
    assert made == (
        'sample,class,benign,"malignant, or so"\n0,"malignant, or so",0.25,0.75\n1,benign,1,0\n'
    )


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_raw_test_samples_give_the_accuracy_of_the_run(kind, run, tmp_path):
    history = runs.load_run(run)
    test = config.build_task(history.experiment).test
    raw = test.samples.store.values[torch.from_numpy(test.samples.rows)].numpy()
    source = tmp_path / f"new.{kind}"
    if kind == "npz":
        np.savez(source, x=raw)
    else:
        np.save(source, raw)
    told = done("predict", str(run), str(source), "-o", str(tmp_path / "out.csv")).stdout
    assert f"{len(raw):,} samples" in told
    rows = table(tmp_path / "out.csv")
    right = [int(row["class"]) == label for row, label in zip(rows, test.labels, strict=True)]
    assert float(np.mean(right)) == history.accuracies[-1]
    probs = np.array([[float(row[str(digit)]) for digit in range(10)] for row in rows])
    assert np.allclose(probs.sum(1), 1, atol=1e-4)
    with torch.no_grad():
        expected = history.network()(test.samples.tensor()).softmax(1).numpy()
    assert np.allclose(probs, expected, atol=1e-5)


def test_pictures_get_the_size_and_the_range_of_the_run(run, tmp_path):
    test = config.build_task(runs.read_config(run)).test
    raw = test.samples.store.values[torch.from_numpy(test.samples.rows[:3])].numpy()
    (tmp_path / "pictures").mkdir()
    for number, image in enumerate(raw):  # 0 to 16 becomes 0 to 255
        grey = np.round(image[0].astype(float) * 255 / 16).astype(np.uint8)
        Image.fromarray(grey).save(tmp_path / "pictures" / f"{number}.png")
    np.save(tmp_path / "raw.npy", raw)
    done("predict", str(run), str(tmp_path / "pictures"), "-o", str(tmp_path / "a.csv"))
    done("predict", str(run), str(tmp_path / "raw.npy"), "-o", str(tmp_path / "b.csv"))
    pictures, arrays = table(tmp_path / "a.csv"), table(tmp_path / "b.csv")
    assert [row["sample"] for row in pictures] == ["0.png", "1.png", "2.png"]
    assert [list(row.values())[1:] for row in pictures] == [list(r.values())[1:] for r in arrays]
    large = Image.fromarray(grey).resize((16, 16))
    large.save(tmp_path / "large.png")
    told = done("predict", str(run), str(tmp_path / "large.png"), "-o", str(tmp_path / "c.csv"))
    assert "(1, 16, 16) are made (1, 8, 8)" in told.stderr


def test_what_cannot_be_predicted_is_one_line(run, tmp_path):
    np.savez(tmp_path / "y.npz", y=np.zeros(3))
    np.save(tmp_path / "odd.npy", np.zeros((3, 5)))
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "table.xls").write_text("")
    (tmp_path / "empty").mkdir()
    out = ["-o", str(tmp_path / "out.csv")]
    said = {
        "y.npz": "has no array x",
        "odd.npy": "samples of shape",
        "text.npy": "cannot read",
        "table.xls": "not of a known kind",
        "no.npy": "no such file",
        "empty": "has 0 pictures",
    }
    for name, words in said.items():
        assert words in complaint("predict", str(run), str(tmp_path / name), *out)
    assert not (tmp_path / "out.csv").exists()


def test_a_table_is_prepared_as_that_of_the_run(tmp_path):
    """Two towns and an age decide the class; the table to predict has no class and a gap."""
    rng = np.random.default_rng(0)
    ages, towns = rng.integers(20, 80, 120), rng.choice(["Ulm", "Bonn"], 120)
    kinds = np.where((ages > 50) ^ (towns == "Ulm"), "yes", "no")
    told = [f"{a},{t},{k}" for a, t, k in zip(ages, towns, kinds, strict=True)]
    (tmp_path / "my.csv").write_text("\n".join(["age,town,answer", *told]) + "\n")
    (tmp_path / "new.csv").write_text("town,note,age\nUlm,x,30\nBonn,y,\n")
    settings = ["model=mlp", "clients=2", "cohort=2", "budget=10", "rounds=1", "local.epochs=1"]
    named = [f"data.name=csv:{tmp_path / 'my.csv'}", "data.target=answer", "device=cpu"]
    run = str(tmp_path / "run")
    done("run", "digits-fas", *named, *settings, "--quiet", "--out", run)
    done("predict", run, str(tmp_path / "new.csv"), "-o", str(tmp_path / "out.csv"))
    first, second = table(tmp_path / "out.csv")
    assert list(first) == ["sample", "class", "no", "yes"]
    assert (first["sample"], second["sample"]) == ("line 2", "line 3")
    done("export", run, "-o", str(tmp_path / "model.safetensors"))
    card = json.loads((tmp_path / "model.card.json").read_text())
    assert card["classes"] == ["no", "yes"]
    assert card["inputs"]["columns"] == ["age", "town=Bonn", "town=Ulm"]
    mean, std = (np.array(card["inputs"][name]) for name in ("mean", "std"))
    fill = card["inputs"]["missing"]["age"]
    x = (np.array([[30, 0, 1], [fill, 1, 0]]) - mean) / std  # what the card says, by hand
    with torch.no_grad():
        net = runs.load_run(run).network()
        expected = net(torch.from_numpy(x).float()).softmax(1).numpy()
    found = [[float(row[name]) for name in ("no", "yes")] for row in (first, second)]
    assert np.allclose(found, expected, atol=1e-5)
