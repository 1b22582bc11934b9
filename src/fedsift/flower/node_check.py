"""What a node's operator wants to know before the node joins: a finding per thing looked at."""

from __future__ import annotations

import importlib
import os
import platform
import shlex
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

import fedsift
from fedsift.data import compare_inputs
from fedsift.engines import choose_engine
from fedsift.flower.keys import parse_public_key
from fedsift.flower.messages import PROTOCOL
from fedsift.flower.project import read_settings
from fedsift.flower.site import Site, make_site
from fedsift.flower.superlink import open_health
from fedsift.models import initial_state
from fedsift.types import ESTIMATOR, Client, Labelled, ModelFailure, Predict, UserError

OK, WARNING, ERROR = "ok", "warning", "error"
EXPIRES_SOON = 30  # days
PATIENCE = 10.0  # seconds to reach the server
SOME = 32  # samples a model is tried on
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class Finding:
    level: str
    about: str
    text: str


Findings = Iterator[Finding]


@dataclass(frozen=True)
class Node:
    """What the SuperNode is started with, and the project it will be sent."""

    project: Path
    config: Mapping[str, Any]  # --node-config
    overrides: tuple[str, ...] = ()  # of the experiment, as they will be submitted
    expect: str | None = None  # the public fingerprint that the server has
    key: Path | None = None
    server: str | None = None  # HOST:PORT
    ca: Path | None = None


def look_at_node(node: Node) -> Findings:
    """In an order in which the first error explains those after it."""
    yield _look_at_versions()
    try:
        site = _open_site(node)
        yield _look_at_project(site)
    except Exception as error:  # of the user's own code: whatever it is, it is a finding
        yield Finding(ERROR, "project", _describe(error))
    else:
        yield from _try("public set", lambda: _look_at_public(site, node.expect))
        if node.config:
            yield from _look_at_client(site)
        else:
            yield Finding(OK, "private data", "not looked at: there is no --node-config")
    yield _look_at_memory(node.config.get("memory"))
    if node.key:
        yield from _try("key", lambda: _look_at_key(node.key))
    if node.server:
        yield from look_at_server(node.server, node.ca)


def _try(about: str, look: Callable[[], Finding]) -> Findings:
    """The finding, or as one the error on the way to it."""
    try:
        yield look()
    except Exception as error:
        yield Finding(ERROR, about, _describe(error))


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


# --- the project and the data ---


def _look_at_versions() -> Finding:
    return Finding(
        OK,
        "versions",
        f"fedsift {fedsift.__version__}, wire protocol {PROTOCOL}, flwr {version('flwr')}, "
        f"torch {torch.__version__}, Python {platform.python_version()}",
    )


def _open_site(node: Node) -> Site:
    """As the SuperNode will: the project's own code loads the data."""
    folder = node.project.resolve()
    how = read_settings(folder)
    overrides = shlex.join([*shlex.split(how.overrides), *node.overrides])
    sys.path.insert(0, str(folder))
    try:
        task = importlib.import_module("task")
    finally:
        sys.path.remove(str(folder))
    return make_site(task, replace(how, overrides=overrides), node.config)


def _look_at_project(site: Site) -> Finding:
    e, _ = site.experiment, site.algorithm  # which must be there
    return Finding(
        OK,
        "project",
        f"{e.name}: {e.algorithm.name}, {e.rounds} rounds, {e.clients.count} clients; "
        f"experiment {site.digest}",
    )


def _look_at_public(site: Site, expect: str | None) -> Finding:
    found = f"{len(site.public)} samples of shape {site.public.shape}, {site.fingerprint}"
    if expect is None or expect == site.fingerprint:
        told = "compare it with the server's" if expect is None else "as expected"
        return Finding(OK, "public set", f"{found} ({told})")
    return Finding(
        ERROR,
        "public set",
        f"{found}, not {expect}: other samples, or another order; get the server's file",
    )


def _look_at_client(site: Site) -> Findings:
    try:
        client = site.client()
    except Exception as error:
        yield Finding(ERROR, "private data", _describe(error))
        return
    yield _look_at_private(client.data)
    odd = compare_inputs(client.data.samples, site.public)
    yield from (Finding(WARNING, "ranges", said) for said in odd)
    if not odd:
        yield Finding(OK, "ranges", "private inputs are like the public ones")
    yield from _try("model", lambda: _look_at_model(site, client))


def _look_at_private(data: Labelled) -> Finding:
    if not bool(torch.isfinite(data.samples.tensor()).all() & torch.isfinite(data.targets).all()):
        return Finding(ERROR, "private data", "some values are not finite; remove those samples")
    counts = torch.from_numpy(data.labels).bincount(minlength=data.classes).tolist()
    absent = f"; classes without a sample: {counts.count(0)}" if 0 in counts else ""
    return Finding(
        OK,
        "private data",
        f"{len(data)} samples of shape {data.samples.shape}, {data.classes} classes "
        f"({' '.join(map(str, counts[:20]))}{' ...' if len(counts) > 20 else ''}){absent}",
    )


