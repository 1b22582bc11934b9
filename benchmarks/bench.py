"""What the foundation costs on this machine: codes of indexes and weights, start-up, and the
engines against the plain loop.

    make bench            (or: python benchmarks/bench.py --json)

Everything is repeated and reported as the median with the lowest and highest value. The engines
alone: `fedsift bench engines`; a million clients: `fedsift bench scale`.
"""

import argparse
import json
import subprocess
import sys
from math import comb, log2

import numpy as np
import torch

from fedsift import bench, models
from fedsift.bench import seconds, spread
from fedsift.codecs import indexes
from fedsift.codecs.updates import Qsgd

REPEATS = 5


def index_codes():
    rows = []
    for population, size in ((500, 60), (2_000, 400), (8_000, 2_000), (1_000_000, 100_000)):
        sets = [
            np.sort(np.random.default_rng(s).choice(population, size, replace=False))
            for s in range(REPEATS)
        ]
        codes = [indexes.encode(chosen, population) for chosen in sets]
        ideal = log2(comb(population, size))
        rows.append(
            {
                "indexes": f"{size:,} of {population:,}",
                "bytes": len(codes[0]),
                "over_ideal_percent": round(100 * (max(map(len, codes)) * 8 / ideal - 1), 3),
                "encode_s": spread([seconds(indexes.encode, c, population) for c in sets]),
                "decode_s": spread([seconds(indexes.decode, c, population, size) for c in codes]),
            }
        )
    return rows


def weight_codes():
    """A ResNet-8 that has moved by 1 % of a standard normal, from the weights both ends have."""
    base = models.initial_state(models.make_model("resnet8", (3, 32, 32), 10), 0)
    generator = torch.Generator().manual_seed(0)
    moved = {
        name: value + 0.01 * torch.randn(value.shape, generator=generator)
        if value.is_floating_point()
        else value
        for name, value in base.items()
    }
    rows = []
    for bits in (2, 4, 8):
        codec = Qsgd(bits)
        message = codec.encode(moved, 0, 100, base, (0,))
        encode = [seconds(codec.encode, moved, 0, 100, base, (0,)) for _ in range(REPEATS)]
        decode = [seconds(codec.decode, message, 0, base) for _ in range(REPEATS)]
        rows.append(
            {
                "bits": bits,
                "bytes": len(message),
                "encode_s": spread(encode),
                "decode_s": spread(decode),
            }
        )
    return rows


def start_up():
    command = [sys.executable, "-m", "fedsift", "--help"]
    return spread(
        [
            seconds(lambda: subprocess.run(command, capture_output=True, check=True))
            for _ in range(REPEATS)
        ]
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    wanted = parser.parse_args()
    engines = bench.engines(repeats=REPEATS)
    result = {
        "machine": engines["machine"],
        "index_codes": index_codes(),
        "weight_codes": weight_codes(),
        "help_s": start_up(),
        "engines": [
            {"model": case["model"]} | way for case in engines["cases"] for way in case["ways"]
        ],
    }
    if wanted.json:
        print(json.dumps(result))
        return
    for section, content in result.items():
        print(f"\n{section}")
        for row in content if isinstance(content, list) else [content]:
            print("  " + "  ".join(f"{key}: {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
