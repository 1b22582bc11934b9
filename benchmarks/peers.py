"""The same federated round in fedsift, a plain loop, Flower's simulation, pfl-research, BlazeFL and
FedJAX, side by side in one run.

    make peers            (or: python benchmarks/peers.py --all --json, with the peers installed)
    python benchmarks/peers.py --model cnn --clients 100

Every repeat starts each way once, in a process of its own, and lets it play some rounds; the order
turns round from repeat to repeat, so that noise hits all alike. A round's time is taken at its end,
and the first is set apart: it holds the start-up. Ratios are paired within a repeat. A block that
other work disturbed is tried again. All ways must agree on the weights after the first round. A
peer that fails, or that did other work, is a row that says so. What the work is stands in
peer_rounds.py.
"""

import argparse
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

import torch
from peer_rounds import CLIENTS, CORES, MODEL, NAME, PROCESSES, SHAPES, WAYS, start
from safetensors.torch import load_file, save_file

from fedsift import runs
from fedsift.engines import choose_engine

REFERENCE = "plain loop, 1 thread"
NEEDED = ("fedsift", REFERENCE)  # without them there is nothing to compare with
CASES = [(model, clients) for model in SHAPES for clients in (20, 100)]
TOLERANCE = {
    "parameters": 0.1,
    "statistics": 0.001,
}  # of the way they went in the first round; see README.md
ROUNDED = {
    "parameters": 0.3,
    "statistics": 0.01,
}  # with bfloat16: Adam divides small gradients by their own size
BLOCK_SECONDS = 180 * max(1, CLIENTS // 20)
IDLE = 0.3  # cores others may use before and while a block runs
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray gives way to other processes by default; here nobody does
    "PFL_PYTORCH_DEVICE": "cpu",
}


def play(way, rounds, folder):
    """Inside a block's process: play, note when every round ended, keep the weights after the
    first.
    """
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


class PeerFailure(Exception):
    """A way did not play its rounds, or not those that were asked for."""


@dataclass(frozen=True)
class Block:
    """One way, started afresh."""

    first: float  # seconds from the launch to the end of the first round
    rounds: list[float]  # seconds of each later round
    others: float  # cores that other work used meanwhile
    weights: dict[str, torch.Tensor]  # after the first round


def block(way, rounds):
    """Start a way in a process of its own and wait for it; None if it takes too long."""
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(PROCESSES.get(way, 1)),
    ]
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as name:
        folder, mark = Path(name), f"FLWR_HOME={name}"
        command = [sys.executable, *(launcher if way in PROCESSES else []), __file__]
        command += ["--block", way, "--rounds", str(rounds), "--folder", name]
        launched = time.monotonic()
        try:
            with (folder / "said.txt").open("w") as said:
                environment = os.environ | SETTINGS | {"FLWR_HOME": name}
                process = subprocess.Popen(
                    command, env=environment, stdout=said, stderr=subprocess.STDOUT
                )
            others = watch(process, mark, launched + BLOCK_SECONDS)
        finally:
            see_off(mark)
        if others is None:
            return None
        if process.returncode:
            said = (folder / "said.txt").read_text()[-4000:]
            print(said, file=sys.stderr)
            raise PeerFailure(name_end(process.returncode, said))
        if not (folder / "ends.json").exists():
            raise PeerFailure("it ended without an error and without its rounds")
        ends = json.loads((folder / "ends.json").read_text())
        weights = load_file(folder / "first.safetensors")
    if len(ends) != rounds:
        raise PeerFailure(f"it played {len(ends)} rounds, not {rounds}")
    return Block(
        ends[0] - launched,
        [after - before for before, after in itertools.pairwise(ends)],
        others,
        weights,
    )


def name_end(code, said):
    """In words. torch's launcher ends with a code of its own, and says which signal it saw."""
    if told := re.findall(r"Signal \d+ \((SIG\w+)\)", said):
        return f"ended by {told[-1]}"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    last = said.strip().rpartition("\n")[2]
    return f"ended with code {code}: {last[:120]}"


def watch(process, mark, deadline):
    """Wait for a block. Returns the cores others used: all that was used, less what the block's
    processes did.
    """
    own: dict[int, int] = {}
    begun, (busy, _) = time.monotonic(), machine_ticks()
    while process.poll() is None:
        if time.monotonic() > deadline:
            return None
        own |= {pid: ticks for pid in marked(mark) if (ticks := process_ticks(pid))}
        time.sleep(0.5)
    used = (machine_ticks()[0] - busy - sum(own.values())) / os.sysconf("SC_CLK_TCK")
    return max(0.0, used / (time.monotonic() - begun))


def machine_ticks():
    """Busy and idle, over all cores."""
    user, nice, system, idle, iowait, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return user + nice + system, idle + iowait


