"""Python functions as nodes: in graphs, in files, in eager code; their types, errors and times."""

import itertools
import threading
import time

import numpy as np
import pytest
from plan_verifier import check_plan
from toy_device import ToyDevice

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.interpreter import run_reference
from trireme.ir.op import call_of, get_op
from trireme.model_file import dumps, load, loads, save
from trireme.runtime.eager import eager
from trireme.runtime.session.session import Session
from trireme.support.errors import GraphError, ModelFileError, PlacementError, RunError

COMBINATIONS = list(
    itertools.product(("serial", "parallel"), ("merged", "split"), ("sunk", "interactive"))
)
X = np.random.default_rng(14).standard_normal((4, 6)).astype(np.float32)
FLOAT = TensorType((4, 6), "float32")


def _two_types(x, k):
    return [(*x[:-1], k), (*x[:-1], k)]


@trireme.python_op(inputs=["float32"], outputs=["float32", "int64"], shape=_two_types)
def largest(x, k):
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, axis=-1), order


@trireme.python_op
def double(x):
    return x + x


def graph_with(operator, *, outputs=1, **arguments):
    """x -> relu -> the function -> one more op for each output."""
    b = GraphBuilder("g")
    inner = b.add("relu", b.input("x", FLOAT), names=["inner"])
    made = b.add_node("python", [inner], operator.attrs(**arguments), outputs=outputs, source="f")
    return b.finish(*(b.add("add", v, v, names=[f"y{i}"]) for i, v in enumerate(made)))


def run(graph, **options):
    with Session(graph, **options) as session:
        return session.run({"x": X})


def test_a_graph_calls_a_function_on_the_host():
    graph = graph_with(largest, outputs=2, k=3)
    values, places = largest(np.maximum(X, 0), k=3)
    with Session(graph) as session:
        assert {n.op: session.placement.device_of[n.id] for n in session.graph.nodes} == {
            "relu": "cpu", "python": "host", "add": "cpu",
        }  # fmt: skip
        for _ in range(2):
            made = session.run({"x": X})
            np.testing.assert_array_equal(made["y0"], values + values)
            np.testing.assert_array_equal(made["y1"], places + places)


@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_every_mode_gives_the_same_bits(combination):
    mode, subgraphs, execution = combination
    graph = graph_with(largest, outputs=2, k=2)
    want = run_reference(graph, {"x": X})
    options = trireme.ExecutionOptions(subgraphs=subgraphs, execution=execution)
    with Session(graph, mode=mode, execution_options=options) as session:
        check_plan(session.plan)
        for name, array in session.run({"x": X}).items():
            assert array.tobytes() == want[name].tobytes()


def test_a_profile_times_the_function():
    with Session(graph_with(double)) as session:
        (row,) = [r for r in session.profile({"x": X}, runs=3).nodes if r.device == "host"]
    assert row.kernel == "python function double" and row.seconds > 0


def estimate_of(session):
    """The estimate of the function's node, on the host."""
    (choice,) = [c for c in session.placement.choices.values() if c.device == "host"]
    return choice.estimates["host"]


def test_what_a_function_took_prices_the_next_placement():
    slow = trireme.python_op(lambda x: (time.sleep(0.02), x)[1], name="slow")
    graph = graph_with(slow)
    with Session(graph) as session:
        before = estimate_of(session)
        said = str(session.profile({"x": X}, runs=3))
    assert before.source == "function" and before.seconds < 1e-3
    assert "a Python function is priced by its cost rule until it has run" in said
    with Session(graph) as session:
        after = estimate_of(session)
    assert after.source == "calibration" and 0.02 <= after.low_s <= after.seconds <= after.high_s
    assert slow.seconds([TensorType((2, 6), "float32")], "{}") is None


def test_the_cost_is_what_the_rule_says():
    wide = trireme.python_op(double.function, cost=lambda x, scale: 7 * x[0] * scale, name="wide")
    scaled = trireme.python_op(lambda x, scale: x * scale, cost=wide.cost, name="scaled")
    graph = graph_with(scaled, scale=2)
    assert get_op("python").flops(call_of(graph, graph.nodes[1])) == 56
    node = graph_with(double).nodes[1]
    assert get_op("python").flops(call_of(graph_with(double), node)) == 24


def test_a_function_runs_beside_a_device():
    """Both are in their call at once, or neither goes on."""
    meeting = threading.Barrier(2, timeout=20)

    @trireme.python_op(cost=lambda x: 10**9)
    def waits(x):
        meeting.wait()
        return x

    gpu = ToyDevice("gpu", ops={"tanh"}, flops=1e3)
    gpu.on_launch = meeting.wait
    b = GraphBuilder("beside")
    x = b.input("x", FLOAT)
    graph = b.finish(b.add("tanh", x), b.add("python", x, **waits.attrs()))
    with Session(graph, devices=[gpu, "cpu"], mode="parallel") as session:
        session.run({"x": X})
    assert gpu.launches == 1


