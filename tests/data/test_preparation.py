"""What a table becomes, worked out by hand; and that it depends on the public rows alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsift
from fedsift import data
from fedsift.data.preparation import (
    Category,
    Number,
    Preparation,
    Tokenizer,
    learn_preparation,
    learn_tokenizer,
    split_words,
)
from fedsift.data.sources import load_tables
from fedsift.data.table import Columns, Table, make_table, words
from fedsift.types import UserError

NAN = float("nan")


def table(**columns: Any) -> Table:
    made = {
        name: words(cells) if isinstance(cells[0], str) else np.array(cells, np.float64)
        for name, cells in columns.items()
    }
    return make_table("my.csv", made)


PEOPLE = table(
    age=[30.0, 50.0, NAN, 40.0, NAN],
    city=["Rome", "Oslo", "Rome", "", "Paris"],
)
PUBLIC = np.array([0, 1, 3])  # ages 30, 50, 40; cities Rome, Oslo and one that is missing


# --- one-hot and missing values, by hand ---


def test_numbers_and_categories_of_the_public_rows():
    made, notes = learn_preparation(PEOPLE, PUBLIC)
    assert made == Preparation((Number("age", 40.0), Category("city", ("", "Oslo", "Rome"))))
    assert made.names == ("age", "city=", "city=Oslo", "city=Rome")
    assert notes == (
        "column 'age': 2 of 5 values missing, filled with 40, the public median",
        "column 'city': one input per category ((missing), Oslo, Rome)",
    )


def test_a_missing_number_is_the_public_median_and_an_unknown_category_is_zero_everywhere():
    made, _ = learn_preparation(PEOPLE, PUBLIC)
    assert made.apply(PEOPLE).tolist() == [
        [30, 0, 0, 1],
        [50, 0, 1, 0],
        [40, 0, 0, 1],
        [40, 1, 0, 0],
        [40, 0, 0, 0],  # Paris is in no public row
    ]
    assert made.plain is not None
    assert made.plain.tolist() == [False, True, True, True]


def test_a_column_that_a_client_does_not_have_is_filled_in():
    made, _ = learn_preparation(PEOPLE, PUBLIC)
    assert made.apply(table(city=["Oslo"])).tolist() == [[40, 0, 1, 0]]
    assert made.apply(table(age=[20.0])).tolist() == [[20, 1, 0, 0]]  # as a missing city


def test_a_column_without_a_public_value_is_left_out():
    made, notes = learn_preparation(table(a=[1.0, 2.0], b=[NAN, 3.0]), np.array([0]))
    assert made.names == ("a",)
    assert notes == ("column 'b' has no value in the public rows: left out",)


def test_a_category_keeps_the_most_frequent_values():
    cells = [f"c{i}" for i in range(60)] + ["c59"] * 60
    made, (note,) = learn_preparation(table(c=cells), np.arange(120))
    (column,) = made.columns
    assert column.inputs == 50
    assert "c59" in column.values  # type: ignore[union-attr]
    assert note.endswith("; 10 rarer ones are 0 everywhere")


def test_a_column_of_names_is_left_out():
    cells = [f"person {i}" for i in range(80)]
    made, notes = learn_preparation(
        table(who=cells, age=list(map(float, range(80)))), np.arange(80)
    )
    assert made.names == ("age",)
    assert "80 different words in 80 public rows: left out" in notes[0]


def test_numbers_that_are_names_are_taken_as_said():
    codes = table(code=[1.0, 2.0, 10.0])
    made, _ = learn_preparation(replace(codes, categorical=("code",)), np.arange(3))
    assert made.names == ("code=1", "code=10", "code=2")
    spelt = table(code=["02", "2A"])  # in another file the column has a word
    assert made.apply(spelt).tolist() == [[0, 0, 1], [0, 0, 0]]


def test_a_word_among_numbers_is_refused_with_its_place():
    mixed = table(age=["30", "40", "old"])
    made, _ = learn_preparation(mixed, np.array([0, 1]))
    assert made.columns == (Number("age", 35.0),)
    with pytest.raises(UserError, match=r"my.csv, line 3: 'age' is 'old', but the public rows"):
        made.apply(mixed)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e300])
def test_numbers_that_are_not_finite_are_refused(bad):
    numbers = table(age=[1.0, bad, 2.0, bad])
    made, _ = learn_preparation(numbers, np.array([0, 2]))
    said = r"column 'age' has 2 values that are not finite \(first: my.csv, line 2\)"
    with pytest.raises(UserError, match=said):
        made.apply(numbers)


@given(st.data(), st.integers(2, 12))
def test_private_rows_change_nothing_in_the_preparation(d, rows):
    """Whatever the private rows hold, inputs are made by the public ones."""
    number = st.floats(-100, 100) | st.just(NAN)
    word = st.sampled_from(["", "a", "b", "c", "d"])
    one: dict[str, Any] = {
        "n": d.draw(st.lists(number, min_size=rows, max_size=rows)),
        "w": d.draw(st.lists(word, min_size=rows, max_size=rows)),
    }
    public = d.draw(st.integers(1, rows - 1))
    other = {
        "n": one["n"][:public] + [7.0] * (rows - public),
        "w": one["w"][:public] + ["z"] * (rows - public),
    }
    if all(np.isnan(one["n"][:public])) and not any(one["w"][:public]):
        return  # no column is left
    known = np.arange(public)
    a, _ = learn_preparation(table(**one), known)
    b, _ = learn_preparation(table(**other), known)
    assert a == b
    assert np.array_equal(a.apply(table(**one))[:public], b.apply(table(**other))[:public])


# --- texts, by hand ---


def test_words_are_letters_and_digits_in_small_letters():
    assert split_words("Don't PANIC: 42 über_all!") == ["don", "t", "panic", "42", "über", "all"]


def test_the_vocabulary_is_by_frequency_and_then_by_the_alphabet():
    texts = ["b a b", "c a", "d"]
    assert learn_tokenizer(texts, 100, 3).words == ("a", "b", "c", "d")
    assert learn_tokenizer(texts, 4, 3) == Tokenizer(("a", "b"), 3)


def test_a_text_becomes_ids_of_a_fixed_length():
    made = Tokenizer(("a", "b"), 3)  # a is 2, b is 3; 1 is unknown, 0 fills up
    assert made.apply(["B x a b", "a", ""]).tolist() == [[3, 1, 2], [2, 0, 0], [0, 0, 0]]
    assert made.apply([]).shape == (0, 3)
    assert made.vocabulary == 4


@given(st.lists(st.text(), min_size=1), st.integers(3, 20), st.integers(1, 9))
def test_ids_are_below_the_vocabulary_and_known_words_come_back(texts, vocabulary, length):
    made = learn_tokenizer(texts, vocabulary, length)
    ids = made.apply(texts)
    assert ids.shape == (len(texts), length)
    assert made.vocabulary <= vocabulary
    assert ids.min() >= 0
    assert ids.max() < made.vocabulary
    for text, row in zip(texts, ids.tolist(), strict=True):
        for word, id in zip(split_words(text), row, strict=False):
            assert id == (made.words.index(word) + 2 if word in made.words else 1)


# --- in a task ---


def test_a_task_scales_numbers_by_public_figures_and_leaves_categories():
    made = load_tables(
        table(
            age=[30.0, 50.0, 40.0, 70.0],
            sex=["f", "m", "f", "f"],
            y=["a", "b", "", ""],
            part=["train", "test", "public", "public"],
        ),
        [],
        Columns(target="y", split="part"),
    )
    task = fedsift.split(made)
    assert task.class_names == ("a", "b")
    assert task.public_labels is None
    store = task.public.store
    assert store.mean.tolist() == [55, 0]  # the public ages 40 and 70; sex has one category there
    assert store.std.tolist() == [15, 1]
    assert task.private.samples.tensor()[0].tolist() == pytest.approx([(30 - 55) / 15, 1])
    assert task.held_out.samples.tensor()[0].tolist() == pytest.approx([(50 - 55) / 15, 0])
    assert task.notes[-1] == "normalise = standard for a table, by figures of the 2 public samples"


def test_new_rows_are_prepared_as_those_of_the_task(tmp_path):
    task = fedsift.split(data.load_dataset("clinics"))
    file = tmp_path / "new.csv"
    file.write_text("smoker,age,pressure,marker\nnever,50,,60\n")
    found = task.normalise(data.load_dataset(f"csv:{file}"))
    store, names = task.public.store, task.preparation.names  # type: ignore[union-attr]
    place = names.index("smoker=never")
    assert found[0, place] == 1
    age = (50 - store.mean[0]) / store.std[0]
    assert found[0, 0] == pytest.approx(float(age))
    assert torch.isfinite(found).all()
