"""`fedsift export`, as a user calls it."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.helpers.cli import FAS, complaint, done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    done("run", *FAS, "rounds=1", "--quiet", "--out", str(folder))
    return folder


def test_it_writes_a_state_dict_and_a_card(run, tmp_path):
    file = tmp_path / "model.safetensors"
    told = done("export", str(run), "-o", str(file)).stdout
    assert f"wrote {file}: mlp, 4,810 parameters, last round (1), test accuracy 0." in told
    assert list(load_file(file)) == ["1.bias", "1.weight", "3.bias", "3.weight"]
    card = json.loads(done("export", str(run), "-o", str(file), "--json").stdout)
    assert (card["card"], card["file"]) == (1, str(file))
    assert card["classes"] == [str(digit) for digit in range(10)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--onnx", "--torchscript"], "one format at a time"),
        (["--round", "best"], "no validation samples"),
        (["--model", "cnn"], "unknown model 'cnn'"),
    ],
)
def test_what_cannot_be_exported_is_one_line(words, said, run, tmp_path):
    assert said in complaint("export", str(run), "-o", str(tmp_path / "m.safetensors"), *words)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named(run, tmp_path):
    said = complaint("export", str(run), "-o", str(tmp_path / "no" / "m.safetensors"))
    assert f"there is no folder {tmp_path / 'no'}" in said
