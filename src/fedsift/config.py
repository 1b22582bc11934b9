"""An experiment as TOML <-> pydantic. Config stops here: `build` turns it into plain parts that
never see it.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from fedsift import data, engines, registry
from fedsift.algorithms import ALGORITHMS
from fedsift.data.partition import PARTITIONS
from fedsift.federation import Federation, make_clients
from fedsift.overrides import SHORT as SHORT
from fedsift.overrides import Axes, apply_override, read_axes, short_name
from fedsift.overrides import full_path as full_path
from fedsift.types import AUGMENTATIONS, OPTIMIZERS, Algorithm, Recipe, UserError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSection(Section):
    name: str = Field("digits", description="a data set (fedsift ls datasets) or your own npz:FILE")
    private: int = Field(800, gt=0, description="samples dealt to the clients")
    public: int = Field(
        500, gt=0, description="samples of the public set; their labels are never read"
    )
    public_from: str | None = Field(
        None, description="take them from another data set or sheet:FILE, made to fit"
    )
    test: int | None = Field(None, gt=0, description="test samples (default: all that are left)")
    normalise: str = Field(
        "scale", description="scale (largest value 1) or standard (mean 0, deviation 1)"
    )


class PartitionSection(Section):
    kind: str = Field(
        "dirichlet", description="iid, dirichlet (equal sizes), dirichlet-free, shards or views"
    )
    alpha: float = Field(
        1.0, gt=0, description="label skew of the Dirichlet kinds: 100 is almost iid, 0.1 is strong"
    )
    shards: int = Field(2, gt=0, description="shards a client, for kind = shards")
    samples: int = Field(
        40, gt=0, description="samples a client, for kind = views: clients may share them"
    )


class ClientsSection(Section):
    count: int = Field(20, gt=0, description="clients in the federation")
    cohort: int = Field(8, gt=0, description="clients that take part in a round")
    model: str = Field(
        "cnn", description='fedsift ls models; options as in "resnet8(norm=group, width=0.5)"'
    )
    models: dict[str, int] | None = Field(
        None, description="instead of model: {resnet8 = 10, cnn = 6, mlp = 4}"
    )


class AlgorithmSection(Section):
    name: str = Field("fas", description="fedsift ls algorithms")
    budget: int = Field(60, gt=0, description="soft labels a client uploads in a round")
    sampler: str | None = Field(
        None, description="which ones: fedsift ls samplers (default: the algorithm's own)"
    )
    aggregator: str | None = Field(None, description='fedsift ls aggregators, e.g. "era(0.1)"')
    codec: str | None = Field(None, description="of the uplink: fedsift ls codecs")
    download: str | None = Field(None, description="weights or soft-labels")
    down_codec: str | None = Field(None, description="of the downlink")
    temperature: float | None = Field(
        None, gt=0, description="of the softmax in soft labels and distillation"
    )
    teach: str | None = Field(
        None, description="soft labels down: the aggregate, or the server's own predictions"
    )
    absent: str | None = Field(
        None, description="soft labels down: a returning client hears the latest, or all it missed"
    )
    ema: float | None = Field(
        None, ge=0, lt=1, description="share of its old weights the server keeps each round"
    )
    pool: int | None = Field(
        None, gt=0, description="public samples to choose from, drawn anew every round; else all"
    )
    gamma: float | None = Field(
        None, ge=0, description="fd-jeong, mix2fld: weight of the pull to the others"
    )
    lam: float | None = Field(
        None, gt=0, lt=0.5, description="mix2fld: share of the first sample in a mixture"
    )
    seeds: int | None = Field(None, gt=0, description="mix2fld: mixtures a client uploads once")
    graph: str | None = Field(
        None, description='gossip: who hears whom, e.g. "ring", "regular(4)", "edges(0-1 1-2)"'
    )


class RecipeSection(Section):
    epochs: int = Field(10, gt=0)
    batch: int = Field(16, gt=0)
    lr: float = Field(2e-3, gt=0)
    optimizer: str = Field("adam", description="adam, adamw or sgd")
    momentum: float = Field(0.9, ge=0, lt=1, description="sgd only")
    nesterov: bool = Field(False, description="sgd only")
    weight_decay: float = Field(0.0, ge=0)
    augment: str = Field("none", description="none or crop-flip")
    milestones: tuple[int, ...] = Field(
        (), description="epochs, counted from round 0, at which lr is multiplied ..."
    )
    decay: float = Field(0.1, gt=0, description="... by this")

    @model_validator(mode="after")
    def _known(self) -> RecipeSection:
        for kind, name, known in (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("augment", self.augment, AUGMENTATIONS),
        ):
            if name not in known:
                raise ValueError(
                    registry.unknown_name(kind, name, known, f"one of {', '.join(known)}")
                )
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        return self

    def recipe(self) -> Recipe:
        return Recipe(**self.model_dump())


class Experiment(Section):
    """A whole experiment; the same values always mean the same run."""

    name: str = Field("experiment", description="for tables and plots")
    seed: int = Field(
        0, ge=0, description="of everything: split, partition, cohorts, weights, batches, picks"
    )
    rounds: int = Field(15, gt=0)
    engine: str = Field("auto", description="auto, batched or sequential")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: str = Field(
        "float32", description="of matrix products: float32, tf32 (CUDA) or bfloat16"
    )
    memory: float | None = Field(
        None, gt=0, description="GiB for stacked networks; else 1, on CUDA half of what is free"
    )
    data: DataSection = DataSection()
    partition: PartitionSection = PartitionSection()
    clients: ClientsSection = ClientsSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    local: RecipeSection = RecipeSection()
    distill: RecipeSection = RecipeSection()

    @property
    def where(self) -> tuple[str, str, str, float | None]:
        """What `engines.choose_engine` wants to know."""
        return self.engine, self.device, self.precision, self.memory


WHERE = frozenset(
    {"engine", "device", "precision", "memory"}
)  # keys that say how a run is computed, not what it is


# --- reading
#
#
# -------------------------------------------------------------------------------------------------------


def presets() -> dict[str, str]:
    """Preset name -> its TOML text."""
    folder = resources.files("fedsift").joinpath("presets")
    files = sorted(
        (f for f in folder.iterdir() if f.name.endswith(".toml")),
        key=lambda f: f.name.removesuffix(".toml"),
    )
    return {file.name.removesuffix(".toml"): file.read_text() for file in files}


def read_experiment(source: str, overrides: Sequence[str] = ()) -> Experiment:
    """An experiment from a preset name or a TOML file, with `key.path=value` overrides."""
    values, axes = read_values(source, overrides)
    if axes:
        keys = ", ".join(map(short_name, axes))
        raise UserError(
            f"{source} sweeps over {keys}: that is many experiments; give each key one value, as in seed=0"
        )
    return check_experiment(values)


def read_values(source: str, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], Axes]:
    """What a preset or a TOML file and its overrides say: the values, and the axes of its [sweep]
    table.
    """
    if source.endswith(".toml") or Path(source).is_file():
        try:
            text = Path(source).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {source}: {error}") from None
        values = {"name": Path(source).stem} | _parse_toml(text, source)
    else:
        text = registry.lookup(presets(), "preset", source)
        values = {"name": source} | _parse_toml(text, source)
    axes = read_axes(values.pop("sweep", {}))
    for override in overrides:
        apply_override(values, axes, override)
    return values, axes


def check_experiment(values: dict[str, Any]) -> Experiment:
    """Checked values; every complaint names the key and what to do."""
    check_keys(values)
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        raise UserError("; ".join(_complaint(e) for e in error.errors())) from None


def _parse_toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source} is not valid TOML: {error}") from None


def check_keys(values: dict[str, Any], part: type[BaseModel] = Experiment, path: str = "") -> None:
    """Unknown keys, with the nearest known one and its full path."""
    for key, value in values.items():
        if key not in part.model_fields:
            if not path and key in SHORT:  # short names are for the command line
                raise UserError(f"unknown key {key!r} in a file; write it as {SHORT[key]}")
            inside = [
                f"{s}.{key}"
                for s, f in part.model_fields.items()
                if key in getattr(f.annotation, "model_fields", ())
            ]
            if inside:
                raise UserError(f"unknown key {path + key!r}; did you mean {' or '.join(inside)}?")
            known = dict.fromkeys([*part.model_fields, *([] if path else [*SHORT, "sweep"])])
            everywhere = "run `fedsift new PRESET FILE.toml` to see all keys"
            raise UserError(
                registry.unknown_name("key", path + key, [path + k for k in known], everywhere)
            )
        inner = part.model_fields[key].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            if not isinstance(value, dict):
                raise UserError(
                    f"{path}{key} is a section with keys {', '.join(inner.model_fields)}, not {value!r}"
                )
            check_keys(value, inner, f"{path}{key}.")


def _complaint(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    said = error["msg"].removeprefix("Value error, ")
    got = "" if error["type"] == "value_error" else f" (got {error['input']!r})"
    return f"{where}: {said[0].lower()}{said[1:]}{got}"


# --- building
#
#
# ------------------------------------------------------------------------------------------------------


def build_federation(experiment: Experiment) -> Federation:
    """The federation an experiment describes: plain parts, checked before any work is done."""
    e = experiment
    algorithm, _ = _algorithm(e)
    engines.check_engine(e.engine, e.device, e.precision)
    task = _split(
        _dataset(e.data), e.data.private, e.data.public, e.data.test, e.seed, e.data.normalise
    )
    how = registry.lookup(PARTITIONS, "partition", e.partition.kind)
    if isinstance(how, type):
        how = how(**{key: getattr(e.partition, key) for key in inspect.signature(how).parameters})
    everyone = make_clients(
        task.private, e.clients.count, how, e.clients.models or e.clients.model, e.seed
    )
    return Federation(algorithm, everyone, task, e.clients.cohort, e.seed)


_split = lru_cache(maxsize=32)(data.split)  # the cells of a table share their seeds' splits


def _dataset(part: DataSection) -> data.Dataset:
    if part.public_from is None:
        return data.load_dataset(part.name)
    if part.public_from == part.name:
        raise UserError(
            f"data.public_from is {part.name} itself; leave it out, and the two parts will not overlap"
        )
    return data.with_public(data.load_dataset(part.name), part.public_from)


def algorithm(experiment: Experiment) -> Algorithm:
    return _algorithm(experiment)[0]


def unused(experiment: Experiment) -> list[str]:
    """The keys that have a value which this experiment does not use; a whole section is named with
    its dot.
    """
    e = experiment
    how = registry.lookup(PARTITIONS, "partition", e.partition.kind)
    wanted = inspect.signature(how).parameters if isinstance(how, type) else ()
    keys = [f"algorithm.{key}" for key in _algorithm(e)[1]]
    keys += [f"partition.{key}" for key in ("alpha", "shards", "samples") if key not in wanted]
    keys += ["clients.model"] if e.clients.models else []
    keys += ["memory"] if e.memory and e.engine == "sequential" else []
    return keys + (
        []
        if "distill" in inspect.signature(ALGORITHMS[e.algorithm.name]).parameters
        else ["distill."]
    )


def _algorithm(e: Experiment) -> tuple[Algorithm, list[str]]:
    make = registry.lookup(ALGORITHMS, "algorithm", e.algorithm.name)
    axes = e.algorithm.model_dump(exclude={"name"}, exclude_none=True)
    recipes = {"local": e.local.recipe(), "distill": e.distill.recipe()}
    known = inspect.signature(make).parameters
    algorithm = make(**{key: value for key, value in (axes | recipes).items() if key in known})
    return algorithm, [key for key in axes if key not in known]


# --- writing
#
#
# -------------------------------------------------------------------------------------------------------


def to_toml(experiment: Experiment, axes: Axes | None = None) -> str:
    """Every value, also those left at their default, and what each means; and the axes of a sweep,
    if there are any.
    """
    top, sections = [], []
    for key, field in Experiment.model_fields.items():
        value = getattr(experiment, key)
        if isinstance(value, Section):
            sections += [
                "",
                f"[{key}]",
                *(_line(k, getattr(value, k), f) for k, f in type(value).model_fields.items()),
            ]
        else:
            top.append(_line(key, value, field))
    if axes:
        sections += [
            "",
            "[sweep]",
            *(f"{json.dumps(path)} = {_written(choices)}" for path, choices in axes.items()),
        ]
    return "\n".join([*top, *sections]) + "\n"


def _line(key: str, value: Any, field: FieldInfo) -> str:
    setting = f"# {key} =" if value is None else f"{key} = {_written(value)}"
    return f"{setting:<24}  # {field.description}" if field.description else setting


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{_written(key)} = {_written(inner)}" for key, inner in value.items())
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def resolved(experiment: Experiment) -> dict[str, Any]:
    """Every value by its full path; what was left to the algorithm, as the algorithm has it."""
    values = flat(experiment.model_dump())
    for key, parameter in inspect.signature(
        ALGORITHMS[experiment.algorithm.name]
    ).parameters.items():
        if values.get(f"algorithm.{key}", 0) is None and parameter.default is not parameter.empty:
            values[f"algorithm.{key}"] = parameter.default
    return values


def differences(one: Experiment, other: Experiment) -> dict[str, tuple[Any, Any]]:
    """Full key path -> the two values, where they differ."""
    a, b = flat(one.model_dump()), flat(other.model_dump())
    return {key: (a[key], b[key]) for key in a if a[key] != b[key]}


def flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested sections as full key paths."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        section = isinstance(value, dict) and key != "models"
        found |= flat(value, f"{path}{key}.") if section else {path + key: value}
    return found
