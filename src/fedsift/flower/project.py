"""A new project: a Flower app that runs at once on embedded digits; users add their own data."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from fedsift import config
from fedsift.files import write_atomic
from fedsift.flower.settings import Settings, settings
from fedsift.types import UserError

EXPERIMENT = "experiment.toml"
START = ("clients=4", "cohort=4", "model=task:network", "rounds=5")  # four nodes, a few rounds


def create(folder: Path) -> list[Path]:
    """Write the project's files; the folder must be new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty; choose another name")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "federation"
    template = resources.files("fedsift.flower").joinpath("template")
    texts = {file.name: file.read_text() for file in template.iterdir() if file.is_file()}
    texts["pyproject.toml"] = texts["pyproject.toml"].replace("NAME", name, 1)
    experiment = config.read_experiment("digits-fas", START).model_copy(update={"name": name})
    texts[EXPERIMENT] = config.to_toml(experiment)
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in sorted(texts.items()):
        write_atomic(folder / file, text.encode())
    return [folder / file for file in sorted(texts)]


def read_settings(folder: Path, changed: Mapping[str, Any] | None = None) -> Settings:
    """How its runs behave: [tool.flwr.app.config] of pyproject.toml, and what is changed of it."""
    about = folder / "pyproject.toml"
    if not about.is_file() or not (folder / "task.py").is_file():
        raise UserError(f"{folder} is no project; make one with: fedsift flower new {folder}")
    try:
        app = tomllib.loads(about.read_text())["tool"]["flwr"]["app"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{about} is not the file of a Flower app: {error}") from None
    return settings(app.get("config", {}) | dict(changed or {}))
