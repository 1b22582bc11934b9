"""An experiment as text: presets, TOML files and overrides are read, checked and written here."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedsift import files, registry
from fedsift.algorithms import ALGORITHMS
from fedsift.config.schema import Experiment, describe_keys, is_section, section_type
from fedsift.config.sources import count_clients
from fedsift.data import DATASETS
from fedsift.data.rows import NO_PUBLIC
from fedsift.overrides import (
    SHORT,
    SYNONYMS,
    Axes,
    apply_override,
    is_too_deep,
    read_axes,
    short_name,
)
from fedsift.types import UserError

MOST_BYTES = 2**20  # of a TOML file
LONGEST_KEY = 200  # dots: the time to read a key grows with the square of its parts


def presets() -> dict[str, str]:
    """Preset name -> its TOML text."""
    folder = resources.files("fedsift").joinpath("presets")
    found = sorted(
        (f for f in folder.iterdir() if f.name.endswith(".toml")),
        key=lambda f: f.name.removesuffix(".toml"),
    )
    return {file.name.removesuffix(".toml"): file.read_text() for file in found}


def read_experiment(source: str, overrides: Sequence[str] = ()) -> Experiment:
    """An experiment from a preset or a TOML file, checked.

    source: the name of a preset ("digits-fas") or the path of a TOML file
    overrides: texts "key=value" as on the command line, for example ["alpha=0.1", "seed=3"]
    """
    values, axes = read_values(source, overrides)
    if axes:
        keys = ", ".join(map(short_name, axes))
        raise UserError(
            f"{source} sweeps over {keys}: that is many experiments; give each key one value,"
            " as in seed=0"
        )
    return check_experiment(values)


def read_values(source: str, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], Axes]:
    """The content of a preset or TOML file with overrides: the values, and the axes of [sweep]."""
    if source.endswith(".toml") or Path(source).is_file():
        found = read_toml(source)
        if not found:
            raise UserError(f"{source} is empty; `fedsift new PRESET FILE.toml` writes all keys")
        values = {"name": Path(source).stem} | found
        own: dict[str, dict[str, Any]] = {}
    else:
        values = {"name": source} | _parse_toml(_find_preset(source), source)
        own = _take_own(values)
    axes = read_axes(values.pop("sweep", {}))
    for override in overrides:
        apply_override(values, axes, override)
    _put_back(values, own)
    if is_too_deep(values):
        raise UserError("an override names a key inside too many sections")
    return values, axes


def _take_own(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Taken out of a preset: its data, and how many clients they have."""
    keys = {"data": ("name",), "clients": ("count", "cohort")}
    return {
        section: {key: values[section].pop(key) for key in some if key in values[section]}
        for section, some in keys.items()
        if section in values
    }


def _put_back(values: dict[str, Any], own: dict[str, dict[str, Any]]) -> None:
    """Unless a column or files now say whose the rows are."""
    data = values.get("data", {})
    if not isinstance(data, dict) or not isinstance(values.get("clients", {}), dict):
        return  # said by the check that follows
    gone = {"data"} if data.get("clients") else set()
    gone |= {"clients"} if data.get("client") or data.get("clients") else set()
    for section in own.keys() - gone:
        values[section] = own[section] | values.get(section, {})


def _find_preset(name: str) -> str:
    known = presets()
    if name not in known and name in DATASETS:
        raise UserError(
            f"{name} is a data set, not a preset; use it with: "
            f"fedsift run digits-fas data.name={name} (fedsift ls presets)"
        )
    return str(registry.lookup(known, "preset", name))


def check_experiment(values: dict[str, Any]) -> Experiment:
    """Checked values; every complaint names the key and what to do."""
    check_keys(values)
    values = follow_data(values)
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        raise UserError("; ".join(_complaint(e) for e in error.errors())) from None


def follow_data(values: dict[str, Any]) -> dict[str, Any]:
    """The values, with the clients that the data name where nothing else is said.

    A column or files of clients make the partition given. How many clients there are is then read
    from the data, unless it is said. Numbers of a preset are for its own data, so they do not count
    then (`read_values`).
    """
    data, partition, clients = (values.get(key, {}) for key in ("data", "partition", "clients"))
    if not all(isinstance(section, dict) for section in (data, partition, clients)):
        return values  # said by the check that follows
    if data.get("client") is not None or data.get("clients") is not None:
        partition = {"kind": "given"} | partition
    values = values | ({"partition": partition} if partition else {})
    if partition.get("kind") != "given" or "count" in clients:
        return values
    try:
        section = Experiment.model_validate(values).data
    except ValidationError:
        return values
    count = count_clients(section)
    return values | {"clients": {"count": count, "cohort": min(USUAL_COHORT, count)} | clients}


USUAL_COHORT = 8


def read_toml(source: str) -> dict[str, Any]:
    """The values of a TOML file, which may be a stranger's: its size and depth are bounded."""
    try:
        text = files.read_bounded(Path(source), MOST_BYTES).decode()
    except FileNotFoundError:
        raise UserError(f"no such file: {source}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {source}: {error}") from None
    return _parse_toml(text, source)


def _parse_toml(text: str, source: str) -> dict[str, Any]:
    values = None
    try:
        if max(piece.count(".") for piece in re.split(r"[=,\[\]{}\n]", text)) < LONGEST_KEY:
            values = tomllib.loads(text)
    except ValueError as error:  # one of TOML, or a number of thousands of digits
        raise UserError(f"{source} is not valid TOML: {error}") from None
    except RecursionError:
        pass
    if values is None or is_too_deep(values):
        raise UserError(f"{source} is not an experiment: its values are nested too deeply")
    return values


