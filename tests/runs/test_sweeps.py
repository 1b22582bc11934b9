"""What a [sweep] table means, and that all its cells are run side by side."""

import errno
import itertools
import json
import os
import re
import signal
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift import config, data, report, runs, sweeps
from fedsift import files as file_module
from fedsift.engines import choose_engine
from fedsift.overrides import read_axes
from fedsift.runs import (
    CHECKPOINT,
    CLIENTS,
    FAILED,
    LEDGER,
    LOCK,
    METRICS,
)
from fedsift.sweeps import SWEEP, Sweep
from fedsift.types import UserError
from tests.helpers.cli import (
    by_shell,
    complaint,
    done,
    fedsift,
    interrupted,
    program,
    rows,
    terminated,
)
from tests.helpers.runs import (
    KINDS,
    PROGRAM,
    bits,
    file_names,
    killed,
    rounds_in,
    straight,
)
from tests.helpers.tiers import slow_but

FAS = ["digits-fas", *KINDS["digits-fas"]]


def tiny(*settings: str, rounds: int = 2) -> Sweep:
    return sweeps.read("digits-fas", [*KINDS["digits-fas"], f"rounds={rounds}", *settings])


def values(sweep: Sweep, *paths: str) -> list[tuple[Any, ...]]:
    """Of each cell, the values at these paths."""
    return [
        tuple(config.flat(cell.model_dump())[path] for path in paths)
        for cell in sweep.cells.values()
    ]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# --- what a [sweep] table means ---


def test_the_cells_are_all_combinations_in_the_order_written():
    Path("mine.toml").write_text(
        '[sweep]\nalpha = [0.1, 100]\nsampler = ["mixed", "random"]\nseed = [0, 1]\n'
    )
    sweep = sweeps.read("mine.toml")
    assert values(sweep, "partition.alpha", "algorithm.sampler", "seed") == [
        (0.1, "mixed", 0),
        (0.1, "mixed", 1),
        (0.1, "random", 0),
        (0.1, "random", 1),
        (100.0, "mixed", 0),
        (100.0, "mixed", 1),
        (100.0, "random", 0),
        (100.0, "random", 1),
    ]
    assert list(sweep.cells)[:3] == [
        "alpha-0.1-sampler-mixed-seed-0",
        "alpha-0.1-sampler-mixed-seed-1",
        "alpha-0.1-sampler-random-seed-0",
    ]
    names = [cell.name for cell in sweep.cells.values()]
    assert names[1:3] == ["mine alpha=0.1 sampler=mixed", "mine alpha=0.1 sampler=random"]
    assert sweep.name == "mine"


def test_cells_that_differ_only_in_their_seed_have_one_name():
    assert {cell.name for cell in tiny("sweep.seed=[0, 1, 2]").cells.values()} == {"digits-fas"}


@pytest.mark.parametrize(
    "table",
    [
        "[sweep]\nlocal.lr = [0.1, 0.2]\nalpha = [1, 2]",
        '[sweep]\n"local.lr" = [0.1, 0.2]\n"partition.alpha" = [1, 2]',
        "[sweep]\nlocal = {lr = [0.1, 0.2]}\npartition = {alpha = [1, 2]}",
        "[sweep.local]\nlr = [0.1, 0.2]\n[sweep.partition]\nalpha = [1, 2]",
    ],
)
def test_keys_are_short_dotted_or_in_tables(table):
    Path("mine.toml").write_text(table)
    assert sweeps.read("mine.toml").axes == {"local.lr": [0.1, 0.2], "partition.alpha": [1, 2]}


@pytest.mark.parametrize(
    "override, axes",
    [
        ("sweep.seed=[0,1]", {"seed": [0, 1]}),
        ("sweep.alpha=[0.1, 1]", {"partition.alpha": [0.1, 1]}),
        ('sweep.sampler=["mixed", "random"]', {"algorithm.sampler": ["mixed", "random"]}),
        ("sweep.sampler=[mixed,random]", {"algorithm.sampler": ["mixed", "random"]}),
        ("sweep.aggregator=[mean, era(0.1)]", {"algorithm.aggregator": ["mean", "era(0.1)"]}),
        (
            "sweep.model=[mlp, resnet8(norm=group, width=0.5)]",
            {"clients.model": ["mlp", "resnet8(norm=group, width=0.5)"]},
        ),
        ("sweep.local.milestones=[[], [3, 5]]", {"local.milestones": [[], [3, 5]]}),
        ("sweep={seed = [0, 1], local.lr = [0.1]}", {"seed": [0, 1], "local.lr": [0.1]}),
    ],
)
def test_an_axis_can_be_given_on_the_command_line(override, axes):
    assert sweeps.read("digits-fas", [override]).axes == axes


