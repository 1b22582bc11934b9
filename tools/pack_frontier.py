"""Pack the committed reports on the frontier into the package, for `fedsift advise`.

    python tools/pack_frontier.py

Run it after results/sift/*/frontier.json has changed.
"""

from pathlib import Path

from fedsift.files import write_atomic
from fedsift.papers.sift import PAPER, measured

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    file = ROOT / "src" / "fedsift" / "papers" / "sift" / measured.FILE
    write_atomic(file, measured.pack_reports(PAPER, ROOT / "results" / PAPER.name).encode())
    print(f"{file.relative_to(ROOT)} has {len(measured.read_measured())} settings")


if __name__ == "__main__":
    main()
