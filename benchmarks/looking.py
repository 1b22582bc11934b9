"""What looking costs: the recording of a run, readers of the live page, and the report of a sweep.

python benchmarks/looking.py record --rounds 200  # with and without record, round by round in turn
python benchmarks/looking.py watch --rounds 60    # rounds with and without 200 requests a second
python benchmarks/looking.py live                 # how late a round is shown; kill -9 and resume
python benchmarks/looking.py report               # 12 cells, 45 rounds, 20 clients: seconds, size
python benchmarks/looking.py command reproduce ...  # any command of fedsift, its recording counted

But for the last, all on the digits with digits-fas, on the CPU. Figures are medians over pairs of
rounds in turn. The last counts the CPU seconds of the threads that record.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

PROGRAM = [sys.executable, "-m", "fedsift"]
RATE = 220  # requests a second that are tried, so that 200 are made
ASKERS = 2  # connections that make them, each in a process of its own
PATIENCE = 300.0  # seconds for a run that is killed and resumed
Cost = tuple[float, float]  # CPU and wall seconds
Result = TypeVar("Result")


def measure_recording(home: Path, how: argparse.Namespace) -> None:
    """Two equal runs in one process, one recorded, the other not: round by round in turn.

    Both compute the same bits, so the difference of a round is the recording and noise.
    """
    from fedsift import config, runs
    from fedsift.engines import choose_engine

    def begin(name: str, *settings: str) -> Callable[[], Cost]:
        words = ["device=cpu", f"rounds={how.rounds}", *settings]
        experiment = config.read_experiment("digits-fas", words)
        run, cost = clock(lambda: runs.begin_run(home / name, experiment))
        print(f"start, {name}: CPU {cost[0]:.3f} s, wall {cost[1]:.3f} s")
        rounds = runs.Group.of([run]).run_or_raise(choose_engine()[0])
        return lambda: clock(lambda: next(rounds))[1]

    begin("warm-up")
    spent = account()
    plain, recorded = begin("off", "record=false"), begin("on")
    pairs: list[tuple[Cost, Cost]] = []
    for number in range(how.rounds):
        if number % 2:
            first = plain()
            pairs.append((first, recorded()))
        else:
            first = recorded()
            pairs.append((plain(), first))
        if number % 20 == 19:
            print(f"round {number + 1}: load {os.getloadavg()[0]:.1f}", flush=True)
    for place, name in enumerate(("CPU", "wall")):
        usual = statistics.median(one[place] for one, _ in pairs)
        more = [100 * (other[place] - one[place]) / usual for one, other in pairs]
        low, high = surround_median(more)
        print(
            f"{name}: {usual:.3f} s a round, {statistics.median(more):+.2f} % recorded "
            f"(95 % interval of the median {low:+.2f} to {high:+.2f}, {len(more)} rounds)"
        )
    for place, name in enumerate(("CPU", "wall")):
        parts = {part: cost[place] for part, cost in spent.items()}
        rest = sum(other[place] for _, other in pairs) - sum(parts.values())
        told = ", ".join(f"{part} {1000 * s / how.rounds:.2f} ms" for part, s in parts.items())
        print(f"{name} of its parts: {100 * sum(parts.values()) / rest:.2f} % of the rest ({told})")
    files = [home / "on" / name for name in ("recording.jsonl", "samples.json")]
    print("bytes:", {file.name: file.stat().st_size for file in files})


def account(cpu: Callable[[], float] = time.process_time) -> dict[str, Cost]:
    """Seconds in what a run does for its recording, from now on, by part.

    With process_time all threads count while a part goes on, so CPU seconds are rather too many
    than too few; where several threads record, take thread_time.
    """
    from fedsift.federation import conversations, server_half
    from fedsift.runs import run

    spent: dict[str, Cost] = {}

    def add(part: str, cost: Cost) -> None:
        cpu, wall = spent.get(part, (0.0, 0.0))
        spent[part] = cpu + cost[0], wall + cost[1]

    def count(home: Any, name: str, part: str, only: str = "") -> None:
        real = getattr(home, name)

        def counted(*given: Any) -> Any:
            done, cost = clock(lambda: real(*given), cpu)
            if not only or given[0].name == only:
                add(part, cost)
            return done

        setattr(home, name, counted)

    def finish(self: Any, *given: Any) -> Any:
        turn, answer = real_finish(self, *given), None
        while True:
            (jobs, told), cost = clock(lambda: advance(turn, answer), cpu)  # noqa: B023
            add("sum up", cost)
            if jobs is None:
                return told
            begun = cpu(), time.perf_counter()
            answer = yield jobs
            add("ask", (cpu() - begun[0], time.perf_counter() - begun[1]))

    listener: Any = conversations.Listener
    count(listener, "__init__", "listen")
    count(listener, "add", "listen")
    count(server_half, "count_parts", "count bytes")
    count(run, "to_row", "pack")
    count(run.files, "append_row", "write", run.RECORDING)
    count(run, "_write_samples", "samples")
    real_finish, listener.finish_turn = listener.finish_turn, finish
    return spent


def advance(turn: Any, answer: Any) -> tuple[Any, Any]:
    """The next jobs of a turn, or None and what it returns."""
    try:
        return turn.send(answer), None
    except StopIteration as end:
        return None, end.value


def clock(
    act: Callable[[], Result], cpu: Callable[[], float] = time.process_time
) -> tuple[Result, Cost]:
    """CPU seconds, of all threads of this process unless asked otherwise, and wall seconds."""
    begun, wall = cpu(), time.perf_counter()
    done = act()
    return done, (cpu() - begun, time.perf_counter() - wall)


def surround_median(values: list[float]) -> tuple[float, float]:
    """An interval of 95 % that holds for any distribution: two of the values in order."""
    few = max(0, int((len(values) - 1.96 * len(values) ** 0.5) / 2))
    ordered = sorted(values)
    return ordered[few], ordered[-1 - few]


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


def ask_often(port: int, count: Any) -> None:
    """Its part of RATE requests a second for the data of the page, for ever."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    due, pause = time.perf_counter(), ASKERS / RATE
    while True:
        link.request("GET", "/data.json")
        link.getresponse().read()
        with count.get_lock():
            count.value += 1
        due = max(due + pause, time.perf_counter() - pause)  # what was missed is not made up for
        time.sleep(max(0.0, due - time.perf_counter()))


