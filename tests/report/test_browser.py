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

from fedsift import config, runs
from fedsift.data import DATASETS, make_dataset
from fedsift.report import pages
from fedsift.report.live import Board, Server
from fedsift.report.page_data import describe_page
from fedsift.report.thumbnails import fit_samples
from tests.helpers import fake_flower
from tests.helpers.cli import done
from tests.helpers.data_files import images
from tests.helpers.runs import TINY, resumed, straight, tiny
from tests.helpers.sheets import sheet_of

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
    return [home]


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
        check_marks(page, told)
        check_tips(page, told)
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


# --- what is checked of every kind ---


def click(spot: Any) -> None:
    spot.click()


def press(spot: Any) -> None:
    spot.focus()
    spot.press("Enter")


def check_marks(page: Any, told: list[Any]) -> None:
    """The points and bars that are drawn have the numbers of `compare --json`."""
    drawn: dict[str, list[Any]] = {method["method"]: [] for method in told}
    points = "all => all.map((one) => [one.dataset.name, Number(one.dataset.y)])"
    for name, y in page.locator("#curve-rounds .mark").evaluate_all(points):
        drawn[name].append(y)
    marks = page.locator("#curve-bytes .mark").evaluate_all(
        "all => all.map((one) => [one.dataset.name, Number(one.dataset.x)])"
    )
    bars = page.locator("#bytes-methods rect").evaluate_all(
        "all => all.map((one) => [one.dataset.row, one.dataset.part, Number(one.dataset.value)])"
    )
    rows = page.locator("#overview tbody tr").all_inner_texts()
    for method, row in zip(told, rows, strict=False):  # states of runs may come after them
        name, accuracy = method["method"], method["accuracy"]
        assert name in row and f"{accuracy:.3f}" in row
        settled = drawn[name][-5:]
        assert sum(settled) / len(settled) == pytest.approx(accuracy, abs=1e-6)
        assert dict(marks)[name] == pytest.approx(method["uplink_bytes"], abs=1)  # the last one
        assert [name, "up", method["uplink_bytes"]] in bars
        assert [name, "down", method["downlink_bytes"]] in bars or not method["downlink_bytes"]


TIP = """all => Object.fromEntries(all.map((one) => {
    const name = one.querySelector("bdi");
    return [name.title || name.textContent, one.querySelector(".tip-value").textContent];
}))"""


def check_tips(page: Any, told: list[Any]) -> None:
    """So have the tooltips: of all rounds by keyboard, of bars and of the last round by mouse."""
    rounds = page.locator("#curve-rounds .mark").evaluate_all("all => all.map((a) => +a.dataset.x)")
    page.locator("#curve-rounds svg").focus()
    page.keyboard.press("End")
    seen: dict[str, list[float]] = {method["method"]: [] for method in told}
    for _ in range(min(5, int(max(rounds)))):
        for name, value in page.locator("#tip .tip-row").evaluate_all(TIP).items():
            seen[name].append(float(value))
        page.keyboard.press("ArrowLeft")
    page.locator("#curve-bytes svg").focus()
    page.keyboard.press("End")
    sent = page.locator("#tip .tip-row").evaluate_all(TIP)
    for method in told:
        values = seen[method["method"]]
        assert sum(values) / len(values) == pytest.approx(method["accuracy"], abs=6e-5)
        assert sent[method["method"]].endswith(f" at {format_bytes(method['uplink_bytes'])}")
    bar = page.locator("#bytes-methods rect").first
    bar.scroll_into_view_if_needed()
    bar.hover(force=True)
    for way, value in page.locator("#tip .tip-row").evaluate_all(TIP).items():
        assert value.startswith(f"{format_bytes(told[0][f'{way}link_bytes'])}, ")
    last = page.locator("#curve-rounds .mark").last
    last.scroll_into_view_if_needed()
    last.hover(force=True)
    tips = page.locator("#tip .tip-row").evaluate_all(TIP)
    assert tips[last.get_attribute("data-name")] == f"{float(last.get_attribute('data-y')):.4f}"
    page.mouse.move(1, 1)


def format_bytes(count: float) -> str:
    """As the page does."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def check_filters(page: Any, act: Any, methods: int) -> None:
    lines, first = page.locator("#curve-rounds polyline"), page.locator(".toggle").first
    act(first)
    assert lines.count() == methods - 1 and first.get_attribute("aria-pressed") == "false"
    act(first)
    assert lines.count() == methods


def check_conversation(page: Any, act: Any) -> None:
    """The last client of the first round, then samples that are contested, and without a label."""
    data = json.loads(page.locator("#data").inner_text())
    said = next(run["said"] for run in data["runs"] if run["said"] and run["said"]["rounds"])
    number = min(said["rounds"], key=int)
    row, sheet = said["rounds"][number], data["samples"][said["sheet"]]
    act(page.locator("#talk-client"))
    if len(said["rounds"]) > 1:
        page.locator("#talk-round").press("Home")
    id, told = max(row["clients"].items(), key=lambda one: int(one[0]))
    act(page.locator(f"#talk-client-{id}"))
    text = f"Client {id} uploads {told['rows']} soft labels in round {int(number) + 1}."
    assert page.locator("#talk-said").inner_text().startswith(text)
    cards = page.locator("#talk .card")
    assert cards.evaluate_all("all => all.map((one) => one.dataset.sample)") == list(told["said"])
    shares = cards.first.locator(".says").first.locator(".bar-row")
    shown = shares.evaluate_all("all => all.map((one) => [one.dataset.class, one.dataset.share])")
    pairs = told["said"][cards.first.get_attribute("data-sample")]
    assert [int(n) for pair in shown for n in pair] == pairs
    act(page.locator("#talk-disputed"))
    assert f"On {row['contested']} samples" in page.locator("#talk").inner_text()
    act(page.locator("#talk-unlabelled"))
    left = f"{sheet['public'] - row['labelled']:,} of {sheet['public']:,}"
    assert f"Nobody labels {left}" in page.locator("#talk").inner_text()


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
        assert spills(page) == 0


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
