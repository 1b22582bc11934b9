"""What a page of the documentation tells a reader to do, in order: code, files and commands."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.helpers.cli import done
from tests.helpers.runs import TINY

ROOT = Path(__file__).parents[2]
PART = re.compile(
    r"^```(?P<kind>\w*)\n(?P<fenced>.*?)^```$"
    r"|(?<=\n\n)(?P<indented>(?: {4,}\S[^\n]*\n)+)"
    r"|^#+ (?P<section>[^\n]*)$"
    r"|^\*Not run by a test: what needs (?P<needs>[^\n]*)\.\*$",
    re.S | re.M,
)
FILE = re.compile(r"# ([\w/]+\.(?:py|toml))\n")  # the first line of a block that is put into a file
PROGRAMS = {
    *("fedsift", "flower-superlink", "flower-supernode", "nginx", "ray"),
    *("cd", "export", "install", "make", "mkdir", "source"),
    *("git", "pip", "pre-commit", "pytest", "python", "python3"),
}
# What is appended to commands that begin so; of two values of a setting the last one counts.
SHORT = {
    "fedsift run ": "rounds=1 local.epochs=1 distill.epochs=1 --quiet",
    "fedsift run cifar10": "data.private=60 data.public=40 data.test=40 clients=3 cohort=2 "
    "model=mlp",
    "fedsift run cifar10-fas": "budget=10",
    "fedsift run .*validation=10000": "data.validation=20",
    "fedsift run hospitals": "--seeds 1",
    "fedsift run .*simclr": "start=simclr(epochs=1) --seeds 1",
    "fedsift watch": "--port 0",
    "fedsift audit": "rounds=1 local.epochs=1 distill.epochs=1",
    "fedsift bench engines": "--model mlp --clients 2 --samples 8 --epochs 1 --repeats 1",
    "fedsift reproduce fas-icc2022 .*--quick": f"--seeds 1 rounds=1 {' '.join(TINY)} budget=6 "
    "--only *-none",
    "fedsift reproduce robustness": "--quick --seeds 1 rounds=1 local.epochs=1 distill.epochs=1",
    "fedsift reproduce robustness grid": "--only fas+trust*",
}


@dataclass(frozen=True)
class Step:
    kind: str  # "python", "file" or "command"
    text: str
    name: str = ""  # of the file
    section: str = ""


def read_steps(page: Path) -> list[Step]:
    steps, section = [], ""
    for found in PART.finditer(page.read_text()):
        section = found["section"] or section
        steps += [replace(step, section=section) for step in read_block(found)]
    return steps


def read_block(found: re.Match[str]) -> list[Step]:
    kind, block = found["kind"], found["fenced"] or found["indented"]
    if block is None or kind == "text":
        return []
    if kind in ("python", "toml"):
        named = FILE.match(block)
        return [Step("file", block, named[1]) if named else Step(kind, block)]
    assert kind in (None, "", "bash"), f"a block of kind {kind}"
    lines = block.replace("\\\n", " ").splitlines()
    commands = [command.strip() for line in lines for command in line.split(" && ")]
    strange = [command for command in commands if not is_command(command)]
    assert not strange, f"no commands, so mark the block as text: {strange}"
    return [Step("command", command) for command in commands]


def read_needs(page: Path) -> dict[str, str]:
    """What the commands of a section need that are not run, as the page says."""
    needs, section = {}, ""
    for found in PART.finditer(page.read_text()):
        section = found["section"] or section
        if found["needs"]:
            needs[section] = found["needs"]
    return needs


def is_command(line: str) -> bool:
    return Path(line.split(maxsplit=1)[0]).name in PROGRAMS


def find_command(page: str, beginning: str) -> str:
    """The one command of a page that begins so, for a test that runs it in a way of its own."""
    texts = [step.text for step in read_steps(ROOT / page) if step.kind == "command"]
    (command,) = (text for text in texts if text.startswith(beginning))
    return command


def read_walk(page: Path = ROOT / "docs/deploy.md") -> dict[int, list[str]]:
    """The commands of each step of a walk over several machines; 0: in every terminal."""
    _, every, *parts = re.split(r"^\*\*Step \d, |^In every terminal:", page.read_text(), flags=re.M)
    texts = [every, *(part.split("\n### ")[0] for part in parts)]
    return {
        number: re.findall(r"^    (.*)$", text, re.MULTILINE) for number, text in enumerate(texts)
    }


def read_words(command: str) -> list[str]:
    """The words of a command as a shell has them: without comments, patterns filled in."""
    plain = re.sub(r" > \S+$", "", command)
    words = []
    for word in shlex.split(plain, comments=True):
        found = sorted(map(str, Path().glob(word))) if "*" in word and "=" not in word else []
        words += found or [word]
    return words


def follow(page: Path, left_out: Iterable[str]) -> int:
    """Do what the page says, in the current folder, with trainings cut short.

    left_out: patterns that begin commands that are not run
    Returns how many steps there are.
    """
    names: dict[str, object] = {"__name__": "example"}
    steps = read_steps(page)
    for step in steps:
        if step.kind == "file":
            with open(step.name, "a") as file:
                file.write(step.text)
        elif step.kind == "python":
            exec(compile(step.text, str(page), "exec"), names)
        elif not any(re.match(pattern, step.text) for pattern in left_out):
            forget_modules(Path())
            run_command(step.text)
    return len(steps)


def run_command(command: str) -> None:
    program, *words = read_words(command)
    if program == "fedsift":
        done(*words, *shorten(command))
    elif program == "cd":
        os.chdir(*words)
    else:
        subprocess.run(["bash", "-c", command], check=True)


def shorten(command: str) -> list[str]:
    fits = [more for beginning, more in SHORT.items() if re.match(beginning, command)]
    return ["--quiet"] if "--resume" in command else " ".join(fits).split()


def read_recipe(target: str) -> list[str]:
    """The words of what a target of the Makefile does once the environment is set up."""
    how = ["make", "--dry-run", "-C", str(ROOT), target]
    recipe = subprocess.run(how, capture_output=True, text=True, check=True).stdout
    (words,) = re.findall(r"^\.venv/bin/fedsift (.*)$", recipe, re.M)
    return shlex.split(words)


def forget_modules(folder: Path) -> None:
    """So that a file that has grown is imported again."""
    for file in folder.glob("*.py"):
        sys.modules.pop(file.stem, None)
