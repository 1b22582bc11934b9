"""The report page, live: a small server that reads run folders and writes nothing.

It serves three addresses, all from memory: the page, its data, and a stream of events that says
when there are new data. No address names a file.
"""

from __future__ import annotations

import hmac
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedsift import __version__, runs
from fedsift.files import locked_by_someone
from fedsift.report import without_repeats
from fedsift.report.page_data import cut, describe_page
from fedsift.report.pages import make_page, to_safe_json
from fedsift.runs import History, Recording
from fedsift.types import UserError

PERIOD = 0.4  # seconds between two looks at the folders
BEAT = 15.0  # seconds after which a stream says that it is still there
PATIENCE = 20.0  # seconds that a request may take
STREAMS = 32  # at the same time
MOST_RUNS = 200  # the newest ones
LOOPBACK = ("127.0.0.1", "localhost")
HTTP = 80  # the port that browsers leave out
READ = (  # the files of a run that the page tells of
    *(runs.CONFIG, runs.ENVIRONMENT, runs.CLIENTS, runs.DATA, runs.METRICS, runs.LEDGER),
    *(runs.TIMING, runs.RECORDING, runs.SAMPLES, runs.FAILED),
)


def find_newest(folders: Sequence[Path]) -> list[Path]:
    """The run folders that these stand for, each once; of many the newest."""
    found = {one.resolve(): one for folder in folders for one in runs.find_runs(folder)}
    newest = sorted(found.values(), key=_age)[:MOST_RUNS]
    return [one for one in found.values() if one in newest]


def _age(folder: Path) -> float:
    try:
        return -(folder / runs.CONFIG).stat().st_mtime
    except OSError:
        return 0.0


@dataclass(frozen=True)
class Reading:
    """What a folder held when it had this mark: a run, or why there is none to show."""

    mark: tuple[Any, ...]
    run: History | None = None
    recording: Recording | None = None
    why: str = ""


Readings = dict[Path, Reading]
Told = dict[str, Any]  # the data of the page


class Board:
    """What is served now. One thread looks at the folders, many read."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self.version = 0
        self.page, self.data = b"", b""
        self._readings: Readings = {}
        self._told = b""  # the data of the last look that ended
        self._trouble = ""  # why the last look did not end
        self._changed = threading.Condition()
        self.refresh()

    def refresh(self) -> bool:
        """Look again, and read what has another mark; whether there is something new."""
        marks = {folder: _mark(folder) for folder in find_newest(self.folders)}
        before = {at: one.mark for at, one in self._readings.items()}
        if self.version and marks == before and not self._trouble:
            return False
        known = self._readings
        readings = {
            folder: known[folder]
            if folder in known and known[folder].mark == mark
            else _read(folder, mark)
            for folder, mark in marks.items()
        }
        readings, told = _describe_all(readings)
        self._publish(told)
        self._readings, self._told, self._trouble = readings, self.data, ""
        return True

    def _publish(self, told: Told) -> None:
        data, page = to_safe_json(told).encode(), make_page(told, live=True).encode()
        with self._changed:
            self.data, self.page = data, page
            self.version += 1
            self._changed.notify_all()

    def look_again(self) -> None:
        """Refresh, whatever happens: a file may change while it is read. The page says so, once."""
        try:
            self.refresh()
        except Exception as error:
            why = runs.describe_error(error)
            if why == self._trouble:
                return
            told = json.loads(self._told)
            trouble = {"name": "what is watched", "state": cut(f"cannot be read: {why}", 200)}
            self._publish(told | {"waiting": [*told["waiting"], trouble]})
            self._trouble = why

    def watch(self, stop: threading.Event) -> None:
        """Look again and again; after a long look there is a long pause."""
        pause = PERIOD
        while not stop.wait(pause):
            begun = time.perf_counter()
            self.look_again()
            pause = max(PERIOD, time.perf_counter() - begun)

    def wait(self, version: int, seconds: float) -> int:
        """The version, once it is another one than this, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != version, seconds)
            return self.version


def _mark(folder: Path) -> tuple[Any, ...]:
    """What changes when a run goes on, ends or is resumed."""
    marks: list[Any] = [locked_by_someone(folder / runs.LOCK)]
    for name in READ:
        try:
            found = (folder / name).stat()
            marks.append((found.st_mtime_ns, found.st_size, found.st_ino))
        except OSError:
            marks.append(None)
    return tuple(marks)


def _read(folder: Path, mark: tuple[Any, ...]) -> Reading:
    try:
        return Reading(mark, runs.load_run(folder), runs.read_recording(folder))
    except Exception as error:  # a damaged file fails in many ways; the others are shown
        going = locked_by_someone(folder / runs.LOCK)
        why = "in its first round" if going else cut(runs.describe_error(error), 200)
        return Reading(mark, why=why)


