"""What a run folder tells, also where it is old or damaged."""

import contextlib
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsift import __version__, config, report, runs
from fedsift.runs import CLIENTS, CONFIG, DATA, ENVIRONMENT, LEDGER, METRICS, TIMING
from fedsift.types import UserError
from tests.helpers.cli import complaint, done
from tests.helpers.runs import bits, lines, play, straight, tiny


def test_a_folder_without_a_finished_round_says_how_to_go_on(tmp_path):
    folder = straight(tmp_path / "run", tiny(), 0)
    with pytest.raises(
        UserError,
        match=f"no finished round yet; resume it with: fedsift run --resume --out {folder}",
    ):
        runs.load_run(folder)


@pytest.mark.parametrize("folder", ["runs/fas", "my runs/fas", "it's"])
def test_the_command_to_go_on_with_can_be_pasted_into_a_shell(folder):
    assert shlex.split(runs.resume_command(Path(folder))) == [
        "fedsift",
        "run",
        "--resume",
        "--out",
        folder,
    ]


@pytest.mark.parametrize(
    "name", ["plain", "größe", "日本", 'a "quoted" \\ name', "\N{GRINNING FACE}"]
)
def test_a_run_of_any_name_can_be_read_back(name, tmp_path):
    experiment = tiny(rounds=1).model_copy(update={"name": name})
    assert runs.load_run(straight(tmp_path / "run", experiment)).experiment == experiment


def test_clients_without_a_vote_are_found_under_their_older_name(tmp_path):
    folder = straight(tmp_path / "run", tiny(rounds=2))
    rows = list(zip(lines(folder / METRICS), ([1, 2], [2]), strict=True))
    for key in ("rested", "voteless"):
        text = "".join(json.dumps(row | {key: clients}) + "\n" for row, clients in rows)
        (folder / METRICS).write_text(text)
        found = runs.load_run(folder).metrics
        assert [row["voteless"] for row in found] == [[1, 2], [2]]
        assert not any("rested" in row for row in found)
        assert "client 1 in 1 rounds, client 2 in 2 rounds" in done("show", str(folder)).stdout


# --- damaged files ---

VERBS = [["show"], ["compare"], ["plot", "-o", "plot.png"], ["run", "--resume", "--out"]]
NOT_JSON = [b"\xff\xfe", b"\xff\xfe\n", b"no json\n", b"[" * 100_000 + b"\n"]
NO_ROWS = [
    b"null\n",
    b"3\n",
    b"[]\n",
    b'"text"\n',
    b"{}\n",
    b'{"round": 1}\n',
    b'{"round": true}\n',
]
WRONG_ROWS = {
    METRICS: [
        {"uploaded_labels": 3},
        {"uploaded_labels": {"rows": 3}},
        {"uploaded_labels": {"rows": 3, "right": "all", "samples": 3, "votes": 1}},
        {"distilled_labels": {"rows": 3, "right": 0.5}},
        {"steps": {"0": -1}},
        {"steps": {"first": 1}},
        {"steps": []},
        {"server_steps": 0.5},
        {"accuracy": None},
        {"accuracy": "0.5"},
        {"accuracy": float("nan")},
        {"accuracies": [0.5]},
        {"accuracies": {"mlp": None}},
        {"disagreement": {}},
        {"macro_f1": None},
        {"local_loss": "small"},
        {"class_accuracy": [0.5, "1"]},
        {"confusion": [[1, 2], [3]]},
        {"confusion": [[1, -2], [3, 4]]},
        {"confusion": 3},
        {"round": 7},
    ],
    LEDGER: [
        {"up": None},
        {"up": {"one": 5}},
        {"up": {"1": -5}},
        {"up": {"1": 2**63}},
        {"down": {"1": 0.5}},
        {"broadcast": [3]},
        {"edges": {"0>1": None}},
        {"missing": {"1": 3}},
        {"missing": {"1": "\ud800"}},
    ],
    TIMING: [{"seconds": None}, {"seconds": 10**400}, {"seconds": False}],
}
WRONG = {
    CLIENTS: ["null", "{}", "[3]", "[{}]", '[{"client": 0, "model": "mlp", "labels": 3}]'],
    ENVIRONMENT: ["null", "[]", '{"engine": 3}', '{"engine": "\\ud800"}', '{"format": "two"}'],
}


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    return straight(tmp_path_factory.mktemp("good") / "run", tiny(rounds=2))