def _look_at_model(site: Site, client: Client) -> Finding:
    engine, why = choose_engine(*site.experiment.where)
    few = client.data.samples[torch.arange(min(SOME, len(client.data))).numpy()]
    (logits,) = engine.run([Predict(client.model, initial_state(client.model, 0), few)])
    if isinstance(logits, ModelFailure):
        return Finding(ERROR, "model", f"{client.model.name}: {logits}")
    if client.model.kind == ESTIMATOR:
        return Finding(OK, "model", engine.describe(client.model))
    if not bool(torch.isfinite(torch.as_tensor(logits)).all()):
        return Finding(ERROR, "model", f"{client.model.name} predicts values that are not finite")
    return Finding(OK, "model", f"{client.model.name} predicts; {why}")


# --- folders and keys ---


def _look_at_memory(folder: Any) -> Finding:
    if not folder:
        return Finding(OK, "memory", "no folder named: kept in Flower's state of the run")
    path = Path(str(folder))
    if not path.is_dir():
        make = f"make it with: install -d -m 700 {shlex.quote(str(path))}"
        return Finding(ERROR, "memory", f"there is no folder {path}; {make}")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return Finding(ERROR, "memory", f"{path} cannot be written; give it to the node's user")
    if path.stat().st_mode & OTHERS:
        return Finding(WARNING, "memory", f"others can read {path}; change that with: chmod 700")
    return Finding(OK, "memory", f"{path} is for its owner alone")


def _look_at_key(path: Path | None) -> Finding:
    assert path is not None
    if path.stat().st_mode & OTHERS:
        return Finding(ERROR, "key", f"others can read {path}; change that with: chmod 600 {path}")
    key = serialization.load_ssh_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is no key that Flower takes; it must be an ECDSA key")
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return Finding(OK, "key", f"{path}, {parse_public_key(public.decode()).fingerprint}")


# --- the server ---


def look_at_server(server: str, ca: Path | None) -> Findings:
    """Can it be reached, is it who it says, does it answer, and what time is it there?"""
    host, _, port = server.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")  # of an IPv6 address
    if not host or not port.isdecimal():
        yield Finding(ERROR, "server", f"{server} is no address; write HOST:PORT")
        return
    try:
        with socket.create_connection((host, int(port)), PATIENCE) as plain:
            yield Finding(OK, "server", f"{server} can be reached")
            yield _look_at_certificate(plain, host, ca) if ca else _warn_of_plaintext()
        yield from _look_at_health(server, ca)
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", None) or error.reason or str(error)
        told = "its certificate is not of this authority, or for another name"
        yield Finding(ERROR, "certificate", f"{why}: {told}")
    except (OSError, ValueError) as error:
        yield Finding(ERROR, "server", f"{server} does not answer: {_describe(error)}")


def _warn_of_plaintext() -> Finding:
    return Finding(WARNING, "certificate", "none: everybody on the way can read and change all")


def _look_at_certificate(plain: socket.socket, host: str, ca: Path) -> Finding:
    trust = ssl.create_default_context(cafile=str(ca))
    with trust.wrap_socket(plain, server_hostname=host) as secure:
        ends = dict(secure.getpeercert() or {})["notAfter"]
    days = int((ssl.cert_time_to_seconds(str(ends)) - time.time()) // 86400)
    level = OK if days >= EXPIRES_SOON else WARNING
    return Finding(level, "certificate", f"good for {host}, and for {days} more days")


def _look_at_health(server: str, ca: Path | None) -> Findings:
    begun = time.time()
    try:
        answer = open_health(server, ca, PATIENCE)
        yield Finding(OK, "SuperLink", "it answers")
    except HTTPError as error:
        answer = error
        yield Finding(ERROR, "SuperLink", f"it answers {error.code} to /health")
    if date := answer.headers.get("Date"):
        now = (begun + time.time()) / 2
        yield judge_clock(now - parsedate_to_datetime(date).timestamp() - 0.5)  # whole seconds


def judge_clock(ahead: float) -> Finding:
    """With node keys, Flower refuses a node whose clock is ahead by 5 s or behind by 305 s."""
    most, least = SYSTEM_TIME_TOLERANCE, -(TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)
    told = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    allowed = f"Flower allows {most} s ahead and {-least} s behind"
    if not least < ahead < most:
        return Finding(ERROR, "clock", f"{told}; {allowed}; set the clock (NTP)")
    if abs(ahead) > most / 2:
        return Finding(WARNING, "clock", f"{told}; {allowed}")
    return Finding(OK, "clock", f"within {most / 2:g} s of the server's")
