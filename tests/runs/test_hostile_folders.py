"""Run folders of strangers: nothing outside is written, nothing they name is imported, and what is
wrong with them is one sentence.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsift import config, files, runs, sweeps
from fedsift.report import pictures
from fedsift.report.live import Board
from fedsift.runs import (
    CHECKPOINT,
    CLIENTS,
    CONFIG,
    DATA,
    ENVIRONMENT,
    FAILED,
    LEDGER,
    METRICS,
    RECORDING,
    SAMPLES,
    TIMING,
)
from fedsift.types import UserError
from tests.helpers.cli import complaint, done
from tests.helpers.damage import damage_file
from tests.helpers.runs import KINDS, cli, play, straight, tiny

FINISHED = "finished.json"
EVERY = (
    *(METRICS, LEDGER, TIMING, CLIENTS, ENVIRONMENT, DATA, CONFIG, CHECKPOINT, FAILED, FINISHED),
    *(RECORDING, SAMPLES),
)
KEPT = {  # one of each kind of memory
    "plain": ("digits-fas",),
    "clients with models": ("digits-fas-soft-down",),
    "weights": ("digits-fedavg",),
    "updates": ("digits-fas", "algorithm.down_codec=updates(1)"),
    "label memory": ("digits-fas", "aggregator=memory"),
    "per label": ("digits-fas", "algorithm=fd-jeong"),
    "trust": ("digits-fas", "aggregator=trust", "algorithm.audit=8"),
}
LOOKING = [
    ["show", "run"],
    ["show", "run", "--json"],
    ["compare", "run", "other", "--costs"],
    ["compare", "run", "other", "--json"],
    ["report", "run", "other", "-o", "page.html"],
]
CALLS = 120
SECONDS = 60  # of one call: nothing is waited for


# --- whatever is in a file ---


@pytest.fixture(scope="module")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each kind, after two of three rounds."""
    home = tmp_path_factory.mktemp("half")
    return {
        kind: straight(home / str(number), tiny(preset, *settings), 2)
        for number, (kind, (preset, *settings)) in enumerate(KEPT.items())
    }


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def make_damaged(home: Path, good: dict[str, Path], generator: random.Random) -> str:
    """A folder "run" with one damaged file, and a good one beside it. Returns what was damaged."""
    for name in ("run", "other"):
        shutil.rmtree(home / name, ignore_errors=True)
    kind = generator.choice(list(good))
    shutil.copytree(good[kind], home / "run")
    shutil.copytree(good["plain"], home / "other")
    (home / "run" / FAILED).write_text('{"rounds": 1, "error": "x", "traceback": []}')
    if generator.random() < 0.1:
        (home / "run" / FINISHED).write_text('{"rounds": 3}')
    file = generator.choice(EVERY)
    damage_file(home / "run" / file, generator)
    return f"{kind}: {file}"


def assert_calm(result: Any, what: str) -> None:
    """It worked, or there is one sentence; never a traceback, nor a letter that moves a cursor."""
    expected = result.exception is None or isinstance(result.exception, SystemExit)
    assert expected, f"{what}: {result.exception!r}"
    assert result.exit_code in (0, 1, 2), what
    assert "Traceback" not in result.stderr and "\x1b]" not in result.output, what
    if result.exit_code:
        said = result.stderr.strip().splitlines()
        assert said[-1].startswith(("error: ", "  fedsift run --resume")), f"{what}: {said}"
        assert len(said) <= 6 and len(result.stderr) < 3000, f"{what}: {said}"


