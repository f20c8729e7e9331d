"""One table of steps that takes shape after shape: the words, the chunks and the bits of each."""

import numpy as np
import pytest
from resized import resizable, run_tables

from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.compile.resizable import _cut
from trireme.devices.cpu.compile.step_layout import PointerPlaces
from trireme.devices.cpu.kernels.lowering import KernelFault
from trireme.devices.cpu.runtime import native
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.passes.pipeline import optimise
from trireme.runtime.dynamic.closed import ClosedGraph
from trireme.support.errors import CompileError, RunError

ISA = available_isas(variants=False)[0]


def layers(count):
    """Alike layers of x [b,s,16] and of a past p [b,t,16], which only the last product reads."""
    b = GraphBuilder("layers")
    x = b.input("x", TensorType(("b", "s", 16), "float32"))
    past = b.input("p", TensorType(("b", "t", 16), "float32"))
    rng = np.random.default_rng(3)
    for k in range(count):
        w = b.constant(f"w{k}", rng.standard_normal((16, 16)).astype(np.float32))
        x = b.add("relu", b.add("matmul", x, w))
        keys = b.add("transpose", past, perm=(0, 2, 1))
        x = b.add("matmul", b.add("softmax", b.add("matmul", x, keys), axis=-1), past)
    return b.finish(x)


def test_alike_steps_are_sized_once_and_only_when_their_symbols_change(cpus):
    counts = []
    for layer_count in (2, 6):
        _, call, _ = resizable(cpus[ISA, 1], layers(layer_count))
        call.tables((2, 5, 7))  # b, s, t
        whole = call.resizer.resized
        call.tables((2, 5, 8))
        grown = call.resizer.resized - whole
        call.tables((2, 5, 8))
        assert call.resizer.resized == whole + grown, "the same shape is sized again"
        call.tables((1, 3, 8))
        assert call.resizer.resized == whole * 2 + grown
        counts.append((whole, grown))
    assert counts[0] == counts[1], "more layers of a kind take more sizing"
    whole, grown = counts[0]
    assert 0 < grown < whole < 12


def test_a_wrong_index_is_reported_and_the_next_run_is_right(cpus):
    b = GraphBuilder("lookup")
    ids = b.input("ids", TensorType(("n",), "int64"))
    rows = np.arange(40, dtype=np.float32).reshape(10, 4)
    graph = b.finish(b.add("gather", b.constant("t", rows), ids, axis=0))
    every, call, _ = resizable(cpus[ISA, 1], graph)
    faults = [o for s in every._program.steps for o in s.reads if isinstance(o, KernelFault)]
    assert faults
    for index in (3, 11, 4, 10, 5):
        one = ClosedGraph(graph).at([(2,)])
        feeds = {graph.inputs[0]: np.array([0, index])}
        if index >= 10:
            with pytest.raises(RunError, match=f"index {index}"):
                run_tables(cpus[ISA, 1], call, call.tables((2,)), one, feeds)
        else:
            (found,) = run_tables(cpus[ISA, 1], call, call.tables((2,)), one, feeds)
            np.testing.assert_array_equal(found, rows[[0, index]])


def test_an_empty_tensor_is_refused_and_changes_nothing(cpus):
    b = GraphBuilder("chain")
    x = b.input("x", TensorType(("b", "s"), "float32"))
    graph = b.finish(b.add("mul", b.add("tanh", x), x))
    device = cpus[ISA, 1]
    _, call, _ = resizable(device, graph)
    one = ClosedGraph(graph).at([(2, 9)])
    feeds = {x: np.arange(18, dtype=np.float32).reshape(2, 9)}
    tables = call.tables((2, 9))
    (before,) = run_tables(device, call, tables, one, feeds)
    with pytest.raises(CompileError, match="empty"):
        call.tables((2, 0))
    (after,) = run_tables(device, call, call.tables((2, 9)), one, feeds)
    assert before.tobytes() == after.tobytes()


def test_operands_that_shapes_decide_are_written_again(cpus):
    """Large ones are not kept for a shape: they are computed when the shape comes again."""
    b = GraphBuilder("positions")
    x = b.input("x", TensorType(("s", 20), "float32"))
    zero, one = (b.constant(name, np.array(n)) for name, n in (("z", 0), ("o", 1)))
    empty = b.constant("e", np.array([], np.int64))
    length = b.add("reshape", b.add("shape", x, start=0, end=1), empty)
    rows = np.random.default_rng(4).random((2000, 20)).astype(np.float32)
    places = b.add("range", zero, length, one)
    y = b.add("add", x, b.add("gather", b.constant("t", rows), places, axis=0))
    graph = optimise(b.finish(y))
    device = cpus[ISA, 1]
    _, call, contents = resizable(device, graph)
    closed, kept = ClosedGraph(graph), {}
    for size in (3, 1500, 4, 3, 1500, 1500):
        kept.setdefault(size, call.tables((size,)))
        shape = closed.at([(size, 20)])
        feeds = {graph.inputs[0]: np.ones((size, 20), np.float32)}
        (found,) = run_tables(device, call, kept[size], shape, feeds)
        np.testing.assert_array_equal(found, rows[:size] + 1)
    assert kept[3].decided is not None
    assert kept[1500].decided is None


def test_pointers_are_written_again_after_an_interrupt():
    class Interrupted(list):
        def __setitem__(self, at, place):
            if at == 1 and place == 500:
                raise KeyboardInterrupt
            super().__setitem__(at, place)

    places = PointerPlaces(1)
    for at in range(3):
        places.add(at, 0, 8 * at)
    pointers = Interrupted([0, 0, 0])
    places.write(pointers, [100])
    with pytest.raises(KeyboardInterrupt):
        places.write(pointers, [492])
    places.write(pointers, [100])
    assert pointers == [100, 108, 116]


def test_a_step_of_too_many_chunks_is_several_rows():
    table = np.zeros((3, native.STEP_WORDS), np.int64)
    most = native.MOST_CHUNKS
    table[:, native.STEP_FN] = 10, 20, 30
    table[:, native.STEP_CHUNKS] = 5, 2 * most + 3, most
    made = _cut(table)
    assert made[:, native.STEP_FN].tolist() == [10, 20, 20, 20, 30]
    assert made[:, native.STEP_CHUNKS].tolist() == [5, most, most, 3, most]
    assert made[:, native.STEP_BASE].tolist() == [0, 0, most, 2 * most, 0]
