"""Broken links in Markdown are found, and only those."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "check_links.py"
GUIDE = "# Guide\n## What is *new*?\n## Again\n## Again\n<a id='mark'></a>\n"


@pytest.fixture
def project(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").write_text(GUIDE)
    return tmp_path


def check(project, text):
    (project / "README.md").write_text(text)
    return subprocess.run([sys.executable, SCRIPT, project], capture_output=True, text=True)


@pytest.mark.parametrize(
    "text",
    [
        "[a](docs/guide.md) and [b](docs) and [c](<docs/guide.md> 'title')",
        "[a](docs/guide.md#what-is-new) [b](docs/guide.md#again-1) [c](docs/guide.md#mark)",
        "# Here\n[a](#here)",
        "[a](https://example.org/none) [b](mailto:nobody@example.org)",
        "```\n[a](none.md)\n```\nand `[a](none.md)`",
        "[a][1]\n\n[1]: docs/guide.md",
    ],
)
def test_a_right_link_passes(project, text):
    result = check(project, text)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "2 Markdown files: all relative links resolve\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\n[a](none.md)", "README.md:2: none.md: no such file"),
        ("![a](none.png)", "README.md:1: none.png: no such file"),
        ('<img src="none.png">', "README.md:1: none.png: no such file"),
        ("[1]: none.md", "README.md:1: none.md: no such file"),
        ("[a](../other.md)", "README.md:1: ../other.md: outside the project"),
        ("[a](docs/guide.md#old)", "README.md:1: docs/guide.md#old: no such heading"),
        ("[a](docs/guide.md#again-2)", "README.md:1: docs/guide.md#again-2: no such heading"),
        ("```\n```\n[a](none.md)", "README.md:3: none.md: no such file"),
    ],
)
def test_a_broken_link_is_named_with_its_line(project, text, problem):
    result = check(project, text)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"{problem}\n")


def test_ignored_pages_are_left_out(project):
    (project / ".gitignore").write_text("runs/\n")
    (project / "runs").mkdir()
    (project / "runs" / "report.md").write_text("[a](none.md)")
    assert check(project, "# Title").returncode == 0
