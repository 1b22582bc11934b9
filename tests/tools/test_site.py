"""The documentation site: pages keep their links, the reference is whole, nothing is loaded from
elsewhere.
"""

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import build_site
import pytest
import site_reference
import typer
from site_pages import Site, place_of

import fedsift
from fedsift import registry
from fedsift.cli import app
from fedsift.cli.ls import list_parts
from fedsift.config.schema import Experiment, describe_keys, section_type
from tests.helpers.cli import done

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path):
    for name in ("README.md", "docs/README.md", "docs/guide.md", "docs/deep/page.md", "a.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# Title\n")
    (tmp_path / "tool.py").write_text("print(1)\n")
    return Site(tmp_path, tmp_path / "out")


def convert(site, text, page="docs/guide.md"):
    source = site.root / page
    site.place(source)
    return site.convert(text, source)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("docs/README.md", "index.md"),
        ("docs/guide.md", "guide.md"),
        ("docs/deep/page.md", "deep/page.md"),
        ("README.md", "repository/index.md"),
        ("tool.py", "repository/tool.py.md"),
        ("a.json", "repository/a.json"),
    ],
)
def test_every_file_has_its_place(site, path, place):
    assert place_of(site.root / path, site.root) == Path(place)


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("[a](deep/page.md#x) [b](../README.md)", "[a](deep/page.md#x) [b](repository/index.md)"),
        ("[a](#here) [b](https://example.org)", "[a](#here) [b](https://example.org)"),
        ("[code](../tool.py)", "[code](repository/tool.py.md)"),
        ("`[a](../README.md)`", "`[a](../README.md)`"),
        ("```\n[a](../README.md)\n- a\n```", "```\n[a](../README.md)\n- a\n```"),
        ("## A *b* c?\n## A b c", "## A *b* c? {#a-b-c}\n## A b c {#a-b-c-1}"),
        ("text\n- a\n- b", "text\n\n- a\n- b"),
        ("text\n| a |\n|---|", "text\n\n| a |\n|---|"),
        ("- a\n  more\n- b", "- a\n  more\n- b"),
    ],
)
def test_a_page_is_changed_only_where_the_site_differs(site, text, becomes):
    assert convert(site, text) == becomes + "\n"


def test_a_link_up_from_a_folder(site):
    assert convert(site, "[a](../guide.md)", "docs/deep/page.md") == "[a](../guide.md)\n"
    assert convert(site, "[a](../../a.json)", "docs/deep/page.md").startswith(
        "[a](../repository/a.json)"
    )


def test_what_a_page_links_to_is_written_too(site):
    (site.root / "docs/guide.md").write_text("[code](../tool.py)\n")
    site.place(site.root / "docs/guide.md")
    site.write_all()
    written = (site.out / "repository/tool.py.md").read_text()
    assert written == "# tool.py\n\n````python\nprint(1)\n````\n"


@pytest.mark.parametrize(
    ("html", "problems"),
    [
        ('<a href="b.html#x">', []),
        ('<a href="b.html#y">', ["a.html: b.html#y leads nowhere"]),
        ('<a href="c.html">', ["a.html: c.html leads nowhere"]),
        ('<a href="https://example.org">', []),
        ('<img src="https://example.org/a.png">', ["a.html: loads https://example.org/a.png"]),
        ('<link href="//example.org/a.css">', ["a.html: loads //example.org/a.css"]),
    ],
)
def test_dead_links_and_foreign_loads_are_found(tmp_path, html, problems):
    (tmp_path / "a.html").write_text(html)
    (tmp_path / "b.html").write_text('<p id="x">')
    assert list(build_site.check_site(tmp_path)) == problems


def test_every_how_to_has_its_title_in_the_navigation():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    (pages,) = (part["How to"] for part in nav if "How to" in part)
    titles = {title for page in pages for title in page}
    own = ("data", "split", "model", "sampler", "aggregator", "codec", "algorithm", "paper")
    assert titles >= {f"Your own {part}" for part in own}
    assert titles >= {"Texts", "Tables", "Hospitals with a random forest", "Sweeps", "A GPU"}
    assert titles >= {"A cluster", "Flower in production", "Privacy"}
    assert "Choosing a method for a byte budget" in titles


# The reference


def test_every_public_name_is_in_the_reference():
    pages = "".join(map(site_reference.python_page, site_reference.PYTHON_PAGES))
    names = [name for name in dir(fedsift) if name != "__version__"]
    assert [name for name in names if pages.count(f"## {name} {{#fedsift.{name}}}") != 1] == []


def test_every_key_is_in_the_reference_with_its_meaning():
    page = site_reference.keys_page()
    for section in ["", *filter(section_type, describe_keys(Experiment))]:
        _, _, text = page.partition(f"## [{section}]" if section else "{#top}")
        text = text.partition("\n## ")[0]
        kind = section_type(section) if section else Experiment
        for key, about in describe_keys(kind).items():
            if section or not section_type(key):
                row = f"| {site_reference.code(key)} |"
                assert row in text and about, (section, key)
                assert site_reference.cell(about) in text


def test_every_command_is_in_the_reference_with_its_options():
    page = site_reference.commands_page()
    root = typer.main.get_command(app)
    commands = dict(site_reference.walk_commands("fedsift", root))
    assert {"fedsift run", "fedsift data get", "fedsift flower up"} <= set(commands)
    for path, command in commands.items():
        _, _, text = page.partition(f" {path} {{#{path.replace(' ', '-')}}}\n")
        text = text.partition("\n#")[0]
        shown = [param for param in command.params if not getattr(param, "hidden", False)]
        for option in (name for param in shown for name in param.opts if "--" in name):
            assert option in text, (path, option)


def test_the_reference_says_what_help_says():
    said = done("compare", "--help").stdout
    first = site_reference.commands_page().partition("{#fedsift-compare}")[2].splitlines()[6]
    assert first and first.split(".")[0][:40] in " ".join(said.split())


def test_every_part_is_in_the_reference():
    page = site_reference.parts_page()
    for kind, parts in list_parts().items():
        text = page.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
        assert [name for name in parts if site_reference.code(name) not in text] == []


def test_the_docstring_of_a_public_function_says_what_its_arguments_mean():
    for name in dir(fedsift):
        function = getattr(fedsift, name)
        if inspect.isfunction(function):
            parameters = list(inspect.signature(function).parameters)
            assert list(registry.read_arguments(function)) == parameters, name


def test_the_site_has_four_parts():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    parts = [next(iter(part)) for part in nav]
    assert parts == ["Home", "Tutorial", "How to", "Reference", "Explanation"]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning():
    script = ROOT / "tools" / "build_site.py"
    built = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    assert (ROOT / "site" / "reference" / "python" / "types.html").is_file()