def test_a_section_and_its_short_name_can_both_be_swept():
    sweep = sweeps.read("digits-fas", ["sweep.algorithm=[fas,fd]", "sweep.algorithm.budget=[5,6]"])
    assert values(sweep, "algorithm.name", "algorithm.budget") == [
        ("fas", 5),
        ("fas", 6),
        ("fd", 5),
        ("fd", 6),
    ]


def test_a_list_valued_key_sweeps_over_lists():
    sweep = tiny("sweep.local.milestones=[[], [3], [3, 5]]")
    assert values(sweep, "local.milestones") == [((),), ((3,),), ((3, 5),)]
    assert list(sweep.cells) == ["local.milestones", "local.milestones-3", "local.milestones-3-5"]


def test_mixtures_of_models_are_values_too():
    sweep = tiny("sweep.clients.models=[{mlp = 4}, {mlp = 1, cnn = 3}]")
    assert values(sweep, "clients.models") == [({"mlp": 4},), ({"mlp": 1, "cnn": 3},)]


def test_a_swept_model_for_all_replaces_a_mixture():
    sweep = sweeps.read("digits-fas-mixed-models", ["sweep.model=[mlp,cnn]"])
    assert values(sweep, "clients.model", "clients.models") == [("mlp", None), ("cnn", None)]


@pytest.mark.parametrize(
    "overrides, axes",
    [
        (["alpha=3"], {"seed": [0, 1], "local.lr": [0.1, 0.2]}),
        (["partition.alpha=3", "seed=2"], {"local.lr": [0.1, 0.2]}),
        (["local={lr = 0.3}"], {"seed": [0, 1], "partition.alpha": [1, 2]}),
        (
            ["seed=3", "sweep.seed=[5,6]"],
            {"seed": [5, 6], "partition.alpha": [1, 2], "local.lr": [0.1, 0.2]},
        ),
        (["sweep.seed=[5,6]", "seed=3"], {"partition.alpha": [1, 2], "local.lr": [0.1, 0.2]}),
        (
            ["sweep.partition.alpha=[7]"],
            {"seed": [0, 1], "partition.alpha": [7], "local.lr": [0.1, 0.2]},
        ),
    ],
)
def test_a_key_given_one_value_is_no_axis_any_more_and_the_last_word_counts(overrides, axes):
    Path("mine.toml").write_text("[sweep]\nseed = [0, 1]\nalpha = [1, 2]\nlocal.lr = [0.1, 0.2]\n")
    assert sweeps.read("mine.toml", overrides).axes == axes


@pytest.mark.parametrize("override", ["model=mlp", "clients.models={mlp = 20}"])
def test_one_model_or_one_mixture_is_neither_axis(override):
    Path("mine.toml").write_text(
        '[sweep]\nseed = [0]\nclients.models = [{cnn = 20}]\nmodel = ["cnn"]\n'
    )
    assert sweeps.read("mine.toml", [override]).axes == {"seed": [0]}


def test_a_sweep_with_every_key_given_a_value_is_a_plain_experiment():
    Path("mine.toml").write_text("[sweep]\nseed = [0, 1]\n")
    sweep = sweeps.read("mine.toml", ["seed=7"])
    assert sweep.axes == {}
    assert list(sweep.cells.values()) == [config.read_experiment("mine.toml", ["seed=7"])]


def test_one_experiment_cannot_be_read_from_a_sweep():
    Path("mine.toml").write_text("[sweep]\nseed = [0, 1]\nalpha = [1, 2]\n")
    with pytest.raises(
        UserError,
        match=r"^mine\.toml sweeps over seed, alpha: that is many experiments; give each key",
    ):
        config.read_experiment("mine.toml")


