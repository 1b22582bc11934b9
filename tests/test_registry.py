import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsift import registry
from fedsift.samplers import SAMPLERS
from fedsift.types import UserError


@dataclass(frozen=True)
class Sharp:
    temperature: float = 0.1

    def __call__(self, uploads: Any, samples: int, classes: int) -> str:
        return "sharp"


def plain(uploads: Any, samples: int, classes: int) -> str:
    return "plain"


PARTS: dict[str, Any] = {"sharp": Sharp, "plain": plain, "made": Sharp(7.0)}


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("era", ("era", [], {})),
        ("era()", ("era", [], {})),
        ("era(0.05)", ("era", [0.05], {})),
        (" era ( 0.05 ) ", ("era", [0.05], {})),
        ("resnet8(norm=group, width=0.5)", ("resnet8", [], {"norm": "group", "width": 0.5})),
        ("resnet8(norm='group')", ("resnet8", [], {"norm": "group"})),
        (
            "f(1, word, key=-2, on=True, off=None)",
            ("f", [1, "word"], {"key": -2, "on": True, "off": None}),
        ),
        ("delta(quantized(1))", ("delta", ["quantized(1)"], {})),
        ("delta(quantized(1, 2), by=f(3, 4))", ("delta", ["quantized(1, 2)"], {"by": "f(3, 4)"})),
        ("f([1, 2], (3, 4))", ("f", [[1, 2], (3, 4)], {})),
        ("class-balanced", ("class-balanced", [], {})),
        ("my.module:factory(width=2)", ("my.module:factory", [], {"width": 2})),
    ],
)
def test_text_is_parsed_as_name_and_values(text, parsed):
    assert registry.parse_spec(text) == parsed


def test_the_inside_of_a_nested_part_can_be_parsed_again():
    _, (inner,), _ = registry.parse_spec("delta(quantized(1))")
    assert registry.parse_spec(inner) == ("quantized", [1], {})


@pytest.mark.parametrize("text", ["", "  ", "era(0.05", "two words", "(1)", "era(1) more"])
def test_unreadable_text_is_quoted_back_with_how_to_write_it(text):
    with pytest.raises(
        UserError, match=r"cannot read .*write name or name\(value, key=value\)"
    ) as caught:
        registry.parse_spec(text)
    assert repr(text) in str(caught.value)


VALUE = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["group", True, None]),
)


@given(
    st.lists(VALUE, max_size=3), st.dictionaries(st.sampled_from(["norm", "width", "beta"]), VALUE)
)
def test_values_survive_being_written_and_parsed(positional, named):
    pieces = [*map(str, positional), *(f"{key}={value}" for key, value in named.items())]
    assert registry.parse_spec(f"part({', '.join(pieces)})") == ("part", positional, named)


def test_a_class_is_made_with_the_values_in_brackets():
    assert registry.build(PARTS, "aggregator", "sharp") == Sharp(0.1)
    assert registry.build(PARTS, "aggregator", "sharp(0.05)") == Sharp(0.05)
    assert registry.build(PARTS, "aggregator", "sharp(temperature=2)") == Sharp(2)


def test_a_function_or_an_object_is_the_part_itself():
    assert registry.build(PARTS, "aggregator", "plain") is plain
    assert registry.build(PARTS, "aggregator", "made") is PARTS["made"]


@pytest.mark.parametrize("text", ["plain(1)", "plain(key=1)"])
def test_values_for_a_function_are_refused(text):
    with pytest.raises(UserError) as caught:
        registry.build(PARTS, "aggregator", text)
    assert str(caught.value) == f"aggregator 'plain' takes no values, but {text!r} gives some"


@pytest.mark.parametrize("text", ["sharp(1, 2)", "sharp(heat=1)"])
def test_wrong_arguments_are_a_mistake_that_quotes_the_text(text):
    with pytest.raises(UserError) as caught:
        registry.build(PARTS, "aggregator", text)
    assert str(caught.value).startswith(f"aggregator {text!r}: ")
    assert "argument" in str(caught.value)


