"""Presets explain themselves: a name, a summary, and every argument."""

import inspect
import pydoc

import pytest

import fedsift
from fedsift.algorithms import ALGORITHMS


def test_help_on_fas_names_every_argument_and_its_own_default():
    text = pydoc.plain(pydoc.render_doc(fedsift.fas))
    assert text.startswith("Python Library Documentation: function fas")
    assert "sampler: 'str | Sampler' = 'mixed'" in text
    assert "The same as fd(sampler='mixed')." in text
    for argument in inspect.signature(fedsift.fas).parameters:
        assert f"    {argument}: " in text


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_says_what_each_argument_means(name):
    factory = ALGORITHMS[name]
    assert factory.__name__ == name.replace("-", "_")
    lines = (inspect.getdoc(factory) or "").splitlines()
    for argument in inspect.signature(factory).parameters:
        assert sum(line.startswith(f"{argument}: ") for line in lines) == 1


def test_a_preset_is_its_factory_with_other_defaults():
    assert fedsift.fas(60) == fedsift.fd(60, sampler="mixed")
    assert fedsift.fas(60, sampler="random") == fedsift.fd(60, sampler="random")
    assert fedsift.ds_fl(60) == fedsift.fd(60, aggregator="era", download="soft-labels")
    assert fedsift.fedpaq() == fedsift.fedavg(codec="qsgd(4)")


def test_a_missing_argument_is_named_for_the_preset():
    with pytest.raises(TypeError, match=r"fas\(\): missing a required argument: 'budget'"):
        fedsift.fas()  # type: ignore[call-arg]
