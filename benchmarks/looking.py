"""What looking costs: the recording of a run, readers of the live page, and the report of a sweep.

python benchmarks/looking.py record --pairs 6     # runs with and without record, in turn
python benchmarks/looking.py watch --pairs 4      # runs with and without 200 requests a second
python benchmarks/looking.py live                 # how late a round is shown; kill -9 and resume
python benchmarks/looking.py report               # 12 cells, 45 rounds, 20 clients: seconds, size

All on the digits with digits-fas, on the CPU. Figures are medians over pairs that were run in turn.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

PROGRAM = [sys.executable, "-m", "fedsift"]
RATE = 200  # requests a second
PATIENCE = 300.0  # seconds for a run that is killed and resumed
Cost = tuple[float, float]  # CPU and wall seconds


def run_measured(out: Path, *settings: str) -> Cost:
    """A run in a process of its own, start and imports included."""
    words = [*PROGRAM, "run", "digits-fas", "device=cpu", *settings, "--quiet", "--out", str(out)]
    begun = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(words)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - begun


def compare(pairs: int, plain: Callable[[int], Cost], other: Callable[[int], Cost]) -> None:
    """Both in turn, each first in every second pair; prints all, and the medians of the ratios."""
    ratios: list[Cost] = []
    for number in range(pairs):
        order = [plain, other] if number % 2 else [other, plain]
        told = {one: one(number) for one in order}
        (cpu, wall), (cpu_other, wall_other) = told[plain], told[other]
        ratios.append((cpu_other / cpu, wall_other / wall))
        load = os.getloadavg()[0]
        print(
            f"pair {number + 1}: CPU {cpu:.2f} -> {cpu_other:.2f} s, wall {wall:.2f} -> "
            f"{wall_other:.2f} s, load {load:.1f}",
            flush=True,
        )
    for place, name in enumerate(("CPU", "wall")):
        shares = sorted(100 * (ratio[place] - 1) for ratio in ratios)
        middle = statistics.median(shares)
        print(f"{name}: {middle:+.1f} % (from {shares[0]:+.1f} to {shares[-1]:+.1f})")


def measure_recording(home: Path, how: argparse.Namespace) -> None:
    rounds = f"rounds={how.rounds}"
    compare(
        how.pairs,
        lambda n: run_measured(home / f"off-{n}", rounds, "record=false"),
        lambda n: run_measured(home / f"on-{n}", rounds),
    )
    files = [home / "on-0" / name for name in ("recording.jsonl", "samples.json")]
    print("bytes:", {file.name: file.stat().st_size for file in files})


class Watch:
    """`fedsift watch` on a free port."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        words = [*PROGRAM, "watch", str(folder), "--port", "0"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        assert found is not None
        self.port = int(found[1])

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def read(self, link: http.client.HTTPConnection) -> dict[str, object]:
        link.request("GET", "/data.json")
        answer: dict[str, object] = json.loads(link.getresponse().read())
        return answer


def ask_often(watch: Watch, stop: threading.Event, counts: list[int]) -> None:
    """RATE requests a second for the data of the page, over one connection."""
    link, due = watch.connect(), time.perf_counter()
    counts.append(0)
    while not stop.is_set():
        link.request("GET", "/data.json")
        link.getresponse().read()
        counts[-1] += 1
        due += 1 / RATE
        time.sleep(max(0.0, due - time.perf_counter()))


def measure_watching(home: Path, how: argparse.Namespace) -> None:
    rounds = f"rounds={how.rounds}"

    def asked(number: int) -> Cost:
        stop, counts = threading.Event(), []
        with Watch(home / f"asked-{number}") as watch:
            thread = threading.Thread(target=ask_often, args=(watch, stop, counts))
            thread.start()
            cost = run_measured(home / f"asked-{number}" / "run", rounds)
            stop.set()
            thread.join()
        print(f"  {counts[0] / cost[1]:.0f} requests a second", flush=True)
        return cost

    def watched(number: int) -> Cost:
        with Watch(home / f"quiet-{number}"):
            return run_measured(home / f"quiet-{number}" / "run", rounds)

    compare(how.pairs, watched, asked)


def measure_delay(home: Path, how: argparse.Namespace) -> None:
    """Seconds from a round's line in the folder until the page has it; then kill -9 and resume."""
    folder = home / "live" / "run"
    begin = [*PROGRAM, "run", "digits-fas", f"rounds={how.rounds}", "--quiet", "--out", str(folder)]
    again = [*PROGRAM, "run", "--resume", "--quiet", "--out", str(folder)]
    written: dict[int, float] = {}
    shown: dict[int, float] = {}
    states: list[str] = []
    with Watch(folder.parent) as watch:
        link = watch.connect()
        process = subprocess.Popen(begin, stdout=subprocess.DEVNULL)
        killed = resumed = False
        end = time.perf_counter() + PATIENCE
        while not states or not states[-1].startswith("finished"):
            if time.perf_counter() > end:
                process.kill()
                sys.exit(f"not finished after {PATIENCE:.0f} s; states: {' | '.join(states)}")
            file = folder / "metrics.jsonl"
            lines = file.read_bytes().count(b"\n") if file.is_file() else 0
            written.setdefault(lines, time.perf_counter())
            for run in watch.read(link)["runs"]:  # type: ignore[attr-defined]
                shown.setdefault(run["rounds"], time.perf_counter())
                state = f"{run['state']['name']}, resumed {run['state']['resumed']}"
                if state not in states[-1:]:
                    states.append(state)
            if lines == how.rounds // 2 and not killed:
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed = True
            if killed and not resumed and states[-1].startswith("stopped"):
                process = subprocess.Popen(again, stdout=subprocess.DEVNULL)
                resumed = True  # once: the page says "stopped" until the run has its lock
            time.sleep(0.02)
        process.wait()
    delays = [
        shown[n] - written[n] for n in range(1, how.rounds + 1) if n in shown and n in written
    ]
    print(f"rounds shown: {len(delays)} of {how.rounds}; latest after {max(delays):.2f} s")
    print("states:", " | ".join(states))


def measure_report(home: Path, how: argparse.Namespace) -> None:
    """With the model, the data and the clients of digits-fas, but short trainings."""
    cells = [f"sampler={s}" for s in ("none", "mixed", "low-entropy", "own-classes")]
    for cell, seed in product(cells, range(3)):
        short = ("rounds=45", "local.epochs=1", "distill.epochs=1", "alpha=0.1", cell)
        run_measured(home / "sweep" / f"{cell}-{seed}", *short, f"seed={seed}")
    for _ in range(3):
        begun = time.perf_counter()
        words = [*PROGRAM, "report", str(home / "sweep"), "-o", str(home / "a.html")]
        subprocess.run(words, check=True)
        took, load = time.perf_counter() - begun, os.getloadavg()[0]
        print(f"{took:.1f} s, {(home / 'a.html').stat().st_size:,} bytes, load {load:.1f}")


MEASURES = {
    "record": measure_recording,
    "watch": measure_watching,
    "live": measure_delay,
    "report": measure_report,
}


def main() -> None:
    about = argparse.ArgumentParser(description=__doc__)
    about.add_argument("what", choices=MEASURES)
    about.add_argument("--pairs", type=int, default=6)
    about.add_argument("--rounds", type=int, default=20)
    how = about.parse_args()
    with tempfile.TemporaryDirectory() as home:
        MEASURES[how.what](Path(home), how)


if __name__ == "__main__":
    main()
