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
from trireme.runtime.shapes.closed import ClosedGraph
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
        call.resizer.recordings = 0  # Python sizes all steps
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


def positions():
    """x [s,20] and the rows of a table at p, p + 1 .. beyond, p being the rows of y [p,20]."""
    b = GraphBuilder("positions")
    x, y = (b.input(name, TensorType((dim, 20), "float32")) for name, dim in ("xs", "yp"))
    zero, one = (b.constant(name, np.array(n)) for name, n in (("z", 0), ("o", 1)))
    empty = b.constant("e", np.array([], np.int64))
    rows, past = (b.add("reshape", b.add("shape", v, start=0, end=1), empty) for v in (x, y))
    table = b.constant("t", np.random.default_rng(4).random((2000, 20)).astype(np.float32))
    places = b.add("add", b.add("range", zero, rows, one), past)
    far = b.add("matmul", b.add("softmax", x, axis=-1), b.add("transpose", y, perm=(1, 0)))
    return optimise(b.finish(b.add("add", x, b.add("gather", table, places, axis=0)), far))


@pytest.mark.parametrize("threads", [1, 2])
def test_shapes_that_are_expected_have_the_bits_of_others(cpus, threads):
    graph, device = positions(), cpus[ISA, threads]
    _, call, _ = resizable(device, graph)
    _, plain, _ = resizable(device, graph)
    beside, closed = call.beside(), ClosedGraph(graph)
    walk = [(1, past) for past in range(1, 70)]
    sizes = [*walk, (1, 300), *walk[:20], (4, 7), (4, 7)]
    sizes += [(rows, 2 * rows) for rows in range(1, 60)] + [*walk[30:60:2], *walk[40:]]
    rng, expected = np.random.default_rng(5), 0
    scratch = device.alloc(1 << 20)
    kept = {}
    for turn, at in enumerate(sizes):
        one = closed.at([(n, 20) for n in at])
        feeds = {
            v: rng.random((n, 20)).astype(np.float32) for v, n in zip(graph.inputs, at, strict=True)
        }
        wanted = run_tables(device, plain, plain.resizer.at(at), one, feeds)
        tables = kept[at] = call.tables(at)
        expected += tables.block is not None
        again = kept[sizes[turn // 2]] if turn % 7 == 0 else tables
        if again is not tables:  # tables of another block, or of none, in between
            other = {
                v: np.ones((n, 20), np.float32)
                for v, n in zip(graph.inputs, again.sizes, strict=True)
            }
            shape = closed.at([(n, 20) for n in again.sizes])
            run_tables(device, call, again, shape, other, scratch)
        for user in (call, beside) if turn % 5 == 0 else (call,):
            found = run_tables(device, user, tables, one, feeds, scratch)
            for array, right in zip(found, wanted, strict=True):
                assert array.tobytes() == right.tobytes(), at
    assert expected > len(sizes) // 2


def test_expected_shapes_end_at_the_bound_of_a_symbol(cpus):
    b = GraphBuilder("bounded")
    x = b.input("x", TensorType(("s", 8), "float32"))
    b.symbols["s"] = (1, 50)
    graph = b.finish(b.add("softmax", x, axis=-1))
    _, call, _ = resizable(cpus[ISA, 1], graph)
    tables = [call.tables((size,)) for size in range(1, 51)]
    blocks = {id(one.block): one.block for one in tables if one.block is not None}
    assert blocks
    assert all(block.at((51,)) is None for block in blocks.values())


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
