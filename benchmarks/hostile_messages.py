"""A million hostile messages of many kinds: what they cost, and that only a WireError comes out.

    python benchmarks/hostile_messages.py --messages 1000000

Run it in the repository's root, with the tests in it: the messages are those of
tests/codecs/test_fuzz.py. Of each kind it decodes its share, damaged as they travel or by somebody
who seals them again. It stops at anything but a WireError or a valid result, and where decoding
one message takes more memory than its bound.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.codecs import test_fuzz as fuzz

from fedsift.codecs import WireError, soft_label_codec, weight_codec
from fedsift.codecs.estimates import ESTIMATE_CODECS

MOST = 256 * 1024  # bytes that decoding one message may take, beside the message
WATCHED = 300  # messages of each kind whose memory is measured, one by one


class Kind(NamedTuple):
    decode: Callable[[bytes], Any]
    check: Callable[[Any], None]  # of what was decoded
    messages: list[bytes]  # honest ones
    reseal: Callable[[bytes], bytes]  # a right checksum for any payload


class Cost(NamedTuple):
    seconds: float
    taken: int
    peak: int  # bytes


def list_kinds() -> dict[str, Kind]:
    kinds = {}
    for text in fuzz.SOFT:
        soft = soft_label_codec(text)
        parts = fuzz.soft_decode(soft), fuzz.check_soft, fuzz.soft_messages(soft)
        kinds[f"soft labels, {text}"] = Kind(*parts, fuzz.soft_reseal(soft))
    for text in fuzz.WEIGHTS:
        codec = weight_codec(text)
        parts = fuzz.weight_decode(codec), fuzz.check_weights, fuzz.weight_messages(codec)
        kinds[f"weights, {text}"] = Kind(*parts, fuzz.weight_reseal(codec))
    kinds["weights, updates"] = Kind(
        fuzz.update_decode, fuzz.check_weights, fuzz.update_messages(), fuzz.update_reseal
    )
    kinds["mixtures"] = Kind(
        fuzz.mixture_decode, fuzz.check_mixtures, fuzz.mixture_messages(), fuzz.mixture_reseal
    )
    for name, estimate in ESTIMATE_CODECS.items():
        parts = fuzz.estimate_decode(estimate), fuzz.check_estimates
        honest = fuzz.estimate_messages(estimate)
        kinds[f"estimates, {name}"] = Kind(*parts, honest, fuzz.estimate_reseal(estimate))
    kinds |= {f"upload of {name}": Kind(*parts) for name, parts in fuzz.upload_kinds().items()}
    return kinds


def damage(kind: Kind, count: int, seed: int) -> Iterator[bytes]:
    yield from fuzz.hostile(kind.messages, kind.reseal, count, seed)


def survive(kind: Kind, message: bytes) -> bool:
    """Whether it was taken."""
    try:
        found = kind.decode(message)
    except WireError:
        return False
    kind.check(found)
    return True


def measure_peak(kind: Kind, seed: int) -> int:
    """The most that decoding one of some messages took."""
    messages = [*fuzz.oversized(kind.messages[0], kind.reseal), *damage(kind, WATCHED, seed)]
    peak = 0
    tracemalloc.start()
    try:
        for message in messages:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            survive(kind, message)
            peak = max(peak, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return peak


def measure(kind: Kind, count: int, seed: int) -> Cost:
    for message in kind.messages:  # what is made once is made here
        survive(kind, message)
    seconds, taken = 0.0, 0
    for message in damage(kind, count, seed):
        begun = time.process_time()
        taken += survive(kind, message)
        seconds += time.process_time() - begun
    return Cost(seconds, taken, measure_peak(kind, seed + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=1_000_000, help="over all kinds")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    kinds = list_kinds()
    each = -(-args.messages // len(kinds))
    print("| kind | messages | taken | microseconds of CPU each | most memory, kB |")
    print("|---|---|---|---|---|")
    costs = []
    for name, kind in kinds.items():
        cost = measure(
            kind, each, int(np.random.default_rng([args.seed, len(costs)]).integers(2**31))
        )
        costs.append(cost)
        micro, share = 1e6 * cost.seconds / each, cost.taken / each
        row = f"| {name} | {each:,} | {share:.1%} | {micro:.0f} | {cost.peak / 1000:.0f} |"
        print(row, flush=True)
        if cost.peak > MOST:
            raise SystemExit(f"{name}: {cost.peak} bytes for one message; {MOST} are allowed")
    total = sum(cost.seconds for cost in costs)
    print(f"| all | {each * len(kinds):,} | | {1e6 * total / each / len(kinds):.0f} | |")


if __name__ == "__main__":
    main()