def check_keys(values: dict[str, Any], section: Any = Experiment, path: str = "") -> None:
    """Unknown keys, with the nearest known one and its full path."""
    keys = list(describe_keys(section))
    for key, value in values.items():
        if key not in keys:
            raise UserError(_unknown_key(key, keys, path))
        inner = section_type(key, section)
        if inner is None:
            continue
        if not isinstance(value, dict):
            raise UserError(
                f"{path}{key} is a section with keys {', '.join(describe_keys(inner))}, not"
                f" {value!r}"
            )
        check_keys(value, inner, f"{path}{key}.")


def _unknown_key(key: str, keys: list[str], path: str) -> str:
    if not path and key in SHORT:  # short names are for the command line
        return f"unknown key {key!r} in a file; write it as {SHORT[key]}"
    sections = {} if path else {s: kind for s in keys if (kind := section_type(s))}
    inside = [f"{s}.{key}" for s, kind in sections.items() if key in describe_keys(kind)]
    if inside:
        return f"unknown key {key!r}; did you mean {' or '.join(inside)}?"
    if key in SYNONYMS and not path:
        return f"unknown key {key!r}; did you mean {' or '.join(SYNONYMS[key])}?"
    known = dict.fromkeys([*keys, *([] if path else [*SHORT, "sweep"])])
    everywhere = "run `fedsift new PRESET FILE.toml` to see all keys"
    return registry.unknown_name("key", path + key, [path + k for k in known], everywhere)


def _complaint(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    said = error["msg"].removeprefix("Value error, ")
    if isinstance((error.get("ctx") or {}).get("error"), UserError):  # of a Recipe
        return "; ".join(f"{where}.{problem}" for problem in said.split("; "))
    got = "" if error["type"] == "value_error" else f" (got {error['input']!r})"
    cure = f"; {NO_PUBLIC}" if where == "data.public" else ""
    return f"{where}: {said[0].lower()}{said[1:]}{got}{cure}"


# --- writing


def to_toml(experiment: Experiment, axes: Axes | None = None) -> str:
    """Every value, defaults too, and what each means; and the axes of a sweep, if there are any.

    A default that the algorithm has no use for is a comment.
    """
    top, sections, resolved = [], [], resolve_values(experiment)
    idle = _list_idle_defaults(experiment)
    for key, about in describe_keys(Experiment).items():
        value = getattr(experiment, key)
        if is_section(type(value)):
            sections += ["", f"[{key}]"]
            for inner, told in describe_keys(type(value)).items():
                usual = resolved.get(f"{key}.{inner}")
                set_to = None if f"{key}.{inner}" in idle else getattr(value, inner)
                sections.append(_line(inner, set_to, usual, told))
        else:
            top.append(_line(key, value, None, about))
    if axes:
        sections += [
            "",
            "[sweep]",
            *(f"{json.dumps(path)} = {_format_value(choices)}" for path, choices in axes.items()),
        ]
    return "\n".join([*top, *sections]) + "\n"


def _list_idle_defaults(experiment: Experiment) -> list[str]:
    """Keys of the algorithm that have their default, and that a built-in one does not take."""
    section = experiment.algorithm
    with contextlib.suppress(UserError):  # said when the algorithm is built
        make = ALGORITHMS.get(registry.parse_spec(section.name)[0])
        taken = inspect.signature(make).parameters if make else section.model_dump()
        fields = type(section).model_fields
        return [
            f"algorithm.{key}"
            for key, value in section.model_dump(exclude={"name"}).items()
            if key not in taken and value == fields[key].default
        ]
    return []


def _line(key: str, value: Any, usual: Any, about: str | None) -> str:
    """A key that is not set is a comment, with what the algorithm has for it."""
    shown = usual if value is None and isinstance(usual, str | int | float) else value
    setting = f"{key} =" if shown is None else f"{key} = {_format_value(shown)}"
    setting = f"# {setting}" if value is None else setting
    return f"{setting:<24}  # {about}" if about else setting


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(
                f"{_format_value(key)} = {_format_value(inner)}" for key, inner in value.items()
            )
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_format_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def differences(one: Experiment, other: Experiment) -> dict[str, tuple[Any, Any]]:
    """Full key path -> the two values, where they differ."""
    a, b = flat(one.model_dump()), flat(other.model_dump())
    return {key: (a[key], b[key]) for key in a if a[key] != b[key]}


def resolve_values(experiment: Experiment) -> dict[str, Any]:
    """Every value by its full path; what was left to the algorithm, as the algorithm has it.

    Imports nothing: what a plug-in has for a default is not known here.
    """
    values = flat(experiment.model_dump())
    try:
        name, _, named = registry.parse_spec(experiment.algorithm.name)
    except UserError:  # said when the algorithm is built
        return values
    usual = registry.defaults(ALGORITHMS[name]) if name in ALGORITHMS else {}
    for key, value in (usual | named).items():
        if values.get(f"algorithm.{key}", 0) is None:
            values[f"algorithm.{key}"] = value
    return values


def flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested sections as full key paths."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        section = isinstance(value, dict) and key != "models"
        found |= flat(value, f"{path}{key}.") if section else {path + key: value}
    return found
