"""The report in a real browser: headless Chromium, from a file, with the network watched."""

import json
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsift import config, runs
from fedsift.data import DATASETS, make_dataset
from fedsift.report import pages
from fedsift.report.page_data import describe_page
from tests.helpers import fake_flower
from tests.helpers.cli import done
from tests.helpers.data_files import images
from tests.helpers.runs import TINY, straight, tiny

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium")
QUIET = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
FLAGS = [f"--{flag}" for flag in (QUIET + " disable-component-update disable-sync").split()]
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
RTL = "\u202e\u05d0\u05d1\u05d2 " + "long" * 60


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no browser here: make browser installs Debian's chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=120_000)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Two methods, one with two seeds; a run on texts; a hostile one."""
    home = tmp_path_factory.mktemp("pages")
    straight(home / "fas-0", tiny("digits-fas", "partition.alpha=0.1"))
    straight(home / "fas-1", tiny("digits-fas", "partition.alpha=0.1", "seed=1"))
    straight(home / "avg-0", tiny("digits-fedavg", "model=mlp", "partition.alpha=0.1"))
    done(
        "report",
        *(str(home / name) for name in ("fas-0", "fas-1", "avg-0")),
        "-o",
        str(home / "a.html"),
    )
    make_hostile(home)
    return home


# --- runs of every kind ---


def play_demo(home: Path) -> list[Path]:
    done("demo", "--out", str(home), "--seeds", "1", "--rounds", "1", "--quiet")
    return [home]


def play_photographs(home: Path) -> list[Path]:
    """Two samplers, two seeds: a sweep on what CIFAR-10 would be if its pixels were noise."""
    x, y = images(200), np.arange(200) % 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "cifar10", lambda: make_dataset(x, y))
        for sampler, seed in product(("none", "mixed"), range(2)):
            words = ("data.name=cifar10", f"sampler={sampler}", f"seed={seed}")
            straight(home / f"{sampler}-{seed}", tiny("digits-fas", *words, rounds=2))
    return [home]


def play_texts(home: Path) -> list[Path]:
    words = "clients=3 cohort=3 data.private=60 data.public=30 budget=6 rounds=2 device=cpu"
    return [straight(home / "texts", config.read_experiment("text-fas", words.split()))]


def play_on_flower(home: Path) -> list[Path]:
    """On a grid in this process; one client does not answer."""
    task = fake_flower.a_task(home / "app")
    grid, how = fake_flower.federation(task, fake_flower.overrides("fas", 2), 4, home / "run")
    grid.nodes[7].meddle = lambda message, reply: None
    fake_flower.play(task, grid, how)
    return [home / "run"]


def play_a_paper(home: Path) -> list[Path]:
    few = (*TINY, "model=mlp", "budget=6", "rounds=1")
    done("reproduce", "fas-icc2022", "table1", "--quick", "--seeds", "1", *few, "--out", str(home))
    return [home / "runs"]


def play_a_thousand(home: Path) -> list[Path]:
    words = ("clients=1000", "cohort=20", "data.private=1000", "name=crowd")
    return [straight(home / "crowd", tiny("digits-fas", *words, rounds=1))]