def test_an_unknown_name_gets_the_nearest_one_and_where_to_list_them():
    with pytest.raises(UserError) as caught:
        registry.build(SAMPLERS, "sampler", "entropi")
    assert (
        str(caught.value)
        == "unknown sampler 'entropi'; did you mean 'low-entropy'? (fedsift ls samplers)"
    )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("MIXD", "mixed"),
        ("low", "low-entropy"),
        ("randm", "random"),
        ("balanced", "class-balanced"),
    ],
)
def test_the_nearest_name_ignores_case_and_finds_fragments(name, nearest):
    assert f"did you mean {nearest!r}?" in registry.unknown_name("sampler", name, SAMPLERS)


def test_where_nothing_is_near_all_names_are_given():
    assert (
        registry.unknown_name("part", "xyz", ["one", "two"])
        == "unknown part 'xyz'; known: one, two (fedsift ls parts)"
    )


def test_where_to_look_can_be_said_in_other_words():
    assert registry.unknown_name("key", "sed", ["seed"], "see the manual").endswith(
        "did you mean 'seed'? (see the manual)"
    )


def test_find_takes_the_bare_name_only():
    assert registry.lookup(PARTS, "aggregator", "sharp") is Sharp
    with pytest.raises(UserError, match="unknown aggregator"):
        registry.lookup(PARTS, "aggregator", "sharp(1)")


# --- plug-ins ---


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module `mine` into the current folder, which is an empty one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "mine", raising=False)

    def write(text: str) -> Path:
        (tmp_path / "mine.py").write_text(text)
        return tmp_path / "mine.py"

    yield write
    sys.modules.pop("mine", None)


PICK = "def pick(probs, label_counts, budget, draws): return range(budget)\n"


def said_of(kind: str, text: str) -> str:
    with pytest.raises(UserError) as caught:
        registry.build({}, kind, text)
    return str(caught.value)


def test_a_function_is_the_sampler_itself(write):
    write(PICK)
    assert registry.build(SAMPLERS, "sampler", "mine:pick")(None, None, 3, None) == range(3)


def test_a_function_with_brackets_makes_the_sampler(write):
    write(f"{PICK}def make(n=1): return lambda probs, label_counts, budget, draws: n\n")
    assert registry.build({}, "sampler", "mine:make(7)")(0, 0, 0, 0) == 7
    assert registry.build({}, "sampler", "mine:make()")(0, 0, 0, 0) == 1
    said = said_of("sampler", "mine:make")
    assert said == (
        "sampler 'mine:make' takes (n=1), but it is called with "
        "(probs, label_counts, budget, draws); if it makes one, write mine:make()"
    )


def test_a_class_makes_the_sampler_with_or_without_brackets(write):
    write(
        "class Pick:\n"
        "    def __init__(self, n=1): self.n = n\n"
        "    def __call__(self, probs, label_counts, budget, draws): return self.n\n"
        "PICK = Pick(9)\n"
    )
    found = [
        registry.build({}, "sampler", f"mine:{text}") for text in ("Pick", "Pick(n=2)", "PICK")
    ]
    assert [part(0, 0, 0, 0) for part in found] == [1, 2, 9]


def test_a_codec_is_made_by_a_function_or_is_an_object(write):
    write("class Tiny: pass\ndef tiny(bits=1): return bits\nTINY = Tiny()\n")
    assert registry.build({}, "codec", "mine:tiny") == 1
    assert registry.build({}, "codec", "mine:tiny(3)") == 3
    assert type(registry.build({}, "codec", "mine:Tiny")).__name__ == "Tiny"
    assert registry.build({}, "codec", "mine:TINY") is sys.modules["mine"].TINY


