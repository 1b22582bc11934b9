"""fedsift: federated distillation for PyTorch. Clients share what they know about a public set, not
their weights; fedsift decides which samples are worth the bytes.

    import fedsift

    task = fedsift.split(fedsift.load("digits"), private=800, public=500, seed=0)
    clients = fedsift.clients(task.private, 20, fedsift.Dirichlet(0.1), model="cnn", seed=0)
    for record in fedsift.federate(fedsift.fas(budget=60), clients, task, rounds=15, cohort=8,
    seed=0):
        print(record.round, record.accuracy, record.uplink_bytes)

Names are imported when first used, so that `import fedsift` and `fedsift --help` are instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedsift.aggregators import AGGREGATORS, EnhancedEra, Era, mean
    from fedsift.algorithms import (
        ALGORITHMS,
        FedAvg,
        Gossip,
        JeongFD,
        Mix2FLD,
        SoftLabelFD,
        cfd,
        ds_fl,
        fas,
        fd,
        fd_jeong,
        fedavg,
        feddf,
        fedpaq,
        gossip,
        mix2fld,
    )
    from fedsift.codecs import CODECS, WEIGHT_CODECS, WireError
    from fedsift.config import Experiment, build, read
    from fedsift.data import DATASETS, Dataset, Task, dataset, load, split
    from fedsift.data.partition import PARTITIONS, Dirichlet, DirichletFree, Shards, Views, iid
    from fedsift.engines import ENGINES, choose
    from fedsift.federation import Clients, Federation, Record, clients, federate, together
    from fedsift.models import MODELS, model
    from fedsift.samplers import SAMPLERS, entropy
    from fedsift.types import Client, Draws, Fit, Mistake, Model, Predict, Recipe, Round, SoftLabels

_HOME = {
    "aggregators": "AGGREGATORS EnhancedEra Era mean",
    "algorithms": "ALGORITHMS FedAvg Gossip JeongFD Mix2FLD SoftLabelFD cfd ds_fl fas fd fd_jeong fedavg feddf fedpaq"
    " gossip mix2fld",
    "codecs": "CODECS WEIGHT_CODECS WireError",
    "config": "Experiment build read",
    "data": "DATASETS Dataset Task dataset load split",
    "data.partition": "PARTITIONS Dirichlet DirichletFree Shards Views iid",
    "engines": "ENGINES choose",
    "federation": "Clients Federation Record clients federate together",
    "models": "MODELS model",
    "samplers": "SAMPLERS entropy",
    "types": "Client Draws Fit Mistake Model Predict Recipe Round SoftLabels",
}
_WHERE = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "__version__",
    "AGGREGATORS",
    "ALGORITHMS",
    "CODECS",
    "Client",
    "Clients",
    "DATASETS",
    "Dataset",
    "Dirichlet",
    "DirichletFree",
    "Draws",
    "ENGINES",
    "EnhancedEra",
    "Era",
    "Experiment",
    "FedAvg",
    "Federation",
    "Fit",
    "Gossip",
    "JeongFD",
    "MODELS",
    "Mistake",
    "Mix2FLD",
    "Model",
    "PARTITIONS",
    "Predict",
    "Recipe",
    "Record",
    "Round",
    "SAMPLERS",
    "Shards",
    "SoftLabelFD",
    "SoftLabels",
    "Task",
    "Views",
    "WEIGHT_CODECS",
    "WireError",
    "build",
    "cfd",
    "choose",
    "clients",
    "dataset",
    "ds_fl",
    "entropy",
    "fas",
    "fd",
    "fd_jeong",
    "fedavg",
    "feddf",
    "federate",
    "fedpaq",
    "gossip",
    "iid",
    "load",
    "mean",
    "mix2fld",
    "model",
    "read",
    "split",
    "together",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fedsift' has no attribute {name!r}")
    return getattr(import_module(f"fedsift.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
