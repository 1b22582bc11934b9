"""Tables, bars and lists in narrow terminals, and streams that are odd or closed."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsift.cli.console import format_bytes
from fedsift.cli.progress import fit_bars
from tests.helpers.cli import done, program, rows
from tests.helpers.runs import PROGRAM, straight, tiny
from tests.helpers.tiers import slow_but

WIDTHS = (60, 80, 120)
NAMES = ("digits-fas-low-entropy", "digits-fas alpha=0.1 sampler=mixed", "a" * 43)


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory) -> Path:
    """Two seeds of three methods with long names."""
    home = tmp_path_factory.mktemp("runs")
    for place, name in enumerate(NAMES):
        for seed in (0, 1):
            settings = (f"name={name}", f"seed={seed}", f"budget={place + 2}")
            straight(home / f"{place}-{seed}", tiny("digits-fas", *settings, rounds=1))
    return home


@pytest.mark.parametrize("width", WIDTHS)
def test_compare_has_one_line_per_method_with_its_name_whole(runs_folder, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    text = done("compare", str(runs_folder)).stdout
    assert max(map(len, text.splitlines())) <= width
    assert "± standard deviation over seeds" in " ".join(text.split())
    table = [line for line in text.splitlines() if re.search(r"\d\.\d{3} ± \d\.\d{3}", line)]
    assert len(table) == len(NAMES)
    for name, line in zip(NAMES, table, strict=True):
        assert line.strip().startswith(name)
    header = next(line for line in text.splitlines() if line.strip().startswith("method"))
    assert ("all up" in header) == (width == 120)
    assert "…" not in text


def test_where_names_leave_no_room_the_figures_follow_on_their_own_line(monkeypatch):
    name = "digits-fas " + "x" * 45
    straight(Path("long"), tiny("digits-fas", f"name={name}", rounds=1))
    monkeypatch.setenv("COLUMNS", "60")
    lines = done("compare", "long").stdout.splitlines()
    (place,) = (n for n, line in enumerate(lines) if line.startswith(name))
    assert re.fullmatch(r"    0\.\d{3}  seeds 1  265 B per upload", lines[place + 1])


@pytest.mark.parametrize("width", slow_but(WIDTHS, 60))
@pytest.mark.parametrize("verb", ["show", "theory"])
def test_no_figure_is_cut(verb, width, monkeypatch):
    straight(Path("fas"), tiny(rounds=2))
    monkeypatch.setenv("COLUMNS", str(width))
    small = ["--dimension", "200", "--trials", "4"]
    words = {"show": ["fas"], "theory": small}[verb]
    text = done(verb, *words).stdout
    assert "…" not in text
    if verb == "theory":
        assert len(re.findall(r"\d\.\d{4} ± \d\.\d{4}", text)) == 48
    else:
        assert [cells[0] for cells in rows(text)[:2]] == ["1", "2"]


@pytest.mark.parametrize("width", WIDTHS)
def test_ls_is_wrapped_to_the_terminal_with_a_hanging_indent(width, monkeypatch):
    unwrapped = done("ls", "algorithms").stdout.splitlines()
    monkeypatch.setenv("COLUMNS", str(width))
    text = done("ls", "algorithms").stdout
    assert max(map(len, text.splitlines())) <= width
    again = re.sub(r"\n {25}", " ", text).splitlines()
    assert [line.split() for line in again] == [line.split() for line in unwrapped]


def test_float16_and_float32_are_told_apart():
    about = dict(line.split(maxsplit=1) for line in done("ls", "codecs").stdout.splitlines())
    assert "4 bytes" in about["float32"] and "2 bytes" in about["float16"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["digits-fedavg seed 0", "b" * 60 + " seed 12"])
def test_a_bar_keeps_the_time_left_and_ten_columns(width, name):
    layout = fit_bars([name], width)
    figures = layout.format_figures([(0.5, 123_456)])
    assert layout.bar >= 10
    parts = (layout.shorten(name), "#" * layout.bar, "150/150", figures, "0:00:00")
    assert len(" ".join(parts)) <= width
    assert layout.shorten(name).split()[-1] == name.split()[-1]
    assert layout.uplink == (width == 120 and len(name) < 40)


def test_a_failed_run_is_counted_in_its_bar():
    figures = {
        width: fit_bars(["digits-fedavg seed 0"], width).format_figures([(0.5, 1000), None, None])
        for width in WIDTHS
    }
    assert figures == {60: "2 failed", 80: "2 failed  0.500", 120: "2 failed  accuracy 0.500"}
    assert fit_bars([], 80).format_figures([]) == ""


def test_sizes_are_rounded_to_a_thousand():
    assert [format_bytes(n) for n in (0, 999, 1000, 1550, 999_940, 2_500_000, 7e9, 7e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.6 kB",
        "999.9 kB",
        "2.5 MB",
        "7.0 GB",
        "7000.0 GB",
    ]


# --- help and completion ---


@pytest.mark.parametrize("words", [[], ["run"], ["data", "get"], ["bench", "engines"]])
def test_the_short_option_for_help_is_the_same_as_the_long_one(words):
    assert done(*words, "-h").stdout == done(*words, "--help").stdout


def test_the_help_of_run_says_where_the_keys_are():
    assert "All keys with their meaning: fedsift new PRESET FILE.toml" in done("run", "-h").stdout


def test_completion_can_be_installed_and_knows_the_verbs():
    assert "--install-completion" in done("--help").stdout
    asked = {"_FEDSIFT_COMPLETE": "complete_bash", "COMP_WORDS": "fedsift comp", "COMP_CWORD": "1"}
    start = "from fedsift.cli import app; app(prog_name='fedsift')"
    result = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, env=os.environ | asked
    )
    assert result.stdout.split() == ["compare"]


# --- no traceback ---


def test_a_terminal_without_the_plus_minus_sign_gets_another(runs_folder):
    env = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = program("compare", str(runs_folder), env=env)
    assert (result.returncode, "Traceback" in result.stderr) == (0, False)
    assert len(re.findall(r"\d\.\d{3} \+- \d\.\d{3}", result.stdout)) == len(NAMES)


@pytest.mark.parametrize("words", slow_but(["ls engines", "--help", "compare {}"], "--help"))
def test_closed_streams_are_no_error(words, runs_folder):
    command = shlex.join([*PROGRAM, *words.format(runs_folder).split()])
    for closed in (">&-", "2>&-"):
        result = subprocess.run(
            f"{command} {closed}", shell=True, capture_output=True, text=True, timeout=100
        )
        assert (result.returncode, "Traceback" in result.stderr + result.stdout) == (0, False)


def test_ctrl_c_while_modules_are_imported_leaves_no_traceback():
    """An import that takes long stands for typer's and torch's."""
    Path("typer.py").write_text(
        "import time, pathlib\npathlib.Path('now').touch()\ntime.sleep(30)\n"
    )
    start = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "sys.path.insert(0, '.'); from fedsift.__main__ import main; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", start, "ls"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until = time.monotonic() + 30
        while not Path("now").exists() and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