KINDS = {
    "demo": (play_demo, "images", 4),
    "photographs": (play_photographs, "images", 2),
    "texts": (play_texts, "texts", 1),
    "flower": (play_on_flower, "images", 1),
    "paper": (play_a_paper, "images", 12),
    "thousand": (play_a_thousand, "images", 1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_its_page(browser, tmp_path, kind):
    play, sheet, methods = KINDS[kind]
    folders = [str(folder) for folder in play(tmp_path)]
    told = json.loads(done("compare", *folders, "--json").stdout)["methods"]
    assert len(told) == methods
    done("report", *folders, "-o", str(tmp_path / "page.html"))
    with Tab(browser, tmp_path / "page.html") as page:
        marks = page.locator("#curve-bytes .mark").evaluate_all(
            "all => all.map((one) => [one.dataset.name, Number(one.dataset.x)])"
        )
        assert dict(marks) == {m["method"]: pytest.approx(m["uplink_bytes"], abs=1) for m in told}
        assert page.locator(f"#talk .card-{sheet}").count() > 0
        for wide in (1440, 360):
            page.set_viewport_size({"width": wide, "height": 900})
            assert spills(page) == 0
            assert page.evaluate(CONTRAST) == []
        seen = page.locator("main").inner_text()
    if kind == "photographs":
        assert "truth: " in seen and "automobile" in seen
    elif kind == "flower":
        assert "truth:" not in seen and "did not answer" in seen
    elif kind == "thousand":
        assert "of 1,000 clients" in seen


# --- hostile ones ---


def make_hostile(home: Path) -> None:
    """A page whose every text is an attack: names, classes, errors, texts of samples."""
    data = describe_page([runs.load_run(home / "fas-0"), runs.load_run(home / "avg-0")])
    for run in data["runs"]:
        run["name"], run["folder"], run["command"] = HOSTILE, HOSTILE, HOSTILE
        run["classes"] = [HOSTILE, RTL, *(f"{HOSTILE}{i}" for i in range(8))]
        run["missing"] = {"count": 2, "rows": [[0, 1, HOSTILE], [1, 2, RTL]]}
        run["state"] = {"name": "failed", "why": HOSTILE, "resumed": 2}
        run["config"] = {HOSTILE: HOSTILE}
    for method in data["methods"]:
        method["method"] = HOSTILE + RTL
    (sheet,) = data["samples"]
    sheet |= {"kind": "texts", "texts": [HOSTILE if i % 2 else RTL for i in sheet["samples"]]}
    (home / "hostile.html").write_text(pages.make_page(data))


class Tab:
    """A page that is open, and what it did that it should not."""

    def __init__(self, browser: Any, file: Path, width: int = 1440, dark: bool = False) -> None:
        scheme = "dark" if dark else "light"
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", lambda told: self.faults.append(told.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self._note(request.url, file))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("#settings")

    def _note(self, address: str, file: Path) -> None:
        if address != file.as_uri() and not address.startswith("data:"):
            self.faults.append(address)

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: Any, *_: object) -> None:
        self.context.close()
        assert kind is not None or not self.faults, self.faults


def test_charts_have_the_numbers_of_compare(browser, home):
    folders = [str(home / name) for name in ("fas-0", "fas-1", "avg-0")]
    told = json.loads(done("compare", *folders, "--json").stdout)
    with Tab(browser, home / "a.html") as page:
        rows = page.locator("#overview tbody tr")
        for place, method in enumerate(told["methods"]):
            text = rows.nth(place).inner_text()
            assert method["method"] in text and f"{method['accuracy']:.3f}" in text
            marks = page.locator(f"#curve-rounds .mark[data-name='{method['method']}']")
            drawn = marks.evaluate_all("all => all.map((one) => Number(one.dataset.y))")
            assert sum(drawn) / len(drawn) == pytest.approx(method["accuracy"], abs=1e-6)
            last = page.locator(f"#curve-bytes .mark[data-name='{method['method']}']").last
            sent = float(last.get_attribute("data-x"))
            assert sent == pytest.approx(method["uplink_bytes"], abs=1)
        parts = page.locator("#bytes-methods rect[data-part='up']")
        drawn = parts.evaluate_all("all => all.map((one) => Number(one.dataset.value))")
        assert drawn == [method["uplink_bytes"] for method in told["methods"]]


def test_a_tooltip_has_the_number_of_its_round(browser, home):
    accuracies = [runs.load_run(home / name).accuracies for name in ("fas-0", "fas-1")]
    with Tab(browser, home / "a.html") as page:
        page.locator("#curve-rounds svg").scroll_into_view_if_needed()
        page.locator("#curve-rounds .mark").nth(1).hover(force=True)
        told = page.locator("#tip").inner_text()
        assert "round: 2" in told
        assert f"{(accuracies[0][1] + accuracies[1][1]) / 2:.4f}" in told
        page.locator("#curve-rounds svg").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        told = page.locator("#tip").inner_text()
        assert "round: 3" in told
        assert f"{(accuracies[0][2] + accuracies[1][2]) / 2:.4f}" in told


def test_methods_and_seeds_are_switched_by_mouse_and_by_keyboard(browser, home):
    with Tab(browser, home / "a.html") as page:
        lines = page.locator("#curve-rounds polyline")
        assert lines.count() == 2
        first = page.locator(".toggle").first
        first.click()
        assert lines.count() == 1 and first.get_attribute("aria-pressed") == "false"
        first.focus()
        page.keyboard.press("Enter")
        assert lines.count() == 2
        page.locator("#seeds").focus()
        page.keyboard.press("Space")
        assert lines.count() == 4 and page.locator("#curve-rounds .faint").count() == 2


def test_zoom_by_mouse_and_by_keyboard(browser, home):
    with Tab(browser, home / "a.html") as page:
        chart = page.locator("#curve-rounds svg")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 60)
        page.mouse.up()
        back = page.locator("#curve-rounds button")
        assert back.is_visible()
        back.click()
        assert not back.is_visible()
        page.locator("#curve-rounds svg").focus()
        page.keyboard.press("+")
        assert back.is_visible()
        page.keyboard.press("Escape")
        assert not back.is_visible()


