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
from fedsift.data import IMAGE_SETS, NORMALISATIONS, TEST, VALIDATION, Dataset, Task
from fedsift.data.dataset import ANYWHERE, IMAGES, PUBLIC, TEST_PART, TRAIN
from fedsift.data.preparation import Preparation, learn_preparation
from fedsift.data.task import choose_normalisation, keep_plain
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
    preparation: Preparation | None = None  # how the public table became inputs

    @property
    def classes(self) -> int:
        return classes_of(self.task)

    def held_out(self) -> Labelled:
        """What accuracy is measured on: `test` of the task."""
        return self._take_labelled("test", self.task.test(self.experiment, self.node))

    def federation(self, held_out: Labelled, models: Sequence[Model] | None = None) -> Federation:
        """Federation as seen from here: clients without their data, which stay where they are."""
        nothing = np.empty(0, np.int64)
        nobody = Labelled(self.public[nothing], torch.empty(0, self.classes))
        e, everyone = self.experiment, self.models if models is None else models
        clients = Clients(nobody, [nothing] * len(everyone), everyone, self.student)
        # the server has a student of each, also of absent ones
        clients.models = tuple(dict.fromkeys(self.models))
        task = Task(
            nobody,
            self.public,
            held_out,
            TEST if e.data.validation is None else VALIDATION,
            class_names=names_of(self.task),
        )
        start = read_start(e.start)
        return Federation(
            self.algorithm, clients, task, e.clients.cohort, e.seed, start, record=e.record
        )

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
        private = self._take_labelled("private", self.task.private(self.experiment, self.node))
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

    def _take_labelled(self, name: str, given: Any) -> Labelled:
        if isinstance(given, Dataset):
            given = label_rows(name, given, self.public, self.preparation, names_of(self.task))
        return take_labelled(name, given, self.public, self.classes)

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
        words = "" if self.preparation is None else repr(self.preparation)
        return hashlib.sha256(
            f"{values.dtype} {values.shape}{words}".encode() + values.tobytes()
        ).hexdigest()


def make_site(task: Any, settings: Settings, node: Node) -> Site:
    e = config.read_experiment(
        str(Path(task.__file__).parent / settings.experiment), shlex.split(settings.overrides)
    )
    config.check_project_plugins(e, task.__name__)
    engines.check_engine(
        e.engine, e.device, e.precision
    )  # an error comes before the first round, not at every turn
    given, preparation = task.public(e, node), None
    if isinstance(given, Dataset):
        shared, preparation = prepare_public(given, e)
    else:
        shared = take_public(given, e.data.normalise, classes_of(task))
    _refuse_addresses(e)
    if e.patience is not None:
        raise UserError("patience is for simulations; leave it out on Flower")
    if e.topology != "flat":
        raise UserError("edge servers are for simulations; leave topology out on Flower")
    about = shared.shape, classes_of(task), shared.vocabulary
    models = assign_models(e.clients.models or e.clients.model, e.clients.count, *about)
    student = make_student(e.clients.student, *about)
    everyone = tuple(replace(m, factory=_elsewhere) if m.kind == REMOTE else m for m in models)
    return Site(e, task, node, shared, everyone, student, preparation)


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
    names = names_of(task)
    count = len(names) if names is not None else classes
    if type(count) is not int or count < 2:
        raise UserError(
            f"{task.__name__}.py must say how many classes there are, e.g. CLASSES = 10"
        )
    return count


def names_of(task: Any) -> tuple[str, ...] | None:
    """The names of the classes, where CLASSES has them: CLASSES = ("benign", "malignant")."""
    classes = getattr(task, "CLASSES", None)
    if not isinstance(classes, tuple | list):
        return None
    names = tuple(map(str, classes))
    if len(set(names)) < len(names):
        raise UserError(f"CLASSES of {task.__name__}.py names a class twice")
    return names


def prepare_public(given: Dataset, e: Experiment) -> tuple[Samples, Preparation | None]:
    """The rows of a data set that all share, and what every machine learns from them. Where the
    experiment names no data of its own, they are normalised as it is usual for their kind.
    """
    asked = None if e.data.name in IMAGE_SETS and given.kind != IMAGES else e.data.normalise
    figures = NORMALISATIONS[choose_normalisation(given.kind, asked)]
    rows = np.arange(len(given.x))
    if given.part is not None:
        rows = np.flatnonzero(given.part == PUBLIC)
    if not len(rows):
        raise UserError("public has no rows that are public; see data.split")
    if given.table is None:
        store = Store(torch.from_numpy(given.x), *figures(given.x[rows]), given.vocabulary)
        return Samples(store, rows), None
    preparation, _ = learn_preparation(given.table, rows)
    x = preparation.apply(given.table)
    mean, std = keep_plain(*figures(x[rows]), preparation.plain)
    return Samples(Store(torch.from_numpy(x), mean, std, preparation.vocabulary), rows), preparation


def label_rows(
    name: str,
    given: Dataset,
    public: Samples,
    preparation: Preparation | None,
    names: tuple[str, ...] | None,
) -> Labelled:
    """The rows of a data set that are a node's own, or for the test, prepared as the public ones.

    Where a column says train, test or public, only the rows of this part are taken.
    """
    if given.names is not None and given.names != names:
        raise UserError(
            f"{name} has the classes {', '.join(given.names[:5])}, and CLASSES of the project are "
            f"others; load it with classes=CLASSES, which is a list of names"
        )
    if (given.table is None) != (preparation is None):
        raise UserError(f"{name} and public must both be tables, or both be arrays")
    rows = np.arange(len(given.x))
    if given.part is not None:
        wanted = (TEST_PART,) if name == TEST else (ANYWHERE, TRAIN)
        rows = np.flatnonzero(np.isin(given.part, wanted))
    if not len(rows) or (given.y[rows] < 0).any():
        raise UserError(f"{name} needs rows, and a class in each of them; see data.target")
    x = given.x
    if given.table is not None and preparation is not None:
        x = preparation.apply(given.table)
    store = replace(public.store, values=torch.from_numpy(x))
    targets = F.one_hot(torch.from_numpy(given.y[rows]), given.classes).float()
    return Labelled(Samples(store, rows), targets)


def take_public(given: Any, normalise: str | None, classes: int) -> Samples:
    """A task's public samples: fedsift's type, or an input array normalised by its own figures."""
    if isinstance(given, Samples):
        return given
    made = data.make_dataset(given, np.zeros(len(given), np.int64), classes)
    mean, std = NORMALISATIONS[choose_normalisation(made.kind, normalise)](made.x)
    return Samples(Store(torch.from_numpy(made.x), mean, std), np.arange(len(made.x)))


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
    return Samples(replace(public.store, values=torch.from_numpy(x)), np.arange(len(x)))
