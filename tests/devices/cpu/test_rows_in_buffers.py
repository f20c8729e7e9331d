"""Rows that count of a buffer lie where the buffer does, but for outputs, which are shorter."""

import numpy as np
import pytest
from cpu_run import run
from every_shape import Case, bound

from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.interpreter import interpret

ROOM = 9


def rows_of(kind):
    """A graph whose outputs are the rows that count of a buffer, which is an input or computed."""
    case = Case(f"rows of {kind}")
    buffer = case.input("buffer", 1, ROOM, 4)
    length = case.input("length", "s", 0, dtype="uint8")
    rows = case.input("rows", 1, "t", 4)
    if kind in ("computed", "appended"):
        buffer = case.add("neg", buffer)
    if kind == "appended":
        buffer = case.add("append_rows", buffer, length, rows, axis=1)
    held = case.add("held_rows", buffer, length, rows, axis=1)
    shape = case.builder.constant("shape", np.array([-1, 4]))
    flat = case.add("reshape", held, shape)
    inner = case.add("abs", case.add("reshape", held, shape))
    outputs = (buffer, held, flat, inner) if kind == "kept" else (held, flat, inner)
    return case, case.builder.finish(*outputs)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("kind", ["given", "computed", "appended", "kept"])
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