def _describe_all(readings: Readings) -> tuple[Readings, Told]:
    """The page; without the runs that cannot be shown, of which it then says why."""
    try:
        return readings, _describe(readings)
    except Exception:  # what a stranger has put into one folder must not hide the others
        fit = {folder: _try_alone(folder, one) for folder, one in readings.items()}
    try:
        return fit, _describe(fit)
    except Exception as error:  # each fits, but not beside the others
        none = {folder: _give_up(one, error) for folder, one in fit.items()}
        return none, _describe(none)


def _try_alone(folder: Path, reading: Reading) -> Reading:
    try:
        _describe({folder: reading})
    except Exception as error:
        return _give_up(reading, error)
    return reading


def _give_up(reading: Reading, error: Exception) -> Reading:
    return Reading(reading.mark, why=reading.why or cut(runs.describe_error(error), 200))


def _describe(readings: Readings) -> Told:
    """The page of all that can be read; the rest is listed with the reason."""
    loaded = [one.run for one in readings.values() if one.run]
    waiting = [{"name": cut(at), "state": one.why} for at, one in readings.items() if not one.run]
    if loaded:
        kept, repeats = without_repeats(loaded)
        waiting += [{"name": cut(a), "state": cut(f"the same as {b}")} for a, b in repeats.items()]
        return describe_page(kept, waiting, lambda folder: readings[folder].recording)
    empty: Told = {"fedsift": __version__, "runs": [], "methods": [], "samples": []}
    return empty | {"waiting": waiting}


HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Server:
    """The page at an address of this machine, as long as `serve` runs."""

    def __init__(self, board: Board, host: str, port: int, token: str | None) -> None:
        """`token`: what every request has to name; needed wherever others can connect."""
        self.board, self.token, self.stop = board, token, threading.Event()
        if ":" in host:
            raise UserError(f"{host} is an IPv6 address, and the page is served on IPv4 alone")
        try:
            self._http = Listener((host, port), self)
        except (OSError, OverflowError, UnicodeError) as error:
            raise UserError(
                f"cannot listen at {host}:{port} ({error}); choose another --host or --port"
            ) from None
        self.port = self._http.server_port
        self.streams = threading.BoundedSemaphore(STREAMS)
        query = "" if token is None else f"?token={token}"
        self.address = f"http://{host}:{self.port}/{query}"

    def allows(self, host: str, query: str) -> bool:
        """Whether a request may be answered: by its Host header, or by its token.

        A page of another site can make a browser ask this address under that site's name. Its
        Host header tells.
        """
        if self.token is not None:
            given = parse_qs(query).get("token", [""])[0]
            return hmac.compare_digest(given.encode(), self.token.encode())
        names = {f"{name}:{self.port}" for name in LOOPBACK}
        return host.lower() in (names if self.port != HTTP else names | set(LOOPBACK))

    def serve(self) -> None:
        """Until `close`, or an interrupt."""
        looking = threading.Thread(target=self.board.watch, args=(self.stop,), daemon=True)
        looking.start()
        try:
            self._http.serve_forever(poll_interval=0.2)
        finally:
            self.stop.set()
            self._http.server_close()

    def close(self) -> None:
        """End `serve`, which another thread runs."""
        self.stop.set()
        self._http.shutdown()


class Listener(ThreadingHTTPServer):
    """Takes requests for a server, a thread for each."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], served: Server) -> None:
        self.served = served
        super().__init__(address, Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: who resets a connection writes no traceback to this terminal."""


class Handler(BaseHTTPRequestHandler):
    """Reads nothing but the address, and writes nothing but what is in memory."""

    server: Listener
    timeout = PATIENCE
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fedsift", ""

    def do_GET(self) -> None:
        served = self.server.served
        try:
            address = urlsplit(self.path)
        except ValueError:
            self._send(400, b"this is no address\n")
            return
        if not served.allows(self.headers.get("Host", ""), address.query):
            self._send(403, b"this page is for another host, or needs its token\n")
        elif address.path == "/":
            self._send(200, served.board.page, "text/html")
        elif address.path == "/data.json":
            self._send(200, served.board.data, "application/json")
        elif address.path == "/events":
            self._stream(served)
        else:
            self._send(404, b"nothing here\n")

    def _send(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self._begin(status, kind, {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _begin(self, status: int, kind: str, more: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": f"{kind}; charset=utf-8", **more, **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, served: Server) -> None:
        """A line for every new version, until the reader leaves."""
        if not served.streams.acquire(blocking=False):
            self._send(503, b"too many pages are open\n")
            return
        try:
            self.close_connection = True
            self._begin(200, "text/event-stream", {})
            self._tell(served, served.board.version)
        except OSError:
            return
        finally:
            served.streams.release()

    def _tell(self, served: Server, version: int) -> None:
        self._write(f"retry: 1000\nevent: news\ndata: {version}\n\n")
        while not served.stop.is_set():
            newest = served.board.wait(version, BEAT)
            news = f"event: news\ndata: {newest}\n\n" if newest != version else ": beat\n\n"
            version = newest
            self._write(news)

    def _write(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: only the command line prints."""
