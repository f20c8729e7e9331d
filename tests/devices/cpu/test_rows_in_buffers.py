"""Rows that count of a buffer lie where the buffer does, but for outputs, which are shorter. New
rows are written into the buffer of a state alone.
"""

import numpy as np
import pytest
from cpu_run import run
from every_shape import Case, bound

import trireme
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.model_file import dumps, loads, writer
from trireme.support.errors import ModelFileError

ROOM = 9


def rows_of(kind):
    """A graph whose outputs are the rows that count of a buffer, which is an input or computed."""
    case = Case(f"rows of {kind}")
    buffer = case.input("buffer", 1, ROOM, 4)
    length = case.input("length", "s", 0, dtype="uint8")
    rows = case.input("rows", 1, "t", 4)
    if kind in ("computed", "in place"):
        buffer = case.add("neg", buffer)
    if kind in ("appended", "in place"):
        attrs = {"axis": 1, "in_place": int(kind == "in place")}
        buffer = case.add("append_rows", buffer, length, rows, **attrs)
    held = case.add("held_rows", buffer, length, rows, axis=1)
    shape = case.builder.constant("shape", np.array([-1, 4]))
    flat = case.add("reshape", held, shape)
    inner = case.add("abs", case.add("reshape", held, shape))
    outputs = (buffer, held, flat, inner) if kind == "kept" else (held, flat, inner)
    return case, case.builder.finish(*outputs)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("kind", ["given", "computed", "appended", "in place", "kept"])
def test_rows_that_are_outputs_write_no_more_bytes_than_they_have(cpus, kind, is_open):
    case, graph = rows_of(kind)
    device = cpus[available_isas()[0], 1]
    every = device.compile_polymorphic([graph])[0] if is_open else None
    for held, new in ((2, 3), (1, 1), (5, 4)):
        one = bound(graph, {"s": held, "t": new})
        feeds = {
            value.id: case.rng.standard_normal(value.type.dims).astype(value.dtype)
            for value in one.input_values()
        }
        found, _, _ = run(device, one, feeds, executable=None if every is None else every.at(one))
        for mine, wanted in zip(found, interpret(one, feeds).values(), strict=True):
            np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize("from_file", [False, True])
def test_what_is_fed_is_not_written(tmp_path, from_file):
    b = GraphBuilder("appended")
    buffer = b.input("buffer", TensorType((1, ROOM, 4), "float32"))
    length = b.input("length", TensorType(("s", 0), "uint8"))
    rows = b.input("rows", TensorType((1, "t", 4), "float32"))
    y = b.add("append_rows", buffer, length, rows, axis=1)
    model = b.finish(b.add("neg", y, names=["y"]), b.add("abs", buffer, names=["before"]))
    if from_file:
        trireme.save(model, tmp_path / "appended.trm")
        model = tmp_path / "appended.trm"
    fed = np.full((1, ROOM, 4), 2, np.float32)
    fed.flags.writeable = False
    feeds = {"buffer": fed, "length": np.zeros((2, 0), np.uint8)}
    with trireme.Session(model, devices=["cpu"]) as session:
        found = session.run({**feeds, "rows": np.ones((1, 3, 4), np.float32)})
    assert (fed == 2).all() and (found["before"] == 2).all()
    assert found["y"][0, :, 0].tolist() == [-2, -2, -1, -1, -1, -2, -2, -2, -2]


def test_a_file_cannot_say_that_a_buffer_may_be_written(monkeypatch):
    _, graph = rows_of("in place")
    (node,) = (one for one in loads(dumps(graph)).nodes if one.op == "append_rows")
    assert node.attrs["in_place"] == 0
    monkeypatch.setattr(writer, "_stored", lambda node: sorted(node.attrs))
    with pytest.raises(ModelFileError, match="'in_place' of append_rows cannot be given by a file"):
        loads(dumps(graph))
