from dataclasses import dataclass
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