def process_ticks(pid):
    """What a process used so far, user and system; 0 where it has just ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def see_off(mark):
    """Wait for the processes a block started, wherever they hang in the tree, and end those that
    stay.
    """
    until = time.monotonic() + 20
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    for process in left:
        os.kill(process, signal.SIGKILL)


def marked(mark):
    """The processes with this setting in their environment; those that end while we look do not
    count.
    """
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
        except OSError:
            continue
    return found


def wait_for_quiet(patience):
    """Start when the machine is idle, but do not wait for ever."""
    until, share = time.monotonic() + patience, 1.0
    while share * (os.cpu_count() or 1) > IDLE and time.monotonic() < until:
        busy, idle = machine_ticks()
        time.sleep(1)
        now_busy, now_idle = machine_ticks()
        share = (now_busy - busy) / max(1, now_busy - busy + now_idle - idle)


def distance(weights, reference, names):
    """How far two results lie apart, as a share of the way from the common start."""
    flat = [
        torch.cat([state[name].double().flatten() for name in names])
        for state in (weights, reference, start())
    ]
    return float((flat[0] - flat[1]).norm() / (flat[1] - flat[2]).norm())


def check(way, weights, reference):
    """The way trained, and did the same work. pfl shares parameters only, so batch norm's
    statistics are its own.
    """
    compared = {"parameters": [name for name, _ in MODEL.build().named_parameters()]}
    statistics = [name for name in reference if "running" in name]
    if statistics and not way.startswith("pfl"):
        compared["statistics"] = statistics
    for name in itertools.chain(*compared.values()):
        if name not in weights or weights[name].shape != reference[name].shape:
            raise PeerFailure(f"did other work: it has no {name} as the plain loop has it")
    if not all(value.isfinite().all() for value in weights.values()):
        raise PeerFailure("did other work: its weights after the first round are not finite")
    if all(torch.equal(weights[name], start()[name]) for name in compared["parameters"]):
        raise PeerFailure("did other work: its weights after the first round are the first ones")
    apart = {what: distance(weights, reference, names) for what, names in compared.items()}
    for what, share in apart.items():
        if share > (ROUNDED if way.endswith("bfloat16") else TOLERANCE)[what]:
            raise PeerFailure(
                f"did other work: its {what} are {share:.2%} off the plain loop after a round"
            )
    return apart["parameters"]


def undisturbed(way, rounds, patience, tries):
    """A block while others left the machine alone; after some tries, the one they disturbed
    least.
    """
    blocks = []
    for _ in range(tries):
        wait_for_quiet(patience)
        if played := block(way, rounds):
            blocks.append(played)
            if played.others <= IDLE:
                break
    if not blocks:
        raise PeerFailure(f"no block ended within {BLOCK_SECONDS} s")
    return min(blocks, key=lambda played: played.others)


def measure(repeats, rounds, ways, patience, tries):
    """The blocks of every way, one a repeat; and why others have none."""
    blocks, failed = {way: [] for way in ways}, {}
    for repeat in range(repeats):
        for way in ways if repeat % 2 == 0 else reversed(ways):
            if way in failed:
                continue
            try:
                played = undisturbed(way, rounds, patience, tries)
            except PeerFailure as failure:
                if way in NEEDED:
                    raise SystemExit(f"{way}: {failure}") from None
                failed[way] = str(failure)
                print(f"{repeat + 1}/{repeats}  {way}: {failure}", file=sys.stderr)
                continue
            blocks[way].append(played)
            note = f"{median(played.rounds):.2f} s a round, others used {played.others:.2f} cores"
            print(f"{repeat + 1}/{repeats}  {way}: {note}", file=sys.stderr)
    return {way: own for way, own in blocks.items() if way not in failed}, failed


def spread(values, digits=2):
    return {
        "median": round(median(values), digits),
        "low": round(min(values), digits),
        "high": round(max(values), digits),
    }


def rows(blocks):
    """A row for each way; other work is fatal only where fedsift did it."""
    for way, own in blocks.items():
        try:
            yield row(way, own, blocks)
        except PeerFailure as failure:
            if way.startswith("fedsift") or way in NEEDED:
                raise SystemExit(f"{way}: {failure}") from None
            yield {"way": way, "failed": str(failure)}


def row(way, own, blocks):
    every = [second for played in own for second in played.rounds]
    return {
        "way": way,
        "round_s": spread(every),
        "fastest_round_s": round(min(every), 2),
        "times_fedsift": ratios(own, blocks["fedsift"]),
        "first_round_s": spread([played.first for played in own], 1),
        "off_plain_loop": round(
            max(check(way, p.weights, blocks[REFERENCE][0].weights) for p in own), 6
        ),
        "blocks": [
            {"others_cores": round(p.others, 2), "rounds_s": [round(s, 3) for s in p.rounds]}
            for p in own
        ],
    }


def ratios(own, fedsift):
    """Round against round, repeat by repeat; a repeat in which others disturbed one of the two says
    nothing.
    """
    pairs = [(a, b) for a, b in zip(own, fedsift, strict=True) if max(a.others, b.others) <= IDLE]
    values = [median(a.rounds) / median(b.rounds) for a, b in pairs]
    return spread(values) | {"repeats": len(values)} if values else None


def table(found):
    def said(numbers):
        return (
            f"{numbers['median']} ({numbers['low']} to {numbers['high']})"
            if numbers
            else "all repeats disturbed"
        )

    yield (
        "| way | s a round | fastest | times fedsift | launch to end of round 1, s "
        "| off the plain loop | cores others used |"
    )
    yield "|---|---|---|---|---|---|---|"
    for row in found:
        if "failed" in row:
            yield f"| {row['way']} | {row['failed'].replace('|', '/')} | | | | | |"
            continue
        others = ", ".join(str(block["others_cores"]) for block in row["blocks"])
        cells = [
            row["way"],
            said(row["round_s"]),
            row["fastest_round_s"],
            said(row["times_fedsift"]),
        ]
        cells += [said(row["first_round_s"]), f"{row['off_plain_loop']:.1%}", others]
        yield f"| {' | '.join(map(str, cells))} |"


def environment():
    note = choose_engine("auto", "cpu")[1]
    peers = {name: installed(name) for name in ("flwr", "ray", "pfl", "blazefl", "fedjax", "jax")}
    return (
        runs.environment(note)
        | peers
        | {
            "model": NAME,
            "clients": CLIENTS,
            "cores": CORES,
            "command": shlex.join(["python", *sys.argv]),
        }
    )


def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def measure_case(wanted):
    """All ways, with the model and the clients that were named."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    ways = [way for way in WAYS if way in {*NEEDED, *wanted.only}]
    blocks, failed = measure(
        wanted.repeats, max(2, wanted.rounds), ways, wanted.patience, wanted.tries
    )
    found = [*rows(blocks), *({"way": way, "failed": why} for way, why in failed.items())]
    return {"machine": environment(), "ways": found}