def test_the_exception_names_the_node_and_keeps_its_cause():
    @trireme.python_op
    def broken(x):
        raise KeyError("no such key")

    graph = graph_with(broken)
    for call in (lambda: run(graph), lambda: run_reference(graph, {"x": X})):
        with pytest.raises(RunError, match=r"python #1 \(f\): broken raised KeyError: 'no such"):
            call()
    with Session(graph) as session:
        for _ in range(2):  # the session lives on
            with pytest.raises(RunError) as caught:
                session.run({"x": X})
    causes, error = [], caught.value
    while error is not None:
        causes.append(type(error))
        error = error.__cause__
    assert causes[-1] is KeyError


@pytest.mark.parametrize(
    "result, sentence",
    [
        (lambda x: x.astype(np.float64), r"returned float64\[4, 6\] as output 0, declared float32"),
        (lambda x: x[:2], r"returned float32\[2, 6\] as output 0, declared float32\[4,6\]"),
        (lambda x: (x, x), "returned 2 outputs, declared 1"),
        (lambda x: None, "returned nothing as output 0"),
        (lambda x: "text", "output 0 is no array"),
        (lambda x: x.__setitem__(0, 1), "raised ValueError: assignment destination is read-only"),
    ],
)
def test_results_are_what_was_declared(result, sentence):
    with pytest.raises(RunError, match=sentence):
        run(graph_with(trireme.python_op(result, name="wrong")))


def test_python_numbers_take_the_declared_dtype():
    count = trireme.python_op(
        lambda x: int((x > 0).sum()), outputs=["int32"], shape=lambda x: (), name="count"
    )
    assert run(graph_with(count))["y0"] == 2 * (X > 0).sum()


@pytest.mark.parametrize(
    "declared, sentence",
    [
        ({"inputs": ["int8"]}, r"input 0 is float32\[4,6\], expected int8"),
        ({"inputs": ["any", "any"]}, "takes 2 inputs, 1 are given"),
        ({"shape": lambda x: x[9]}, "the shape rule of f failed: IndexError"),
        ({"shape": lambda x: 7}, "gives 7, expected a shape"),
        ({"shape": lambda x: (2.5,)}, "expected a shape"),
        ({"outputs": ["int8", "int8"], "shape": lambda x: [x]}, "expected 2 shapes"),
    ],
    ids=range(6),
)
def test_what_does_not_fit_is_refused_while_the_graph_is_built(declared, sentence):
    with pytest.raises(GraphError, match=sentence):
        graph_with(trireme.python_op(lambda x: x, name="f", **declared))


def test_arguments_are_checked_while_the_graph_is_built():
    with pytest.raises(GraphError, match="largest cannot be called so: missing a required"):
        graph_with(largest, outputs=2)
    with pytest.raises(GraphError, match="unexpected keyword argument 'j'"):
        graph_with(largest, outputs=2, k=1, j=2)
    with pytest.raises(GraphError, match="an argument by name has no form in a file"):
        largest.attrs(k=X)
    assert largest.attrs(k=np.int64(3)) == {"operator": largest, "arguments": '{"k": 3}'}
    b = GraphBuilder("quantised")
    x = b.input("x", TensorType((2,), "int8", Quant((0.5,), (0,))))
    with pytest.raises(GraphError, match="which is quantised"):
        b.add("python", x, **double.attrs())


@pytest.mark.parametrize(
    "declared, sentence",
    [
        ({"inputs": "float32"}, "expected names of dtypes in a list"),
        ({"inputs": ["float33"]}, "unknown dtype 'float33'"),
        ({"outputs": ["any"]}, "unknown dtype 'any'"),
        ({"shape": (2, 3)}, r"shape is \(2, 3\), expected a function"),
        ({"cost": 5}, "cost is 5, expected a function"),
        ({"outputs": []}, "outputs is empty"),
    ],
    ids=range(6),
)
def test_wrong_declarations_are_refused(declared, sentence):
    with pytest.raises(GraphError, match=sentence):
        trireme.python_op(lambda x: x, **declared)


def test_a_cost_that_is_no_number_is_refused():
    graph = graph_with(trireme.python_op(lambda x: x, cost=lambda x: "much", name="f"))
    with pytest.raises(GraphError, match="the cost of f is 'much'"):
        run(graph)


def test_a_file_holds_the_name_alone(tmp_path):
    graph = graph_with(largest, outputs=2, k=3)
    path = tmp_path / "g.trm"
    save(graph, path)
    for read in (load, trireme.convert, Session):
        with pytest.raises(ModelFileError, match="functions that are not given: largest"):
            read(path)
    assert b"argsort" not in path.read_bytes()
    again = load(path, python_ops={"largest": largest})
    assert str(again) == str(graph) and dumps(again) == dumps(graph)
    want = run_reference(graph, {"x": X})
    options = trireme.ExecutionOptions(python_ops={"largest": largest})
    for made in (run(again), run(path, execution_options=options)):
        np.testing.assert_array_equal(made["y0"], want["y0"])


