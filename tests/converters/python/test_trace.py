"""trireme.trace: eager calls become a graph, and a decision of Python warns with its line."""

import warnings

import numpy as np
import pytest

import trireme
from trireme import eager
from trireme.converters.python.trace import TraceWarning
from trireme.ir.interpreter import run_reference

SEED = 4
RNG = np.random.default_rng(SEED)
WEIGHTS = RNG.standard_normal((3, 4)).astype(np.float32)
X = RNG.standard_normal((2, 3)).astype(np.float32)


def line_of(function, text):
    import inspect

    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, one in enumerate(lines) if text in one)


def layer(x, bias):
    h = eager.relu(x @ WEIGHTS + bias)
    h = np.tanh(h) * np.float32(2) - h[:, :1]
    return eager.softmax(h, axis=-1), np.maximum(h, 0).mean(axis=0)


def test_a_trace_gives_what_eager_gives():
    bias = np.ones(4, np.float32)
    graph = trireme.trace(layer, X, bias)
    assert [value.name for value in graph.input_values()] == ["x", "bias"]
    tensors = eager.tensor(X), eager.tensor(bias)
    wanted = [np.asarray(one) for one in layer(*tensors)]
    made = run_reference(graph, {"x": X, "bias": bias})
    for got, one in zip(made.values(), wanted, strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-5, atol=1e-6, err_msg=f"seed {SEED}")
    with trireme.Session(graph) as session:
        for got, one in zip(session.run({"x": X, "bias": bias}).values(), wanted, strict=True):
            np.testing.assert_allclose(got, one, rtol=1e-4, atol=1e-5, err_msg=f"seed {SEED}")


def test_a_node_names_its_line():
    graph = trireme.trace(layer, X, np.ones(4, np.float32))
    (node,) = (one for one in graph.nodes if one.op == "softmax")
    assert node.source == f"test_trace.py:{line_of(layer, 'softmax')}"


def test_symbols_on_request():
    graph = trireme.trace(lambda x: eager.relu(x) @ WEIGHTS, X, shapes={"x": ("1<=batch<=8", 3)})
    assert graph.type(graph.inputs[0]).shape == ("batch", 3)
    assert graph.symbols["batch"] == (1, 8)
    with trireme.Session(graph) as session:
        for rows in (1, 5, 8):
            x = np.ones((rows, 3), np.float32)
            (got,) = session.run({"x": x}).values()
            np.testing.assert_allclose(got, np.maximum(x, 0) @ WEIGHTS, rtol=1e-5)


def branching(x):
    if x.sum() > 0:
        return x * 2
    return x * 3


def counting(x, n):
    for _ in range(int(n)):
        x = x + 1
    return x


def by_rows(x):
    total = 0
    for row in x:
        total = total + row
    return total


def by_elements(x):
    return x + np.linalg.norm(x.tolist())


DECISIONS = {
    branching: ((X,), "if x", "Python branches on bool[]: the graph holds only the path taken"),
    counting: ((X, np.int64(2)), "range", "takes a number from int64[]: the graph holds 2"),
    by_rows: ((X,), "for row", "iterates over float32[2,3]: the graph holds the body once"),
    by_elements: ((X,), "tolist", "takes a list from float32[2,3]: the graph holds the elements"),
}


@pytest.mark.parametrize("function", DECISIONS, ids=lambda function: function.__name__)
def test_a_decision_warns_with_its_line_and_what_is_lost(function):
    examples, text, lost = DECISIONS[function]
    with pytest.warns(TraceWarning) as caught:
        graph = trireme.trace(function, *examples)
    (warning,) = caught
    where = f"test_trace.py:{line_of(function, text)}: "
    assert str(warning.message).startswith(where)
    assert lost in str(warning.message)
    assert warning.filename == __file__
    assert warning.lineno == line_of(function, text)
    feeds = {v.name: np.asarray(x) for v, x in zip(graph.input_values(), examples, strict=False)}
    (got,) = run_reference(graph, feeds).values()
    np.testing.assert_allclose(got, function(*examples), rtol=1e-6)
    with pytest.raises(trireme.ConvertError, match=where):
        trireme.trace(function, *examples, strict=True)


def test_python_decisions_on_python_values_warn_of_nothing():
    def repeated(x, times, double):
        for _ in range(times):
            x = x + x if double else x + 1
        return x, x.shape[0]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = trireme.trace(repeated, X, 3, True)
    assert [node.op for node in graph.nodes] == ["add"] * 3


def test_a_python_op_is_a_node():
    @trireme.python_op
    def doubled(x):
        return x + x

    graph = trireme.trace(lambda x: doubled(x) + 1, X)
    assert [node.op for node in graph.nodes] == ["python", "add"]


@pytest.mark.parametrize(
    ("function", "examples", "options", "sentence"),
    [
        (lambda x: "text", (X,), {}, "returns a str, expected tensors"),
        (lambda x: (), (X,), {}, "returns no tensor"),
        (lambda x: x, (X,), {"shapes": {"y": (2, 3)}}, "no input is called 'y'"),
        (lambda x: x, (X,), {"shapes": {"x": (4, 3)}}, "does not fit the shape"),
        (lambda x: np.linalg.svd(x), (X,), {}, "no op stands for numpy.svd"),
        (lambda x, y: x, (X,), {}, "missing a required argument"),
    ],
)
def test_what_cannot_be_traced_is_an_error(function, examples, options, sentence):
    with pytest.raises(trireme.TriremeError, match=sentence):
        trireme.trace(function, *examples, **options)


def test_an_array_that_changes_after_it_was_read_is_read_as_it_was():
    def own(x):
        total = np.ones(3)
        y = x + total
        total[0] = 5
        return y, x + total

    graph = trireme.trace(own, np.zeros(3))
    with trireme.Session(graph, devices=["cpu"]) as session:
        made = list(session.run({"x": np.zeros(3)}).values())
    np.testing.assert_array_equal(made, [[1, 1, 1], [5, 1, 1]])
