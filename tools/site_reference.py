"""The reference pages of the site, made from fedsift itself: nothing here is written by hand.

Commands come from the command line's own help, keys from the schema of experiments, names of parts
from the registries, and the Python pages from docstrings, signatures and the comments of fields.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import typer

import fedsift
from fedsift import config, registry
from fedsift.cli import app
from fedsift.cli.ls import list_parts
from fedsift.config.schema import Experiment, describe_keys, section_type

# Page -> the modules of fedsift whose public names it has.
PYTHON_PAGES = {
    "data": ("data",),
    "federations": ("federation", "config", "engines", "runs", "sweeps", "turns", "seeding"),
    "algorithms": ("algorithms",),
    "parts": (
        *("samplers", "aggregators", "codecs", "graphs", "attacks"),
        *("models", "estimators", "pretexts", "numerics"),
    ),
    "types": ("types",),
}
FIELD = re.compile(r"^ {4}(\w+): .*?(?:  # (.*))?$")
KINDS = {"start": "starts", "pretexts": "starts"}


def write_reference(folder: Path) -> list[Path]:
    """Write all generated pages; returns their paths."""
    pages = {
        "commands.md": commands_page(),
        "keys.md": keys_page(),
        "parts.md": parts_page(),
        **{f"python/{name}.md": python_page(name) for name in PYTHON_PAGES},
    }
    for name, text in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [folder / name for name in pages]


# Markdown


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    if len(lines) == 1:
        return ""
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join("| " + " | ".join(line) + " |\n" for line in lines) + "\n"


def cell(text: Any) -> str:
    """Text in a table: on one line, and nothing in it is read as a column or as HTML."""
    flat = " ".join(str(text or "").split()).replace("|", "\\|")
    return flat.replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")


def code(text: Any) -> str:
    return f"<code>{cell(text).replace('_', '&#95;')}</code>" if str(text) else ""


# Commands


def commands_page() -> str:
    root = typer.main.get_command(app)
    parts = ["# Commands\n\nMade from the help of the commands, as `fedsift COMMAND --help`.\n\n"]
    parts += [show_command(path, command) for path, command in walk_commands("fedsift", root)]
    return "".join(parts)


def walk_commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            if not inner.hidden:
                yield from walk_commands(f"{path} {name}", inner)


def show_command(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    text = plain_help(command.help or "")
    options = (
        (code(name), cell(plain_help(about)))
        for name, about in filter(None, (help_record(p, context) for p in command.params))
    )
    level = "#" * (1 + len(path.split()))
    anchor = path.replace(" ", "-")
    return f"{level} {path} {{#{anchor}}}\n\n```text\n{usage}\n```\n\n{text}\n\n" + table(
        ("argument or option", "meaning"), options
    )


def help_record(parameter: click.Parameter, context: click.Context) -> tuple[str, str] | None:
    if getattr(parameter, "hidden", False):
        return None
    if isinstance(parameter, click.Argument):
        return parameter.make_metavar(context), getattr(parameter, "help", "") or ""
    return parameter.get_help_record(context)


def plain_help(text: str) -> str:
    """Without the marks by which a terminal shows bold and dim text."""
    bare = re.sub(r"\[/?(?:bold|dim|cyan|green|yellow|red)\]", "", text)
    return bare.replace("\\[", "[").replace("\b", "").strip()


# Keys


def keys_page() -> str:
    short = {full: name for name, full in config.SHORT.items()}
    parts = [
        "# Keys of an experiment\n\nMade from the schema. `fedsift new PRESET FILE.toml` writes"
        " them all into a file of your own.\nOn the command line a key is `section.key=value`,"
        " or its short name.\n\n## Outside of any section {#top}\n\n"
    ]
    names = {"": Experiment} | {
        key: kind for key in describe_keys(Experiment) if (kind := section_type(key))
    }
    for section, kind in names.items():
        parts.append(f"## [{section}] {{#{section}}}\n\n" if section else "")
        rows = (
            (code(key), cell(about) + name_short(short.get(f"{section}.{key}")), code(shown))
            for key, shown, about in list_keys(kind)
            if section or not section_type(key)
        )
        parts.append(table(("key", "meaning", "default"), rows))
    return "".join(parts)


def name_short(short: str | None) -> str:
    return f"; on the command line also {code(short)}" if short else ""


def list_keys(section: Any) -> Iterator[tuple[str, str, str]]:
    defaults = section() if section is not Experiment else Experiment()
    for key, about in describe_keys(section).items():
        value = getattr(defaults, key)
        shown = value if isinstance(value, str) else repr(value)
        yield key, "" if value is None else shown, about or ""


# Names of parts


def parts_page() -> str:
    parts = ["# Names of parts\n\nMade from the registries, as `fedsift ls`.\n\n"]
    for kind, entries in list_parts().items():
        rows = ((code(name), cell(text)) for name, text in entries.items())
        parts.append(f"## {kind}\n\n" + table(("name", "what it is"), rows))
    return "".join(parts)


# Python


def python_page(page: str) -> str:
    title = f"# Python: {page}\n\nMade from the docstrings of fedsift's public names.\n\n"
    return title + "".join(show_name(name) for name in public_names(page))


def public_names(page: str) -> list[str]:
    modules = PYTHON_PAGES[page]
    names = [name for name, module in name_modules().items() if module in modules]
    return sorted(names, key=lambda name: modules.index(name_modules()[name]))


@cache
def name_modules() -> dict[str, str]:
    """Public name -> the first part of the module that it comes from."""
    found = {}
    for name, (module, attribute) in read_exports().items():
        path = f"{module}.{attribute}" if module == "fedsift" else module
        found[name] = path.split(".")[1]
    return found


def read_exports() -> dict[str, tuple[str, str]]:
    """Public name -> (module, name in it)."""
    found: dict[str, tuple[str, str]] = vars(fedsift)["_exports"]()
    return found


def show_name(name: str) -> str:
    thing = getattr(fedsift, name)
    heading = f"## {name} {{#fedsift.{name}}}\n\n"
    if isinstance(thing, ModuleType):
        return heading + show_module(thing)
    if isinstance(thing, dict):
        return heading + show_registry(name, thing)
    if inspect.isclass(thing) and not hasattr(thing, "__origin__"):
        return heading + show_class(name, thing)
    if inspect.isfunction(thing):
        return heading + show_function(name, thing)
    return heading + show_alias(name)


def show_function(name: str, function: Any) -> str:
    about = registry.read_arguments(function)
    rows = ((code(key), cell(text)) for key, text in about.items())
    return (
        show_signature(name, inspect.signature(function))
        + prose(function, about)
        + table(("argument", "meaning"), rows)
    )


def show_signature(name: str, signature: inspect.Signature) -> str:
    line = f"{name}{signature}".replace("'", "")
    if len(line) > 90:
        inside = [str(parameter).replace("'", "") for parameter in signature.parameters.values()]
        back = signature.return_annotation
        arrow = "" if back is inspect.Signature.empty else f" -> {back}".replace("'", "")
        line = f"{name}(\n    " + ",\n    ".join(inside) + f",\n){arrow}"
    return f"```python\n{line}\n```\n\n"


def prose(thing: Any, about: dict[str, str]) -> str:
    """The docstring without its lines on arguments, which become a table."""
    lines, inside = [], False
    for line in (inspect.getdoc(thing) or "").splitlines():
        name, colon, _ = line.partition(":")
        inside = bool(colon and name in about) or (inside and line.startswith("    "))
        if not inside:
            lines.append(line)
    return escape("\n".join(lines).strip()) + "\n\n"


def escape(text: str) -> str:
    return "\n".join(
        line if line.startswith("    ") else re.sub(r"(?<![`\w])([<*_])|([<*])", r"\\\1\2", line)
        for line in text.splitlines()
    )


def show_class(name: str, kind: type) -> str:
    about = registry.read_arguments(kind) if dataclasses.is_dataclass(kind) else {}
    rows = [
        (code(field), code(hint), code(default), cell(about.get(field) or text))
        for field, hint, default, text in list_fields(kind)
    ]
    doc = kind.__doc__ or ""
    written = prose(kind, about) if not doc.startswith(f"{name}(") else ""
    return written + table(("field", "type", "default", "meaning"), rows) + show_methods(kind)


def list_fields(kind: type) -> Iterator[tuple[str, str, str, str]]:
    if kind is Experiment:
        yield from ((key, "", "", text or "") for key, text in describe_keys(kind).items())
        return
    if not dataclasses.is_dataclass(kind):
        return
    comments = read_comments(kind)
    for field in dataclasses.fields(kind):
        if field.name.startswith("_"):
            continue
        missing = field.default is dataclasses.MISSING
        default = "" if missing else repr(field.default)
        text = field.metadata.get("about") or comments.get(field.name, "")
        yield field.name, str(field.type), default if len(default) < 60 else "", text


def read_comments(kind: type) -> dict[str, str]:
    """What stands behind the fields of a class, as a comment."""
    matches = filter(None, map(FIELD.match, inspect.getsource(kind).splitlines()))
    return {match[1]: match[2] for match in matches if match[2]}


def show_methods(kind: type) -> str:
    shown = ""
    for name, member in vars(kind).items():
        if name.startswith("_") and name != "__call__":
            continue
        function = member.fget if isinstance(member, property) else inspect.unwrap(member)
        function = getattr(function, "__func__", function)
        if not inspect.isfunction(function) or not inspect.getdoc(function):
            continue
        shown += f"### {kind.__name__}.{name} {{#fedsift.{kind.__name__}.{name}}}\n\n"
        if not isinstance(member, property):
            shown += show_signature(name, inspect.signature(function))
        shown += prose(function, {})
    return shown


def show_module(module: ModuleType) -> str:
    name = module.__name__.removeprefix("fedsift.")
    text = f"{escape(inspect.getdoc(module) or '')}\n\n"
    for key, thing in vars(module).items():
        own = getattr(thing, "__module__", "").startswith(module.__name__)
        if key.startswith("_") or not own or not inspect.getdoc(thing):
            continue
        if inspect.isfunction(thing) or inspect.isclass(thing):
            show: Any = show_function if inspect.isfunction(thing) else show_class
            text += f"### {name}.{key} {{#fedsift.{name}.{key}}}\n\n"
            text += re.sub(r"^### ", "#### ", show(key, thing), flags=re.MULTILINE)
    return text


def show_registry(name: str, parts: dict[str, Any]) -> str:
    kind = name_modules()[name]
    names = ", ".join(code(part) for part in parts)
    anchor = {"PARTITIONS": "partitions", "DATASETS": "datasets"}.get(name, KINDS.get(kind, kind))
    return (
        f"A dict from name to part: {names}.\n"
        f"[What they are](../parts.md#{anchor}). Add your own by `module:name` instead.\n\n"
    )


def show_alias(name: str) -> str:
    """A type by another name: its definition, as the source has it."""
    module, attribute = read_exports()[name]
    found = find_assignment(module, attribute)
    return f"A type.\n\n```python\n{found}\n```\n\n"


def find_assignment(module: str, name: str) -> str:
    from importlib import import_module

    tree = ast.parse(inspect.getsource(import_module(module)))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and any(a.name == name for a in node.names):
            return find_assignment(node.module or "", name)
    raise LookupError(f"{module}.{name} is no plain assignment")
