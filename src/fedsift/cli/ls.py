"""`fedsift ls`: what there is to choose from, a line for each name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedsift.cli.console import error_handler, format_entry, say, user_error
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json
from fedsift.cli.parts import describe_part


def ls(
    kind: Annotated[
        str | None,
        typer.Argument(help="One kind alone: datasets, models, samplers, ...", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what there is to choose from.

    With --json also the options of every part: their types, defaults and meanings.
    """
    with error_handler():
        from fedsift import registry

        kinds = list_parts()
        if kind is not None and kind not in kinds:
            raise user_error(registry.unknown_name("kind", kind, kinds, "fedsift ls"))
        chosen = [kind] if kind else list(kinds)
        if as_json:
            print_json(describe_parts({name: kinds[name] for name in chosen}))
            return
        kinds["datasets"] |= _say_what_is_here()
        for name in chosen:
            if not kind:
                say(f"{name}:")
            for part, about in kinds[name].items():
                say(format_entry(part, about, "" if kind else "  "))


def describe_parts(kinds: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """Every part of these kinds, with its options."""
    known = list_registries()
    return [
        describe_part(kind, name, about, known.get(kind, {}).get(name))
        for kind, parts in kinds.items()
        for name, about in parts.items()
    ]


def list_registries() -> dict[str, dict[str, Any]]:
    """Kind -> name -> the part, or what makes it."""
    from fedsift import (
        aggregators,
        algorithms,
        attacks,
        codecs,
        data,
        engines,
        graphs,
        models,
        pretexts,
        samplers,
    )
    from fedsift.data import partition

    return {
        "datasets": {"digits": data.digits} | data.BUNDLED,
        "partitions": dict(partition.PARTITIONS),
        "models": dict(models.MODELS),
        "samplers": dict(samplers.SAMPLERS),
        "codecs": dict(codecs.WEIGHT_CODECS) | codecs.CODECS,
        "aggregators": dict(aggregators.AGGREGATORS),
        "algorithms": dict(algorithms.ALGORITHMS),
        "graphs": dict(graphs.GRAPHS),
        "attacks": dict(attacks.ATTACKS),
        "starts": dict(pretexts.PRETEXTS),
        "engines": dict(engines.ENGINES),
    }


def list_parts() -> dict[str, dict[str, str]]:
    """Kind -> name -> one line."""
    from fedsift import codecs, config
    from fedsift.data.catalogue import CATALOGUE

    soft = {name: _describe(getattr(part, "values", part)) for name, part in codecs.CODECS.items()}
    weights = {
        name: _describe(part) for name, part in codecs.WEIGHT_CODECS.items() if name not in soft
    }
    found = {kind: _describe_all(parts) for kind, parts in list_registries().items()}
    found["datasets"] |= {name: known.about for name, known in CATALOGUE.items()} | _OWN_DATA
    found["codecs"] = soft | weights
    found["starts"] |= _OWN_START
    found["presets"] = {
        name: text.partition("\n")[0].lstrip("# ") for name, text in config.presets().items()
    }
    return {kind: parts | _OWN_PARTS.get(kind, {}) for kind, parts in found.items()}


_OWN_PARTS = {  # the plug-in form of each kind
    "datasets": {"mine:load": "your own, in mine.py: a function () -> Dataset or (x, y)"},
    "partitions": {"mine:deal": "your own: (labels, clients, generator) -> index arrays"},
    "models": {
        "mine:net": "your own: a function (shape, classes) -> nn.Module, or a class with"
        " fit and predict_proba",
        "sklearn:NAME": "a classifier of scikit-learn, as in sklearn:GaussianNB (any-client.md)",
        "xgboost:NAME": "of XGBoost, as in xgboost:XGBClassifier(n_estimators=50)",
        "lightgbm:NAME": "of LightGBM, as in lightgbm:LGBMClassifier",
        "http://...": "a black box: rows are posted, probabilities are read; it is not trained",
    },
    "samplers": {"mine:pick": "your own: (probs, label_counts, budget, draws) -> indexes"},
    "codecs": {"mine:Tiny": "your own: a class with id, pack, unpack, max_bytes"},
    "aggregators": {"mine:join": "your own: (uploads, samples, classes) -> SoftLabels"},
    "algorithms": {"mine:fedmd": "your own: a class or function that gives an Algorithm"},
    "graphs": {"mine:connect": "your own: (clients, generator) -> pairs of clients"},
    "attacks": {"mine:lie": "your own: (answer, scene) -> the altered answer"},
    "starts": {"mine:Pretext": "your own: a class with the members of fedsift.Pretext"},
    "engines": {"mine:Engine": "your own: a class with run and describe"},
}
_OWN_START = {"FILE.safetensors": "weights of the body, or of the whole network"}
_OWN_DATA = {
    "csv:FILE": "your own table, with data.target=COLUMN; parquet:FILE too",
    "npz:FILE": "your own arrays x, y (x_test, y_test, x_public, client)",
    "folder:DIR": "your own images, a folder per class",
    "sheet:FILE(32)": "tiles of 32x32 in one picture; no labels, so only for data.public_from",
}


def _say_what_is_here() -> dict[str, str]:
    """The published data sets, and whether they are here."""
    from fedsift.data import cache
    from fedsift.data.catalogue import CATALOGUE

    def state(name: str) -> str:
        return "here" if cache.is_here(cache.path(name)) else f"fedsift data get {name}"

    return {name: f"{known.about}: {state(name)}" for name, known in CATALOGUE.items()}


def _describe_all(entries: Any) -> dict[str, str]:
    return {name: _describe(part) for name, part in entries.items()}


def _describe(part: Any) -> str:
    """The first sentence of a part's docstring; for a preset of another part, what it sets."""
    from functools import partial

    if isinstance(part, partial):
        return f"{part.func.__name__} with " + ", ".join(
            f"{k} = {v}" for k, v in part.keywords.items()
        )
    if isinstance(dtype := getattr(part, "dtype", None), str):  # one class, several names
        return f"Each probability as a float of {dtype[-1]} bytes."
    return " ".join((part.__doc__ or "").split("\n\n")[0].split())