@pytest.mark.parametrize("part", range(4))
def test_any_damaged_file_is_one_sentence_for_every_command(part, half_done, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = random.Random(part)
    resume = ["run", "--resume", "--quiet", "--out", "run"]
    for call in range(CALLS // 4):
        what = make_damaged(tmp_path, half_done, generator)
        words = generator.choice([*LOOKING, resume, resume])
        with at_most(SECONDS):
            assert_calm(cli(*words), f"{part}.{call} {what}, {' '.join(words)}")


def kind_of(picture: str) -> list[str]:
    return [] if picture == "overview" else ["--kind", picture]


@pytest.mark.parametrize("picture", ["overview", *pictures.KINDS])
def test_a_picture_of_a_damaged_run_is_one_sentence_too(picture, half_done, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = random.Random(picture)
    for _ in range(4):
        what = make_damaged(tmp_path, half_done, generator)
        with at_most(SECONDS):
            assert_calm(cli("plot", "run", "other", "-o", "p.png", *kind_of(picture)), what)


@pytest.mark.parametrize("picture", ["overview", *pictures.KINDS])
def test_clients_with_unlike_numbers_of_classes_are_refused(picture, half_done, tmp_path):
    shutil.copytree(half_done["plain"], folder := tmp_path / "run")
    clients = json.loads((folder / CLIENTS).read_text())
    clients[1]["labels"].pop()
    (folder / CLIENTS).write_text(json.dumps(clients))
    said = complaint("plot", str(folder), "-o", str(tmp_path / "p.png"), *kind_of(picture))
    why = "all clients must have label counts of the same classes"
    assert said == f"error: cannot read {folder / CLIENTS}: {why}\n"


@pytest.mark.parametrize("picture", ["overview", *pictures.KINDS])
def test_a_picture_of_a_run_without_clients_is_calm(picture, half_done, tmp_path):
    shutil.copytree(half_done["plain"], folder := tmp_path / "run")
    (folder / CLIENTS).write_text("[]")
    assert_calm(cli("plot", str(folder), "-o", str(tmp_path / "p.png"), *kind_of(picture)), picture)


def test_confusion_matrices_of_unlike_sizes_are_refused(tmp_path):
    one, two = (straight(tmp_path / s, tiny("digits-fas", f"seed={s}"), 1) for s in "01")
    row = json.loads((two / METRICS).read_text())
    row["confusion"] = [[1, 0], [0, 1]]
    (two / METRICS).write_text(json.dumps(row) + "\n")
    words = ["plot", str(one), str(two), "-o", str(tmp_path / "p.png"), "--kind", "confusion"]
    why = f"confusion matrices of unlike numbers of classes: 10 in {one}, 2 in {two}"
    assert complaint(*words) == f"error: {why}\n"


def test_a_damaged_sweep_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = sweeps.read("digits-fas", [*KINDS["digits-fas"], "rounds=1", "sweep.seed=[0,1]"])
    sweeps.begin_sweep(Path("good"), sweep).release()
    generator = random.Random(3)
    for _ in range(25):
        shutil.rmtree("sweep", ignore_errors=True)
        shutil.copytree("good", "sweep")
        file = generator.choice([sweeps.SWEEP, f"seed-0/{generator.choice(EVERY)}"])
        damage_file(Path("sweep", file), generator)
        with at_most(SECONDS):
            assert_calm(cli("run", "--resume", "--quiet", "--out", "sweep"), file)


@pytest.mark.parametrize("name", [METRICS, CLIENTS, CONFIG, CHECKPOINT])
def test_a_file_of_a_terabyte_is_not_read(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = straight(Path("run"), tiny(), 1)
    os.truncate(folder / name, 2**40)
    said = complaint("run", "--resume", "--out", "run")
    assert said.startswith(f"error: cannot read run/{name}: it has 1,099,511,627,776 bytes")


@pytest.mark.parametrize("kind", [[], {}, None, 3])
def test_samples_of_an_odd_kind_are_one_sentence(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = straight(Path("run"), tiny(), 1)
    samples = json.loads((folder / SAMPLES).read_text())
    (folder / SAMPLES).write_text(json.dumps(samples | {"kind": kind}))
    why = f"cannot read run/{SAMPLES}: kind must be images, texts, rows or series"
    assert complaint("report", "run", "-o", "page.html") == f"error: {why}\n"
    (told,) = json.loads(Board([folder]).data)["waiting"]
    assert told["state"] == why


@pytest.mark.parametrize("text", ["\x1b]0;evil\x07", "\x1b[2J", "a\rb", "\u202egnp", "\x9b1A"])
def test_texts_of_a_folder_do_nothing_to_a_terminal(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = tiny(rounds=1).model_copy(update={"name": text})
    folder = straight(Path("run"), experiment)
    for words in (["show", "run"], ["compare", "run"]):
        assert text not in done(*words).output
    clients = json.loads((folder / CLIENTS).read_text())
    (folder / CLIENTS).write_text(json.dumps([clients[0] | {"model": text}]))
    assert complaint("show", "run") == (
        f"error: cannot read run/{CLIENTS}: a client must have the name of a model\n"
    )


# --- links ---


def victim_of(home: Path, name: str = "victim") -> Path:
    victim = home / name
    victim.write_text("precious\n")
    return victim


def test_rows_are_never_appended_to_what_a_link_points_to(tmp_path):
    victim = victim_of(tmp_path)
    (tmp_path / METRICS).symlink_to(victim)
    with pytest.raises(UserError, match="is a link, not a file; remove it"):
        files.append_row(tmp_path / METRICS, {"round": 0})
    os.mkfifo(tmp_path / LEDGER)
    with pytest.raises((UserError, OSError)):
        files.append_row(tmp_path / LEDGER, {"round": 0})
    assert victim.read_text() == "precious\n"


@pytest.mark.parametrize("name", [METRICS, LEDGER, TIMING, ENVIRONMENT, CHECKPOINT, FAILED])
def test_on_resume_a_link_is_replaced_and_what_it_points_to_is_left_alone(name, tmp_path):
    folder = straight(tmp_path / "run", tiny(), 2)
    outside = tmp_path / "outside"
    if (folder / name).exists():
        shutil.move(folder / name, outside)
    else:
        outside.write_text("{}")
    before = outside.read_bytes()
    (folder / name).symlink_to(outside)
    play(runs.begin_run(folder, tiny(), resume=True))
    assert outside.read_bytes() == before
    assert not (folder / name).is_symlink()


@pytest.mark.parametrize("name", [ENVIRONMENT, DATA, CLIENTS])
def test_a_new_run_does_not_write_through_links_that_wait_for_it(name, tmp_path):
    victim = victim_of(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(victim)
    straight(tmp_path / "run", tiny(rounds=1))
    assert victim.read_text() == "precious\n"
    assert not (tmp_path / "run" / name).is_symlink()


@pytest.mark.parametrize("there", [True, False])
def test_a_cell_of_a_sweep_that_is_a_link_is_refused(there, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = sweeps.read("digits-fas", [*KINDS["digits-fas"], "rounds=1", "sweep.seed=[0,1]"])
    sweeps.begin_sweep(Path("sweep"), sweep).release()
    shutil.rmtree("sweep/seed-1")
    if there:
        Path("elsewhere").mkdir()
    Path("sweep/seed-1").symlink_to(tmp_path / "elsewhere")
    said = complaint("run", "--resume", "--out", "sweep", "--quiet")
    assert said == (
        "error: cell seed-1: sweep/seed-1 is a link, and none is followed in sweep; remove it\n"
    )
    assert not list(Path("elsewhere").iterdir() if there else [])
    assert Path("elsewhere").exists() == there


def test_the_runs_of_a_reproduction_are_not_written_through_a_link(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("elsewhere").mkdir()
    Path("out").mkdir()
    Path("out/runs").symlink_to(tmp_path / "elsewhere")
    words = ["reproduce", "fas-icc2022", "table1", "--quick", "--seeds", "1", "--out", "out"]
    said = complaint(*words, "--only", "table1-none-alpha-*", "rounds=1", "--quiet")
    assert said == "error: out/runs is a link, and none is followed in out; remove it\n"
    assert not list(Path("elsewhere").iterdir())


def test_a_folder_that_the_user_names_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    straight(tmp_path / "run", tiny(rounds=1))
    assert runs.is_finished(tmp_path / "disk")


# --- code ---

EVIL = "open('was_here', 'w').close()\n"


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A finished run in "run" whose config names a module of the current folder everywhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    folder = straight(tmp_path / "run", tiny(rounds=1))
    values = config.read_experiment(str(folder / CONFIG)).model_dump()
    named = dict.fromkeys(("name", "sampler", "aggregator", "codec", "down_codec", "graph"))
    values["algorithm"] |= dict.fromkeys(named, "evil:thing(1)")
    values["data"] |= {"name": "evil:thing", "public_from": "evil:thing"}
    values |= {"engine": "evil:thing", "start": "evil:thing"}
    values["partition"]["kind"] = values["clients"]["model"] = "evil:thing"
    (folder / CONFIG).write_text(config.to_toml(config.check_experiment(values)))
    yield tmp_path
    sys.modules.pop("evil", None)


@pytest.mark.parametrize(
    "words",
    [
        ["show", "run"],
        ["show", "run", "--json"],
        ["compare", "run"],
        ["compare", "run", "--json", "--costs"],
        ["plot", "run", "-o", "picture.png"],
        ["report", "run", "-o", "page.html"],
        ["ls"],
        ["run", "--resume", "--out", "run"],
        ["run", "run/config.toml", "--resume", "--out", "run"],
    ],
    ids=" ".join,
)
def test_looking_at_a_folder_imports_nothing_that_it_names(words, evil):
    result = cli(*words)
    assert not (evil / "was_here").exists()
    assert "evil" not in sys.modules
    if words[0] == "run":
        assert result.exit_code == 2
        assert f"other code of evil:thing in {evil / 'evil.py'}" in result.stderr
    else:
        assert result.exit_code == 0, result.stderr


def test_watching_a_folder_imports_nothing_that_it_names(evil):
    assert len(json.loads(Board([evil / "run"]).data)["runs"]) == 1
    assert not (evil / "was_here").exists() and "evil" not in sys.modules


def test_resuming_says_which_file_it_imports_before_it_does(evil):
    """As `fedsift run` would: the folder names the very file that lies here."""
    folder = evil / "run"
    environment = json.loads((folder / ENVIRONMENT).read_text())
    plugins = config.describe_plugins(runs.read_config(folder))
    (folder / ENVIRONMENT).write_text(json.dumps(environment | {"plugins": plugins}))
    result = cli("run", "--resume", "--out", "run")
    assert result.stderr.startswith(f"plug-ins: evil:thing from {evil / 'evil.py'} (sha256 ")
    assert result.exit_code == 2 and "has no 'thing'" in result.stderr
