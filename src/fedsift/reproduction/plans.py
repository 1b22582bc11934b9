"""How the cells of a paper become experiments: a recipe, then a curve, then the overrides.

Two keys are for recipes alone. `redraw_public_from = N`: the public samples to choose from are
drawn again in every round, out of N. `without_public = [...]`: the algorithms that use no public
samples, so that there is nothing to redraw.

A curve may have variants: "plain+long" is the curve `plain` with the table [long] of the
setting's variants.toml on top. One key is for curves alone: `with = ["parts"]` puts such tables
below the curve, so that several curves share them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedsift import config, registry
from fedsift.config import Experiment
from fedsift.overrides import apply_override, read_axes, set_value
from fedsift.reproduction.paper import Item, Paper
from fedsift.types import UserError

REDRAW, WITHOUT_PUBLIC, WITH = "redraw_public_from", "without_public", "with"
SEEDS = range(3)  # of an item that has none of its own


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

    paper: Paper
    setting: str
    recipe: str  # the name of one that comes with the paper, or a TOML file
    seeds: int | None = None  # how many per cell; None: as many as the item has
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._read_recipe()  # a missing recipe is reported before anything is run

    @property
    def comparable(self) -> bool:
        """Whether accuracies can stand beside the published ones; elsewhere only gaps can."""
        return self.setting == self.paper.setting

    def seeds_of(self, item: Item) -> range:
        """The seeds of an item's cells, from its first one on."""
        own = item.seeds.get(self.setting, SEEDS)
        count = len(own) if self.seeds is None else self.seeds
        return range(own.start, own.start + count)

    def experiment(self, cell: Cell, seed: int) -> Experiment:
        """The recipe, then the curve, then the overrides."""
        values = self.values(cell) | {"seed": seed}
        axes = read_axes(values.pop("sweep", {}))
        values["name"] = f"{cell.curve} alpha={cell.alpha:g}"
        for override in self.overrides:
            apply_override(values, axes, override)
        chosen = config.flat(values)
        if axes or (chosen.get("partition.alpha"), chosen.get("seed")) != (cell.alpha, seed):
            raise UserError(
                "a reproduction has its own alphas and seeds; leave out alpha=, seed= and any sweep"
            )
        return config.check_experiment(values)

    def values(self, cell: Cell) -> dict[str, Any]:
        """The recipe with the curve on top, at the cell's skew, as in a TOML file."""
        recipe = self._read_recipe()
        redraw = {key: recipe.pop(key) for key in (REDRAW, WITHOUT_PUBLIC) if key in recipe}
        values = merge_tables(recipe, self._read_curve(cell.curve))
        if redraw:
            _redraw_public(values, cell.curve, redraw)
        set_value(values, "partition.alpha", cell.alpha)
        return values

    def label(self, curve: str) -> str:
        """What tables and pictures call a curve: its name, then those of its variants."""
        name, *variants = curve.split("+")
        names = [self._read_curve(name).get("name", name)]
        names += [self._read_variant(each).get("name", each) for each in variants]
        return ", ".join(map(str, filter(None, names)))

    def curves(self, pattern: str) -> list[str]:
        """The curves of this setting whose name matches, the smaller budget first."""
        found = [name for name in self.paper.curves(self.setting) if fnmatch(name, pattern)]
        return sorted(found, key=lambda name: (self._budget(name), name))

    def _budget(self, curve: str) -> int:
        return int(self._read_curve(curve).get("algorithm", {}).get("budget", 0))

    def _read_curve(self, curve: str) -> dict[str, Any]:
        """What a curve says, over the tables it is made with and below its variants."""
        name, *variants = curve.split("+")
        own = _parse_toml(self.paper.curves(self.setting)[name])
        values: dict[str, Any] = {}
        for below in own.pop(WITH, []):
            values = merge_tables(values, self._read_variant(below))
        values = merge_tables(values, own)
        for above in variants:
            values = merge_tables(values, self._read_variant(above))
        return values

    def _read_variant(self, name: str) -> dict[str, Any]:
        file = self.paper.variants(self.setting)
        known = {} if file is None else _parse_toml(file)
        found: dict[str, Any] = registry.lookup(known, "variant", name, f"of {self.setting}")
        return found

    def _read_recipe(self) -> dict[str, Any]:
        recipe = self._find_recipe()
        if "anew" in recipe:
            raise UserError(
                f"the recipe {self.recipe} has the old key `anew`; call it `{REDRAW}`, and list "
                f"the algorithms without public samples in `{WITHOUT_PUBLIC}`"
            )
        return recipe

    def _find_recipe(self) -> dict[str, Any]:
        if self.recipe.endswith(".toml"):
            try:
                return config.read_toml(self.recipe)
            except UserError as error:
                raise UserError(f"cannot read the recipe {self.recipe}: {error}") from None
        known = self.paper.recipes(self.setting)
        where = f"{self.setting} has {', '.join(known)}; or a TOML file"
        return _parse_toml(registry.lookup(known, "recipe", self.recipe, where))


def merge_tables(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both tables in one; where both have a value, the one above counts."""
    both = below.keys() & above.keys()
    inner = {
        key: merge_tables(below[key], above[key])
        for key in both
        if isinstance(below[key], dict) and isinstance(above[key], dict)
    }
    return below | above | inner


def run_folder(out: Path, cell: Cell, seed: int) -> Path:
    return out / "runs" / f"{cell.curve}-alpha-{cell.alpha:g}-seed-{seed}"


def make_cells(curves: Sequence[str], alphas: Sequence[float]) -> list[Cell]:
    return [Cell(curve, alpha) for curve in curves for alpha in alphas]


def _redraw_public(values: dict[str, Any], curve: str, redraw: dict[str, Any]) -> None:
    """The curve's public samples become a pool, drawn in every round out of so many."""
    out_of, without = _check_redraw(redraw)
    data, algorithm = values["data"], values["algorithm"]
    if algorithm["name"] in without or data["public"] == out_of:
        return
    if data["public"] > out_of:
        raise NotWithThisRecipe(
            f"{curve} has {data['public']:,} public samples, more than the {out_of:,} "
            "this recipe draws from"
        )
    config.build_algorithm(config.check_experiment(values))  # an error here is not the pool's
    algorithm["pool"] = data["public"]
    if "public_from" in data or not _takes_pool(values):
        raise NotWithThisRecipe(
            f"{curve} cannot redraw its public samples in every round, as this recipe asks"
        )
    data["public"] = out_of


def _takes_pool(values: dict[str, Any]) -> bool:
    """The algorithm has a pool, and can have one with its codec and its download."""
    experiment = config.check_experiment(values)
    try:
        config.build_algorithm(experiment)
    except UserError:
        return False
    return "algorithm.pool" not in config.list_unused(experiment)


def _check_redraw(redraw: dict[str, Any]) -> tuple[int, list[str]]:
    out_of, without = redraw.get(REDRAW), redraw.get(WITHOUT_PUBLIC, [])
    if type(out_of) is not int or out_of <= 0:
        raise UserError(f"a recipe's `{REDRAW}` is a number of public samples, not {out_of!r}")
    if not isinstance(without, list):
        raise UserError(f"a recipe's `{WITHOUT_PUBLIC}` is a list of algorithms, not {without!r}")
    return out_of, without


def _parse_toml(file: Traversable) -> dict[str, Any]:
    return tomllib.loads(file.read_text())
