"""The words in which a wrong value is named; what each function says stands in
test_user_errors.py.
"""

import numpy as np
import pytest

from fedsift.checks import check_members, check_recipe, check_whole, count, describe
from fedsift.types import Recipe, UserError


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "None"),
        ("digits", "'digits'"),
        (0.5, "0.5"),
        ("x" * 100, "'" + "x" * 59 + "..."),
        ({}, "a dict"),
        (np.zeros(2), "a ndarray"),
        (OSError(), "an OSError"),
        (UserError("no"), "a UserError"),
        (Recipe, "the class Recipe"),
        (describe, "the function describe"),
    ],
)
def test_a_value_is_named_in_a_few_words(value, said):
    assert describe(value) == said


def test_one_thing_and_several():
    assert (count(1, "label"), count(2, "label")) == ("1 label", "2 labels")
    assert count(3, "value that is", "values that are") == "3 values that are"


def test_what_fits_passes_through_each_check():
    check_whole("budget", np.int64(3), 1)
    check_members("text", ("upper", "lower"), "text", "")
    assert check_recipe("local", None) == Recipe()
    assert check_recipe("local", Recipe(lr=0.5)) == Recipe(lr=0.5)


def test_a_number_below_the_least_is_refused():
    with pytest.raises(UserError, match=r"^budget must be a whole number, 1 or more, not 0$"):
        check_whole("budget", 0, 1)
