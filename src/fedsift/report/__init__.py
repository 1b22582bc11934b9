"""Runs side by side: seeds of one method together, methods against each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsift import config, evaluation, ledger
from fedsift.overrides import short_name
from fedsift.runs import History

NOT_A_METHOD = {
    "seed",
    "name",
    "engine",
    "device",
    "memory",
    "record",
}  # what two runs of one method may differ in
PAIRED = (
    "data.",
    "partition.",
    "clients.count",
    "clients.cohort",
    "rounds",
)  # what compared methods should share


@dataclass(frozen=True)
class Method:
    """Runs that differ only in their seed, and are equally long, or stopped early."""

    label: str
    runs: tuple[History, ...]

    @property
    def accuracies(self) -> list[float]:
        """Per seed, the mean over the last rounds."""
        return [evaluation.average_last(run.accuracies) for run in self.runs]

    def uplink_to(self, target: float) -> float | None:
        """Seed mean of bytes uploaded until accuracy first hit target; None if a seed never did."""
        costs = [_uplink_to(run, target) for run in self.runs]
        return None if None in costs else round(float(np.mean([c for c in costs if c is not None])))

    def row(self) -> dict[str, Any]:
        """Figures per run, averaged over the seeds."""
        return {
            "method": self.label,
            "seeds": [run.experiment.seed for run in self.runs],
            "rounds": round(float(np.mean([len(run.metrics) for run in self.runs]))),
            "accuracy": round(float(np.mean(self.accuracies)), 6),
            "measured_on": self.runs[0].measured_on,
            "accuracy_sd": round(float(np.std(self.accuracies, ddof=1)), 6)
            if len(self.runs) > 1
            else None,
            **self.costs(),
            "seconds": round(float(np.mean([run.seconds for run in self.runs])), 3),
        }

    def costs(self) -> dict[str, Any]:
        """Bytes and training steps, averaged over the seeds; the largest upload is of all.

        Steps are None where a run does not tell, as one of an earlier version or on Flower. A
        broadcast counts a message that goes to many once. `total_bytes` has a copy of it for
        each client, `total_bytes_broadcast` has it once. Bytes between edge servers and the server
        are apart; None where there are none.
        """
        totals = [ledger.total(run.ledger) for run in self.runs]
        up, down, broadcast = np.mean(
            [(t.uplink, t.downlink, t.broadcast) for t in totals], axis=0
        ).tolist()
        rounds = float(np.mean([len(run.ledger) for run in self.runs]))
        uploads = [ledger.upload_sizes(run.ledger) for run in self.runs]
        downloads = [ledger.download_sizes(run.ledger) for run in self.runs]
        return {
            "uplink_bytes": round(up),
            "uplink_bytes_per_upload": _share(up, uploads),
            "uplink_bytes_largest": max((max(sizes, default=0) for sizes in uploads), default=0),
            "downlink_bytes": round(down),
            "downlink_bytes_per_download": _share(down, downloads),
            "broadcast_bytes": round(broadcast),
            "broadcast_bytes_per_round": round(broadcast / rounds),
            "edge_uplink_bytes": _mean_or_none([t.edge_up for t in totals]),
            "edge_downlink_bytes": _mean_or_none([t.edge_down for t in totals]),
            "total_bytes": round(up + down),
            "total_bytes_broadcast": round(up + broadcast),
            **self.steps(),
        }

    def steps(self) -> dict[str, float | None]:
        """Training steps in a round: of a client on average, and of the server."""
        told = [[row for row in run.metrics if "steps" in row] for run in self.runs]
        clients = [[n for row in rows for n in row["steps"].values()] for rows in told]
        server = [[row.get("server_steps", 0) for row in rows] for rows in told]
        return {
            "client_steps_per_round": _mean_of_means(clients),
            "server_steps_per_round": _mean_of_means(server),
        }


def _share(total: float, parts: Sequence[Sequence[int]]) -> int:
    """What one of the parts has on average; each seed has a list of them."""
    count = float(np.mean([len(part) for part in parts]))
    return round(total / count) if count else 0


def _mean_or_none(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return round(float(np.mean(known))) if known else None


def _mean_of_means(values: Sequence[Sequence[int]]) -> float | None:
    """The mean over the seeds; None where one has no values."""
    return round(float(np.mean([np.mean(each) for each in values])), 2) if all(values) else None


def methods(runs: Sequence[History]) -> list[Method]:
    """Group runs by all that makes a method; label them by name and, if needed, by differences."""
    groups: list[list[History]] = []
    for run in runs:
        alike = (g for g in groups if g[0].length == run.length and not _apart(g[0], run))
        home = next(alike, None)
        groups.append([run]) if home is None else home.append(run)
    return [
        Method(_label(group[0], [other[0] for other in groups]), tuple(group)) for group in groups
    ]


def without_repeats(runs: Sequence[History]) -> tuple[list[History], dict[str, str]]:
    """One run per method and seed: longest, first of equals; and {folder: folder it repeats}."""
    kept: list[History] = []
    repeats: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: -len(run.metrics)):
        seed = run.experiment.seed
        twin = next((k for k in kept if k.experiment.seed == seed and not _apart(k, run)), None)
        if twin is None:
            kept.append(run)
        else:
            repeats[str(run.folder)] = str(twin.folder)
    return sorted(kept, key=lambda run: [id(one) for one in runs].index(id(run))), repeats


def name_accuracy(runs: Sequence[History]) -> str:
    """ "test accuracy", or of what else it is. Where runs differ, their labels say it too."""
    return f"{' or '.join(_measured_on(runs))} accuracy"


def _measured_on(runs: Sequence[History]) -> list[str]:
    return sorted({run.measured_on for run in runs})


def default_target(compared: Sequence[Method]) -> float:
    """Nine tenths of the best method's accuracy."""
    return round(0.9 * max(float(np.mean(method.accuracies)) for method in compared), 3)


