"""The report in a real browser: headless Chromium, from a file, with the network watched."""

import io
import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedsift import runs
from fedsift.report import pages
from fedsift.report.live import Board, Server
from fedsift.report.page_data import describe_page
from fedsift.report.thumbnails import fit_samples
from tests.helpers.cli import done
from tests.helpers.kinds import KINDS
from tests.helpers.runs import resumed, straight, tiny
from tests.helpers.sheets import sheet_of
from tests.helpers.shown import (
    check_bytes,
    check_classes,
    check_conversation,
    check_curves,
    check_filters,
    check_headline,
    check_tips,
    click,
    format_bytes,
    press,
    read_marks,
    read_tip,
)

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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_its_page(browser, tmp_path, kind, request):
    play, sheet, methods = KINDS[kind]
    folders = [str(folder) for folder in play(tmp_path)]
    told = json.loads(done("compare", *folders, "--json").stdout)
    assert len(told["methods"]) == methods
    done("report", *folders, "-o", str(tmp_path / "page.html"))
    if home := request.config.getoption("keep"):
        photograph(browser, tmp_path / "page.html", home / kind)
    with Tab(browser, tmp_path / "page.html") as page:
        check_headline(page, told)
        check_curves(page, told["methods"])
        check_tips(page, told["methods"])
        check_bytes(page)
        check_classes(page)
        assert page.locator(f"#talk .card-{sheet}").count() > 0
        seen = page.locator("main").inner_text()
        for wide, act in ((1440, click), (360, press)):
            page.set_viewport_size({"width": wide, "height": 900})
            assert spills(page) == 0
            assert page.evaluate(CONTRAST) == []
            check_filters(page, act, methods)
            check_conversation(page, act)
            act(page.locator("#theme"))
    if kind == "photographs":
        assert "truth: " in seen and "automobile" in seen
    elif kind == "flower":
        assert "truth:" not in seen and "did not answer" in seen
    elif kind == "thousand":
        assert "of 1,000 clients" in seen


def photograph(browser: Any, file: Path, home: Path) -> None:
    """The whole page on a phone and on a screen, light and dark."""
    for width, scheme in product((360, 1440), ("light", "dark")):
        with Tab(browser, file, width, scheme == "dark") as page:
            page.screenshot(path=home / f"{width}-{scheme}.png", full_page=True)


# --- hostile ones ---


def make_hostile(home: Path) -> None:
    """A page whose every text is an attack: names, classes, errors, texts of samples."""
    waiting = [{"name": HOSTILE, "state": HOSTILE}]
    data = describe_page([runs.load_run(home / "fas-0"), runs.load_run(home / "avg-0")], waiting)
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


def test_a_heat_map_by_keyboard(browser, home):
    """Of the clients' data: along a row, down to the nearest class of the next row, and away."""
    labels = [client["labels"] for client in runs.load_run(home / "fas-0").clients]
    held = [[c for c, count in enumerate(row) if count] for row in labels]
    first, last = held[0][0], held[0][-1]
    below = min(held[1], key=lambda c: (abs(c - last), c))
    with Tab(browser, home / "a.html") as page:
        chart, tip = page.locator("#partition-chart svg"), page.locator("#tip")
        chart.focus()
        assert tip.is_hidden()
        for key, client, label in (
            ("ArrowRight", 0, first),
            ("End", 0, last),
            ("ArrowRight", 0, last),
            ("ArrowDown", 1, below),
            ("Home", 1, held[1][0]),
        ):
            page.keyboard.press(key)
            assert page.locator("#tip .tip-head").inner_text() == f"client {client}"
            assert read_tip(page) == {f"class {label}": f"{labels[client][label]} samples"}
            cell = f'#partition-chart [data-row="client {client}"][data-column="{label}"]'
            assert frames(page, "#partition-chart .chosen", cell)
        page.keyboard.press("Escape")
        assert tip.is_hidden() and chart.evaluate("one => one === document.activeElement")
        assert not page.locator("#partition-chart .chosen").get_attribute("d")