@pytest.mark.parametrize(
    "override, said",
    [
        ("sweep.seed=[]", "sweep.seed is a list of values, e.g. [0.1, 1], not []"),
        ("sweep.seed=3", "sweep.seed is a list of values, e.g. [0.1, 1], not 3"),
        ("sweep.sampler=mixed", "sweep.sampler is a list of values, e.g. [0.1, 1], not 'mixed'"),
        ("sweep=3", "sweep is a table of keys with a list each, e.g. seed = [0, 1, 2], not 3"),
        ("sweep.alpah=[1]", "sweep: unknown key 'alpah'; did you mean 'alpha'?"),
        ("sweep.local.lrr=[1]", "sweep: unknown key 'local.lrr'; did you mean 'local.lr'?"),
        ("sweep.lr=[1]", "sweep: unknown key 'lr'; did you mean local.lr or distill.lr?"),
        ("sweep.local=[1]", "sweep: local is a section with keys epochs,"),
        ("sweeep.seed=[1]", "unknown key 'sweeep'; did you mean 'sweep'?"),
        (
            "sweep.alpha=[1, 0]",
            "cell alpha-0: partition.alpha: input should be greater than 0 (got 0)",
        ),
        (
            "sweep.local.milestones=[3, 5]",
            "cell local.milestones-3: local.milestones: input should be a valid tuple",
        ),
        (
            "sweep.alpha=[1, 2, 1.0]",
            "cells alpha-1 and alpha-1.0 are the same experiment; give every value of a key once",
        ),
        ("sweep.seed=[4, 4]", "cells seed-4 and seed-4-2 are the same experiment"),
        ("sweep.name=[a, b]", "name cannot be swept"),
        ("sweep.device=[cpu, cuda]", "device cannot be swept: one engine runs all cells"),
        (
            f"sweep={{seed = {list(range(200))}, rounds = {list(range(1, 100))}}}",
            "the sweep has 19800 cells; 10000 are the most",
        ),
    ],
)
def test_a_mistake_in_a_sweep_says_what_to_change(override, said):
    with pytest.raises(UserError) as caught:
        sweeps.read("digits-fas", [override])
    assert str(caught.value).startswith(said)


def test_a_key_given_twice_in_a_table_is_a_mistake():
    Path("mine.toml").write_text("[sweep]\nalpha = [1]\npartition.alpha = [2]\n")
    with pytest.raises(UserError, match=r"^sweep\.partition\.alpha is given twice$"):
        sweeps.read("mine.toml")


@settings(max_examples=60)
@given(st.lists(st.text(max_size=100), min_size=1, max_size=5, unique=True))
def test_every_folder_name_is_safe_and_no_two_are_the_same(names):
    """Also where a file system takes A for a."""
    taken: set[str] = set()
    for name in names:
        folder = sweeps._folder_name({"data.name": name}, taken)
        assert re.fullmatch(r"data\.name[A-Za-z0-9._+-]*", folder) and len(folder) < 90
        assert folder.lower() not in taken
        taken.add(folder.lower())


axes = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.lists(st.integers(0, 2**70), min_size=1, max_size=3, unique=True),
        "partition.alpha": st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=2, unique=True),
        "clients.model": st.lists(st.text(max_size=4), min_size=1, max_size=2, unique=True),
        "local.milestones": st.lists(
            st.lists(st.integers(0, 9), max_size=2), min_size=1, max_size=2, unique_by=tuple
        ),
        "clients.models": st.lists(
            st.dictionaries(st.text(max_size=3), st.integers(1, 9), max_size=2),
            min_size=1,
            max_size=1,
        ),
    },
)


@settings(max_examples=60)
@given(axes.filter(bool))
def test_a_sweep_written_as_toml_reads_back_equal(axes):
    cell = config.check_experiment({"name": "mine"})
    written = tomllib.loads(config.to_toml(cell, axes))
    assert read_axes(written.pop("sweep")) == axes
    assert config.check_experiment(written) == cell


# --- a cell cannot tell it is not alone ---

GRID = ["sweep.alpha=[0.1, 100]", "sweep.seed=[0, 1]"]
CELLS = ["alpha-0.1-seed-0", "alpha-0.1-seed-1", "alpha-100-seed-0", "alpha-100-seed-1"]


def play(folder: Path, sweep: Sweep, steps: int | None = None) -> runs.Group:
    """To the end, or for some steps of a cell only; as in a process that ends then."""
    playing = sweeps.begin_sweep(folder, sweep, resume=True)
    played = playing.run(choose_engine()[0])
    for _ in itertools.islice(played, steps):
        pass
    playing.release()
    return playing


def all_bits(folder: Path) -> dict[str, dict[str, bytes]]:
    return {cell: bits(folder / cell) for cell in CELLS}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, dict[str, bytes]]:
    """The bits of every cell of the grid, each experiment run alone."""
    home = tmp_path_factory.mktemp("alone")
    return {name: bits(straight(home / name, cell)) for name, cell in tiny(*GRID).cells.items()}