def measure_cases(wanted):
    """Every case, as it comes; one that fails does not take the others with it."""
    for model, clients in CASES:
        print(f"{model}, {clients} clients", file=sys.stderr)
        try:
            yield play_case(model, clients, wanted)
        except PeerFailure as failure:
            yield {"machine": {"model": model, "clients": clients}, "failed": str(failure)}


def play_case(model, clients, wanted):
    """In a process of its own, as its sizes are settled when peer_rounds is imported."""
    words = ["--json", "--model", model, "--clients", str(clients), "--only", *wanted.only]
    for name in ("repeats", "rounds", "patience", "tries"):
        words += [f"--{name}", str(getattr(wanted, name))]
    case = subprocess.Popen(
        [sys.executable, sys.argv[0], *words], stdout=subprocess.PIPE, text=True
    )
    try:
        said, _ = case.communicate()
    finally:  # so that a block's processes are seen off
        case.terminate()
        case.wait()
    if case.returncode:
        raise PeerFailure(f"ended with code {case.returncode}; the lines above say why")
    return json.loads(said)


def show(case):
    """A case as text."""
    machine = case["machine"]
    yield f"## {machine['model']}, {machine['clients']} clients\n"
    if "failed" in case:
        yield case["failed"] + "\n"
        return
    yield from (f"{key}: {value}" for key, value in machine.items())
    yield from ("", *table(case["ways"]), "")


def read_words():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--rounds",
        type=int,
        default=4,
        help="rounds a way plays in a repeat; the first is set apart",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=WAYS,
        default=list(WAYS),
        help="with fedsift and the plain loop",
    )
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds to wait for an idle machine, each time"
    )
    parser.add_argument(
        "--tries", type=int, default=3, help="blocks to try while others use the machine"
    )
    parser.add_argument("--block", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--model", choices=SHAPES, default=NAME)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument(
        "--all", action="store_true", help="both models with 20 and with 100 clients, in turn"
    )
    return parser.parse_args()


def main():
    wanted = read_words()
    if (wanted.model, wanted.clients) != (NAME, CLIENTS):  # once more, with other work
        work = {"PEERS_MODEL": wanted.model, "PEERS_CLIENTS": str(wanted.clients)}
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | work)
    if wanted.block:
        return play(wanted.block, wanted.rounds, wanted.folder)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("stopped")
    )  # so that a block's processes are seen off
    cases = []
    for case in measure_cases(wanted) if wanted.all else [measure_case(wanted)]:
        cases.append(case)
        if not wanted.json:
            print("\n".join(show(case)), flush=True)
    if wanted.json:
        print(json.dumps({"cases": cases} if wanted.all else cases[0]))
    return any("failed" in case for case in cases)


if __name__ == "__main__":
    sys.exit(main())
