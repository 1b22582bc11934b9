"""FD, FAS, DS-FL and CFD by name: values on the axes of the FD meta-algorithm."""

from __future__ import annotations

from fedsift import registry
from fedsift.aggregators import AGGREGATORS, Aggregator, StatefulAggregator
from fedsift.algorithms.audits import Audits
from fedsift.algorithms.presets import preset
from fedsift.algorithms.soft_labels import SoftLabelFD
from fedsift.algorithms.votes import Votes
from fedsift.checks import check_recipe
from fedsift.codecs import (
    SoftLabelCodec,
    Updates,
    WeightCodec,
    down_weight_codec,
    soft_label_codec,
)
from fedsift.samplers import SAMPLERS, Sampler
from fedsift.types import Recipe


def fd(
    budget: int,
    *,
    sampler: str | Sampler = "none",
    aggregator: str | Aggregator | StatefulAggregator = "mean",
    codec: str | SoftLabelCodec = "float32",
    download: str = "weights",
    down_codec: str | SoftLabelCodec | WeightCodec | Updates = "float32",
    temperature: float = 1.0,
    teach: str = "aggregate",
    absent: str = "latest",
    ema: float = 0.0,
    pool: int | None = None,
    replay: int = 0,
    bytes: int | None = None,
    votes: str = "equal",
    vote_bits: int = 4,
    audit: int = 0,
    public_weight: float = 1.0,
    local: Recipe | None = None,
    distill: Recipe | None = None,
) -> SoftLabelFD:
    """The FD meta-algorithm: soft labels up, averaged per sample, distilled at the server.

    Samplers, aggregators and codecs are given by name or as objects of your own. The server finds
    expertise from a label histogram too, but then knows what data each client has.

    budget: soft labels a client uploads per round
    sampler: which public samples a client uploads (fedsift ls samplers)
    aggregator: how the server joins uploads, e.g. "era(0.1)" (fedsift ls aggregators)
    codec: of the uplink (fedsift ls codecs)
    download: what travels down, "weights" or "soft-labels"
    down_codec: of the downlink
    temperature: of the softmax in soft labels and in distillation
    teach: soft labels down: the "aggregate", or the server's own "predictions"
    absent: soft labels down: a returning client receives the "latest", or all it "missed"
    ema: share of its old weights that the server keeps each round
    pool: public samples to choose from, drawn again every round (default: all)
    replay: public samples a client adds to its own in training, labelled by the model it received
    bytes: the most bytes of an upload; fewer soft labels than the budget are sent if need be
    votes: how much a row counts: "equal", by "expertise", or by the client's label "histogram"
    vote_bits: bits per row in which expertise is sent, 4 to 8
    audit: samples of earlier uploads that all are asked about each round, 0 to 64; for trust
    public_weight: soft labels down, no network: what a public row counts in training; an own row: 1
    local: how clients train
    distill: how soft labels are distilled
    """
    downloads = {"weights": down_weight_codec, "soft-labels": soft_label_codec}
    down = registry.lookup(downloads, "download", download, "weights or soft-labels")
    return SoftLabelFD(
        registry.resolve(SAMPLERS, "sampler", sampler),
        budget,
        registry.resolve(AGGREGATORS, "aggregator", aggregator),
        check_recipe("local", local),
        check_recipe("distill", distill),
        temperature,
        soft_label_codec(codec),
        down(down_codec),
        teach,
        absent,
        ema,
        pool,
        replay,
        bytes,
        Votes(votes, vote_bits),
        Audits(audit),
        public_weight,
    )


# Values, not classes: each is the same algorithm with other defaults on its axes.
fas = preset(fd, "fas", "FAS: every client chooses the samples it uploads.", sampler="mixed")
ds_fl = preset(
    fd,
    "ds_fl",
    "DS-FL (Itahara et al. 2021): entropy-reduction aggregation, soft labels both ways.",
    aggregator="era",
    download="soft-labels",
)
cfd = preset(
    fd,
    "cfd",
    "CFD (Sattler et al. 2021): 1-bit delta-coded soft labels both ways.",
    codec="delta(quantized(1))",
    download="soft-labels",
    down_codec="delta(quantized(1))",
    teach="predictions",
)
