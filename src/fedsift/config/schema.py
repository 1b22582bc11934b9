"""What an experiment may say: its sections, their keys and defaults, and the checks on a value."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedsift import registry
from fedsift.types import AUGMENTATIONS, OPTIMIZERS, Recipe


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
