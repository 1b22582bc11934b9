"""How a run is doing, for people and for monitoring: status.json, and figures for Prometheus."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from fedsift import files
from fedsift.flower.logs import say, warn
from fedsift.types import UserError

STATUS = "status.json"  # in the run folder
STATES = ("waiting", "running", "finished", "failed")
HOST = "127.0.0.1"
PATIENCE = 5.0  # seconds for a client of the endpoint to say something


@dataclass(frozen=True)
class Status:
    """The outcome of the last round, and what has been summed up so far."""

    state: str  # one of STATES
    rounds: int  # in all
    round: int = 0  # rounds done
    accuracy: float | None = None
    uplink_bytes: int = 0  # of all rounds
    downlink_bytes: int = 0
    missing: Mapping[int, str] = field(default_factory=dict)  # client -> why, in the last round
    seconds: Mapping[int, float] = field(default_factory=dict)  # client -> until its reply was here
    round_seconds: float | None = None
    refused: Mapping[int, str] = field(default_factory=dict)  # node -> why
    error: str | None = None  # why the run failed, in one line
    flower_run: str = ""  # Flower's number of the submission that writes this
    time: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_prometheus(self) -> str:
        """Text in Prometheus' exposition format 0.0.4. Labels are numbers, so nothing is quoted."""
        rows = [f'fedsift_state{{state="{s}"}} {int(s == self.state)}' for s in STATES]
        rows += [f"fedsift_rounds {self.rounds}", f"fedsift_rounds_done {self.round}"]
        rows += [f"fedsift_accuracy {self.accuracy!r}"] if self.accuracy is not None else []
        rows += [f'fedsift_bytes_total{{direction="up"}} {self.uplink_bytes}']
        rows += [f'fedsift_bytes_total{{direction="down"}} {self.downlink_bytes}']
        rows += [f"fedsift_missing_clients {len(self.missing)}"]
        rows += [f'fedsift_client_missing{{client="{id}"}} 1' for id in sorted(self.missing)]
        rows += [
            f'fedsift_client_seconds{{client="{id}"}} {seconds:.3f}'
            for id, seconds in sorted(self.seconds.items())
        ]
        if self.round_seconds is not None:
            rows += [f"fedsift_round_seconds {self.round_seconds:.3f}"]
        rows += [f"fedsift_refused_nodes {len(self.refused)}"]
        return "\n".join(_with_types(rows)) + "\n"


def _with_types(rows: list[str]) -> Iterator[str]:
    """A TYPE line before the first row of each name."""
    last = ""
    for row in rows:
        name = row.split("{")[0].split(" ")[0]
        if name != last:
            yield f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
            last = name
        yield row


@dataclass
class Monitor:
    """Keeps the status, in the run folder and for whoever asks the endpoint."""

    folder: Path
    status: Status

    def update(self, **changes: Any) -> None:
        """A status that cannot be written does not end a run."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.status = replace(self.status, time=now, **changes)
        try:
            files.write_json(self.folder / STATUS, self.status.to_json())
        except OSError as error:
            warn(f"cannot write {self.folder / STATUS}: {error.strerror}")

    @contextlib.contextmanager
    def serving(self, port: int) -> Iterator[None]:
        """`http://127.0.0.1:PORT/metrics` as long as this lasts; port 0: nowhere."""
        if not port:
            yield
            return
        try:
            server = Endpoint((HOST, port), _make_handler(self))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"metrics-port {port} cannot be used ({error}); choose another, or 0 for none"
            ) from None
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        say(f"figures for Prometheus at http://{HOST}:{server.server_port}/metrics")
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join(PATIENCE)


class Endpoint(HTTPServer):
    """Serves one client after the other."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: who resets a connection writes no traceback into the log."""


def _make_handler(monitor: Monitor) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One request at a time, each with a time limit."""

        timeout = PATIENCE

        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = monitor.status.to_prometheus().encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a scrape every few seconds would fill the log."""

    return Handler
