"""The data set of a [data] section."""

from __future__ import annotations

from functools import lru_cache

from fedsift import data
from fedsift.config.schema import ClientsSection, DataSection
from fedsift.data.dataset import TABLE, as_tokens
from fedsift.data.partition import NOBODY
from fedsift.models import make_model, reads_tokens
from fedsift.types import UserError


def load_section(section: DataSection, clients: ClientsSection) -> data.Dataset:
    """The data set, with what the section says of it; token ids where a model wants them."""
    found = _load(section)
    if _wants_tokens(found, section, clients):
        return _as_tokens(found, section.vocabulary or found.vocabulary)
    if section.public_from is None:
        return found
    if section.public_from == section.name:
        raise UserError(
            f"data.public_from is {section.name} itself; leave it out, and the two parts will"
            " not overlap"
        )
    return data.add_public(found, section.public_from)


def count_clients(section: DataSection) -> int:
    """How many clients the data name."""
    owners = _load(section).owners
    if owners is None:
        raise UserError(NOBODY)
    return len(owners.names)


def _load(section: DataSection) -> data.Dataset:
    d = section
    return data.load_dataset(
        d.name,
        target=d.target,
        client=d.client,
        split=d.split,
        text=d.text,
        clients=d.clients,
        classes=d.classes,
        categorical=d.categorical or (),
        drop=d.drop or (),
        vocabulary=d.vocabulary,
        length=d.length,
        kind=d.kind,
    )


def _wants_tokens(found: data.Dataset, section: DataSection, clients: ClientsSection) -> bool:
    """Whole numbers that nobody asked to scale, and a model that looks them up."""
    if found.kind != TABLE or not found.integers or section.normalise not in (None, "none"):
        return False
    models = clients.models or [clients.model]
    return any(_reads_tokens(name, found) for name in models)


@lru_cache(maxsize=32)
def _reads_tokens(name: str, found: data.Dataset) -> bool:
    ids = max(1, int(found.x.max()) + 1)  # for a factory that must be told how many there are
    model = make_model(name, found.x.shape[1:], found.classes, ids)
    return model.is_network and reads_tokens(model)


_as_tokens = lru_cache(maxsize=8)(as_tokens)
