"""What a paper has to say about itself so that it can be reproduced.

A paper is a folder with a `Paper` object and its experiments, one TOML file per curve:

experiments/SETTING/recipe-NAME.toml    what all curves of a setting share
experiments/SETTING/CURVE.toml          what sets one curve apart
experiments/SETTING/variants.toml       changes by name: "CURVE+NAME" is the curve with one of them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsift import registry
from fedsift.types import UserError

if TYPE_CHECKING:
    from fedsift.reproduction.plans import Cell, Plan
    from fedsift.reproduction.verdicts import Claim
    from fedsift.runs import History

ALL = "all"
RECIPE = "recipe-"
VARIANTS = "variants"


@dataclass(frozen=True)
class Item:
    """One table or figure: the cells to run, the published figures, and the claims to judge.

    `cells` and `claims` are functions of the plan, since each setting has its own curves.
    """

    title: str
    cells: Callable[[Plan], list[Cell]]
    claims: Callable[[Plan], list[Claim]]
    published: Mapping[Cell, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)  # instead of a curve's own name
    # "curves", "table" (curves across, skew down), "budget" (accuracy against bytes) or
    # "variants" (one row each) or "choice" (of the variants of each curve, the best one)
    layout: str = "curves"
    # the seeds of each setting; where it has none of its own, the first three
    seeds: Mapping[str, range] = field(default_factory=dict)
    # the curve that a curve is compared with, seed by seed, at the same skew
    reference: Callable[[str], str] | None = None
    # by setting: what the cells run on, where its name says something else
    data: Mapping[str, str] = field(default_factory=dict)
    budgets: Sequence[int] = ()  # bytes per upload for which the best cell is named
    # what else is told of a cell, from its runs
    figures: Callable[[Sequence[History]], Mapping[str, Any]] | None = None
    # instead of the usual tables and pictures
    tables: Callable[[Mapping[str, Any]], list[str]] | None = None
    draw: Callable[[Mapping[str, Any], Path], None] | None = None


@dataclass(frozen=True)
class ExtraReport:
    """A report that needs no runs, such as a check of a theorem."""

    title: str
    make: Callable[[], dict[str, Any]]
    markdown: Callable[[Mapping[str, Any]], str]
    draw: Callable[[Mapping[str, Any], Path], None]


@dataclass(frozen=True)
class Paper:
    """A paper that can be reproduced."""

    name: str  # as on the command line
    title: str
    citation: str
    experiments: Traversable  # the folder of its settings
    items: Mapping[str, Item]
    setting: str  # the paper's own: only here can accuracies stand beside the published ones
    quick: str | None = None  # a small setting for --quick
    recipe: str = "ours"  # the recipe that is used unless another is named
    extras: Mapping[str, ExtraReport] = field(default_factory=dict)
    main: tuple[str, ...] = ()  # what "all" stands for; empty: everything

    @property
    def settings(self) -> tuple[str, ...]:
        return (self.setting,) if self.quick is None else (self.setting, self.quick)

    @property
    def reports(self) -> dict[str, str]:
        """What can be asked for by name, and its title."""
        titles = {name: item.title for name, item in self.items.items()}
        return titles | {name: extra.title for name, extra in self.extras.items()}

    def select(self, words: Sequence[str]) -> list[str]:
        """The reports that words stand for, each once; "all" stands for several."""
        known = {name: [name] for name in self.reports}
        known[ALL] = list(self.main or self.reports)
        where = f"fedsift reproduce {self.name}"
        found = [registry.lookup(known, "item", word, where) for word in words]
        return list(dict.fromkeys(name for names in found for name in names))

    def choose_setting(self, quick: bool) -> str:
        if not quick:
            return self.setting
        if self.quick is None:
            raise UserError(f"{self.name} has no quick version; leave out --quick")
        return self.quick

    def curves(self, setting: str) -> dict[str, Traversable]:
        """The file of each curve, by name."""
        files = self._files(setting).items()
        return {
            name: file for name, file in files if name != VARIANTS and not name.startswith(RECIPE)
        }

    def variants(self, setting: str) -> Traversable | None:
        """The file of named changes to curves, where a setting has one."""
        return self._files(setting).get(VARIANTS)

    def recipes(self, setting: str) -> dict[str, Traversable]:
        """The file of each recipe, by name."""
        files = self._files(setting).items()
        return {n.removeprefix(RECIPE): file for n, file in files if n.startswith(RECIPE)}

    def _files(self, setting: str) -> dict[str, Traversable]:
        files = sorted((self.experiments / setting).iterdir(), key=lambda file: file.name)
        return {
            file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")
        }
