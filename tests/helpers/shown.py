"""What a report page shows, held against what the program prints."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedsift import runs
from tests.helpers.cli import done


def click(spot: Any) -> None:
    spot.click()


def press(spot: Any) -> None:
    spot.focus()
    spot.press("Enter")


def read_marks(page: Any, spots: str) -> list[dict[str, str]]:
    """What is drawn: of each point, bar or cell the name, the place and the value."""
    found: list[dict[str, str]] = page.locator(spots).evaluate_all(
        "all => all.map((one) => ({ ...one.dataset }))"
    )
    return found


def sum_values(marks: list[dict[str, str]], key: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for mark in marks:
        found[mark[key]] += int(mark["value"])
    return found


# --- of all runs: what `compare --json` tells ---


def check_headline(page: Any, told: dict[str, Any]) -> None:
    """Every cell of the table has the figure of `compare --json`, and nothing else."""
    gaps = any(method["gap"] for method in told["methods"])
    table = page.locator("#overview table").first.locator("tbody tr")
    cells = "all => all.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    titles = "all => all.map((one) => one.title)"
    against = [method["gap"]["against"] for method in told["methods"] if method["gap"]]
    assert page.locator("#overview .against bdi").evaluate_all(titles) == against
    for method, row in zip(told["methods"], table.evaluate_all(cells), strict=True):
        spread = "" if method["accuracy_sd"] is None else f" ± {method['accuracy_sd']:.3f}"
        wanted = [str(len(method["seeds"])), f"{method['accuracy']:.3f}{spread}"]
        wanted += [tell_gap(method["gap"])] * gaps
        names = ("uplink_bytes_per_upload", "uplink_bytes", "downlink_bytes")
        wanted += [format_bytes(method[name]) for name in names]
        if len(told["methods"]) > 1:
            cost = method["uplink_bytes_to_target"]
            wanted.append("not by all" if cost is None else format_bytes(cost))
        assert row[0] == method["method"]
        assert row[1:3] + row[3 + gaps :] == wanted


def tell_gap(gap: dict[str, Any] | None) -> str:
    """ "+.068 (+.036 to +.100), 3 of 3", or of one seed "+.068, 1 of 1"."""
    if gap is None:
        return "\u2013"
    mean, *ends = (
        f"{value:+.3f}".replace("0.", ".", 1) for value in (gap["mean"], *(gap["interval"] or ()))
    )
    inside = f" ({' to '.join(ends)})" if ends else ""
    return f"{mean}{inside}, {gap['ahead']} of {len(gap['seeds'])}"


def check_curves(page: Any, told: list[Any]) -> None:
    """The points and bars that are drawn have the numbers of `compare --json`."""
    drawn: dict[str, list[float]] = {method["method"]: [] for method in told}
    for mark in read_marks(page, "#curve-rounds .mark"):
        drawn[mark["name"]].append(float(mark["y"]))
    sent = {mark["name"]: float(mark["x"]) for mark in read_marks(page, "#curve-bytes .mark")}
    bars = read_marks(page, "#bytes-methods rect")
    for method in told:
        name, settled = method["method"], drawn[method["method"]][-5:]
        assert sum(settled) / len(settled) == pytest.approx(method["accuracy"], abs=1e-6)
        assert sent[name] == pytest.approx(method["uplink_bytes"], abs=1)  # of the last round
        parts = sum_values([bar for bar in bars if bar["row"] == name], "part")
        ways = {"up": method["uplink_bytes"], "down": method["downlink_bytes"]}
        assert parts == {way: count for way, count in ways.items() if count}


TIP = """all => Object.fromEntries(all.map((one) => {
    const name = one.querySelector("bdi");
    return [name.title || name.textContent, one.querySelector(".tip-value").textContent];
}))"""


def read_tip(page: Any) -> dict[str, str]:
    told: dict[str, str] = page.locator("#tip .tip-row").evaluate_all(TIP)
    return told


def check_tips(page: Any, told: list[Any]) -> None:
    """So have the tooltips: of all rounds by keyboard, of bars and of the last round by mouse."""
    rounds = [float(mark["x"]) for mark in read_marks(page, "#curve-rounds .mark")]
    page.locator("#curve-rounds svg").focus()
    page.keyboard.press("End")
    seen: dict[str, list[float]] = {method["method"]: [] for method in told}
    for _ in range(min(5, int(max(rounds)))):
        for name, value in read_tip(page).items():
            seen[name].append(float(value))
        page.keyboard.press("ArrowLeft")
    page.locator("#curve-bytes svg").focus()
    page.keyboard.press("End")
    sent = read_tip(page)
    for method in told:
        values = seen[method["method"]]
        assert sum(values) / len(values) == pytest.approx(method["accuracy"], abs=6e-5)
        assert sent[method["method"]].endswith(f" at {format_bytes(method['uplink_bytes'])}")
    bar = page.locator("#bytes-methods rect").first
    bar.scroll_into_view_if_needed()
    bar.hover(force=True)
    for way, value in read_tip(page).items():
        assert value.startswith(f"{format_bytes(told[0][f'{way}link_bytes'])}, ")
    last = page.locator("#curve-rounds .mark").last
    last.scroll_into_view_if_needed()
    last.hover(force=True)
    name, y = last.get_attribute("data-name"), float(last.get_attribute("data-y"))
    assert read_tip(page)[name] == f"{y:.4f}"
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


# --- of the run that is chosen: what `show --json` tells ---


def find_chosen(page: Any) -> Path:
    """The folder of the run that the sections of one run are about."""
    return Path(page.evaluate("page.data.runs[page.run].folder"))


def check_bytes(page: Any) -> None:
    """By part, by client and by round they add up to the bytes of the ledger."""
    folder = find_chosen(page)
    told = json.loads(done("show", str(folder), "--json").stdout)
    totals = {"up": told["uplink_bytes"], "down": told["downlink_bytes"]}
    assert sum_values(read_marks(page, "#bytes-parts rect"), "row") == totals
    assert sum_values(read_marks(page, "#bytes-clients rect"), "part") == totals
    for way in totals:
        points = [m for m in read_marks(page, "#bytes-rounds .mark") if m["name"] == way]
        assert [int(m["y"]) for m in points] == [sum(row[way].values()) for row in told["ledger"]]
        of_clients: Counter[str] = Counter()
        for row in told["ledger"]:
            of_clients.update({f"client {id}": count for id, count in row[way].items()})
        bars = [m for m in read_marks(page, "#bytes-clients rect") if m["part"] == way]
        assert sum_values(bars, "row") == +of_clients


def check_classes(page: Any) -> None:
    """Classes, confusion, the clients' data, and how many soft labels are right."""
    history = runs.load_run(find_chosen(page))
    last = history.metrics[-1]
    cells = read_marks(page, "#class-rounds [data-value]")
    shown = [float(c["value"]) for c in cells if c["column"] == str(len(history.metrics))]
    assert shown == [round(v, 3) for v in last.get("class_accuracy", ()) if v is not None]
    confusion = [int(cell["value"]) for cell in read_marks(page, "#confusion [data-value]")]
    assert confusion == [count for row in last.get("confusion", ()) for count in row]
    held = [int(cell["value"]) for cell in read_marks(page, "#partition-chart [data-value]")]
    some = [client["labels"] for client in history.clients if any(client["labels"])][:60]
    assert held == [count for labels in some for count in labels if count]
    marks = read_marks(page, "#labels-right .mark")
    kinds = {"uploaded": "uploaded_labels", "taught by the server": "distilled_labels"}
    for name, key in kinds.items():
        drawn = [float(mark["y"]) for mark in marks if mark["name"] == name]
        assert drawn == [row[key]["right"] for row in history.metrics if key in row]


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
    assert [card["sample"] for card in read_marks(page, "#talk .card")] == list(told["said"])
    shares = cards.first.locator(".says").first.locator(".bar-row")
    shown = shares.evaluate_all("all => all.map((one) => [one.dataset.class, one.dataset.share])")
    pairs = told["said"][cards.first.get_attribute("data-sample")]
    assert [int(n) for pair in shown for n in pair] == pairs
    act(page.locator("#talk-disputed"))
    assert f"On {row['contested']} samples" in page.locator("#talk").inner_text()
    act(page.locator("#talk-unlabelled"))
    left = f"{sheet['public'] - row['labelled']:,} of {sheet['public']:,}"
    assert f"Nobody labels {left}" in page.locator("#talk").inner_text()
