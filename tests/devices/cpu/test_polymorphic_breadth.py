"""Kernels for every shape beside those of networks' layers: orders, triangles, scatters, edges."""

import numpy as np
import pytest
from every_shape import Case, check_every_shape

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas

ISAS = available_isas(variants=False)


def number(c, value):
    return c.builder.constant(f"n{len(c.builder.values)}", np.asarray(value))


def running_sums(c):
    x, y = c.input("x", "b", "s", 21), c.input("y", "b", "s", dtype="int64")
    across = c.add("cum_sum", x, number(c, 1), exclusive=1)
    return [across, c.add("cum_sum", y, number(c, -1)), c.add("cum_prod", x, number(c, 2))]


def running_from_the_end(c):
    x = c.input("x", "b", "s")
    return [c.add("cum_sum", x, number(c, 1), reverse=1, exclusive=e) for e in (0, 1)]


def places_of_the_largest(c):
    x, y = c.input("x", "b", "s"), c.input("y", "b", "s", dtype="int64")
    last = c.add("arg_max", y, axis=-1, select_last_index=1, keepdims=0)
    return [c.add("arg_max", x, axis=-1), last, c.add("arg_min", x, axis=1, keepdims=0)]


def places_across(c):
    x, y = c.input("x", "b", "s", 37), c.input("y", "s", 9)
    return [c.add("arg_max", x, axis=1), c.add("arg_min", y, axis=0, keepdims=0)]


def triangles(c):
    x, y = c.input("x", "b", "s", "t"), c.input("y", "s", "t", dtype="bool")
    kept = [c.add("trilu", x, number(c, k), upper=u) for u, k in ((0, 0), (1, 2), (0, -3), (1, 0))]
    return [*kept, c.add("trilu", y, upper=1)]


def scatters(c):
    x, updates = c.input("x", "b", "s", 18), c.input("u", "t", 18)
    places = c.input("o", "t", 2, dtype="int64")
    plain = c.add("scatter_nd", x, places, updates)
    total = c.add("scatter_nd", x, places, updates, reduction="add")
    rows, items = c.input("o2", "b", "t", dtype="int64"), c.input("v", "b", "t")
    line = c.input("y", "b", "s")
    placed = c.add("scatter_elements", line, rows, items, axis=1)
    return [
        plain,
        total,
        placed,
        c.add("scatter_elements", line, rows, items, axis=1, reduction="max"),
    ]


CASES = {
    f.__name__: f
    for f in (
        running_sums,
        running_from_the_end,
        places_of_the_largest,
        places_across,
        triangles,
        scatters,
    )
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_one_compile_serves_every_shape(cpus, name, isa):
    case = Case(name)
    graph = case.builder.finish(*CASES[name](case))
    device = cpus[isa, 1]
    reasons = [device.polymorphic_reason(graph, node) for node in graph.nodes]
    assert not any(reasons), reasons
    check_every_shape(cpus, device, case, graph, isa)