def unpaired(runs: Sequence[History]) -> list[str]:
    """What makes the comparison of these runs unfair: keys that differ, seeds that differ."""
    reasons = {key for run in runs for key in _apart(runs[0], run) if key.startswith(PAIRED)}
    seeds = [sorted(run.experiment.seed for run in method.runs) for method in methods(runs)]
    different = any(mine != seeds[0] for mine in seeds)
    unfinished = len({run.length for run in runs}) > 1
    return (
        sorted(reasons)
        + ["seed"] * different
        + ["rounds run"] * (unfinished and "rounds" not in reasons)
    )


def _apart(one: History, other: History) -> dict[str, tuple[Any, Any]]:
    found = config.differences(one.experiment, other.experiment)
    return {key: values for key, values in found.items() if key not in NOT_A_METHOD}


def _label(run: History, all_runs: Sequence[History]) -> str:
    """The name, and what differs from methods of the same name, as on the command line.

    The name of a cell has some of it already.
    """
    name, values = run.experiment.name, config.resolve_values(run.experiment)
    namesakes = [other for other in all_runs if first_name(other) == first_name(run)]
    keys = sorted({key for other in namesakes for key in _apart(run, other)})
    named = re.findall(r" (\S+?)=", name)
    more = [
        f"{short_name(key)}={_plain(values[key])}"
        for key in keys
        if short_name(key) not in named and values[key] is not None
    ]
    if len(_measured_on(all_runs)) > 1:
        more.append(f"({run.measured_on})")
    if run.length < run.experiment.rounds and len({other.length for other in all_runs}) > 1:
        more.append(f"({len(run.metrics)} of {run.experiment.rounds} rounds)")
    return " ".join([name, *more])


def _plain(value: Any) -> Any:
    """1.0 as people write it, and as a sweep calls its cells: 1."""
    return f"{value:.12g}" if isinstance(value, float) else value


def first_name(run: History) -> str:
    """ "digits-fas" of "digits-fas alpha=0.1", as a cell of a sweep over alpha is called."""
    return re.sub(r" \S+=.*$", "", run.experiment.name)


def _uplink_to(run: History, target: float) -> int | None:
    sent = np.cumsum([row.uplink for row in run.ledger])
    reached = np.flatnonzero(np.array(run.accuracies) >= target)
    return int(sent[reached[0]]) if len(reached) else None
