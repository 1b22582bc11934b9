"""`fedsift show`: one run, round by round and client by client."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsift.cli.comparison import print_baselines, print_comparison, print_costs
from fedsift.cli.console import (
    PIPED,
    error_handler,
    format_bytes,
    get_width,
    new_table,
    plain_text,
    print_remark,
    print_table,
    say,
    shorten_ids,
    wrap_lines,
)
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json

if TYPE_CHECKING:
    from fedsift.config import Experiment

SHOWN = 100  # clients in the table; a federation may have a million


def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    as_json: Json = False,
) -> None:
    """Show one run: accuracy and bytes per round and per client."""
    with error_handler():
        from fedsift import config, ledger, runs

        history = runs.load_run(folder)
        totals = ledger.total(history.ledger)
        if as_json:
            detail = {
                "broadcast_bytes": totals.broadcast,
                "metrics": history.metrics,
                "ledger": [row.to_json() for row in history.ledger],
                "config": history.experiment.model_dump(mode="json"),
                "environment": history.environment,
            }
            print_json(history.summary() | detail)
            return
        given = config.flat(history.experiment.model_dump())
        elsewhere = history.data.get("private") == 0  # the data are those of a Flower project
        for key, value in config.resolve_values(history.experiment).items():
            if elsewhere and key.startswith(("data.", "partition.")):
                continue
            if value not in (None, ()):
                usual = "  (default of the algorithm)" if given[key] is None else ""
                say(f"{key:<24} {value}{usual}")
        if told := _describe_data(history.data):
            say(f"{'data':<24} {plain_text(told)}")
        if told := _describe_hostile(history.experiment):
            say(told)
        made_with = history.environment
        where = f"{made_with['engine']}; torch {made_with['torch']}; {made_with['processor']}"
        say(f"\n{wrap_lines(where)}")
        room = min(60, max(16, (get_width() or PIPED) - 44))
        columns = ("round", "accuracy", "cohort", "uplink", "downlink", "broadcast")
        edges = totals.edge_up is not None
        hops = ("edges up", "edges down") if edges else ()
        rounds = new_table("rounds", *columns, *hops)
        for row, sent in zip(history.metrics, history.ledger, strict=True):
            cohort = shorten_ids(sent.up, room)
            sizes = (
                format_bytes(sent.uplink),
                format_bytes(sent.downlink),
                format_bytes(sent.broadcast),
            )
            hop = [
                format_bytes(sum((way or {}).values())) for way in (sent.edge_up, sent.edge_down)
            ]
            cells = (str(row["round"] + 1), f"{row['accuracy']:.4f}", cohort, *sizes)
            rounds.add_row(*cells, *(hop if edges else ()))
        print_table(rounds, ("broadcast", "downlink"))
        if told := _describe_quality(history.metrics[-1]):
            say(wrap_lines(told) + "\n")
        _print_label_scores(history.metrics)
        if told := _describe_voteless(history.metrics):
            say(told)
        clients = new_table("clients", "client", "model", "samples per class", "uplink", "downlink")
        clients.columns[2].no_wrap = False  # a hundred classes need several lines
        clients.columns[2].overflow = "fold"
        sent_by = ledger.per_client(history.ledger)
        for client in history.clients[:SHOWN]:
            up, down = sent_by.get(client["client"], (0, 0))
            labels = _describe_labels(client["labels"], history.class_names, elsewhere)
            name = " ".join(filter(None, (str(client["client"]), client.get("name"))))
            about = (plain_text(name), plain_text(client["model"]), plain_text(labels))
            clients.add_row(*about, format_bytes(up), format_bytes(down))
        print_table(clients, ("downlink",))
        if (everyone := history.experiment.clients.count) > SHOWN:
            say(
                f"{min(SHOWN, len(history.clients))} of {everyone:,} clients; {runs.CLIENTS}"
                f" has {len(history.clients):,}\n"
            )
        print_comparison([history])
        print_costs([history])
        print_baselines([history])


def _describe_data(sizes: dict[str, Any]) -> str:
    """ "675 private, 300 public, 225 test", as the run itself found them."""
    parts = {key: size for key, size in sizes.items() if isinstance(size, int)}
    if parts.get("private") == 0:
        parts["private at the nodes"] = parts.pop("private")
        told = [f"{size} {key}" if size else key for key, size in parts.items()]
        return f"from task.py: {', '.join(told)}"
    return ", ".join(f"{size} {key}" for key, size in parts.items())


def _describe_labels(counts: list[int], names: tuple[str, ...], elsewhere: bool) -> str:
    """How many samples of each class a client has, by name where classes have names."""
    if not any(counts):
        return "known to its node" if elsewhere else "none"
    if len(names) != len(counts):
        return " ".join(map(str, counts))
    return ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True) if count)


def _describe_voteless(metrics: list[Any]) -> str:
    """Who had no vote in how many rounds, where the aggregator judges clients."""
    judged = [row["voteless"] for row in metrics if isinstance(row.get("voteless"), list)]
    if not judged:
        return ""
    times = Counter(client for voteless in judged for client in voteless)
    named = [f"client {id} in {n} rounds" for id, n in sorted(times.items())[:SHOWN]]
    return f"without a vote: {', '.join(named) or 'nobody'}\n"


def _describe_quality(row: dict[str, Any]) -> str:
    """The last round beside its accuracy; runs of earlier versions do not tell."""
    names = {
        "macro_f1": "macro F1",
        "auc": "AUC",
        "calibration_error": "calibration error",
        "local_loss": "local loss",
        "distill_loss": "distillation loss",
    }
    told = [f"{name} {row[key]:.3f}" for key, name in names.items() if key in row]
    return f"last round: {', '.join(told)}" if told else ""


def _describe_hostile(experiment: Experiment) -> str:
    """Which clients are hostile; nothing where the experiment names no attack."""
    from fedsift import attacks

    if experiment.attack is None:
        return ""
    count = experiment.clients.count
    hostile = sorted(attacks.hostile_clients(experiment.seed, count, experiment.attackers or 0.0))
    which = f": {', '.join(map(str, hostile[:SHOWN]))}" if hostile else ""
    more = ", ..." if len(hostile) > SHOWN else ""
    return f"\n{len(hostile)} of {count:,} clients are hostile{which}{more}"


LABELS = (
    "sent: soft labels uploaded; right: share whose largest class is the true one; samples: public "
    "samples with at least one; votes: sent per such sample; taught: soft labels distilled by the "
    "server; fewest: of the class that has the fewest"
)


def _print_label_scores(metrics: list[dict[str, Any]]) -> None:
    """How good the uploaded and the distilled soft labels are, where a simulation knows that."""
    if not any("uploaded_labels" in row or "distilled_labels" in row for row in metrics):
        return
    columns = ("sent", "right", "samples", "votes", "taught", "right", "fewest")
    table = new_table("soft labels", "round", *columns)
    for row in metrics:
        sent, taught = row.get("uploaded_labels"), row.get("distilled_labels")
        cells = _format_scores(sent, rows=",", right=".3f", samples=",", votes=".2f")
        cells += _format_scores(taught, rows=",", right=".3f", fewest=",")
        table.add_row(str(row["round"] + 1), *cells)
    print_table(table, ("fewest", "samples", "votes"))
    print_remark(LABELS)
    say("")


def _format_scores(scores: dict[str, Any] | None, **formats: str) -> list[str]:
    """A cell for each figure; empty where the round has none."""
    return [format(scores[name], how) if scores else "" for name, how in formats.items()]
