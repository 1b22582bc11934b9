"""Prove that the built wheel alone is enough.

    python tools/check_wheel.py [DIST]

The wheel in DIST must hold every file of the package. It is then installed with the tested pins in
a new virtual environment, and runs `fedsift --version` and a short demo outside the checkout.
"""

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "fedsift"
# What would let the new environment see the checkout or another environment.
LEAKS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def main(arguments: list[str]) -> None:
    wheel = find_wheel(Path(arguments[0] if arguments else ROOT / "dist"))
    if missing := find_missing(wheel):
        sys.exit(f"{wheel.name} lacks {', '.join(missing)}; see package-data in pyproject.toml")
    with tempfile.TemporaryDirectory(prefix="fedsift-wheel-") as folder:
        try_wheel(wheel, Path(folder))
    print(f"{wheel.name} runs by itself")


def find_wheel(folder: Path) -> Path:
    wheels = sorted(folder.glob("fedsift-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"expected one wheel of fedsift in {folder}, found {len(wheels)}")
    return wheels[0].resolve()


def find_missing(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    names = (path.relative_to(PACKAGE.parent).as_posix() for path in files)
    return sorted(name for name in names if name not in packed)


def try_wheel(wheel: Path, folder: Path) -> None:
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    binaries = environment / ("Scripts" if os.name == "nt" else "bin")
    print(f"Installing {wheel.name} into a new environment: a few minutes", flush=True)
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(folder, binaries / "python", *install, "-c", ROOT / "constraints.txt", wheel)
    where = run(folder, binaries / "python", "-c", "import fedsift; print(fedsift.__file__)")
    if not Path(where.strip()).is_relative_to(environment):
        sys.exit(f"fedsift was imported from {where.strip()}, not from the wheel")
    version = wheel.name.split("-")[1]
    if (said := run(folder, binaries / "fedsift", "--version").strip()) != f"fedsift {version}":
        sys.exit(f"fedsift --version says {said!r}; the wheel has version {version}")
    print(run(folder, binaries / "fedsift", "demo", "--rounds", "2", "--seeds", "1"))


def run(folder: Path, *command: str | Path) -> str:
    """What the command prints; the program ends here if the command fails."""
    clean = {name: value for name, value in os.environ.items() if name not in LEAKS}
    # Errors pass through to the terminal.
    done = subprocess.run(command, cwd=folder, env=clean, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        text = " ".join(map(str, command))
        sys.exit(f"{done.stdout}\nfailed with exit code {done.returncode}: {text}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
