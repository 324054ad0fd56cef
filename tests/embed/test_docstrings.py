"""help(LVCG) teaches: every public name says what goes in and comes out, and its example works."""

import doctest
import inspect

import pytest

from data_prep.ecg.leads import LEADS
from data_prep.synthetic_heart.records import make_record
from lvcg_jax import LVCG, Embedding, Prediction
from lvcg_jax.embed.answers import Beats, HeartVector
from lvcg_jax.model.network import Network

METHODS = ("load", "random", "embed", "predict", "tokens", "vcg")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_lists_its_arguments_what_it_returns_and_an_example(name):
    method = getattr(LVCG, name)
    text = inspect.getdoc(method)
    for argument in inspect.signature(method).parameters:
        if argument != "self":
            assert f"\n  {argument}: " in text, argument
    for heading in ("Args:", "Returns:", "Example:"):
        assert f"\n{heading}\n" in text, heading


@pytest.mark.parametrize("kind", [Embedding, Prediction, Beats, HeartVector])
def test_a_result_explains_every_attribute(kind):
    text = inspect.getdoc(kind)
    for name in kind.__dataclass_fields__:
        assert f"\n  {name}: " in text, name


def test_the_network_is_at_hand(model):
    assert isinstance(model.model, Network)
    text = inspect.getdoc(LVCG)
    for name in vars(model):
        assert f"\n  {name}: " in text, name


def test_the_examples_work_as_they_stand():
    names = {"LVCG": LVCG, "LEADS": LEADS, "signal": make_record(patient=3, rate=500)[0]}
    runner = doctest.DocTestRunner(verbose=False)
    found = [
        test
        for kind in (LVCG, Embedding)
        for test in doctest.DocTestFinder().find(kind, globs=names)
        if test.examples
    ]
    assert len(found) == 2 + len(METHODS)
    for test in found:
        assert runner.run(test).failed == 0, test.name
