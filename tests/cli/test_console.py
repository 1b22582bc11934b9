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

from fedsift import bench
from fedsift.cli.console import format_bytes
from fedsift.cli.progress import fit_bars
from tests.helpers.cli import FAS, done, on_terminal, program, rows
from tests.helpers.runs import PROGRAM, straight, tiny
from tests.helpers.tiers import slow_but

RESULTS = Path(__file__).parents[2] / "results"

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
    assert ("gap" in header) == (width == 120)
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


@pytest.mark.parametrize("width", [60, 80])
def test_data_ls_keeps_names_and_sizes_whole(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = done("data", "ls", "--dir", "data").stdout
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    for name, size in (("fashion-mnist", "30.9 MB"), ("cifar100", "169.0 MB")):
        assert re.search(rf"^ {name} +{size} +no ", text, re.MULTILINE)
    assert "a digit each" in " ".join(text.split())


def make_spread(median: float) -> dict[str, float]:
    return {"median": median, "low": median * 0.9, "high": median * 1.1}


@pytest.mark.parametrize(
    "width, kept",
    [
        (60, ["times the plain loop"]),
        (80, ["ms per model-step", "times the plain loop"]),
        (120, ["ms per model-step", "models per second", "times the plain loop"]),
    ],
)
def test_the_table_of_engines_keeps_ways_and_their_speed(width, kept, monkeypatch):
    figures = ("ms_per_model_step", "models_per_second", "times_plain_loop")
    names = ["plain loop", "sequential engine, one thread"]
    ways = [{"way": name} | dict.fromkeys(figures, make_spread(1.234)) for name in names]
    case = {"model": "cnn", "shape": (1, 8, 8), "clients": 20, "samples": 40, "batch": 16}
    machine = {"cores": 2, "processor": "x", "gpu": None, "torch": "2"}
    result = {"cases": [case | {"ways": ways}], "device": "cpu", "machine": machine}
    monkeypatch.setattr(bench, "engines", lambda *_: result)
    monkeypatch.setenv("COLUMNS", str(width))
    text = done("bench", "engines").stdout
    (header,) = (line for line in text.splitlines() if line.startswith(" way "))
    assert re.split(r"\s{2,}", header.strip()) == ["way", *kept]
    assert [cells[0] for cells in rows(text)] == names
    assert [cells[-1] for cells in rows(text)] == ["1.234 (1.111 to 1.357)"] * 2


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_a_large_federation_gives_up_ranges_not_columns(width, monkeypatch):
    keys = ("setup_s", "round_s", "round_cpu_s", "peak_mib")
    federations = [
        {"clients": clients} | dict.fromkeys(keys, make_spread(1.234))
        for clients in (1000, 1_000_000)
    ]
    machine = {"cores": 2, "processor": "x", "gpu": None, "torch": "2"}
    ratios = {"round_ratio": make_spread(1.1), "round_cpu_ratio": make_spread(1.2)}
    result = ratios | {"federations": federations, "machine": machine}
    monkeypatch.setattr(bench, "scale", lambda *_: result)
    monkeypatch.setenv("COLUMNS", str(width))
    figure = "1.234 (1.111 to 1.357)" if width == 120 else "1.234"
    text = done("bench", "scale").stdout
    assert rows(text) == [["1,000", *[figure] * 4], ["1,000,000", *[figure] * 4]]


@pytest.mark.parametrize("width", [60, 80])
def test_what_reproduce_prints_fits_with_labels_claims_and_figures_whole(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    found = str(RESULTS / "fas-icc2022" / "digits-ours")
    words = ("reproduce", "fas-icc2022", "beyond", "--quick", "--report", "--out", found)
    report, listed = done(*words).stdout, done("reproduce", "fas-icc2022").stdout
    lines = [*report.partition("\nread: ")[0].splitlines(), *listed.splitlines()]
    assert max(map(len, lines)) <= width
    assert "…" not in report
    cells = [line.split("  ")[0].strip() for line in lines if line.endswith(" B ")]
    assert len(cells) == 15 and cells[-1] == "low-entropy x 2, ERA, 4 bits, EMA"
    claim = "does not hold: margin is better than mixed with a plain mean\n    beyond-margin at"
    assert claim in report
    assert "  beyond           Beyond the paper: what else helps at" in listed


@pytest.mark.parametrize("width", [60, 80])
def test_a_live_bar_in_a_terminal_has_name_count_and_time_left(width):
    text = on_terminal(["run", *FAS, "rounds=2", "--out", "fas"], width)
    bars = [line.rstrip() for line in re.split(r"[\r\n]+", text) if "seed 0" in line]
    assert bars and max(map(len, bars)) <= width
    whole = r"digits-fas seed 0 \S{10,40} +[012]/2 .*(\d:\d\d:\d\d|-:--:--)"
    assert [bar for bar in bars if not re.fullmatch(whole, bar)] == []
    assert re.search(r" 2/2 .*0\.\d{3} +0:00:00$", bars[-1])
    assert "run folder: fas" in text


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
