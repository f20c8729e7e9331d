"""A device that compiles a graph once for every shape serves an open session with one program."""

import threading

import numpy as np
import pytest
from toy_device import ToyDevice

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.runtime.shapes.closed import ClosedGraph, why_not_closed
from trireme.runtime.shapes.polymorphic import PolymorphicGraph
from trireme.support.errors import CompileError, RunError, ShapeError


class OneProgram:
    """Counts the shapes that it is asked for; "compiling" one is the toy's."""

    def __init__(self, device, graph):
        self.device, self.graph = device, graph

    def at(self, graph):
        self.device.asked.append([graph.type(value).shape for value in graph.inputs])
        if graph.type(graph.inputs[0]).shape[0] == 13:
            raise CompileError("toy: 13 is refused")
        return self.device.compile([graph])[0]


class AnyShape(ToyDevice):
    """A toy with the capability; it has no kernel of every shape for `lacks`."""

    def __init__(self, name, lacks="", **options):
        super().__init__(name, **options)
        self.lacks, self.asked, self.compiled = lacks, [], 0

    def polymorphic_reason(self, graph, node):
        return f"{node.op} is lacking" if node.op == self.lacks else None

    def compile_polymorphic(self, graphs):
        self.compiled += 1
        return [OneProgram(self, graph) for graph in graphs]


def rows():
    """y = x reshaped by its own shape, times a matrix, plus places that the shape decides."""
    b = GraphBuilder("rows")
    b.symbols["n"] = (0, 16)
    x = b.input("x", TensorType(("n", 4), "float32"))
    count = b.add("shape", x, start=0, end=1)
    target = b.add("concat", count, b.constant("t", np.array([2, 2], np.int64)), axis=0)
    parts = b.add("reshape", x, target)
    flat = b.add("reshape", parts, b.constant("f", np.array([-1, 4], np.int64)))
    w = b.constant("w", np.arange(12, dtype=np.float32).reshape(4, 3))
    y = b.add("add", b.add("matmul", flat, w), b.constant("c", np.ones(3, np.float32)))
    size = b.add("squeeze", count, b.constant("a", np.array([0], np.int64)))
    zero, one = (b.constant(n, np.array(v, np.int64)) for n, v in (("zero", 0), ("one", 1)))
    places = b.add("range", zero, size, one)
    return b.finish(y, places)


def feeds(n):
    return {"x": np.arange(4 * n, dtype=np.float32).reshape(n, 4)}


def test_one_compile_serves_every_shape():
    device, graph = AnyShape("cpu"), rows()
    with Session(graph, devices=[device]) as session:
        for n in (3, 1, 16, 3):
            found, wanted = session.run(feeds(n)), run_reference(graph, feeds(n))
            for name, array in wanted.items():
                np.testing.assert_array_equal(found[name], array)
        assert session.stages[0].tier == "polymorphic"
        assert session.stages[0].why == ""
    assert device.compiled == 1
    largest, *asked = device.asked
    assert largest == [(16, 4)]  # memory is planned for the bound
    assert asked == [[(n, 4)] for n in (3, 1, 16)]


def test_estimates_are_those_of_the_shape():
    with Session(rows(), devices=[AnyShape("cpu")]) as session:
        predicted = []
        for n in (2, 16):
            session.run(feeds(n))
            assert session.plan.graph.type(session.plan.graph.inputs[0]).shape == (n, 4)
            predicted.append(session.placement.makespan_s)
            assert session.profile(feeds(n), runs=1, warmup=0).predicted_s > 0
        assert predicted[0] < predicted[1]


def test_a_node_without_such_a_kernel_is_told():
    device = AnyShape("cpu", lacks="fully_connected")
    with Session(rows(), devices=[device]) as session:
        session.run(feeds(2))
        (stage,) = session.stages
        assert stage.tier == "specialised"
        assert "fully_connected is lacking" in stage.why
        assert "specialised (cpu: " in str(stage)
    assert device.compiled == 0


def test_a_shape_of_another_structure_is_compiled_for_itself():
    with Session(rows(), devices=[AnyShape("cpu")]) as session:
        found = session.run(feeds(13))
        for name, array in run_reference(rows(), feeds(13)).items():
            np.testing.assert_array_equal(found[name], array)
        assert session.stages[0].tier == "specialised"
        assert session.stages[0].why == "toy: 13 is refused"


def test_interactive_runs_are_compiled_for_their_shapes():
    options = ExecutionOptions(execution="interactive")
    with Session(rows(), devices=[AnyShape("cpu")], execution_options=options) as session:
        session.run(feeds(2))
        assert "interactive" in session.stages[0].why


