"""The pages that a reader follows: every block of code and every command on them is run."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsift import config, sweeps
from fedsift.data import loading
from tests.helpers.pages import follow, forget_modules, is_left_out, read_steps, read_words

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if read_steps(page)
)
# What no test runs as it stands: how a command begins or what code contains, and why.
NOT_RUN = {
    r"make |source |mkdir |pip ": "the reader's own environment; CI sets one up",
    r"fedsift run .*cifar10|fedsift run .*--device cuda|fedsift data get|python tools/try_advice": (
        "needs a download or a GPU; the keys of its experiment are checked"
    ),
    r"fedsift watch|fedsift run .*--watch": "serves until it is stopped; tests/report/test_live.py",
    r"fedsift run .*(spam-assassin|japanese-vowels)": "needs a download; its keys are checked",
    r"fedsift run .*--engine ray": "a cluster; the tests of that engine start small ones",
    r"fedsift run .*--track csv,tensorboard": "the test of trackers reads the files back",
    r"fedsift bench": "a measurement",
    r"fedsift reproduce": "minutes to hours; tests/papers and tests/cli run small ones",
    r"fedsift flower|flower-|fedsift show runs/app": (
        "several machines; tests/flower walks through them"
    ),
    r"fedsift run .*--engine ray|fedsift cluster|pip install .fedsift": (
        "Ray; tests/engines/spread/test_on_ray.py"
    ),
    r"import pandas|cifar100": "code that needs a package or a download we do not have",
    r"fedsift run hospitals --seeds 5": "the same as with one seed",
}
LONGEST_README = 900  # words


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= LONGEST_README


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget_modules(tmp_path)
    loading._load_once.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_can_be_done(page, folder):
    assert follow(ROOT / page, folder, NOT_RUN) == len(read_steps(ROOT / page))


def test_the_pages_with_examples_are_found():
    must = {"README.md", "docs/tutorial.md", "docs/your-own.md", "docs/your-own-data.md"}
    assert must | {"docs/any-client.md", "docs/results-out.md", "docs/sweeps.md"} <= set(PAGES)
    assert len(read_steps(ROOT / "docs/your-own.md")) >= 30
    assert len(read_steps(ROOT / "docs/tutorial.md")) >= 15


def test_commands_that_are_not_run_name_a_right_experiment():
    """Their presets and keys exist, and the values are of the right type."""
    seen = 0
    for page in PAGES:
        for step in read_steps(ROOT / page):
            if not re.match(r"fedsift run (?!--)", step.text) or not is_left_out(step, NOT_RUN):
                continue
            preset, *settings = (w for w in read_words(step.text)[2:] if not w.startswith("--"))
            values = [value for value in settings if "=" in value and "mine:" not in value]
            if any(value.startswith("sweep.") for value in values):
                assert sweeps.read(preset, values).cells
            else:
                config.read_experiment(preset, values)
            seen += 1
    assert seen >= 10


def test_every_picture_names_what_draws_it():
    told = (ROOT / "docs/pictures.md").read_text().partition("## Every picture")[2]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {
        name for page in pages for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text())
    }
    assert shown
    for name in shown:
        assert "results/" in name or f"]({Path(name).name})" in told, name
    for tool in re.findall(r"python (tools/\w+\.py)", told):
        assert (ROOT / tool).is_file()
