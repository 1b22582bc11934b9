"""What there is to choose from: every shelf, a line for each part."""

from __future__ import annotations

from typing import Any


def all_parts() -> dict[str, dict[str, str]]:
    """Kind -> name -> one line."""
    from fedsift import (
        aggregators,
        algorithms,
        codecs,
        config,
        data,
        engines,
        graphs,
        models,
        samplers,
    )
    from fedsift.data import partition

    soft = {name: _about(getattr(part, "values", part)) for name, part in codecs.CODECS.items()}
    weights = {
        name: _about(part) for name, part in codecs.WEIGHT_CODECS.items() if name not in soft
    }
    return {
        "datasets": {"digits": _about(data.digits)} | _fetched() | _OWN_DATA,
        "partitions": _abouts(partition.PARTITIONS),
        "models": _abouts(models.MODELS)
        | {"module:factory": "your own function (shape, classes) -> nn.Module"},
        "samplers": _abouts(samplers.SAMPLERS),
        "codecs": soft | weights,
        "aggregators": _abouts(aggregators.AGGREGATORS),
        "algorithms": _abouts(algorithms.ALGORITHMS),
        "graphs": _abouts(graphs.GRAPHS),
        "engines": _abouts(engines.ENGINES),
        "presets": {
            name: text.partition("\n")[0].lstrip("# ") for name, text in config.presets().items()
        },
    }


_OWN_DATA = {
    "npz:FILE": "your own arrays x, y (x_test, y_test, x_public)",
    "sheet:FILE(32)": "tiles of 32x32 in one picture; no labels, so only for data.public_from",
}


def _fetched() -> dict[str, str]:
    """The published data sets, and whether they are here."""
    from fedsift.data import cache
    from fedsift.data.catalogue import CATALOGUE

    def state(name: str) -> str:
        return "here" if cache.is_here(cache.path(name)) else f"fedsift data get {name}"

    return {name: f"{known.about}: {state(name)}" for name, known in CATALOGUE.items()}


def _abouts(shelf: Any) -> dict[str, str]:
    return {name: _about(part) for name, part in shelf.items()}


def _about(part: Any) -> str:
    """The first sentence of a part's docstring; for a preset of another part, what it sets."""
    from functools import partial

    if isinstance(part, partial):
        return f"{part.func.__name__} with " + ", ".join(
            f"{k} = {v}" for k, v in part.keywords.items()
        )
    return " ".join((part.__doc__ or "").split("\n\n")[0].split())
