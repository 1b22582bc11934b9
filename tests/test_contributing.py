"""CONTRIBUTING.md: its blocks make parts that work, tried in a copy of fedsift."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.pages import FILE, ROOT, read_steps, read_words

PAGE = ROOT / "CONTRIBUTING.md"
RUN = """
import sys
import fedsift
from tests.helpers.pages import run_command
print(fedsift.__file__)
for command in sys.argv[1:]:
    run_command(command)
"""


def put(tree: Path, name: str, text: str) -> None:
    """Write a block into its file: what it shows of a registry is added to the whole one."""
    text = re.sub(
        r"^(\w+): [^\n]* = \{\n    \.\.\.\n(.*?)^\}$", r"\1.update({\n\2})", text, flags=re.M | re.S
    )
    text = re.sub(r"^(\w+) = \[\n(.*?)    \.\.\.,\n\]$", r"\1 += [\n\2]", text, flags=re.M | re.S)
    assert "    ..." not in text, name
    (tree / name).parent.mkdir(exist_ok=True)
    with open(tree / name, "a") as file:
        file.write(f"\n\n{text}")


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of fedsift and its tests with all that the page adds."""
    tree = tmp_path_factory.mktemp("copy")
    for name in ("src", "tests", "tools"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    for step in read_steps(PAGE):
        if step.kind == "file":
            _, *pairs = FILE.split(step.text)
            for name, text in zip(pairs[::2], pairs[1::2], strict=True):
                put(tree, name, text)
    return tree


def run(tree: Path, *words: str) -> str:
    path = os.pathsep.join([str(tree / "src"), str(tree)])
    env = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tree, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_tests_on_the_page_pass(changed):
    blocks = [step.text for step in read_steps(PAGE) if step.name.startswith("tests/")]
    names = [name for text in blocks for name in re.findall(r"^def (test_\w+)", text, re.M)]
    files = sorted({step.name for step in read_steps(PAGE) if step.name.startswith("tests/")})
    assert len(names) >= 8
    how = ["-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", " or ".join(names)]
    assert re.search(rf"\b{len(names)} passed", run(changed, *how, *files))


@pytest.mark.slow
def test_the_commands_on_the_page_run(changed):
    commands = [step.text for step in read_steps(PAGE) if step.text.startswith("fedsift")]
    assert len(commands) >= 10
    assert str(changed) in run(changed, "-c", RUN, *commands)


def test_the_files_that_the_page_tests_are_there(changed):
    commands = [step.text for step in read_steps(PAGE) if step.text.startswith("pytest")]
    assert commands
    for command in commands:
        assert all((changed / word).exists() for word in read_words(command)[1:]), command


def test_the_paper_on_the_page_is_the_one_that_is_tested():
    (block,) = (step.text for step in read_steps(PAGE) if "/papers/tiny/" in step.name)
    tested = (ROOT / "tests/helpers/tiny_paper/__init__.py").read_text()
    assert block.partition("\n")[2] == tested.partition('"""\n\n')[2]