def test_every_missing_function_is_listed():
    b = GraphBuilder("two")
    x = b.input("x", FLOAT)
    names = ("beta", "alpha")
    ops = [trireme.python_op(lambda x: x, name=name) for name in names]
    data = dumps(b.finish(*(b.add("python", x, **one.attrs()) for one in ops)))
    with pytest.raises(ModelFileError, match="not given: alpha, beta"):
        loads(data)
    with pytest.raises(ModelFileError, match="not given: alpha"):
        loads(data, python_ops={"beta": ops[0]})
    with pytest.raises(ModelFileError, match="expected a mapping of texts to PythonOps"):
        loads(data, python_ops={"beta": lambda x: x})
    other = trireme.python_op(lambda x: x, outputs=["int8"])
    with pytest.raises(ModelFileError, match="the op makes int8"):
        loads(data, python_ops={"alpha": other, "beta": other})


def test_eager_tensors_go_through_a_function():
    y = double(eager.tensor(X) * 2) + 1
    np.testing.assert_array_equal(y, X * 4 + 1)
    assert y.device == "cpu"
    values, places = largest(eager.tensor(X), k=2)
    np.testing.assert_array_equal(values.to("cpu") + 0, largest(X, k=2)[0])
    assert values.device == "cpu" and places.dtype == np.int64
    with pytest.raises(PlacementError, match="cpu cannot run python: the host calls Python func"):
        eager.run("python", X, device="cpu", **double.attrs())
    with pytest.raises(RunError, match="raised TypeError"):
        trireme.python_op(lambda x: x + None)(eager.tensor(X))
    with pytest.raises(GraphError, match="arrays by position"):
        largest(eager.tensor(X), k=X)


def test_without_tensors_the_function_is_called_as_it_is():
    assert double(3) == 6 and isinstance(double(X), np.ndarray)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_device_that_is_pinned_says_why_not(device):
    b = GraphBuilder("pinned")
    x = b.input("x", FLOAT)
    graph = b.finish(b.add_node("python", [x], double.attrs(), pin=device)[0])
    with pytest.raises(PlacementError, match=r"the host calls Python functions \(here double\)"):
        Session(graph, devices=[device])


def test_a_batch_is_refused():
    b = GraphBuilder("batch")
    x = b.input("x", TensorType((1, 6), "float32"))
    graph = b.finish(b.add("python", x, **double.attrs()))
    with pytest.raises(PlacementError, match="python"):
        Session(graph, batch=4)


def test_symbols_pass_through_the_shape_rule():
    b = GraphBuilder("symbols")
    x = b.input("x", TensorType(("n", 6), "float32"))
    graph = b.finish(*b.add_node("python", [x], largest.attrs(k=2), outputs=2))
    assert graph.type(graph.outputs[0]).shape == ("n", 2)
    made = run(graph, shapes={"x": (4, 6)})
    np.testing.assert_array_equal(next(iter(made.values())), largest(X, k=2)[0])


def test_a_list_of_one_shape_is_a_shape():
    doubled = trireme.python_op(
        lambda x: np.tile(x, 2), shape=lambda x: [(x[0], 2 * x[1])], name="d"
    )
    np.testing.assert_array_equal(run(graph_with(doubled))["y0"], 2 * np.tile(np.maximum(X, 0), 2))


def test_a_result_whose_size_only_the_run_knows():
    positive = trireme.python_op(lambda x: x[x > 0], shape=lambda x: ("?",), name="positive")
    graph = graph_with(positive)
    with Session(graph) as session:
        for x in (X, np.abs(X), -np.abs(X)):
            made = session.run({"x": x})["y0"]
            np.testing.assert_array_equal(made, 2 * x[x > 0])


def test_a_session_of_open_shapes_calls_the_function_at_each():
    b = GraphBuilder("open")
    x = b.input("x", TensorType(("n", 6), "float32"))
    inner = b.add("python", b.add("relu", x), **double.attrs())
    graph = b.finish(b.add("relu", inner, names=["y"]))
    with Session(graph) as session:
        for rows in (1, 4, 3):
            made = session.run({"x": X[:rows]})["y"]
            np.testing.assert_array_equal(made, 2 * np.maximum(X[:rows], 0))


def test_a_function_without_inputs_declares_its_type():
    for declared, what in (({}, "dtype"), ({"outputs": ["int8"]}, "shape")):
        with pytest.raises(GraphError, match=f"f has no input whose {what}"):
            trireme.python_op(lambda: 1, name="f", **declared).types([], "{}")
    ones = trireme.python_op(
        lambda: np.ones(3, np.int8), outputs=["int8"], shape=lambda: (3,), name="ones"
    )
    b = GraphBuilder("none")
    graph = b.finish(b.add("python", **ones.attrs()))
    with Session(graph) as session:
        (made,) = session.run({}).values()
    assert made.tolist() == [1, 1, 1]
