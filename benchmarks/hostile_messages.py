"""A million hostile messages of many kinds: what they cost, and that only a WireError comes out.

    python benchmarks/hostile_messages.py --messages 1000000
    python benchmarks/hostile_messages.py --messages 16130 --only "header of weights"

Run it in the repository's root, with the tests in it. Messages of single codecs are those of
tests/codecs/test_fuzz.py, whole uploads and downloads those of tests/helpers/hostile_messages.py,
Flower's messages those of tests/helpers/hostile_records.py, headers of safetensors those of
tests/helpers/hostile_headers.py.
Of each kind it reads its share, damaged as they travel or by somebody who knows the format and
puts lengths and checksums right. It stops at anything but a WireError or a right result, and where
reading one message takes more memory than its bound, tensors included. While it reads, the system
does not let the process grow by more than 64 MB.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.codecs import test_fuzz as fuzz
from tests.helpers import hostile_headers as headers
from tests.helpers import hostile_messages as whole
from tests.helpers import hostile_records as records
from tests.helpers.allocations import limit_growth, measure_peaks

from fedsift.codecs import WireError, soft_label_codec, weight_codec
from fedsift.codecs.estimates import ESTIMATE_CODECS

MOST = 256 * 1024  # bytes that reading one message may take
GROWTH = 64 * 2**20  # bytes that the process may grow by
WATCHED = 300  # messages of each kind whose memory is measured, one by one
Message = tuple[bytes, bool]  # and whether its checksum is right without being looked at


class Source(NamedTuple):
    """A kind of message: how it is read, and hostile ones of it."""

    survive: Callable[[Message], bool]  # whether it was taken
    honest: list[Message]
    damage: Callable[[int, int], Iterator[Message]]  # (count, seed)
    oversized: Callable[[], Iterator[Message]]
    copies: int = 2  # what reading may take beside MOST, in lengths of the message


class Cost(NamedTuple):
    seconds: float
    taken: int
    peak: int  # bytes, of an ordinary message
    large: int  # of one of megabytes


def list_sources() -> dict[str, Source]:
    sources = {}
    for text in fuzz.SOFT:
        soft = soft_label_codec(text)
        parts = fuzz.soft_decode(soft), fuzz.check_soft, fuzz.soft_messages(soft)
        sources[f"soft labels, {text}"] = make_source(*parts, fuzz.soft_reseal(soft))
    sources["sums of edge servers"] = make_source(
        fuzz.sums_decode, fuzz.check_sums, fuzz.sums_messages(), fuzz.sums_reseal
    )
    for text in fuzz.WEIGHTS:
        codec = weight_codec(text)
        parts = fuzz.weight_decode(codec), fuzz.check_weights, fuzz.weight_messages(codec)
        sources[f"weights, {text}"] = make_source(*parts, fuzz.weight_reseal(codec))
    sources["weights, updates"] = make_source(
        fuzz.update_decode, fuzz.check_weights, fuzz.update_messages(), fuzz.update_reseal
    )
    sources["mixtures"] = make_source(
        fuzz.mixture_decode, fuzz.check_mixtures, fuzz.mixture_messages(), fuzz.mixture_reseal
    )
    for name, estimate in ESTIMATE_CODECS.items():
        parts = fuzz.estimate_decode(estimate), fuzz.check_estimates
        honest = fuzz.estimate_messages(estimate)
        sources[f"estimates, {name}"] = make_source(*parts, honest, fuzz.estimate_reseal(estimate))
    for name, upload in fuzz.upload_kinds().items():
        sources[f"upload of {name}"] = make_source(*upload)
    kinds = whole.list_kinds() | records.list_kinds() | headers.list_kinds()
    return sources | {name: make_whole(kind) for name, kind in kinds.items()}


def make_source(
    decode: Callable[[bytes], Any],
    check: Callable[[Any], None],
    messages: list[bytes],
    reseal: Callable[[bytes], bytes],
) -> Source:
    """Of one codec: `reseal` makes a right checksum for any payload."""

    def survive(message: Message) -> bool:
        try:
            found = decode(message[0])
        except WireError as error:
            whole.check_error(error)
            return False
        check(found)
        return True

    return Source(
        survive,
        [(message, False) for message in messages],
        lambda count, seed: ((m, False) for m in fuzz.hostile(messages, reseal, count, seed)),
        lambda: ((message, False) for message in fuzz.oversized(messages[0], reseal)),
    )


def make_whole(kind: whole.Kind) -> Source:
    return Source(
        lambda message: whole.survive(kind, *message),
        [(kind.message, False)],
        lambda count, seed: whole.list_hostile(kind, count, seed),
        lambda: whole.list_oversized(kind),
        kind.copies,
    )


def measure_peak(name: str, source: Source, messages: list[Message]) -> int:
    """The most that reading one of these took."""
    peaks = measure_peaks(source.survive, messages)
    for peak, (message, _) in zip(peaks, messages, strict=True):
        most = MOST + source.copies * len(message)
        if peak > most:
            raise SystemExit(
                f"{name}: {peak} bytes for a message of {len(message)}; {most} are allowed"
            )
    return max(peaks)


def measure_time(source: Source, count: int, seed: int) -> tuple[float, int]:
    seconds, taken = 0.0, 0
    for message in source.damage(count, seed):
        begun = time.process_time()
        taken += source.survive(message)
        seconds += time.process_time() - begun
    return seconds, taken


def measure_all(sources: dict[str, Source], each: int, seed: int) -> dict[str, Cost]:
    """Memory first, one by one; then all messages, in a process that cannot grow."""
    seeds = {
        name: int(np.random.default_rng([seed, i]).integers(2**31))
        for i, name in enumerate(sources)
    }
    peaks: dict[str, tuple[int, int]] = {}
    for name, source in sources.items():
        for message in source.honest:  # what is made once is made here
            source.survive(message)
        usual = list(source.damage(min(WATCHED, each), seeds[name] + 1))
        peaks[name] = (
            measure_peak(name, source, usual),
            measure_peak(name, source, list(source.oversized())),
        )
    limit_growth(GROWTH)
    costs = {}
    for name, source in sources.items():
        costs[name] = cost = Cost(*measure_time(source, each, seeds[name]), *peaks[name])
        micro, share = 1e6 * cost.seconds / each, cost.taken / each
        row = f"| {name} | {each:,} | {share:.1%} | {micro:.0f} | {format_peaks(cost)} |"
        print(row, flush=True)
    return costs


def format_peaks(cost: Cost) -> str:
    return f"{cost.peak / 1000:.0f} | {cost.large / 1e6:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=1_000_000, help="over all kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="TEXT", default="", help="kinds with this in their names")
    args = parser.parse_args()
    sources = {kind: one for kind, one in list_sources().items() if args.only in kind}
    if not sources:
        parser.error(f"no kind has {args.only!r} in its name")
    each = -(-args.messages // len(sources))
    print("| kind | messages | taken | microseconds of CPU each | most, kB | of 4 MB, MB |")
    print("|---|---|---|---|---|---|")
    costs = measure_all(sources, each, args.seed)
    total = sum(cost.seconds for cost in costs.values())
    found = list(costs.values())
    most = found[0]._replace(peak=max(c.peak for c in found), large=max(c.large for c in found))
    micro = 1e6 * total / each / len(sources)
    print(f"| all | {each * len(sources):,} | | {micro:.0f} | {format_peaks(most)} |")


if __name__ == "__main__":
    main()
