"""Shared by all tests: small reproducible runs of hypothesis, GPU tests only where there is a
GPU.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

settings.register_profile(
    "fedsift", deadline=None, derandomize=True, print_blob=False, max_examples=50
)
settings.load_profile("fedsift")


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "where pictures of the reports of all kinds of runs are kept, to look at them"
    parser.addoption("--keep", type=Path, metavar="FOLDER", help=about)


def pytest_configure() -> None:
    """For fixtures that outlive a test: parallel workers have a COLUMNS, a plain pytest none.
    What nohup or a shell in the background ignores, programs that tests start would ignore, too."""
    os.environ.pop("COLUMNS", None)
    usual: dict[int, Any] = {
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }
    for number, handler in usual.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=gpu)
    items[:] = [item for item in items if item not in gpu]


@pytest.fixture(autouse=True)
def _width_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that goes nowhere has no width, whatever the terminal that pytest runs in."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def _forget_own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test wrote is not found by the next test that writes one of that name."""
    before = set(sys.modules)
    yield
    folder = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
            del sys.modules[name]


@pytest.fixture
def own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of one test; starts are kept there."""
    folder = tmp_path / "data folder"
    monkeypatch.setenv("FEDSIFT_DATA", str(folder))
    return folder


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The task of a new Flower project."""
    from tests.helpers.fake_flower import a_task

    return a_task(tmp_path_factory.mktemp("project") / "app")


@pytest.fixture
def panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Call `draw(what, path)` and hand back the panels it drew, which nobody closes before."""
    from matplotlib import pyplot as plt

    def draw_open(draw: Callable[[Any, Path], object], what: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(plt, "close", lambda figure: None)
            draw(what, tmp_path / "picture.svg")
        return plt.gcf().axes

    yield draw_open
    plt.close("all")
