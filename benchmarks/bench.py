"""What the foundation costs on this machine: index codes, start-up, and the engines against the plain loop.

    make bench            (or: python benchmarks/bench.py --json)

Everything is repeated and reported as the median with the lowest and highest value. The engines alone:
`fedsift bench engines`; a million clients: `fedsift bench scale`.
"""

import argparse
import json
import subprocess
import sys
from math import comb, log2

import numpy as np

from fedsift import bench
from fedsift.bench import seconds, spread
from fedsift.codecs import indexes

REPEATS = 5


def index_codes():
    rows = []
    for population, size in ((500, 60), (2_000, 400), (8_000, 2_000), (1_000_000, 100_000)):
        sets = [np.sort(np.random.default_rng(s).choice(population, size, replace=False)) for s in range(REPEATS)]
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


def start_up():
    command = [sys.executable, "-m", "fedsift", "--help"]
    return spread([seconds(lambda: subprocess.run(command, capture_output=True, check=True)) for _ in range(REPEATS)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    wanted = parser.parse_args()
    engines = bench.engines(repeats=REPEATS)
    result = {
        "machine": engines["machine"],
        "index_codes": index_codes(),
        "help_s": start_up(),
        "engines": [{"model": case["model"]} | way for case in engines["cases"] for way in case["ways"]],
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
