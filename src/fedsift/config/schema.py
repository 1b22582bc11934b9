"""What an experiment may say: its sections, their keys, defaults and descriptions.

[local] and [distill] are `Recipe`s. The keys of [algorithm] are the parameters of the algorithms,
with the descriptions in their docstrings; an algorithm checks its values itself when it is built.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from fedsift import registry
from fedsift.algorithms import ALGORITHMS
from fedsift.data import IMAGE_SETS, NOTHING
from fedsift.types import Recipe


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSection(Section):
    name: str = Field(
        "digits",
        description="a data set (fedsift ls datasets), csv:FILE, parquet:FILE, npz:FILE, folder:DIR"
        " or your own mine:load",
    )
    private: int | None = Field(
        None, gt=0, description="samples dealt to the clients (default: all that are left)"
    )
    public: int | None = Field(
        None,
        gt=0,
        description="samples of the public set; no party knows their labels (default: those that"
        " the data name, or a quarter)",
    )
    public_from: str | None = Field(
        None, description="take them from another data set or sheet:FILE, made to fit"
    )
    test: int | None = Field(None, gt=0, description="test samples (default: all that are left)")
    validation: int | None = Field(
        None, gt=0, description="measure accuracy on so many training samples, not on the test"
    )
    normalise: str | None = Field(
        None,
        description="scale (largest value 1), standard (mean 0, deviation 1) or none (default:"
        " scale for images, none for token ids, else standard)",
    )
    target: str | None = Field(None, description="the column of a table that is the class")
    client: str | None = Field(None, description="the column that says whose a row is")
    split: str | None = Field(None, description="the column that says train, test or public")
    text: str | None = Field(None, description="the column that is a text, and the only input")
    clients: str | None = Field(
        None, description='files of one client each, "hospital-*.csv"; name has rows for all'
    )
    classes: tuple[str, ...] | None = Field(
        None, description="names of all classes, where the rows may not have them all"
    )
    categorical: tuple[str, ...] | None = Field(
        None, description="columns of numbers that are names, such as a postcode"
    )
    drop: tuple[str, ...] | None = Field(None, description="columns that are no inputs")
    vocabulary: int | None = Field(
        None, ge=3, description="different words of a text (default: 5000), or of token ids"
    )
    length: int | None = Field(None, gt=0, description="words of a text (default: 100)")
    kind: str | None = Field(
        None, description="of arrays: images, table, series or tokens (default: by their shape)"
    )

    @field_validator("classes", "categorical", "drop", mode="before")
    @classmethod
    def _split_names(cls, names: Any) -> Any:
        """A shell takes the quotes away: "a,b" and "[a, b]" are names, too."""
        if not isinstance(names, str):
            return names
        return [name.strip() for name in names.strip("[]").split(",") if name.strip()]


class PartitionSection(Section):
    kind: str = Field(
        "dirichlet",
        description="iid, dirichlet (equal sizes), dirichlet-free, shards, views, or given by the"
        " data",
    )
    alpha: float = Field(
        1.0, gt=0, description="label skew of the Dirichlet kinds: 100 is almost iid, 0.1 is strong"
    )
    shards: int = Field(2, gt=0, description="shards per client, for kind = shards")
    samples: int = Field(
        40, gt=0, description="samples per client, for kind = views: clients may share them"
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
    student: str | None = Field(
        None, description="a network the server teaches beside the clients' (else mlp, if none)"
    )

    @field_validator("models")
    @classmethod
    def _check_models(cls, models: dict[str, int] | None) -> dict[str, int] | None:
        if models == {}:
            raise ValueError("name at least one model, as in {cnn = 12, mlp = 8}")
        return models


class NamedAlgorithm(Section):
    name: str = Field("fas", description="fedsift ls algorithms")


DEFAULTS = {"budget": 60}  # where an algorithm has no default of its own


def _algorithm_fields() -> dict[str, Any]:
    """Every parameter of every algorithm but the recipes, in the order in which they come."""
    found: dict[str, Any] = {}
    for make in ALGORITHMS.values():
        about = registry.read_arguments(make)
        for key, hint in _hints(make).items():
            if key not in found and (kind := _value_type(hint)):
                default = DEFAULTS.get(key)
                annotation = kind | None if default is None else kind
                found[key] = (annotation, Field(default, description=about.get(key)))
    return found


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(getattr(make, "func", make))
    return {key: hint for key, hint in hints.items() if key != "return"}


def _value_type(hint: Any) -> Any:
    """How TOML says it: a part is its name; a recipe is a section of its own."""
    choices = typing.get_args(hint) or (hint,)
    return next((kind for kind in (str, bool, int, float) if kind in choices), None)


if TYPE_CHECKING:

    class AlgorithmSection(NamedAlgorithm):
        budget: int = 60

        def __getattr__(self, key: str) -> Any: ...

else:
    AlgorithmSection = create_model(
        "AlgorithmSection", __base__=NamedAlgorithm, **_algorithm_fields()
    )


def _is_given(values: dict[str, Any]) -> bool:
    partition = values.get("partition")
    return isinstance(partition, dict) and partition.get("kind") == "given"


def _usual_data(data: dict[str, Any], given: bool) -> dict[str, Any]:
    """Values of [data] that are not said and do not depend on what is in the files."""
    if data.get("clients") is not None:  # without another file, if none is named
        return {"name": NOTHING}
    name = data.get("name", "digits")
    if name not in IMAGE_SETS:  # sizes follow from the data
        return {}
    return ({} if given else {"private": 800, "public": 500}) | {"normalise": "scale"}


class Experiment(Section):
    """A whole experiment; the same values always mean the same run."""

    name: str = Field("experiment", description="for tables and plots")
    seed: int = Field(
        0, ge=0, description="of everything: split, partition, cohorts, weights, batches, picks"
    )
    rounds: int = Field(15, gt=0, description="how many rounds to run")
    patience: int | None = Field(
        None, gt=0, description="stop after so many rounds without a better validation accuracy"
    )
    start: str | None = Field(
        None,
        description="first weights: simclr(epochs=120), rotation(epochs=50) or FILE.safetensors",
    )
    baselines: bool = Field(
        False, description="also train each client alone, and one model per kind on pooled data"
    )
    attack: str | None = Field(
        None, description="what hostile clients do, for example wrong (fedsift ls attacks)"
    )
    attackers: float | None = Field(
        None, ge=0, lt=1, description="the share of the clients that is hostile"
    )
    record: bool = Field(
        True, description="keep a sample of what clients say on public samples, for fedsift report"
    )
    topology: str = Field(
        "flat", description="flat, or edges(50): so many edge servers join uploads on their way"
    )
    engine: str = Field("auto", description="auto, batched, sequential, workers or ray")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto, cpu or cuda")
    precision: str = Field(
        "float32", description="of matrix products: float32, tf32 (CUDA), bfloat16 or auto"
    )
    memory: float | None = Field(
        None, gt=0, description="GiB for stacked networks; else 1, on CUDA half of what is free"
    )
    workers: int | None = Field(
        None, gt=0, description="train in so many worker processes, or Ray workers"
    )
    data: DataSection = DataSection(private=800, public=500, normalise="scale")
    partition: PartitionSection = PartitionSection()
    clients: ClientsSection = ClientsSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    local: Recipe = Recipe()
    distill: Recipe = Recipe()

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Sizes and normalisation that depend on the data set: those that come with fedsift, and
        arrays, have the sizes they always had.
        """
        data = values.get("data", {}) if isinstance(values, dict) else None
        if not isinstance(data, dict):
            return values
        usual = _usual_data(data, given=_is_given(values))
        return values | {"data": data | {k: v for k, v in usual.items() if data.get(k) is None}}

    @property
    def where(self) -> tuple[str, str, str, float | None, int | None]:
        """What `engines.choose_engine` wants to know."""
        return self.engine, self.device, self.precision, self.memory, self.workers


# Keys that say how a run is computed, not what it is.
WHERE = frozenset({"engine", "device", "precision", "memory", "workers"})


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)
    )


def section_type(key: str, section: Any = Experiment) -> Any:
    """The type of a section inside another one, or None where the key is a value."""
    fields = section.model_fields if issubclass(section, BaseModel) else {}
    kind = fields[key].annotation if key in fields else None
    return kind if is_section(kind) else None


def describe_keys(section: Any) -> dict[str, str | None]:
    """The keys of a section, and what each means."""
    if issubclass(section, BaseModel):
        return {key: field.description for key, field in section.model_fields.items()}
    return {field.name: field.metadata.get("about") for field in dataclasses.fields(section)}
