"""The experiments of a reproduction: TOML files, one a curve, each holding what sets it apart from
a recipe.

experiments/SETTING/recipe-NAME.toml    all that the curves of a setting share; `anew = N`: the public samples to choose
                                        from are drawn anew in every round, out of N
experiments/SETTING/CURVE.toml          which samples, how many, how they are joined
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedsift import config, registry
from fedsift.config import Experiment
from fedsift.overrides import apply_override, read_axes, set_value
from fedsift.types import UserError

PAPERS = "cifar10"  # the setting whose levels can stand beside the paper's; elsewhere only gaps can
QUICK = "digits"
SETTINGS = (PAPERS, QUICK)
RECIPE = "recipe-"


class NotWithThisRecipe(UserError):
    """A curve that a recipe cannot have; the others can be run without it."""


@dataclass(frozen=True, order=True)
class Cell:
    """A curve at one level of label skew: a cell of a table, a line of a figure."""

    curve: str
    alpha: float

    def __str__(self) -> str:
        return f"{self.curve} at alpha = {self.alpha:g}"


@dataclass(frozen=True)
class Plan:
    """What a reproduction is made with, the same for all of its cells."""

    setting: str
    recipe: str  # the name of one that comes with fedsift, or a TOML file
    seeds: int
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._recipe()  # one that is not there is said before anything is run

    def experiment(self, cell: Cell, seed: int) -> Experiment:
        """The recipe, then the curve, then the overrides."""
        recipe = self._recipe()
        anew = recipe.pop("anew", None)
        values = merged(recipe, _parsed(_files(self.setting)[f"{cell.curve}.toml"]))
        if anew is not None:
            _draw_anew(values, cell.curve, anew)
        for path, value in (("partition.alpha", cell.alpha), ("seed", seed)):
            set_value(values, path, value)
        values["name"] = f"{cell.curve} alpha={cell.alpha:g}"
        axes = read_axes(values.pop("sweep", {}))
        for override in self.overrides:
            apply_override(values, axes, override)
        chosen = config.flat(values)
        if axes or (chosen.get("partition.alpha"), chosen.get("seed")) != (cell.alpha, seed):
            raise UserError(
                "a reproduction has its own alphas and seeds; leave out alpha=, seed= and any sweep"
            )
        return config.check_experiment(values)

    def label(self, curve: str) -> str:
        """What tables and pictures call a curve."""
        return str(_parsed(_files(self.setting)[f"{curve}.toml"]).get("name", curve))

    def curves(self, pattern: str) -> list[str]:
        """The curves of this setting whose name matches, the smaller budget first."""
        names = [
            name.removesuffix(".toml")
            for name in _files(self.setting)
            if not name.startswith(RECIPE)
        ]
        found = [name for name in names if fnmatch(name, pattern)]
        return sorted(found, key=lambda name: (self._budget(name), name))

    def _budget(self, curve: str) -> int:
        return int(
            _parsed(_files(self.setting)[f"{curve}.toml"]).get("algorithm", {}).get("budget", 0)
        )

    def _recipe(self) -> dict[str, Any]:
        if self.recipe.endswith(".toml"):
            try:
                return tomllib.loads(Path(self.recipe).read_text())
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                raise UserError(f"cannot read the recipe {self.recipe}: {error}") from None
        known = recipes(self.setting)
        return _parsed(
            registry.lookup(
                known,
                "recipe",
                self.recipe,
                f"{self.setting} has {', '.join(known)}; or a TOML file",
            )
        )


def recipes(setting: str) -> dict[str, Traversable]:
    """The recipes that come with fedsift, by name."""
    files = _files(setting).items()
    return {
        n.removeprefix(RECIPE).removesuffix(".toml"): file
        for n, file in files
        if n.startswith(RECIPE)
    }


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both tables in one; where both have a value, the one above counts."""
    both = below.keys() & above.keys()
    inner = {
        key: merged(below[key], above[key])
        for key in both
        if isinstance(below[key], dict) and isinstance(above[key], dict)
    }
    return below | above | inner


NO_PUBLIC_SAMPLES = ("fedavg", "fedpaq", "fd-jeong", "mix2fld")


def _draw_anew(values: dict[str, Any], curve: str, out_of: Any) -> None:
    """The curve's public samples become a pool, drawn in every round out of so many."""
    data, algorithm = values["data"], values["algorithm"]
    if type(out_of) is not int or out_of <= 0:
        raise UserError(f"a recipe's `anew` is a number of public samples, not {out_of!r}")
    if algorithm["name"] in NO_PUBLIC_SAMPLES or data["public"] == out_of:
        return
    if data["public"] > out_of:
        raise NotWithThisRecipe(
            f"{curve} has {data['public']:,} public samples, more than the {out_of:,} this recipe draws from"
        )
    remembers = "download" in algorithm or str(algorithm.get("codec", "")).startswith("delta")
    if algorithm["name"] not in ("fd", "fas") or remembers or "public_from" in data:
        raise NotWithThisRecipe(
            f"{curve} cannot draw its public samples anew in every round, as this recipe has it"
        )
    algorithm["pool"], data["public"] = data["public"], out_of


def _files(setting: str) -> dict[str, Traversable]:
    folder = resources.files("fedsift.reproduction") / "experiments" / setting
    return {
        file.name: file
        for file in sorted(folder.iterdir(), key=lambda f: f.name)
        if file.name.endswith(".toml")
    }


def _parsed(file: Traversable) -> dict[str, Any]:
    return tomllib.loads(file.read_text())


def run_folder(out: Path, cell: Cell, seed: int) -> Path:
    return out / "runs" / f"{cell.curve}-alpha-{cell.alpha:g}-seed-{seed}"


def cells_of(curves: Sequence[str], alphas: Sequence[float]) -> list[Cell]:
    return [Cell(curve, alpha) for curve in curves for alpha in alphas]
