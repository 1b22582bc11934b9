"""How a run behaves on Flower: keys of [tool.flwr.app.config] in pyproject.toml or --run-config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fedsift import registry
from fedsift.types import UserError


@dataclass(frozen=True)
class Settings:
    experiment: str = "experiment.toml"  # beside task.py
    overrides: str = ""  # as on the command line: "rounds=3 seed=1"
    folder: str = ""  # the run folder on the server's machine; an unfinished run there is resumed
    seats: str = ""  # table on the server's machine: which node may be which client
    deadline: float = 600.0  # seconds a round may take; who has not answered by then is missing
    minimum: int = 1  # replies a round needs
    tries: int = 3  # how often a round with fewer replies is run before the run fails
    wait: float = 60.0  # seconds to wait for nodes, and for a node to say who it is
    poll: float = 0.5  # seconds between two looks for replies

    def __post_init__(self) -> None:
        low = {
            key: value
            for key, value in asdict(self).items()
            if not isinstance(value, str) and not value > 0
        }
        if low:
            raise UserError(
                f"these settings must be above 0: {', '.join(f'{k} = {v}' for k, v in low.items())}"
            )


def settings(run_config: Mapping[str, Any]) -> Settings:
    """Checked values; an unknown key names the nearest one."""
    kinds = {
        field.name: {"str": str, "int": int, "float": float}[str(field.type)]
        for field in fields(Settings)
    }
    values: dict[str, Any] = {}
    for key, value in run_config.items():
        kind = registry.lookup(kinds, "setting", key, "[tool.flwr.app.config]")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise UserError(f"setting {key} must be of type {kind.__name__}, not {value!r}")
        values[key] = value
    return Settings(**values)