def measure_watching(home: Path, how: argparse.Namespace) -> None:
    """One run on a live page: in every second round others ask for the page."""
    from fedsift import config, runs
    from fedsift.engines import choose_engine

    experiment = config.read_experiment("digits-fas", ["device=cpu", f"rounds={how.rounds}"])
    away = multiprocessing.get_context("spawn")
    costs: list[list[Cost]] = [[], []]
    with Watch(home / "watched") as watch:
        run = runs.begin_run(home / "watched" / "run", experiment)
        rounds = runs.Group.of([run]).run_or_raise(choose_engine()[0])
        next(rounds)
        count = away.Value("i", 0)
        how_to_ask: Any = {"target": ask_often, "args": (watch.port, count), "daemon": True}
        askers = [away.Process(**how_to_ask) for _ in range(ASKERS)]
        for asker in askers:
            asker.start()
        time.sleep(3)  # until they ask
        before = count.value
        for number in range(2 * ((how.rounds - 1) // 2)):
            asked = number % 4 in (1, 2)  # off, on, on, off: a drift meets both
            for asker in askers:
                os.kill(asker.pid or 0, signal.SIGCONT if asked else signal.SIGSTOP)
            costs[asked].append(clock(lambda: next(rounds))[1])
        made = count.value - before
        for asker in askers:
            asker.kill()
    seconds = sum(wall for _, wall in costs[True])
    print(f"{made / seconds:.0f} requests a second, load {os.getloadavg()[0]:.1f}")
    for place, name in enumerate(("CPU", "wall")):
        quiet, busy = ([cost[place] for cost in some] for some in costs)
        usual = statistics.median(quiet)
        more = [100 * (b - a) / usual for a, b in zip(quiet, busy, strict=True)]
        low, high = surround_median(more)
        print(
            f"{name}: {usual:.3f} s a round, {statistics.median(more):+.2f} % asked "
            f"(95 % interval of the median {low:+.2f} to {high:+.2f}, {len(more)} pairs); "
            f"sums {sum(quiet):.2f} and {sum(busy):.2f} s"
        )


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
    settings = ["rounds=45", "local.epochs=1", "distill.epochs=1", "alpha=0.1", "device=cpu"]
    cells = ["--seeds", "3", "sweep.sampler=[none,mixed,low-entropy,own-classes]"]
    out = ["--quiet", "--out", str(home / "sweep")]
    subprocess.run([*PROGRAM, "run", "digits-fas", *settings, *cells, *out], check=True)
    for _ in range(3):
        begun, used = time.perf_counter(), os.times()
        words = [*PROGRAM, "report", str(home / "sweep"), "-o", str(home / "a.html")]
        subprocess.run(words, check=True)
        took, now, load = time.perf_counter() - begun, os.times(), os.getloadavg()[0]
        cpu = now.children_user + now.children_system - used.children_user - used.children_system
        size = (home / "a.html").stat().st_size
        print(f"{took:.1f} s, CPU {cpu:.1f} s, {size:,} bytes, load {load:.1f}", flush=True)


def measure_command(words: list[str]) -> None:
    """Run it in this process, and say which share of its CPU seconds the recording takes.

    What a run asks its students is asked together with what other runs ask. It is counted where an
    engine is given nothing but predictions on as few samples as that.
    """
    from fedsift.__main__ import main
    from fedsift.engines.batched import BatchedEngine
    from fedsift.federation.conversations import CLIENTS, LISTED, PICKS
    from fedsift.types import Predict

    spent, asked = account(time.thread_time), [0.0, 0.0]
    real, few = BatchedEngine.run, CLIENTS * PICKS + LISTED

    def run(engine: Any, jobs: Any, *given: Any, **named: Any) -> Any:
        small = all(isinstance(job, Predict) and len(job.samples) <= few for job in jobs)
        answers, cost = clock(lambda: real(engine, jobs, *given, **named))
        if small:
            asked[:] = asked[0] + cost[0], asked[1] + cost[1]
        return answers

    def command() -> None:
        with contextlib.suppress(SystemExit):
            main()

    BatchedEngine.run, sys.argv = run, ["fedsift", *words]  # type: ignore[method-assign]
    _, (cpu, wall) = clock(command)
    spent["ask"] = asked[0], asked[1]
    mine = sum(cost[0] for cost in spent.values())
    parts = ", ".join(f"{part} {cost[0]:.2f} s" for part, cost in spent.items())
    print(f"CPU {cpu:.1f} s, wall {wall:.1f} s; recording CPU {mine:.2f} s ({parts})")
    print(f"recording: {100 * mine / (cpu - mine):.2f} % of the CPU seconds of the rest")
    print(f"asking the students: wall {asked[1]:.2f} s, {100 * asked[1] / wall:.2f} %")


MEASURES = {
    "record": measure_recording,
    "watch": measure_watching,
    "live": measure_delay,
    "report": measure_report,
}


def main() -> None:
    about = argparse.ArgumentParser(description=__doc__)
    about.add_argument("what", choices=[*MEASURES, "command"])
    about.add_argument("--rounds", type=int, default=20)
    if sys.argv[1:2] == ["command"]:
        measure_command(sys.argv[2:])
        return
    how = about.parse_args()
    with tempfile.TemporaryDirectory() as home:
        MEASURES[how.what](Path(home), how)


if __name__ == "__main__":
    main()
