"""What one message costs: CPU microseconds and bytes at a client, an edge server and the server.

    python benchmarks/messages.py

For each size: a client encodes its soft labels; an edge server reads an upload and adds it up, and
encodes its sums; the server reads the sums of an edge. CPU time of one thread, the median (lowest
to highest) of five repeats. Models, training and the network are not in it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from fedsift.aggregators import sums
from fedsift.algorithms.edges import Edges
from fedsift.codecs import soft_label_codec
from fedsift.environment import environment
from fedsift.seeding import rng, subset
from fedsift.types import Link, SoftLabels

SIZES = ((500, 10, 60), (2000, 10, 400), (10_000, 100, 1000))  # public samples, classes, budget
CLIENTS = 200  # of an edge, in a round


def measure(work: Callable[[], Any], repeats: int, least: float) -> tuple[float, float, float]:
    """CPU microseconds of one call: the median, the lowest and the highest."""
    found = []
    for _ in range(repeats):
        begun, times = time.process_time(), 0
        while (took := time.process_time() - begun) < least:
            work()
            times += 1
        found.append(1e6 * took / times)
    return median(found), min(found), max(found)


def measure_size(
    samples: int, classes: int, budget: int, codec: str, repeats: int, least: float
) -> dict[str, Any]:
    link, up, edges = Link(0, samples, classes), soft_label_codec(codec), Edges(50)
    wide = Link(0, samples, classes, votes=4.0 * CLIENTS)
    uploads = []
    for client in range(CLIENTS):
        generator = rng(0, client)
        rows = generator.dirichlet(np.full(classes, 0.3), budget).astype(np.float32)
        uploads.append((client, SoftLabels(subset(generator, samples, budget), rows)))
    messages = [up.encode(labels, link) for _, labels in uploads]
    arrived = [(client, up.decode(message, link)) for client, message in enumerate(messages)]
    partial = sums.add_up(arrived, samples, classes)
    summed = edges.encode(partial, wide)

    def join() -> None:
        heard = ((client, up.decode(message, link)) for client, message in enumerate(messages))
        sums.add_up(heard, samples, classes)

    def read() -> None:
        sums.merge([edges.decode(summed, wide)], samples, classes)

    joined = measure(join, repeats, least)
    return {
        "public": samples,
        "classes": classes,
        "budget": budget,
        "codec": codec,
        "upload_bytes": len(messages[0]),
        "edge_bytes": len(summed),
        "client_encodes_us": measure(lambda: up.encode(uploads[0][1], link), repeats, least),
        "edge_reads_and_adds_us": tuple(took / CLIENTS for took in joined),
        "edge_encodes_us": measure(lambda: edges.encode(partial, wide), repeats, least),
        "server_reads_us": measure(read, repeats, least),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="CPU time of each repeat")
    asked = parser.parse_args()
    rows = [
        measure_size(*size, codec, asked.repeats, asked.seconds)
        for size in SIZES
        for codec in ("float32", "quantized(4)", "hard")
    ]
    print(json.dumps({"machine": environment(), "clients": CLIENTS, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