def test_the_conversation_by_mouse_and_by_keyboard(browser, home):
    recording = runs.read_recording(home / "fas-0")
    assert recording is not None
    with Tab(browser, home / "a.html") as page:
        for number in (2, 0):
            if number == 0:
                page.locator("#talk-round").focus()
                page.keyboard.press("Home")
            for client, told in recording.rounds[number]["clients"].items():
                page.locator(f"#talk-client-{client}").click()
                assert (
                    f"Client {client} uploads 6 soft labels"
                    in page.locator("#talk-said").inner_text()
                )
                cards = page.locator("#talk .card")
                shown = cards.evaluate_all("all => all.map((one) => one.dataset.sample)")
                assert shown == list(told["said"])
                bar = cards.first.locator(".bar-row").first
                said = told["said"][shown[0]]
                assert bar.get_attribute("data-class") == str(said[0])
                assert bar.get_attribute("data-share") == str(said[1])
        page.locator("#talk-disputed").focus()
        page.keyboard.press("Enter")
        contested = recording.rounds[0]["contested"]
        assert f"On {contested} samples" in page.locator("#talk").inner_text()
        page.locator("#talk-unlabelled").click()
        left = 30 - recording.rounds[0]["labelled"]
        assert f"Nobody labels {left} of 30" in page.locator("#talk").inner_text()


def test_a_run_is_chosen(browser, home):
    with Tab(browser, home / "a.html") as page:
        page.locator("#settings select").select_option("1")
        assert "seed 1" in page.locator("#bytes-parts figcaption").inner_text()
        assert page.evaluate("document.activeElement.dataset.of") == "settings"


def test_hostile_texts_are_texts(browser, home):
    with Tab(browser, home / "hostile.html", width=360) as page:
        assert page.evaluate("document.images.length") == 0
        assert page.evaluate("document.querySelectorAll('main script').length") == 0
        assert "owned" not in page.title() or "<script>" in page.title()
        assert HOSTILE in page.locator("#missing").inner_text()
        assert page.locator("#command").inner_text() == HOSTILE
        assert HOSTILE in page.locator("#talk").inner_text()
        assert spills(page) == 0


# --- how it looks ---


def spills(page: Any) -> int:
    """Pixels that the page is too wide."""
    found: int = page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return found


CONTRAST = (Path(__file__).parents[1] / "helpers" / "contrast.js").read_text()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_it_fits_and_can_be_read(browser, home, width, dark):
    with Tab(browser, home / "a.html", width, dark) as page:
        assert spills(page) == 0
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate("document.documentElement.dataset.theme") == (
            "dark" if dark else "light"
        )


PLACE = """() => [...document.querySelectorAll('main button, main select, main input')]
    .filter((one) => !one.hidden).indexOf(document.activeElement)"""


def test_every_control_can_be_reached_by_keyboard(browser, home):
    with Tab(browser, home / "a.html") as page:
        controls = "main button:not([hidden]), main select, main input"
        wanted = page.evaluate(f"document.querySelectorAll('{controls}').length")
        seen: set[int] = set()
        for _ in range(200):
            page.keyboard.press("Tab")
            seen |= {page.evaluate(PLACE)} - {-1}
            if len(seen) == wanted:
                break
        assert len(seen) == wanted
