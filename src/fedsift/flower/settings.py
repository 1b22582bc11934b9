"""How a run behaves on Flower: keys of [tool.flwr.app.config] in pyproject.toml or --run-config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fedsift import registry
from fedsift.flower import logs
from fedsift.types import UserError

OFF = {"enough", "patience", "rest_after", "largest_reply", "metrics_port"}  # where set to 0


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
    enough: int = 0  # good replies with which a round may close before the deadline (0: all)
    patience: float = 0.0  # seconds that the others have left once there are enough replies
    rest_after: int = 3  # failures in a row after which a client is not asked (0: always asked)
    rest: int = 5  # rounds for which it is then not asked
    largest_reply: float = 0.0  # MB; whoever sends more is refused (0: by models and public set)
    log: str = "text"  # form of fedsift's log lines: text or json
    metrics_port: int = 0  # on the server's loopback: figures for Prometheus (0: none)

    def __post_init__(self) -> None:
        logs.find_form(self.log)
        low = {
            _key(name): value
            for name, value in asdict(self).items()
            if not isinstance(value, str) and not (value > 0 or (name in OFF and value == 0))
        }
        if low:
            raise UserError(
                f"these settings must be above 0: {', '.join(f'{k} = {v}' for k, v in low.items())}"
            )


def settings(run_config: Mapping[str, Any]) -> Settings:
    """Checked values; an unknown key names the nearest one."""
    kinds = {
        _key(field.name): {"str": str, "int": int, "float": float}[str(field.type)]
        for field in fields(Settings)
    }
    values: dict[str, Any] = {}
    for key, value in run_config.items():
        kind = registry.lookup(kinds, "setting", key, "[tool.flwr.app.config]")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise UserError(f"setting {key} must be of type {kind.__name__}, not {value!r}")
        values[key.replace("-", "_")] = value
    return Settings(**values)


def _key(name: str) -> str:
    """As it is written in pyproject.toml."""
    return name.replace("_", "-")