@pytest.fixture
def folder(good, tmp_path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "run"))


def assert_unreadable(file: Path) -> None:
    with pytest.raises(UserError) as caught:
        runs.load_run(file.parent)
    assert str(caught.value).startswith(f"cannot read {file}: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("name", [METRICS, LEDGER, TIMING])
@pytest.mark.parametrize("content", NOT_JSON + NO_ROWS)
def test_a_file_of_rows_that_holds_none_is_named(name, content, folder):
    (folder / name).write_bytes(content)
    assert_unreadable(folder / name)


@pytest.mark.parametrize("name, change", [(n, row) for n in WRONG_ROWS for row in WRONG_ROWS[n]])
def test_a_row_with_a_value_of_another_kind_is_named_with_its_line(name, change, folder):
    first, second = lines(folder / name)
    rows = [first, second | change]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert_unreadable(folder / name)
    with pytest.raises(UserError, match="line 2: "):
        runs.load_run(folder)


@pytest.mark.parametrize("name, content", [(n, text) for n in WRONG for text in WRONG[n]])
def test_a_file_of_another_shape_is_named(name, content, folder):
    (folder / name).write_text(content)
    assert_unreadable(folder / name)


@pytest.mark.parametrize("name", [CLIENTS, ENVIRONMENT])
@pytest.mark.parametrize("content", NOT_JSON)
def test_a_file_that_is_not_json_is_named(name, content, folder):
    (folder / name).write_bytes(content)
    assert_unreadable(folder / name)


@pytest.mark.parametrize("name", [CLIENTS, ENVIRONMENT])
def test_a_file_that_is_gone_or_a_pipe_is_named(name, folder):
    (folder / name).unlink()
    assert_unreadable(folder / name)
    os.mkfifo(folder / name)
    assert_unreadable(folder / name)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([METRICS, LEDGER, TIMING, CLIENTS, ENVIRONMENT]), st.data())
