"""What is logged of a round: one list for all trackers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Figure -> what it is. Those of the first group stand in a row of metrics.jsonl as they are.
OF_METRICS = {
    "accuracy": "mean over the models that the algorithm reports",
    "client_accuracy": "mean over clients' own models",
    "disagreement": "how often two of those differ on a test sample",
    "macro_f1": "mean F1 of the classes that occur",
    "auc": "area under the ROC curve, for two classes",
    "calibration_error": "expected calibration error, 15 bins",
    "local_loss": "of clients on their own samples",
    "distill_loss": "of students on the soft labels they were taught",
}
FIGURES = OF_METRICS | {
    "uploaded_right": "share of uploaded soft labels whose largest class is the true one",
    "distilled_right": "the same of those that the server taught",
    "uplink_bytes": "of all clients, in this round",
    "downlink_bytes": "the same, down",
    "broadcast_bytes": "down if each distinct message is sent once",
    "uplink_bytes_so_far": "of all rounds until now",
    "clients": "that uploaded",
    "missing": "clients that did not answer or were refused",
    "seconds": "of the round",
}

Row = Mapping[str, Any]


def list_figures(metrics: Row, ledger: Row, timing: Row, before: int = 0) -> dict[str, float]:
    """Those of a round that it has. `before` are the bytes uploaded in earlier rounds."""
    found = {name: metrics[name] for name in OF_METRICS if metrics.get(name) is not None}
    for kind in ("uploaded", "distilled"):
        if scores := metrics.get(f"{kind}_labels"):
            found[f"{kind}_right"] = scores["right"]
    uplink = sum(ledger["up"].values())
    found |= {
        "uplink_bytes": uplink,
        "downlink_bytes": sum(ledger["down"].values()),
        "broadcast_bytes": ledger["broadcast"],
        "uplink_bytes_so_far": before + uplink,
        "clients": len(ledger["up"]),
        "missing": len(ledger.get("missing", {})),
        "seconds": timing["seconds"],
    }
    return found
