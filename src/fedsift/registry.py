"""Parts by name. One rule holds for every kind of part. A text such as "era(0.05)" names

1. an entry of the kind's registry, a plain dict ("era"), or else
2. a file or source by a scheme that fedsift knows ("npz:my.npz"; the kind's module reads it), or
3. a plug-in, `module:name`, imported from the current folder or from what is installed.

Values in brackets go to what makes the part: "era(0.05)", "mine:Tiny(bits=3)".

`KINDS` says for each kind what an entry is. A class always makes the part. A function is the part
itself where the kind is a function (a sampler), and makes it where it is not (a codec). A plug-in
function with brackets makes the part in either case: "mine:make_pick(0.5)". Anything else, such as
an object made in the module, is the part itself.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from typing import Any

from fedsift.checks import describe
from fedsift.types import Algorithm, Pretext, UserError

DEEPEST = 20  # brackets in brackets
LONGEST = 200  # letters of a text that are quoted back
_SPEC = re.compile(r"\s*([\w.:+-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_PLUGIN = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


@dataclass(frozen=True)
class Kind:
    """What a part of one kind is: a function of some arguments, an object with members, or both."""

    called_with: tuple[str, ...] = ()  # if given, a function is the part itself
    members: tuple[str, ...] = ()  # what a part has that is not such a function


def _methods(protocol: type) -> tuple[str, ...]:
    return tuple(name for name in vars(protocol) if not name.startswith("_"))


KINDS = {
    "sampler": Kind(("probs", "label_counts", "budget", "draws")),
    "aggregator": Kind(("uploads", "samples", "classes"), ("aggregate", "forget")),
    "partition": Kind(("labels", "clients", "generator")),
    "graph": Kind(("clients", "generator")),
    "attack": Kind(("answer", "scene")),
    "algorithm": Kind(members=_methods(Algorithm)),
    "start": Kind(members=_methods(Pretext)),
    "engine": Kind(),  # `engines` checks it
    "codec": Kind(),  # what a codec needs differs: `codecs` checks it
    "dataset": Kind(),  # `data` takes a Dataset or (x, y)
    "model": Kind(),  # the entry is a factory, which a Model keeps and calls
}


EXAMPLES = {  # names in messages and in `fedsift ls`
    "sampler": "pick",
    "aggregator": "join",
    "partition": "deal",
    "graph": "connect",
    "attack": "lie",
    "algorithm": "fedmd",
    "engine": "Engine",
    "codec": "Tiny",
    "dataset": "load",
    "model": "net",
    "start": "Pretext",
}


def parse_spec(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """ "name(1, key=word)" -> ("name", [1], {"key": "word"}). Bare words are strings."""
    match = _SPEC.fullmatch(text)
    if not match or _depth(text) > DEEPEST:
        shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
        raise UserError(f"cannot read {shown!r}; write name or name(value, key=value)")
    name, inside = match.groups()
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for piece in split_arguments(inside or ""):
        key, equals, value = piece.partition("=")
        if equals and key.strip().isidentifier():
            named[key.strip()] = _value(value)
        else:
            positional.append(_value(piece))
    return name, positional, named


# --- from a text to a part ---


@dataclass(frozen=True)
class Plan:
    """How a part will be made: by whom, with which values, and which of those offered are left."""

    kind: str
    text: str
    entry: Any
    makes: bool  # the entry is called to make the part, else it is the part
    positional: list[Any] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)

    def build(self) -> Any:
        part = self._make() if self.makes else self.entry
        maker = not self.text.rstrip().endswith(")")
        cure = f"; if it makes one, write {self.text}()" if maker else ""
        _check_part(self.kind, f"{self.kind} {self.text!r}", part, cure)
        return part

    def _make(self) -> Any:
        try:
            inspect.signature(self.entry).bind(*self.positional, **self.named)
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.kind} {self.text!r}: {error}") from None
        try:
            return self.entry(*self.positional, **self.named)
        except UserError:
            raise
        except Exception as error:  # a user's code may fail in any way; the user needs one answer
            raise UserError(f"{self.kind} {self.text!r}: {_describe_error(error)}") from error


def plan(
    entries: Mapping[str, Any], kind: str, text: str, offered: Mapping[str, Any] | None = None
) -> Plan:
    """Find what `text` names. Of the values `offered`, those go to it that it has a parameter for;
    values in brackets come first.
    """
    name, positional, named = parse_spec(text)
    entry, own, offered = find(entries, kind, name), name in entries, offered or {}
    brackets = text.rstrip().endswith(")")
    is_part = bool(KINDS.get(kind, Kind()).called_with) and (own or not brackets)
    if not isinstance(entry, type) and (is_part or not _is_maker(entry)):
        if positional or named:
            raise UserError(f"{kind} {name!r} takes no values, but {text!r} gives some")
        return Plan(kind, text, entry, makes=False, unused=list(offered))
    wanted = _choose_offered(entry, positional, named, offered)
    given = {key: value for key, value in offered.items() if key in wanted}
    unused = [key for key in offered if key not in wanted]
    return Plan(kind, text, entry, True, positional, given | named, unused)


def build(
    entries: Mapping[str, Any], kind: str, text: str, offered: Mapping[str, Any] | None = None
) -> Any:
    """The part that `text` names, checked."""
    return plan(entries, kind, text, offered).build()


def resolve(entries: Mapping[str, Any], kind: str, what: Any) -> Any:
    """A part by its name, or an object of the user's own; checked."""
    if isinstance(what, str):
        return build(entries, kind, what)
    if isinstance(what, type):
        raise UserError(f"{kind} is {describe(what)}; pass an object, {what.__name__}(...)")
    name = getattr(what, "__name__", None)
    _check_part(kind, f"{kind} {name!r}" if name else f"the {kind}", what)
    return what