def test_whatever_happens_to_a_byte_a_run_is_read_or_the_user_told(good, tmp_path, name, data):
    shutil.copytree(good, tmp_path / "run", dirs_exist_ok=True)
    content = bytearray((good / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "run" / name).write_bytes(bytes(content))
    with contextlib.suppress(UserError):
        history = runs.load_run(tmp_path / "run")
        assert history.summary()["rounds"] <= 2
        assert len(report.methods([history])) == 1


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
@pytest.mark.parametrize("name", [METRICS, LEDGER, TIMING, CLIENTS, ENVIRONMENT])
def test_every_verb_names_a_damaged_file_in_one_line(words, name, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    (folder / name).write_bytes(b"\xff\xfe\n")
    assert complaint(*words, "run").startswith(f"error: cannot read run/{name}: ")


# --- folders of other versions ---


def written_by_hand(folder: Path, config: str, **environment: Any) -> Path:
    """One round of a run, as fedsift 0.1.0 wrote it."""
    folder.mkdir()
    contents = {
        CONFIG: config,
        METRICS: '{"round": 0, "accuracy": 0.25, "accuracies": {"cnn": 0.25}}\n',
        LEDGER: '{"round": 0, "up": {"3": 10}, "down": {"3": 7}, "broadcast": 7}\n',
        TIMING: '{"round": 0, "seconds": 0.5}\n',
        CLIENTS: '[{"client": 0, "model": "cnn", "labels": [1, 2]}]',
        DATA: "{}",
        ENVIRONMENT: json.dumps({"fedsift": "0.1.0", "engine": "by hand"} | environment),
    }
    for name, content in contents.items():
        (folder / name).write_text(content)
    return folder


OLD = 'name = "old"\nrounds = 9\n[algorithm]\nname = "mix2fld"\n'


def test_a_folder_of_the_first_version_is_read_if_its_settings_are_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    history = runs.load_run(written_by_hand(Path("old"), OLD))
    assert (history.accuracies, history.experiment.algorithm.name) == ([0.25], "mix2fld")
    assert "old" in done("compare", "old").stdout
    assert "by hand; torch unknown" in done("show", "old").stdout


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_unknown_settings_of_the_first_version_are_one_sentence_with_both_versions(
    words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    written_by_hand(Path("old"), OLD + "lessons = 30\n")
    assert complaint(*words, "old") == (
        "error: old was made by fedsift 0.1.0, whose settings this version "
        f"({__version__}) cannot read: unknown key 'algorithm.lessons'\n"
    )


def test_unknown_settings_of_this_version_are_an_error_like_any_other(tmp_path):
    folder = written_by_hand(tmp_path / "new", OLD + "lessons = 30\n", fedsift=__version__)
    with pytest.raises(UserError, match=r"^unknown key 'algorithm\.lessons'"):
        runs.load_run(folder)


def test_a_folder_of_a_later_format_is_refused(tmp_path):
    folder = written_by_hand(tmp_path / "new", OLD, fedsift="9.1.0", format=runs.FORMAT + 1)
    with pytest.raises(UserError) as caught:
        runs.load_run(folder)
    assert str(caught.value) == (
        f"{folder} was made by fedsift 9.1.0, which is newer than this version "
        f"({__version__}); update fedsift to read it"
    )


def test_an_unfinished_run_of_the_first_version_can_be_shown_but_not_resumed(tmp_path):
    folder = straight(tmp_path / "run", tiny(), 1)
    environment = json.loads((folder / ENVIRONMENT).read_text())
    assert environment.pop("format") == runs.FORMAT
    (folder / ENVIRONMENT).write_text(json.dumps(environment | {"fedsift": "0.1.0"}))
    assert len(runs.load_run(folder).metrics) == 1
    before = bits(folder)
    with pytest.raises(UserError) as caught:
        runs.begin_run(folder, tiny(), resume=True)
    assert str(caught.value) == (
        f"{folder} was made by fedsift 0.1.0; this version ({__version__}) can show it "
        "but not resume it: start a new run"
    )
    assert bits(folder) == before


def test_a_run_and_its_history_have_a_repr_of_one_line(tmp_path):
    run = runs.begin_run(tmp_path / "run", tiny(rounds=2))
    assert repr(run) == f"Run('{tmp_path}/run', digits-fas, 0 of 2 rounds)"
    play(run, 1)
    history = runs.load_run(str(tmp_path / "run"))
    accuracy = f"accuracy {history.accuracies[0]:.3f}"
    assert repr(history) == f"History('{tmp_path}/run', digits-fas, 1 of 2 rounds, {accuracy})"


# --- the trained model ---


def test_a_run_gives_its_trained_network(tmp_path):
    history = runs.load_run(straight(tmp_path / "run", tiny(rounds=2)))
    task = config.build_task(history.experiment)
    net = history.network()
    guessed = net(task.test.samples.tensor()).argmax(1).numpy()
    assert not net.training
    assert (guessed == task.test.labels).mean() == pytest.approx(history.accuracies[-1])


def test_of_several_architectures_one_must_be_named(tmp_path):
    mixed = tiny("digits-fas", "clients.models={cnn = 2, mlp = 2}", rounds=1)
    history = runs.load_run(straight(tmp_path / "run", mixed))
    with pytest.raises(UserError, match=r"run has cnn, mlp; name one$"):
        history.network()
    assert history.network("mlp")(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("algorithm", ["gossip", "fd-jeong"])
def test_where_the_server_keeps_no_model_a_run_says_so(tmp_path, algorithm):
    experiment = tiny("digits-fas", f"algorithm={algorithm}", "cohort=4", rounds=1)
    history = runs.load_run(straight(tmp_path / "run", experiment))
    with pytest.raises(UserError, match=f"has no model: with {algorithm} the server keeps none"):
        history.network()


def test_a_run_stands_for_itself_and_a_folder_for_runs_at_most_two_levels_below(tmp_path):
    for name in ("mine", "sweep/seed-0", "mine/inside", "out/runs/deeper"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / runs.CONFIG).touch()
    assert runs.find_runs(tmp_path / "mine") == [tmp_path / "mine"]
    assert runs.find_runs(tmp_path / "out") == [tmp_path / "out/runs/deeper"]
    assert runs.find_runs(tmp_path) == [tmp_path / "mine", tmp_path / "sweep/seed-0"]
    assert runs.find_runs(tmp_path / "none") == []


def test_a_folder_of_runs_names_one_of_them(tmp_path):
    for seed in (0, 1):
        straight(tmp_path / "many" / f"seed-{seed}", tiny("digits-fas", f"seed={seed}", rounds=1))
    many = tmp_path / "many"
    with pytest.raises(UserError, match=f"is a folder of 2 runs; show one of them: {many}/seed-0"):
        runs.load_run(many)
    (many / runs.SWEEP).touch()
    with pytest.raises(UserError, match="many is a sweep of 2 runs; show one of them: "):
        runs.load_run(many)