def test_bars_by_keyboard(browser, home):
    with Tab(browser, home / "a.html") as page:
        page.locator("#bytes-methods svg").focus()
        for key, name, part in (
            ("ArrowDown", "digits-fas", "up"),
            ("ArrowRight", "digits-fas", "down"),
            ("ArrowDown", "digits-fedavg", "down"),
            ("ArrowUp", "digits-fas", "down"),
        ):
            page.keyboard.press(key)
            assert page.locator("#tip .tip-head").inner_text() == name
            bars = [b for b in read_marks(page, "#bytes-methods rect") if b["row"] == name]
            values = {way: value.split(",")[0] for way, value in read_tip(page).items()}
            assert values == {bar["part"]: format_bytes(int(bar["value"])) for bar in bars}
            bar = f'#bytes-methods [data-row="{name}"][data-part="{part}"]'
            assert frames(page, "#bytes-methods .chosen", bar)
        page.locator("#curve-rounds svg").focus()  # who goes away takes the frame along
        assert not page.locator("#bytes-methods .chosen").get_attribute("d")


def frames(page: Any, frame: str, mark: str) -> bool:
    """Whether the frame is around this mark, and the mark on the screen."""
    inner, outer = (page.locator(spot).bounding_box() for spot in (mark, frame))
    apart = max(abs(inner[key] - outer[key]) for key in inner)
    return apart <= 2.5 and 0 <= inner["y"] <= page.viewport_size["height"] - inner["height"]


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


def test_a_shared_picture_shows_the_sample_it_stands_for(browser, home, monkeypatch):
    # Every sample is plain grey, in the shade of its number; the pictures of two seeds are joined.
    data = describe_page([runs.load_run(home / f"fas-{seed}") for seed in range(2)])
    samples = range(30)
    sheet = sheet_of([np.full((8, 8), 8 * sample) for sample in samples], list(samples), 16)
    counts = [Counter(samples), Counter(samples[:25])]
    monkeypatch.setattr("fedsift.report.thumbnails.MOST", 600)
    data["samples"], data["pictures"] = fit_samples([sheet, sheet], counts)
    data["samples"][0]["tiles"][29] = -1  # as if it did not fit
    (home / "shared.html").write_text(pages.make_page(data))
    with Tab(browser, home / "shared.html") as page:
        assert "Of 1 of 30 samples the page has the number alone" in page.inner_text(
            "#conversation"
        )
        for client in page.locator(".chip").all():
            client.click()
            for card in page.locator("#talk .card").all():
                sample = int(card.get_attribute("data-sample"))
                spot = card.locator(".thumb")
                assert spot.count() == (sample != 29)
                if sample != 29:
                    seen = Image.open(io.BytesIO(spot.screenshot()))
                    assert seen.convert("L").getpixel((32, 32)) == 8 * sample


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
        cells = page.locator("#states td", has_text=HOSTILE[:50])
        assert cells.count() == 6  # name and reason of two runs that failed, and of one that waits
        assert spills(page) == 0
        page.evaluate("show({ ...page.data, runs: [] })")  # as a live page before the first round
        assert page.locator("main td").all_inner_texts() == [HOSTILE, HOSTILE]
        assert page.evaluate("document.images.length") == 0


# --- live ---


def test_a_live_page_follows_a_run(browser, tmp_path):
    """A round, and what became of the run, without a reload; only its own host is asked."""
    folder = straight(tmp_path / "run", tiny(), 1)
    server = Server(Board([folder]), "127.0.0.1", 0, None)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    page, asked = browser.new_page(), set[str]()
    try:
        page.on("request", lambda request: asked.add(request.url.split("?")[0]))
        page.goto(server.address)
        page.wait_for_selector("#states .state-stopped")
        assert page.locator("#curve-rounds .mark").count() == 1
        resumed(folder)
        page.wait_for_selector("#states .state-finished")
        assert "resumed once" in page.inner_text("#states")
        assert page.locator("#curve-rounds .mark").count() == 3
    finally:
        page.close()
        server.close()
        thread.join(10)
    assert asked == {server.address + name for name in ("", "events", "data.json")}


# --- how it looks ---


SPILLS = """async () => {
    // charts are drawn anew in the frame after the window has changed
    for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
    return document.documentElement.scrollWidth - document.documentElement.clientWidth;
}"""


def spills(page: Any) -> int:
    """Pixels that the page is too wide."""
    found: int = page.evaluate(SPILLS)
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