def test_an_aggregator_may_be_an_object_with_a_memory(write):
    write(
        "class Trust:\n"
        "    def aggregate(self, uploads, memory, r): ...\n"
        "    def forget(self, memory, client): ...\n"
    )
    assert type(registry.build({}, "aggregator", "mine:Trust")).__name__ == "Trust"


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        (None, "mine:pick", "no module 'mine' in the current folder ("),
        (None, "mine.py:pick", "write mine:pick, without .py"),
        ("", "mine.py:pick", "write mine:pick, without .py"),
        (None, "mine.deep:pick", "no module 'mine.deep' in the current folder ("),
        (PICK, "mine:pik", "module mine has no 'pik'; did you mean 'pick'?"),
        ("", "mine:pick", "module mine has no 'pick'"),
        (
            "x = 1\ny = x / 0\n",
            "mine:pick",
            "module mine cannot be imported: ZeroDivisionError: division by zero (mine.py, line 2)",
        ),
        (
            "import no_such\n",
            "mine:pick",
            "module mine cannot be imported: ModuleNotFoundError: No ",
        ),
        ("def f(:\n", "mine:pick", "module mine cannot be imported: SyntaxError: "),
        ("\nraise SystemExit(3)", "mine:pick", "module mine cannot be imported: SystemExit: 3"),
        ("class pick:\n  def __init__(self, n): pass", "mine:pick", "missing a required argument"),
        ("class pick:\n  def __init__(self): 1 / 0", "mine:pick", "ZeroDivisionError: division by"),
        ("", "json:loads", "json is a module of Python itself; rename your file"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said_in_words(write, module, text, said):
    if module is not None:
        write(module)
    assert said_of("sampler", text).startswith(f"sampler {text!r}: {said}")


def test_where_a_plugin_fails_the_line_is_named(write):
    write("def make(n):\n    n = n + 1\n    return 1 / (n - 1)\n")
    said = said_of("sampler", "mine:make(0)")
    assert said.endswith("ZeroDivisionError: division by zero (mine.py, line 3)")


@pytest.mark.parametrize(
    ("kind", "module", "said"),
    [
        (
            "sampler",
            "part = 3",
            "is of type int; it must be a function of (probs, label_counts, budget, draws)",
        ),
        (
            "aggregator",
            "part = 3",
            "is of type int; it must be a function of (uploads, samples, classes) "
            "or an object with aggregate, forget",
        ),
        (
            "sampler",
            "def part(probs): 1",
            "takes (probs), but it is called with (probs, label_coun",
        ),
        ("graph", "def part(): 1", "takes (), but it is called with (clients, generator)"),
        ("algorithm", "class part: start = 1", "is of type part without "),
        (
            "algorithm",
            "def part(): return None",
            "is of type NoneType; it must be an object with start, prepare_down",
        ),
    ],
)
def test_a_plugin_of_the_wrong_type_is_refused(write, kind, module, said):
    write(module)
    assert said_of(kind, "mine:part").startswith(f"{kind} 'mine:part' {said}")


def test_values_offered_go_to_the_parameters_of_that_name(write):
    write(
        "def few(budget, beta=1): return (budget, beta)\n"
        "def every(**values): return values\n"
        "def other(beta): return beta\n"
    )
    offered = {"budget": 5, "sampler": "none"}
    few, every, other, own = (
        registry.plan({}, "codec", f"mine:{text}", offered)
        for text in ("few(beta=2)", "every", "other(3)", "few(7)")
    )
    assert (few.build(), few.unused) == ((5, 2), ["sampler"])
    assert (every.build(), every.unused) == (offered, [])
    assert (other.build(), other.unused) == (3, ["budget", "sampler"])
    assert (own.build(), own.unused) == ((7, 1), ["budget", "sampler"])


def test_plugins_are_found_in_a_text_without_importing_them(write):
    file = write("raise SystemExit")
    assert registry.find_plugins("delta(mine:Tiny(bits=3))") == ["mine:Tiny"]
    assert registry.find_plugins("mine:make(other.deep:f)") == ["mine:make", "other.deep:f"]
    assert registry.find_plugins("npz:file", ["npz"]) == []
    assert registry.find_plugins("edges(0-1 1-2)") == registry.find_plugins("a b:c d") == []
    assert registry.locate_module("mine") == file
    assert registry.locate_module("no_such_module") is None
    assert registry.locate_module("mine.deep") is None
    assert "mine" not in sys.modules


def test_brackets_in_brackets_without_end_are_refused_in_one_sentence():
    with pytest.raises(
        UserError, match=r"^cannot read 'delta\(delta\(.*\.\.\.'; write name or name"
    ):
        registry.parse_spec("delta(" * 20_000 + ")" * 20_000)


def test_the_docstring_of_a_maker_describes_its_arguments():
    def make(budget: int, codec: str, bare: int) -> None:
        """What it makes: a part.

            budget: how many, for example
              sixty: or more
            codec: how

        bare words are no description.
        """

    assert registry.read_arguments(make) == {
        "budget": "how many, for example sixty: or more",
        "codec": "how",
    }
