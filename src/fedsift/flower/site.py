"""What each machine of a federation derives from the project's files, so that only bytes cross."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fedsift import config, data, engines, registry
from fedsift.config import Experiment
from fedsift.data import NORMALISATIONS, TEST, VALIDATION, Task
from fedsift.estimators.remote import Remote, is_address
from fedsift.federation import Clients, Federation, assign_models, make_student
from fedsift.flower.settings import Settings
from fedsift.models import BLACK_BOX
from fedsift.starts import read_start
from fedsift.types import (
    REMOTE,
    Algorithm,
    Array,
    Client,
    Labelled,
    Model,
    PeerToPeer,
    Samples,
    Store,
    UserError,
)

Node = Mapping[str, Any]  # a node's own settings (--node-config); empty on the server


@dataclass(frozen=True, eq=False)
class Site:
    """One machine's view: the experiment, the user's task, and this machine's public set."""

    experiment: Experiment
    task: Any
    node: Node
    public: Samples
    models: tuple[Model, ...]  # of each client, as the experiment deals them
    student: Model | None  # a network of the server's own

    @property
    def classes(self) -> int:
        return classes_of(self.task)

    def held_out(self) -> Labelled:
        """What accuracy is measured on: `test` of the task."""
        return take_labelled(
            "test", self.task.test(self.experiment, self.node), self.public, self.classes
        )

    def federation(self, held_out: Labelled, models: Sequence[Model] | None = None) -> Federation:
        """Federation as seen from here: clients without their data, which stay where they are."""
        nothing = np.empty(0, np.int64)
        nobody = Labelled(self.public[nothing], torch.empty(0, self.classes))
        e, everyone = self.experiment, self.models if models is None else models
        clients = Clients(nobody, [nothing] * len(everyone), everyone, self.student)
        # the server has a student of each, also of absent ones
        clients.models = tuple(dict.fromkeys(self.models))
        task = Task(
            nobody, self.public, held_out, TEST if e.data.validation is None else VALIDATION
        )
        start = read_start(e.start)
        return Federation(self.algorithm, clients, task, e.clients.cohort, e.seed, start)

    def client(self) -> Client:
        """The client this node is, with its private data."""
        id = self.node.get("partition-id")
        if type(id) is not int or not 0 <= id < len(self.models):
            most = len(self.models) - 1
            raise UserError(
                "start this SuperNode with --node-config 'partition-id=N', N from 0 to "
                f"{most}, not {id!r}"
            )
        names = {model.name: model for model in self.models}
        model = registry.lookup(
            names, "model", str(self.node.get("model", self.models[id].name)), "clients.models"
        )
        if model.kind == REMOTE:
            model = replace(model, factory=Remote(self._address()))
        private = take_labelled(
            "private", self.task.private(self.experiment, self.node), self.public, self.classes
        )
        return Client(id, model, private)

    def _address(self) -> str:
        """Of the black box that this node asks. Only the node's own settings say it."""
        address = self.node.get("address")
        if not isinstance(address, str):
            raise UserError(
                "this client is a black box; start its SuperNode with --node-config"
                " 'address=\"http://HOST:PORT/PATH\"'"
            )
        return address

    @cached_property
    def algorithm(self) -> Algorithm:
        algorithm, name = config.build_algorithm(self.experiment), self.experiment.algorithm.name
        if isinstance(algorithm, PeerToPeer):
            raise UserError(f"{name} has no server, so it cannot run on Flower; use `fedsift run`")
        return algorithm

    @cached_property
    def digest(self) -> str:
        """Of everything in the experiment that both ends must share."""
        return hashlib.sha256(config.to_toml(self.experiment).encode()).hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """Of the public set: every raw value, in order."""
        values = self.public.store.values[torch.from_numpy(self.public.rows)].contiguous().numpy()
        return hashlib.sha256(
            f"{values.dtype} {values.shape}".encode() + values.tobytes()
        ).hexdigest()


def make_site(task: Any, settings: Settings, node: Node) -> Site:
    e = config.read_experiment(
        str(Path(task.__file__).parent / settings.experiment), shlex.split(settings.overrides)
    )
    config.check_project_plugins(e, task.__name__)
    engines.check_engine(
        e.engine, e.device, e.precision
    )  # an error comes before the first round, not at every turn
    shared = take_public(task.public(e, node), e.data.normalise, classes_of(task))
    _refuse_addresses(e)
    shape, classes = shared.shape, classes_of(task)
    models = assign_models(e.clients.models or e.clients.model, e.clients.count, shape, classes)
    student = make_student(e.clients.student, shape, classes)
    everyone = tuple(replace(m, factory=_elsewhere) if m.kind == REMOTE else m for m in models)
    return Site(e, task, node, shared, everyone, student)


def _elsewhere(shape: tuple[int, ...], classes: int) -> None:
    """A black box that another machine asks."""


def _refuse_addresses(e: Experiment) -> None:
    """A node is never told by the project where to send rows."""
    for name in e.clients.models or [e.clients.model]:
        if is_address(name):
            raise UserError(
                f"an experiment on Flower names the address {name}; write {BLACK_BOX} as the model,"
                " and start that node with --node-config 'address=\"http://...\"'"
            )


def classes_of(task: Any) -> int:
    classes = getattr(task, "CLASSES", None)
    if type(classes) is not int or classes < 2:
        raise UserError(
            f"{task.__name__}.py must say how many classes there are, e.g. CLASSES = 10"
        )
    return classes


def take_public(given: Any, normalise: str, classes: int) -> Samples:
    """A task's public samples: fedsift's type, or an input array normalised by its own figures."""
    if isinstance(given, Samples):
        return given
    x = data.make_dataset(given, np.zeros(len(given), np.int64), classes).x
    mean, std = registry.lookup(NORMALISATIONS, "normalisation", normalise, "standard or scale")(x)
    return Samples(Store(torch.from_numpy(x), mean, std), np.arange(len(x)))


def take_labelled(name: str, given: Any, public: Samples, classes: int) -> Labelled:
    """A task's labelled samples: fedsift's type, or arrays (x, y) normalised as the public set."""
    if not isinstance(given, Labelled):
        x, y = given
        made = data.make_dataset(x, y, classes)
        given = Labelled(
            _normalise_like(made.x, public),
            F.one_hot(torch.from_numpy(made.y), made.classes).float(),
        )
    if given.samples.shape != public.shape or given.classes != classes or not len(given):
        found = f"{len(given)} samples of shape {given.samples.shape} in {given.classes} classes"
        raise UserError(
            f"{name} gives {found}; the public set has shape {public.shape}, and there are "
            f"{classes} classes"
        )
    return given


def _normalise_like(x: Array, public: Samples) -> Samples:
    return Samples(
        Store(torch.from_numpy(x), public.store.mean, public.store.std), np.arange(len(x))
    )
