"""The same federated round in fedsift, a plain loop, Flower's simulation and pfl-research, side by side in one run.

    make peers            (or: python benchmarks/peers.py --json, with the peers installed)

Every repeat starts each way once, in a process of its own, and lets it play some rounds; the order turns round from
repeat to repeat, so that noise hits all alike. A round's time is taken at its end, and the first is set apart: it holds
the start-up. Ratios are paired within a repeat. All ways must agree on the weights after the first round, or nothing
is reported. What the work is stands in peer_rounds.py.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from peer_rounds import CORES, MODEL, PROCESSES, WAYS, start
from safetensors.torch import load_file, save_file

from fedsift import runs
from fedsift.engines import choose

REFERENCE = "plain loop, 1 thread"
TOLERANCE = {"parameters": 0.1, "statistics": 0.001}  # of the way they went in the first round; see README.md
BLOCK_SECONDS = 600
IDLE = 0.3  # cores others may use when a block starts
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PFL_PYTORCH_DEVICE": "cpu",
}


def play(way, rounds, folder):
    """Inside a block's process: play, note when every round ended, keep the weights after the first."""
    ends = []

    def done(weights):
        ends.append(time.monotonic())
        if len(ends) == 1:
            first.update({name: value.clone().contiguous() for name, value in weights().items()})

    first: dict[str, torch.Tensor] = {}
    WAYS[way](rounds, done)
    if os.environ.get("RANK", "0") == "0":
        save_file(first, folder / "first.safetensors")
        (folder / "ends.json").write_text(json.dumps(ends))


def block(way, rounds):
    """Start a way afresh. Returns seconds to the end of the first round, of each later round, and the first weights."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES.get(way, 1))]
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as name:
        command = [sys.executable, *(launcher if way in PROCESSES else []), __file__]
        command += ["--block", way, "--rounds", str(rounds), "--folder", name]
        launched = time.monotonic()
        try:
            played = subprocess.run(
                command,
                env=os.environ | QUIET | {"FLWR_HOME": name},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=BLOCK_SECONDS,
                text=True,
            )
        finally:
            see_off(f"FLWR_HOME={name}")
        if played.returncode:
            raise SystemExit(f"{way} failed:\n{played.stdout[-4000:]}")
        ends = json.loads(Path(name, "ends.json").read_text())
        weights = load_file(Path(name, "first.safetensors"))
    if len(ends) != rounds:
        raise SystemExit(f"{way} played {len(ends)} rounds, not {rounds}")
    return ends[0] - launched, [after - before for before, after in pairwise(ends)], weights


def see_off(mark):
    """Wait for the processes a block started, wherever they hang in the tree, and end those that stay."""
    patience = time.monotonic() + 20
    while (left := marked(mark)) and time.monotonic() < patience:
        time.sleep(0.2)
    for process in left:
        os.kill(process, signal.SIGKILL)


def marked(mark):
    """The processes with this setting in their environment; those that end while we look do not count."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
        except OSError:
            continue
    return found


def others_busy(seconds=1.0):
    """Cores in use while we only wait: what the rest of the machine is doing."""

    def ticks():
        user, nice, system, idle, iowait, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
        return user + nice + system, idle + iowait

    busy, idle = ticks()
    time.sleep(seconds)
    now_busy, now_idle = ticks()
    share = (now_busy - busy) / max(1, now_busy - busy + now_idle - idle)
    return round(share * (os.cpu_count() or 1), 2)


def wait_for_quiet(patience):
    """Start when the machine is idle, but do not wait for ever."""
    until = time.monotonic() + patience
    while others_busy() > IDLE and time.monotonic() < until:
        time.sleep(2)


def distance(weights, reference, names):
    """How far two results lie apart, as a share of the way from the common start."""
    flat = [torch.cat([state[name].double().flatten() for name in names]) for state in (weights, reference, start())]
    return float((flat[0] - flat[1]).norm() / (flat[1] - flat[2]).norm())


