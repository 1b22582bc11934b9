"""The pages that a reader follows: every block of code and every command on them is run."""

import re
import shutil
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from fedsift import growth, sweeps
from fedsift.data import loading
from fedsift.data.known import DATASETS
from fedsift.engines import ENGINES
from fedsift.report.live import Server
from tests.helpers.cli import done
from tests.helpers.pages import (
    ROOT,
    Step,
    follow,
    forget_modules,
    read_needs,
    read_steps,
    read_walk,
    read_words,
)
from tests.helpers.stand_ins import STAND_INS


def list_pages() -> list[str]:
    """The README and all that the navigation of the site names, but the pages that are made."""
    nav = re.findall(r'"([\w/.-]+\.md)"', (ROOT / "zensical.toml").read_text())
    places = [name for name in nav if not name.startswith("reference/")]
    files = [
        name.removeprefix("repository/") if "repository/" in name else f"docs/{name}"
        for name in places
    ]
    return ["README.md", *(name.replace("index.md", "README.md") for name in files)]


PAGES = list_pages()
# What no test runs, by what it needs: how a command begins. The pages say so in the same words.
NOT_RUN = {
    "a network": r"(/opt/.*)?pip |pre-commit |make setup|python3 -m venv|fedsift data get",
    "a GPU": r"(?!.*--address)fedsift (run|reproduce) .*--device cuda",
    "a cluster": r"ray |fedsift run .*--address",
}
MOST = 25  # commands that are not run
# Commands that another test runs in its own way; it asks for them by `find_command`.
BESIDE = {
    "make demo": "tests/cli/test_demo.py",
    "fedsift flower admit": "tests/flower/test_walk.py",
    "fedsift flower up app": "tests/flower/test_real_federation.py",
    "fedsift run digits-fas --engine ray": "tests/engines/spread/test_on_ray.py",
}
CHANGED = "CONTRIBUTING.md"  # its blocks change fedsift itself: see the test of a copy
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


@pytest.fixture
def surroundings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the pages take for granted: fetched data, a checkout, a reader. Ray is too slow."""
    for name, load in STAND_INS.items():
        monkeypatch.setitem(DATASETS, name, load)
    monkeypatch.delitem(ENGINES, "ray")
    monkeypatch.setattr(growth, "AXES", {"rounds": (1, 2)})
    monkeypatch.setattr(growth, "_run_in_new_process", lambda s: growth.run_point(asdict(s)))
    monkeypatch.setattr(Server, "serve", look_and_stop)
    (folder / ".venv").symlink_to(sys.prefix)
    report = "results/fas-icc2022/cifar10-ours"
    shutil.copytree(ROOT / report, folder / report)
    return folder


serve = Server.serve


def look_and_stop(server: Server) -> None:
    """As a reader does: open the page, and press Ctrl-C."""
    thread = threading.Thread(target=serve, args=[server], daemon=True)
    thread.start()
    with urllib.request.urlopen(server.address, timeout=60) as page:
        assert b'data-live="true"' in page.read()
    server.close()
    thread.join(60)
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page != CHANGED])
def test_what_a_page_says_can_be_done(page, surroundings):
    walked = [re.escape(command) + "$" for part in read_walk().values() for command in part]
    elsewhere = [*BESIDE, *(walked if page == "docs/deploy.md" else [])]
    assert follow(ROOT / page, [*NOT_RUN.values(), *elsewhere]) == len(read_steps(ROOT / page))


def find_need(step: Step) -> str | None:
    """Why a step is not run."""
    fits = [need for need, begin in NOT_RUN.items() if re.match(begin, step.text)]
    return fits[0] if fits and step.kind == "command" else None


def test_a_page_says_what_is_not_run_and_why():
    """A sentence in each section with such a command, and in no other."""
    count = 0
    for page in PAGES:
        needs: dict[str, set[str]] = {}
        for step in read_steps(ROOT / page):
            if need := find_need(step):
                needs.setdefault(step.section, set()).add(need)
                count += 1
        said = {
            section: set(text.split(" or ")) for section, text in read_needs(ROOT / page).items()
        }
        assert said == needs, page
    assert 1 <= count <= MOST


def test_what_runs_elsewhere_is_taken_from_the_page():
    walked = [command for part in read_walk().values() for command in part]
    for beginning, file in BESIDE.items():
        text = (ROOT / file).read_text()
        found = re.search(rf'find_command\("[\w/]+\.md", "{beginning}', text)
        assert found or ("read_walk()" in text and any(c.startswith(beginning) for c in walked))


def test_the_pages_of_the_site_are_read():
    assert set(PAGES) >= {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert set(PAGES) >= {"README.md", CHANGED, "examples/README.md", "docs/algorithms/fd.md"}
    assert len(read_steps(ROOT / "docs/your-own.md")) >= 30
    assert len(read_steps(ROOT / "docs/tutorial.md")) >= 15


def test_commands_that_are_not_run_name_a_right_experiment():
    """Their presets and keys exist, and the values are of the right type."""
    seen = 0
    for page in PAGES:
        for step in read_steps(ROOT / page):
            if find_need(step) and step.text.startswith("fedsift run "):
                preset, *values = (w for w in read_words(step.text)[2:] if "=" in w or "-" in w[1:])
                assert sweeps.read(preset, [v for v in values if v[0] != "-"])
                seen += 1
    assert seen >= 3


def test_the_advice_on_the_page_is_what_is_printed(monkeypatch):
    page = (ROOT / "docs/budget.md").read_text()
    command, shown = re.findall(
        r"^    fedsift (advise .*)\n\n```text\n(.*?)```$", page, re.M | re.S
    )[0]
    monkeypatch.setenv("COLUMNS", "100")
    assert shown.split() == done(*command.split()).stdout.split()


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