def test_bounds_hold_for_every_shape():
    with Session(rows(), devices=[AnyShape("cpu")]) as session:
        with pytest.raises(RunError, match=r"symbol n is 17, expected 0\.\.16"):
            session.run(feeds(17))
        session.run(feeds(16))


def test_a_closed_graph_computes_what_shapes_decide():
    closed = ClosedGraph(rows())
    graph = closed.at([(5, 4)])
    assert {node.op for node in graph.nodes} == {"reshape", "matmul", "add"}
    assert graph.values[graph.outputs[1]].data.tolist() == [0, 1, 2, 3, 4]
    assert all(value.type.is_static for value in graph.values.values())
    assert [node.id for node in graph.nodes] == [
        node.id for node in rows().nodes if node.op in ("reshape", "matmul", "add")
    ]
    with pytest.raises(ShapeError, match="expected 2 dimensions"):
        closed.at([(5,)])


def test_a_branch_has_the_sizes_of_its_operands():
    """A region behind others is given 2*h+1 rows, and nobody knows h."""

    def branch(op):
        b = GraphBuilder(op)
        return b.finish(b.add(op, b.input("x", TensorType((1, "h", 1, 4), "float32"))))

    b = GraphBuilder("g")
    which = b.input("which", TensorType((), "bool"))
    x = b.input("x", TensorType((1, "2*h+1", 1, 4), "float32"))
    window = dict(kernel=(2, 1), strides=(2, 1), pads=(0, 0, 0, 0), dilations=(1, 1))
    pooled = b.add("max_pool", x, **window, layout="NHWC")
    y = b.add("if", which, pooled, then_branch=branch("relu"), else_branch=branch("neg"))
    graph = ClosedGraph(b.finish(y)).at([(), (1, 7, 1, 4)])
    assert graph.type(y).shape == (1, 3, 1, 4)


def test_a_shape_that_depends_on_values_is_not_closed():
    b = GraphBuilder("g")
    places = b.add("non_zero", b.input("x", TensorType(("n",), "float32")))
    assert "does not follow" in why_not_closed(b.finish(places))
    b = GraphBuilder("g")
    text = b.input("t", TensorType(("n",), "string"))
    assert "holds strings" in why_not_closed(b.finish(text))


def late_rows():
    """Rows of x that are not zero, times a large matrix: how many depends on values."""
    b = GraphBuilder("late")
    x = b.input("x", TensorType(("n", 256), "float32"))
    keep = b.add(
        "greater",
        b.add("reduce_max", x, b.constant("a", np.array([1])), keepdims=0),
        b.constant("z", np.float32(0)),
    )
    rows = b.add("compress", x, keep, axis=0)
    w = b.constant("w", np.random.default_rng(0).integers(0, 3, (256, 128)).astype(np.float32))
    return b.finish(b.add("matmul", rows, w, names=["y"]))


def test_a_late_stage_is_compiled_once_for_every_shape():
    device = AnyShape("cpu")
    x = np.zeros((20, 256), np.float32)
    with Session(late_rows(), devices=[device]) as session:
        for count in (3, 12, 5):
            x[:count] = 1
            x[count:] = 0
            wanted = run_reference(late_rows(), {"x": x})["y"]
            np.testing.assert_array_equal(session.run({"x": x})["y"], wanted)
            assert [stage.tier for stage in session.stages] == ["specialised", "polymorphic"]
    assert device.compiled == 1
    largest, *asked = [shapes[0] for shapes in device.asked]
    assert largest == (20, 256)  # memory is planned for the bound
    assert asked == [(3, 256), (12, 256), (5, 256)]


def test_runs_on_shared_scratch_memory_take_turns(monkeypatch):
    """Where no call changes its shape, sessions of all shapes share the scratch memory."""
    monkeypatch.setattr(PolymorphicGraph, "resizable", None)
    b = GraphBuilder("turns")
    x = b.input("x", TensorType(("n", 8), "float32"))
    feeds, over = {"x": np.ones((2, 8), np.float32)}, threading.Event()
    with Session(b.finish(b.add("softmax", x, names=["y"])), devices=["cpu"]) as session:
        session.run(feeds)
        turn = session.ready.runner.program._open._polymorphic.turn
        other = threading.Thread(target=lambda: (session.run(feeds), over.set()))
        with turn:
            other.start()
            assert not over.wait(0.2)
        assert over.wait(20)
        other.join()
