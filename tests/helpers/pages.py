"""What a page of the documentation tells a reader to do, in order: code, files and commands."""

import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.cli import done

STEP = re.compile(r"^```(?P<kind>\w*)\n(?P<block>.*?)^```$|^    (?P<line>\S[^\n]*)$", re.S | re.M)
FILE = re.compile(r"# (\w+\.(?:py|toml))\n")  # the first line of a block that belongs into a file
PROGRAMS = ("fedsift", "make", "source", "mkdir", "pip", "python", "git", "flower")
SHORT = ["rounds=1", "local.epochs=1", "distill.epochs=1", "--quiet"]  # the last value counts


@dataclass(frozen=True)
class Step:
    kind: str  # "python", "file" or "command"
    text: str
    name: str = ""  # of the file


def read_steps(page: Path) -> list[Step]:
    steps = []
    for found in STEP.finditer(page.read_text()):
        if found["line"] is not None or found["kind"] in ("", "bash"):
            lines = (found["line"] or found["block"] or "").splitlines()
            steps += [Step("command", line) for line in lines if is_command(line)]
        elif named := FILE.match(found["block"]):
            steps.append(Step("file", found["block"], named[1]))
        elif found["kind"] == "python":
            steps.append(Step("python", found["block"]))
    return steps


def is_command(line: str) -> bool:
    return re.split(r"[ -]", line, maxsplit=1)[0] in PROGRAMS


def read_words(command: str) -> list[str]:
    """The words of a command as a shell has them: without comments, patterns filled in."""
    plain = re.sub(r" > \S+$", "", command)
    words = []
    for word in shlex.split(plain, comments=True):
        found = sorted(map(str, Path().glob(word))) if "*" in word and "=" not in word else []
        words += found or [word]
    return words


def follow(page: Path, folder: Path, left_out: Iterable[str]) -> int:
    """Do what the page says, in `folder`, with trainings cut short; returns how many steps.

    left_out: patterns that begin commands, or occur in code, that are not run
    """
    names: dict[str, object] = {"__name__": "example"}
    steps = read_steps(page)
    for step in steps:
        if step.kind == "file":
            with open(folder / step.name, "a") as file:
                file.write(step.text)
        elif is_left_out(step, left_out):
            continue
        elif step.kind == "python":
            exec(compile(step.text, str(page), "exec"), names)
        else:
            forget_modules(folder)
            run_command(step.text)
    return len(steps)


def is_left_out(step: Step, patterns: Iterable[str]) -> bool:
    find = re.search if step.kind == "python" else re.match
    return any(find(pattern, step.text) for pattern in patterns)


def run_command(command: str) -> None:
    program, verb, *rest = read_words(command)
    assert program == "fedsift", command
    short = SHORT if verb == "run" else SHORT[:3] if verb == "audit" else []
    done(verb, *rest, *(short if "--resume" not in rest else ["--quiet"]))


def forget_modules(folder: Path) -> None:
    """So that a file that has grown is imported again."""
    for file in folder.glob("*.py"):
        sys.modules.pop(file.stem, None)
