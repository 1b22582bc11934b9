"""The files around the package agree with it."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

import fedsift

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def load_yaml(path):
    return yaml.safe_load((ROOT / path).read_text())


def pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {name.lower().replace("_", "-"): version for name, version in pins.items()}


def test_the_citation_has_the_version_and_the_licence():
    citation = load_yaml("CITATION.cff")
    assert citation["version"] == fedsift.__version__
    assert citation["license"] == PROJECT["license"]


def test_every_dependency_is_pinned_to_a_version_that_it_allows():
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *(text for extra in extras.values() for text in extra)]
    pins = pinned()
    for need in map(Requirement, texts):
        assert need.name == "fedsift" or need.specifier.contains(pins[need.name])


def test_the_workflow_tests_every_python_that_the_package_names():
    found = (re.search(r":: (3\.\d+)$", line) for line in PROJECT["classifiers"])
    named = [match[1] for match in found if match]
    matrix = load_yaml(".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_the_issue_forms_have_what_github_asks_for():
    forms = [p for p in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if p.stem != "config"]
    assert {p.stem for p in forms} == {"bug_report", "feature_request", "new_method"}
    for form in forms:
        content = load_yaml(form)
        assert content["name"] and content["description"]
        ids = [field["id"] for field in content["body"] if field["type"] != "markdown"]
        assert ids and len(ids) == len(set(ids))