def test_a_cell_has_the_bits_of_the_same_experiment_alone(whole):
    play(Path("sweep"), tiny(*GRID))
    assert all_bits(Path("sweep")) == whole
    assert file_names(Path("sweep")) == {SWEEP, LOCK, *CELLS}
    plain = straight(
        Path("plain"),
        config.read_experiment(
            "digits-fas", [*KINDS["digits-fas"], "rounds=2", "alpha=100", "seed=1"]
        ),
    )
    for name in (METRICS, LEDGER, CHECKPOINT, CLIENTS):  # the name in config.toml is another
        assert (plain / name).read_bytes() == whole["alpha-100-seed-1"][name]


@pytest.mark.parametrize("steps", slow_but(range(8), 3))
def test_a_sweep_stopped_anywhere_goes_on_to_the_same_bits(steps, whole):
    play(Path("sweep"), tiny(*GRID), steps)
    begun = -(-steps // len(CELLS))  # the cells save a round at the same time
    assert [rounds_in(Path("sweep") / cell) for cell in CELLS] == [begun] * len(CELLS)
    play(Path("sweep"), sweeps.read(f"sweep/{SWEEP}"))
    assert all_bits(Path("sweep")) == whole


class Killed(BaseException):
    """No handler of errors may take this for one."""


@pytest.mark.slow
def test_a_sweep_killed_before_any_write_goes_on_to_the_same_bits(monkeypatch):
    """One write for the sweep, four to set up each of two cells, four a round of each: a kill
    before each of them.
    """
    sweep = tiny("sweep.seed=[0, 1]", rounds=1)
    alone = {name: bits(straight(Path("alone") / name, cell)) for name, cell in sweep.cells.items()}
    for number in range(1, 18):
        folder, calls = Path(str(number)), itertools.count(1)

        def dying(write, number=number, calls=calls):
            def maybe(*arguments):
                if next(calls) >= number:
                    raise Killed
                write(*arguments)

            return maybe

        with monkeypatch.context() as patch, pytest.raises(Killed):
            for name in ("append_row", "write_atomic"):
                patch.setattr(file_module, name, dying(getattr(file_module, name)))
            play(folder, sweep)
        assert (folder / SWEEP).exists() == (number > 1)
        play(folder, sweeps.read(f"{folder}/{SWEEP}") if number > 1 else sweep)
        assert {name: bits(folder / name) for name in sweep.cells} == alone


@pytest.mark.slow
def test_a_sweep_killed_again_and_again_ends_with_the_bits_of_its_cells_alone(tmp_path):
    rounds, folder = 8, tmp_path / "sweep"
    start = [*PROGRAM, "run", *FAS, f"rounds={rounds}", *GRID, "--out", str(folder)]
    go_on = [*PROGRAM, "run", "--resume", "--out", str(folder)]
    dice = np.random.default_rng(5)
    killed(start, (folder / "alpha-0.1-seed-1").exists, 0.0)  # while the cells are set up
    for target in (1, 4):
        killed(
            go_on,
            lambda target=target: rounds_in(folder / CELLS[0]) >= target,
            dice.uniform(0, 0.05),
        )
    assert not all(rounds_in(folder / cell) == rounds for cell in CELLS)
    assert subprocess.run(go_on, capture_output=True).returncode == 0
    for name, cell in tiny(*GRID, rounds=rounds).cells.items():
        assert bits(folder / name) == bits(straight(tmp_path / name, cell))


def test_a_folder_killed_before_it_was_a_sweep_can_be_started_again():
    Path("sweep").mkdir()
    Path("sweep", LOCK).touch()
    Path("sweep", ".k1ll3d.tmp").write_text("half a sw")
    play(Path("sweep"), tiny(*GRID))
    assert file_names(Path("sweep")) == {SWEEP, LOCK, *CELLS}


def test_cells_that_are_finished_are_left_alone(whole):
    sweep = tiny(*GRID)
    straight(Path("sweep/alpha-0.1-seed-0"), sweep.cells["alpha-0.1-seed-0"])
    sweeps._write(Path("sweep", SWEEP), sweep)
    before = {path: path.stat().st_mtime_ns for path in Path("sweep/alpha-0.1-seed-0").iterdir()}
    playing = play(Path("sweep"), sweep)
    assert [run.folder.name for run in playing.runs] == CELLS[1:]
    assert {
        path: path.stat().st_mtime_ns for path in Path("sweep/alpha-0.1-seed-0").iterdir()
    } == before
    assert all_bits(Path("sweep")) == whole


def test_a_cell_is_a_run_folder_like_any_other(whole):
    play(Path("sweep"), tiny(*GRID), 5)
    done("run", "--resume", "--out", "sweep/alpha-100-seed-1", "--quiet")
    assert "digits-fas alpha=100" in done("show", "sweep/alpha-100-seed-1").stdout
    done("run", "--resume", "--out", "sweep", "--quiet")
    assert all_bits(Path("sweep")) == whole


def test_cells_of_different_lengths_end_each_in_its_own_time():
    play(Path("sweep"), tiny("sweep.rounds=[1, 3]"))
    assert [rounds_in(Path("sweep") / name) for name in ("rounds-1", "rounds-3")] == [1, 3]


def test_all_cells_of_one_data_set_share_its_memory():
    np.savez("mine.npz", x=np.arange(200, dtype=np.float32).reshape(50, 4), y=np.arange(50) % 2)
    more = ["data.name=npz:mine.npz", "data.private=20", "data.public=20", "model=mlp"]
    playing = sweeps.begin_sweep(Path("sweep"), tiny(*GRID, *more))
    stores = [
        part
        for run in playing.runs
        for part in (run.federation.task.private.samples, run.federation.task.public)
    ]
    assert len({samples.store.values.data_ptr() for samples in stores}) == 1


def test_a_data_file_that_has_changed_is_loaded_again():
    for value in (1.0, 2.0):
        np.savez("mine.npz", x=np.full((6, 3), value), y=np.arange(6) % 2)
        os.utime("mine.npz", ns=(int(value), int(value)))
        assert (data.load_dataset("mine.npz").x == value).all()
    assert data.load_dataset("mine.npz") is data.load_dataset("npz:mine.npz")
    assert data.load_dataset("digits") is data.load_dataset("digits")


# --- one cell fails ---

BAD = "alpha-100-seed-0"


class Broken:
    """An algorithm whose server, in round 1, does something else."""

    def __init__(self, algorithm, instead):
        self.algorithm, self.instead = algorithm, instead

    def __getattr__(self, name):
        return getattr(self.algorithm, name)

    def server_turn(self, server, uploads, r):
        if r.number == 1:
            yield from self.instead()
        return (yield from self.algorithm.server_turn(server, uploads, r))


def an_error():
    yield []
    raise RuntimeError("broken\nin two lines")


class Poison:
    """Work that no engine can do."""

    def __getattr__(self, name):
        raise RuntimeError("broken\nin two lines")


def work_nobody_can_do():
    yield Poison()


def fails_to_save(patch: pytest.MonkeyPatch) -> None:
    append = file_module.append_row

    def appending(path, row):
        if path.parent.name == BAD and path.name == LEDGER and row["round"] == 1:
            raise RuntimeError("broken\nin two lines")
        append(path, row)

    patch.setattr(file_module, "append_row", appending)


@pytest.mark.parametrize("instead", [an_error, work_nobody_can_do, None])
def test_a_cell_that_fails_fails_alone_and_goes_on_when_it_can(instead, whole, monkeypatch):
    """In its own turn, inside the engine, or where its round is saved."""
    playing = sweeps.begin_sweep(Path("sweep"), tiny(*GRID))
    with monkeypatch.context() as patch:
        if instead:
            bad = next(run for run in playing.runs if run.folder.name == BAD)
            bad.federation = replace(
                bad.federation, algorithm=Broken(bad.federation.algorithm, instead)
            )
        else:
            fails_to_save(patch)
        errors = [
            outcome
            for _, outcome in playing.run(choose_engine()[0])
            if isinstance(outcome, Exception)
        ]
    assert [str(error) for error in errors] == ["broken\nin two lines"]
    assert playing.failed == {Path("sweep", BAD): "RuntimeError: broken in two lines"}
    assert [cell.name for cell in playing.finished] == [cell for cell in CELLS if cell != BAD]
    assert all(bits(Path("sweep", cell)) == whole[cell] for cell in CELLS if cell != BAD)
    told = json.loads(Path("sweep", BAD, FAILED).read_text())
    assert (told["rounds"], told["error"]) == (1, "RuntimeError: broken in two lines")
    assert "RuntimeError: broken\n" in "".join(told["traceback"])
    again = play(Path("sweep"), tiny(*GRID))
    assert [run.folder.name for run in again.runs] == [BAD] and again.failed == {}
    assert not Path("sweep", BAD, FAILED).exists()
    assert all_bits(Path("sweep")) == whole


def test_a_failed_cell_is_told_at_once_and_the_others_are_compared(monkeypatch):
    with monkeypatch.context() as patch:
        fails_to_save(patch)
        result = fedsift("run", *FAS, "rounds=3", *GRID, "--out", "my sweep")
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    said = result.stderr.splitlines()
    assert said.index(f"cell {BAD} failed: RuntimeError: broken in two lines") < said.index(
        next(line for line in said if line.startswith("round 3/3"))
    )
    assert result.stderr.endswith(
        f"1 of 4 cells failed: {BAD}\nOnce the causes are fixed, try them again with:\n"
        "  fedsift run --resume --out 'my sweep'\n"
    )
    assert [row[:2] for row in rows(result.stdout)] == [
        ["digits-fas alpha=0.1", "2"],
        ["digits-fas alpha=100", "1"],
    ]
    told = json.loads(done("run", "--resume", "--out", "my sweep", "--json").stdout)
    assert [method["seeds"] for method in told["methods"]] == [[0, 1], [0, 1]]


def test_a_disk_that_fills_up_under_one_cell_does_not_stop_the_others(whole, monkeypatch):
    write = file_module.write_atomic

    def full(path, content):
        if path.parent.name == BAD:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(file_module, "write_atomic", full)
        result = fedsift("run", *FAS, "rounds=2", *GRID, "--out", "sweep", "--quiet")
    assert (result.exit_code, result.stdout) == (1, "sweep\n")
    assert f"cell {BAD} failed: OSError: [Errno 28] No space left on device\n" in result.stderr
    done("run", "--resume", "--out", "sweep", "--quiet")
    assert all_bits(Path("sweep")) == whole


def test_a_damaged_cell_is_named_and_the_others_go_on(whole):
    play(Path("sweep"), tiny(*GRID), 6)
    Path("sweep", CELLS[3], CHECKPOINT).write_bytes(b"no checkpoint")
    result = fedsift("run", "--resume", "--out", "sweep", "--json")
    assert result.exit_code == 1
    assert f"cell {CELLS[3]} failed: cannot read sweep/{CELLS[3]}/{CHECKPOINT}: " in result.stderr
    told = json.loads(result.stdout)
    assert [failed["run"] for failed in told["failed"]] == [f"sweep/{CELLS[3]}"]
    assert [cell["run"] for cell in told["cells"]] == [f"sweep/{cell}" for cell in CELLS[:3]]
    assert all(bits(Path("sweep", cell)) == whole[cell] for cell in CELLS[:3])


def test_the_error_of_a_single_run_is_that_of_the_command_and_is_noted_too(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(file_module, "append_row", Mock(side_effect=RuntimeError("a bug")))
        assert str(fedsift("run", *FAS, "rounds=2", "--out", "run").exception) == "a bug"
    told = json.loads(Path("run", FAILED).read_text())
    assert (told["rounds"], told["error"]) == (0, "RuntimeError: a bug")
    done("run", "--resume", "--out", "run", "--quiet")
    assert not Path("run", FAILED).exists()


@pytest.mark.parametrize(
    "key, good, bad", [("budget", 6, 31), ("cohort", 2, 5), ("sampler", "mixed", "foo")]
)
def test_a_mistake_in_any_cell_is_named_before_anything_is_made(key, good, bad):
    assert complaint("run", *FAS, f"sweep.{key}=[{good}, {bad}]").startswith(
        f"error: cell {key}-{bad}: "
    )
    assert list(Path().iterdir()) == []


# --- the command line ---


def test_the_seeds_of_a_method_are_one_line_with_its_spread():
    result = done("run", *FAS, "rounds=2", "--seeds", "3", "--out", "sweep")
    cells = [runs.load_run(Path("sweep") / f"seed-{seed}") for seed in range(3)]
    settled = [history.summary()["accuracy"] for history in cells]
    spread = f"{np.mean(settled):.3f} ± {np.std(settled, ddof=1):.3f}"
    assert rows(result.stdout)[0][:3] == ["digits-fas", "3", spread]
    assert result.stdout.endswith("sweep folder: sweep\n")
    assert [method.label for method in report.methods(cells)] == ["digits-fas"]
    assert rows(done("compare", "sweep").stdout)[0][:3] == ["digits-fas", "3", spread]


def test_json_is_one_object_with_all_cells_and_methods():
    result = done("run", *FAS, "rounds=2", *GRID, "--out", "sweep", "--json")
    told = json.loads(result.stdout)
    assert list(told) == ["sweep", "methods", "cells", "failed"]
    assert [(m["method"], m["seeds"]) for m in told["methods"]] == [
        ("digits-fas alpha=0.1", [0, 1]),
        ("digits-fas alpha=100", [0, 1]),
    ]
    assert [(c["run"], c["name"], c["seed"]) for c in told["cells"]][2] == (
        "sweep/alpha-100-seed-0",
        "digits-fas alpha=100",
        0,
    )
    assert (
        told["cells"][1]["accuracy"]
        == runs.load_run(Path("sweep/alpha-0.1-seed-1")).summary()["accuracy"]
    )
    again = done("run", "--resume", "--out", "sweep", "--json")
    assert json.loads(again.stdout) == told
    assert "4 of 4 cells finished already" in again.stderr


def test_a_file_with_a_sweep_is_run_and_gone_on_with_by_its_own_name(whole):
    values = tomllib.loads(config.to_toml(next(iter(tiny(*GRID).cells.values()))))
    Path("mine.toml").write_text(
        config.to_toml(config.check_experiment(values | {"name": "digits-fas"}), tiny(*GRID).axes)
    )
    done("run", "mine.toml", "--out", "sweep", "--quiet")
    assert all_bits(Path("sweep")) == whole
    assert (
        "4 of 4 cells finished already"
        in done("run", "mine.toml", "--resume", "--out", "sweep").stderr
    )
    done("run", "mine.toml", "alpha=100", "seed=1", "--out", "one", "--quiet")
    assert (Path("one") / METRICS).read_bytes() == whole["alpha-100-seed-1"][METRICS]


def test_without_out_a_sweep_gets_a_folder_of_its_own():
    done("run", *FAS, "rounds=1", "--seeds", "2", "--quiet")
    (folder,) = Path("runs").iterdir()
    assert re.fullmatch(r"digits-fas-\d{8}-\d{6}", folder.name)
    assert file_names(folder) == {SWEEP, LOCK, "seed-0", "seed-1"}


def test_a_sweep_or_a_run_is_not_mistaken_for_the_other():
    done("run", *FAS, "rounds=1", "--seeds", "2", "--out", "sweep", "--quiet")
    straight(Path("run"), tiny(rounds=1).cells[""])
    words = ["run", *FAS, "rounds=1"]
    for more in ([], ["--resume"]):
        assert "sweep exists and is not a run folder" in complaint(*words, "--out", "sweep", *more)
        assert "run exists and is not the folder of a sweep" in complaint(
            *words, "--seeds", "2", "--out", "run", *more
        )
    assert "sweep folder sweep exists; add --resume" in complaint(
        *words, "--seeds", "2", "--out", "sweep"
    )


@pytest.mark.parametrize(
    "words, said",
    [
        (["--seeds", "3"], "sweep.seed is [0, 1] there, [0, 1, 2] here;"),
        (
            ["sweep.alpha=[1, 2]"],
            "sweep.seed is [0, 1] there, not swept here; "
            "sweep.alpha is not swept there, [1, 2] here;",
        ),
        (["--seeds", "2", "alpha=3"], "partition.alpha is 1.0 there, 3.0 here;"),
        (["--seeds", "2", "name=other"], "name is 'digits-fas' there, 'other' here;"),
    ],
)
def test_a_resume_with_another_sweep_names_what_differs(words, said):
    play(Path("sweep"), tiny("sweep.seed=[0, 1]"), 1)
    assert f"error: sweep was made with another sweep: {said} choose" in complaint(
        "run", *FAS, "rounds=2", *words, "--resume", "--out", "sweep"
    )


def test_a_sweep_may_go_on_with_another_bound_of_memory(whole):
    play(Path("sweep"), tiny(*GRID), 1)
    play(Path("sweep"), tiny(*GRID, "memory=0.001"))
    assert all_bits(Path("sweep")) == whole


@pytest.mark.slow
def test_a_second_process_in_the_same_sweep_is_refused():
    playing = sweeps.begin_sweep(Path("sweep"), tiny(*GRID))
    result = program("run", "--resume", "--out", "sweep")
    assert (result.returncode, result.stderr) == (2, "error: another process is running in sweep\n")
    playing.release()


@pytest.mark.parametrize("own", ["seed=3", "sweep.seed=[1, 2]"])
def test_seeds_and_a_seed_of_your_own_contradict_each_other(own):
    assert (
        complaint("run", *FAS, own, "--seeds", "3")
        == "error: give --seeds or a seed of your own, not both\n"
    )


def test_an_axis_that_no_cell_uses_is_noted():
    words = ["run", "digits-fedavg", *KINDS["digits-fas"][:-1], "rounds=1", "--seeds", "2"]
    result = done(*words, "sweep.sampler=[mixed]", "--out", "avg")
    assert "note: this experiment does not use algorithm.sampler\n" in result.stderr
    mixed = done(
        "run", *FAS, "rounds=1", "sweep.algorithm=[fas, fedavg]", "sampler=mixed", "--out", "mixed"
    )
    assert "note:" not in mixed.stderr


def test_new_shows_how_to_sweep():
    done("new", "digits-fas", "mine.toml")
    text = Path("mine.toml").read_text()
    assert sweeps.read("mine.toml").axes == {}
    example = text[text.index("# [sweep]") :]
    Path("mine.toml").write_text(
        text.replace(example, re.sub("^# ", "", example, flags=re.MULTILINE))
    )
    assert sweeps.read("mine.toml").axes == {
        "seed": [0, 1, 2],
        "partition.alpha": [0.1, 1, 100],
        "local.lr": [0.001, 0.002],
    }


@pytest.mark.parametrize("width", slow_but([13, 26], 13))
def test_the_progress_of_many_cells_stays_readable(width, monkeypatch):
    """Thirteen seeds of one method or of two, or thirteen methods and more: never a bar for each
    run.
    """
    words = ["run", *FAS, "rounds=1", "data.test=20", f"sweep.seed={list(range(13))}", "--json"]
    more = [f"sweep.alpha={list(range(1, 1 + width // 13))}"]
    by_line = done(*words, *more, "--out", "lines").stderr.splitlines()
    assert len(by_line) == 3 and by_line[2].startswith("round 1/1  accuracy digits-fas alpha=1 0.")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    bars = done(*words, *more, "--out", "bars").stderr
    assert f"{width} runs" in bars and f"{width}/{width}" in bars and "13/13" in bars
    assert "seed 0" not in bars


def test_of_many_methods_only_the_range_is_told():
    settings = [
        "rounds=1",
        "data.test=20",
        f"sweep.alpha={list(range(1, 14))}",
        "--out",
        "sweep",
        "--json",
    ]
    result = done("run", *FAS, *settings)
    low, high = (f(c["accuracy"] for c in json.loads(result.stdout)["cells"]) for f in (min, max))
    assert f"round 1/1  accuracy {low:.3f} to {high:.3f} over 13 methods" in result.stderr


# --- Ctrl-C and SIGTERM ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop, word, code", [(interrupted, "interrupted", 130), (terminated, "terminated", 143)]
)
def test_a_stopped_sweep_prints_the_command_that_goes_on_to_the_same_bits(
    stop, word, code, tmp_path
):
    seeds = "sweep.seed=[0, 1]"
    result = stop(
        ["run", *FAS, "rounds=10", seeds, "--out", "sweep"],
        lambda: rounds_in(Path("sweep/seed-0")) >= 2,
    )
    assert (result.returncode, result.stdout) == (code, "")
    assert "Traceback" not in result.stderr
    assert result.stderr.endswith(
        f"{word}; every finished round is saved. Resume with:\n  fedsift run --resume --out sweep\n"
    )
    assert by_shell(result.stderr.splitlines()[-1]).returncode == 0
    for name, cell in tiny(seeds, rounds=10).cells.items():
        assert bits(Path("sweep", name)) == bits(straight(tmp_path / name, cell))


@pytest.mark.slow
def test_a_sweep_stopped_while_its_cells_are_set_up_says_how_to_go_on():
    result = terminated(
        ["run", *FAS, "rounds=1", "--seeds", "4", "--out", "sweep"], Path("sweep/seed-0").exists
    )
    assert (result.returncode, result.stdout) == (143, "")
    assert result.stderr.endswith("Resume with:\n  fedsift run --resume --out sweep\n")
    done("run", "--resume", "--out", "sweep", "--quiet")
    assert [rounds_in(Path("sweep", f"seed-{seed}")) for seed in range(4)] == [1, 1, 1, 1]


@pytest.mark.slow
def test_a_terminated_run_says_how_to_go_on():
    result = terminated(
        ["run", *FAS, "rounds=40", "--out", "run"], lambda: rounds_in(Path("run")) >= 2
    )
    assert (result.returncode, result.stdout) == (143, "")
    assert result.stderr.endswith(
        "terminated; every finished round is saved. Resume with:\n  fedsift run --resume "
        "--out run\n"
    )


def test_sigterm_is_set_back_when_a_verb_is_done():
    before = signal.getsignal(signal.SIGTERM)
    done("ls", "samplers")
    assert signal.getsignal(signal.SIGTERM) is before