def defaults(make: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a maker that have a default, and the default."""
    known = inspect.signature(make).parameters.values()
    return {p.name: p.default for p in known if p.default is not p.empty}


def _is_maker(entry: Any) -> bool:
    return inspect.isroutine(entry) or (callable(entry) and hasattr(entry, "func"))


def _choose_offered(
    make: Any, positional: list[Any], named: Mapping[str, Any], offered: Mapping[str, Any]
) -> set[str]:
    """Which of the values offered a maker takes: those it names, or all if it takes any."""
    try:
        signature = inspect.signature(make)
        taken = signature.bind_partial(*positional, **named).arguments
    except (TypeError, ValueError):
        return set()  # `Plan.build` says what is wrong
    kinds = {p.kind for p in signature.parameters.values()}
    known = offered if inspect.Parameter.VAR_KEYWORD in kinds else signature.parameters
    return {key for key in offered if key in known and key not in {*taken, *named}}


def _check_part(kind: str, name: str, part: Any, cure: str = "") -> None:
    """What a part must be, in words; registered or not."""
    rule = KINDS.get(kind, Kind())
    missing = [name for name in rule.members if not hasattr(part, name)]
    if (rule.members and not missing) or not (rule.members or rule.called_with):
        return
    if not rule.called_with or not callable(part):
        needs = f"a function of ({', '.join(rule.called_with)})" if rule.called_with else ""
        members = f"an object with {', '.join(rule.members)}" if rule.members else ""
        lacks = f" without {', '.join(missing)}" if len(missing) < len(rule.members) else ""
        expected = " or ".join(filter(None, (needs, members)))
        raise UserError(f"{name} is {_a(part)}{lacks}; it must be {expected}")
    try:
        signature = inspect.signature(part)
    except ValueError:
        return  # a function of C, which says nothing about its arguments
    try:
        signature.bind(*rule.called_with)
    except TypeError:
        wanted = f"({', '.join(rule.called_with)})"
        raise UserError(f"{name} takes {signature}, but it is called with {wanted}{cure}") from None


def _a(part: Any) -> str:
    return f"of type {type(part).__name__}"


# --- from a name to an entry ---


def find(entries: Mapping[str, Any], kind: str, name: str) -> Any:
    """The entry of that name, or the plug-in."""
    if name not in entries and ":" in name:
        return import_name(kind, name)
    return lookup(entries, kind, name)


def lookup(entries: Mapping[str, Any], kind: str, name: str, where: str | None = None) -> Any:
    """The entry of that name; nothing is imported."""
    if isinstance(name, str) and name in entries:
        return entries[name]
    raise UserError(unknown_name(kind, str(name), entries, where))


def unknown_name(kind: str, name: str, known: Iterable[str], where: str | None = None) -> str:
    """ "unknown sampler 'entropi'; did you mean 'low-entropy'? (fedsift ls samplers)" """
    names = list(known)
    near = _nearest(name, names)
    guess = f"; did you mean {near!r}?" if near else f"; known: {', '.join(names)}"
    return f"unknown {kind} {name!r}{guess} ({where or f'fedsift ls {kind}s'})"


def _nearest(name: str, names: list[str]) -> str | None:
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.4)
    near = near or [other for other in names if name.lower() in other or other in name.lower()][:1]
    return near[0] if near else None


# --- plug-ins ---


def import_name(kind: str, path: str) -> Any:
    """What `module:name` names, imported from the current folder or from what is installed."""
    match = _PLUGIN.fullmatch(path)
    if not match:
        raise UserError(
            f"cannot read {kind} {path!r}; write module:name, for example"
            f" mine:{EXAMPLES.get(kind, 'name')}"
        )
    module, name = match.groups()
    if module.endswith(".py") and locate_module(module) is None:
        raise UserError(f"{kind} {path!r}: write {module.removesuffix('.py')}:{name}, without .py")
    found = _import_module(f"{kind} {path!r}", module)
    try:
        return getattr(found, name)
    except AttributeError:
        near = _nearest(name, [other for other in vars(found) if not other.startswith("_")])
        guess = f"; did you mean {near!r}?" if near else ""
        raise UserError(f"{kind} {path!r}: module {module} has no {name!r}{guess}") from None


def _import_module(what: str, module: str) -> Any:
    if module.split(".")[0] in sys.stdlib_module_names:
        raise UserError(f"{what}: {module} is a module of Python itself; rename your file")
    _include_current_folder()
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            here = f"the current folder ({Path.cwd()})"
            raise UserError(
                f"{what}: no module {module!r} in {here} or among the installed packages"
            ) from None
        raise UserError(
            f"{what}: module {module} cannot be imported: {_describe_error(error)}"
        ) from error


def _include_current_folder() -> None:
    """A file in the current folder is found, as with python -m."""
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.insert(0, str(Path.cwd()))
    importlib.invalidate_caches()


def _describe_error(error: BaseException) -> str:
    """ "ZeroDivisionError: division by zero (mine.py, line 3)": the last line outside of fedsift
    and of the import system.
    """
    said = " ".join(str(error).split())
    said = f"{type(error).__name__}: {said}".removesuffix(": ")
    if isinstance(error, SyntaxError):
        return said  # it names file and line itself
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and Path(frame.filename) not in _OURS
    ]
    return (
        f"{said} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else said
    )


_OURS = {Path(__file__), Path(importlib.__file__)}


def find_plugins(text: str, schemes: Iterable[str] = ()) -> list[str]:
    """Every `module:name` in a text, also in brackets: "delta(mine:Tiny(3))". Imports nothing."""
    try:
        name, positional, named = parse_spec(text)
    except UserError:
        return []
    match = _PLUGIN.fullmatch(name)
    found = [name] if match and match.group(1) not in set(schemes) else []
    inner = [value for value in (*positional, *named.values()) if isinstance(value, str)]
    return found + [path for value in inner for path in find_plugins(value)]


def locate_module(module: str) -> Path | None:
    """The file a module would be imported from, or was. Imports nothing."""
    if loaded := sys.modules.get(module):
        return Path(file) if (file := getattr(loaded, "__file__", None)) else None
    _include_current_folder()
    names, path, spec = module.split("."), None, None
    for end in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:end]), path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


# --- texts ---


def split_arguments(inside: str) -> list[str]:
    """Split at commas that are not inside brackets."""
    pieces, depth, piece = [], 0, ""
    for letter in inside:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            pieces.append(piece)
            piece = ""
        else:
            piece += letter
    return [p for p in [*pieces, piece] if p.strip()]


def _depth(text: str) -> int:
    steps = [(letter == "(") - (letter == ")") for letter in text]
    return max(accumulate(steps), default=0)


def read_arguments(make: Any) -> dict[str, str]:
    """What the docstring of a maker says of each parameter, in lines "name: text"; longer texts go
    on in lines that are indented further.
    """
    names = inspect.signature(make).parameters
    found: dict[str, str] = {}
    for line, name, indent in _argument_lines(inspect.getdoc(make) or "", names):
        found[name] = f"{found[name]} {line}" if indent else line
    return found


def _argument_lines(doc: str, names: Iterable[str]) -> Iterator[tuple[str, str, bool]]:
    """Text, parameter and whether the line goes on with the one before it."""
    current, depth = "", 0
    for line in doc.splitlines():
        indent = len(line) - len(line.lstrip())
        name, colon, text = line.strip().partition(":")
        if colon and name in names:
            current, depth = name, indent
            yield text.strip(), name, False
        elif current and line.strip() and indent > depth:
            yield line.strip(), current, True
        else:
            current = ""


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text.strip()
