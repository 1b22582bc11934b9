"""`fedsift watch`, and `fedsift run --watch` beside a run."""

import json
import os
import pty
import re
import signal
import subprocess
import time
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsift.report.live import Listener
from tests.helpers.cli import FAS, done
from tests.helpers.json_shapes import read_printed
from tests.helpers.runs import PROGRAM


@pytest.fixture
def interrupted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C, once it serves."""

    def stop(listener: Listener, poll_interval: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Listener, "serve_forever", stop)


def test_it_prints_where_it_serves(interrupted_at_once):
    Path("runs").mkdir()
    said = done("watch", "--port", "0").stdout
    assert re.fullmatch(
        r"watching runs at http://127\.0\.0\.1:\d+/ \(Ctrl-C ends it\)\n"
        r"stopped watching; runs go on\n",
        said,
    )


def test_with_json_it_prints_one_line(interrupted_at_once):
    Path("mine").mkdir()
    words = ("mine", "--port", "0", "--host", "0.0.0.0", "--json")
    told = read_printed("watch", done("watch", *words).stdout)
    assert re.fullmatch(r"http://0\.0\.0\.0:\d+/\?token=[\w-]{32}", told["address"])
    assert told["folders"] == ["mine"]


def test_it_opens_the_page_where_that_is_asked_for(monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(
        Listener, "serve_forever", lambda listener, poll_interval: wait_until(lambda: opened)
    )
    Path("runs").mkdir()
    told = json.loads(done("watch", "--port", "0", "--open", "--json").stdout)
    assert opened == [told["address"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("terminal", "number"), [(True, signal.SIGTERM), (False, signal.SIGKILL)], ids=["tty", "pipe"]
)
def test_beside_a_run_it_serves_until_the_run_ends(tmp_path, monkeypatch, terminal, number):
    """On a terminal a browser opens: here one that writes down what it is to open."""
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    opened.touch()
    browser.write_text(f'#!/bin/sh\necho "$1" >> "{opened}"\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    ours, its = pty.openpty() if terminal else os.pipe()
    words = [*PROGRAM, "run", *FAS, "rounds=100000", "--watch", "--out", "mine"]
    with subprocess.Popen(words, stdout=its, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        (address,) = re.findall("at (http:.*)", find_line(process.stderr, "watching mine"))
        wait_until(lambda: [run["state"]["name"] for run in look(address)["runs"]] == ["running"])
        wait_until(lambda: opened.read_text() or not terminal)
        process.send_signal(number)
        _, said = process.communicate(timeout=100)  # to the end of the page's process too
    assert "rror" not in said and "stopped watching" not in said
    os.close(ours)
    os.close(its)
    assert opened.read_text() == (f"{address}\n" if terminal else "")
    with pytest.raises(OSError):
        look(address)


def find_line(text: Any, start: str) -> str:
    return next(str(line) for line in text if line.startswith(start))


def look(address: str) -> Any:
    with urllib.request.urlopen(f"{address}data.json", timeout=60) as answer:
        return json.load(answer)


def wait_until(moment: Callable[[], object]) -> None:
    until = time.monotonic() + 100
    while not moment():
        assert time.monotonic() < until
        time.sleep(0.05)