def check(way, weights, reference):
    """The way trained, and did the same work. pfl shares parameters only, so batch norm's statistics are its own."""
    compared = {"parameters": [name for name, _ in MODEL.build().named_parameters()]}
    if not way.startswith("pfl"):
        compared["statistics"] = [name for name in reference if "running" in name]
    if not all(value.isfinite().all() for value in weights.values()):
        raise SystemExit(f"{way}: weights after the first round are not finite")
    if all(torch.equal(weights[name], start()[name]) for name in compared["parameters"]):
        raise SystemExit(f"{way}: weights after the first round are those of the start")
    apart = {what: distance(weights, reference, names) for what, names in compared.items()}
    for what, share in apart.items():
        if share > TOLERANCE[what]:
            raise SystemExit(f"{way}: {what} are {share:.2%} off the plain loop after a round; it did other work")
    return apart["parameters"]


def measure(repeats, rounds, ways, patience):
    """Per way and repeat: seconds to the first round's end and of the later rounds, cores others use before and after."""
    seconds = {way: {"first": [], "rounds": [], "others_busy": []} for way in ways}
    results = {}
    for repeat in range(repeats):
        for way in ways if repeat % 2 == 0 else reversed(ways):
            wait_for_quiet(patience)
            before = others_busy()
            first, later, weights = block(way, rounds)
            results.setdefault(way, weights)
            seconds[way]["first"].append(first)
            seconds[way]["rounds"].append(later)
            seconds[way]["others_busy"].append([before, others_busy()])
            busy = " and ".join(map(str, seconds[way]["others_busy"][-1]))
            note = f"{median(later):.2f} s a round; others used {busy} cores before and after"
            print(f"{repeat + 1}/{repeats}  {way}: {note}", file=sys.stderr)
    return seconds, {way: check(way, weights, results[REFERENCE]) for way, weights in results.items()}


def spread(values, digits=2):
    return {
        "median": round(median(values), digits),
        "low": round(min(values), digits),
        "high": round(max(values), digits),
    }


def rows(seconds, apart):
    mine = [median(block) for block in seconds["fedsift"]["rounds"]]
    fastest = min(map(min, seconds["fedsift"]["rounds"]))
    for way, taken in seconds.items():
        ratios = [median(block) / own for block, own in zip(taken["rounds"], mine, strict=True)]
        yield {
            "way": way,
            "round_s": spread([second for block in taken["rounds"] for second in block]),
            "times_fedsift": spread(ratios),
            "fastest_times_fedsift": round(min(map(min, taken["rounds"])) / fastest, 2),
            "first_round_s": spread(taken["first"], 1),
            "off_plain_loop": round(apart[way], 6),
            "others_busy_cores": spread([cores for pair in taken["others_busy"] for cores in pair]),
        }


def table(found):
    def said(numbers):
        return f"{numbers['median']} ({numbers['low']} to {numbers['high']})"

    yield "| way | s a round | times fedsift | fastest rounds | launch to end of round 1, s | off the plain loop |"
    yield "|---|---|---|---|---|---|"
    for row in found:
        cells = [row["way"], said(row["round_s"]), said(row["times_fedsift"]), row["fastest_times_fedsift"]]
        cells += [said(row["first_round_s"]), f"{row['off_plain_loop']:.1%}"]
        yield f"| {' | '.join(map(str, cells))} |"


def environment():
    note = choose("auto", "cpu")[1]
    peers = {name: version(name) for name in ("flwr", "ray", "pfl")}
    return runs.environment(note) | peers | {"cores": CORES, "command": " ".join(["python", *sys.argv])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4, help="rounds a way plays in a repeat; the first is set apart")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), help="with fedsift and the plain loop")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for an idle machine, each time")
    parser.add_argument("--block", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.block:
        return play(wanted.block, wanted.rounds, wanted.folder)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    ways = [way for way in WAYS if way in {"fedsift", REFERENCE, *wanted.only}]
    seconds, apart = measure(wanted.repeats, max(2, wanted.rounds), ways, wanted.patience)
    found = list(rows(seconds, apart))
    if wanted.json:
        return print(json.dumps({"machine": environment(), "ways": found, "seconds": seconds}))
    busy = [cores for taken in seconds.values() for pair in taken["others_busy"] for cores in pair]
    print("\n".join(f"{key}: {value}" for key, value in environment().items()))
    print(f"cores busy with other work before and after the blocks: {median(busy)} ({min(busy)} to {max(busy)})\n")
    return print("\n".join(table(found)))


if __name__ == "__main__":
    main()
