"""What a function reads beside its arguments: a graph never answers with what it was."""

import random
import warnings

import numpy as np
import pytest
from outer_programs import CHANGES, GLOBAL, Layer, X

import trireme
from trireme.converters.python.trace import TraceWarning

by_change = pytest.mark.parametrize("case", CHANGES, ids=lambda one: one.__name__)


@by_change
def test_a_compiled_function_sees_a_change(case):
    function, change = case()
    compiled = trireme.compile(function)
    for _ in range(2):
        np.testing.assert_allclose(compiled(X), function(X), rtol=1e-6)
    assert (compiled.stats.graph_runs, compiled.stats.graphs) == (1, 1)
    before = function(X)
    change()
    assert not np.allclose(function(X), before)
    for _ in range(2):
        np.testing.assert_allclose(compiled(X), function(X), rtol=1e-6)
    assert (compiled.stats.graph_runs, compiled.stats.graphs) == (2, 2)
    compiled.close()


@by_change
def test_a_captured_function_is_right_or_an_error_after_a_change(case):
    function, change = case()
    captured = trireme.capture(function, fallback=False)
    np.testing.assert_allclose(captured(X), function(X), rtol=1e-6)
    change()
    try:
        made = captured(X)
    except trireme.RunError as error:
        assert "changed since" in str(error)
    else:
        np.testing.assert_allclose(made, function(X), rtol=1e-6)


def test_an_object_among_the_arguments_is_compared_by_its_contents():
    def apply(x, layer):
        return x * layer.scale

    layer = Layer()
    for made in (trireme.compile(apply), trireme.capture(apply)):
        layer.scale = 2.0
        np.testing.assert_array_equal(made(X, layer), X * 2)
        layer.scale = 5.0
        np.testing.assert_array_equal(made(X, layer), X * 5)


def test_the_error_says_what_is_other_now():
    function = GLOBAL.get("function")

    def scale(x):
        return x * GLOBAL["factor"] if function is None else x

    GLOBAL["factor"] = 2.0
    captured = trireme.capture(scale, X)
    GLOBAL["factor"] = 4.0
    with pytest.raises(trireme.RunError, match=r"GLOBAL changed since .*\n  now {'factor': 4.0}"):
        captured(X)
    layer = Layer()
    captured = trireme.capture(lambda x: layer(x), X)
    layer.scale = 3.0
    with pytest.raises(trireme.RunError, match="layer changed since .*\n  its contents changed"):
        captured(X)


DRAWS = {
    "numpy": lambda x: x + np.random.rand(),
    "python": lambda x: x + random.random(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_drawn_in_every_call(name):
    compiled = trireme.compile(DRAWS[name])
    with pytest.warns(TraceWarning, match="draws random numbers"):
        made = {float(compiled(X)[0]) for _ in range(4)}
    assert len(made) == 4
    assert compiled.stats.graphs == 0
    with pytest.warns(TraceWarning, match="draws random numbers"):
        trireme.trace(DRAWS[name], X)
    with pytest.raises(trireme.ConvertError, match="draws random numbers"):
        trireme.trace(DRAWS[name], X, strict=True)


def test_a_generator_of_an_object_is_one_that_changes():
    layer = Layer()
    compiled = trireme.compile(lambda x: x + layer.rng.random())
    made = {float(compiled(X)[0]) for _ in range(12)}
    assert len(made) == 12
    assert compiled.stats.graph_runs == 0


def test_objects_that_hold_each_other_have_a_key():
    one, two = Layer(), Layer()
    one.parts, two.parts = [{"k": 1.0, "other": two}], [{"k": 2.0, "other": one}]
    compiled = trireme.compile(one)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            np.testing.assert_allclose(compiled(X), one(X), rtol=1e-6)
    assert compiled.stats.graph_runs == 1
